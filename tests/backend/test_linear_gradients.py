"""The gradient of a large weight on JAX, which takes another way than that of a small one: to the same numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import phlox as px
from phlox import functional
from phlox.backend import Autodiff, Jax
from phlox.backend.jax import dense as on_jax


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", [(12, 3, 5), (12, 5, 3), (12, 4, 4)], ids=["wider", "narrower", "square"])
def test_a_turned_operand_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], compiled: bool
) -> None:
    monkeypatch.setattr(on_jax, "_WORTH", 1)
    monkeypatch.setattr(on_jax, "_LONG", 1)
    rows, inputs, outputs = shape
    rng = np.random.default_rng(inputs)
    x, w, b, g = (rng.normal(size=size) for size in ((2, rows, inputs), (inputs, outputs), outputs, (2, rows, outputs)))
    device = Autodiff(Jax()).device()

    def gradients(*given: px.Tensor) -> list[px.Tensor]:
        *traced, towards = given
        traced = [one.require_grad() for one in traced]
        grads = (functional.linear(*traced) * towards).sum().backward()
        found = [one.grad(grads) for one in traced]
        return [one for one in found if one is not None]

    run = px.compile(gradients) if compiled else gradients
    found = run(*(px.tensor(one, device=device) for one in (x, w, b, g)))
    expected = (g @ w.T, np.einsum("bri,bro->io", x, g), g.sum((0, 1)))
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("shape", "turned"),
    [((2048, 256, 1024), 1), ((2048, 1024, 256), 2), ((1023, 1024, 1024), 0), ((1024, 256, 256), 0)],
    ids=["wider", "narrower", "few rows", "small"],
)
def test_which_way_is_taken(shape: tuple[int, int, int], turned: int) -> None:
    rows, inputs, outputs = shape
    x, g = (jax.ShapeDtypeStruct((rows, size), np.float32) for size in (inputs, outputs))
    program = str(jax.make_jaxpr(lambda x, g: on_jax._weight_gradient(Jax(), x, g))(x, g))
    assert program.count("optimization_barrier") == turned
