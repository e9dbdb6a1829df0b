"""`OptimizerAdaptor`: turns an optimizer of one tensor into an optimizer of whole modules."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, cast

from phlox.backend import Backend, Float
from phlox.backend.contract.backend import backend_of_arrays, engine_of
from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.parallel import same_everywhere
from phlox.errors import OptimizerError, PhloxError
from phlox.host.signal_guard import SignalGuard
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.statics import ByIdentity
from phlox.optim.clipping import GradientClipping
from phlox.optim.groups import Group, group_numbers
from phlox.optim.optimizer import M, Optimizer, Rate, tracing
from phlox.optim.rules.update_terms import continued
from phlox.optim.simple import AnyTensor, SimpleOptimizer, title_of
from phlox.optim.state.blocks import in_form_of
from phlox.optim.state.flat import move_state
from phlox.optim.state.records import to_plain
from phlox.optim.state.report import StateReport
from phlox.optim.state.tree import Mastered, State, flatten, load_modules, unmastered
from phlox.optim.step.multi_tensor import LEAST, MANY, MultiTensorStep, UpdateJob
from phlox.optim.step.shared_scalars import sharing
from phlox.optim.step.skip_nonfinite import select_step
from phlox.optim.step.validation import check_arguments, first_state, misfit, other_entries, rates_of, value_for
from phlox.record import LazyTensor, Record
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops
from phlox.tensor.tensor import wrap

_PLAIN_CLASSES: set[type[Any]] = set()
"""Classes of arrays that are not tracers."""

_NOTHING = nullcontext()

_interned_settings: weakref.WeakValueDictionary[Hashable, ByIdentity] = weakref.WeakValueDictionary()


class StepResult(NamedTuple):
    """The result of the step of a parameter that was updated alone."""

    param: Param
    ops: Ops
    """The operations of the parameter's value."""
    array: Any
    """The array of its new value, on the backend without a tape."""
    shape: tuple[int, ...]
    state: State


class OptimizerAdaptor(Optimizer):
    """An optimizer of whole modules, made from a `SimpleOptimizer`. `init` of a config such as `AdamWConfig` makes one.

    Parameters that are not trained, or have no gradient, do not change. Gradients and state are moved to the
    parameter's device. If a step raises an error, nothing changes.

    Args:
        optimizer: the optimizer of one tensor.
        groups: parameters with other hyper-parameters, learning rates or optimizers.
        grad_clipping: how gradients are clipped; by default not at all.
        skip_nonfinite: skip a step if any gradient, before clipping, has an infinity or NaN; then not even counts
            change. An eager step waits for the gradients to check this; a compiled one does not wait.
        master_weights: keep an f32 copy of each parameter of half precision in the state, and update that; the
            parameter is the rounded copy. So steps too small for half precision add up (Micikevicius et al. 2018:
            "Mixed precision training"). Elements changed from outside since the last step (loaded, mapped) continue
            from their new values. Without copies, each step is computed in f32 and rounded; the state is f32 either
            way.
        donate: let a step overwrite the memory of parameters that only the given module holds, so that it needs no
            other memory. Using these parameters of that module then raises `DonatedError`. Anything that shares their
            values (a copy made by `valid`, a record, an average, a view) keeps them. In a compiled function this has no
            effect: use the `donate` of `phlox.compile`.

    Raises `OptimizerError`, which names the parameter: if the rate is negative or NaN, if a gradient has another shape
    or is of another model, if a loaded state does not fit the parameter, if two groups contain one parameter, or if the
    pattern of a group matches none.

    >>> from phlox import optim
    >>> optim.OptimizerAdaptor(optim.SgdConfig(momentum=0.9).simple(), donate=True)
    OptimizerAdaptor(Sgd, 0 states)
    """

    def __init__(
        self,
        optimizer: SimpleOptimizer,
        *,
        groups: Sequence[Group] = (),
        grad_clipping: GradientClipping | None = None,
        skip_nonfinite: bool = False,
        master_weights: bool = True,
        donate: bool = False,
    ) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.groups = tuple(groups)
        self.grad_clipping = grad_clipping
        self.skip_nonfinite = skip_nonfinite
        self.master_weights = master_weights
        self.donate = donate
        self._donations = 0
        self._simple = [*[group.simple(optimizer) for group in self.groups], optimizer]  # number -1: in no group
        self.shares_counts = all(simple.shares_counts for simple in self._simple)
        self._numbers: dict[ParamId, int] = {}
        self._grouped: tuple[ParamId, ...] = ()
        self._unproved: set[ParamId] = set()
        self._shapes: dict[ParamId, tuple[int, ...]] = {}
        self._settings: tuple[tuple[Any, ...], ByIdentity] = ((), ByIdentity(None))

    def variant(self, id: ParamId) -> int:
        return self._numbers.get(id, -1)

    def init_state(self, tensor: AnyTensor, variant: int = -1) -> State:
        """The state of a parameter before its first step, in the group of this number."""
        work = tensor.to_full_precision()
        state = self._simple[variant].init(work)
        return Mastered(work, state) if self._has_master(work, tensor) else state

    def begin(self, module: Module, wanted: Mapping[ParamId, int] | None = None) -> None:
        if wanted is None:
            try:
                self._find_groups(module)
                self.bind(module)
            except OptimizerError:  # the step may be of another module; if not, it raises this error itself
                return
            self.adopt_states(module.params())
        self.name_states(module)
        states = self.states
        for param in module.params():
            id = param.id
            if id in states or not (param.trained if wanted is None else id in wanted):
                continue
            variant = self.variant(id) if wanted is None else wanted[id]
            tensor = Tensor.from_primitive(param.leaf, backend_of_arrays(param.backend), Float)
            states[id], self._begun[id] = self.init_state(tensor, variant), variant

    def adopt_states(self, params: Iterable[Param]) -> None:
        states = self.states
        for param in params:
            id, shape = param.id, param.shape
            if id not in states or param.kind is not Float:
                continue
            if id not in self._unproved and self._shapes.setdefault(id, shape) != shape:
                del states[id]
                continue
            value = param.val()
            tensor = Tensor.from_primitive(param.leaf, backend_of_arrays(value.backend), Float)
            work = tensor.to_full_precision()
            state = move_state(states[id], work)
            if id in self._unproved:
                state = self._converted("a parameter", self._simple[self.variant(id)].init(work), state, work.shape)
            if not self._has_master(work, tensor):
                state = unmastered(state)
            elif not isinstance(state, Mastered):
                state = Mastered(work, state)
            states[id] = state

    def report(self, module: Module) -> StateReport:
        self._find_groups(module)
        self.bind(module)
        return super().report(module)

    def _shape_misfit(self, param: Param) -> str | None:
        shape = self._shapes.get(param.id)
        if shape is not None:
            return None if shape == param.shape else f"it was of shape {shape}, and the parameter is of {param.shape}"
        device = param.device.on(backend_of_arrays(param.backend))
        fresh = first_state(self._simple[self.variant(param.id)], param.shape, device)
        return None if fresh is None else misfit(fresh, self.states[param.id], param.shape)

    def settings(self) -> Hashable:
        optimizer = self.optimizer
        options = (self.grad_clipping, self.skip_nonfinite, self.master_weights, *self.groups)
        fields = (type(optimizer), *vars(optimizer), *vars(optimizer).values(), *options)
        last_fields = self._settings[0]
        if len(fields) != len(last_fields) or not all(map(operator.is_, fields, last_fields)):
            try:
                self._settings = fields, _interned_settings.setdefault(fields, ByIdentity(fields))
            except TypeError:  # a field without a hash
                self._settings = fields, ByIdentity(optimizer)
        return self._settings[1]

    def structure_key(self) -> Hashable:
        return self.settings(), self.donate

    def _states_of(self, record: Record) -> dict[ParamId, State]:
        for optimizer in self._simple:  # notes the classes in its states, which may be found nowhere else
            to_plain(flatten(first_state(optimizer, (1,)), [], saving=True))
        return super()._states_of(record)

    def _misfit(self, states: dict[ParamId, State]) -> str | None:
        for id, state in states.items():
            leaves: list[Any] = []
            flatten(state, leaves)
            # The entries may depend on the parameter's shape, which is probably the shape of the state's first tensor.
            shapes = [(1,), *[leaf.shape for leaf in leaves if isinstance(leaf, LazyTensor)][:1]]
            problems = [other_entries(simple, shape, unmastered(state)) for simple in self._simple for shape in shapes]
            if all(problems):
                return f"states.{id}: the record is not one of {type(self.optimizer).__name__}: {problems[-1]}"
        return None

    def _set_states(self, states: dict[ParamId, State]) -> None:
        super()._set_states(states)
        self._unproved, self._shapes = set(states), {}

    def step(self, lr: Rate, module: M, grads: GradientsParams) -> M:
        rates = rates_of(lr, self.groups)
        check_arguments(module, grads)
        if self.groups:
            self._find_groups(module)
        # Before clipping, which turns infinities into finite numbers.
        finite = grads.isfinite() if self.skip_nonfinite and len(grads) else None
        if finite is not None and not finite.backend.is_traced(finite.primitive):
            if not finite.item():
                return module
            finite = None
        if self.grad_clipping is not None:
            grads = self.grad_clipping.of_all(grads)
        # The outermost scope: code after it would run when the step has happened and its result is not yet returned.
        with SignalGuard(lambda: False) as guard, self._lock, sharing(), _scope_of_slices(grads):
            try:
                return self._stepped(rates, module, grads, finite, guard)
            except Exception as error:
                # For errors of the engine's own functions: operations of tensors explain theirs.
                engine = next((engine_of(grad.backend) for _, grad in grads.items()), None)
                memory_error = None if engine is None else out_of_memory(f"a step of {self!r}", engine, error)
                if memory_error is None:
                    raise
                raise memory_error from error

    def _stepped(
        self, rates: list[Any], module: M, grads: GradientsParams, finite: AnyTensor | None, guard: SignalGuard
    ) -> M:
        """The module with its new parameters; states are stored. No memory is overwritten before `finish`.

        `finish` runs to its end. If it is interrupted, the given module gets the new values too, because the states
        belong to them.
        """
        self._unpack()
        if self._by_path:
            self.bind(module)
        tensors = grads._tensors  # pyright: ignore[reportPrivateUsage]
        joint = self._multi_tensor(rates, tensors) if finite is None else None
        alone: dict[str, StepResult] = {}
        ids: list[ParamId] = []
        number_of_names = len(self._names)

        def step(path: str, param: Param) -> None:
            grad = tensors.get(param.id)
            if grad is not None and param.trained:
                ids.append(param.id)
                if joint is None or not joint.add(path, param, grad, self._numbers.get(param.id, -1)):
                    alone[path] = self._step_alone(path, param, grad, rates, finite)

        module.visit(step)
        if joint is not None:
            for entry in joint.plan():
                alone[entry.path] = self._step_alone(entry.path, entry.param, entry.grad, rates, finite)
        if len(self._names) > number_of_names:  # a new parameter may have moved other parameters to new paths
            self.name_states(module)
        for result in alone.values():
            if result.array.__class__ not in _PLAIN_CLASSES:
                self._check_alone(alone.values())
            break
        recipient = self._step_name() if self.donate and tracing.get() is None else None
        params: dict[str, Param] = {}

        def finish() -> M:
            if joint is not None:
                joint.lay_out(recipient)
                self._torn = joint.writes_over(recipient)
                params.update(joint.run())
                self._torn = False
            self._keep_states(ids, alone, joint)
            for path, (param, ops, array, _, _) in alone.items():
                params[path] = Param.revive(ops, array, param.trained, param.trainable, param.id, param.full_precision)
                if recipient is not None and not ops.backend.is_traced(param.val().primitive):
                    param.donate(path, recipient)
            for param in params.values():
                if not param.val()._ops.has_slices:  # pyright: ignore[reportPrivateUsage]
                    break
                param.backend.make_ready(param.val().primitive)
            return module.map(lambda path, param: params.get(path, param))

        def restore() -> None:
            for path, param in module.named_params():
                if path in params and not self._torn:
                    param.restore(params[path].val())

        guard.hold()
        guard.undo = restore
        try:
            return finish()
        except BaseException:
            restore()
            raise

    def _check_alone(self, results: Iterable[StepResult]) -> None:
        """Check that this optimizer does not outlive the transformation that its new states belong to."""
        for result in results:
            engine = engine_of(result.ops.backend)
            if not engine.is_traced(result.array):
                _PLAIN_CLASSES.add(result.array.__class__)
                continue
            leaves: list[Any] = []
            flatten(result.state, leaves)
            self.check_stays(engine, [leaf.primitive if isinstance(leaf, Tensor) else leaf for leaf in leaves])

    def _step_name(self) -> str:
        """The name of this step in the error for donated parameters."""
        self._donations += 1
        return f"step {self._donations} of {type(self).__name__}({type(self.optimizer).__name__})"

    def _keep_states(self, ids: list[ParamId], alone: dict[str, StepResult], joint: MultiTensorStep | None) -> None:
        """Keep the new states of these parameters."""
        states, slots, shapes = self._states, self._slots, self._shapes
        for id in ids:  # so that states are in the order of the parameters
            states.setdefault(id, None)
        for entry in () if joint is None else joint.entries:
            slots[entry.param.id] = entry.slot
            shapes[entry.param.id] = entry.slot.shape
        for param, _, _, shape, state in alone.values():
            slots.pop(param.id, None)
            states[param.id], shapes[param.id] = state, shape
        self._unproved.difference_update(ids)
        if self._begun:
            self.took_step(ids)

    # --- many parameters at once

    def _multi_tensor(self, rates: list[Any], grads: Mapping[ParamId, AnyTensor]) -> MultiTensorStep | None:
        """The multi-tensor step, if it is worthwhile."""
        size = LEAST if self._slots or len(grads) >= MANY else 0
        for grad in () if size else grads.values():
            size += math.prod(grad._ops.shape(grad.primitive))  # pyright: ignore[reportPrivateUsage]
        if size < LEAST:
            return None
        return MultiTensorStep(self._simple, rates, self._slots, self._job, masters=self.master_weights)

    # --- one parameter

    def _step_alone(
        self, path: str, param: Param, grad: AnyTensor, rates: list[Any], finite: AnyTensor | None
    ) -> StepResult:
        """The value and the state of a parameter after its step."""
        number = self._numbers.get(param.id, -1)
        optimizer = self._simple[number]
        value = param.val()
        job = self._unchanged(path, param, value, grad) or self._job(path, param, grad)
        work, before = job.work, job.state
        result, state = optimizer.step(rates[number], work, job.grad, before)
        ops = work._ops  # pyright: ignore[reportPrivateUsage]
        shape = ops.shape(work.primitive)
        if result._ops is not ops or ops.shape(result.primitive) != shape:  # pyright: ignore[reportPrivateUsage]
            raise OptimizerError(
                f"{path}: {type(optimizer).__name__}.step must return a tensor like the parameter, Float of shape "
                f"{shape} on {work.backend!r}; got {result.kind.__name__} of shape {result.shape} on "
                f"{result.backend!r}"
            )
        if work is not job.value:
            if self.master_weights:
                before, state = Mastered(work, before), Mastered(result, state)
            result = result.from_full_precision(job.value)
        if finite is not None:
            result, state = select_step(finite, (result, state), (job.value, before), job.value.device)
        return StepResult(param, value._ops, result.primitive, shape, state)  # pyright: ignore[reportPrivateUsage]

    def _unchanged(self, path: str, param: Param, value: AnyTensor, grad: AnyTensor) -> UpdateJob | None:
        """The job of a parameter if nothing has to be moved, loaded, created or widened for it; None otherwise.

        Its gradient and the tensors of its state are on its backend and device, and of its shape, as after most steps.
        """
        id, states, ops = param.id, self._states, grad._ops  # pyright: ignore[reportPrivateUsage]
        outer, backend = value._ops.backend, ops.backend  # pyright: ignore[reportPrivateUsage]
        if _stepped_on(outer) is not backend or id in self._unproved or id in self._begun or id in self._slots:
            return None
        x, alike = outer.value(value.primitive) if outer.differentiates else value.primitive, backend.are_alike
        # An optimizer without a state, such as plain SGD, has None.
        state = cast("dict[Any, Any] | None", states.get(id, ()))
        if type(state) not in (dict, type(None)) or self._shapes.get(id) != ops.shape(x):
            return None
        if not alike(x, grad.primitive):
            return None
        for leaf in (state or {}).values():
            if type(leaf) is Tensor:
                if leaf._ops is not ops or not alike(x, leaf.primitive):  # pyright: ignore[reportPrivateUsage]
                    return None
            elif type(leaf) is not int and type(leaf) is not float:
                return None
        work = wrap(ops, x)
        return UpdateJob(path, param, work, work, grad, state and dict(state), begins=False)

    def averaged(self, module: M) -> M:
        """A new module with the averaged weights, for evaluation and prediction; training continues with `module`.

        Schedule-free optimizers keep such an average. Parameters that have taken no step, or whose optimizer keeps no
        average, do not change.

        >>> from phlox import nn, optim
        >>> optimizer = optim.ScheduleFreeAdamWConfig().init()
        >>> model = nn.Linear(2, 1).init(0)
        >>> optimizer.averaged(model).weight.val() is model.weight.val()
        True
        """
        self._find_groups(module)
        self.bind(module)
        states = self.states  # read here because the returned module may hold some of their tensors

        def averaged(path: str, param: Param) -> Param:
            optimizer = self._simple[self.variant(param.id)]
            if param.id not in states or type(optimizer).averaged is SimpleOptimizer.averaged:
                return param
            value = param.val()
            outer = value.backend
            tensor = value.inner() if outer.differentiates else value
            work, state, _ = self._work_and_state(path, param.id, tensor)
            result = optimizer.averaged(work, state).from_full_precision(tensor)
            return param.holding(Tensor.from_primitive(result.primitive, outer, Float))

        return module.map(averaged)

    def _find_groups(self, module: Module) -> None:
        """Find the group of each parameter, unless the parameters are those of the last step."""
        if self.groups and (ids := tuple([param.id for param in module.params()])) != self._grouped:
            self._numbers, self._grouped = group_numbers(module, self.groups), ids

    def _job(self, path: str, param: Param, grad: AnyTensor) -> UpdateJob:
        tensor = value_for(path, param.val(), grad)
        work, before, begins = self._work_and_state(path, param.id, tensor)
        device = work.device
        if grad.backend is not work.backend or grad.device != device:
            grad = grad.to_device(device)
        return UpdateJob(path, param, tensor, work, grad, before, begins)

    def _has_master(self, work: AnyTensor, tensor: AnyTensor) -> bool:
        """Does the state of this value have a master copy?"""
        return self.master_weights and work is not tensor

    def _converted(self, path: str, fresh: State, state: State, shape: tuple[int, ...]) -> State:
        """A loaded state, with its modules and objects loaded into those of `fresh`, and moments of its bits."""
        try:
            return in_form_of(fresh, load_modules(fresh, state), shape)
        except PhloxError as error:
            raise OptimizerError(f"{path}: the state that was loaded does not fit: {error}") from error

    def _work_and_state(self, path: str, id: ParamId, tensor: AnyTensor) -> tuple[AnyTensor, State, bool]:
        """The tensor to update (the value or its master copy), the state, and whether this is a first state."""
        states, optimizer, work = self._states, self._simple[self.variant(id)], tensor.to_full_precision()
        misbegun = bool(self._begun) and self._begun.get(id, self.variant(id)) != self.variant(id)
        unfit = id not in self._unproved and self._shapes.get(id, tensor.shape) != tensor.shape
        if id not in states or misbegun or unfit:
            self._names[id] = path
            return work, move_state(optimizer.init(work), work), True
        state = move_state(self._slots[id].state() if id in self._slots else states[id], work)
        if id in self._unproved:
            self._names[id] = path
            fresh = optimizer.init(work)
            state = self._converted(path, fresh, state, work.shape)
            wrong = misfit(fresh, state, tensor.shape)
            if wrong:
                raise OptimizerError(
                    f"{path}: the state that was loaded is not one of {type(optimizer).__name__} for a parameter "
                    f"of shape {tensor.shape}: {wrong}; to start its state anew, call optimizer.forget(module)"
                )
        if isinstance(state, Mastered):
            if self._has_master(work, tensor):
                work = continued(state.master, tensor)
            state = state.state
        return work, state, False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({title_of(self.optimizer)}, {self._number_of_states()} states)"


def _scope_of_slices(grads: GradientsParams) -> AbstractContextManager[object]:
    """The scope of a step that is the same in all processes. It makes no calls if no gradient is in slices."""
    for grad in grads._tensors.values():  # pyright: ignore[reportPrivateUsage]
        return same_everywhere(grad.backend) if grad._ops.has_slices else _NOTHING  # pyright: ignore[reportPrivateUsage]
    return _NOTHING


@lru_cache(maxsize=256)
def _stepped_on(backend: Backend) -> Backend | None:
    """The backend without its tape, if that is a plain backend of full precision; None otherwise."""
    inner = backend.without_tape() if backend.differentiates else backend
    return inner if inner is not None and inner.inner is None and inner.full_precision() is inner else None
