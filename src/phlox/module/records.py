"""Between modules and records."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np
from typing_extensions import Unpack

from phlox.backend.contract.backend import engine_of
from phlox.backend.parallel import each
from phlox.errors import ModuleError, PhloxError, RecordError
from phlox.module.param import Param, ParamId, new_id
from phlox.module.template import left_over
from phlox.record import LazyTensor, LoadReport, Record, TensorEntry, load, match
from phlox.record.entry import PORTION
from phlox.record.patterns import Patterns
from phlox.record.renaming import Remap
from phlox.tensor import Tensor

if TYPE_CHECKING:
    from phlox.module.module import Module

AT_ONCE = 1 << 26
"""Bytes: a module whose parameters take no more gets all new values made before any old one is let go."""

_WORTH = 1 << 23
"""Bytes to cast to that are worth a thread."""


class LoadOptions(TypedDict, total=False):
    """What may be said of how a record is loaded, see `Module.load_record`."""

    strict: bool
    include: Patterns | None
    exclude: Patterns | None
    remap: Remap | None


def lazy(path: str, tensor: Tensor[Any, Any, Any]) -> LazyTensor:
    """A tensor as an entry of a record: read from its device when the record is."""

    def read() -> Any:
        # Read-only, for on NumPy it is the tensor's own memory; and whoever loads it may share it.
        array = np.asarray(tensor._host(path)).view()  # pyright: ignore[reportPrivateUsage]
        array.flags.writeable = False
        return array

    dtype, recast = tensor.backend.host_dtype(tensor.kind), engine_of(tensor.backend).recast
    return LazyTensor.from_function(tensor.shape, dtype, read, path, recast)


def into_record(module: Module) -> Record:
    """See `Module.into_record`."""
    structure = module.structure()
    entries: dict[str, Any] = {}
    for path, param in structure.named():
        value = param.val()
        if value.backend.is_traced(value.primitive):
            raise _traced(path, param)
        entries[path] = TensorEntry(lazy(path, value), param.id)
    return Record(entries, {"module": type(module).__name__}, aliases=structure.aliases)


def _traced(path: str, param: Param) -> ModuleError:
    if engine_of(param.backend).is_left_over(param.leaf):
        return left_over(path)
    return ModuleError(
        f"`{path}` has no value that could be saved while a program is being recorded; save the module outside"
    )


def report(module: Module, record: Record, **options: Unpack[LoadOptions]) -> LoadReport:
    """See `Module.load_report`."""
    if not isinstance(record, Record):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RecordError(
            f"expected a Record, got {type(record).__name__}; a file is loaded with module.load(path) or "
            "phlox.record.load(path), and arrays by name make a record with phlox.record.Record(arrays)"
        )
    structure = module.structure()
    expected: Any = {path: (param.shape, param.kind.name, _dtype(param)) for path, param in module.named_params()}
    return match(expected, record, aliases=structure.aliases, **options)


def _dtype(param: Param) -> Any:
    return param.backend.host_dtype(param.kind)


def load_from(module: Module, source: Record | str | PathLike[str], **options: Unpack[LoadOptions]) -> LoadReport:
    """See `Module.load`."""
    if isinstance(source, Record):
        return prepare(module, source, **options)()
    try:
        return prepare(module, load(source), **options)()
    except RecordError as error:
        if str(error).startswith(str(Path(source))):
            raise
        raise RecordError(f"{Path(source)}: {error}") from error


class _Place(NamedTuple):
    """A parameter, what it is to be loaded from, and its new value if that is made already."""

    path: str
    param: Param
    entry: TensorEntry
    value: Tensor[Any, Any, Any] | None


def prepare(module: Module, record: Record, **options: Unpack[LoadOptions]) -> Callable[[], LoadReport]:
    """Checks all that can fail, and gives the function that loads.

    New values are made at once for parameters that have none yet, for those that cost no memory (views of a mapped
    file), and where all of them are small. In a large module that has values, the others are only checked, to the last
    element, and made one by one when the old ones are let go: loading takes no more than one tensor beyond the module.
    """
    found = report(module, record, **options)
    found.raise_if_failed(type(module).__name__)
    named = [(path, param) for path, param in module.named_params() if path in found.matches]
    at_once = sum(_nbytes(param) for _, param in named if param.is_initialized) <= AT_ONCE
    entries = [cast("TensorEntry", record[found.matches[path]]) for path, _ in named]

    def new_value(i: int) -> Tensor[Any, Any, Any] | None:
        (path, param), entry = named[i], entries[i]
        return (_made if at_once or not param.is_initialized else _checked)(path, param, entry)

    values = each(
        new_value, [_bytes_cast(param, entry) for (_, param), entry in zip(named, entries, strict=True)], _WORTH
    )
    places = [_Place(*one, entry, value) for one, entry, value in zip(named, entries, values, strict=True)]
    ids = _ids(module, places)
    return lambda: _fill(places, ids, found)


def _bytes_cast(param: Param, entry: TensorEntry) -> int:
    """What is to be cast, unless the engine has threads for it; what is only mapped takes no time."""
    is_cast = entry.tensor.dtype != _dtype(param) and not engine_of(param.backend).threads_of_its_own
    return _nbytes(param) if is_cast else 0


def _nbytes(param: Param) -> int:
    return math.prod(param.shape) * _dtype(param).itemsize


def _ids(module: Module, places: list[_Place]) -> list[ParamId]:
    """The ids that the parameters are to have: the record's, but no two parameters get the same one."""
    loaded = {id(place.param) for place in places}
    taken = {param.id for param in module.params() if id(param) not in loaded}
    theirs = {place.entry.id for place in places}
    ids: list[ParamId] = []
    for _, param, entry, _ in places:
        own = param.id if param.id not in theirs and param.id not in taken else new_id()
        new = own if entry.id is None or entry.id in taken else ParamId(entry.id)
        taken.add(new)
        ids.append(new)
    return ids


def _fill(places: list[_Place], ids: list[ParamId], found: LoadReport) -> LoadReport:
    undo: list[Callable[[], None]] = []
    kept_back = all(place.value is not None for place in places)
    done = 0
    try:
        for place, new in zip(places, ids, strict=True):
            value = _made(place.path, place.param, place.entry) if place.value is None else place.value
            if kept_back:
                undo.append(_memento(place.param))
            place.param.set(value)
            place.param.set_id(new)
            done += 1
    except BaseException as error:
        for back in reversed(undo):
            back()
        if kept_back or not done or not isinstance(error, RecordError):
            raise
        raise RecordError(
            f"the record has changed since it was checked, a moment ago: {error}. Of the module, the first {done} of "
            f"{len(places)} parameters are now the record's, the others as they were; load a record that is whole"
        ) from error
    return found.as_done()


def _memento(param: Param) -> Callable[[], None]:
    """Gives a parameter back what it holds now."""
    tensor, deferred, id = param._tensor, param._deferred, param.id  # pyright: ignore[reportPrivateUsage]

    def back() -> None:
        param._tensor, param._deferred, param.id = tensor, deferred, id  # pyright: ignore[reportPrivateUsage]
        param.changed()

    return back


def _made(path: str, param: Param, entry: TensorEntry) -> Tensor[Any, Any, Any]:
    array = entry.tensor.read()
    made = _on_device(path, param, array)
    if made is array and array.flags.writeable and entry.tensor.dtype == entry.tensor.source_dtype:
        made = array.copy()  # somebody else may hold it, and write to it
    param.backend.await_array(made)  # or many copies would be on the way at once
    return Tensor.from_primitive(made, param.backend, param.kind)


def _on_device(path: str, param: Param, array: Any) -> Any:
    place = param.device
    try:
        return place.backend.from_host(array, param.kind, place)
    except PhloxError as error:
        raise RecordError(f"{path}: {error}") from error


def _checked(path: str, param: Param, entry: TensorEntry) -> Tensor[Any, Any, Any] | None:
    """Reads it whole, keeping it only if that costs nothing: the value as `_made` gives it, or None."""
    for block in entry.tensor.blocks():
        if block.dtype == _dtype(param):
            return _made(path, param, entry) if _is_mapped(block) and _keeps_arrays(param) else None
        count = PORTION // block.itemsize
        for start in range(0, block.size, count):
            _on_device(path, param, block[start : start + count])
    return None


def _keeps_arrays(param: Param) -> bool:
    """Is what its backend makes of a host array the very array?"""
    probe = np.zeros(1, _dtype(param))
    return param.backend.from_host(probe, param.kind, param.device) is probe


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)
