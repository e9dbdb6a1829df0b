"""`Optimizer`: updates a module's parameters, and keeps its state by parameter id."""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from threading import RLock
from typing import Any, Self, TypeAlias, TypeVar, cast

from phlox.backend import Backend, Device
from phlox.backend.kind import KINDS
from phlox.backend.processes import processes
from phlox.backend.pytree import PyTreeNode, register_node, register_with_imported_engines, transformation
from phlox.errors import CompileError, OptimizerError, RecordError
from phlox.host.signal_guard import Prepared
from phlox.host.text import html_by
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.records import lazy
from phlox.module.statics import ByIdentity
from phlox.optim.pytree import TreeStates, fields_key, flatten_optimizer, flatten_with_keys, unflatten_optimizer
from phlox.optim.state.flat import FlatState
from phlox.optim.state.records import ARRAY, as_tensor, from_plain, from_tensor, to_plain
from phlox.optim.state.report import StateReport, report_of
from phlox.optim.state.tree import OBJECT, SavedObject, State, fits, flatten, leaves_of, paths, unflatten
from phlox.optim.step.multi_tensor import Slot
from phlox.other_names import of_object
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record.gather import trial_load

M = TypeVar("M", bound=Module)
Rate: TypeAlias = float | Mapping[str, float]
"""A learning rate, or a rate for each named group and, under "*", one for all other parameters."""

tracing: ContextVar[object | None] = ContextVar("phlox_tracing", default=None)
"""The trace of the compiled function that is being traced, if any."""

_OWN = frozenset(
    {"_states", "_packed", "_home", "_slots", "_torn", "_begun", "_lock", "_origin", "_names", "_by_path", "_scope"}
)
"""The fields of an optimizer that hold its states or belong to them."""
_CONTAINERS: tuple[type[Any], ...] = (dict, list, set)


class Optimizer(ABC):
    """Base class of optimizers, which update a module's parameters with gradients. State is kept by parameter id.

    A subclass implements `step`. Most optimizers update one parameter at a time, and are easier to write as a
    `SimpleOptimizer`.

    An optimizer is a PyTree: it can be an argument and a result of `jax.jit`, `jax.lax.scan` and `jax.vmap`. See "As
    trees" in docs/optimizers.md.
    """

    shares_counts: bool = False
    """Whether parameters with equal counts keep them equal. See `SimpleOptimizer.shares_counts`."""

    def __init__(self) -> None:
        register_with_imported_engines()
        self._states: dict[ParamId, State] = {}
        self._packed: FlatState | TreeStates | None = None
        self._home = tracing.get()
        self._scope = transformation()  # the JAX transformation in which it was created
        self._names: dict[ParamId, str] = {}  # the paths of the parameters that have states
        self._by_path = False  # whether the states belong to the parameters at these paths, whatever their ids
        self._slots: dict[ParamId, Slot] = {}  # the states in memory that the optimizer owns
        self._torn = False
        self._begun: dict[ParamId, int] = {}
        self._origin: dict[str, Any] = {}  # in a twin: the fields that it began with
        self._lock = RLock()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_node(PyTreeNode(cls, flatten_optimizer, unflatten_optimizer, flatten_with_keys))

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property failed: read it again, because its own error was dropped
            return object.__getattribute__(self, name)
        raise AttributeError(of_object(self, name, "Optimizer"), name=name, obj=self)

    @abstractmethod
    def step(self, lr: Rate, module: M, grads: GradientsParams) -> M:
        """Take one step at learning rate `lr`: returns a new module, and updates the state in this optimizer.

        If there are named groups, `lr` can be a dict with a rate per group name, and under "*" the rate of all others.
        """

    def variant(self, id: ParamId) -> int:
        """The number of the group or variant in which the parameter was last updated, if there are several."""
        return -1

    def begin(self, module: Module, wanted: Mapping[ParamId, int] | None = None) -> None:  # noqa: B027
        """Create missing states, as a first step would: of the parameters in `wanted`, or of all trained ones.

        Call it before the optimizer goes through `jax.lax.scan` or `jax.vmap`, whose carry must not change its
        structure, and after layers of the module were inserted or moved: a PyTree knows parameters by their paths.

        `wanted` gives the variant of each. If an optimizer does nothing here, a compiled function is traced twice: once
        without states, and once with those that its first call created.
        """

    def adopt_states(self, params: Iterable[Param]) -> None:  # noqa: B027  (there need not be any)
        """Move the states of these parameters to the device and form of the next step, as far as these are known."""

    def settings(self) -> Hashable:
        """A key that is equal for optimizers that compute the same; by default, only for the same object."""
        return ByIdentity(self)

    # --- as a PyTree, see `phlox.optim.pytree`

    def structure_key(self) -> Hashable:
        """A key of everything but the states; by default of all fields. Raises `TypeError` for a field without a hash.

        It is part of the structure of the optimizer as a PyTree: a program is traced again where it changes.
        """
        return fields_key(_fields(self))

    def bare(self) -> Self:
        """An optimizer with these settings, and no states."""
        bare = self.twin()
        bare._set_states({})
        bare._names, bare._begun, bare._by_path, bare._origin = {}, {}, False, {}
        return bare

    def around(self, states: TreeStates, names: Iterable[str]) -> Self:
        """An optimizer with these settings and the states of a tree."""
        optimizer = self.twin()
        optimizer._home, optimizer._packed, optimizer._by_path = tracing.get(), states, bool(states.ids)
        optimizer._names = dict(zip(states.ids, names, strict=True))
        return optimizer

    def bind(self, module: Module) -> None:
        """Give states that came out of a tree to the parameters of `module`, if they do not have them yet.

        A state belongs to the parameter with its id if there is one, or else to the parameter at its path. Inside of a
        transformation only paths count, because a program is traced once for all models of an architecture.

        Raises `OptimizerError` if the module has none of these parameters, or has them at other paths.
        """
        if not self._by_path:
            return
        states, params = self.states, dict(module.named_params())
        new_ids: dict[ParamId, ParamId] = {}
        if transformation() is None:
            new_ids = {param.id: param.id for param in params.values() if param.id in states}
        bound_ids = set(new_ids)
        for id in states:
            param = params.get(self._names[id])
            if id not in new_ids and param is not None and param.id not in bound_ids:
                new_ids[id] = param.id
                bound_ids.add(param.id)
        for path, param in params.items():
            if param.id in states and new_ids.get(param.id) != param.id:
                raise OptimizerError(
                    f"`{path}` was at `{self._names[param.id]}` when its state was created, and in a PyTree a state "
                    "belongs to a path; call optimizer.begin(model) before the transformed function"
                )
        if not new_ids:
            raise OptimizerError(
                f"this optimizer has the states of {', '.join(self._names.values())}, and the {type(module).__name__} "
                f"has {', '.join(params) or 'no parameters'}; are they another model's?"
            )
        names = {new_ids.get(id, id): name for id, name in self._names.items()}
        self._set_states({new_ids.get(id, id): state for id, state in states.items()})
        self._names, self._by_path = names, False

    def bind_to_one(self, modules: Iterable[Module]) -> None:
        """As `bind`, to the module among several that the states most likely belong to."""
        if not self._by_path:
            return
        states, names, all_modules = self.states, set(self._names.values()), list(modules)
        by_id = [module for module in all_modules if any(param.id in states for param in module.params())]
        by_path = (m for m in all_modules if any(param.trained and path in names for path, param in m.named_params()))
        match = by_id[0] if by_id else next(by_path, None)
        if match is not None:
            self.bind(match)

    def name_states(self, module: Module) -> None:
        """Note the paths of the parameters of `module`, by which a tree knows their states."""
        names = {param.id: path for path, param in module.named_params()}
        paths = set(names.values())
        others = {id: name for id, name in self._names.items() if id not in names and name not in paths}
        self._names = {**others, **names}

    def check_stays(self, backend: Backend, arrays: Iterable[Any]) -> None:
        """Raise `OptimizerError` if arrays of a state end with a transformation that the optimizer outlives."""
        if tracing.get() is not None or not any(map(backend.is_traced, arrays)):
            return
        now, scope = transformation(), self._scope
        if now is not None and (scope is None or now() is not scope()):
            raise OptimizerError(
                "an optimizer that was created outside of a function that JAX transforms (jit, scan, vmap, grad) would "
                "keep a state from inside, which is invalid after the call; pass the optimizer to the function as an "
                "argument, and return it"
            )

    @property
    def states(self) -> dict[ParamId, State]:
        """The state of every parameter that has taken a step.

        Raises `CompileError` inside a compiled function if this optimizer is not one of its arguments.
        """
        with self._lock:
            states = self._unpacked_states()
            self._slots.clear()
            return states

    def _unpacked_states(self) -> dict[ParamId, State]:
        """The states, for callers that keep none of their tensors."""
        self._unpack()
        for id, slot in self._slots.items():
            self._states[id] = slot.state()
        return self._states

    def _unpack(self) -> None:
        """Unpack the states if a compiled function left them packed; raises an error if they may not be used."""
        trace = tracing.get()
        if trace is not None and trace is not self._home:
            raise CompileError(
                "an optimizer is used inside a compiled function, but is not one of its arguments, so its new state "
                "would be lost; pass it to the function (for a loop of steps, phlox.compile(step, steps=n))"
            )
        if self._torn:
            raise OptimizerError(
                "a step of this optimizer was interrupted while it wrote to its states, which are invalid now; load a "
                "record of them (optimizer.load_record), or create a new optimizer"
            )
        if self._packed is not None:
            self._states, self._packed = self._packed.unpack(), None

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            if self._slots and not self._torn:
                _ = self.states  # the copy holds the same tensors
            own = {"_states": dict(self._states), "_names": dict(self._names)}
            return {**vars(self), **own, "_slots": {}, "_lock": None, "_scope": None}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        self._lock, self._scope = RLock(), transformation()

    def _number_of_states(self) -> int:
        return len(self._states if self._packed is None else self._packed.ids)

    def packed_for(self, backend: Backend) -> FlatState | None:
        """The states as a compiled function left them, if they are on this backend, on any device."""
        packed = self._packed
        return packed if type(packed) is FlatState and packed.device.backend is backend else None

    def pack(self, device: Device) -> FlatState:
        """All states, flattened, with their tensors on a device."""
        packed = self._packed
        return packed if isinstance(packed, FlatState) and packed.device == device else self.repack(device)

    def repack(self, device: Device) -> FlatState:
        """As `pack`, always from the current states."""
        return FlatState.of(self.states, device, shared=self.shares_counts)

    def load_packed(self, packed: FlatState, home: object | None = None) -> None:
        """Set the states to the results of a compiled function; `home` is the trace that their tracers belong to."""
        with self._lock:  # without the lock, others would see no states
            self._states, self._torn = {}, False
            self._slots.clear()
            self._packed = packed
            self._home = home

    def twin(self) -> Self:
        """An optimizer with the same settings and states, which can change without this one."""
        twin = object.__new__(type(self))
        twin.__setstate__(Optimizer.__getstate__(self))  # not the subclass's method, which may unpack the states
        for name, value in _fields(self).items():
            setattr(twin, name, value)
        twin._begun, twin._origin = dict(self._begun), _fields(self)
        return twin

    def adopt(self, twin: Self) -> None:
        """Copy the fields that changed in a twin since it was made, except its states (see `load_packed`)."""
        missing = object()
        for name, value in _fields(twin).items():
            if not _is_same(value, twin._origin.get(name, missing)):
                setattr(self, name, value)

    def go_on(self, after: tuple[Self, FlatState]) -> None:
        """Set the fields and states to those that a call of a compiled function returned."""
        stepped, packed = after
        leaves = packed.leaves
        if leaves and packed.device.backend.is_traced(leaves[0]):
            self.check_stays(packed.device.backend, leaves)
        if stepped is not self:
            self.adopt(stepped)
            self._names, self._by_path = stepped._names, False
        self.load_packed(packed)

    def took_step(self, ids: Iterable[ParamId]) -> None:
        """Note that parameters whose states were created for a trace took a step; see `begin`."""
        for id in ids:
            if self._begun.get(id) == self.variant(id):
                del self._begun[id]

    @property
    def begun(self) -> Mapping[ParamId, int]:
        """The parameters whose states were created for a step not taken yet, with the variant."""
        return self._begun

    def donate_states(self) -> None:
        """Release all states, which will be overwritten; the next step needs new ones (`load_packed`)."""
        self._states, self._packed, self._torn = {}, None, True
        self._slots.clear()

    def report(self, module: Module) -> StateReport:
        """Report which states the next step of this module keeps, starts anew, or cannot use. `print` it.

        States follow parameter ids. So layers can be inserted, removed, moved, frozen and unfrozen, and the module can
        move to another backend.

        >>> import phlox as px
        >>> from phlox import nn, optim
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).init(0).train()
        >>> optimizer = optim.AdamWConfig().init()
        >>> _, grads = px.value_and_grad(lambda m: m(px.ones((1, 2))).sum())(model)
        >>> model = optimizer.step(0.1, model, grads)
        >>> model.layers.insert(1, nn.Linear(3, 3))
        >>> print(optimizer.report(model.freeze("layers.0.bias")))
        4 of 6 parameters have a usable state: not ok
          kept: layers.0.weight, layers.2.weight, layers.2.bias
          to start anew: layers.1.weight, layers.1.bias
          frozen, with a state that is kept: layers.0.bias
        """
        return report_of(module, self.states, self._shape_misfit)

    def forget(self, module: Module) -> StateReport:
        """Drop the states that this module cannot use: those of missing parameters, and those of another shape.

        Returns the report, which names them.
        """
        report = self.report(module)
        unusable = [*report.orphans, *(param.id for path, param in module.named_params() if path in report.misshapen)]
        for id in unusable:
            self.states.pop(id, None)
        return report

    _repr_html_ = html_by("phlox.optim.pages", "page_of_optimizer")

    def _shape_misfit(self, param: Param) -> str | None:
        """Why this parameter's state does not have its shape; None if it has."""
        return None

    def into_record(self) -> Record:
        """The state as a record; nothing is copied."""
        entries: dict[str, Any] = {}
        aliases: dict[str, str] = {}
        for id, state in self.states.items():
            leaves: list[Any] = []
            skeleton = flatten(state, leaves, saving=True)
            entries[f"states.{id}.skeleton"] = to_plain(skeleton)
            for (path, kind), leaf in zip(paths(skeleton), leaves, strict=True):
                name = f"states.{id}.state.{path}" if path else f"states.{id}.state"
                leaf_entries: dict[str, Any]
                if kind in KINDS:
                    leaf_entries = {name: TensorEntry(leaf if isinstance(leaf, LazyTensor) else lazy(name, leaf), id)}
                elif kind == ARRAY:
                    leaf_entries = {name: TensorEntry(as_tensor(leaf, name), id)}
                elif kind == OBJECT:
                    own = leaf.into_record()
                    leaf_entries = {f"{name}.{own_path}": own[own_path] for own_path in own}
                    aliases |= {f"{name}.{alias}": f"{name}.{own_path}" for alias, own_path in own.aliases.items()}
                else:
                    leaf_entries = {name: leaf}
                if duplicates := entries.keys() & leaf_entries.keys():
                    raise OptimizerError(f"{min(duplicates)}: two entries of the state have this path; rename a key")
                entries |= leaf_entries
        return Record(entries, {"optimizer": type(self).__name__}, aliases=aliases)

    def load_record(self, record: Record) -> None:
        """Load the state from a record; its tensors are moved to the parameter's device at its next step.

        Raises `RecordError`, and keeps the old state, if the record is damaged or not of this optimizer. The error
        lists the problems of every state.
        """
        self._loading(self._states_of(record))()

    def prepare_load(self, record: Record) -> Callable[[], object]:
        """`load_record` in two steps, for `phlox.record.restore`: checks now, and returns a function that loads."""
        if type(self).load_record is not Optimizer.load_record:
            return trial_load(self, record)
        return self._loading(self._states_of(record))

    def _loading(self, states: dict[ParamId, State]) -> Prepared[None]:
        def keep() -> Callable[[], None]:
            before = {**vars(self), "_slots": dict(self._slots)}
            return lambda: vars(self).update(before)

        return Prepared(lambda: self._set_states(states), keep)

    def _states_of(self, record: Record) -> dict[ParamId, State]:
        states = read_states(record)
        if misfit := self._misfit(states):
            raise RecordError(misfit)
        return states

    def _misfit(self, states: dict[ParamId, State]) -> str | None:
        """Why these are not states of this optimizer, as far as known without the parameters; None if they are."""
        return None

    def _set_states(self, states: dict[ParamId, State]) -> None:
        with self._lock:
            self._states, self._packed, self._torn = states, None, False
            self._slots.clear()


def _fields(optimizer: Optimizer) -> dict[str, Any]:
    """All fields except those about states; containers are copied, so they are not shared with the optimizer."""
    return {
        name: copy.copy(value) if type(value) in _CONTAINERS else value
        for name, value in vars(optimizer).items()
        if name not in _OWN
    }


def _is_same(value: Any, other: Any) -> bool:
    """Are these the same object, or containers of the same objects?"""
    if value is other or type(value) not in _CONTAINERS or type(other) is not type(value):
        return value is other
    if isinstance(value, dict):
        items, other_items = cast("dict[Any, Any]", value), cast("dict[Any, Any]", other)
        return list(items) == list(other_items) and all(map(operator.is_, items.values(), other_items.values()))
    return value == other if isinstance(value, set) else list(map(id, value)) == list(map(id, other))


def read_states(record: Record) -> dict[ParamId, State]:
    """The states in an optimizer's record; each tensor is read once, to check that it is not damaged."""
    if record.positional:
        raise RecordError("a positional record has no names, but an optimizer's state is kept by name")
    states: dict[ParamId, State] = {}
    problems: list[str] = []
    for path in record.values:
        if path.startswith("states.") and path.endswith(".skeleton"):
            id = path.removeprefix("states.").removesuffix(".skeleton")
            if f"states.{id.partition('.state.')[0]}.skeleton" in record and ".state." in id:
                continue  # an entry of that name in a state
            try:
                states[ParamId(id)] = _read_state(record, path, f"states.{id}.state")
            except RecordError as error:
                problems.append(str(error))
    if problems:
        raise RecordError("\n".join(problems))
    if len(record) and not states:
        raise RecordError("the record holds no optimizer state; was it made from a module?")
    return states


def _read_state(record: Record, path: str, prefix: str) -> State:
    leaves: list[Any] = []
    try:
        skeleton = from_plain(record[path])
        for name, kind, *details in leaves_of(skeleton):
            leaf_path = f"{prefix}.{name}" if name else prefix
            if kind == OBJECT:
                leaves.append(SavedObject(str(details[0]), record.select(leaf_path)))
                continue
            entry = record[leaf_path]
            leaf = entry.tensor if isinstance(entry, TensorEntry) else entry
            if kind == ARRAY and isinstance(leaf, LazyTensor):
                leaves.append(from_tensor(leaf, *details))
                continue
            if not fits(kind, leaf):
                raise RecordError(f"{leaf_path}: expected {kind}, found {leaf!r}")
            # With several processes, each reads only its own part, when it is needed.
            if isinstance(leaf, LazyTensor) and (leaf.part is None or processes().size == 1):
                for _ in leaf.blocks():
                    pass
            leaves.append(leaf)
        return unflatten(skeleton, iter(leaves))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise RecordError(f"{prefix}: the optimizer's state is incomplete or damaged ({error})") from error
