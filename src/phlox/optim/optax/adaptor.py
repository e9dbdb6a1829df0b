"""`OptaxAdaptor`: any gradient transformation of Optax as an optimizer, on the JAX backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, cast, final

from phlox.backend import Device, Float
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.errors import OptimizerError, RecordError
from phlox.host.signal_guard import commit
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.statics import ByIdentity
from phlox.optim.optax.state import (
    SHARED,
    AnyTensor,
    Leaf,
    OptaxLayout,
    StepInput,
    array_of,
    check_updates,
    checked_rate,
    is_shared,
    lazy_of,
    moved,
    native,
    step_inputs,
    stored_value,
    trees_of_jax,
)
from phlox.optim.optimizer import M, Optimizer, Rate
from phlox.optim.state.report import StateReport, report_of
from phlox.optim.state.tree import State, map_tensors
from phlox.record import LazyTensor, Record
from phlox.tensor import Tensor


class Transformation(Protocol):
    """The interface of Optax's `GradientTransformation`."""

    @property
    def init(self) -> Callable[..., Any]:
        """`init(params)` returns the state before the first step."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """`update(gradients, state, params)` returns the updates to add, and the state after the step."""
        ...


@final
class OptaxAdaptor(Optimizer):
    """An optimizer of whole modules from an Optax transformation: `optax.adamw(1e-3)`, `optax.chain(...)`, or your own.

    The transformation gets a dict of arrays by parameter path (`layers.0.weight`), so functions can label or mask by
    path. Parameters that are not trained, or have no gradient, are not in it. The updates are multiplied by the
    learning rate of the step, and added. Pass 1.0 if the transformation has its own rate, or build it with
    `learning_rate=1.0` and pass the rate to the step.

    State is kept by parameter id; state of no parameter (counts of steps) is kept separately. So if layers are
    inserted, only their state starts anew. The optimizer is saved, loaded and compiled like any other.

    Parameters of half precision and their gradients are converted to f32. The state is then f32 too, and the new
    parameters are rounded once.

    Args:
        transformation: has `init(params)` and `update(gradients, state, params)`, which return PyTrees of arrays.

    A step raises `OptimizerError` if a parameter is not on the JAX backend, if the rate is negative or not a number, if
    gradients do not fit, or if the updates have another structure or shape.

    >>> import optax
    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> from phlox.backend import Autodiff, Jax
    >>> model = nn.Linear(3, 1, device=Autodiff(Jax()).device()).init(0)
    >>> optimizer = optim.OptaxAdaptor(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))
    >>> x = px.ones((2, 3), device=Autodiff(Jax()))
    >>> loss, grads = px.value_and_grad(lambda model: model(x).square().sum())(model)
    >>> model = optimizer.step(1.0, model, grads)
    >>> optimizer
    OptaxAdaptor(2 states)
    """

    def __init__(self, transformation: Transformation) -> None:
        super().__init__()
        if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
            raise OptimizerError(
                "OptaxAdaptor takes a transformation with init and update, such as optax.adamw(1e-3), got "
                f"{type(transformation).__name__}"
            )
        self.transformation = transformation
        self._layout: OptaxLayout | None = None
        self._loaded: set[ParamId] = set()

    def settings(self) -> Hashable:
        return ByIdentity(self.transformation)

    def structure_key(self) -> Hashable:
        return self.settings()

    # --- a step

    def step(self, lr: Rate, module: M, grads: GradientsParams, **more: Any) -> M:
        """Take one step, and return a new module; `more` are further arguments of the transformation's `update`.

        Tensors and gradients in `more` are passed as JAX arrays: `step(1.0, model, grads, value=loss)`.
        """
        rate = checked_rate(lr)
        inputs = step_inputs(module, grads)
        self.bind(module)
        if not inputs:
            return module.map(lambda path, param: param)
        device = inputs[0].value.device
        trees = trees_of_jax()
        params = {item.path: item.value.primitive for item in inputs}
        gradients = {item.path: item.grad.primitive for item in inputs}
        paths = {item.param.id: item.path for item in inputs}
        options = {name: native(value, paths) for name, value in more.items()}
        with trees.scope(device.backend):
            layout, state = self._tree(inputs, params, device)
            try:
                updates, after = self.transformation.update(gradients, state, params, **options)
            except Exception as error:
                error.add_note("OptaxAdaptor: in the update of the transformation, whose trees are dicts by path")
                raise
            check_updates(updates, params)
            new = {path: moved(params[path], update, rate) for path, update in updates.items()}
            leaves, structure = trees.flatten(after)
            if structure != layout.structure:
                raise OptimizerError(
                    f"OptaxAdaptor: the update of the transformation gave a state of another structure than init: "
                    f"{structure}, not {layout.structure}"
                )
            arrays = _without_aliases([trees.typed(leaf) for _, leaf in leaves], [params, gradients, new])
            kept = [self._wrapped(array, leaf, device) for array, leaf in zip(arrays, layout.leaves, strict=True)]

        def update(path: str, param: Param) -> Param:
            if param.id not in paths:
                return param
            backend = engine_of(param.backend)
            inputs = Tensor.from_primitive(new[paths[param.id]], backend.full_precision(), Float)
            rounded = inputs.from_full_precision(backend).primitive
            return param.holding(Tensor.from_primitive(rounded, param.backend, Float))

        result = module.map(update)
        self.check_stays(device.backend, [tensor.primitive for tensor in kept])
        self._names.update(paths)
        states, before, loaded = self.states, dict(self.states), set(self._loaded)

        def undo() -> None:
            states.clear()
            states.update(before)
            self._loaded = loaded

        commit(lambda: self._keep_states(layout, [item.param.id for item in inputs], kept), undo)
        return result

    def _tree(self, inputs: Sequence[StepInput], params: Mapping[str, Any], device: Device) -> tuple[OptaxLayout, Any]:
        """The transformation's state for these parameters: stored values, and first values where none are stored."""
        trees = trees_of_jax()
        shared, states = self._states_by_kind()
        key = tuple([(item.param.id, item.path, item.value.shape, str(params[item.path].dtype)) for item in inputs])
        layout, initial = self._layout, None
        if (
            layout is None
            or layout.params != key
            or any(stored_value(leaf, shared, states) is None for leaf in layout.leaves)
        ):
            layout, initial = self._initial(key, {item.path: item.param.id for item in inputs}, params, trees)
        values: list[Any] = []
        problems: list[str] = []
        paths = {item.param.id: item.path for item in inputs}
        devices = {item.param.id: item.value.device for item in inputs}
        for number, leaf in enumerate(layout.leaves):
            stored = stored_value(leaf, shared, states)
            if stored is not None and stored.shape != leaf.shape:
                if self._is_loaded(leaf.id):
                    where = paths[leaf.id] if leaf.id is not None else SHARED
                    problems.append(f"{where}: {leaf.name} is of shape {stored.shape}, not {leaf.shape}")
                stored = None
            if stored is None and initial is None:
                layout, initial = self._initial(key, {item.path: item.param.id for item in inputs}, params, trees)
            if stored is None:
                values.append(cast("list[Any]", initial)[number])
            else:
                leaf_device = device if leaf.id is None else devices[leaf.id]
                values.append(trees.from_signed(array_of(stored, leaf_device, trees), leaf.element))
        problems += self._differences(layout, paths, shared, states)
        if problems:
            raise RecordError(
                "the state that was loaded is not one of this transformation for these parameters: "
                f"{'; '.join(problems)}; use the transformation that it was saved from, or create a new OptaxAdaptor"
            )
        return layout, trees.unflatten(layout.structure, values)

    def _is_loaded(self, id: ParamId | None) -> bool:
        return (ParamId(SHARED) if id is None else id) in self._loaded

    def _differences(
        self,
        layout: OptaxLayout,
        paths: Mapping[ParamId, str],
        shared: Mapping[str, Any],
        states: Mapping[ParamId, Any],
    ) -> list[str]:
        """The differences between loaded states and those of the transformation."""
        expected: dict[ParamId | None, set[str]] = {None: set(), **{id: set[str]() for id in paths}}
        for leaf in layout.leaves:
            expected[leaf.id].add(leaf.name)
        differences: list[str] = []
        for id, names in expected.items():
            if not self._is_loaded(id):
                continue
            names_found = set(shared if id is None else states.get(id) or {})
            if names_found != names:
                where = SHARED if id is None else paths[id]
                differences.append(
                    f"{where}: expected {', '.join(sorted(names)) or 'nothing'}, found "
                    f"{', '.join(sorted(names_found)) or 'nothing'}"
                )
        return differences

    def _initial(
        self, key: tuple[Any, ...], ids: Mapping[str, ParamId], params: Mapping[str, Any], trees: Any
    ) -> tuple[OptaxLayout, list[Any]]:
        """The layout of the state that the transformation begins with, and its leaves."""
        try:
            leaves, structure = trees.flatten(self.transformation.init(dict(params)))
        except Exception as error:
            error.add_note("OptaxAdaptor: in the init of the transformation, for a dict of arrays by path")
            raise
        slots: list[Leaf] = []
        arrays = _without_aliases([trees.typed(leaf) for _, leaf in leaves], [params])
        names: set[tuple[ParamId | None, str]] = set()
        for (path, _), array in zip(leaves, arrays, strict=True):
            owner = next((part for part in reversed(path) if part in ids), None)
            owner_index = len(path) - 1 - path[::-1].index(owner) if owner is not None else -1
            name = ".".join(part for number, part in enumerate(path) if number != owner_index) or "state"
            while (ids.get(owner or ""), name) in names:
                name += "_"
            names.add((ids.get(owner or ""), name))
            shape = tuple(trees.as_signed(array).shape)
            slots.append(Leaf(ids.get(owner or ""), name, shape, trees.element_of(array)))
        self._layout = OptaxLayout(key, structure, slots)
        return self._layout, arrays

    def _wrapped(self, array: Any, leaf: Leaf, device: Device) -> AnyTensor:
        """An array of the state as a tensor, of the element type that it began with."""
        trees = trees_of_jax()
        if not isinstance(leaf.element, str):
            array = array.astype(leaf.element)
        signed = trees.as_signed(array)
        return Tensor.from_primitive(signed, engine_of(device.backend), kind_of_dtype(signed.dtype))

    # --- states

    def _states_by_kind(self) -> tuple[dict[str, Any], dict[ParamId, Any]]:
        """The state that belongs to no parameter, and the state of each parameter."""
        shared: dict[str, Any] = {}
        states: dict[ParamId, Any] = {}
        for id, state in self.states.items():
            if is_shared(state):
                shared = state[SHARED]
            else:
                states[id] = state
        return shared, states

    def _keep_states(self, layout: OptaxLayout, ids: Sequence[ParamId], tensors: Sequence[AnyTensor]) -> None:
        shared: dict[str, Any] = {}
        new: dict[ParamId, dict[str, Any]] = {id: {} for id in ids}
        for leaf, tensor in zip(layout.leaves, tensors, strict=True):
            (shared if leaf.id is None else new[leaf.id])[leaf.name] = tensor
        states = self.states
        # The order of the states must not change from step to step, for compiled functions.
        shared_id = next((id for id, state in states.items() if is_shared(state)), ParamId(SHARED))
        merged = {shared_id: {SHARED: shared}, **states, **new}
        merged[shared_id] = {SHARED: shared}
        self._names[shared_id] = SHARED
        states.clear()
        states.update(merged)
        self._loaded.difference_update({shared_id, *ids})
        self.took_step([shared_id, *ids])

    def begin(self, module: Module, wanted: Mapping[ParamId, int] | None = None) -> None:
        if wanted is None:
            try:
                self.bind(module)
            except OptimizerError:
                return
        self.name_states(module)
        old_ids = set(self.states)
        params = [
            param for param in module.params() if (param.trained if wanted is None else param.id in {*wanted, *old_ids})
        ]
        new_ids = {param.id for param in params} - old_ids
        if not new_ids:
            return
        try:
            inputs = step_inputs(module, GradientsParams({param.id: param.val().detach() for param in params}))
            device = inputs[0].value.device
            trees = trees_of_jax()
            with trees.scope(device.backend):
                values = {item.path: item.value.primitive for item in inputs}
                layout, state = self._tree(inputs, values, device)
                arrays = _without_aliases([trees.typed(leaf) for _, leaf in trees.flatten(state)[0]], [values])
                kept = [self._wrapped(array, leaf, device) for array, leaf in zip(arrays, layout.leaves, strict=True)]
        except (OptimizerError, RecordError):  # if the step is really of this module, it raises this error itself
            return
        self._keep_states(layout, [item.param.id for item in inputs], kept)
        self._begun.update(dict.fromkeys([id for id in self.states if id not in old_ids], -1))

    def into_record(self) -> Record:
        # With their own element types: some differ from the backend's.
        twin = OptaxAdaptor(self.transformation)
        twin._states = {id: map_tensors(state, lazy_of) for id, state in self.states.items()}
        return Optimizer.into_record(twin)

    def report(self, module: Module) -> StateReport:
        self.bind(module)
        return report_of(module, self._states_by_kind()[1], self._shape_misfit)

    def _misfit(self, states: dict[ParamId, State]) -> str | None:
        shared = [id for id, state in states.items() if is_shared(state)]
        if states and len(shared) != 1:
            return f"states.{next(iter(states))}: the record is not one of OptaxAdaptor, which has a part `{SHARED}`"
        for id, state in states.items():
            parts: Any = state[SHARED] if is_shared(state) else state
            if not isinstance(parts, dict) or not all(
                isinstance(part, LazyTensor) for part in cast("dict[str, Any]", parts).values()
            ):
                return f"states.{id}: the record is not one of OptaxAdaptor"
        return None

    def _set_states(self, states: dict[ParamId, State]) -> None:
        super()._set_states(states)
        self._layout = None
        self._loaded = {ParamId(SHARED) if is_shared(state) else id for id, state in states.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._states_by_kind()[1])} states)"


def _without_aliases(leaves: Sequence[Any], others: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The arrays of a state; an array that occurs twice, or among the others, is copied.

    State and module may both be donated to a compiled function.
    """
    used_ids = {id(array) for arrays in others for array in arrays.values()}
    distinct: list[Any] = []
    for leaf in leaves:
        array = leaf.copy() if id(leaf) in used_ids else leaf
        used_ids.add(id(array))
        distinct.append(array)
    return distinct
