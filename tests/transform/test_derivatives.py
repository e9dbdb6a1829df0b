"""Products with Jacobians and Hessians, and the matrices themselves, against PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError, KindError, ShapeError
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

WIDE = NumPy(float="f64")
BACKENDS = [WIDE, Jax(), Torch(float="f64"), Autodiff(WIDE)]
X = np.array([[0.3, -1.2, 0.7], [1.5, 0.2, -0.4]])
V = np.array([[1.0, 0.5, -2.0], [0.25, 1.0, 3.0]])
W = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]])


def tolerance(backend: Any) -> dict[str, Any]:
    return {"rtol": 1e-10, "atol": 1e-12} if backend.float_element == "f64" else {"rtol": 2e-5, "atol": 2e-5}


def given(backend: Any) -> list[Any]:
    return [px.tensor(a, device=backend) for a in (X, V, W)]


def wide(x: Any) -> Any:
    """Of more elements than x has."""
    return (x.reshape(1, -1) * x.reshape(-1, 1)).sin()


def narrow(x: Any) -> Any:
    return (x * x).sum(-1) * x.tanh().sum(0)[0]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("fn", [wide, narrow])
def test_jacobian(backend: Any, fn: Any) -> None:
    x, _, _ = given(backend)
    found = px.jacobian(fn)(x)
    wanted = torch.func.jacrev(fn)(torch.tensor(X))
    assert found.backend is backend and found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), **tolerance(backend))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_hessian_and_its_product(backend: Any) -> None:
    x, v, w = given(backend)

    def fn(x: Any, w: Any = w) -> Any:
        return ((x @ w).tanh() ** 2).sum() * x.exp().sum()

    t = torch.tensor(W)
    hessian: Any = torch.autograd.functional.hessian(lambda x: fn(x, t), torch.tensor(X))
    wanted = hessian.numpy()
    found = px.hessian(fn)(x)
    assert found.backend is backend and found.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(found.numpy(), wanted, **tolerance(backend))
    product = px.hvp(fn, x, v)
    np.testing.assert_allclose(product.numpy(), np.einsum("abcd,cd->ab", wanted, V), **tolerance(backend))
    # By the names of other libraries: the Jacobian of the gradient, and the gradient of the gradient's projection.
    np.testing.assert_allclose(px.jacobian(px.grad(fn))(x).numpy(), wanted, **tolerance(backend))
    projected = px.grad(lambda x: (px.grad(fn)(x) * v).sum())(x)
    np.testing.assert_allclose(projected.numpy(), product.numpy(), **tolerance(backend))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_products_of_structures(backend: Any) -> None:
    x, v, w = given(backend)

    def fn(pair: Any, scale: Any) -> Any:
        a, b = pair["a"], pair["b"]
        return {"y": (a @ b) * scale, "z": [a.sum() * scale.sum()]}

    def plain(a: Any, b: Any, scale: Any) -> Any:
        return (a @ b) * scale, a.sum() * scale.sum()

    scale = px.tensor(2.0, device=backend)
    points = (torch.tensor(X), torch.tensor(W), torch.tensor(2.0, dtype=torch.float64))
    # forward
    tangents = ({"a": v, "b": w * 0.5}, px.tensor(1.0, device=backend))
    y, dy = px.jvp(fn, ({"a": x, "b": w}, scale), tangents)
    directions = (torch.tensor(V), torch.tensor(W * 0.5), torch.tensor(1.0, dtype=torch.float64))
    wanted_y, wanted_dy = torch.autograd.functional.jvp(plain, points, directions)
    for found, wanted in ((y, wanted_y), (dy, wanted_dy)):
        assert found["y"].backend is backend and set(found) == {"y", "z"}
        np.testing.assert_allclose(found["y"].numpy(), wanted[0].numpy(), **tolerance(backend))
        np.testing.assert_allclose(found["z"][0].numpy(), wanted[1].numpy(), **tolerance(backend))
    # backward, twice
    value, pull = px.vjp(fn, {"a": x, "b": w}, scale)
    np.testing.assert_allclose(value["y"].numpy(), wanted_y[0].numpy(), **tolerance(backend))
    for factor in (1.0, -3.0):
        cotangent = {"y": px.ones((2, 2), device=backend) * factor, "z": [px.tensor(0.5, device=backend)]}
        (pair, d_scale) = pull(cotangent)
        torch_pull: Any = torch.func.vjp(plain, *points)[1]
        a, b, s = torch_pull((torch.full((2, 2), factor).double(), torch.tensor(0.5).double()))
        np.testing.assert_allclose(pair["a"].numpy(), a.numpy(), **tolerance(backend))
        np.testing.assert_allclose(pair["b"].numpy(), b.numpy(), **tolerance(backend))
        np.testing.assert_allclose(d_scale.numpy(), s.numpy(), **tolerance(backend))


def test_hvp_of_a_module() -> None:
    px.random.seed(0)
    model = nn.Sequential([nn.Linear(3, 4), nn.Gelu(), nn.Linear(4, 1)]).to_device(NumPy(float="f64"))
    x = px.tensor(X, device=NumPy(float="f64"))

    def loss(m: Any) -> Any:
        return (m(x) ** 2).mean()

    _, direction = px.value_and_grad(loss)(model.train())
    product = px.hvp(loss, model, direction)
    # Differences of the gradient along the direction.
    sides: list[Any] = []
    for h in (1e-5, -1e-5):
        moved = model.map(lambda path, p, h=h: p.map(lambda value: value + direction.get(p.id) * h))
        sides.append(px.grad(loss)(moved.train()))
    assert len(product) == len(direction) == 4
    for param in model.params():
        wanted = (sides[0].get(param.id).numpy() - sides[1].get(param.id).numpy()) / 2e-5
        found = product.get(param.id)
        assert found is not None
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-9)


def test_where_nothing_depends_there_are_zeros() -> None:
    x, v = px.tensor([1.0, 2.0]), px.tensor([1.0, 1.0])
    fixed = px.tensor(3.0)
    assert px.jacobian(lambda x: fixed * 2.0)(x).tolist() == [0.0, 0.0]
    assert px.hessian(lambda x: x.sum())(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert px.hvp(lambda x: x.sum(), x, v).tolist() == [0.0, 0.0]
    assert px.jvp(lambda x: fixed * 1.0, (x,), (v,))[1].item() == 0.0
    assert px.vjp(lambda x, y: x * 2.0, x, x)[1](v)[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_jacobians_of_nothing(shape: tuple[int, ...]) -> None:
    x = px.zeros(shape)
    assert px.jacobian(lambda x: x * 2.0)(x).shape == (*shape, *shape)
    assert px.jacobian(lambda x: x.sum() * px.ones((3,)))(x).shape == (3, *shape)
    assert px.hessian(lambda x: x.sum())(x).shape == (*shape, *shape)


def test_bad_input_is_explained() -> None:
    x = px.tensor([1.0, 2.0])
    with pytest.raises(KindError, match=r"jacobian: Int tensors have no derivatives; convert with \.float\(\) first"):
        px.jacobian(lambda x: x)(px.arange(2))
    with pytest.raises(KindError, match="vjp: the function must return Float tensors, got Bool"):
        px.vjp(lambda x: x > 0.0, x)
    with pytest.raises(ShapeError, match=r"hessian: the function must return one number, got shape \(2,\)"):
        px.hessian(lambda x: x * 2.0)(x)
    with pytest.raises(ShapeError, match=r"jvp: the tangent must have shape \(2,\), got \(3,\)"):
        px.jvp(lambda x: x, (x,), (px.ones((3,)),))
    with pytest.raises(ShapeError, match=r"vjp: the cotangent must have shape \(2,\), got \(2,\) and \(2,\)"):
        px.vjp(lambda x: x, x)[1]((x, x))
    with pytest.raises(KindError, match="jacobian: the function must return Float tensors, got float"):
        px.jacobian(lambda x: 1.0)(x)
    with pytest.raises(AutodiffError, match="the direction for a module is GradientsParams"):
        px.hvp(lambda m: m(x).sum(), nn.Linear(2, 1), x)


# --- every operation: all ways to its derivative agree


@pytest.mark.parametrize("function", [
    lambda x: px.linalg.eigh(x + x.mT).eigenvectors[0, 0] ** 2,
    lambda x: px.linalg.svd(x).U[0, 0] ** 2,
], ids=["eigh", "svd"])  # fmt: skip
def test_second_derivatives_where_the_first_is_zero_by_symmetry(function: Any) -> None:
    """Of vectors of a diagonal matrix: a first derivative that is taken for rounding has a second one."""
    x, h = np.diag([1.0, 3.0]), 1e-4
    bent = [x + np.array([[0.0, t], [t, 0.0]]) for t in (-h, h)]
    low, high = (function(px.tensor(one, device=WIDE)).item() for one in bent)
    wanted = (low + high - 2.0 * function(px.tensor(x, device=WIDE)).item()) / h**2
    across = px.tensor([[0.0, 1.0], [1.0, 0.0]], device=WIDE)

    def first(x: Any) -> Any:
        return (px.grad(function)(x) * across).sum()

    at = px.tensor(x, device=WIDE)
    assert wanted != 0.0
    for found in (px.grad(first)(at) * across).sum(), (px.hvp(function, at, across) * across).sum():
        np.testing.assert_allclose(found.item(), wanted, 1e-6)


def _dot(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    return sum((x * y).sum().item() for x, y in zip(xs, ys, strict=True))


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "row", [one for one in ROWS if one.samples and running.differentiable(one, one.samples[0])], ids=str
)
def test_forward_and_reverse_mode_agree_once_and_twice(row: Row) -> None:
    sample = next((one for one in row.samples if all(a.size for a in one if isinstance(a, np.ndarray))), row.samples[0])
    places = running.differentiable(row, sample)
    given = running.tensors(sample, WIDE)
    xs = [given[place] for place in places]
    rng = np.random.default_rng(0)
    vs = tuple(px.tensor(rng.normal(size=x.shape), device=WIDE) for x in xs)

    def call(*xs: Any) -> Any:
        arguments = list(given)
        for place, x in zip(places, xs, strict=True):
            arguments[place] = x
        return row.call(*arguments)

    def pulled(*xs: Any) -> Any:
        return px.vjp(call, *xs)[1](w)

    def pushed(*xs: Any) -> Any:
        return px.jvp(call, xs, vs)[1]

    with np.errstate(all="ignore"):
        y, pull = px.vjp(call, *xs)
        w = px.tensor(running.cotangent(y.shape), device=WIDE)
        first = _dot(pulled(*xs), vs)
        found = {
            "forward": (_dot([pushed(*xs)], [w]), first),
            "reverse at 1e-30": (_dot(pull(w * 1e-30), vs) * 1e30, first),
            "reverse at 0": (_dot(pull(w * 0.0), vs), first * 0.0),
        }
        if row.second:
            second = _dot(px.vjp(pulled, *xs)[1](vs), vs)
            found["forward over reverse"] = _dot(px.jvp(pulled, xs, vs)[1], vs), second
            found["reverse over forward"] = _dot(px.vjp(pushed, *xs)[1](w), vs), second
            found["forward over forward"] = _dot([px.jvp(pushed, xs, vs)[1]], [w]), second
    for name, (got, right) in found.items():
        np.testing.assert_allclose(got, right, rtol=row.factor * 1e-7, atol=1e-12, err_msg=name)
