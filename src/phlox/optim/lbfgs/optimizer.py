"""L-BFGS: quasi-Newton steps, for losses that are computed on all data at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Self, cast, final

import numpy as np

from phlox.backend import Float
from phlox.backend.parallel import row_group
from phlox.config import Config
from phlox.errors import CompileError, ConfigError, OptimizerError
from phlox.host.signal_guard import commit
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.optim.lbfgs.curvature import AnyTensor, Array, CurvatureHistory, FlatLayout
from phlox.optim.lbfgs.descent import Descent, Found
from phlox.optim.optimizer import M, Optimizer, Rate, tracing
from phlox.optim.state.flat import move_state
from phlox.optim.state.tree import State
from phlox.optim.step.validation import value_for
from phlox.record import LazyTensor
from phlox.tensor import Tensor, zeros_like

_PER_PARAMETER = frozenset({"gradient", "direction", "steps", "differences"})
_COMMON = frozenset({"curvatures", "length", "scale", "iterations"})
"""Numbers of the whole vector, which are in the state of every parameter."""
_LISTS = ("steps", "differences", "curvatures")


class LbfgsConfig(Config):
    """Hyper-parameters of `Lbfgs`. Defaults are PyTorch's.

    Args:
        history: the number of pairs of differences that are kept.
        max_iter: the most iterations in a call of `Lbfgs.minimize`.
        max_eval: the most evaluations of the loss in a call (a line search may take one more); by default 5/4 of
            `max_iter`.
        tolerance_grad: a call ends when no element of the gradient is greater than this,
        tolerance_change: or when neither the loss nor any parameter changes by more than this in an iteration.
        line_search: "strong_wolfe" searches for a good step length. None always takes the learning rate as the length:
            good near a minimum, but it may diverge far from one.

    Raises `ConfigError` if a value is out of range.

    >>> LbfgsConfig(line_search="strong_wolfe").init()
    Lbfgs(0 states)
    """

    history: int = 100
    max_iter: int = 20
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    line_search: Literal["strong_wolfe"] | None = None
    max_eval: int | None = None

    def validate(self) -> None:
        for name in ("history", "max_iter", "max_eval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least one, got {value}")
        for name in ("tolerance_grad", "tolerance_change"):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be at least zero, got {value}")

    def init(self) -> Lbfgs:
        """Create the optimizer."""
        return Lbfgs(self)


class LbfgsOutcome(NamedTuple):
    """The result of a call of `Lbfgs.minimize`."""

    loss: float
    """The loss before the first iteration."""
    last_loss: float
    """The last loss that was computed; without a line search this is not done after the last iteration."""
    iterations: int
    """The number of iterations."""
    evaluations: int
    """The number of evaluations of the loss."""
    reason: str
    """Why it ended: converged to a tolerance ("gradient", "change" or "slope"), "iterations", "evaluations", "no step"
    (no step reduced the loss), or "not finite" (the last step was not finite, and was not taken)."""
    restarted: bool
    """Whether the history was of other parameters, and so was dropped."""


@final
class Lbfgs(Optimizer):
    """x = x - t H g, where H approximates the inverse Hessian, from the last differences of x and g.

    It evaluates the loss several times per step. So it takes a function that computes the loss, in place of gradients:
    `minimize(lr, module, closure)`. The loss must be the same function at every call: on all data or on one large
    batch, and without dropout.

    All parameters are one vector of f32 or higher, even if they are on several devices. The history is kept by
    parameter id. It starts anew when the set of parameters changes (layers inserted or removed, frozen or unfrozen).
    Nocedal, Wright 2006: "Numerical optimization", algorithm 7.4.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> model = nn.Linear(2, 1).init(0).train()
    >>> x, y = px.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), px.tensor([[1.0], [2.0], [4.0]])
    >>> optimizer = optim.LbfgsConfig(line_search="strong_wolfe").init()
    >>> model = optimizer.minimize(1.0, model, lambda model: nn.mse_loss(model(x), y))
    >>> optimizer.outcome.last_loss < 1e-6
    True
    """

    def __init__(self, config: LbfgsConfig) -> None:
        super().__init__()
        self.config = config
        self.outcome: LbfgsOutcome | None = None
        """The outcome of the last call of `minimize`."""
        self._memory: tuple[tuple[ParamId, ...], CurvatureHistory] | None = None
        """The history of these parameters, which is split into states when they are needed."""

    @property
    def states(self) -> dict[ParamId, State]:
        """See `Optimizer.states`."""
        with self._lock:
            if self._memory is not None:
                ids, memory = self._memory
                self._states, self._memory = dict(zip(ids, memory.states(), strict=True)), None
            return super().states

    def structure_key(self) -> Hashable:
        return self.config

    def _take_loaded(self, states: dict[ParamId, State]) -> None:
        with self._lock:
            self._memory = None
            super()._take_loaded(states)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            _ = self.states
            return super().__getstate__()

    def _number_of_states(self) -> int:
        return super()._number_of_states() if self._memory is None else len(self._memory[0])

    def bare(self) -> Self:
        bare = super().bare()
        bare.outcome = None
        return bare

    def step(self, lr: Rate, module: M, grads: GradientsParams) -> M:
        raise OptimizerError(
            "L-BFGS evaluates the loss several times for a step, so that gradients are not enough; call "
            "optimizer.minimize(lr, model, closure), where closure(model) computes the loss"
        )

    def minimize(self, lr: float, module: M, closure: Callable[[M], Any]) -> M:
        """Run up to `max_iter` iterations, and return a new module; `outcome` says what happened.

        Parameters that are not trained, or have no gradient at the first evaluation, do not change. Running statistics
        are those after the first evaluation. If an evaluation raises an error, parameters and history do not change.

        Args:
            lr: the step length; for a line search, the first length to try.
            module: the module, on a device with a tape.
            closure: takes a module and returns the loss, as a scalar on the tape, or a tuple that begins with it. It
                can also return the loss and its gradient, like `phlox.value_and_grad`; that can be compiled:
                `phlox.compile(phlox.value_and_grad(loss))`.

        Raises `OptimizerError` if the rate is negative or not finite, if the closure returns something else, or if the
        loss or its gradient is not finite at the start. If they become infinite or NaN later, the call ends at the last
        finite parameters and drops the history; a line search tries a shorter step instead. Raises `CompileError`
        inside a compiled function, because it branches on values.
        """
        rate = _checked(lr)
        if tracing.get() is not None:
            raise _inside()
        loss, first = _evaluated(module, closure, None)
        vector = [(path, param) for path, param in module.named_params() if param.id in first]
        values = [_inner(param) for _, param in vector]
        if not any(value.size for value in values):
            self.outcome = LbfgsOutcome(loss, loss, 0, 1, "gradient", False)
            return _moved(module, vector, values)
        layout = FlatLayout(values)
        gradients = [first[param.id] for _, param in vector]
        gradient = layout.joined(gradients)
        start = Found(layout.joined(values), loss, gradient, *layout.numbers_of(gradient, gradient))
        if not start.finite:
            what = "the loss" if not math.isfinite(start.loss) else _wrong_of(vector, gradients)
            raise OptimizerError(
                f"{what} is not finite before the first step of L-BFGS, and the parameters are as they were"
            )
        memory, restarted = self._remembered(module, vector, layout)

        def evaluate(values: Array, direction: Array) -> Found:
            return _found(module, vector, layout, values, direction, closure)

        descent = Descent(self.config, rate, memory, evaluate)
        end, reason = descent.run(start)
        outcome = LbfgsOutcome(start.loss, end.loss, descent.iterations, descent.evaluations, reason, restarted)
        lost = reason in ("not finite", "no step")
        moved = _moved(module, vector, values if end is start else layout.parted(end.values))
        held = dict(vars(self))

        def keep() -> M:
            self.outcome = outcome
            if lost or descent.iterations:
                with self._lock:
                    self._take_loaded({})
                    self._memory = None if lost else (tuple([param.id for _, param in vector]), memory)
            return moved

        return commit(keep, partial(vars(self).update, held))

    # --- history

    def _remembered(
        self, module: Module, vector: Sequence[tuple[str, Param]], layout: FlatLayout
    ) -> tuple[CurvatureHistory, bool]:
        """The history from earlier calls, and whether it had to be dropped."""
        ids = [param.id for _, param in vector]
        self.bind(module)
        self._names.update({param.id: path for path, param in vector})
        if self._memory is not None and self._memory[0] == tuple(ids) and self._memory[1].layout == layout:
            return self._memory[1].copy(), False
        states = self.states
        if not states:
            return CurvatureHistory(self.config.history, layout), False
        if set(states) != set(ids):
            return CurvatureHistory(self.config.history, layout), True
        found: list[State] = []
        for path, param in vector:
            here = _inner(param).to_full_precision()
            state = move_state(states[param.id], here)
            shapes = {part.shape for part in _tensors(state)}
            if shapes != {here.shape}:
                raise OptimizerError(
                    f"{path}: what L-BFGS remembers is of a parameter of shape {min(shapes)}, and this one has "
                    f"{here.shape}; make a new optimizer"
                )
            found.append(state)
        return CurvatureHistory.of(self.config.history, layout, found), False

    def _misfit(self, states: dict[ParamId, State]) -> str | None:
        common: Any = None
        for id, state in states.items():
            lengths = {len(state[name]) for name in _LISTS} if _is_one(state) else set[int]()
            if len(lengths) != 1 or not all(isinstance(part, LazyTensor) for part in _tensors(state)):
                return f"states.{id}: the record is not one of Lbfgs"
            numbers = {name: state[name] for name in _COMMON}
            if common is not None and numbers != common:
                return f"states.{id}: the record of Lbfgs is damaged, its numbers differ from parameter to parameter"
            common = numbers
        return None

    def _shape_misfit(self, param: Param) -> str | None:
        shapes = {part.shape for part in _tensors(self.states[param.id])}
        return None if shapes == {param.shape} else f"expected {param.shape}, found {min(shapes)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.states)} states)"


def _evaluated(
    module: M, closure: Callable[[M], Any], places: Sequence[ParamId] | None
) -> tuple[float, dict[ParamId, AnyTensor]]:
    """The loss, and the gradients by id: those of `places` or of all trained parameters that have one."""
    result = closure(module)
    loss, gradients = result, None
    if isinstance(result, tuple) and result:
        parts = cast("tuple[Any, ...]", result)
        loss = parts[0]
        gradients = next((part for part in parts[1:] if isinstance(part, GradientsParams)), None)
        if isinstance(loss, tuple) and loss:
            loss = cast("tuple[Any, ...]", loss)[0]
    if not isinstance(loss, Tensor) or math.prod(cast("AnyTensor", loss).shape) != 1:
        is_tensor = isinstance(loss, Tensor)
        got = f"shape {cast('AnyTensor', loss).shape}" if is_tensor else type(cast("object", loss)).__name__
        raise OptimizerError(f"the closure of L-BFGS must return the loss, a tensor of one element, got {got}")
    value = cast("AnyTensor", loss)
    if value.backend.is_traced(value.primitive) or value.backend.batched:
        raise _inside()
    if gradients is None:
        if not value.backend.differentiates:
            raise OptimizerError(
                f"the loss that the closure of L-BFGS returned is on {value.backend!r}, which records no tape; move "
                "the module there: model.train()"
            )
        gradients = GradientsParams.from_grads(value.backward(), module)
    found: dict[ParamId, AnyTensor] = {}
    for path, param in module.named_params():
        gradient = gradients.get(param.id)
        if not param.trained or (param.id not in places if places is not None else gradient is None):
            continue
        if gradient is None:
            found[param.id] = zeros_like(_inner(param))
            continue
        here = value_for(path, param.val(), gradient)
        same = gradient.backend is here.backend and gradient.device == here.device
        found[param.id] = gradient if same else gradient.to_device(here.device)
    if len(gradients) and not found:
        raise OptimizerError(
            f"none of the {len(gradients)} gradients is of a parameter of this {type(module).__name__}; are they "
            "another model's?"
        )
    number = value.detach()
    if row_group() is not None:  # each process has the loss of its rows, and all must search alike
        number = Tensor.from_primitive(number.backend.all_reduce([number.primitive], "mean")[0], number.backend, Float)
    return float(number.item()), found


def _found(
    module: M,
    vector: Sequence[tuple[str, Param]],
    layout: FlatLayout,
    values: Array,
    direction: Array,
    closure: Callable[[M], Any],
) -> Found:
    ids = [param.id for _, param in vector]
    loss, gradients = _evaluated(_moved(module, vector, layout.parted(values)), closure, ids)
    gradient = layout.joined([gradients[id] for id in ids])
    return Found(values, loss, gradient, *layout.numbers_of(gradient, direction))


def _inside() -> CompileError:
    return CompileError(
        "L-BFGS decides by the values of the loss where to go, so it runs outside of phlox.compile, phlox.vmap and "
        "JAX's transformations; compile what it evaluates: optimizer.minimize(lr, model, "
        "phlox.compile(phlox.value_and_grad(loss)))"
    )


def _checked(lr: Any) -> float:
    """The rate, a finite number of at least zero."""
    if not isinstance(lr, (int, float, np.floating, np.integer)) or isinstance(lr, bool):
        raise OptimizerError(f"L-BFGS takes one learning rate, a number, got {type(lr).__name__}")
    rate = float(cast("float", lr))
    if not (rate >= 0.0 and math.isfinite(rate)):
        raise OptimizerError(f"the learning rate must be a finite number of at least zero, got {rate}")
    return rate


def _inner(param: Param) -> AnyTensor:
    value = param.val()
    return value.inner() if value.backend.differentiates else value


def _moved(module: M, vector: Sequence[tuple[str, Param]], values: Sequence[AnyTensor]) -> M:
    """The module with these values for these parameters."""
    new = {param.id: value for (_, param), value in zip(vector, values, strict=True)}

    def move(path: str, param: Param) -> Param:
        value = new.get(param.id)
        return param if value is None else param.holding(Tensor.from_primitive(value.primitive, param.backend, Float))

    return cast("M", cast("Module", module).map(move))


def _wrong_of(vector: Sequence[tuple[str, Param]], gradients: Sequence[AnyTensor]) -> str:
    paths = [path for (path, _), part in zip(vector, gradients, strict=True) if not part.isfinite().all().item()]
    return f"the gradient of {', '.join(paths)}"


def _is_one(state: State) -> bool:
    return (
        isinstance(state, dict)
        and set(cast("dict[str, Any]", state)) - {"products"} == {*_PER_PARAMETER, *_COMMON}
        and all(isinstance(state[name], list) for name in _LISTS)
    )


def _tensors(state: State) -> list[Any]:
    return [state["gradient"], state["direction"], *state["steps"], *state["differences"]]
