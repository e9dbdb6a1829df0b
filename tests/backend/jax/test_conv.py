"""Convolution on JAX, which takes one way for short windows and another for long ones: to the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

from phlox.backend import Jax, NumPy
from phlox.backend.jax import conv as on_jax

Shape = tuple[int, ...]
CASES: dict[str, tuple[Any, ...]] = {
    "short": ((2, 3, 20), (4, 3, 5), (1,), ((2, 2),), (1,), 1),
    "long": ((2, 1, 200), (4, 1, 64), (4,), ((3, 0),), (1,), 1),
    "long, dilated": ((2, 2, 90), (3, 2, 20), (2,), ((0, 5),), (3,), 1),
    "patches": ((2, 3, 20, 32), (5, 3, 10, 16), (10, 16), ((0, 0),) * 2, (1, 1), 1),
    "patches that leave a rest": ((2, 3, 23, 37), (5, 3, 10, 16), (10, 16), ((1, 0), (2, 3)), (1, 1), 1),
    "patches along one axis": ((1, 2, 24, 9), (3, 2, 12, 3), (12, 2), ((0, 0), (1, 1)), (1, 1), 1),
    "stem": ((2, 3, 18, 17), (4, 3, 7, 7), (2, 2), ((3, 3),) * 2, (1, 1), 1),
    "large": ((1, 2, 30, 30), (3, 2, 19, 19), (1, 1), ((9, 9),) * 2, (1, 1), 1),
    "volumes": ((1, 2, 4, 16, 16), (3, 2, 2, 8, 8), (2, 8, 8), ((0, 0),) * 3, (1, 1, 1), 1),
    "volumes that overlap": ((1, 2, 7, 8, 9), (2, 2, 4, 5, 4), (1, 2, 1), ((1, 0),) * 3, (1, 1, 1), 1),
    "depthwise": ((2, 6, 30), (6, 1, 5), (1,), ((2, 2),), (1,), 6),
    "depthwise, long": ((1, 3, 300), (3, 1, 140), (2,), ((70, 69),), (1,), 3),
    "depthwise, of one channel": ((2, 1, 60), (1, 1, 21), (1,), ((0, 0),), (1,), 1),
    "groups": ((2, 4, 40), (6, 2, 24), (1,), ((0, 0),), (1,), 2),
}


def _torch(x: Any, weight: Any, stride: Shape, padding: Any, dilation: Shape, groups: int) -> Any:
    x = torch.nn.functional.pad(x, [width for pair in reversed(padding) for width in pair])
    convolve = getattr(torch.nn.functional, f"conv{len(stride)}d")
    return convolve(x, weight, None, stride, 0, dilation, groups)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    shape, window, *options = CASES[name]
    rng = np.random.default_rng(math.prod(shape))
    x, w = (torch.tensor(rng.normal(size=size), requires_grad=True) for size in (shape, window))
    y = _torch(x, w, *options)
    g = torch.tensor(rng.normal(size=tuple(y.shape)))
    dx, dw = torch.autograd.grad(y, (x, w), g)
    arrays = [np.asarray(one.detach(), np.float32) for one in (x, w, g)]
    for found, right in (
        (on_jax.conv(arrays[0], arrays[1], None, *options), y),
        (on_jax.conv_dx(arrays[2], arrays[1], shape, *options), dx),
        (on_jax.conv_dw(arrays[0], arrays[2], window, *options), dw),
    ):
        wanted = right.detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


UNFOLDED = [name for name, case in CASES.items() if case[-1] == 1]


@pytest.mark.parametrize("name", UNFOLDED)
def test_columns(name: str) -> None:
    (n, channels, *sizes), (_, _, *window), *options, _ = CASES[name]
    x = np.random.default_rng(0).normal(size=(n, channels, *sizes)).astype(np.float32)
    exact = NumPy(float="f64")
    columns = on_jax.im2col(x, tuple(window), *options)
    wanted = exact.im2col(x.astype(np.float64), tuple(window), *options)
    np.testing.assert_array_equal(columns, wanted)
    g = np.random.default_rng(1).normal(size=wanted.shape)
    folded = on_jax.col2im(g.astype(np.float32), x.shape, tuple(window), *options)
    np.testing.assert_allclose(folded, exact.col2im(g, x.shape, tuple(window), *options), rtol=1e-4, atol=1e-4)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                yield from _equations(inner.jaxpr)


LONG = {
    "long": ((2, 1, 2048), (4, 1, 512), (4,), 1),
    "image": ((1, 2, 64, 64), (3, 2, 31, 31), (1, 1), 1),
    "patches": ((1, 3, 64, 64), (8, 3, 32, 32), (32, 32), 1),
    "depthwise": ((1, 3, 64, 64), (3, 1, 31, 31), (1, 1), 3),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_window_does_not_make_a_long_program(name: str) -> None:
    shape, window, stride, groups = LONG[name]
    rest = (stride, ((0, 0),) * len(stride), (1,) * len(stride), groups)
    x, w = (np.zeros(size, np.float32) for size in (shape, window))
    y = np.zeros(jax.eval_shape(lambda x, w: on_jax.conv(x, w, None, *rest), x, w).shape, np.float32)
    programs = [
        jax.make_jaxpr(lambda x, w: on_jax.conv(x, w, None, *rest))(x, w),
        jax.make_jaxpr(lambda g, w: on_jax.conv_dx(g, w, shape, *rest))(y, w),
        jax.make_jaxpr(lambda x, g: on_jax.conv_dw(x, g, window, *rest))(x, y),
        jax.make_jaxpr(lambda x: on_jax.im2col(x, window[2:], *rest[:3]))(x),
    ]
    for program in programs:
        assert sum(1 for _ in _equations(program.jaxpr)) < 60
    assert Jax().im2col is on_jax.im2col
