"""Fast reading of the arguments of a call that is like the last one, as almost every call is.

`CallArguments` reads the whole structure of a call. Here it is only checked that nothing has changed except arrays and
numbers: the structures are the same objects, because the results of a call share them with its arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import Backend
from phlox.backend.pytree import DICT, LIST, NAMED_TUPLE, TUPLE
from phlox.module import Module
from phlox.module.template import Kept, flatten
from phlox.optim import Optimizer
from phlox.optim.state.flat import FlatState
from phlox.tensor import Tensor
from phlox.transform.compile.executable import Again, ChangedMeanwhile, Program
from phlox.transform.compile.host_arrays import taker
from phlox.transform.compile.signature import CallArguments, IdSource, ModuleArg, OptimizerArg, StateIds
from phlox.transform.compile.trace import Call
from phlox.transform.tree import container_of

Take: TypeAlias = Callable[[Any, list[Any]], bool]
"""`(value, leaves)`: is the value like the last one? If so its arrays are appended to the leaves."""

TakeLate: TypeAlias = Callable[[Any, CallArguments, list[Any]], bool]
"""As `Take`, for optimizers, which it adds to the reader."""

OTHER = object()
"""The result for a call that is not like the last one."""


Spread: TypeAlias = Callable[[Any, list[Any]], bool]
"""`(value, leaves)`: is the container like the last one? If so, its contents are appended to the leaves."""


class Argument(NamedTuple):
    """An argument of the last call, or a value in a container argument."""

    path: str
    take: Take
    donated: bool
    is_array: bool
    """Does it add to the leaves at once?"""
    owner: int | None
    """For a module, the number of the owner of its ids."""


class CallCache:
    """The form of the last call, and its program."""

    __slots__ = (
        "_arguments",
        "_backend",
        "_late",
        "_names",
        "_owners",
        "_spread",
        "_takes",
        "checked",
        "holds",
        "program",
        "rows",
    )

    def __init__(
        self,
        program: Program,
        call: Call,
        arguments: Sequence[Argument],
        late: Sequence[tuple[int, TakeLate]],
        spread: Sequence[Spread | None],
    ) -> None:
        self.program, self.checked, self.rows = program, program.checked, program.rows
        self.holds: Callable[[], bool] | None = None
        """Is what the program reads from outside as it was?"""
        self._arguments = tuple(arguments)
        self._names = [(name, leaves is call.reader.donated) for name, _, leaves in call.named]
        self._spread = tuple(spread) if any(one is not None for one in spread) else None
        self._late = tuple(late)
        alone = not late and self._spread is None and not any(argument.donated for argument in arguments)
        # Of calls that take no more than to hand over arrays.
        self._takes = tuple([argument.take for argument in arguments]) if alone else None
        self._backend = call.reader.backend
        # Of optimizers' states only the ids, so that no array outlives its call.
        self._owners: list[IdSource] = [
            StateIds(owner.ids) if isinstance(owner, FlatState) else owner for owner in call.reader.owners
        ]

    @classmethod
    def of(cls, program: Program, call: Call) -> CallCache | None:
        """A cache for calls like this one; None if some arguments must be read again each time."""
        reader = call.reader
        if call.keywords or call.over or program.steps is not None:
            return None
        spread: list[Spread | None] = []
        flat: list[tuple[str, Any, list[Any]]] = []
        for name, value, leaves in call.named:
            within: list[tuple[str, Any]] = []
            try:
                spread.append(_spread(value, name, within))
            except NotImplementedError:
                return None
            flat += [(path, part, leaves) for path, part in within]
        modules, optimizers = iter(reader.modules), {id(argument.optimizer): argument for argument in reader.optimizers}
        if sum(isinstance(value, Optimizer) for _, value, _ in flat) != len(optimizers):
            return None  # one is given twice
        arguments: list[Argument] = []
        late: list[tuple[int, TakeLate]] = []
        for place, (path, value, leaves) in enumerate(flat):
            take, owner = None, None
            if isinstance(value, Tensor):
                take = _tensor(cast("Tensor[Any, Any, Any]", value), reader, donated=leaves is reader.donated)
            elif isinstance(value, Module):
                given = next(modules, None)  # not the next one, where a module is given twice
                if given is not None and given.module is value:
                    take, owner = _module(given, reader), given.owner
            elif type(value) is float:
                take = _number(value, reader.backend)
            elif value is None or isinstance(value, bool):
                take = _constant(value)
            elif isinstance(value, Optimizer):
                late.append((place, _optimizer(optimizers[id(value)], reader)))
                take = _nothing
            if take is None:
                return None
            is_array = take is not _nothing and not (value is None or isinstance(value, bool))
            arguments.append(Argument(path, take, leaves is reader.donated, is_array, owner))
        return cls(program, call, arguments, late, spread)

    def __call__(self, values: Sequence[Any]) -> Any:
        """The result of a call with these arguments, or `OTHER` if they are not like those of the last call."""
        takes, program = self._takes, self.program
        if takes is None or program.draws:
            call = self._read(values)
            if call is None:
                return OTHER
            try:
                return program.__call__(call)
            except (ChangedMeanwhile, Again):
                return OTHER
        if len(values) != len(takes):
            return OTHER
        kept: list[Any] = [None]
        for take, value in zip(takes, values, strict=True):
            if not take(value, kept):
                return OTHER
        # Nothing is read anew: it may be asked for inside the program that is being traced.
        try:
            return program.fast_path(kept, self._owners, lambda: self._taken(values, kept))
        except (ChangedMeanwhile, Again):
            return OTHER

    def _flat(self, values: Sequence[Any]) -> list[Any] | None:
        """The arguments with containers replaced by their contents; None if these are not like the last ones."""
        spread = self._spread
        assert spread is not None
        if len(values) != len(spread):
            return None
        flat: list[Any] = []
        for one, value in zip(spread, values, strict=True):
            if one is None:
                flat.append(value)
            elif not one(value, flat):
                return None
        return flat

    def _taken(self, values: Sequence[Any], kept: list[Any]) -> Call:
        """The call that these arguments are, whose arrays have been taken."""
        reader = CallArguments(self._backend)
        reader.kept = kept
        place = 1
        for argument, value in zip(self._arguments, values, strict=True):
            if argument.is_array:
                _note(reader, argument, value, kept, place)
                place += 1
        reader.owners = self._owners
        return Call(reader, [(name, value, kept) for (name, _), value in zip(self._names, values, strict=True)], 0, [])

    def _read(self, values: Sequence[Any]) -> Call | None:
        """The arguments taken apart, or None if they are not like those of the last call."""
        arguments, nested = self._arguments, self._spread is not None
        flat = self._flat(values) if nested else values
        if flat is None or len(flat) != len(arguments):
            return None
        reader = CallArguments(self._backend)
        donated, kept = reader.donated, reader.kept
        named: list[tuple[str, Any, list[Any]]] = []
        for argument, value in zip(arguments, flat, strict=True):
            leaves = donated if argument.donated else kept
            if not argument.take(value, leaves):
                return None
            if argument.is_array:
                _note(reader, argument, value, leaves, len(leaves) - 1)
            named.append((argument.path, value, leaves))
        for place, take in self._late:
            _, value, leaves = named[place]
            if not take(value, reader, leaves):
                return None
        if nested:
            given = zip(self._names, values, strict=True)
            named = [(name, value, donated if gives else kept) for (name, gives), value in given]
        reader.owners = self._owners
        return Call(reader, named, 0, [])


def _note(reader: CallArguments, argument: Argument, value: Any, leaves: list[Any], place: int) -> None:
    """Note in the reader an argument whose arrays are at this position of the leaves."""
    array = leaves[place]
    if argument.owner is not None:
        reader.modules.append(ModuleArg(value, argument.owner, argument.path, leaves, place))
        array = array[0]
    if reader.first is None and type(value) is not float and not isinstance(array, np.ndarray):
        reader.first = array, argument.path


def _spread(value: Any, path: str, within: list[tuple[str, Any]]) -> Spread | None:
    """How to flatten a container like this one; None if it is not one. Its contents are appended to `within`.

    Raises `NotImplementedError` for a container that must be read again each time.
    """
    container = container_of(value)
    if container is None:
        within.append((path, value))
        return None
    if container not in (DICT, LIST, TUPLE, NAMED_TUPLE):
        raise NotImplementedError
    kind: type[Any] = cast("type[Any]", type(value))
    keys = tuple(value) if container is DICT else None
    parts = [_spread(part, path + container.label(key), within) for key, part in container.items(value)]

    def spread(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not kind or len(value) != len(parts):
            return False
        if keys is not None:
            if tuple(value) != keys:
                return False
            value = value.values()
        for one, part in zip(parts, value, strict=True):
            if one is None:
                leaves.append(part)
            elif not one(part, leaves):
                return False
        return True

    return spread


def _nothing(value: Any, leaves: list[Any]) -> bool:
    return True


def _constant(last: bool | None) -> Take:
    return lambda value, leaves: value is last


def _tensor(last: Tensor[Any, Any, Any], reader: CallArguments, *, donated: bool) -> Take | None:
    ops, backend = last._ops, reader.backend  # pyright: ignore[reportPrivateUsage]
    array_class = cast("type[Any]", type(ops.backend.strip(last.primitive)))
    tensor_class = type(last)
    # A NumPy array in its place is one of the same kind on the same backend: see `phlox.transform.compile.host_arrays`.
    take_array = None if donated else taker(ops.kind, reader.place.on(ops.backend), last.shape)

    def take(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not tensor_class or value._ops is not ops:
            return take_array is not None and value.__class__ is np.ndarray and take_array(value, leaves)
        array = value.primitive
        if array.__class__ is not array_class:  # one on the tape, or a tracer
            return False
        leaves.append(array)
        return True

    return None if backend.is_traced(ops.backend.strip(last.primitive)) else take


def _module(last: ModuleArg, reader: CallArguments) -> Take | None:
    owner: Any = reader.owners[last.owner]
    arrays = last.leaves[last.place]
    if not arrays or reader.backend.is_traced(arrays[0]):
        return None
    array_class = cast("type[Any]", type(arrays[0]))
    module_class = type(last.module)

    def take(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not module_class:
            return False
        pending = value._phlox_pending
        if pending.__class__ is Kept:
            aux, arrays = pending
        else:  # it has its fields, and its parameters may have been given other values
            arrays, aux = flatten(value)
        if aux is not owner or arrays[0].__class__ is not array_class:
            return False
        leaves.append(arrays)
        return True

    return take


def _number(last: float, backend: Backend) -> Take:
    # A rate that stays is made ready for the engine once.
    known: tuple[float, Any] = (last, last)

    def take(value: Any, leaves: list[Any]) -> bool:
        nonlocal known
        if value.__class__ is not float:
            return False
        number, held = known
        if value != number or value == 0.0 or held.__class__ is float:  # zeros have signs
            held = backend.scalar_argument(value)
            known = value, held
        leaves.append(held)
        return True

    return take


def _optimizer(last: OptimizerArg, reader: CallArguments) -> TakeLate:
    optimizer, settings = weakref.ref(last.optimizer), last.optimizer.settings()
    form, ids, backend = last.packed.form, last.packed.ids, reader.backend

    def take(value: Any, reader: CallArguments, leaves: list[Any]) -> bool:
        if value is not optimizer() or value.settings() != settings:
            return False
        packed = value.packed_for(backend)
        if packed is None or packed.form is not form or packed.ids is not ids:
            return False
        reader.optimizers.append(OptimizerArg(value, packed, leaves, len(leaves), value))
        leaves.append(packed.leaves)
        return True

    return take
