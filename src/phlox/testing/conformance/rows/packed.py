# ruff: noqa: E501
# pyright: standard
"""Packed matrices: each coding read, and products with it."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from phlox import functional as f
from phlox.backend.contract.nn.packed import CODINGS, pack
from phlox.testing.conformance.row import Row, normal, positive

_RANGES = {"e8m0": (121, 134), "f16": (0x3000, 0x4400), "bf16": (0x3E00, 0x4100), "e4m3": (0, 0x7F), "e5m2": (0, 0x50)}
"""The codes of a coding that are numbers of moderate size; without an entry all are."""


def _codes(coding: str, *shape: int) -> Any:
    low, high = _RANGES.get(coding, (0, 1 << CODINGS[coding].bits))
    return np.random.default_rng(zlib.crc32(repr((coding, shape)).encode())).integers(low, high, shape)


def _words(coding: str, rows: int, columns: int) -> Any:
    """Random codes as words, by Python's integers."""
    bits, per_word = CODINGS[coding].bits, CODINGS[coding].per_word
    words = np.zeros((rows, -(-columns // per_word)), object)
    for (row, column), code in np.ndenumerate(_codes(coding, rows, columns)):
        words[row, column // per_word] += int(code) << (bits * (column % per_word))
    return np.where(words < 1 << 31, words, words - (1 << 32)).astype(np.int32)


def _levels(words: Any, coding: str) -> Any:
    bits, per_word = CODINGS[coding].bits, CODINGS[coding].per_word
    levels = [float(level) for level in CODINGS[coding].levels]
    numbers = [levels[(int(word) >> (bits * i)) % (1 << bits)] for word in words.flat for i in range(per_word)]
    return np.array(numbers).reshape(*words.shape[:-1], words.shape[-1] * per_word)


def _nearest(x: Any, coding: str) -> Any:
    """The words of the nearest levels; in a tie, of the even code."""
    levels = CODINGS[coding].levels.astype(np.float64)
    distances = np.abs(x[..., None].astype(np.float64) - np.where(np.isfinite(levels), levels, np.inf))
    codes = (distances + 1e-12 * (np.arange(len(levels)) % 2)).argmin(-1)
    negative_zero = (levels[codes] == 0.0) & (x < 0.0) & (coding in ("e2m1", "e4m3"))
    return pack(codes + negative_zero * (len(levels) // 2), CODINGS[coding].bits)


def _product(x: Any, words: Any, scales: Any = None, offsets: Any = None, bias: Any = None, *, coding: str) -> Any:
    columns = x.shape[-1]
    weight = _levels(words, coding)[:, :columns]
    for of_groups, combine in ((scales, np.multiply), (offsets, np.add)):
        if of_groups is not None:
            weight = combine(weight, np.repeat(of_groups, columns // of_groups.shape[1], 1))
    return x @ weight.T + (0.0 if bias is None else bias)


def _row(coding: str) -> Row:
    return Row(
        f"packed_linear {coding}",
        lambda x, w, s, o, b: f.packed_linear(x, w, s, o, b, coding=coding),
        lambda x, w, s, o, b: _product(x, w, s, o, b, coding=coding),
        (
            (normal(3, 6), _words(coding, 5, 6), positive(5, 2), normal(5, 2), normal(5)),
            (normal(2, 1, 9), _words(coding, 4, 9), positive(4, 3), normal(4, 3), normal(4)),
            (normal(16), _words(coding, 3, 16), positive(3, 1), normal(3, 1), normal(3)),
            (normal(0, 8), _words(coding, 2, 8), positive(2, 4), normal(2, 4), normal(2)),
        ),
        factor=4,
    )


ROWS: list[Row] = [
    *(
        Row(f"unpack {coding}", lambda w, c=coding: f.unpack(w, c), lambda w, c=coding: _levels(w, c),
            ((_words(coding, 3, 16),), (_words(coding, 1, 5)[0],), (np.zeros((2, 0), np.int32),)), gradient=False)
        for coding in CODINGS
    ),
    *(
        Row(f"encode and pack {coding}", lambda x, c=coding: f.pack(f.encode(x, c), c), lambda x, c=coding: _nearest(x, c),
            ((np.random.default_rng(1).uniform(-9.0, 9.0, (3, 11)),), (np.zeros((0, 3)),)), gradient=False)
        for coding in ("int8", "int4", "nf4", "e2m1", "e4m3")
    ),
    *map(_row, CODINGS),
    *(
        Row(f"packed_linear without {without}", lambda x, w, *rest, n=names: f.packed_linear(x, w, coding="int4", **dict(zip(n, rest, strict=True))),
            lambda x, w, *rest, n=names: _product(x, w, coding="int4", **dict(zip(n, rest, strict=True))),
            ((normal(3, 12), _words("int4", 5, 12), *operands), (normal(2, 0, 12), _words("int4", 5, 12), *operands)), factor=4)
        for without, names, operands in (
            ("scales", ("offsets", "bias"), (normal(5, 3), normal(5))),
            ("offsets", ("scales",), (positive(5, 3),)),
            ("scales and offsets", ("bias",), (normal(5),)),
            ("all", (), ()),
        )
    ),
    *(
        Row(f"packed_linear, constant {constant}", lambda x, w, s, o, b: f.packed_linear(x, w, s, o, b, coding="int8"),
            lambda x, w, s, o, b: _product(x, w, s, o, b, coding="int8"),
            ((normal(3, 6), _words("int8", 5, 6), positive(5, 2), normal(5, 2), normal(5)),), constant=constant, factor=4)
        for constant in ((0,), (2,), (3, 4), (0, 2, 3))
    ),
]  # fmt: skip
