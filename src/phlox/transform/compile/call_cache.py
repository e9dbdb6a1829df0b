"""Fast reading of the arguments of a call that is like the last one, as almost every call is.

`CallArguments` reads the whole structure of a call. This file only checks that nothing but arrays and numbers has
changed: the structures are the same objects, because the results of a call share them with its arguments.
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
from phlox.transform.compile.executable import ChangedMeanwhile, Program, RetryWithFreshArguments
from phlox.transform.compile.host_arrays import array_matcher
from phlox.transform.compile.signature import CallArguments, IdSource, ModuleArg, OptimizerArg, StateIds
from phlox.transform.compile.trace import Call
from phlox.transform.tree import container_of

LeafMatcher: TypeAlias = Callable[[Any, list[Any]], bool]
"""`(value, leaves)`: is the value like the last one? If so its arrays are appended to the leaves."""

OptimizerMatcher: TypeAlias = Callable[[Any, CallArguments, list[Any]], bool]
"""Like `LeafMatcher`, for an optimizer, which it adds to the reader."""

OTHER = object()
"""The result for a call that is not like the last one."""


ContainerMatcher: TypeAlias = Callable[[Any, list[Any]], bool]
"""`(value, leaves)`: is the container like the last one? If so, its contents are appended to the leaves."""


class Argument(NamedTuple):
    """An argument of the last call, or a value in a container argument."""

    path: str
    match: LeafMatcher
    donated: bool
    is_array: bool
    """Does its matcher append to the leaves?"""
    owner: int | None
    """For a module, the number of the owner of its ids."""


class CallCache:
    """The form of the last call, and its program. Calls of the same form run it without reading all arguments."""

    __slots__ = (
        "_arguments",
        "_backend",
        "_containers",
        "_matchers",
        "_names",
        "_optimizers",
        "_owners",
        "checked",
        "guard_holds",
        "program",
        "rows",
    )

    def __init__(
        self,
        program: Program,
        call: Call,
        arguments: Sequence[Argument],
        optimizers: Sequence[tuple[int, OptimizerMatcher]],
        containers: Sequence[ContainerMatcher | None],
    ) -> None:
        self.program, self.checked, self.rows = program, program.checked, program.rows
        self.guard_holds: Callable[[], bool] | None = None
        """Are the values that the program reads from outside still the same?"""
        self._arguments = tuple(arguments)
        self._names = [(name, leaves is call.reader.donated) for name, _, leaves in call.named]
        self._containers = tuple(containers) if any(matcher is not None for matcher in containers) else None
        self._optimizers = tuple(optimizers)
        simple = not optimizers and self._containers is None and not any(argument.donated for argument in arguments)
        # Only if a call has nothing but arrays and numbers to pass on.
        self._matchers = tuple([argument.match for argument in arguments]) if simple else None
        self._backend = call.reader.backend
        # Only the ids of optimizers' states are kept, so no array outlives its call.
        self._owners: list[IdSource] = [
            StateIds(owner.ids) if isinstance(owner, FlatState) else owner for owner in call.reader.owners
        ]

    @classmethod
    def of(cls, program: Program, call: Call) -> CallCache | None:
        """A cache for calls like this one; None if some arguments must be read again each time."""
        reader = call.reader
        if call.keywords or call.over or program.steps is not None:
            return None
        containers: list[ContainerMatcher | None] = []
        flat: list[tuple[str, Any, list[Any]]] = []
        for name, value, leaves in call.named:
            contents: list[tuple[str, Any]] = []
            try:
                containers.append(_container_matcher(value, name, contents))
            except NotImplementedError:
                return None
            flat += [(path, part, leaves) for path, part in contents]
        modules, by_id = iter(reader.modules), {id(argument.optimizer): argument for argument in reader.optimizers}
        if sum(isinstance(value, Optimizer) for _, value, _ in flat) != len(by_id):
            return None  # an optimizer is passed twice
        arguments: list[Argument] = []
        optimizers: list[tuple[int, OptimizerMatcher]] = []
        for index, (path, value, leaves) in enumerate(flat):
            match, owner = None, None
            if isinstance(value, Tensor):
                match = _tensor_matcher(cast("Tensor[Any, Any, Any]", value), reader, donated=leaves is reader.donated)
            elif isinstance(value, Module):
                module_arg = next(modules, None)  # another module, if one is passed twice
                if module_arg is not None and module_arg.module is value:
                    match, owner = _module_matcher(module_arg, reader), module_arg.owner
            elif type(value) is float:
                match = _number_matcher(value, reader.backend)
            elif value is None or isinstance(value, bool):
                match = _constant_matcher(value)
            elif isinstance(value, Optimizer):
                optimizers.append((index, _optimizer_matcher(by_id[id(value)], reader)))
                match = _match_anything
            if match is None:
                return None
            is_array = match is not _match_anything and not (value is None or isinstance(value, bool))
            arguments.append(Argument(path, match, leaves is reader.donated, is_array, owner))
        return cls(program, call, arguments, optimizers, containers)

    def __call__(self, values: Sequence[Any]) -> Any:
        """The result of a call with these arguments, or `OTHER` if they are not like those of the last call."""
        matchers, program = self._matchers, self.program
        if matchers is None or program.draws:
            call = self._read(values)
            if call is None:
                return OTHER
            try:
                return program.__call__(call)
            except (ChangedMeanwhile, RetryWithFreshArguments):
                return OTHER
        if len(values) != len(matchers):
            return OTHER
        leaves: list[Any] = [None]
        for match, value in zip(matchers, values, strict=True):
            if not match(value, leaves):
                return OTHER
        # The arguments are not read again: the program may ask for the call while it is being traced.
        try:
            return program.fast_path(leaves, self._owners, lambda: self._call_of(values, leaves))
        except (ChangedMeanwhile, RetryWithFreshArguments):
            return OTHER

    def _flatten(self, values: Sequence[Any]) -> list[Any] | None:
        """The arguments with containers replaced by their contents; None if a container is not like the last one."""
        containers = self._containers
        assert containers is not None
        if len(values) != len(containers):
            return None
        flat: list[Any] = []
        for matcher, value in zip(containers, values, strict=True):
            if matcher is None:
                flat.append(value)
            elif not matcher(value, flat):
                return None
        return flat

    def _call_of(self, values: Sequence[Any], kept: list[Any]) -> Call:
        """The call with these arguments, whose arrays are already in `kept`."""
        reader = CallArguments(self._backend)
        reader.kept = kept
        index = 1
        for argument, value in zip(self._arguments, values, strict=True):
            if argument.is_array:
                _add_to_reader(reader, argument, value, kept, index)
                index += 1
        reader.owners = self._owners
        return Call(reader, [(name, value, kept) for (name, _), value in zip(self._names, values, strict=True)], 0, [])

    def _read(self, values: Sequence[Any]) -> Call | None:
        """The arguments as a call, or None if they are not like those of the last call."""
        arguments, nested = self._arguments, self._containers is not None
        flat = self._flatten(values) if nested else values
        if flat is None or len(flat) != len(arguments):
            return None
        reader = CallArguments(self._backend)
        donated, kept = reader.donated, reader.kept
        named: list[tuple[str, Any, list[Any]]] = []
        for argument, value in zip(arguments, flat, strict=True):
            leaves = donated if argument.donated else kept
            if not argument.match(value, leaves):
                return None
            if argument.is_array:
                _add_to_reader(reader, argument, value, leaves, len(leaves) - 1)
            named.append((argument.path, value, leaves))
        for index, match in self._optimizers:
            _, value, leaves = named[index]
            if not match(value, reader, leaves):
                return None
        if nested:
            values_by_name = zip(self._names, values, strict=True)
            named = [(name, value, donated if is_donated else kept) for (name, is_donated), value in values_by_name]
        reader.owners = self._owners
        return Call(reader, named, 0, [])


def _add_to_reader(reader: CallArguments, argument: Argument, value: Any, leaves: list[Any], index: int) -> None:
    """Add an argument, whose arrays are at this index of the leaves, to the reader."""
    array = leaves[index]
    if argument.owner is not None:
        reader.modules.append(ModuleArg(value, argument.owner, argument.path, leaves, index))
        array = array[0]
    if reader.first is None and type(value) is not float and not isinstance(array, np.ndarray):
        reader.first = array, argument.path


def _container_matcher(value: Any, path: str, contents: list[tuple[str, Any]]) -> ContainerMatcher | None:
    """A matcher of containers like this one; None if it is not a container. Its contents are appended to `contents`.

    Raises `NotImplementedError` for a container that must be read again each time.
    """
    container = container_of(value)
    if container is None:
        contents.append((path, value))
        return None
    if container not in (DICT, LIST, TUPLE, NAMED_TUPLE):
        raise NotImplementedError
    kind: type[Any] = cast("type[Any]", type(value))
    keys = tuple(value) if container is DICT else None
    parts = [_container_matcher(part, path + container.label(key), contents) for key, part in container.items(value)]

    def match(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not kind or len(value) != len(parts):
            return False
        if keys is not None:
            if tuple(value) != keys:
                return False
            value = value.values()
        for matcher, part in zip(parts, value, strict=True):
            if matcher is None:
                leaves.append(part)
            elif not matcher(part, leaves):
                return False
        return True

    return match


def _match_anything(value: Any, leaves: list[Any]) -> bool:
    return True


def _constant_matcher(last: bool | None) -> LeafMatcher:
    return lambda value, leaves: value is last


def _tensor_matcher(last: Tensor[Any, Any, Any], reader: CallArguments, *, donated: bool) -> LeafMatcher | None:
    ops, backend = last._ops, reader.backend  # pyright: ignore[reportPrivateUsage]
    array_class = cast("type[Any]", type(ops.backend.strip(last.primitive)))
    tensor_class = type(last)
    # A NumPy array may take its place; see `phlox.transform.compile.host_arrays`.
    match_array = None if donated else array_matcher(ops.kind, reader.device.on(ops.backend), last.shape)

    def match(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not tensor_class or value._ops is not ops:
            return match_array is not None and value.__class__ is np.ndarray and match_array(value, leaves)
        array = value.primitive
        if array.__class__ is not array_class:  # an array on the tape, or a tracer
            return False
        leaves.append(array)
        return True

    return None if backend.is_traced(ops.backend.strip(last.primitive)) else match


def _module_matcher(last: ModuleArg, reader: CallArguments) -> LeafMatcher | None:
    owner: Any = reader.owners[last.owner]
    arrays = last.leaves[last.position]
    if not arrays or reader.backend.is_traced(arrays[0]):
        return None
    array_class = cast("type[Any]", type(arrays[0]))
    module_class = type(last.module)

    def match(value: Any, leaves: list[Any]) -> bool:
        if value.__class__ is not module_class:
            return False
        pending = value._phlox_pending
        if pending.__class__ is Kept:
            aux, arrays = pending
        else:  # its fields were unpacked, and its parameters may have other values
            arrays, aux = flatten(value)
        if aux is not owner or arrays[0].__class__ is not array_class:
            return False
        leaves.append(arrays)
        return True

    return match


def _number_matcher(last: float, backend: Backend) -> LeafMatcher:
    # A number that does not change is converted for the engine once.
    cached: tuple[float, Any] = (last, last)

    def match(value: Any, leaves: list[Any]) -> bool:
        nonlocal cached
        if value.__class__ is not float:
            return False
        number, scalar = cached
        if value != number or value == 0.0 or scalar.__class__ is float:  # zeros have signs
            scalar = backend.scalar_argument(value)
            cached = value, scalar
        leaves.append(scalar)
        return True

    return match


def _optimizer_matcher(last: OptimizerArg, reader: CallArguments) -> OptimizerMatcher:
    optimizer, settings = weakref.ref(last.optimizer), last.optimizer.settings()
    form, ids, backend = last.packed.form, last.packed.ids, reader.backend

    def match(value: Any, reader: CallArguments, leaves: list[Any]) -> bool:
        if value is not optimizer() or value.settings() != settings:
            return False
        packed = value.packed_for(backend)
        if packed is None or packed.form is not form or packed.ids is not ids:
            return False
        reader.optimizers.append(OptimizerArg(value, packed, leaves, len(leaves), value))
        leaves.append(packed.leaves)
        return True

    return match
