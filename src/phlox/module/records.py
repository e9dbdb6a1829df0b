"""Conversion between modules and records."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np
from typing_extensions import Unpack

from phlox.backend import Backend, Device, Kind
from phlox.backend.contract.backend import engine_of
from phlox.backend.out_of_memory import out_of_memory
from phlox.errors import ModuleError, PhloxError, RecordError
from phlox.host.memory import Arena
from phlox.host.signal_guard import Prepared
from phlox.host.thread_pool import parallel_map
from phlox.module.own_records import meant_paths, outside, prepare_children, record_of, refuse_positional, without
from phlox.module.param import Param, ParamId, new_id, undo_of
from phlox.module.template import leaked_tracer
from phlox.record import LazyTensor, LoadReport, Record, TensorEntry, load, match
from phlox.record.dtypes import canonical
from phlox.record.entry import LARGE, PORTION
from phlox.record.formats.reader import PathLike, Readable, is_path
from phlox.record.loading.renaming import Remap, Renamed, rename
from phlox.record.loading.report import DROPPED
from phlox.record.patterns import Patterns
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops, ops_of
from phlox.tensor.tensor import wrap

if TYPE_CHECKING:
    from phlox.module.module import Module
    from phlox.module.structure import Structure

AT_ONCE = 1 << 26
"""Bytes: a module whose parameters take no more gets all new values made before any old one is released."""

_WORTH = 1 << 23
"""Bytes to cast to that are worth a thread."""


class LoadOptions(TypedDict, total=False):
    """The options of `Module.load_record`."""

    strict: bool
    include: Patterns | None
    exclude: Patterns | None
    remap: Remap | None


def lazy(path: str, tensor: Tensor[Any, Any, Any]) -> LazyTensor:
    """A tensor as an entry of a record: read from its device when the record is."""

    def read() -> Any:
        # Read-only, for on NumPy it is the tensor's own memory; and what loads it may share it.
        array = np.asarray(tensor._host(path)).view()  # pyright: ignore[reportPrivateUsage]
        array.flags.writeable = False
        return array

    ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
    backend, engine = ops.backend, engine_of(ops.backend)
    in_shards = (engine.partitions or backend.has_slices) and tensor.device.sharding is not None
    shards = partial(backend.shards, tensor.primitive) if in_shards else None
    dtype = canonical(backend.host_dtype(ops.kind), path)
    return LazyTensor(ops.shape(tensor.primitive), dtype, dtype, read, path, engine.recast, shards=shards)


def read_onto(tensor: LazyTensor, kind: type[Kind], device: Device) -> Any:
    """An array of a record's tensor on a device; if that is sharded, only the parts of this process are read."""
    backend = device.backend
    if device.sharding is None:
        return backend.from_host(tensor.read(), kind, device)
    return backend.from_shards(tensor.shape, kind, device, tensor.read_part)


def into_record(module: Module) -> Record:
    """See `Module.into_record`."""
    structure = module.structure()
    entries: dict[str, Any] = {}
    if structure.children or structure.unsaved:
        return _with_children(module)
    for path, param in structure.named():
        entries[path] = _entry(path, param)
    return Record(entries, {"module": type(module).__name__}, aliases=structure.aliases)


def _entry(path: str, param: Param) -> TensorEntry:
    value = param.val()
    if value._ops.backend.is_traced(value.primitive):  # pyright: ignore[reportPrivateUsage]
        raise _traced(path, param)
    return TensorEntry(lazy(path, value), param.id, param.full_precision)


def _with_children(module: Module) -> Record:
    structure = module.structure()
    entries: dict[str, Any] = {}
    metadata, aliases = {"module": type(module).__name__}, dict[str, str]()
    children = iter([*structure.children, None])
    child = next(children)
    for number, (path, names) in enumerate([*_own_names(structure).items(), ("", [])]):
        while child is not None and (not path or child.before <= number):
            record = record_of(child)
            entries |= {f"{child.path}.{one}": record[one] for one in record}
            metadata |= {f"{child.path}.{key}": text for key, text in record.metadata.items()}
            aliases |= {f"{child.path}.{one}": f"{child.path}.{name}" for one, name in record.aliases.items()}
            child = next(children)
        if names:
            entries[names[0]] = _entry(names[0], structure.params[number])
            aliases |= dict.fromkeys(names[1:], names[0])
    return Record(entries, metadata, aliases=aliases)


def _own_names(structure: Structure) -> dict[str, list[str]]:
    """For the path of every parameter, its paths outside of what is not saved, and of what saves itself."""
    names: dict[str, list[str]] = {path: [path] for path in structure.paths}
    for alias, path in structure.aliases.items():
        names[path].append(alias)
    places = [*structure.unsaved, *[place for child in structure.children for place in (child.path, *child.others)]]
    return {path: outside(every, places) for path, every in names.items()}


def _traced(path: str, param: Param) -> ModuleError:
    if engine_of(param.backend).is_leaked(param.leaf):
        return leaked_tracer(path)
    return ModuleError(
        f"`{path}` has no value that could be saved while a program is being traced; save the module outside"
    )


class _Place(NamedTuple):
    """A parameter, and its properties, which are found only once because many tensors are small."""

    path: str
    param: Param
    shape: tuple[int, ...]
    device: Device
    ops: Ops
    dtype: np.dtype[Any]
    """The dtype of the value in host memory."""
    nbytes: int
    """The bytes of the value in host memory."""


def _place_of(path: str, param: Param) -> _Place:
    known = param._deferred or param  # pyright: ignore[reportPrivateUsage]
    shape, device = known.shape, known.device
    ops, dtype = _elements(device.backend, known.kind)
    return _Place(path, param, shape, device, ops, dtype, math.prod(shape) * dtype.itemsize)


@lru_cache(maxsize=256)
def _elements(backend: Backend, kind: type[Kind]) -> tuple[Ops, np.dtype[Any]]:
    return ops_of(backend, kind), backend.host_dtype(kind)


def report(module: Module, record: Record, **options: Unpack[LoadOptions]) -> LoadReport:
    """See `Module.load_report`."""
    return _compared(module, record, options).report


class _Compared(NamedTuple):
    places: list[_Place]
    report: LoadReport
    record: Record
    """The entries that belong to no child, under their names after `remap`."""
    matches: dict[str, str]
    """Path of a parameter -> path in that record."""
    children: list[Prepared[object]]
    """The functions that load the children that load themselves."""
    cause: Exception | None = None


def _compared(module: Module, record: Record, options: LoadOptions) -> _Compared:
    if not isinstance(record, Record):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RecordError(
            f"expected a Record, got {type(record).__name__}; a file is loaded with module.load(path) or "
            "phlox.record.load(path), and arrays by name make a record with phlox.record.Record(arrays)"
        )
    structure = module.structure()
    if structure.children or structure.unsaved:
        return _compared_with_children(structure, record, options)
    places = list(map(_place_of, structure.paths, structure.params))
    found = match(_expected(places), record, aliases=structure.aliases, **options)
    return _Compared(places, found, record, found.matches, [])


def _expected(places: list[_Place]) -> Any:
    return {place.path: (place.shape, place.ops.kind.name, place.dtype) for place in places}


def _compared_with_children(structure: Structure, record: Record, options: LoadOptions) -> _Compared:
    children = structure.children
    if record.positional and children:
        raise refuse_positional(children)
    strict, remap = options.get("strict", True), options.get("remap")
    view = Renamed(record, {}, [], []) if remap is None else rename(record, remap)
    named = list(zip(_own_names(structure).values(), structure.params, strict=True))
    places = [_place_of(names[0], param) for names, param in named if names]
    aliases = {alias: names[0] for names, _ in named for alias in names[1:]}
    rest = without(view.record, children) if children else view.record
    meant = meant_paths(
        [*[place.path for place in places], *aliases],
        children,
        view.record,
        options.get("include"),
        options.get("exclude"),
    )
    include = None if meant is None else outside(meant, [child.path for child in children])
    found = match(_expected(places), rest, strict=strict, aliases=aliases, include=include)
    made = prepare_children(children, view.record, strict, meant)
    origin = {new: old for new, old in view.origin.items() if new != old}
    whole = replace(
        made.add_to(found),
        remapped={old: new for new, old in origin.items()},
        ignored={**found.ignored, **made.ignored, **dict.fromkeys(view.dropped, DROPPED)},
    )
    whole = replace(whole, matches={path: origin.get(name, name) for path, name in whole.matches.items()})
    return _Compared(places, whole, rest, found.matches, made.loads, made.cause)


def load_from(module: Module, source: Record | PathLike | Readable, **options: Unpack[LoadOptions]) -> LoadReport:
    """See `Module.load`."""
    if isinstance(source, Record):
        return prepare(module, source, **options)()
    try:
        return prepare(module, load(source), **options)()
    except RecordError as error:
        name = str(Path(source)) if is_path(source) else ""
        if str(error).startswith(name):
            raise
        raise RecordError(f"{name}: {error}") from error


def prepare(module: Module, record: Record, **options: Unpack[LoadOptions]) -> Prepared[LoadReport]:
    """Check everything that can fail, and return the function that loads.

    New values are created now for parameters without a value, if they cost no memory (views of a mapped file), and if
    all of them are small. In a large module with values, the others are only checked, to the last element. They are
    created one by one as the old ones are released, so loading needs no more than one extra tensor. This cannot be
    undone, so Ctrl-C waits until it is done.
    """
    compared = _compared(module, record, options)
    try:
        compared.report.raise_if_failed(type(module).__name__)
    except RecordError as error:
        raise error from compared.cause
    load = _prepare_params(module, compared)
    if not compared.children:
        return load

    def load_all() -> LoadReport:
        for child in compared.children:
            child()
        return load()

    def undo() -> None:
        for one in (load, *reversed(compared.children)):
            one.undo()

    can_be_undone = all(one.can_be_undone for one in (load, *compared.children))
    return Prepared(load_all, (lambda: undo) if can_be_undone else None)


def _prepare_params(module: Module, compared: _Compared) -> Prepared[LoadReport]:
    all_places, found, record, matches = compared[:4]
    places = [place for place in all_places if place.path in matches]
    held, aliases = record._entries, record.aliases  # pyright: ignore[reportPrivateUsage]
    names = [matches[place.path] for place in places]
    entries = [cast("TensorEntry", held[aliases.get(name, name)]) for name in names]
    at_once = sum([place.nbytes for place in places]) <= AT_ONCE or (
        sum([place.nbytes for place in places if place.param.is_initialized]) <= AT_ONCE
    )
    make = _made if at_once else _made_or_checked
    pairs = list(zip(places, entries, strict=True))
    sizes = [_bytes_cast(place) if entry.tensor.dtype != place.dtype else 0 for place, entry in pairs]
    if any(sizes):
        values = _cast(places, entries, sizes, make, at_once=at_once)
    else:
        values = [make(place, entry) for place, entry in pairs]
    ids = _ids(module, places, entries)
    fill = partial(_fill, places, entries, values, ids, found)
    if not at_once and any(value is None for value in values):  # what is released one by one cannot be taken back
        return Prepared(fill, None)
    return Prepared(fill, partial(undo_of, [place.param for place in places]))


def _bytes_cast(place: _Place) -> int:
    """The bytes to cast, unless the engine casts on its own threads."""
    return 0 if engine_of(place.ops.backend).casts_on_all_cores() else place.nbytes


def _cast(
    places: list[_Place],
    entries: list[TensorEntry],
    sizes: list[int],
    make: Callable[[_Place, TensorEntry], Tensor[Any, Any, Any] | None],
    *,
    at_once: bool,
) -> list[Tensor[Any, Any, Any] | None]:
    """The results of `make` for all, on several threads if some must be cast; mapping the others takes no time."""
    new = sizes if at_once else [n for n, place in zip(sizes, places, strict=True) if not place.param.is_initialized]
    arena = Arena(new if any(new) else ())

    def new_value(i: int) -> Tensor[Any, Any, Any] | None:
        if not sizes[i] or (not at_once and places[i].param.is_initialized):
            return make(places[i], entries[i])
        with arena.used():
            return make(places[i], entries[i])

    return parallel_map(new_value, sizes, _WORTH, large=LARGE)


def _ids(module: Module, places: list[_Place], entries: list[TensorEntry]) -> list[ParamId]:
    """The new ids of the parameters: those of the record, but each only once."""
    loaded = {id(place.param) for place in places}
    taken = {param.id for param in module.params() if id(param) not in loaded}
    theirs = {entry.id for entry in entries}
    ids: list[ParamId] = []
    for place, entry in zip(places, entries, strict=True):
        if entry.id is not None and entry.id not in taken:
            new = ParamId(entry.id)
        else:
            own = place.param.id
            new = own if own not in theirs and own not in taken else new_id()
        taken.add(new)
        ids.append(new)
    return ids


def _fill(
    places: list[_Place],
    entries: list[TensorEntry],
    values: list[Tensor[Any, Any, Any] | None],
    ids: list[ParamId],
    found: LoadReport,
) -> LoadReport:
    done = 0
    backends = {place.device.backend for place in places}
    is_tracing = any([backend.compiles and backend.is_tracing() for backend in backends])  # noqa: C419
    try:
        for place, entry, value, new in zip(places, entries, values, ids, strict=True):
            made = _made(place, entry) if value is None else value
            if is_tracing:
                place.param.set(made)
                place.param.set_id(new)
            else:
                place.param.load(made, new)
            done += 1
    except RecordError as error:
        if all(value is not None for value in values) or not done:
            raise
        raise RecordError(
            f"the record has changed since it was checked, a moment ago: {error}. Of the module, the first {done} of "
            f"{len(places)} parameters are now the record's, the others as they were; load a record that is whole"
        ) from error
    return found.as_done()


def _made(place: _Place, entry: TensorEntry) -> Tensor[Any, Any, Any]:
    """The value of a parameter, read from its entry."""
    ops, device = place.ops, place.device
    try:
        if device.sharding is not None:
            return wrap(ops, _in_shards(place, entry))
        array = entry.tensor.read()
        try:
            made = device.backend.from_host(array, ops.kind, device)
        except PhloxError as error:
            raise RecordError(f"{place.path}: {error}") from error
        if made is not array:
            ops.backend.await_array(made)  # or many copies would be on the way at once
        elif array.flags.writeable and entry.tensor.dtype == entry.tensor.source_dtype:
            made = array.copy()  # it may be held elsewhere, and written to
    except Exception as error:
        what = f"loading {place.path}, {ops.kind.__name__} of shape {place.shape},"
        found = out_of_memory(what, ops.backend, error)
        if found is None:
            raise
        raise found from error
    return wrap(ops, made)


def _in_shards(place: _Place, entry: TensorEntry) -> Any:
    try:
        return read_onto(entry.tensor, place.ops.kind, place.device)
    except PhloxError as error:
        raise RecordError(f"{place.path}: {error}") from error


def _made_or_checked(place: _Place, entry: TensorEntry) -> Tensor[Any, Any, Any] | None:
    """The value of a parameter without a value; for others the result of `_checked`."""
    return _checked(place, entry) if place.param.is_initialized else _made(place, entry)


def _checked(place: _Place, entry: TensorEntry) -> Tensor[Any, Any, Any] | None:
    """Read the whole entry, as a check; returns the value of `_made` if keeping it costs nothing, else None."""
    if place.device.sharding is not None:  # a shard is small
        return _made(place, entry)
    for block in entry.tensor.blocks():
        if block.dtype == place.dtype:
            return _made(place, entry) if _is_mapped(block) and _keeps_arrays(place) else None
        count = PORTION // block.itemsize
        for start in range(0, block.size, count):
            try:
                place.device.backend.from_host(block[start : start + count], place.ops.kind, place.device)
            except PhloxError as error:
                raise RecordError(f"{place.path}: {error}") from error
    return None


def _keeps_arrays(place: _Place) -> bool:
    """Does its backend use a host array without a copy?"""
    probe = np.zeros(1, place.dtype)
    return place.device.backend.from_host(probe, place.ops.kind, place.device) is probe


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)
