# pyright: reportArgumentType=false
"""Packed products on engines of other integers, in batches, of large matrices; and what is wrong with operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.contract.nn.packed import CODINGS, pack
from phlox.errors import KindError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Autodiff(Torch())]
RNG = np.random.default_rng(0)


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def words(device: Any, *shape: int) -> Any:
    return px.zeros(shape, kind=px.Int, device=device)


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    "coding": (lambda d: f.unpack(words(d, 2), "int3"), RangeError, ("unpack", "coding", "int4", "nf4", "'int3'")),
    "floats": (lambda d: f.unpack(ones(d, 2), "int4"), KindError, ("unpack", "words", "Int", "Float", ".int()")),
    "an array": (lambda d: f.unpack(np.zeros(2, np.int32), "int4"), KindError, ("unpack", "words", "phlox.tensor")),
    "no axis": (lambda d: f.unpack(words(d), "int4"), ShapeError, ("unpack", "[..., n]", "()")),
    "x of ints": (
        lambda d: f.packed_linear(words(d, 1, 8), words(d, 2, 1), coding="int4"),
        KindError,
        ("packed_linear", "x", "Int", ".float()"),
    ),
    "scales of ints": (
        lambda d: f.packed_linear(ones(d, 1, 8), words(d, 2, 1), words(d, 2, 1), coding="int4"),
        KindError,
        ("packed_linear", "scales", "Int", ".float()"),
    ),
    "words of floats": (
        lambda d: f.packed_linear(ones(d, 1, 8), ones(d, 2, 1), coding="int4"),
        KindError,
        ("packed_linear", "words", "Float", ".int()"),
    ),
    "another coding": (
        lambda d: f.packed_linear(ones(d, 1, 8), words(d, 2, 1), coding="fp5"),
        RangeError,
        ("packed_linear", "coding", "e2m1", "'fp5'"),
    ),
    "words of rank 1": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 1), coding="int4"),
        ShapeError,
        ("packed_linear", "[rows, n]", "(8,)", "(1,)"),
    ),
    "too few words": (
        lambda d: f.packed_linear(ones(d, 3, 9), words(d, 2, 1), coding="int4"),
        ShapeError,
        ("packed_linear", "(2, 1)", "(3, 9)", "9 columns of 4 bits", "2 words"),
    ),
    "scales of other rows": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), ones(d, 3, 1), coding="int4"),
        ShapeError,
        ("packed_linear", "scales", "2 rows", "(3, 1)"),
    ),
    "offsets of rank 1": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), offsets=ones(d, 2), coding="int4"),
        ShapeError,
        ("packed_linear", "offsets", "[rows, groups]", "(2,)"),
    ),
    "groups": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), ones(d, 2, 3), coding="int4"),
        ShapeError,
        ("packed_linear", "8 columns", "3 groups", "scales", "(2, 3)"),
    ),
    "no groups": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), ones(d, 2, 0), coding="int4"),
        ShapeError,
        ("packed_linear", "0 groups"),
    ),
    "other groups": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), ones(d, 2, 2), ones(d, 2, 4), coding="int4"),
        ShapeError,
        ("packed_linear", "scales have 2 groups", "offsets 4"),
    ),
    "bias": (
        lambda d: f.packed_linear(ones(d, 8), words(d, 2, 1), bias=ones(d, 1, 2), coding="int4"),
        ShapeError,
        ("packed_linear", "bias", "(1, 2)", "2 rows"),
    ),
}


@pytest.mark.parametrize("device", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit(case: str, device: Any) -> None:
    call, kind, parts = CASES[case]
    with pytest.raises(kind) as info:
        call(device)
    text = str(info.value)
    assert all(part in text for part in parts), text
    assert "\n" not in text and "inside Phlox" not in text


def packed(coding: str, m: int, rows: int, columns: int, groups: int) -> tuple[list[Any], Any]:
    """x, words, scales, offsets and bias; and the product."""
    bits, levels = CODINGS[coding].bits, CODINGS[coding].levels.astype(np.float64)
    sound = np.flatnonzero(np.isfinite(levels) & (np.abs(levels) < 200.0))
    codes = RNG.choice(sound, (rows, columns))
    codes[0, 32 // bits - 1] = sound[-1]  # the highest bit of a word: it is negative
    x, bias = RNG.normal(size=(m, columns)).astype(np.float32), RNG.normal(size=rows).astype(np.float32)
    scales, offsets = (RNG.normal(size=(rows, groups)).astype(np.float32) for _ in range(2))
    spread = [np.repeat(x, columns // groups, 1) for x in (scales, offsets)]
    expected = x.astype(np.float64) @ (levels[codes] * spread[0] + spread[1]).T + bias
    return [x, pack(codes, bits), scales, offsets, bias], expected


@pytest.mark.parametrize("backend", [NumPy(int="i64"), Jax(int="i64"), Torch(int="i64")], ids=repr)
@pytest.mark.parametrize("coding", CODINGS)
def test_words_in_integers_of_64_bits(coding: str, backend: Any) -> None:
    operands, expected = packed(coding, 2, 5, 24, 3)
    x, *rest = (px.tensor(operand, device=backend) for operand in operands)
    assert rest[0].numpy().dtype == np.int64 and (rest[0].numpy() < 0).any()
    y = f.packed_linear(x, *rest, coding=coding)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize(("coding", "m"), [("int8", 1), ("int4", 1), ("nf4", 1), ("e4m3", 3), ("int4", 3), ("bf16", 1)])
def test_a_large_matrix(coding: str, m: int, backend: Any) -> None:
    """So large that engines multiply it in parts; the last part is smaller."""
    operands, expected = packed(coding, m, 1500, 768, 12)
    for given in ((0, 1, 2, 3, 4), (0, 1, 2), (0, 1)):
        x, *rest = (px.tensor(operands[i], device=backend) if i in given else None for i in range(5))
        y = f.packed_linear(x, *rest, coding=coding)
        if len(given) == 5:
            np.testing.assert_allclose(y.numpy(), expected, atol=2e-6 * np.abs(expected).max())
        else:  # the rest as in a product with the unpacked matrix
            weight = f.unpack(px.tensor(operands[1]), coding).numpy().astype(np.float64)
            weight = weight * np.repeat(operands[2], 64, 1) if 2 in given else weight
            exact = operands[0] @ weight.T
            np.testing.assert_allclose(y.numpy(), exact, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_words_of_each_example(backend: Any) -> None:
    """`vmap` over the words, and over all operands."""
    operands, expected = zip(*(packed("int4", 2, 3, 16, 2) for _ in range(4)), strict=True)
    tensors = [px.tensor(np.stack(x), device=backend) for x in zip(*operands, strict=True)]
    y = px.vmap(lambda x, w, s, o, b: f.packed_linear(x, w, s, o, b, coding="int4"))(*tensors)
    np.testing.assert_allclose(y.numpy(), np.stack(expected), rtol=1e-4, atol=1e-4)
    levels = px.vmap(lambda w: f.unpack(w, "int4"))(tensors[1])
    np.testing.assert_array_equal(levels.numpy(), f.unpack(tensors[1], "int4").numpy())


@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("engine", [NumPy, Jax, Torch])
def test_sums_at_half_precision_are_of_f32(engine: Any, element: Any) -> None:
    """A sum of 4,096 ones is exact."""
    backend = engine(element)
    ones = px.ones((1, 4096), device=backend)
    words = px.tensor(pack(np.full((2, 4096), 9), 4), device=backend)
    assert f.packed_linear(ones, words, coding="int4").tolist() == [[4096.0, 4096.0]]
