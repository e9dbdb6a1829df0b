"""Linear and bilinear maps, embeddings, and rearrangements of pixels."""

from __future__ import annotations

from typing import Any

from phlox.backend import Float, Int
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.creation import arange
from phlox.tensor.explain import failure, type_shown
from phlox.tensor.functional.operands import check_kind, compute, from_the_start, promote_operands
from phlox.tensor.functions import at_full_precision, concat, where
from phlox.tensor.tensor import Tensor, wrap

__all__ = ["bilinear", "embedding", "linear", "pixel_shuffle", "pixel_unshuffle", "rotary_embedding"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight + bias, for x [..., inputs], weight [inputs, outputs] and bias [outputs]: [..., outputs].

    >>> import phlox as px
    >>> px.functional.linear(px.ones((5, 3)), px.ones((3, 2)), px.zeros((2,))).shape
    (5, 2)
    """
    ops = getattr(weight, "_ops", None)
    if ops is not None and getattr(x, "_ops", None) is ops and (bias is None or getattr(bias, "_ops", None) is ops):
        # The fast path of most calls: separate checks would take as long as a small product.
        shape, array, by = ops.shape, x.primitive, weight.primitive
        sizes, added = shape(by), None if bias is None else bias.primitive
        fits = len(sizes) == 2 and shape(array)[-1:] == sizes[:1] and (added is None or shape(added) == sizes[1:])
        if fits and ops.kind is Float:
            try:
                return wrap(ops, ops["linear"](array, by, added))
            except Exception as error:
                raise failure("linear", ops, (array, by, added), error) from error
    check_kind("linear", Float, x=x, weight=weight, bias=bias)
    x_shape, matrix = x.shape, weight.shape
    if len(matrix) != 2 or x_shape[-1:] != matrix[:1]:
        raise ShapeError(
            f"linear: x of shape {x_shape} does not fit weight of shape {matrix}; "
            f"the last axis of x must have the size of the first axis of weight"
        )
    if bias is not None and bias.shape != matrix[1:]:
        raise ShapeError(f"linear: bias of shape {bias.shape} does not fit weight of shape {matrix}")
    return compute("linear", x, weight, bias)


@at_full_precision
def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x' weight[o] y + bias[o] for each output o.

    x [..., i] and y [..., j] with equal leading axes, weight [outputs, i, j] and bias [outputs] give [..., outputs].

    >>> import phlox as px
    >>> px.functional.bilinear(px.ones((5, 2)), px.ones((5, 3)), px.ones((4, 2, 3))).shape
    (5, 4)
    """
    check_kind("bilinear", Float, x=x, y=y, weight=weight, bias=bias)
    fits = weight.ndim == 3 and x.ndim > 0 and x.shape[:-1] == y.shape[:-1]
    if not fits or (x.shape[-1], y.shape[-1]) != weight.shape[1:]:
        raise ShapeError(
            f"bilinear: x of shape {x.shape}, y of shape {y.shape} and weight of shape {weight.shape} do not fit; "
            f"they must be [..., i], [..., j] and [outputs, i, j]"
        )
    outputs, i, j = weight.shape
    if bias is not None and bias.shape != (outputs,):
        raise ShapeError(f"bilinear: bias of shape {bias.shape} does not fit {outputs} outputs")
    half = x @ weight.permute_dims((1, 0, 2)).reshape((i, outputs * j))
    product = (half.reshape((*x.shape[:-1], outputs, j)) * y.expand_dims(-2)).sum(-1)
    return product if bias is None else product + bias


def embedding(weight: Tensor, indices: Tensor[Any, Any, Int], *, padding_index: int | None = None) -> Tensor:
    """The rows of weight [entries, width] at `indices` [...]: [..., width].

    The row at `padding_index` gets no gradient. Raises `IndexRangeError` if an index is too large or below zero
    (such as the index of a missing category). A compiled program does not know the indices: such rows are NaN there.

    >>> import phlox as px
    >>> px.functional.embedding(px.tensor([[1.0, 2.0], [3.0, 4.0]]), px.tensor([1, 0])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    check_kind("embedding", Float, weight=weight)
    check_kind("embedding", Int, indices=indices)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: weight must be [entries, width], got shape {weight.shape}")
    weight, indices = promote_operands("embedding", weight, indices)
    entries = weight.shape[0]
    indices = from_the_start("embedding", indices, entries)
    rows = weight.take(indices, 0)
    if padding_index is None:
        return rows
    if not -entries <= padding_index < entries:
        raise RangeError(f"embedding: padding_index {padding_index} is out of range for {entries} entries")
    padding = (indices == padding_index % entries).expand_dims(-1)
    return where(padding, rows.detach(), rows)


@at_full_precision
def rotary_embedding(
    x: Tensor, positions: Tensor[Any, Any, Int] | None = None, *, base: float = 10000.0, interleaved: bool = False
) -> Tensor:
    """Rotate pairs of elements of x [..., n, d] by angles that grow with the position (Su et al. 2021).

    Args:
        x: Float, queries or keys [..., n, d] with d even.
        positions: Int, broadcasts to [..., n]; 0 to n - 1 by default.
        base: pair i of the d / 2 pairs is rotated by position * base ** (-2 i / d) radians.
        interleaved: pair neighbouring elements, as in the paper; by default elements d / 2 apart, as in most models.

    >>> import phlox as px
    >>> px.functional.rotary_embedding(px.ones((3, 4)))[0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    check_kind("rotary_embedding", Float, x=x)
    check_kind("rotary_embedding", Int, positions=positions)
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(f"rotary_embedding: x must be [..., n, d] with d even, got shape {x.shape}")
    *_, n, d = x.shape
    if positions is None:
        positions = arange(n, device=x.device)
    half = d // 2
    turns = base ** (arange(half, device=x.device).float() * (-2.0 / max(d, 1)))
    angles = positions.float().expand_dims(-1) * turns
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        pairs = x.reshape((*x.shape[:-1], half, 2))
        a, b = pairs[..., :1], pairs[..., 1:]
        cos, sin = cos.expand_dims(-1), sin.expand_dims(-1)
        return concat([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
    a, b = x[..., :half], x[..., half:]
    return concat([a * cos - b * sin, a * sin + b * cos], -1)


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """Rearrange channels to pixels (Shi et al. 2016), to increase the resolution by a factor.

    [..., channels factor^2, height, width] becomes [..., channels, height factor, width factor].

    >>> import phlox as px
    >>> px.functional.pixel_shuffle(px.ones((1, 8, 3, 3)), 2).shape
    (1, 2, 6, 6)
    """
    *leading, channels, height, width = _image_shape("pixel_shuffle", x, factor)
    if channels % factor**2:
        raise ShapeError(f"pixel_shuffle: {channels} channels are not divisible by {factor}^2 (x of shape {x.shape})")
    kept = channels // factor**2
    split = x.reshape((*leading, kept, factor, factor, height, width))
    k = len(leading)
    order = (*range(k), k, k + 3, k + 1, k + 4, k + 2)
    return split.permute_dims(order).reshape((*leading, kept, height * factor, width * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """The inverse of `pixel_shuffle`: [..., channels, height, width] becomes [..., channels factor^2, rows, columns].

    >>> import phlox as px
    >>> px.functional.pixel_unshuffle(px.ones((1, 2, 6, 6)), 2).shape
    (1, 8, 3, 3)
    """
    *leading, channels, height, width = _image_shape("pixel_unshuffle", x, factor)
    if height % factor or width % factor:
        raise ShapeError(f"pixel_unshuffle: height and width of x, of shape {x.shape}, are not divisible by {factor}")
    rows, columns = height // factor, width // factor
    split = x.reshape((*leading, channels, rows, factor, columns, factor))
    k = len(leading)
    order = (*range(k), k, k + 2, k + 4, k + 1, k + 3)
    return split.permute_dims(order).reshape((*leading, channels * factor**2, rows, columns))


def _image_shape(name: str, x: Tensor, factor: int) -> tuple[int, ...]:
    if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{name} takes a tensor, got {type_shown(x)}")
    if x.ndim < 3 or factor < 1:
        raise ShapeError(
            f"{name}: x must be [..., channels, height, width] and factor at least 1, got {x.shape}, {factor}"
        )
    return x.shape
