"""The ways in which weights are stored in few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from phlox.backend import Backend, Int
from phlox.backend.contract.nn.packed import CODINGS
from phlox.errors import ModuleError
from phlox.module import Param
from phlox.module.packed import Packed
from phlox.tensor import Tensor, functional, tensor, where

SchemeName = Literal["int8", "int4", "nf4", "mxfp4", "nvfp4", "f8_e4m3"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix is stored, with a row for each output.

    Args:
        coding: what a code means, see `phlox.functional.unpack`.
        limit: the level that the largest magnitude of a group gets.
        group: how many codes in a row share a scale; None is the whole row.
        offset_coding: the coding of levels from 0 on, of which a group may have its smallest value as an offset.
        scale_coding: how scales are stored; None is as floats.
        searches: whether smaller scales are tried, which clip the largest values, for the least squared error.
    """

    coding: str
    limit: float
    group: int | None = None
    offset_coding: str | None = None
    scale_coding: str | None = None
    searches: bool = False


SCHEMES: dict[str, Scheme] = {
    "int8": Scheme("int8", 127.0, offset_coding="uint8"),
    "int4": Scheme("int4", 7.0, group=64, offset_coding="uint4", searches=True),
    "nf4": Scheme("nf4", 1.0, group=64),
    "mxfp4": Scheme("e2m1", 6.0, group=32, scale_coding="e8m0"),
    "nvfp4": Scheme("e2m1", 6.0, group=16, scale_coding="e4m3"),
    "f8_e4m3": Scheme("e4m3", 448.0),
}
"""OCP's Microscaling Formats 1.0 for mxfp4, NVIDIA's for nvfp4, Dettmers et al. 2023 for nf4."""

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
_E4M3 = 448.0


def scheme_of(name: str, group: int | None, symmetric: bool) -> tuple[Scheme, int | None]:
    """A scheme by name, and its group; `ModuleError` for what there is not."""
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise ModuleError(f"quantize: there is no scheme {name!r}; the schemes are {', '.join(SCHEMES)}")
    if not symmetric and scheme.offset_coding is None:
        raise ModuleError(f"quantize: {name} has no zero points; use int8 or int4 with symmetric=False")
    if group is None:
        return scheme, scheme.group
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModuleError(f"quantize: group must be a count of weights, got {group!r}")
    if scheme.scale_coding is not None and group != scheme.group:
        raise ModuleError(f"quantize: {name} has groups of {scheme.group}, got group={group}")
    return scheme, group


def pack_weight(param: Param, axis: int, scheme: Scheme, group: int | None, symmetric: bool, path: str) -> Packed:
    """A weight in few bits; it continues the parameter."""
    value = param.val().detach()
    if not bool(value.isfinite().all()):
        raise ModuleError(f"{path}: it has values that are NaN or infinite, which have no scale")
    packed = packed_matrix(as_matrix(value, axis), scheme, group, symmetric)
    packed.words.set_id(param.id)
    return packed.as_weight(value.shape, axis)


def as_matrix(value: Tensor, axis: int) -> Tensor:
    """A weight as a matrix with a row for each index along `axis`."""
    rows = value.shape[axis]
    return value.moveaxis(axis, 0).reshape((rows, math.prod(value.shape) // max(rows, 1)))


def packed_matrix(matrix: Tensor, scheme: Scheme, group: int | None, symmetric: bool = True) -> Packed:
    """A matrix with a row for each output, whose columns the group divides, in few bits."""
    rows, columns = matrix.shape
    group = columns if group is None else group
    # Codes are computed at full precision, with the scales as they are stored.
    grouped = matrix.detach().to_full_precision().reshape((rows, columns // group, group))
    scales, zeros = scales_of(grouped, scheme, matrix.backend, symmetric)
    levels = grouped / safe(scales.numbers).expand_dims(-1)
    coding = scheme.coding
    if zeros is not None:
        levels, coding = levels + zeros.expand_dims(-1), scheme.offset_coding or ""
    codes = functional.encode(levels.reshape((rows, columns)), coding)
    return assembled(codes, coding, scales, zeros, matrix.backend)


class Scales(NamedTuple):
    """The scales of groups."""

    numbers: Tensor
    """At full precision [rows, groups]."""
    packed: Packed | None = None
    """As they are stored, if not as numbers."""


def scales_of(grouped: Tensor, scheme: Scheme, backend: Backend, symmetric: bool) -> tuple[Scales, Tensor | None]:
    """The scales of groups [rows, groups, group], which a model on `backend` can hold, and whole zero points."""
    if symmetric:
        return _symmetric_scales(grouped, scheme, backend), None
    low, high = grouped.min(axis=-1).minimum(0.0), grouped.max(axis=-1).maximum(0.0)
    scales = _rounded((high - low) / (2.0 * scheme.limit + 1.0), backend)
    return Scales(scales), (-low / safe(scales)).round()


def assembled(
    codes: Tensor[Any, Any, Int], coding: str, scales: Scales, zeros: Tensor | None, backend: Backend
) -> Packed:
    """The packed matrix, on the backend of the model."""
    words = functional.pack(codes, coding).from_full_precision(backend)
    offsets = None if zeros is None else (-zeros * scales.numbers).from_full_precision(backend)
    stored = scales.packed or scales.numbers.from_full_precision(backend)
    return Packed(words, coding, codes.shape[1], scales=stored, offsets=offsets)


def _symmetric_scales(grouped: Tensor, scheme: Scheme, backend: Backend) -> Scales:
    largest = grouped.abs().max(axis=-1)
    scales = largest / scheme.limit
    if scheme.scale_coding == "e8m0":
        # 2 to the exponent of the largest magnitude, less that of the largest level (4 of e2m1, whose exponent is 2).
        powers = tensor(CODINGS["e8m0"].levels[:-1], device=grouped.device)
        codes = (powers.searchsorted(largest.reshape(largest.size), side="right") - 3).clip(0, 254)
        codes = codes.reshape(largest.shape)
        words = functional.pack(codes, "e8m0").from_full_precision(backend)
        return Scales(powers[codes], Packed(words, "e8m0", largest.shape[1]))
    if scheme.scale_coding == "e4m3":
        whole = safe(_rounded(scales.max() / _E4M3, backend))
        codes = functional.encode(scales / whole, "e4m3")
        numbers = tensor(CODINGS["e4m3"].levels, device=grouped.device)[codes] * whole
        words = functional.pack(codes, "e4m3").from_full_precision(backend)
        stored = whole.reshape((1, 1)).from_full_precision(backend)
        return Scales(numbers, Packed(words, "e4m3", scales.shape[1], scales=stored))
    if scheme.searches:
        scales = scales * _shrinks(grouped / safe(scales).expand_dims(-1))
    return Scales(_rounded(scales, backend))


def _rounded(scales: Tensor, backend: Backend) -> Tensor:
    """Rounded to what the backend holds."""
    return scales.from_full_precision(backend).to_full_precision()


def _shrinks(levels: Tensor) -> Tensor:
    """For each group, the factor of the scale with the least squared error."""
    best = shrink = None
    for factor in _SHRINKS:
        error = ((levels / factor).round().clip(-8.0, 7.0) * factor - levels).square().sum(axis=-1)
        if best is None or shrink is None:
            best, shrink = error, error * 0.0 + factor
        else:
            shrink = where(error < best, factor, shrink)
            best = best.minimum(error)
    assert shrink is not None
    return shrink


def safe(scales: Tensor) -> Tensor:
    """The scales, and 1 in the place of 0."""
    return where(scales == 0.0, 1.0, scales)
