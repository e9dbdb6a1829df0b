"""A packed weight is its formula, in every layer, on every engine, and a part of the module like any other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.contract.nn.packed import CODINGS, pack
from phlox.errors import IndexRangeError
from phlox.module.architecture import architecture, build_module
from phlox.module.packed import Packed

RNG = np.random.default_rng(0)
ENGINES = [NumPy(), Jax(), Torch()]


def formula(packed: Packed) -> np.ndarray[Any, Any]:
    """The matrix in f64, from the codes and by the definition."""
    words = packed.words.val().numpy().astype(np.uint32)
    coding = CODINGS[packed.coding]
    shifts = np.arange(coding.per_word, dtype=np.uint32) * np.uint32(coding.bits)
    codes = (words[..., None] >> shifts) & np.uint32(2**coding.bits - 1)
    levels = coding.levels.astype(np.float64)[codes.reshape(len(words), -1)][:, : packed.columns]
    for part, combine in ((packed.scales, np.multiply), (packed.offsets, np.add)):
        if part is not None:
            values = formula(part) if isinstance(part, Packed) else part.val().numpy().astype(np.float64)
            levels = combine(levels, np.repeat(values, packed.columns // values.shape[1], axis=1))
    return levels


def small(shape: tuple[int, ...], axis: int, backend: Backend, coding: str = "int4") -> Packed:
    """A packed weight with nested scales and with offsets, of 8 columns a group."""
    rows, columns = shape[axis], int(np.prod(shape)) // shape[axis]
    codes = px.tensor(pack(RNG.integers(0, 16, (rows, columns)), CODINGS[coding].bits), device=backend)
    groups = columns // 8
    scale_codes = px.tensor(pack(RNG.integers(40, 80, (rows, groups)), 8), device=backend)
    scales = Packed(scale_codes, "e4m3", groups, scales=px.full((1, 1), 0.25, device=backend))
    offsets = px.tensor(RNG.normal(size=(rows, groups)).astype(np.float32), device=backend)
    return Packed(codes, coding, columns, scales=scales, offsets=offsets, shape=shape, axis=axis)


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_layers_compute_with_its_value(backend: Backend) -> None:
    x = px.tensor(RNG.normal(size=(2, 3, 16)).astype(np.float32), device=backend)
    image = px.tensor(RNG.normal(size=(2, 4, 5, 5)).astype(np.float32), device=backend)
    indices = px.tensor([[0, 5], [11, 2]], device=backend)
    layers: list[tuple[nn.Linear | nn.Embedding | nn.Conv2d | nn.ConvTranspose2d, int, Callable[[Any], Any]]] = [
        (nn.Linear(16, 12, device=backend), 1, lambda layer: layer(x)),
        (nn.Embedding(12, 16, device=backend), 0, lambda layer: layer(indices)),
        (nn.Embedding(12, 16, device=backend), 0, lambda layer: layer.logits(x)),
        (nn.Conv2d(4, 6, 2, device=backend), 0, lambda layer: layer(image)),
        (nn.ConvTranspose2d(4, 6, 2, device=backend), 1, lambda layer: layer(image)),
    ]
    for layer, axis, call in layers:
        packed = small(layer.weight.shape, axis, backend)
        value = np.moveaxis(formula(packed).reshape(np.moveaxis(np.empty(packed.shape), axis, 0).shape), 0, axis)
        np.testing.assert_allclose(packed.val().numpy(), value, rtol=1e-6, atol=1e-6)
        view = px.reparameterize(layer, "weight", lambda _, packed=packed: packed)
        plain = px.merge(view)
        assert type(plain.weight) is px.Param and plain.weight.id == packed.words.id
        np.testing.assert_allclose(call(view).numpy(), call(plain).numpy(), rtol=1e-5, atol=1e-4)
        compiled = px.compile(lambda model, call=call: call(model))
        np.testing.assert_allclose(compiled(view).numpy(), call(plain).numpy(), rtol=1e-5, atol=1e-4)


def test_it_is_saved_moved_copied_and_described(tmp_path: Path) -> None:
    x = np.ones((2, 64), np.float32)
    model = px.quantize(nn.Sequential([nn.Linear(64, 32), nn.Linear(32, 8)]).init(0), "**.weight", "nvfp4")
    expected = model(px.tensor(x)).numpy()
    path = model.save(tmp_path / "model.safetensors")
    other = px.quantize(nn.Sequential([nn.Linear(64, 32), nn.Linear(32, 8)]).init(1), "**.weight", "nvfp4")
    assert set(px.record.load(path)) == {path for path, _ in model.named_params()}
    rebuilt = build_module(architecture(model))
    assert other.load(path).ok and rebuilt.load(path).ok
    for same in (
        other,
        rebuilt,
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),  # noqa: S301
        model.train().valid(),
        model.to_device(NumPy(int="i64")),
    ):
        np.testing.assert_array_equal(same(px.tensor(x, device=same.layers[0].bias.device)).numpy(), expected)
    for backend in (Jax(), Torch()):
        moved = model.to_device(backend)
        np.testing.assert_allclose(moved(px.tensor(x, device=backend)).numpy(), expected, rtol=1e-5, atol=1e-5)
    half = NumPy(float="bf16")
    layer = px.quantize(nn.Linear(64, 32, device=half).init(0), "weight", "int8")
    ones = px.ones((2, 64), device=half)
    got, plain = (model(ones).to_full_precision().numpy() for model in (layer, px.merge(layer)))
    np.testing.assert_allclose(got, plain, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
@pytest.mark.parametrize("scheme", ["int4", "mxfp4"])
def test_a_token_that_is_no_entry_is_refused(scheme: Any, backend: Backend) -> None:
    table = px.quantize(nn.Embedding(8, 64, device=backend).init(0), "weight", scheme)
    for wrong in (-1, 8):
        tokens = px.tensor([0, wrong], device=backend)
        with pytest.raises(IndexRangeError, match=str(wrong)):
            table(tokens)
        if not backend.compiles:
            continue
        rows = px.compile(lambda table, tokens: table(tokens))(table, tokens).numpy()
        assert np.isfinite(rows[0]).all() and np.isnan(rows[1]).all()
