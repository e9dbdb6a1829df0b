"""The kernel for packed matrices, against NumPy in float64, where groups and vectors end at all places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phlox.backend.contract.nn.packed import CODINGS, pack
from phlox.backend.torch.compiler.kernels import packed

pytestmark = pytest.mark.skipif(packed._kernel() is None, reason="there is no kernel for this CPU")
RNG = np.random.default_rng(0)
SHAPES = [
    (37, 768, 12),
    (5, 256, 1),
    (8, 70, 1),
    (9, 512, 2),
    (6, 1024, 16),
    (11, 64, 2),
    (3, 256, 32),
    (6, 96, 1),
    (7, 192, 3),
]


@pytest.mark.parametrize("m", [1, 2, 3, 8])
@pytest.mark.parametrize(("rows", "columns", "groups"), SHAPES)
@pytest.mark.parametrize("coding", ["int8", "uint8", "int4", "nf4"])
def test_a_product(coding: str, rows: int, columns: int, groups: int, m: int) -> None:
    bits = CODINGS[coding].bits
    codes = RNG.integers(0, 1 << bits, (rows, columns))
    x, scales = RNG.normal(size=(m, columns)), RNG.normal(size=(rows, groups))
    weight = CODINGS[coding].levels.astype(np.float64)[codes]
    operands = (torch.tensor(x, dtype=torch.float32), torch.from_numpy(pack(codes, bits)))
    for given in (torch.tensor(scales, dtype=torch.float32), None):
        if not _is_suited(*operands, given, coding):
            assert groups > 1 and given is not None
            continue
        found = packed.operations.multiply_packed(*operands, given, coding).numpy()
        expected = x @ (weight if given is None else weight * np.repeat(scales, columns // groups, 1)).T
        np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())


@pytest.fixture(autouse=True)
def _with_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")


def _is_suited(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor | None, coding: str) -> bool:
    return packed.suits(x, words, scales, coding)


def test_what_it_does_not_take() -> None:
    x, words, scales = torch.ones(1, 64), torch.zeros(2, 16, dtype=torch.int32), torch.ones(2, 4)
    assert _is_suited(x, words, scales, "int8")
    assert not _is_suited(x.double(), words, scales, "int8")
    assert not _is_suited(x, words.long(), scales, "int8")
    assert not _is_suited(torch.ones(9, 64), words, scales, "int8") and not _is_suited(x[:0], words, scales, "int8")
    assert not _is_suited(x, words, scales, "e4m3") and not _is_suited(x[:, :60], words, scales, "int8")
    assert not _is_suited(torch.ones(1, 96), torch.zeros(2, 24, dtype=torch.int32), torch.ones(2, 2), "int8")
