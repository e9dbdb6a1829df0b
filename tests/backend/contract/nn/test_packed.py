"""Codings against the libraries that define them, packing against Python's integers, and the definition in blocks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from scipy.stats import norm

from phlox.backend import NumPy
from phlox.backend.contract.nn import packed
from phlox.backend.contract.nn.packed import CODINGS, PackedOps, pack, unpacked_codes

BYTES = np.arange(256, dtype=np.uint8)


def dynamic_map() -> Any:
    """As in bitsandbytes."""
    levels: list[float] = [0.0, 1.0]
    for i in range(7):
        bounds = torch.linspace(0.1, 1, 2**i + 1)
        means = (bounds[:-1] + bounds[1:]) / 2.0
        levels += [*(10 ** (i - 6) * means).tolist(), *(-(10 ** (i - 6)) * means).tolist()]
    return torch.tensor(sorted(levels)).numpy()


def normal_map() -> Any:
    """As in bitsandbytes: quantiles of the normal distribution, eight above zero and seven below."""
    above, below = (norm.ppf(np.linspace(0.9677083, 0.5, count)[:-1]) for count in (9, 8))
    levels = np.sort(np.concatenate([above, [0.0], -below]))
    return levels / levels.max()


REFERENCES: dict[str, Any] = {
    "int8": BYTES.view(np.int8),
    "uint8": BYTES,
    "int4": np.arange(-8, 8),
    "uint4": np.arange(16),
    "e2m1": BYTES[:16].view(ml_dtypes.float4_e2m1fn),
    "e4m3": BYTES.view(ml_dtypes.float8_e4m3fn),
    "e5m2": BYTES.view(ml_dtypes.float8_e5m2),
    "e8m0": BYTES.view(ml_dtypes.float8_e8m0fnu),
    "f16": torch.arange(1 << 16).to(torch.int16).view(torch.float16).float().numpy(),
    "bf16": torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16).float().numpy(),
    "dynamic8": dynamic_map(),
}


@pytest.mark.parametrize("coding", REFERENCES)
def test_levels(coding: str) -> None:
    levels = CODINGS[coding].levels
    assert levels.dtype == np.float32 and levels.shape == (1 << CODINGS[coding].bits,)
    np.testing.assert_array_equal(levels, np.asarray(REFERENCES[coding], np.float32))


def test_levels_of_tables() -> None:
    np.testing.assert_allclose(CODINGS["nf4"].levels, normal_map(), atol=3e-7)
    gguf = pytest.importorskip("gguf.quants")
    np.testing.assert_array_equal(CODINGS["iq4nl"].levels, gguf.IQ4_NL.kvalues)
    assert {*CODINGS} == {*REFERENCES, "nf4", "iq4nl", "fp4", "udynamic8"}  # the last two: tests/optim, tests/interop


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("shape", [(3, 16), (2, 3, 9), (1,), (2, 0), (0, 5)])
def test_packing(bits: int, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, shape)
    words, per_word = pack(codes, bits), 32 // bits
    assert words.dtype == np.int32 and words.shape == (*shape[:-1], -(-shape[-1] // per_word))
    for index in np.ndindex(*words.shape):
        some = codes[(*index[:-1], slice(index[-1] * per_word, (index[-1] + 1) * per_word))]
        assert int(words[index]) % (1 << 32) == sum(int(code) << (bits * i) for i, code in enumerate(some))
    for same in (words, words.astype(np.int64), np.asfortranarray(words)):
        found = unpacked_codes(same, bits)
        np.testing.assert_array_equal(found[..., : shape[-1]], codes)
        assert not found[..., shape[-1] :].any()


def test_negative_codes_are_packed_by_their_lowest_bits() -> None:
    assert unpacked_codes(pack(np.array([-1, -8, 7]), 4), 4).tolist()[:3] == [15, 8, 7]
    assert pack(np.array([-128, 127, -1]), 8).view(np.int8).tolist() == [-128, 127, -1, 0]


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_a_product_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients do not depend on how many rows are unpacked at once."""
    monkeypatch.setattr(packed, "BLOCK", block)
    rng, B = np.random.default_rng(0), NumPy("f64")
    codes, x, g = rng.integers(0, 16, (7, 10)), rng.normal(size=(2, 3, 10)), rng.normal(size=(2, 3, 7))
    scales, offsets, bias = rng.normal(size=(7, 5)), rng.normal(size=(7, 5)), rng.normal(size=7)
    weight = (codes - 8) * np.repeat(scales, 2, 1) + np.repeat(offsets, 2, 1)
    words = pack(codes, 4)
    y, saved = PackedOps.packed_linear(B, x, words, scales, offsets, bias, "int4"), (x, words, scales, offsets)
    np.testing.assert_allclose(y, x @ weight.T + bias, rtol=1e-12, atol=1e-12)
    found: Any = B.packed_linear_backward(saved, g, (True, False, True, True, True), "int4")
    dx, dwords, dscales, doffsets, dbias = found
    dw = np.einsum("abr,abc->rc", g, x)
    assert dwords is None
    np.testing.assert_allclose(dx, g @ weight, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dscales, (dw * (codes - 8)).reshape(7, 5, 2).sum(2), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(doffsets, dw.reshape(7, 5, 2).sum(2), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dbias, g.sum((0, 1)), rtol=1e-12, atol=1e-12)
