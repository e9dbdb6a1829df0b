"""Products with matrices of few bits an element."""

from __future__ import annotations

from typing import Any

from phlox.backend import Float, Int
from phlox.backend.contract.nn.packed import CODINGS, Coding
from phlox.errors import RangeError, ShapeError
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.tensor import Tensor

__all__ = ["packed_linear", "unpack"]


def unpack(words: Tensor[Any, Any, Int], coding: str) -> Tensor:
    """The numbers that are packed into words: Int [..., n] to Float [..., n * codes per word].

    A word holds 32 bits: two, four or eight codes, the first in the lowest bits. The coding says what number a code is:

    | coding | bits | numbers |
    |---|---:|---|
    | `int4`, `uint4`, `int8`, `uint8` | 4, 8 | integers: -8 to 7, 0 to 15, -128 to 127, 0 to 255 |
    | `nf4` | 4 | quantiles of the normal distribution, of QLoRA |
    | `fp4` | 4 | floats of bitsandbytes, from -1 to 1 |
    | `e2m1` | 4 | floats of mxfp4 and nvfp4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives |
    | `iq4nl` | 4 | the integers of GGUF's IQ4_NL |
    | `e4m3`, `e5m2`, `e8m0` | 8 | floats of 8 bits, and powers of two |
    | `dynamic8`, `udynamic8` | 8 | the dynamic maps of bitsandbytes, from -1 to 1 and from 0 to 1 |
    | `f16`, `bf16` | 16 | floats of 16 bits |

    Raises `RangeError` for another coding. The result is rounded to the backend's floats.

    >>> import phlox as px
    >>> px.functional.unpack(px.tensor([0x76543210]), "int4").tolist()
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0]
    """
    check_kind("unpack", Int, words=words)
    check_coding("unpack", coding)
    if words.ndim < 1:
        raise ShapeError(f"unpack: words must be [..., n], got shape {words.shape}")
    return compute("unpack", words, coding, operation="int_unpack")


def packed_linear(
    x: Tensor,
    words: Tensor[Any, Any, Int],
    scales: Tensor | None = None,
    offsets: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    coding: str,
) -> Tensor:
    """x @ W.T + bias, for x [..., columns] and a packed matrix W [rows, columns]: [..., rows].

    W is `unpack(words, coding)`, without what the last words have beyond the columns; each group of columns / groups
    consecutive columns of a row is then multiplied by its scale, and its offset added. Products are as accurate as
    those with W in floats. The words get no gradient, all other operands do.

    Args:
        x: Float [..., columns].
        words: Int [rows, ceil(columns / codes per word)], see `unpack`.
        scales: Float [rows, groups]; absent, they are 1.
        offsets: Float [rows, groups]; absent, they are 0.
        bias: Float [rows].
        coding: the name of a coding.

    Raises `KindError`, `ShapeError` and `RangeError` for operands that do not fit.

    >>> import phlox as px
    >>> words = px.tensor([[0x04030201], [0x00000005]])  # the rows 1, 2, 3, 4 and 5, 0, 0, 0
    >>> scales = px.tensor([[1.0, 10.0], [0.5, 0.5]])
    >>> px.functional.packed_linear(px.ones((1, 4)), words, scales, coding="int8").tolist()
    [[73.0, 2.5]]
    """
    name = "packed_linear"
    check_kind(name, Float, x=x, scales=scales, offsets=offsets, bias=bias)
    check_kind(name, Int, words=words)
    found = check_coding(name, coding)
    if words.ndim != 2 or x.ndim < 1:
        raise ShapeError(f"{name}: x must be [..., columns] and words [rows, n], got {x.shape} and {words.shape}")
    columns, (rows, n) = x.shape[-1], words.shape
    needed = -(-columns // found.per_word)
    if n != needed:
        raise ShapeError(
            f"{name}: words of shape {words.shape} do not fit x of shape {x.shape}; "
            f"{columns} columns of {found.bits} bits take {needed} words in each row"
        )
    groups: int | None = None
    for operand, of_groups in (("scales", scales), ("offsets", offsets)):
        if of_groups is None:
            continue
        if of_groups.ndim != 2 or of_groups.shape[0] != rows:
            raise ShapeError(f"{name}: {operand} must be [rows, groups] with {rows} rows, got shape {of_groups.shape}")
        if groups not in (None, of_groups.shape[1]):
            raise ShapeError(f"{name}: scales have {groups} groups and offsets {of_groups.shape[1]}; make them equal")
        groups = of_groups.shape[1]
        if groups < 1 or columns % groups:
            raise ShapeError(
                f"{name}: the {columns} columns are not divisible by the {groups} groups of {operand}, "
                f"of shape {of_groups.shape}"
            )
    if bias is not None and bias.shape != (rows,):
        raise ShapeError(f"{name}: bias of shape {bias.shape} does not fit the {rows} rows of words; it must be [rows]")
    return compute(name, x, words, scales, offsets, bias, coding)


def check_coding(name: str, coding: str) -> Coding:
    """The coding of a name; `RangeError` for another name."""
    if coding not in CODINGS:
        raise RangeError(f"{name}: coding must be one of {', '.join(CODINGS)}; got {coding!r}")
    return CODINGS[coding]
