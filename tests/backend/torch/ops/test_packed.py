"""Packed matrices on PyTorch: views of words of any strides, and programs with and without our kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import functional as f
from phlox.backend import Torch
from phlox.backend.contract.nn.packed import CODINGS, pack

B = Torch()
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("coding", CODINGS)
def test_levels(coding: str) -> None:
    bits = CODINGS[coding].bits
    codes = np.arange(1 << bits).reshape(2, -1)
    words = torch.from_numpy(pack(codes, bits))
    strided = torch.stack([words, words], -1)[..., 1]
    of_one_column = words.reshape(-1, 1).t().contiguous().t()
    for some in (words, words.long(), strided, words.t().contiguous().t()):
        levels = B.int_unpack(some, coding).numpy()
        np.testing.assert_array_equal(levels, CODINGS[coding].levels.reshape(2, -1))
    levels = B.int_unpack(of_one_column, coding).numpy()
    np.testing.assert_array_equal(levels.ravel(), CODINGS[coding].levels)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize("coding", ["int8", "nf4", pytest.param("e4m3", marks=pytest.mark.full)])
def test_a_program_computes_the_same_without_the_kernel(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = CODINGS[coding].bits
    words = px.tensor(pack(RNG.integers(0, min(127, 1 << bits), (9, 128)), bits), device=B)
    x, scales = (px.tensor(RNG.normal(size=shape).astype(np.float32), device=B) for shape in ((2, 128), (9, 4)))

    def product(x: Any, words: Any, scales: Any) -> Any:
        return f.packed_linear(x, words, scales, scales, coding=coding)

    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    eager = product(x, words, scales).numpy()
    for switch in ("", "-packed"):
        monkeypatch.setenv("PHLOX_TORCH_PASSES", switch)
        compiled = px.compile(product)(x, words, scales).numpy()
        np.testing.assert_allclose(compiled, eager, atol=2e-6 * np.abs(eager).max())
