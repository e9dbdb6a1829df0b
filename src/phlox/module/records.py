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
"""Bytes: if the parameters of a module take no more, all new values are created before any old one is released."""

_WORTH = 1 << 23
"""The least number of bytes whose cast is worth a thread."""


class LoadOptions(TypedDict, total=False):
    """The options of `Module.load_record`."""

    strict: bool
    include: Patterns | None
    exclude: Patterns | None
    remap: Remap | None


def lazy(path: str, tensor: Tensor[Any, Any, Any]) -> LazyTensor:
    """A tensor as an entry of a record: read from its device when the record is."""

    def read() -> Any:
        # Read-only: on NumPy it is the tensor's own memory, and a loader may share it.
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
    """An array of a record's tensor on a device; if the device is sharded, only the parts of this process are read."""
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
    for number, (own_path, names) in enumerate([*_own_names(structure).items(), ("", [])]):
        while child is not None and (not own_path or child.before <= number):
            record = record_of(child)
            entries |= {f"{child.path}.{path}": record[path] for path in record}
            metadata |= {f"{child.path}.{key}": text for key, text in record.metadata.items()}
            aliases |= {f"{child.path}.{path}": f"{child.path}.{name}" for path, name in record.aliases.items()}
            child = next(children)
        if names:
            entries[names[0]] = _entry(names[0], structure.params[number])
            aliases |= dict.fromkeys(names[1:], names[0])
    return Record(entries, metadata, aliases=aliases)


def _own_names(structure: Structure) -> dict[str, list[str]]:
    """For the path of every parameter, its paths outside of unsaved modules, and of children that save themselves."""
    names: dict[str, list[str]] = {path: [path] for path in structure.paths}
    for alias, path in structure.aliases.items():
        names[path].append(alias)
    excluded = [*structure.unsaved, *[path for child in structure.children for path in (child.path, *child.others)]]
    return {path: outside(all_names, excluded) for path, all_names in names.items()}


def _traced(path: str, param: Param) -> ModuleError:
    if engine_of(param.backend).is_leaked(param.leaf):
        return leaked_tracer(path)
    return ModuleError(
        f"`{path}` has no value while a program is being traced; save the module outside of the traced function"
    )


class _Target(NamedTuple):
    """A parameter to load, and its properties, which are read only once because many tensors are small."""

    path: str
    param: Param
    shape: tuple[int, ...]
    device: Device
    ops: Ops
    dtype: np.dtype[Any]
    """The dtype of the value in host memory."""
    nbytes: int
    """The bytes of the value in host memory."""


def _target_of(path: str, param: Param) -> _Target:
    source = param._deferred or param  # pyright: ignore[reportPrivateUsage]
    shape, device = source.shape, source.device
    ops, dtype = _elements(device.backend, source.kind)
    return _Target(path, param, shape, device, ops, dtype, math.prod(shape) * dtype.itemsize)


@lru_cache(maxsize=256)
def _elements(backend: Backend, kind: type[Kind]) -> tuple[Ops, np.dtype[Any]]:
    return ops_of(backend, kind), backend.host_dtype(kind)


def report(module: Module, record: Record, **options: Unpack[LoadOptions]) -> LoadReport:
    """See `Module.load_report`."""
    return _compare(module, record, options).report


class _Comparison(NamedTuple):
    targets: list[_Target]
    report: LoadReport
    record: Record
    """The entries that belong to no child, with their names after `remap`."""
    matches: dict[str, str]
    """Path of a parameter -> path in that record."""
    children: list[Prepared[object]]
    """The functions that load the children that load themselves."""
    cause: Exception | None = None


def _compare(module: Module, record: Record, options: LoadOptions) -> _Comparison:
    if not isinstance(record, Record):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RecordError(
            f"expected a Record, got {type(record).__name__}; load a file with module.load(path) or "
            "phlox.record.load(path), and make a record of arrays by name with phlox.record.Record(arrays)"
        )
    structure = module.structure()
    if structure.children or structure.unsaved:
        return _compare_with_children(structure, record, options)
    targets = list(map(_target_of, structure.paths, structure.params))
    result = match(_expected(targets), record, aliases=structure.aliases, **options)
    return _Comparison(targets, result, record, result.matches, [])


def _expected(targets: list[_Target]) -> Any:
    return {target.path: (target.shape, target.ops.kind.name, target.dtype) for target in targets}


def _compare_with_children(structure: Structure, record: Record, options: LoadOptions) -> _Comparison:
    children = structure.children
    if record.positional and children:
        raise refuse_positional(children)
    strict, remap = options.get("strict", True), options.get("remap")
    view = Renamed(record, {}, [], []) if remap is None else rename(record, remap)
    named = list(zip(_own_names(structure).values(), structure.params, strict=True))
    targets = [_target_of(names[0], param) for names, param in named if names]
    aliases = {alias: names[0] for names, _ in named for alias in names[1:]}
    own_record = without(view.record, children) if children else view.record
    meant = meant_paths(
        [*[target.path for target in targets], *aliases],
        children,
        view.record,
        options.get("include"),
        options.get("exclude"),
    )
    include = None if meant is None else outside(meant, [child.path for child in children])
    result = match(_expected(targets), own_record, strict=strict, aliases=aliases, include=include)
    prepared = prepare_children(children, view.record, strict, meant)
    origin = {new: old for new, old in view.origin.items() if new != old}
    whole = replace(
        prepared.add_to(result),
        remapped={old: new for new, old in origin.items()},
        ignored={**result.ignored, **prepared.ignored, **dict.fromkeys(view.dropped, DROPPED)},
    )
    whole = replace(whole, matches={path: origin.get(name, name) for path, name in whole.matches.items()})
    return _Comparison(targets, whole, own_record, result.matches, prepared.loads, prepared.cause)


_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")


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
        hint = "\n  PyTorch has its own names and layouts: phlox.interop.pytorch.load(model, path)." * name.endswith(
            _OF_TORCH
        )
        raise RecordError(f"{name}: {error}{hint}") from error


def prepare(module: Module, record: Record, **options: Unpack[LoadOptions]) -> Prepared[LoadReport]:
    """Check everything that can fail, and return a function that loads the record.

    New values are created now for parameters without a value, for views of a mapped file (they cost no memory), and
    for small modules. In a large module with values, all other new values are only checked, to the last element. They
    are created one by one as the old ones are released, so loading needs no more than one extra tensor. This cannot be
    undone, so Ctrl-C waits until it is done.
    """
    comparison = _compare(module, record, options)
    try:
        comparison.report.raise_if_failed(type(module).__name__)
    except RecordError as error:
        raise error from comparison.cause
    load = _prepare_params(module, comparison)
    if not comparison.children:
        return load

    def load_all() -> LoadReport:
        for child in comparison.children:
            child()
        return load()

    def undo() -> None:
        for step in (load, *reversed(comparison.children)):
            step.undo()

    can_be_undone = all(step.can_be_undone for step in (load, *comparison.children))
    return Prepared(load_all, (lambda: undo) if can_be_undone else None)


def _prepare_params(module: Module, comparison: _Comparison) -> Prepared[LoadReport]:
    all_targets, report, record, matches = comparison[:4]
    targets = [target for target in all_targets if target.path in matches]
    stored, aliases = record._entries, record.aliases  # pyright: ignore[reportPrivateUsage]
    names = [matches[target.path] for target in targets]
    entries = [cast("TensorEntry", stored[aliases.get(name, name)]) for name in names]
    at_once = sum([target.nbytes for target in targets]) <= AT_ONCE or (
        sum([target.nbytes for target in targets if target.param.is_initialized]) <= AT_ONCE
    )
    make = _read if at_once else _read_or_check
    pairs = list(zip(targets, entries, strict=True))
    sizes = [_bytes_cast(target) if entry.tensor.dtype != target.dtype else 0 for target, entry in pairs]
    if any(sizes):
        values = _cast(targets, entries, sizes, make, at_once=at_once)
    else:
        values = [make(target, entry) for target, entry in pairs]
    ids = _ids(module, targets, entries)
    fill = partial(_fill, targets, entries, values, ids, report)
    if not at_once and any(value is None for value in values):  # values that are released one by one cannot be restored
        return Prepared(fill, None)
    return Prepared(fill, partial(undo_of, [target.param for target in targets]))


def _bytes_cast(target: _Target) -> int:
    """The bytes to cast, unless the engine casts on its own threads."""
    return 0 if engine_of(target.ops.backend).casts_on_all_cores() else target.nbytes


def _cast(
    targets: list[_Target],
    entries: list[TensorEntry],
    sizes: list[int],
    make: Callable[[_Target, TensorEntry], Tensor[Any, Any, Any] | None],
    *,
    at_once: bool,
) -> list[Tensor[Any, Any, Any] | None]:
    """The results of `make` for all, on several threads if some must be cast; mapping a file takes no time."""
    new = sizes if at_once else [n for n, target in zip(sizes, targets, strict=True) if not target.param.is_initialized]
    arena = Arena(new if any(new) else ())

    def new_value(i: int) -> Tensor[Any, Any, Any] | None:
        if not sizes[i] or (not at_once and targets[i].param.is_initialized):
            return make(targets[i], entries[i])
        with arena.used():
            return make(targets[i], entries[i])

    return parallel_map(new_value, sizes, _WORTH, large=LARGE)


def _ids(module: Module, targets: list[_Target], entries: list[TensorEntry]) -> list[ParamId]:
    """The new ids of the parameters: the ids in the record, but each only once."""
    loaded = {id(target.param) for target in targets}
    used_ids = {param.id for param in module.params() if id(param) not in loaded}
    record_ids = {entry.id for entry in entries}
    ids: list[ParamId] = []
    for target, entry in zip(targets, entries, strict=True):
        if entry.id is not None and entry.id not in used_ids:
            new = ParamId(entry.id)
        else:
            own = target.param.id
            new = own if own not in record_ids and own not in used_ids else new_id()
        used_ids.add(new)
        ids.append(new)
    return ids


def _fill(
    targets: list[_Target],
    entries: list[TensorEntry],
    values: list[Tensor[Any, Any, Any] | None],
    ids: list[ParamId],
    report: LoadReport,
) -> LoadReport:
    done = 0
    backends = {target.device.backend for target in targets}
    is_tracing = any([backend.compiles and backend.is_tracing() for backend in backends])  # noqa: C419
    try:
        for target, entry, value, new in zip(targets, entries, values, ids, strict=True):
            new_value = _read(target, entry) if value is None else value
            if is_tracing:
                target.param.set(new_value)
                target.param.set_id(new)
            else:
                target.param.load(new_value, new)
            done += 1
    except RecordError as error:
        if all(value is not None for value in values) or not done:
            raise
        raise RecordError(
            f"the record has changed since it was checked, a moment ago: {error}. The first {done} of "
            f"{len(targets)} parameters have the record's values, the others did not change; load an intact record"
        ) from error
    return report.as_done()


def _read(target: _Target, entry: TensorEntry) -> Tensor[Any, Any, Any]:
    """The value of a parameter, read from its entry."""
    ops, device = target.ops, target.device
    try:
        if device.sharding is not None:
            return wrap(ops, _read_shards(target, entry))
        array = entry.tensor.read()
        try:
            value = device.backend.from_host(array, ops.kind, device)
        except PhloxError as error:
            raise RecordError(f"{target.path}: {error}") from error
        if value is not array:
            ops.backend.await_array(value)  # otherwise many copies would be in progress at once
        elif array.flags.writeable and entry.tensor.dtype == entry.tensor.source_dtype:
            value = array.copy()  # others may hold the array, and write to it
    except Exception as error:
        action = f"loading {target.path}, {ops.kind.__name__} of shape {target.shape},"
        memory_error = out_of_memory(action, ops.backend, error)
        if memory_error is None:
            raise
        raise memory_error from error
    return wrap(ops, value)


def _read_shards(target: _Target, entry: TensorEntry) -> Any:
    try:
        return read_onto(entry.tensor, target.ops.kind, target.device)
    except PhloxError as error:
        raise RecordError(f"{target.path}: {error}") from error


def _read_or_check(target: _Target, entry: TensorEntry) -> Tensor[Any, Any, Any] | None:
    """The new value for a parameter without a value; for other parameters the result of `_check_entry`."""
    return _check_entry(target, entry) if target.param.is_initialized else _read(target, entry)


def _check_entry(target: _Target, entry: TensorEntry) -> Tensor[Any, Any, Any] | None:
    """Read the whole entry, as a check; returns the value of `_read` if keeping it costs nothing, else None."""
    if target.device.sharding is not None:  # a shard is small
        return _read(target, entry)
    for block in entry.tensor.blocks():
        if block.dtype == target.dtype:
            return _read(target, entry) if _is_mapped(block) and _keeps_arrays(target) else None
        count = PORTION // block.itemsize
        for start in range(0, block.size, count):
            try:
                target.device.backend.from_host(block[start : start + count], target.ops.kind, target.device)
            except PhloxError as error:
                raise RecordError(f"{target.path}: {error}") from error
    return None


def _keeps_arrays(target: _Target) -> bool:
    """Does the parameter's backend use a host array without a copy?"""
    probe = np.zeros(1, target.dtype)
    return target.device.backend.from_host(probe, target.ops.kind, target.device) is probe


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)
