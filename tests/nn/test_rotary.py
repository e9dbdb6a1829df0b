"""Rotary encoding against complex numbers, and by what it is for: products depend on distances alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, ShapeError

BACKENDS: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), NumPy(), Jax(), Torch()]
RNG = np.random.default_rng(0)


def turned(x: Any, positions: Any, base: float, interleaved: bool, width: int) -> np.ndarray[Any, Any]:
    """A pair (a, b) as the complex number a + ib, times exp(i position base^(-2k / width))."""
    head, rest = x[..., :width], x[..., width:]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else np.split(head, 2, -1)
    angles = np.asarray(positions)[..., None] * base ** (-2.0 * np.arange(width // 2) / width)
    z = (a + 1j * b) * np.exp(1j * angles)
    if interleaved:
        both = np.stack([z.real, z.imag], -1).reshape(head.shape)
    else:
        both = np.concatenate([z.real, z.imag], -1)
    return np.concatenate([both, rest], -1)


CASES: list[dict[str, Any]] = [
    {}, {"interleaved": True}, {"base": 100.0, "d_rotary": 4}, {"interleaved": True, "d_rotary": 2},
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("options", CASES, ids=str)
def test_against_complex_numbers(options: dict[str, Any], backend: Backend) -> None:
    layer = nn.RotaryEncodingConfig(8, **options).init()
    assert list(layer.named_params()) == []
    x = RNG.normal(size=(2, 3, 5, 8))
    rest = options.get("base", 10000.0), options.get("interleaved", False), options.get("d_rotary", 8)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11} if "f64" in repr(backend) else {"rtol": 1e-4, "atol": 1e-5}
    given = px.tensor(x, device=backend, kind=px.Float)
    np.testing.assert_allclose(layer(given).numpy(), turned(x, np.arange(5), *rest), **close)
    for positions in (np.array([7, 0, 300, 2, 2]), RNG.integers(0, 50, (2, 1, 5))):
        found = layer(given, px.tensor(positions, device=backend)).numpy()
        np.testing.assert_allclose(found, turned(x, positions, *rest), rtol=close["rtol"], atol=10 * close["atol"])


@pytest.mark.parametrize("options", CASES, ids=str)
def test_products_depend_on_distances_alone(options: dict[str, Any]) -> None:
    layer = nn.RotaryEncoding(8, **options)
    device = NumPy(float="f64").device()
    q, k = (px.tensor(RNG.normal(size=(1, 8)), device=device, kind=px.Float) for _ in "qk")

    def product(i: int, j: int) -> float:
        return (layer(q, px.tensor([i], device=device)) * layer(k, px.tensor([j], device=device))).sum().item()

    assert product(3, 1) == pytest.approx(product(103, 101), rel=1e-9)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-3)
    turned = layer(q, px.tensor([77], device=device))
    assert turned.square().sum().item() == pytest.approx(q.square().sum().item(), rel=1e-12)


@pytest.mark.parametrize("inner", [NumPy(float="f64"), Jax(), Torch()], ids=repr)
def test_the_gradient_is_turned_back(inner: Backend) -> None:
    layer, device = nn.RotaryEncoding(6, d_rotary=4), Autodiff(inner).device()
    x = px.tensor(RNG.normal(size=(3, 6)), device=device, kind=px.Float).require_grad()
    g = RNG.normal(size=(3, 6))
    gradient = x.grad(layer(x).backward(px.tensor(g, device=inner, kind=px.Float)))
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), turned(g, -np.arange(3), 10000.0, False, 4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", [NumPy(float="bf16"), Jax(float="bf16"), Torch(float="bf16")], ids=repr)
def test_angles_are_exact_where_numbers_are_not(backend: Backend) -> None:
    x = px.ones((1, 4), device=backend)
    found = nn.RotaryEncoding(4)(x, px.tensor([1001], device=backend))
    assert found.backend == backend
    np.testing.assert_allclose(
        found.to_full_precision().numpy(), turned(np.ones((1, 4)), [1001], 10000.0, False, 4), rtol=0, atol=0.01
    )


def test_compiled() -> None:
    layer = nn.RotaryEncoding(4)
    x = px.tensor(RNG.normal(size=(3, 4)), device="jax", kind=px.Float)
    turn = px.compile(lambda x, positions: layer(x, positions))
    for start in (0, 5):
        positions = px.arange(3, device="jax") + start
        np.testing.assert_allclose(turn(x, positions).numpy(), layer(x, positions).numpy(), rtol=1e-5, atol=1e-6)
    assert turn.programs == 1


def test_bad_input() -> None:
    wrong: list[dict[str, Any]] = [
        {"d_head": 5},
        {"d_head": 8, "d_rotary": 3},
        {"d_head": 4, "d_rotary": 6},
        {"d_head": 0},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match="even and at least 2"):
            nn.RotaryEncoding(**options)
    with pytest.raises(ConfigError, match="base must be positive, got -1"):
        nn.RotaryEncoding(4, base=-1.0)
    for shape in ((4,), (3, 6)):
        with pytest.raises(ShapeError, match=r"x must be \[..., n, 4\], got shape"):
            nn.RotaryEncoding(4)(px.ones(shape))
