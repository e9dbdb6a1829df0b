"""Rules that give the shape and kind of each operation's result, and count its floating-point operations.

A few kinds of rules are enough for most operations: elementwise ones, reductions, and those that keep the shape.
Operations without an entry use the contract's definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.backend.contract.nn.conv import padded_sizes, window_counts
from phlox.backend.contract.required import RandomOps
from phlox.backend.contract.signatures import ELEMENTWISE, SCANS, declared
from phlox.backend.contract.types import Array, Axes, Index, Shape, Widths
from phlox.backend.device import Device
from phlox.backend.kind import KINDS, Bool, Float, Int, Kind
from phlox.backend.tracing.dimension import common_size
from phlox.backend.tracing.slices import slice_size
from phlox.transform.abstract.counting import add_others, add_products

if TYPE_CHECKING:
    from phlox.transform.abstract.decorator import Abstract

Rule: TypeAlias = Callable[..., Any]
"""`(A, *arguments)`: the result on the backend A."""

_TRUTHS = frozenset({
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan", "isinf", "isfinite", "isclose",
    "signbit",
})  # fmt: skip
"""Operations on numbers with a Bool result."""


def kind_of_result(name: str) -> type[Kind]:
    """The kind of the result of an operation."""
    prefix, _, rest = name.partition("_")
    if rest.startswith("into_"):
        return KINDS[rest.removeprefix("into_")]
    return Bool if rest in _TRUTHS else KINDS.get(prefix, Float)


def broadcast(A: Abstract, operands: Sequence[Any]) -> tuple[Shape, Device | None]:
    """The shape that arrays, scalars and None broadcast to, and the device of the first array without a value."""
    found: Shape = ()
    device: Device | None = None
    for x in operands:
        if x is None or isinstance(x, (bool, int, float)):
            continue
        shape = A.shape(x)
        if device is None and type(x) is A.box:
            device = x.device
        if shape == found or not shape:
            continue
        if not found:
            found = shape
            continue
        rank = max(len(shape), len(found))
        pairs = zip((1,) * (rank - len(shape)) + shape, (1,) * (rank - len(found)) + found, strict=True)
        sizes: list[int] = []
        for one, other in pairs:
            if one != other and 1 not in (one, other):
                raise ValueError(f"shapes {found} and {shape} do not broadcast")
            sizes.append(common_size(one, other))
        found = tuple(sizes)
    return found, device


def _elementwise(name: str, count: int) -> Rule:
    kind = kind_of_result(name)
    works = name.startswith(("float_", "gelu")) and not name.startswith("float_into_")

    def rule(A: Abstract, *arguments: Any) -> Array:
        shape, device = broadcast(A, arguments[:count])
        if works:
            add_others(math.prod(shape))
        return A.blank(shape, kind, device)

    return rule


def _where(A: Abstract, condition: Array, chosen: Any, other: Any) -> Array:
    shape, device = broadcast(A, (condition, chosen, other))
    kinds = [A.kind_of(x) for x in (chosen, other) if not isinstance(x, (bool, int, float))]
    if not kinds:
        of_scalars = {bool: Bool, int: Int, float: Float}
        kinds = [of_scalars[type(x)] for x in (chosen, other)]
        kinds.sort(key=[Bool, Int, Float].index, reverse=True)
    return A.blank(shape, kinds[0], device)


def without(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """The shape after a reduction along these axes."""
    if keepdims:
        return tuple([1 if axis in axes else size for axis, size in enumerate(shape)])
    return tuple([size for axis, size in enumerate(shape) if axis not in axes])


def _counted(name: str, rule: Rule) -> Rule:
    """A rule of one operand, of which every element costs an operation if it is a float."""
    if not name.startswith("float_"):
        return rule

    def counted(A: Abstract, x: Array, *options: Any) -> Array:
        add_others(math.prod(x.shape))
        return rule(A, x, *options)

    return counted


def _reduction(kind: type[Kind]) -> Rule:
    def rule(A: Abstract, x: Array, axes: Axes, keepdims: bool) -> Array:
        return A.blank(without(x.shape, axes, keepdims), kind, x.device)

    return rule


def _arg_reduction(A: Abstract, x: Array, axis: int) -> Array:
    return A.blank(without(x.shape, (axis,), False), Int, x.device)


# --- moving elements


def _reshape(A: Abstract, x: Array, shape: Shape) -> Array:
    if -1 in shape:
        rest = -math.prod(shape)
        shape = tuple([math.prod(x.shape) // max(rest, 1) if size == -1 else size for size in shape])
    if math.prod(shape) != math.prod(x.shape):
        raise ValueError(f"cannot reshape {x.shape} into {tuple(shape)}")
    return A.blank(shape, x.kind, x.device)


def _permute_dims(A: Abstract, x: Array, axes: Axes) -> Array:
    return A.blank([x.shape[axis] for axis in axes], x.kind, x.device)


def _broadcast_to(A: Abstract, x: Array, shape: Shape) -> Array:
    have = x.shape
    padded = (1,) * (len(shape) - len(have)) + have
    if len(padded) != len(shape) or any(one not in (1, size) for one, size in zip(padded, shape, strict=True)):
        raise ValueError(f"cannot broadcast {have} to {tuple(shape)}")
    return A.blank(shape, x.kind, x.device)


def _same(A: Abstract, x: Array, *options: Any) -> Array:
    return x


def _concat(A: Abstract, arrays: Sequence[Array], axis: int) -> Array:
    shapes = [A.shape(x) for x in arrays]
    first = shapes[0]
    for shape in shapes:
        if without(shape, (axis,), False) != without(first, (axis,), False):
            raise ValueError(f"shapes {first} and {shape} differ beside axis {axis}")
    blank = next(x for x in arrays if type(x) is A.box)
    return A.blank((*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :]), A.kind_of(blank), blank.device)


def _pad(A: Abstract, x: Array, widths: Widths, value: float) -> Array:
    return A.blank(padded_sizes(x.shape, widths), x.kind, x.device)


def indexed(shape: Shape, index: Index) -> Shape:
    """The shape that a basic index reads."""
    return tuple(
        [slice_size(entry, size) for entry, size in zip(index, shape, strict=True) if isinstance(entry, slice)]
    )


def _index(A: Abstract, x: Array, index: Index) -> Array:
    return A.blank(indexed(x.shape, index), x.kind, x.device)


def _index_set(A: Abstract, x: Array, values: Array, index: Index) -> Array:
    return A.blank(A.shape(x), A.kind_of(x), A.device_of(x))


def _index_adjoint(A: Abstract, g: Array, shape: Shape, index: Index) -> Array:
    return A.blank(shape, Float, g.device)


def _take(A: Abstract, x: Array, indices: Array, axis: int) -> Array:
    shape = A.shape(x)
    if type(indices) is not A.box:
        A.check_indices(indices, shape[axis], from_end=True)
    return A.blank((*shape[:axis], *A.shape(indices), *shape[axis + 1 :]), A.kind_of(x), A.device_of(x))


def _take_along_axis(A: Abstract, x: Array, indices: Array, axis: int) -> Array:
    shape, given = A.shape(x), A.shape(indices)
    others, _ = broadcast(A, (A.blank(without(shape, (axis,), False)), A.blank(without(given, (axis,), False))))
    return A.blank((*others[:axis], given[axis], *others[axis:]), A.kind_of(x), A.device_of(x))


def _take_adjoint(A: Abstract, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    add_others(math.prod(A.shape(g)))
    return A.blank(shape, Float, A.device_of(g))


def _scatter(name: str) -> Rule:
    kind, works = kind_of_result(name), name.startswith("float_")

    def rule(A: Abstract, x: Array, positions: Array, updates: Array, mode: str) -> Array:
        if works and mode != "set":
            add_others(math.prod(A.shape(updates)))
        return A.blank(A.shape(x), kind, A.device_of(x))

    return rule


def _argsort(A: Abstract, x: Array, axis: int, descending: bool) -> Array:
    return A.blank(x.shape, Int, x.device)


# --- products


def _matmul(A: Abstract, x: Array, y: Array) -> Array:
    *before_x, m, k = A.shape(x)
    *before_y, other, n = A.shape(y)
    if other != k:
        raise ValueError(f"shapes {A.shape(x)} and {A.shape(y)} cannot be multiplied")
    batch, _ = broadcast(A, (A.blank(before_x), A.blank(before_y)))
    add_products(2 * math.prod(batch) * m * n * k)
    return A.blank((*batch, m, n), Float, A.device_of(x))


def _conv_flops(counts: Sequence[int], n: int, weight: Shape) -> int:
    return 2 * n * math.prod(counts) * math.prod(weight)


def _conv(
    A: Abstract,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Shape,
    padding: Widths,
    dilation: Shape,
    groups: int,
) -> Array:
    n, _, *sizes = A.shape(x)
    kernel = A.shape(weight)
    counts = window_counts(padded_sizes(tuple(sizes), padding), kernel[2:], stride, dilation)
    add_products(_conv_flops(counts, n, kernel))
    if bias is not None:
        add_others(n * kernel[0] * math.prod(counts))
    return A.blank((n, kernel[0], *counts), Float, A.device_of(x))


def _conv_dx(A: Abstract, g: Array, weight: Array, shape: Shape, *options: Any) -> Array:
    n, _, *counts = A.shape(g)
    add_products(_conv_flops(counts, n, A.shape(weight)))
    return A.blank(shape, Float, A.device_of(g))


def _conv_dw(A: Abstract, x: Array, g: Array, shape: Shape, *options: Any) -> Array:
    n, _, *counts = A.shape(g)
    add_products(_conv_flops(counts, n, shape))
    return A.blank(shape, Float, A.device_of(g))


# --- linear algebra, whose counts are those of the usual algorithms to leading order


def _square(results: int, cubes: float) -> Rule:
    """A function of square matrices: as many results as it says, scalars for 1 and 2, matrices for 0."""

    def rule(A: Abstract, a: Array, *options: Any) -> Any:
        *batch, n, _ = a.shape
        add_others(int(math.prod(batch) * cubes * n**3))
        found = [A.blank(batch if results else a.shape, Float, a.device) for _ in range(max(results, 1))]
        return tuple(found) if results > 1 else found[0]

    return rule


def _solve(cubes: float) -> Rule:
    def rule(A: Abstract, a: Array, b: Array, *options: Any) -> Array:
        (*first, n, _), (*second, _, k) = A.shape(a), A.shape(b)
        batch, device = broadcast(A, (A.blank(first), A.blank(second)))
        add_others(int(math.prod(batch) * (cubes * n**3 + 2 * n**2 * k)))
        return A.blank((*batch, n, k), Float, device)

    return rule


def _qr(A: Abstract, a: Array, complete: bool) -> tuple[Array, Array]:
    *batch, m, n = a.shape
    k = m if complete else min(m, n)
    add_others(2 * math.prod(batch) * m * n * min(m, n))
    return A.blank((*batch, m, k), Float, a.device), A.blank((*batch, k, n), Float, a.device)


def _svd(A: Abstract, a: Array, full: bool) -> tuple[Array, Array, Array]:
    *batch, m, n = a.shape
    k = min(m, n)
    add_others(6 * math.prod(batch) * m * n * k)
    shapes = (*batch, m, m if full else k), (*batch, k), (*batch, n if full else k, n)
    u, s, vh = (A.blank(shape, Float, a.device) for shape in shapes)
    return u, s, vh


def _eigh(A: Abstract, a: Array) -> tuple[Array, Array]:
    *batch, n, _ = a.shape
    add_others(9 * math.prod(batch) * n**3)
    return A.blank((*batch, n), Float, a.device), A.blank(a.shape, Float, a.device)


# --- Fourier transforms: 5 n log n


def _fft_flops(batch: Sequence[int], n: int, share: float) -> int:
    return int(share * math.prod(batch) * 5 * n * math.log2(max(n, 2)))


def _rfft(A: Abstract, x: Array) -> Array:
    *batch, n = x.shape
    add_others(_fft_flops(batch, n, 0.5))
    return A.blank((*batch, n // 2 + 1, 2), Float, x.device)


def _irfft(A: Abstract, x: Array, n: int) -> Array:
    *batch, _, _ = x.shape
    add_others(_fft_flops(batch, n, 0.5))
    return A.blank((*batch, n), Float, x.device)


def _fft(A: Abstract, x: Array, inverse: bool) -> Array:
    *batch, n, _ = x.shape
    add_others(_fft_flops(batch, n, 1.0))
    return x


# --- arrays out of nothing


def _full(kind: type[Kind]) -> Rule:
    def rule(A: Abstract, shape: Shape, value: float, device: Device) -> Array:
        return A.blank(shape, kind, device)

    return rule


def _arange(A: Abstract, start: int, stop: int, step: int, device: Device) -> Array:
    return A.blank((len(range(start, stop, step)),), Int, device)


def _random(kind: type[Kind]) -> Rule:
    def rule(A: Abstract, state: Array, shape: Shape, *options: Any) -> Array:
        place = next(option for option in reversed(options) if isinstance(option, Device))  # the rows come after it
        return A.blank(shape, kind, place)

    return rule


def _permutation(A: Abstract, state: Array, n: int, device: Device) -> Array:
    return A.blank((n,), Int, device)


FROM_NOTHING: dict[str, Rule] = {
    "float_full": _full(Float),
    "int_full": _full(Int),
    "bool_full": _full(Bool),
    "int_arange": _arange,
    "random_uniform": _random(Float),
    "random_normal": _random(Float),
    "random_bernoulli": _random(Bool),
    "random_integers": _random(Int),
    "random_permutation": _permutation,
}
"""Operations that take no array: nothing is made and nothing is drawn."""

assert FROM_NOTHING.keys() >= RandomOps.__annotations__.keys()


RULES: dict[str, Rule] = {
    **{name: _elementwise(name, operands) for name, operands in ELEMENTWISE.items()},
    **{name: _counted(name, _reduction(kind_of_result(name))) for name in declared("Reduction")},
    **{name: _counted(name, _arg_reduction) for name in declared("ArgReduction")},
    **{name: _counted(name, _same) for name in SCANS},
    "where": _where,
    "detach": _same,
    "flip": _same,
    "barrier": _same,
    "rounded": _same,
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "pad": _pad,
    "index": _index,
    "index_set": _index_set,
    "float_index_adjoint": _index_adjoint,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "float_take_adjoint": _take_adjoint,
    "float_take_along_axis_adjoint": _take_adjoint,
    "float_scatter": _scatter("float_scatter"),
    "int_scatter": _scatter("int_scatter"),
    "float_argsort": _argsort,
    "int_argsort": _argsort,
    "float_matmul": _matmul,
    "conv": _conv,
    "conv_dx": _conv_dx,
    "conv_dw": _conv_dw,
    "solve": _solve(2 / 3),
    "solve_triangular": _solve(0.0),
    "det": _square(1, 2 / 3),
    "slogdet": _square(2, 2 / 3),
    "matrix_exp": _square(0, 30.0),
    "cholesky": _square(0, 1 / 3),
    "qr": _qr,
    "svd": _svd,
    "eigh": _eigh,
    "rfft": _rfft,
    "irfft": _irfft,
    "fft": _fft,
}
"""An operation without an entry is derived from operations that have one; see the contract."""
