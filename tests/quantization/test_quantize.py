"""Packed models: how close they are, what trains, and what cannot be packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError
from phlox.models import Gpt, GptConfig
from phlox.nn.reparameterizations import WeightNorm
from phlox.quantization import Awq, Gptq, compare_quantized

LARGEST_ERRORS: dict[tuple[str, int | None, bool], float] = {
    # Half a step over the largest weight of a group, in units of that weight.
    ("int8", None, True): 0.5 / 127,
    ("int8", 32, False): 0.5 / 127,
    ("int4", 64, True): 0.28,  # the search for scales may clip by a fifth
    ("int4", 32, False): 1.0 / 15,
    ("nf4", 64, True): 0.16,
    ("mxfp4", None, True): 0.34,  # the largest level is 6 of up to 8
    ("nvfp4", None, True): 0.23,
    ("f8_e4m3", None, True): 1.0 / 28,
}


def gpt(backend: Backend) -> Gpt:
    px.random.seed(0)
    return GptConfig(vocabulary=64, context=16, n_layers=1, d_model=64, n_heads=4).init(backend)


def tokens(backend: Backend) -> Any:
    return px.tensor(np.random.default_rng(0).integers(0, 64, (4, 16)), device=backend)


def test_weights_stay_within_a_step() -> None:
    weight = np.random.default_rng(0).normal(size=(128, 48)).astype(np.float32)
    weight[:, 3] = 0.0
    layer = nn.Linear(128, 48)
    layer.weight.set(px.tensor(weight))
    for (scheme, group, symmetric), largest in LARGEST_ERRORS.items():
        packed = px.quantize(layer, "weight", scheme, group=group, symmetric=symmetric)  # pyright: ignore[reportArgumentType]
        size = {"mxfp4": 32, "nvfp4": 16}.get(scheme, group or 128)
        grouped = np.abs(weight.T).reshape(48, -1, size).max(axis=2)
        if not symmetric:
            span = weight.T.reshape(48, -1, size)
            grouped = np.maximum(span.max(axis=2), 0.0) - np.minimum(span.min(axis=2), 0.0)
            largest = largest / 2.0
        bounds = np.repeat(grouped, size, axis=1).T * largest
        error = np.abs(packed.weight.val().numpy() - weight)
        assert (error <= bounds + 1e-6).all(), (scheme, float((error / np.maximum(bounds, 1e-9)).max()))
        assert (packed.weight.val().numpy()[:, 3] == 0.0).all()


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_adapters_train_on_packed_weights(backend: Backend) -> None:
    model = gpt(backend)
    batch = tokens(backend)
    small = px.quantize(model, ["blocks.**.weight", "tokens.weight"], "nf4")
    tuned = px.lora(small, "blocks.**.weight", rank=4).train()
    packed = {path: param.val().numpy() for path, param in tuned.named_params() if not param.trained}

    def step(tuned: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = px.value_and_grad(lambda tuned: tuned.loss(batch[:, :-1], batch[:, 1:]))(tuned)
        return optimizer.step(1e-2, tuned, grads), optimizer, loss

    run = px.compile(step)
    optimizer = optim.AdamWConfig().init()
    losses: list[float] = []
    for _ in range(8):
        tuned, optimizer, loss = run(tuned, optimizer, batch)
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    for path, param in tuned.named_params():
        assert param.trained == (".lora." in path)
        if path in packed:
            np.testing.assert_array_equal(param.val().numpy(), packed[path])
    merged = px.merge(tuned.valid())
    assert [path for path, _ in merged.named_params()] == [path for path, _ in model.named_params()]
    np.testing.assert_allclose(merged(batch).numpy(), tuned.valid()(batch).numpy(), atol=1e-4)
    # Packing below adapters is the same as adapters on packed weights.
    below = px.quantize(px.lora(model, "blocks.**.weight", rank=4), "blocks.**.weight", "nf4")
    above = px.lora(px.quantize(model, "blocks.**.weight", "nf4"), "blocks.**.weight", rank=4)
    assert [path for path, _ in below.named_params()] == [path for path, _ in above.named_params()]


def test_a_model_trained_for_packing_packs_to_what_it_computed() -> None:
    model, batch = gpt(NumPy()), tokens(NumPy())
    trained = px.fake_quantize(model, "blocks.**.weight", "int4").train()
    optimizer = optim.AdamConfig().init()
    before = trained.loss(batch[:, :-1], batch[:, 1:]).item()
    for _ in range(5):
        grads = px.grad(lambda trained: trained.loss(batch[:, :-1], batch[:, 1:]))(trained)
        trained = optimizer.step(1e-2, trained, grads)
    small = px.quantize(trained.valid(), "blocks.**.weight", "int4")
    assert small.loss(batch[:, :-1], batch[:, 1:]).item() < before - 0.2
    np.testing.assert_allclose(small(batch).numpy(), trained.valid()(batch).numpy(), atol=1e-4)
    # The gradient passes as if nothing were rounded.
    layer: Any = px.fake_quantize(nn.Linear(64, 4).init(0), "weight", "int8").train()
    grads = px.grad(lambda layer: (layer(px.ones((2, 64), device=layer.bias.device)) * 3.0).sum())(layer)
    np.testing.assert_array_equal(grads.get(layer.weight.base.id).numpy(), np.full((64, 4), 6.0))


def test_calibration_lowers_the_error_of_the_layer() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 64)) @ rng.normal(size=(64, 64)) * np.exp(2.0 * rng.normal(size=64))
    x = px.tensor(inputs.astype(np.float32))
    for symmetric in (True, False):
        layer = nn.Linear(64, 32).init(0)
        errors: dict[str, float] = {}
        for name, calibration in (("plain", None), ("gptq", Gptq([x])), ("awq", Awq([x]))):
            options: Any = {"group": 32, "symmetric": symmetric, "calibration": calibration}
            packed = px.quantize(layer, "weight", "int4", **options)
            errors[name] = (packed(x) - layer(x)).square().mean().item()
        assert errors["gptq"] < 0.8 * errors["plain"] and errors["awq"] < 0.9 * errors["plain"], errors


def test_weights_under_adapters_are_calibrated_as_others_are() -> None:
    model, batch = gpt(NumPy()), tokens(NumPy())
    path = "blocks.0.attention.query.weight"
    plain: Any = px.quantize(model, path, "int4", calibration=Gptq([batch]))
    below: Any = px.without_adapters(px.quantize(px.lora(model, path, rank=2), path, "int4", calibration=Gptq([batch])))
    words = [view.blocks[0].attention.query.weight.words.val().numpy() for view in (plain, below)]
    np.testing.assert_array_equal(*words)


def test_the_report_names_bytes_errors_and_losses() -> None:
    model, batch = gpt(NumPy()), tokens(NumPy())
    small = px.lora(px.quantize(model, "blocks.**.weight", "int8"), "blocks.**.weight", rank=2)
    report = compare_quantized(model, small, lambda model, batch: model.loss(batch[:, :-1], batch[:, 1:]), [batch])
    paths = [path for path, _ in model.named_params() if path.startswith("blocks") and path.endswith("weight")]
    assert [weight.path for weight in report.weights] == paths
    for weight in report.weights:
        assert 0.0 < weight.error < 0.01 and weight.bytes_after < 0.28 * weight.bytes_before
    assert report.loss_before is not None and report.loss_after is not None
    assert abs(report.loss_before - report.loss_after) < 0.01
    half = nn.Linear(64, 64, device=NumPy(float="f16"))
    half.weight.set(px.full((64, 64), 100.0, device=NumPy(float="f16")))
    assert compare_quantized(half, px.quantize(half, "weight")).weights[0].error < 0.01
    text = str(report)
    assert "blocks.0.up.weight" in text and "int8" in text and "loss" in text


class _Tied(px.Module):
    """One parameter as the table of an embedding and, the other way round, of a linear layer."""

    def __init__(self) -> None:
        self.table = nn.Embedding(64, 64).init(0)
        self.head = nn.Linear(64, 64)
        self.head.weight = self.table.weight


def test_what_cannot_be_packed_says_why() -> None:
    model = gpt(NumPy())
    packed = px.quantize(model, "head.weight")
    normed = px.reparameterize(model, "head.weight", WeightNorm)
    infinite = nn.Linear(4, 4).init(0)
    infinite.weight.set(px.full((4, 4), float("inf")))
    cases: list[tuple[Any, str, dict[str, Any], tuple[str, ...]]] = [
        (model, "heads", {}, ("heads", "no parameter")),
        (model, "head.weight", {"scheme": "int3"}, ("int3", "int4")),
        (model, "head.weight", {"scheme": "nf4", "symmetric": False}, ("nf4", "zero points")),
        (model, "head.weight", {"scheme": "int4", "group": 48}, ("head.weight", "48", "64", "group=64")),
        (model, "head.weight", {"scheme": "mxfp4", "group": 16}, ("mxfp4", "32")),
        (model, "head.weight", {"group": 0}, ("group", "0")),
        (model, "blocks.0.up.bias", {}, ("blocks.0.up.bias", "two axes")),
        (model.train(), "head.weight", {}, ("head.weight", "trained", "valid()", "fake_quantize")),
        (packed, "head.weight", {}, ("head.weight", "packed already", "merge")),
        (normed, "head.weight", {}, ("head.weight", "WeightNorm", "merge")),
        (infinite, "weight", {}, ("weight", "infinite")),
        (_Tied(), "table.weight", {}, ("table.weight", "head.weight", "tied")),
        (model, "head.weight", {"calibration": Gptq([])}, ("calibration", "batches")),
        (model, "head.weight", {"scheme": "mxfp4", "calibration": Gptq([])}, ("e8m0", "int4")),
    ]
    for module, which, options, words in cases:
        with pytest.raises(ModuleError) as caught:
            px.quantize(module, which, **options)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(ModuleError, match="no packed weights"):
        compare_quantized(model, model)
    with pytest.raises(ModuleError, match="merge"):
        packed.head.weight.set(px.zeros((64, 64)))  # pyright: ignore[reportOptionalMemberAccess]
