"""Models in GGUF files: `load`, `save`, and what else is in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phlox.backend import DeviceLike
from phlox.errors import ConfigError, RecordError
from phlox.interop.adapter import Adapter
from phlox.interop.gguf.family import Architecture, Keys
from phlox.interop.gguf.gpt2 import GgufGpt2
from phlox.interop.gguf.llama import GgufLlama
from phlox.interop.huggingface.folder import check_weights, family_and_config
from phlox.interop.huggingface.settings import Settings
from phlox.module import Module
from phlox.record import GgufRecorder, LazyTensor, PackedArrays, Record
from phlox.record.formats.gguf.keys import KeyValue, as_metadata, from_metadata
from phlox.record.formats.gguf.recorder import TypeLike
from phlox.tensor import tensor

ARCHITECTURES: tuple[Architecture, ...] = (GgufGpt2(), GgufLlama())

_ARCHITECTURE = "general.architecture"


def load(path: str | os.PathLike[str], *, device: DeviceLike | None = None, packed: bool = False) -> Any:
    """Load the model in a GGUF file, on `device`. No initializer runs.

    Quantized weights are dequantized, or, if `packed`, kept as the file has them: then they take as little memory as
    there, and are not trained, see `phlox.quantize`.

    The architectures `gpt2` and `llama` are supported. The precision is that of the device's backend. The tokenizer is
    not part of the model; `read_metadata` has its keys.

    Raises `ConfigError` for an architecture or a key that is not supported. Raises `RecordError` for a file that is
    damaged, or one of several parts, and for weights that are missing or do not fit, by their names in the file.

    >>> import tempfile
    >>> from phlox.models import LlamaConfig
    >>> model = LlamaConfig(vocabulary=10, context=8, n_layers=1, d_model=8, n_heads=2).init("numpy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = save(model, Path(folder) / "model.gguf", type="F16")
    ...     load(written, device="numpy").config.n_heads
    2
    """
    record = GgufRecorder().load(path)
    try:
        architecture, config = _config_of(record, str(path))
        if architecture.family.n_layers(config) > len(record):  # check before so many layers are created
            raise RecordError(
                f"it has {len(record)} tensors, too few for {architecture.family.n_layers(config)} layers"
            )
        adapter = architecture.adapter(config)
        model = config.init(device)
        check_weights(model, adapter, record, Path(path))
        return _with_packed(model, record, adapter) if packed else model.load_record(adapter.read(record))
    except RecordError as error:
        if str(path) in str(error):
            raise
        raise RecordError(f"{path}: {error}") from error


def save(
    model: Module,
    path: str | os.PathLike[str],
    *,
    type: TypeLike = "Q8_0",
    metadata: Mapping[str, KeyValue] | None = None,
) -> Path:
    """Save the model in a GGUF file, which llama.cpp reads if `metadata` has a tokenizer; returns the path.

    Args:
        model: a `Gpt` or `Llama`.
        path: the file, which is replaced completely or not at all.
        type: what the matrices are written as, see `GgufRecorder`. Vectors and positions stay float32.
        metadata: further keys, such as the tokenizer's: `read_metadata` of another file. Keys that the model determines
            are taken from it.

    Raises `ConfigError` for a model that has no counterpart in GGUF.
    """
    config: Any = getattr(model, "config", None)
    architecture = next((each for each in ARCHITECTURES if isinstance(config, each.family.configs)), None)
    if architecture is None:
        names = ", ".join(kind.__name__ for each in ARCHITECTURES for kind in each.family.configs)
        raise ConfigError(
            f"{model.__class__.__name__} has no counterpart in GGUF; models with these configs have: {names}"
        )
    own = architecture.keys_of(config)
    start = f"{architecture.name}."
    further = {k: v for k, v in (metadata or {}).items() if k != _ARCHITECTURE and not k.startswith(start)}
    values: dict[str, KeyValue] = {_ARCHITECTURE: architecture.name, **own, **further}
    record = architecture.adapter(config).write(model.into_record())

    def chosen(name: str) -> str | None:
        return None if name in architecture.unpacked else type(name) if callable(type) else type

    return GgufRecorder(type=chosen).save(Record(dict(record.tensors), as_metadata(values)), path)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, KeyValue]:
    """All keys of a file with their values: text, lists of text, and scalars and arrays of NumPy, of the file's types.

    >>> import tempfile
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokens = {"tokenizer.ggml.tokens": ["a", "b"]}
    ...     written = save(model, Path(folder) / "model.gguf", metadata=tokens)
    ...     read_metadata(written)["tokenizer.ggml.tokens"]
    ['a', 'b']
    """
    return from_metadata(GgufRecorder().load(path).metadata)


def packed_weights(record: Record, adapter: Adapter) -> Iterator[tuple[str, PackedArrays, int]]:
    """The quantized weights of a file as they are stored, one at a time.

    For each: the path of our parameter, the packed matrix, and the axis of the parameter along which its rows lie.
    Fused matrices are split and rows put into our order, which is exact.
    """
    for name, entry in record.tensors.items():
        whole = entry.tensor
        if whole.packing is None or len(whole.shape) != 2:
            continue
        # The adapter's rules, applied to the numbers of rows, say which rows go where; two columns show a transpose.
        numbers = np.arange(2 * whole.shape[0]).reshape(-1, 2)
        parts = adapter.read(Record({name: LazyTensor.from_array(numbers)})).tensors
        packed = whole.packing.read()
        for path, part in parts.items():
            rows = part.tensor.read()
            axis = int(rows.shape[0] == 2 != rows.shape[1])
            yield path, packed.rows((rows.T if axis else rows)[:, 0] // 2), axis


def _with_packed(model: Module, record: Record, adapter: Adapter) -> Module:
    """The model with the weights of a file, the quantized ones as they are stored."""
    from phlox.module.packed import Packed
    from phlox.module.reparameterization import Sites

    params = dict(model.named_params())
    device = next(iter(params.values())).device

    def parameter(packed: PackedArrays) -> Packed:
        parts: list[Any] = [
            parameter(part) if isinstance(part, PackedArrays) else None if part is None else tensor(part, device=device)
            for part in (packed.scales, packed.offsets)
        ]
        codes: Any = tensor(packed.codes, device=device)
        return Packed(codes, packed.coding, packed.columns, scales=parts[0], offsets=parts[1])

    weights = {
        path: parameter(packed).as_weight(params[path].shape, axis)
        for path, packed, axis in packed_weights(record, adapter)
    }
    return Sites(model).replace(weights).load_record(adapter.read(record), exclude=list(weights))


def _config_of(record: Record, location: str) -> tuple[Architecture, Any]:
    values = from_metadata(record.metadata)
    if str(values.get("split.count", 1)) not in "01":
        raise RecordError("it is one of several parts; join them with llama-gguf-split --merge")
    name, kind = (
        str(values.get(key, default))[:100] for key, default in ((_ARCHITECTURE, ""), ("general.type", "model"))
    )
    architecture = next((each for each in ARCHITECTURES if each.name == name), None)
    if architecture is None or kind != "model":
        names = ", ".join(each.name for each in ARCHITECTURES)
        raise ConfigError(
            f"{location}: a {kind} of the architecture {name!r} is not supported; supported are models of: {names}. "
            "phlox.record.load reads the tensors of any file"
        )
    for path, why in record.unreadable.items():
        raise RecordError(f"{path}: {why}")
    try:
        data = architecture.settings_from(Keys(values, architecture.name, location), record)
        return architecture, family_and_config(Settings(data, location))[1]
    except ConfigError as error:
        if str(error).startswith(location):
            raise
        raise ConfigError(f"{location}: {error}") from error
