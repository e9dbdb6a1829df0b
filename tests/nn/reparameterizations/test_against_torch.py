# What stands in the place of a parameter is not of its type, and PyTorch's annotations leave much unsaid.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
"""Weight norm, spectral norm, orthogonal matrices and pruning: torch's functions of these names are the reference.

Serves: phlox/nn/reparameterizations/{weight_norm,spectral_norm,orthogonal,mask,low_rank}.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, prune

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, ModuleError
from phlox.nn.reparameterizations import LowRank, Mask, Orthogonal, SpectralNorm, WeightNorm

RNG = np.random.default_rng(0)
BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]
LAYERS: dict[str, tuple[Any, Any, tuple[int, ...], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 6), lambda: torch.nn.Linear(4, 6), (5, 4), (1, 0)),
    "conv": (lambda: nn.Conv2d(3, 4, 2), lambda: torch.nn.Conv2d(3, 4, 2), (2, 3, 5, 5), (0, 1, 2, 3)),
    "transposed": (
        lambda: nn.ConvTranspose1d(3, 4, 2), lambda: torch.nn.ConvTranspose1d(3, 4, 2), (2, 3, 5), (0, 1, 2),
    ),
}  # fmt: skip
"""Our layer, theirs, the shape of an input, and the axes of their weight in ours."""


def both(kind: str, backend: Backend) -> tuple[Any, Any, np.ndarray, tuple[int, ...]]:
    own, other, shape, axes = LAYERS[kind]
    torch.manual_seed(0)
    theirs = other()
    ours = own().to_device(Autodiff(backend))
    device = next(iter(ours.params())).device
    ours.weight.set(px.tensor(np.ascontiguousarray(theirs.weight.detach().numpy().transpose(axes)), device=device))
    ours.bias.set(px.tensor(theirs.bias.detach().numpy(), device=device))
    return ours, theirs, RNG.normal(size=shape).astype(np.float32), axes


def assert_same_gradients(ours: Any, theirs: Any, x: np.ndarray, pairs: dict[str, Any], axes: tuple[int, ...]) -> None:
    device = next(iter(ours.params())).device
    y = ours(px.tensor(x, device=device))
    expected = theirs(torch.tensor(x))
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    (expected**3).sum().backward()
    grads = px.GradientsParams.from_grads((y**3.0).sum().backward(), ours)
    params = dict(ours.named_params())
    for path, param in pairs.items():
        gradient, reference = grads.get(params[path].id).numpy(), param.grad.numpy()
        if path != "bias":
            reference = reference.transpose(axes)
        np.testing.assert_allclose(gradient, reference, rtol=1e-3, atol=1e-4 * np.abs(reference).max(), err_msg=path)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("kind", LAYERS)
def test_weight_norm(kind: str, backend: Backend) -> None:
    ours, theirs, x, axes = both(kind, backend)
    ours = px.reparameterize(ours, "weight", WeightNorm)
    axis = 1 if kind == "transposed" else 0  # that of the outputs
    theirs = parametrizations.weight_norm(theirs, dim=axis)
    with torch.no_grad():
        theirs.parametrizations.weight.original0.mul_(1.5)
    ours.weight.magnitude.set(ours.weight.magnitude.val() * 1.5)
    parts = theirs.parametrizations.weight
    pairs = {"weight.magnitude": parts.original0, "weight.base": parts.original1, "bias": theirs.bias}
    assert_same_gradients(ours.train(tape=True), theirs, x, pairs, axes)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("kind", LAYERS)
def test_spectral_norm(kind: str, backend: Backend) -> None:
    """From the same vectors, the same values, gradients and vectors after each use; inference changes none."""
    ours, theirs, x, axes = both(kind, backend)
    ours = px.reparameterize(ours, "weight", partial(SpectralNorm, iterations=2))
    theirs = parametrizations.spectral_norm(theirs, n_power_iterations=2)
    state = theirs.parametrizations.weight[0]
    device = ours.weight.u.device
    with torch.no_grad():
        state._u.normal_()
        state._v.normal_()
        state._u.div_(state._u.norm())
        state._v.div_(state._v.norm())

    def same_vectors() -> None:
        for own, vector in ((ours.weight.u, state._u), (ours.weight.v, state._v)):
            np.testing.assert_allclose(own.val().numpy(), vector.numpy(), rtol=1e-4, atol=1e-5)

    for own, vector in ((ours.weight.u, state._u), (ours.weight.v, state._v)):
        own.set(px.tensor(vector.numpy().copy(), device=device))
    ours = ours.train(tape=True)
    pairs = {"weight.base": theirs.parametrizations.weight.original, "bias": theirs.bias}
    assert_same_gradients(ours, theirs, x, pairs, axes)
    same_vectors()
    before = ours.weight.u.val().numpy()
    still = ours.valid(tape=False)
    y = still(px.tensor(x, device=next(iter(still.params())).device)).numpy()
    np.testing.assert_allclose(y, theirs.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ours.weight.u.val().numpy(), before)


def test_spectral_norm_starts_converged() -> None:
    layer = px.reparameterize(nn.Linear(6, 9).init(0), "weight", SpectralNorm).valid()
    value = np.linalg.norm(layer.weight.val().numpy(), 2)
    assert abs(value - 1) < 0.05
    with pytest.raises(ConfigError, match="iterations must be at least 1, got 0"):
        px.reparameterize(nn.Linear(3, 3), "weight", partial(SpectralNorm, iterations=0))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 3)])
def test_orthogonal(shape: tuple[int, int], backend: Backend) -> None:
    layer = nn.Linear(*shape, initializer=nn.Orthogonal()).init(0).to_device(backend)
    view = px.reparameterize(layer, "weight", Orthogonal)
    np.testing.assert_allclose(view.weight.val().numpy(), layer.weight.val().numpy(), atol=1e-5)  # its own value
    view.weight.base.set(px.random.normal(shape, device=view.weight.device))
    value = view.weight.val().numpy()
    small = value @ value.T if shape[0] < shape[1] else value.T @ value
    np.testing.assert_allclose(small, np.eye(min(shape)), atol=1e-5)
    kernel = px.reparameterize(nn.Conv1d(2, 3, 4).init(0), "weight", Orthogonal).weight.val().numpy().reshape(3, 8)
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 1.0])
def test_magnitude_pruning(sparsity: float, backend: Backend) -> None:
    ours, theirs, x, axes = both("conv", backend)
    ours = px.reparameterize(ours, "weight", partial(Mask, sparsity=sparsity))
    theirs = prune.l1_unstructured(theirs, "weight", amount=sparsity)
    np.testing.assert_array_equal(ours.weight.mask.val().numpy(), theirs.weight_mask.numpy().astype(bool))
    pairs = {"weight.base": theirs.weight_orig, "bias": theirs.bias}
    assert_same_gradients(ours.train(tape=True), theirs, x, pairs, axes)


def test_of_each_group_the_largest() -> None:
    layer = nn.Linear(8, 3).init(0)
    mask = px.reparameterize(layer, "weight", partial(Mask, keep=(2, 4))).weight.mask.val().numpy()
    groups = np.abs(layer.weight.val().numpy().T).reshape(3, 2, 4)  # along the inputs of each output
    kept = mask.T.reshape(3, 2, 4)
    assert (kept.sum(-1) == 2).all()
    assert (np.where(kept, groups, np.inf).min(-1) >= np.where(kept, 0.0, groups).max(-1)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give just one of mask, sparsity and keep"),
        ({"sparsity": 0.5, "keep": (1, 2)}, "give just one of"),
        ({"sparsity": 1.5}, "sparsity must be between 0 and 1, got 1.5"),
        ({"keep": (2, 3)}, r"keep=\(2, 3\) does not fit a parameter with 8 inputs"),
        ({"mask": np.ones((8, 3))}, r"must be Bool of the parameter's shape \(8, 3\), got Float"),
        ({"mask": np.ones(3, bool)}, r"got Bool of shape \(3,\)"),
    ],
)
def test_masks_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        px.reparameterize(nn.Linear(8, 3), "weight", partial(Mask, **options))


def test_low_rank_is_the_best_approximation() -> None:
    layer = nn.Linear(8, 6).init(0)
    whole = layer.weight.val().numpy()
    u, s, v = np.linalg.svd(whole, full_matrices=False)
    for rank in (1, 3, 6):
        view = px.reparameterize(layer, "weight", partial(LowRank, rank=rank))
        np.testing.assert_allclose(view.weight.val().numpy(), (u[:, :rank] * s[:rank]) @ v[:rank], atol=1e-5)
