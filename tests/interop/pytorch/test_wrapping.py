"""Layers of PyTorch: modes, buffers, frozen parameters, draws, and layers with several results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import Torch
from phlox.errors import ModuleError
from phlox.interop import pytorch

X = np.random.default_rng(0).normal(loc=1.0, size=(6, 4)).astype(np.float32)


def norm() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("compiled", [False, True])
def test_statistics_of_a_batch_norm(compiled: bool) -> None:
    own, layer = norm(), norm()
    model = pytorch.wrap(layer).train()
    untrained = [path for path, param in model.named_params() if not param.trained]
    assert untrained == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    run: Any = px.compile(lambda model, x: model(x)) if compiled else lambda model, x: model(x)
    x = px.tensor(X, device="torch")
    for _ in range(3):
        expected = own(torch.tensor(X)).detach().numpy()
        np.testing.assert_allclose(run(model, x).numpy(), expected, rtol=1e-5, atol=1e-6)
    for path, param in model.named_params():
        np.testing.assert_allclose(param.val().numpy(), own.state_dict()[path].numpy(), rtol=1e-5)
    valid, before = model.valid(), [param.val().primitive for param in model.valid().params()]
    np.testing.assert_allclose(run(valid, x).numpy(), own.eval()(torch.tensor(X)).detach().numpy(), rtol=1e-5)
    assert compiled or all(p.val().primitive is array for p, array in zip(valid.params(), before, strict=True))
    assert all(torch.equal(value, norm().state_dict()[name]) for name, value in layer.state_dict().items())


def test_half_precision() -> None:
    half = Torch(float="bf16")
    model, own = pytorch.wrap(norm()).to_device(half).train(), norm().bfloat16()
    found = model(px.tensor(X, device=half))
    np.testing.assert_array_equal(
        found.to_full_precision().numpy(), own(torch.tensor(X).bfloat16()).detach().float().numpy()
    )


def test_dropout_draws_from_pytorch_and_repeats_for_second_derivatives() -> None:
    model = pytorch.wrap(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Tanh()))
    x = px.tensor(X, device="torch")
    np.testing.assert_allclose(model.valid()(x).numpy(), np.tanh(X), rtol=1e-6)
    model.training = True
    torch.manual_seed(3)
    found = px.grad(lambda x: px.grad(lambda x: model(x).square().sum())(x).sum())(x)
    torch.manual_seed(3)
    own = torch.tensor(X, requires_grad=True)
    (first,) = torch.autograd.grad(torch.nn.functional.dropout(own, 0.5).tanh().square().sum(), own, create_graph=True)
    np.testing.assert_allclose(found.numpy(), torch.autograd.grad(first.sum(), own)[0].numpy(), rtol=1e-5, atol=1e-6)


def test_frozen_parameters_ties_and_several_results() -> None:
    layer: Any = torch.nn.LSTM(4, 4)
    layer.bias_hh_l0.requires_grad_(False)
    model = pytorch.wrap(layer)
    assert [path for path, param in model.named_params() if not param.trained] == ["bias_hh_l0"]
    assert all(param.trained for param in model.unfreeze().params())
    y, (h, c) = model(px.tensor(X, device="torch"))
    expected, (state, cell) = layer(torch.tensor(X))
    for mine, its in ((y, expected), (h, state), (c, cell)):
        np.testing.assert_allclose(mine.numpy(), its.detach().numpy(), rtol=1e-5, atol=1e-6)
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    model = pytorch.wrap(tied)
    assert [path for path, _ in model.named_params()] == ["0.weight", "0.bias", "1.bias"]
    np.testing.assert_allclose(
        model(px.tensor(X, device="torch")).numpy(), tied(torch.tensor(X)).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ModuleError, match="`weight` of the LazyLinear has no shape yet; call the layer once"):
        pytorch.wrap(torch.nn.LazyLinear(3))


def test_another_method() -> None:
    layer = torch.nn.EmbeddingBag(5, 3, mode="sum")
    ids = np.array([[0, 3], [4, 1]])
    model = pytorch.wrap(layer, call=lambda layer, ids: layer(ids.long()) * 2)
    found = model(px.tensor(ids, device="torch"))
    np.testing.assert_allclose(found.numpy(), layer(torch.tensor(ids)).detach().numpy() * 2)
