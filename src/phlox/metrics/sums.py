"""Sums without rounding errors: in fixed point within a batch, as a value and its error over many batches.

A sum in f32 is wrong from the seventh digit on, and stops growing if an addend is below its last bit. Here the addends
of a batch are split into integers (limbs) relative to the largest addend; integers add up without rounding in any
order. The sums of batches are pairs of a value and its rounding error, which `add` also adds (Knuth, TAOCP 2, 4.2.2,
theorem B; Dekker 1971). This gives 48 bits in f32, on any engine, compiled or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from phlox.backend import Bool, Device, Float, Int
from phlox.errors import RangeError
from phlox.tensor import Tensor, concat, stack, tensor, where, zeros
from phlox.tensor.products import rounded

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


class Sum(NamedTuple):
    """A sum as two Float tensors: the sum is `value + error`, and `value` is the sum rounded to one Float."""

    value: AnyTensor
    error: AnyTensor

    def reshape(self, shape: tuple[int, ...]) -> Sum:
        """The same sums in another shape."""
        return Sum(self.value.reshape(shape), self.error.reshape(shape))


def nothing(shape: tuple[int, ...], device: Device) -> Sum:
    """Sums of no rows: zeros."""
    return Sum(zeros(shape, device=device), zeros(shape, device=device))


def stacked(sums: Sequence[Sum]) -> Sum:
    """Sums of one shape as one, on a new first axis."""
    return Sum(stack([s.value for s in sums]), stack([s.error for s in sums]))


class _Format(NamedTuple):
    """The format of a float dtype."""

    splitter: float
    """The factor that splits a number into two halves of its digits (Veltkamp 1968)."""
    bits: int
    """The number of bits that a sum keeps below its largest addend."""
    exponents: tuple[int, int]
    """The exponents of powers of two that are finite and normal, as are their reciprocals."""


_FORMATS = {"f32": _Format(2.0**12 + 1.0, 50, (-120, 127)), "f64": _Format(2.0**27 + 1.0, 62, (-1000, 1023))}
_CARRY = 29
"""The bits of a sum of limbs; an Int element has 32."""
_CHUNK, _CHUNKS = 2**14, 64
"""More addends than this would leave too few bits for a limb, so they are summed in several parts."""


def is_traced(x: AnyTensor) -> bool:
    """Is a program being traced, in which the values are not known?"""
    return x._ops.backend.is_traced(x.primitive)  # pyright: ignore[reportPrivateUsage]


def two_sum(a: AnyTensor, b: AnyTensor) -> Sum:
    """a + b, and its rounding error."""
    value = a + b
    rounded_b = value - a
    return Sum(value, (a - (value - rounded_b)) + (b - rounded_b))


def add(a: Sum, b: Sum) -> Sum:
    """The sum of two sums."""
    value, lost = two_sum(a.value, b.value)
    return pair(value, lost + (a.error + b.error))


def total(values: AnyTensor, weights: AnyTensor | None = None) -> Sum:
    """The weighted sum of `values` [n, ...] over the first axis.

    Args:
        values: a tensor of any kind; True counts as 1.
        weights: [n, ...], Float factors or a Bool mask; a value that is masked, or has weight 0, may be NaN.

    A value that is not finite makes the sum NaN.

    >>> import phlox as px
    >>> total(px.tensor([1.0, 1e8, 1.0])).error.item()
    2.0
    """
    sums = totals(values, weights=weights)
    return Sum(sums.value[0], sums.error[0])


def totals(*columns: AnyTensor | tuple[AnyTensor, AnyTensor], weights: AnyTensor | None = None) -> Sum:
    """The `total` of each of several columns of one shape, stacked along a new first axis.

    A pair of columns means their product, which is not rounded.

    >>> import phlox as px
    >>> x = px.tensor([1.0, 2.0, 4.0])
    >>> totals(x > 1.0, x, (x, x)).value.tolist()
    [2.0, 7.0, 21.0]
    """
    parts = [_weighted(column, weights) for column in columns]
    if {part.kind for part in parts} == {Bool}:
        return _from_int(stack(parts, axis=1).int().sum(0), parts[0].shape[0])
    floats = [concat(_floats(part), axis=0) if part.kind is Int else part.float() for part in parts]
    longest = max(part.shape[0] for part in floats)
    no_padding = ((0, 0),) * (floats[0].ndim - 1)
    return _limbs(stack([part.pad(((0, longest - part.shape[0]), *no_padding)) for part in floats], axis=1))


def share_of_true(rows: AnyTensor) -> Sum:
    """The number of True, and the number of all: `totals(rows, ones_like(rows))` of a Bool tensor [n] in fewer steps.

    >>> import phlox as px
    >>> share_of_true(px.tensor([True, False, True])).value.tolist()
    [2.0, 3.0]
    """
    return _from_int(rows.expand_dims(1).pad(((0, 0), (0, 1)), True).int().sum(0), rows.shape[0])


def _weighted(column: AnyTensor | tuple[AnyTensor, AnyTensor], weights: AnyTensor | None) -> AnyTensor:
    """The weighted values to sum along the first axis."""
    terms = products(*column) if isinstance(column, tuple) else [column]
    if weights is None:
        return terms[0] if len(terms) == 1 else concat(terms, axis=0)
    weights = weights.broadcast_to(terms[0].shape)
    if weights.kind is Bool:
        zero: Any = 0 if terms[0].kind is Int else 0.0
        return concat([term & weights if term.kind is Bool else where(weights, term, zero) for term in terms], axis=0)
    if terms[0].kind is Bool:
        return where(terms[0], weights, 0.0)
    counts = weights > 0.0  # a value with weight 0 may be NaN
    exact = [where(counts, part, 0.0) for term in terms for part in _floats(term)]
    return concat([product for part in exact for product in products(part, weights)], axis=0)


def bin_totals(indices: AnyTensor, size: int, weights: AnyTensor | None = None) -> Sum:
    """The sum of the weights in each of `size` bins; each index names the bin of its weight.

    Args:
        indices: Int, [n], from 0 to size - 1.
        size: the number of bins.
        weights: [n], Float, or a Bool mask; without them each index counts once.

    >>> import phlox as px
    >>> bin_totals(px.tensor([0, 2, 2]), 3).value.tolist()
    [1.0, 0.0, 2.0]
    """
    device = indices.device
    if weights is None or weights.kind is Bool:
        ones = zeros(indices.shape, kind=Int, device=device) + 1 if weights is None else weights.int()
        return _from_int(zeros((size,), kind=Int, device=device).at[indices].add(ones), indices.shape[0])
    return _limbs(weights, bins=(indices, size))


def products(x: AnyTensor, y: AnyTensor) -> list[AnyTensor]:
    """Float tensors whose sum is `x y`, none of them rounded."""
    return [a * b for a in _halves(x) for b in _halves(y)]


def on_host(sums: Sum) -> np.ndarray[Any, Any]:
    """The sum on the host, in float64."""
    value = np.asarray(sums.value.numpy(), np.float64)
    return np.where(np.isfinite(value), value + np.asarray(sums.error.numpy(), np.float64), value)


def _halves(x: AnyTensor) -> Sequence[AnyTensor]:
    """Two numbers with half the digits each, whose sum is x; a number that is too large for this is not split.

    A number that is not finite becomes NaN, as its sum does, so infinity minus infinity does not occur.
    """
    form = _FORMATS[x.backend.float_element]
    small = x.abs() < 2.0 ** form.exponents[1] / form.splitter
    safe = where(small, x, 0.0)
    scaled = rounded(safe * form.splitter)
    upper = scaled - (scaled - safe)
    return where(small, upper, where(x.isfinite(), x, math.nan)), safe - upper


def _floats(x: AnyTensor) -> list[AnyTensor]:
    """Float tensors whose sum is x, also of integers that one float does not hold."""
    if x.kind is not Int:
        return [x.float()]
    return [(x >> 12).float() * 4096.0, (x & 4095).float()]


def pair(value: AnyTensor, error: AnyTensor) -> Sum:
    """The same sum with an error of less than the last bit of its value."""
    rounded_sum = value + error
    return Sum(rounded_sum, error - (rounded_sum - value))


def _from_int(count: AnyTensor, limit: int) -> Sum:
    """A count of at most `limit` as a sum."""
    if limit.__class__ is int and limit < 2**24:  # one float holds it
        value = count.float()
        return Sum(value, value - value)
    return pair(*_floats(count))


def _limbs(x: AnyTensor, bins: tuple[AnyTensor, int] | None = None) -> Sum:
    """The sum of floats [n, ...] over the first axis; with `bins`, of those [n] of each index."""
    n, row_shape = x.shape[0], x.shape[1:]
    size = row_shape if bins is None else (bins[1],)
    if not n or not math.prod(row_shape):
        return nothing(size, x.device)
    form = _FORMATS[x.backend.float_element]
    chunks = 1 if bins is not None or n <= _CHUNK else _CHUNKS
    bits = min(23, _CARRY - math.ceil(math.log2(-(-n // chunks))))
    if bits < 1:
        raise RangeError(f"a batch of {n} rows is too large to be added up at once; give it in parts")
    largest = x.abs().max(0) if bins is None else x.abs().max()
    scale = _power_above(largest, form.exponents)
    fraction = x / scale
    fraction = where(fraction.isfinite(), fraction, 0.0).expand_dims(0)
    # Rounded to bits, 2 bits, 3 bits, ... after the point; the difference of two neighbours is a limb.
    count = math.ceil(form.bits / bits)
    column = (count, *(1 for _ in x.shape))
    digits = (fraction * _powers(x, [bits * (limb + 1) for limb in range(count)]).reshape(column)).round()
    limbs = concat([digits[:1], digits[1:] - digits[:-1] * 2.0**bits], axis=0).int()
    if bins is not None:
        sums = zeros((count, bins[1]), kind=Int, device=x.device).at[:, bins[0]].add(limbs)
    elif chunks == 1:
        sums = limbs.sum(1)
    else:
        limbs = limbs.pad(((0, 0), (0, -n % chunks), *((0, 0) for _ in row_shape)))
        sums = limbs.reshape((count, chunks, -(-n // chunks), *row_shape)).sum(2)
    terms = [part if chunks == 1 else part.sum(1) for part in (sums >> 12, sums & 4095)]
    unit = _powers(x, [-bits * (limb + 1) for limb in range(count)]).reshape((count, *(1 for _ in size)))
    upper, lower = (term.float() * (unit * factor) for term, factor in zip(terms, (4096.0, 1.0), strict=True))
    # The two-sum of each limb's two parts, and then of the limbs, the uppermost first.
    parts = two_sum(upper, lower)
    value, error = parts.value[0], parts.error.sum(0)
    for limb in range(1, count):
        value, lost = two_sum(value, parts.value[limb])
        error = error + lost
    poison = where(largest.isfinite(), 0.0, math.nan)
    result = pair(value, error)
    return Sum(result.value * scale + poison, result.error * scale)


def _powers(like: AnyTensor, exponents: list[int]) -> AnyTensor:
    return tensor([2.0**exponent for exponent in exponents], device=like.device)


def _power_above(x: AnyTensor, exponents: tuple[int, int]) -> AnyTensor:
    """The least power of two that is at least x, exact on every engine (a logarithm would not be)."""
    powers = 2.0 ** np.arange(exponents[0], exponents[1] + 1, dtype=np.float64)
    table = tensor(powers, kind=Float, device=x.device)
    indices = table.searchsorted(x.reshape((x.size,))).minimum(len(powers) - 1)
    return table.take(indices).reshape(x.shape)
