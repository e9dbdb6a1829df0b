"""Products with packed matrices on JAX: in a loop, for which nothing of the matrix's size is made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phlox.backend import Jax
from phlox.backend.contract.nn.packed import CODINGS, PackedOps, pack

B = Jax()
RNG = np.random.default_rng(0)
ROWS, COLUMNS, GROUPS = 2000, 768, 12


def operands(coding: str, m: int) -> list[Any]:
    words = pack(RNG.integers(0, min(100, 1 << CODINGS[coding].bits), (ROWS, COLUMNS)), CODINGS[coding].bits)
    shapes = ((m, COLUMNS), (ROWS, GROUPS), (ROWS, GROUPS), (ROWS,))
    x, *rest = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in shapes)
    return [x, jnp.asarray(words), *rest]


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("coding", ["int8", "uint4", "iq4nl", "dynamic8", "f16"])
def test_a_loop_computes_the_same(coding: str, m: int) -> None:
    arguments = operands(coding, m)
    x, words, scales, offsets, bias = arguments
    loop = B.packed_linear(x, words, scales, offsets, bias, coding)
    whole = PackedOps.packed_linear(B, x, words, scales, offsets, bias, coding)
    np.testing.assert_allclose(loop, whole, atol=3e-6 * float(jnp.abs(whole).max()))


@pytest.mark.parametrize("coding", ["int8", "int4", "nf4"])
def test_memory(coding: str) -> None:
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        pytest.skip("the loop is for one CPU")
    x, words, scales, *_ = operands(coding, 1)
    program = jax.jit(lambda x, w, s: B.packed_linear(x, w, s, None, None, coding)).lower(x, words, scales).compile()
    memory: Any = program.memory_analysis()
    assert memory.temp_size_in_bytes < ROWS * COLUMNS  # of four bytes each, the matrix would take four times that
