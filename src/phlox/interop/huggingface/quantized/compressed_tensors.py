"""compressed-tensors, the format of LLM Compressor and vLLM: integers of 4 and 8 bits, and f8_e4m3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend.contract.nn.packed import pack, unpacked_codes
from phlox.errors import ConfigError
from phlox.interop.huggingface.quantized.matrix import (
    SIGN_BITS,
    Entries,
    Host,
    Matrix,
    Stored,
    byte_words,
    floats,
    zero_offsets,
)
from phlox.interop.huggingface.settings import Settings

NAMES = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
"""The entries of a quantized layer, besides `weight`."""
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mixed-precision")
_STRATEGIES = ("tensor", "channel", "group")
_HARMLESS = frozenset(
    {"version", "quantization_status", "global_compression_ratio", "ignore", "run_compressed", "sparsity_config"}
)
_HARMLESS_OF_WEIGHTS = frozenset({"observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype"})
"""How the weights were found: an order of columns that matters is in `weight_g_idx`."""


class Scheme(NamedTuple):
    """How the weights of some layers are stored."""

    bits: int
    floats: bool
    """Whether levels are f8_e4m3."""
    strategy: str
    group: int | None
    symmetric: bool


class CompressedTensors:
    """The layers that a config names, by their schemes."""

    def __init__(self, settings: Settings) -> None:
        check_format(settings)
        for key in ("kv_cache_scheme", "moe_sparsity_config"):
            settings.only(key, None, "only weights can be quantized; save the model without it")
        settings.only("transform_config", {}, "weights would have to be transformed; save the model without it")
        sparsity = settings.table("sparsity_config") or Settings({})
        sparsity.only("format", "dense", "weights would have to be filled with zeros; save the model without it")
        groups = _table(settings, "config_groups")
        self.schemes: list[tuple[list[str], Scheme]] = []
        for name in groups.data:
            group = _table(groups, name)
            self.schemes.append((_targets(group), _scheme(group)))
        settings.check_all_read(_HARMLESS | _HARMLESS_OF_WEIGHTS)

    def find(self, layers: Mapping[str, Entries]) -> dict[str, Entries]:
        """The quantized layers among those that have some of the entries."""
        return {name: entries for name, entries in layers.items() if any(part in entries for part in NAMES)}

    def stored(self, entries: Entries) -> Stored:
        """The weight of one layer."""
        scheme = self._scheme_of(entries)
        if "weight_packed" in entries:
            shape = entries.take("weight_shape", ("int64", "int32"), (2,)).read()
            rows, columns = int(shape[0]), int(shape[1])
            if min(rows, columns) < 1 or scheme.floats:
                raise entries.error("weight_shape", f"is {(rows, columns)}, and does not fit the scheme {scheme}")
            words = entries.take("weight_packed", "int32", (rows, -(-columns * scheme.bits // 32)))
            read = partial(_packed_words, words, scheme.bits)
        else:
            if scheme.bits != 8:
                raise entries.error("weight_packed", f"is missing, and config.json says {scheme.bits} bits")
            words = entries.matrix("weight", "float8_e4m3fn" if scheme.floats else "int8")
            rows, columns = words.shape
            read = partial(_plain_words, words)
        groups = 1
        if scheme.strategy == "group":
            size = scheme.group or columns
            if size < 1 or columns % size:
                raise entries.error("weight_scale", f"has groups of {size}, which do not divide {columns} columns")
            groups = columns // size
        shapes = [(rows, groups), (rows,)] if groups == 1 else [(rows, groups)]
        shapes = [(1,), (), (1, 1)] if scheme.strategy == "tensor" else shapes
        scale = entries.take("weight_scale", "float", *shapes)
        zero, are_packed = None, "weight_packed" in entries and scheme.strategy != "tensor"
        if not scheme.symmetric:
            zero = (
                entries.take("weight_zero_point", "int32", (-(-rows * scheme.bits // 32), groups))
                if are_packed
                else entries.take("weight_zero_point", ("int8", "int32", "int64"), *shapes)
            )
        elif "weight_zero_point" in entries and entries.take("weight_zero_point", _INTEGERS).read().any():
            raise entries.error("weight_zero_point", "is not zero, and config.json says that the scheme is symmetric")
        if "weight_g_idx" in entries:
            order = entries.take("weight_g_idx", ("int32", "int64"), (columns,)).read()
            if not (np.array_equal(order, np.arange(columns) // (columns // groups)) or (order == -1).all()):
                raise entries.error(
                    "weight_g_idx", f"gives groups of columns that are not next to each other; {_AGAIN}"
                )

        def matrix() -> Matrix:
            scales = np.broadcast_to(floats(scale).reshape(-1, groups), (rows, groups))
            offsets = None
            if zero is not None:
                zeros = _unpacked_zeros(zero.read(), scheme.bits, rows) if are_packed else zero.read()
                offsets = zero_offsets(np.broadcast_to(zeros.reshape(-1, groups), (rows, groups)), scales)
            coding = "e4m3" if scheme.floats else f"int{scheme.bits}"
            return Matrix(read(), coding, columns, scales, offsets)

        return Stored((rows, columns), matrix)

    def _scheme_of(self, entries: Entries) -> Scheme:
        # The name of the layer before a pattern, a pattern before the class, as the package does.
        for fits in (_is_name, _is_pattern, _is_class):
            for targets, scheme in self.schemes:
                if any(fits(target, entries.layer) for target in targets):
                    return scheme
        raise entries.error("weight_scale", "is there, but no config group in config.json has this layer as a target")


_AGAIN = "quantize the model again without act-order by groups"
_INTEGERS = ("int8", "int32", "int64")


def check_format(settings: Settings) -> None:
    """`ConfigError` for a layout of files that is not read."""
    name = settings.text("format", "pack-quantized")
    if name not in _FORMATS:
        raise ConfigError(
            f"{settings.location}: the format {name[:100]!r} of compressed-tensors is not supported; these are: "
            f"{', '.join(_FORMATS)}"
        )


def _table(settings: Settings, key: str) -> Settings:
    table = settings.table(key)
    if table is None:
        raise ConfigError(f"{settings.location}: {key} is missing")
    return table


def _targets(group: Settings) -> list[str]:
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(x, str) for x in cast("list[Any]", targets)):
        raise ConfigError(f"{group.location}: targets must be a list of names")
    names = cast("list[str]", targets)
    for name in names:
        try:
            re.compile(name.removeprefix("re:"))
        except re.error as error:
            raise ConfigError(f"{group.location}: the target {name[:100]!r} is no pattern: {error}") from None
    return names


def _scheme(group: Settings) -> Scheme:
    check_format(group)
    for key in ("input_activations", "output_activations"):
        group.only(key, None, "inputs of layers would be rounded; quantize weights alone")
    weights = _table(group, "weights")
    bits, kind = weights.whole("num_bits", 8), weights.text("type", "int")
    if (bits, kind) not in ((4, "int"), (8, "int"), (8, "float")):
        raise ConfigError(f"{weights.location}: {kind} of {bits} bits is not supported; int of 4 or 8, float of 8")
    size = weights.whole("group_size", None)
    strategy = weights.text("strategy", "tensor" if size is None else "channel" if size == -1 else "group")
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"{weights.location}: the strategy {strategy[:100]!r} is not supported; these are: {', '.join(_STRATEGIES)}"
        )
    weights.only("dynamic", False, "scales would depend on the input")
    weights.only("block_structure", None, "scales would be of blocks")
    return Scheme(bits, kind == "float", strategy, size, weights.flag("symmetric", True))


def _is_name(target: str, layer: str) -> bool:
    return target == layer


def _is_pattern(target: str, layer: str) -> bool:
    return target.startswith("re:") and re.match(target[3:], layer) is not None


def _is_class(target: str, layer: str) -> bool:
    return target == "Linear"


def _packed_words(tensor: Any, bits: int) -> Host:
    """Codes of 8 bits begin at 0 for -128; ours are two's complement."""
    words = tensor.read()
    return words if bits == 4 else words ^ SIGN_BITS


def _plain_words(tensor: Any) -> Host:
    return byte_words(tensor.read())


def _unpacked_zeros(words: Host, bits: int, rows: int) -> Host:
    """Zero points that are packed along the rows, from -2^(bits - 1) on."""
    codes = unpacked_codes(np.ascontiguousarray(words.T), bits)[:, :rows].T
    return codes.astype(np.int32) - (1 << (bits - 1))


def packed_zeros(zeros: Host, bits: int) -> Host:
    """The inverse of reading: zero points [rows, groups], from 0 on, packed along the rows."""
    return np.ascontiguousarray(pack(np.ascontiguousarray(zeros.T), bits).T)
