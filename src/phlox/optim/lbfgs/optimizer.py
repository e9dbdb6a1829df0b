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
from phlox.optim.lbfgs.descent import Descent, Evaluation
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
    """Whether the history was dropped because it belonged to other parameters."""


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
        self._history: tuple[tuple[ParamId, ...], CurvatureHistory] | None = None
        """The history of these parameters, which is split into states when they are needed."""

    @property
    def states(self) -> dict[ParamId, State]:
        """See `Optimizer.states`."""
        with self._lock:
            if self._history is not None:
                ids, history = self._history
                self._states, self._history = dict(zip(ids, history.states(), strict=True)), None
            return super().states

    def structure_key(self) -> Hashable:
        return self.config

    def _set_states(self, states: dict[ParamId, State]) -> None:
        with self._lock:
            self._history = None
            super()._set_states(states)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            _ = self.states
            return super().__getstate__()

    def _number_of_states(self) -> int:
        return super()._number_of_states() if self._history is None else len(self._history[0])

    def bare(self) -> Self:
        bare = super().bare()
        bare.outcome = None
        return bare

    def step(self, lr: Rate, module: M, grads: GradientsParams) -> M:
        raise OptimizerError(
            "L-BFGS evaluates the loss several times in a step, so gradients are not enough; call "
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
        rate = _check_rate(lr)
        if tracing.get() is not None:
            raise _error_inside_transformation()
        loss, first = _loss_and_gradients(module, closure, None)
        named_params = [(path, param) for path, param in module.named_params() if param.id in first]
        values = [_inner(param) for _, param in named_params]
        if not any(value.size for value in values):
            self.outcome = LbfgsOutcome(loss, loss, 0, 1, "gradient", False)
            return _with_values(module, named_params, values)
        layout = FlatLayout(values)
        gradients = [first[param.id] for _, param in named_params]
        gradient = layout.joined(gradients)
        start = Evaluation(layout.joined(values), loss, gradient, *layout.numbers_of(gradient, gradient))
        if not start.finite:
            culprit = "the loss" if not math.isfinite(start.loss) else _not_finite_gradients(named_params, gradients)
            raise OptimizerError(
                f"{culprit} is not finite before the first step of L-BFGS; the parameters did not change"
            )
        history, restarted = self._history_for(module, named_params, layout)

        def evaluate(values: Array, direction: Array) -> Evaluation:
            return _evaluate(module, named_params, layout, values, direction, closure)

        descent = Descent(self.config, rate, history, evaluate)
        end, reason = descent.run(start)
        outcome = LbfgsOutcome(start.loss, end.loss, descent.iterations, descent.evaluations, reason, restarted)
        drops_history = reason in ("not finite", "no step")
        result = _with_values(module, named_params, values if end is start else layout.parted(end.values))
        fields_before = dict(vars(self))

        def keep() -> M:
            self.outcome = outcome
            if drops_history or descent.iterations:
                with self._lock:
                    self._set_states({})
                    self._history = None if drops_history else (tuple([param.id for _, param in named_params]), history)
            return result

        return commit(keep, partial(vars(self).update, fields_before))

    # --- history

    def _history_for(
        self, module: Module, named_params: Sequence[tuple[str, Param]], layout: FlatLayout
    ) -> tuple[CurvatureHistory, bool]:
        """The history from earlier calls, and whether it had to be dropped."""
        ids = [param.id for _, param in named_params]
        self.bind(module)
        self._names.update({param.id: path for path, param in named_params})
        if self._history is not None and self._history[0] == tuple(ids) and self._history[1].layout == layout:
            return self._history[1].copy(), False
        states = self.states
        if not states:
            return CurvatureHistory(self.config.history, layout), False
        if set(states) != set(ids):
            return CurvatureHistory(self.config.history, layout), True
        own_states: list[State] = []
        for path, param in named_params:
            value = _inner(param).to_full_precision()
            state = move_state(states[param.id], value)
            shapes = {tensor.shape for tensor in _tensors(state)}
            if shapes != {value.shape}:
                raise OptimizerError(
                    f"{path}: the history of L-BFGS is of shape {min(shapes)}, and the parameter of shape "
                    f"{value.shape}; create a new optimizer"
                )
            own_states.append(state)
        return CurvatureHistory.of(self.config.history, layout, own_states), False

    def _misfit(self, states: dict[ParamId, State]) -> str | None:
        common: Any = None
        for id, state in states.items():
            lengths = {len(state[name]) for name in _LISTS} if _is_lbfgs_state(state) else set[int]()
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


def _loss_and_gradients(
    module: M, closure: Callable[[M], Any], ids: Sequence[ParamId] | None
) -> tuple[float, dict[ParamId, AnyTensor]]:
    """The loss, and the gradients by id: of the parameters in `ids`, or of all trained parameters that have one."""
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
        description = f"shape {cast('AnyTensor', loss).shape}" if is_tensor else type(cast("object", loss)).__name__
        raise OptimizerError(f"the closure of L-BFGS must return the loss, a tensor of one element, got {description}")
    value = cast("AnyTensor", loss)
    if value.backend.is_traced(value.primitive) or value.backend.batched:
        raise _error_inside_transformation()
    if gradients is None:
        if not value.backend.differentiates:
            raise OptimizerError(
                f"the loss that the closure of L-BFGS returned is on {value.backend!r}, which records no tape; move "
                "the module there: model.train()"
            )
        gradients = GradientsParams.from_grads(value.backward(), module)
    by_id: dict[ParamId, AnyTensor] = {}
    for path, param in module.named_params():
        gradient = gradients.get(param.id)
        if not param.trained or (param.id not in ids if ids is not None else gradient is None):
            continue
        if gradient is None:
            by_id[param.id] = zeros_like(_inner(param))
            continue
        param_value = value_for(path, param.val(), gradient)
        is_beside = gradient.backend is param_value.backend and gradient.device == param_value.device
        by_id[param.id] = gradient if is_beside else gradient.to_device(param_value.device)
    if len(gradients) and not by_id:
        raise OptimizerError(
            f"none of the {len(gradients)} gradients is of a parameter of this {type(module).__name__}; are they "
            "another model's?"
        )
    number = value.detach()
    if row_group() is not None:  # each process has the loss of its own rows, and all must take the same decisions
        number = Tensor.from_primitive(number.backend.all_reduce([number.primitive], "mean")[0], number.backend, Float)
    return float(number.item()), by_id


def _evaluate(
    module: M,
    named_params: Sequence[tuple[str, Param]],
    layout: FlatLayout,
    values: Array,
    direction: Array,
    closure: Callable[[M], Any],
) -> Evaluation:
    ids = [param.id for _, param in named_params]
    loss, gradients = _loss_and_gradients(_with_values(module, named_params, layout.parted(values)), closure, ids)
    gradient = layout.joined([gradients[id] for id in ids])
    return Evaluation(values, loss, gradient, *layout.numbers_of(gradient, direction))


def _error_inside_transformation() -> CompileError:
    return CompileError(
        "L-BFGS branches on the values of the loss, so it runs outside of phlox.compile, phlox.vmap and "
        "JAX's transformations; compile the evaluated function: optimizer.minimize(lr, model, "
        "phlox.compile(phlox.value_and_grad(loss)))"
    )


def _check_rate(lr: Any) -> float:
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


def _with_values(module: M, named_params: Sequence[tuple[str, Param]], values: Sequence[AnyTensor]) -> M:
    """The module with these values for these parameters."""
    new = {param.id: value for (_, param), value in zip(named_params, values, strict=True)}

    def move(path: str, param: Param) -> Param:
        value = new.get(param.id)
        return param if value is None else param.holding(Tensor.from_primitive(value.primitive, param.backend, Float))

    return cast("M", cast("Module", module).map(move))


def _not_finite_gradients(named_params: Sequence[tuple[str, Param]], gradients: Sequence[AnyTensor]) -> str:
    paths = [path for (path, _), g in zip(named_params, gradients, strict=True) if not g.isfinite().all().item()]
    return f"the gradient of {', '.join(paths)}"


def _is_lbfgs_state(state: State) -> bool:
    return (
        isinstance(state, dict)
        and set(cast("dict[str, Any]", state)) - {"products"} == {*_PER_PARAMETER, *_COMMON}
        and all(isinstance(state[name], list) for name in _LISTS)
    )


def _tensors(state: State) -> list[Any]:
    return [state["gradient"], state["direction"], *state["steps"], *state["differences"]]
