"""The gradient of a weight on JAX, which takes one way or another: to the same numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import phlox as px
from phlox import functional
from phlox.backend import Autodiff, Jax
from phlox.backend.jax import linear as on_jax


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", [(12, 3, 5), (12, 5, 3), (12, 16, 2)], ids=["wider", "narrower", "narrow"])
def test_a_turned_operand_makes_no_difference(shape: tuple[int, int, int], compiled: bool) -> None:
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


@pytest.mark.parametrize(("outputs", "turned"), [(1024, 1), (65, 1), (64, 2), (10, 2)])
def test_which_way_is_taken(outputs: int, turned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, g = (jax.ShapeDtypeStruct((64, size), np.float32) for size in (256, outputs))

    def barriers() -> int:
        program = jax.make_jaxpr(lambda x, g: on_jax._weight_gradient(Jax(), x, g))(x, g)
        return str(program).count("optimization_barrier")

    assert barriers() == turned
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert barriers() == 0
