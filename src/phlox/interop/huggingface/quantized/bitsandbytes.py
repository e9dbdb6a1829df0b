"""bitsandbytes: nf4 and fp4 in blocks that run on from row to row, and integers of 8 bits with a scale for each row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend.contract.nn.packed import CODINGS, pack
from phlox.interop.huggingface.quantized.matrix import Entries, Host, Matrix, Stored, byte_words, floats
from phlox.interop.huggingface.settings import Settings
from phlox.record import LazyTensor

STATE = "weight.quant_state.bitsandbytes__"
NAMES = (
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    f"{STATE}nf4", f"{STATE}fp4", "SCB", "weight_format",
)  # fmt: skip
"""The entries of a quantized layer, besides `weight`."""
_HARMLESS = frozenset({
    "load_in_4bit", "load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
    "bnb_4bit_quant_storage", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules",
    "llm_int8_threshold",
})  # fmt: skip
"""What the entries of each layer say themselves, and how products are computed from these weights."""
_LEAST_NESTED = 4
"""Nested scales are kept if so many share one: of fewer, floats are smaller."""


class BitsAndBytes:
    """Layers whose entries say by themselves how they are stored."""

    def __init__(self, settings: Settings) -> None:
        settings.check_all_read(_HARMLESS)

    def find(self, layers: Mapping[str, Entries]) -> dict[str, Entries]:
        """The quantized layers among those that have some of the entries."""
        return {name: entries for name, entries in layers.items() if any(part in entries for part in NAMES)}

    def stored(self, entries: Entries) -> Stored:
        """The weight of one layer."""
        if "SCB" in entries:
            weight = entries.matrix("weight", "int8")
            scale = entries.take("SCB", "float32", weight.shape[:1])
            if "weight_format" in entries and entries.take("weight_format", "uint8", (), (1,)).read().any():
                raise entries.error("weight_format", "must be 0, for rows in order; save the model again")
            rows, columns = weight.shape
            return Stored((rows, columns), partial(_of_8_bits, weight, scale))
        kind = next((kind for kind in ("nf4", "fp4") if STATE + kind in entries), "nf4")
        state = _state(entries, STATE + kind)
        rows, columns = map(int, state["shape"])
        block = int(state["blocksize"])
        weight = entries.take("weight", ("uint8", "float"))
        if weight.nbytes != -(-rows * columns // 2):
            raise entries.error(
                "weight", f"has {weight.nbytes} bytes, and a matrix {(rows, columns)} takes half of one each"
            )
        levels = entries.take("weight.quant_map", "float32", (16,)).read()
        if not np.array_equal(levels, CODINGS[kind].levels):
            raise entries.error("weight.quant_map", f"has other levels than those of {kind}")
        blocks = -(-rows * columns // block)
        nested = "weight.nested_absmax" in entries
        scale = entries.take("weight.absmax", "uint8" if nested else "float32", (blocks,))
        group = math.gcd(columns, block)  # a block may end within a row
        nesting: _Nesting | None = None
        if nested:
            outer = state["nested_blocksize"]
            nesting = _Nesting(
                entries.take("weight.nested_absmax", "float32", (-(-blocks // outer),)),
                entries.take("weight.nested_quant_map", "float32", (256,)),
                outer,
                math.gcd(columns, outer * block) // group,
                state["nested_offset"],
            )

        def matrix() -> Matrix:
            first = np.arange(0, rows * columns, group).reshape(rows, columns // group)
            numbers = first // block
            own = scale.read()
            scales = own[numbers] if nesting is None else nesting.scales(own, numbers)
            return Matrix(_words(weight, rows, columns), kind, columns, scales)

        return Stored((rows, columns), matrix)


class _Nesting(NamedTuple):
    """Scales of 8 bits: levels times scales of blocks of them, plus an offset."""

    scale: LazyTensor
    levels: LazyTensor
    block: int
    shared: int
    """How many of them in a row have the same scale."""
    offset: float

    def scales(self, codes: Host, numbers: Host) -> Host | Matrix:
        """The scales of groups, of which these are the numbers."""
        levels, own, scales = self.levels.read(), codes[numbers], self.scale.read()[numbers // self.block]
        if self.shared < _LEAST_NESTED or not np.array_equal(levels, CODINGS["dynamic8"].levels):
            return levels[own] * scales + np.float32(self.offset)
        scales = np.ascontiguousarray(scales[:, :: self.shared])
        return Matrix(pack(own, 8), "dynamic8", own.shape[1], scales, np.full_like(scales, self.offset))


def _of_8_bits(weight: LazyTensor, scale: LazyTensor) -> Matrix:
    return Matrix(byte_words(weight.read()), "int8", weight.shape[1], floats(scale)[:, None] / np.float32(127.0))


def _state(entries: Entries, name: str) -> dict[str, Any]:
    """The numbers that are in an entry as JSON, checked."""
    text = entries.take(name, "uint8").read().tobytes()
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise entries.error(name, "is no JSON object")
    known = cast("dict[str, Any]", state)
    shape, sizes = known.get("shape"), [known.get("blocksize"), known.get("nested_blocksize", 256)]
    if not (
        isinstance(shape, list)
        and len(cast("list[Any]", shape)) == 2
        and all(type(size) is int and 0 < size < 2**40 for size in (*cast("list[Any]", shape), *sizes))
        and isinstance(known.get("nested_offset", 0.0), (int, float))
    ):
        raise entries.error(name, f"must have the shape of a matrix and the sizes of blocks, found {text[:200]!r}")
    return {"nested_blocksize": 256, "nested_offset": 0.0, **known}


def _words(weight: LazyTensor, rows: int, columns: int) -> Host:
    """The first code of a byte is in its higher half there, and a row begins where the last one ended."""
    codes = weight.read().reshape(-1).view(np.uint8)
    if columns % 2 == 0:
        swapped = codes << 4
        swapped |= codes >> 4
        return byte_words(swapped.reshape(rows, columns // 2))
    codes = np.stack([codes >> 4, codes & 15], 1).reshape(-1)[: rows * columns]
    return pack(codes.reshape(rows, columns), 4)
