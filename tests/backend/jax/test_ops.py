"""Arithmetic that XLA would change, in ways that our own operations do not allow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax
from phlox.tensor.fourier import Complex

NUMBERS = np.arange(1.0, 68.0)
DIVISOR = 41.0
"""41 times the number next to 1 / 41 in single precision is less than one."""


def _both(fn: Callable[..., Any], *arguments: Any) -> list[np.ndarray[Any, Any]]:
    return [fn(*arguments).numpy(), px.compile(fn)(*arguments).numpy()]


@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "f16"])
def test_a_quotient_is_rounded_once(element: Any) -> None:
    device = Jax(float=element).device()
    x, many = px.tensor(NUMBERS * DIVISOR, device=device), px.tensor([DIVISOR], device=device)
    right = (x.numpy().astype(np.float64) / DIVISOR).astype(x.numpy().dtype)
    for found in (
        *_both(lambda x: x / DIVISOR, x),
        *_both(lambda x, d: x / d, x, many),
        *_both(lambda x, d: x / d.sum(), x, many),
        *_both(lambda x, d: x.reshape(67, 1) / d.reshape(1, 1), x, many),
        *_both(lambda x: x / px.full_like(x, DIVISOR), x),
    ):
        np.testing.assert_array_equal(found.reshape(-1), right)
    for found in _both(lambda x: (x / DIVISOR).floor(), px.tensor(NUMBERS[:40] * DIVISOR, device=Jax())):
        np.testing.assert_array_equal(found, NUMBERS[:40])


def test_a_quotient_by_a_number_whose_reciprocal_is_too_small() -> None:
    x = px.tensor(np.full(67, 3e38), device=Jax())
    for found in (*_both(lambda x: x / 3e38, x), *_both(lambda x: x / x.abs().max(), x)):
        np.testing.assert_allclose(found, 1.0, rtol=1e-6)


def test_quotients_under_jaxs_own_transformations() -> None:
    divide = Jax().float_div
    x = jnp.array([1.0, 3.0])

    def normalised(x: Any) -> Any:
        return divide(x, x.sum())

    np.testing.assert_allclose(jax.jacrev(normalised)(x), jax.jacrev(lambda x: x / x.sum())(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(normalised)(x), jax.jacfwd(lambda x: x / x.sum())(x), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(normalised)(jnp.ones((3, 2))), 0.5)


def test_the_cross_product_of_equal_vectors_is_zero() -> None:
    v = px.tensor(np.random.default_rng(0).normal(size=(67, 3)), device=Jax())
    for found in _both(lambda x, y: px.cross(x, y * 1.0), v, v):
        np.testing.assert_array_equal(found, 0.0)
    whole = px.tensor(np.arange(12).reshape(4, 3), device=Jax())
    for found in _both(lambda x: px.cross(x, x + 1), whole):
        np.testing.assert_array_equal(found, np.cross(whole.numpy(), whole.numpy() + 1))


def test_a_complex_number_times_its_conjugate_is_real() -> None:
    rng = np.random.default_rng(1)
    real, imag = (px.tensor(rng.normal(size=67), device=Jax()) for _ in range(2))

    def imaginary(real: px.Tensor, imag: px.Tensor) -> px.Tensor:
        z = Complex(real, imag)
        return (z * z.conj()).imag

    for found in _both(imaginary, real, imag):
        np.testing.assert_array_equal(found, 0.0)


def test_rounded_products_are_differentiated_and_batched() -> None:
    v = np.random.default_rng(2).normal(size=(5, 2, 3))
    x, y = (px.tensor(v[:, at], device=Autodiff(Jax())).require_grad() for at in range(2))
    grads = px.cross(x, y).sum().backward()
    found = x.grad(grads)
    assert found is not None
    np.testing.assert_allclose(found.numpy(), np.cross(v[:, 1], np.ones((5, 3))), rtol=1e-5)
    one, other = (px.tensor(v[:, at], device=Jax()) for at in range(2))
    for found in _both(px.vmap(px.cross), one, other):
        np.testing.assert_allclose(found, np.cross(v[:, 0], v[:, 1]), rtol=1e-5, atol=1e-6)


SCRIPT = """
import numpy as np, phlox as px
from phlox.backend import Jax
x = px.tensor(np.linspace(0.1, 3.0, 67), device=Jax())
small = px.tensor([1e-30], device=Jax())
run = px.compile(lambda x, y, s: (x * x - y * y, (x + 1e8) - 1e8, s * 1e20 * 1e20))
y, a, b = run(x, px.tensor(x.numpy().copy(), device=Jax()), small)
print(bool((y == 0.0).all().item()), bool((a == 0.0).all().item()), round(float(b.item()) / 1e10, 5))
"""


@pytest.mark.full
def test_the_flags_that_forbid_it() -> None:
    """Those that docs/edge-cases.md names."""
    flags = "--xla_cpu_max_isa=AVX --xla_disable_hlo_passes=algsimp"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-c", SCRIPT]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.stdout.split() == ["True", "True", "1.0"], found.stderr
