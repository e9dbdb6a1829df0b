"""From float32 to the block types of GGUF.

The types of one scale for each block give the bytes of `gguf.quants.quantize`. For the others, scales are searched that
make the squared error of a block small; what simple rounding gives is one of the candidates, so the error is never
larger than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from phlox.errors import RecordError
from phlox.record.codings import CODINGS
from phlox.record.dtypes import Array
from phlox.record.formats.gguf.blocks import BlockType, Fields


def quantized(kind: BlockType, blocks: Array) -> Fields:
    """Blocks of float32, [blocks, elements], as the fields of a type; RecordError for what it cannot hold."""
    if not np.isfinite(blocks).all():
        raise RecordError(f"it has the value {blocks[~np.isfinite(blocks)][0]}, which {kind.name} cannot hold")
    with np.errstate(all="ignore"):  # scales of tiny numbers are zero
        fields = _FUNCTIONS[kind.name](kind, blocks)
    for halves in (fields.scale, fields.minimum):
        if halves is not None and halves.shape[1] == 2 and not np.isfinite(halves.view(np.float16)).all():
            raise RecordError(f"it has values up to {abs(blocks).max():.6g}, too large for the scales of {kind.name}")
    return fields


def _half(numbers: Array) -> Array:
    """The bytes of half-precision numbers, [blocks, 2]."""
    return numbers.astype("<f2").reshape(-1, 1).view(np.uint8)


def _rounded(halves: Array) -> Array:
    """The numbers that these bytes are, float32 [blocks, 1]."""
    return halves.view("<f2").astype(np.float32)


def _inverse(scale: Array) -> Array:
    """1 / scale; 0 for scales so small that it is infinite."""
    inverse = 1 / scale
    return _where(np.isfinite(inverse), inverse, np.zeros_like(inverse))


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


def _peak(blocks: Array) -> Array:
    """The number of the largest magnitude in each block, with its sign."""
    return np.take_along_axis(blocks, abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)


# --- the types that the package `gguf` writes: the same operations in the same order, for the same bits


def _signed(kind: BlockType, blocks: Array) -> Fields:
    half = (kind.top + 1) // 2
    scale = _peak(blocks) / -half
    codes = np.trunc(blocks * _inverse(scale) + np.float32(half + 0.5)).clip(0, kind.top).astype(np.uint8)
    return Fields(codes, _half(scale))


def _unsigned(kind: BlockType, blocks: Array) -> Fields:
    low = blocks.min(axis=-1, keepdims=True)
    scale = (blocks.max(axis=-1, keepdims=True) - low) / kind.top
    codes = np.trunc((blocks - low) * _inverse(scale) + np.float32(0.5)).clip(0, kind.top).astype(np.uint8)
    return Fields(codes, _half(scale), _half(low))


def _bytes(kind: BlockType, blocks: Array) -> Fields:
    scale = abs(blocks).max(axis=1, keepdims=True) / 127
    numbers = blocks * _inverse(scale)
    size = abs(numbers)
    away = np.sign(numbers) * (np.floor(size) + np.floor(2 * (size - np.floor(size))))  # halves go away from zero
    return Fields(away.astype(np.int8).view(np.uint8), _half(scale))


def _microscaled(kind: BlockType, blocks: Array) -> Fields:
    peak = abs(blocks).max(axis=-1, keepdims=True)
    exponent = np.where(peak > 0, np.floor(np.log2(peak)) - 2 + 127, 0).clip(0, 254).astype(np.uint8)
    numbers = CODINGS["e8m0"].levels[exponent][..., None] * CODINGS[kind.coding].levels
    return Fields(abs(numbers - blocks[..., None]).argmin(axis=-1).astype(np.uint8), exponent)


# --- the types whose scales are searched

_STEPS = 20


def _k_affine(kind: BlockType, blocks: Array) -> Fields:
    """Q4_K and Q5_K: 8 groups, each with a scale and a minimum of 6 bits."""
    groups = blocks.reshape(len(blocks), 8, kind.block // 8)
    return _better(blocks, [_affine_fields(kind, groups, *pair) for pair in _affine_scales(groups, kind.top)])


def _affine_scales(groups: Array, top: int) -> Iterable[tuple[Array, Array]]:
    """Scales and minima, [blocks, groups, 1]: of simple rounding, and with the least error among the candidates."""
    low, high = groups.min(axis=-1, keepdims=True).clip(max=0), groups.max(axis=-1, keepdims=True)
    span, count = high - low, groups.shape[-1]
    best, best_low = span / top, low
    yield best, low
    least = _error(groups, np.rint((groups - low) * _inverse(best)).clip(0, top) * best + low)
    total = groups.sum(axis=-1, keepdims=True)
    for step in range(_STEPS + 1):
        codes = np.rint((groups - low) * _inverse(span) * (top - 1 + 2 * step / _STEPS)).clip(0, top)
        # The scale and the minimum of least squares for these codes.
        ones, squares = codes.sum(axis=-1, keepdims=True), (codes * codes).sum(axis=-1, keepdims=True)
        products = (codes * groups).sum(axis=-1, keepdims=True)
        determinant = _inverse(count * squares - ones * ones)
        scale = (count * products - ones * total) * determinant
        offset = (squares * total - ones * products) * determinant
        scale, offset = _where(offset > 0, products * _inverse(squares), scale), np.minimum(offset, 0)
        error = _error(groups, codes * scale + offset)
        is_better = (error < least) & (scale > 0)
        best, best_low = _where(is_better, scale, best), _where(is_better, offset, best_low)
        least = _where(is_better, error, least)
    yield best, best_low


def _affine_fields(kind: BlockType, groups: Array, scales: Array, low: Array) -> tuple[Fields, Array]:
    """The fields with these scales, rounded to 6 bits, and the numbers that they stand for."""

    def six_bits(numbers: Array) -> tuple[Array, Array, Array]:
        halves = _half(numbers.max(axis=1) / 63)
        unit = _rounded(halves)[..., None]
        small = np.rint(numbers * _inverse(unit)).clip(0, 63)
        return halves, small[..., 0].astype(np.uint8), unit * small

    scale, small, steps = six_bits(scales)
    minimum, minima, lows = six_bits(-low)
    codes = np.rint((groups + lows) * _inverse(steps)).clip(0, kind.top)
    flat = codes.reshape(len(groups), kind.block).astype(np.uint8)
    return Fields(flat, scale, minimum, small, minima), codes * steps - lows


def _k_signed(kind: BlockType, blocks: Array) -> Fields:
    """Q6_K: 16 groups, each with a scale of 8 bits."""
    half, groups = kind.bias, blocks.reshape(len(blocks), 16, kind.block // 16)
    candidates = _signed_scales(groups, lambda numbers: np.rint(numbers).clip(-half, half - 1), -half)
    return _better(blocks, [_signed_fields(kind, groups, scales) for scales in candidates])


def _signed_fields(kind: BlockType, groups: Array, scales: Array) -> tuple[Fields, Array]:
    halves = _half(_peak(scales[..., 0]) / -128)
    unit = _rounded(halves)[..., None]
    small = np.rint(scales * _inverse(unit)).clip(-128, 127)
    codes = np.rint(groups * _inverse(unit * small)).clip(-kind.bias, kind.bias - 1)
    raw = (codes + kind.bias).reshape(len(groups), kind.block).astype(np.uint8)
    return Fields(raw, halves, scales=small[..., 0].astype(np.int8).view(np.uint8)), codes * small * unit


def _non_linear(kind: BlockType, blocks: Array) -> Fields:
    """IQ4_NL: levels that are denser around zero."""
    levels = CODINGS[kind.coding].levels
    # All numbers above one half and up to the next have the same nearest level, since levels are whole.
    halves = np.searchsorted((levels[1:] + levels[:-1]) / 2, np.arange(-256, 257) / 2).astype(np.uint8)

    def codes(numbers: Array) -> Array:
        return halves[np.ceil(2 * numbers).clip(-256, 256).astype(np.int16) + 256]

    def fields(scale: Array) -> tuple[Fields, Array]:
        stored = _half(scale)
        chosen = codes(blocks * _inverse(_rounded(stored)))
        return Fields(chosen, stored), levels[chosen] * _rounded(stored)

    scales = _signed_scales(blocks[:, None], lambda numbers: levels[codes(numbers)], levels[0])
    return _better(blocks, [fields(scale[:, 0]) for scale in scales])


def _signed_scales(groups: Array, nearest: Callable[[Array], Array], extreme: float) -> Iterable[Array]:
    """Scales, [blocks, groups, 1]: where the peak has the `extreme` level, and those with the least error."""
    peak = _peak(groups)
    best = peak / extreme
    yield best
    least = _error(groups, nearest(groups * _inverse(best)) * best)
    for step in range(_STEPS + 1):
        numbers = nearest(groups * _inverse(peak) * (extreme * (0.9 + 0.2 * step / _STEPS)))
        scale = (numbers * groups).sum(axis=-1, keepdims=True) * _inverse(
            (numbers * numbers).sum(axis=-1, keepdims=True)
        )
        error = _error(groups, numbers * scale)
        best, least = _where(error < least, scale, best), np.minimum(error, least)
    yield best


def _error(groups: Array, numbers: Array) -> Array:
    return np.square(groups - numbers).sum(axis=-1, keepdims=True)


def _better(blocks: Array, candidates: Iterable[tuple[Fields, Array]]) -> Fields:
    """For each block, the fields whose numbers are nearer."""
    (first, numbers), (second, others) = candidates
    errors = [_error(blocks, each.reshape(blocks.shape)) for each in (numbers, others)]
    is_better = errors[1] < errors[0]
    parts: list[Any] = [
        None if a is None or b is None else _where(is_better, b, a) for a, b in zip(first, second, strict=True)
    ]
    return Fields(*parts)


_FUNCTIONS: dict[str, Callable[[BlockType, Array], Fields]] = {
    "Q4_0": _signed, "Q4_1": _unsigned, "Q5_0": _signed, "Q5_1": _unsigned, "Q8_0": _bytes, "MXFP4": _microscaled,
    "Q4_K": _k_affine, "Q5_K": _k_affine, "Q6_K": _k_signed, "IQ4_NL": _non_linear,
}  # fmt: skip
