"""Models in GGUF files: `load`, `save`, and what else is in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phlox.backend import DeviceLike
from phlox.errors import ConfigError, RecordError
from phlox.interop.gguf.family import Architecture, Keys
from phlox.interop.gguf.gpt2 import GgufGpt2
from phlox.interop.gguf.llama import GgufLlama
from phlox.interop.gguf.packed import with_packed, written
from phlox.interop.huggingface.folder import check_weights, family_and_config
from phlox.interop.huggingface.settings import Settings
from phlox.module import Module
from phlox.record import GgufRecorder, Record
from phlox.record.formats.gguf.keys import KeyValue, as_metadata, from_metadata
from phlox.record.formats.gguf.recorder import TypeLike

ARCHITECTURES: tuple[Architecture, ...] = (GgufGpt2(), GgufLlama())

_ARCHITECTURE = "general.architecture"


def load(path: str | os.PathLike[str], *, device: DeviceLike | None = None, packed: bool = True) -> Any:
    """Load the model in a GGUF file, on `device`. No initializer runs.

    Quantized weights are kept as the file has them: they take as little memory as there, and are not trained, see
    `phlox.quantize`. With `packed=False` they are dequantized.

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
        return with_packed(model, record, adapter) if packed else model.load_record(adapter.read(record))
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
        type: what the matrices are written as, see `GgufRecorder`. Vectors and positions stay float32. With None,
            packed weights are written as they are, if GGUF has a type for them, and all others as float32.
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
    record = written(model, architecture.adapter(config))

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
