"""PyTorch state dicts: loading them into Phlox modules, and writing them, with PyTorch's names and layouts.

A module is traversed, and each of its layers has rules for PyTorch's names (`phlox.interop.pytorch.layers`). So modules
of the same structure can exchange weights. PyTorch need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from phlox import record as records
from phlox.errors import RecordError
from phlox.host.torch_tensors import is_torch, plain
from phlox.interop.adapter import Adapter
from phlox.interop.pytorch.layers import rules_of
from phlox.interop.pytorch.parametrized import remedy, with_parametrized
from phlox.module import Module
from phlox.module.records import LoadOptions
from phlox.record import FULL, LazyTensor, LoadReport, PrecisionLike, Record, SafetensorsRecorder, TensorEntry
from phlox.record.dtypes import DType, canonical
from phlox.record.formats.pytorch.reader import CONSTANTS
from phlox.record.formats.reader import PathLike, Readable, Stream, is_path
from phlox.record.loading.renaming import renamed
from phlox.record.names import nearest

State = Record | Mapping[str, Any]
"""A record, or the result of `state_dict()` of a PyTorch module: tensors or arrays by name."""

_SHOWN = 6
_PICKLES = (".pt", ".pth", ".bin", ".ckpt")


def adapter(module: Module) -> Adapter:
    """The adapter between PyTorch state dicts and records of this module.

    >>> from phlox import nn
    >>> adapter(nn.Sequential([nn.Linear(2, 3), nn.LayerNorm(3)])).rules[2].theirs[0].text
    '1.weight'
    """
    return Adapter(rules_of(module))


def from_state_dict(state: State, module: Module, *, prefix: str = "") -> Record:
    """A state dict as a record for this module, with our names and layouts. No tensor is read or copied.

    Weights that PyTorch computes by weight norm, spectral norm or a pruning mask have the computed value. Entries that
    the module does not have keep their names, so that `Module.load_record` reports them.

    Args:
        state: a record, or tensors or arrays by name.
        module: a module with the structure of the PyTorch module.
        prefix: a prefix of all PyTorch names, such as "model" in "model.0.weight".

    Raises RecordError for tensors whose shapes do not fit their layer, for a prefix that no name has, and for entries
    with Phlox's own names, whose layout could only be guessed.

    >>> import numpy as np
    >>> from phlox import nn
    >>> from_state_dict({"0.weight": np.ones((3, 2)), "0.bias": np.ones(3)}, nn.Sequential([nn.Linear(2, 3)]))
    Record: 2 entries, 72 B of tensors
      path             type     shape or value  bytes
      layers.0.weight  float64  (2, 3)           48 B
      layers.0.bias    float64  (3,)             24 B
    """
    return _read(_record_of(state, prefix), module, adapter(module))


def to_state_dict(module: Module) -> Record:
    """The parameters of a module with the names and layouts of a PyTorch module of the same structure, lazily.

    A tied parameter appears under each of its names, as PyTorch expects. After saving it as safetensors, load it with
    `torch_module.load_state_dict(safetensors.torch.load_file(path))`.

    >>> from phlox import nn
    >>> to_state_dict(nn.Sequential([nn.Linear(2, 3)])).paths()
    ['0.weight', '0.bias']
    """
    state = adapter(module).write(module.into_record())
    entries = {path: TensorEntry(_entry(state, path).tensor) for path in (*state, *state.aliases)}
    return Record(entries, {"format": "pt"})  # other readers of safetensors require it


def load(module: Module, path: PathLike | Readable, *, prefix: str = "", **options: Unpack[LoadOptions]) -> LoadReport:
    """Load a file of PyTorch weights into a module; see `load_state_dict`.

    `path` may be a safetensors file, a file of `torch.save(module.state_dict(), path)` or `torch.jit.save`, an index of
    shards or their folder; or the content, as bytes or an open binary file. Nothing in it is executed.
    """
    record = records.load(path)
    try:
        return load_state_dict(module, record, prefix=prefix, **options)
    except RecordError as error:
        location = str(Path(path)) if is_path(path) else ""
        raise error if str(error).startswith(location) else RecordError(f"{location}: {error}") from error


def load_state_dict(module: Module, state: State, *, prefix: str = "", **options: Unpack[LoadOptions]) -> LoadReport:
    """Load a PyTorch state dict into a module of the same structure, and return a report.

    Args:
        module: the module to load into; it does not change if this raises.
        state: a record, or tensors or arrays by name.
        prefix: a prefix of all PyTorch names.
        options: those of `Module.load_record`. `include` and `exclude` use our names. `remap` applies to PyTorch's
            names, before anything else.

    Raises RecordError with all mismatches, by our names and PyTorch's.

    >>> import numpy as np
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(2, 3), nn.Relu(), nn.LayerNorm(3, bias=False)])
    >>> state = {"0.weight": np.ones((3, 2)), "0.bias": np.ones(3), "2.weight": np.ones(3)}
    >>> load_state_dict(model, state).ok
    True
    """
    source = _record_of(state, prefix)
    remap = options.pop("remap", None)
    if remap is not None:
        source = renamed(source, remap)
    between = adapter(module)
    record = _read(source, module, between)
    report = module.load_report(record, **options)
    if not report.ok:
        replace(report, hint=_hint(report, between, source)).raise_if_failed(type(module).__name__)
    module.load_record(record, **options)
    return replace(report, done=True)


def save(module: Module, path: PathLike | Stream, precision: PrecisionLike = FULL) -> Path | Stream:
    """Save the result of `to_state_dict` as safetensors; returns the path of the file, or the open file.

    Load it in PyTorch with `torch_module.load_state_dict(safetensors.torch.load_file(path))`.
    """
    if is_path(path) and Path(path).name.endswith(_PICKLES):
        raise RecordError(
            f"{path}: Phlox writes no files that may contain code; use the suffix .safetensors, and load it in PyTorch "
            "with load_state_dict(safetensors.torch.load_file(path))"
        )
    return SafetensorsRecorder(precision).save(to_state_dict(module), path)


def _read(source: Record, module: Module, between: Adapter) -> Record:
    if source.positional:
        raise RecordError("a positional record has no names, which a state dict needs")
    ours = {pattern.text: rule for rule in between.rules for pattern in rule.ours}
    names = {pattern.text for rule in between.rules for pattern in rule.theirs}
    if doubtful := [path for path in source if path in ours and path not in names]:
        path = doubtful[0]
        named = ", ".join(pattern.text for pattern in ours[path].theirs)
        raise RecordError(
            f"{path}: this is a Phlox name, for {named} in PyTorch, so its layout can only be guessed. If Phlox wrote "
            "the file, load it with load_record; if all PyTorch names have a prefix, give prefix=...; if the names "
            "differ, give remap"
        )
    if source.metadata.get("format") == "torchscript":  # TorchScript code has constants of its own
        source = renamed(source, lambda path: None if path.startswith(f"{CONSTANTS}.") and path not in names else path)
    return with_parametrized(between, source).read(source, strict=False)


def _record_of(state: State, prefix: str) -> Record:
    record = state if isinstance(state, Record) else _record_of_values(state)
    if not prefix:
        return record
    below = record.select(prefix)
    if not len(below) and not below.unreadable:
        folders = dict.fromkeys(path[:end] for path in record for end in range(len(path)) if path[end] == ".")
        near = nearest(prefix, folders)
        meant = f"; did you mean {near!r}?" if near else ""
        raise RecordError(f"nothing in the state dict is below {prefix!r}{meant}")
    return below


def _record_of_values(state: Mapping[str, Any]) -> Record:
    """The values as a record; values that a record cannot contain are unreadable in it, as in a file."""
    entries: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for path, value in state.items():
        try:
            entries[path] = Record({path: _lazy(value, path)})[path]
        except RecordError as error:
            unreadable[str(path)] = str(error).removeprefix(f"{path}: ")
    return Record(entries, unreadable=unreadable)


def _lazy(value: Any, path: str) -> Any:
    """The entry of a record for `value`."""
    if not is_torch(value):
        return value
    try:
        value = plain(value)
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None
    dtype = canonical(str(value.dtype).removeprefix("torch."), path)

    def read() -> Any:
        try:
            return _numbers(value.cpu(), dtype)
        except RuntimeError as error:  # a tensor within torch.func's transformations, for example
            raise RecordError(f"{path}: PyTorch gives no numbers of this tensor: {error}") from error

    return LazyTensor.from_function(tuple(value.shape), dtype, read, path)


def _numbers(tensor: Any, dtype: DType) -> Any:
    if dtype.kind != "V" and dtype.itemsize > 1:
        return tensor.numpy()
    # NumPy cannot receive the dtypes of `ml_dtypes` directly, so their bits are passed as integers.
    empty = tensor.new_empty(0)
    bits = tensor.contiguous().view(empty.short().dtype if dtype.itemsize == 2 else empty.byte().dtype)
    return bits.numpy().view(dtype)


def _entry(record: Record, path: str) -> TensorEntry:
    entry = record[path]
    assert isinstance(entry, TensorEntry)
    return entry


def _hint(report: LoadReport, between: Adapter, source: Record) -> str | None:
    """PyTorch's names for the problems, and their probable cause."""
    names = {pattern.text: rule for rule in between.rules for pattern in rule.ours}
    paths = dict.fromkeys([*(problem.path for problem in (*report.misshapen, *report.wrong_kind)), *report.missing])
    lines: list[str] = []
    expected = dict.fromkeys(pattern.text for rule in between.rules for pattern in rule.theirs)
    if (prefix := _prefix(expected, source)) is not None:
        lines.append(f"All names in the state dict have the prefix {prefix!r}: give prefix={prefix!r}.")
    else:
        lines += filter(None, (report.hint, remedy(source)))
        near = {path: nearest(path, expected) for path in report.unexpected[:_SHOWN]}
        lines += [f"Did you mean {it!r} with {path!r}?" for path, it in near.items() if it and it not in source]
    if shown := [path for path in paths if path in names]:
        each = [f"{path} is {_listed(names[path].theirs)}" for path in shown[:_SHOWN]]
        others = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        lines.append(f"In PyTorch's names: {', '.join(each)}{others}.")
    return "\n".join(lines) or None


def _listed(patterns: Iterable[Any]) -> str:
    return " with ".join(pattern.text for pattern in patterns)


def _prefix(expected: Iterable[str], source: Record) -> str | None:
    required = [path for path in expected if not path.endswith("num_batches_tracked")]
    if not required:
        return None
    for path in source:
        prefix = path.removesuffix("." + required[0])
        if prefix != path and all(f"{prefix}.{other}" in source for other in required):
            return prefix
    return None
