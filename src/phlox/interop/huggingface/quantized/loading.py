"""Loading quantized weights: which there are in a file, and as packed weights in the places of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from phlox.errors import ConfigError, RecordError
from phlox.interop.adapter import Adapter
from phlox.interop.huggingface.quantized import bitsandbytes, compressed_tensors, gptq
from phlox.interop.huggingface.quantized.bitsandbytes import BitsAndBytes
from phlox.interop.huggingface.quantized.compressed_tensors import CompressedTensors
from phlox.interop.huggingface.quantized.gptq import Awq, Gptq
from phlox.interop.huggingface.quantized.matrix import Entries, Host, Stored
from phlox.interop.huggingface.settings import Settings
from phlox.module import Module
from phlox.module.reparameterization import Sites
from phlox.record import LazyTensor, Record, TensorEntry


class Method(Protocol):
    """A way in which quantized weights are in files."""

    def find(self, layers: Mapping[str, Entries]) -> dict[str, Entries]:
        """The quantized layers among those that have some of the entries."""
        ...

    def stored(self, entries: Entries) -> Stored:
        """The weight of one layer."""
        ...


_METHODS: dict[str, Callable[[Settings], Method]] = {
    "compressed-tensors": CompressedTensors,
    "bitsandbytes": BitsAndBytes,
    "gptq": Gptq,
    "awq": Awq,
}
_OLD = {"load_in_4bit", "load_in_8bit"}
"""What configs have that are older than names of methods."""
_NAMES = ("weight", *compressed_tensors.NAMES, *bitsandbytes.NAMES, *gptq.NAMES)


def method_of(settings: Settings) -> Method | None:
    """The method in the settings; `ConfigError` for one that is not supported."""
    own = settings.table("quantization_config")
    if own is None or not own.data:
        return None
    if own.data.get("quant_method") == "mxfp4":  # of gpt-oss, see `mxfp4`
        return None
    name = own.text("quant_method", "bitsandbytes" if own.data.keys() & _OLD else "")
    if name not in _METHODS:
        raise ConfigError(
            f"{own.location}: weights of quant_method={name[:100]!r} cannot be loaded; supported are: "
            f"{', '.join(_METHODS)}; in transformers, model.dequantize() gives weights in floats that can be saved"
        )
    return _METHODS[name](own)


def quantized(record: Record, method: Method) -> tuple[Record, dict[str, Stored]]:
    """The quantized weights, by their names in the model, and the rest of a record.

    `RecordError` names every entry that is missing or does not fit.
    """
    layers: dict[str, dict[str, LazyTensor]] = {}
    for path, entry in record.tensors.items():
        layer, name = _split(path)
        if name:
            layers.setdefault(layer, {})[name] = entry.tensor
    found = method.find({layer: Entries(layer, tensors) for layer, tensors in layers.items()})
    stored: dict[str, Stored] = {}
    problems: list[str] = []
    for layer, entries in found.items():
        try:
            stored[f"{layer}.weight"] = method.stored(entries)
        except RecordError as error:
            problems.append(str(error))
    if problems:
        raise RecordError("\n".join(sorted(problems)))
    used = {f"{layer}.{name}" for layer, entries in found.items() for name in entries}
    rest = {path: record[path] for path in record if path not in used}
    return Record(rest, record.metadata, unreadable=record.unreadable), stored


def _split(path: str) -> tuple[str, str]:
    """The layer and the name of an entry below it; no name for other entries."""
    for name in _NAMES:
        if path.endswith(f".{name}"):
            return path.removesuffix(f".{name}"), name
    return path, ""


def described(stored: Mapping[str, Stored], inputs_first: Callable[[str], bool]) -> dict[str, TensorEntry]:
    """An entry of the shape of each weight in the model of `transformers`, which cannot be read."""
    return {
        name: TensorEntry(LazyTensor.from_function(
            weight.shape[::-1] if inputs_first(name) else weight.shape, "float32", _never(name), name
        ))
        for name, weight in stored.items()
    }  # fmt: skip


def _never(name: str) -> Callable[[], Any]:
    def read() -> Any:
        raise RecordError(f"{name}: a quantized weight cannot be tied to another entry of the file")

    return read


def with_packed(
    model: Module, adapter: Adapter, stored: Mapping[str, Stored], inputs_first: Callable[[str], bool]
) -> Any:
    """The model with packed weights in the places of parameters; one weight at a time is read."""
    sites = Sites(model)
    new: dict[str, Any] = {}
    for name, weight in stored.items():
        numbers = row_numbers(weight.shape[0], inputs_first(name))
        parts = adapter.read(Record({name: LazyTensor.from_array(numbers, name)}), strict=False)
        if not parts.paths() or not all(path in sites.found for path in parts):
            raise RecordError(
                f"{name}: a quantized weight cannot be tied to another entry of the file, nor be that of an expert"
            )
        matrix = weight.read()
        for path in parts:
            rows, axis = rows_in(parts.tensors[path].tensor.read())
            site = sites.found[path]
            new[path] = matrix.rows(rows).packed(site.param.device).as_weight(site.param.shape, axis)
    return sites.replace(new)


def row_numbers(rows: int, transposed: bool, first: int = 0) -> Host:
    """A matrix of two columns that tells where the rows of another one go when it is split, joined or transposed."""
    numbers = np.arange(2 * first, 2 * (first + rows)).reshape(rows, 2)
    return numbers.T if transposed else numbers


def rows_in(numbers: Host) -> tuple[Host, int]:
    """The numbers of the rows, and the axis along which they are."""
    axis = int(numbers.shape[1] != 2 or numbers[0, 1] != numbers[0, 0] + 1)
    return (numbers[0] if axis else numbers[:, 0]) // 2, axis
