"""`px.Buffer`: arrays that are not trained, as leaves that are saved or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import KindError, ModuleError, RecordError

TABLE = np.array([[1.0, 2.0], [3.0, 4.0]])


class Net(px.Module):
    def __init__(self, device: Any = "numpy", *, key: bool = False) -> None:
        self.linear = nn.Linear(2, 2, device=device)
        self.table = px.Buffer(TABLE, saved=False, device=device)
        self.counts = [px.Buffer([1, 2, 3], device=device)]
        self.key: Any = px.Buffer(jax.random.key(7), saved=False) if key else None

    def __call__(self, x: Any) -> Any:
        return self.linear(x) @ self.table.val() + self.counts[0].val().sum().float()


def expected(model: Net, x: np.ndarray) -> np.ndarray:
    weight, bias = model.linear.weight.val().numpy(), cast("px.Param", model.linear.bias).val().numpy()
    return (x @ weight + bias) @ TABLE + 6.0


@pytest.mark.parametrize("engine", [NumPy(), Jax(), Torch(), NumPy(float="f64")], ids=repr)
def test_a_buffer_is_moved_compiled_and_not_trained(engine: Any) -> None:
    model = Net().init(seed=0).to_device(engine.device())
    assert model.table.val().device == engine.device() and not model.table.value.trainable
    x = np.random.default_rng(0).normal(size=(3, 2))
    run = px.compile(lambda model, x: model(x))
    for _ in range(2):
        for call in (run, lambda model, x: model(x)):
            np.testing.assert_allclose(call(model, px.tensor(x, device=engine)).numpy(), expected(model, x), rtol=1e-5)
        model.linear.weight.set(model.linear.weight.val() * 2.0)
    assert run.traces == (engine.name != "numpy")
    training = model.train()
    loss = training(px.tensor(x, device=training.linear.weight.val().device)).square().mean()
    stepped = (
        optim.AdamWConfig(weight_decay=0.5)
        .init()
        .step(0.1, training, px.GradientsParams.from_grads(loss.backward(), training))
    )
    np.testing.assert_array_equal(stepped.table.val().numpy(), TABLE)
    assert not np.array_equal(stepped.linear.weight.val().numpy(), model.linear.weight.val().numpy())


def test_what_is_not_saved_is_neither_written_nor_missed(tmp_path: Path) -> None:
    model = Net().init(seed=0)
    model.counts[0].set([4, 5, 6])
    model.save(tmp_path / "net.safetensors")
    record = px.record.load(tmp_path / "net.safetensors")
    assert list(record) == ["linear.weight", "linear.bias", "counts.0.value"]
    other = Net().init(seed=1)
    other.table.set(TABLE * 2)
    assert other.load(tmp_path / "net.safetensors").missing == []
    assert other.counts[0].val().tolist() == [4, 5, 6] and other.table.val().tolist() == (TABLE * 2).tolist()
    np.testing.assert_array_equal(other.linear.weight.val().numpy(), model.linear.weight.val().numpy())
    whole = px.record.Record({**{path: record[path] for path in record}, "table.value": model.table.val().numpy()})
    with pytest.raises(RecordError, match=r"table\.value"):
        other.load_record(whole)
    assert other.load_report(whole, strict=False).unexpected == ["table.value"]
    part = model.load_report(record, include="counts.**")
    assert part.loaded == ["counts.0.value"]
    by_order = px.record.Record({str(n): record[path] for n, path in enumerate(record)}, positional=True)
    assert Net().load_record(by_order).counts[0].val().tolist() == [4, 5, 6]
    assert list(model.table.into_record()) == ["value"]  # asked for by itself
    assert copy.deepcopy(model).table.val().tolist() == TABLE.tolist()


def test_leaves_of_a_tree_and_keys_of_jax() -> None:
    model = Net("jax", key=True).init(seed=0)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    assert paths[2:] == [".table.value", ".counts[0].value", ".key.value"]
    key = model.key
    assert key is not None

    def draw(model: Any, n: Any) -> Any:
        return jax.random.normal(jax.random.fold_in(model.key.val(), n), (2,))

    wanted = jax.random.normal(jax.random.fold_in(jax.random.key(7), 3), (2,))
    np.testing.assert_array_equal(jax.jit(draw)(model, 3), wanted)
    np.testing.assert_array_equal(draw(copy.deepcopy(model), 3), wanted)
    key.set(jax.random.key(8))
    assert not np.array_equal(jax.jit(draw)(model, 3), wanted)
    raw = px.Buffer(jax.random.PRNGKey(7)).val()
    np.testing.assert_array_equal(raw, jax.random.PRNGKey(7))
    trained, rest = px.partition(model)
    state = optax.adamw(0.1, weight_decay=0.5).init(cast("Any", trained))
    assert len(jax.tree.leaves(trained)) == 2 and len(jax.tree.leaves(state)) == 5
    assert px.combine(trained, rest)(px.ones((1, 2), device="jax")).shape == (1, 2)
    with pytest.raises(ModuleError, match=r"a random key of JAX, but is on 'numpy:cpu'.*phlox\.random"):
        key.to_device("numpy").val()


def test_arrays_stay_on_their_engine_and_what_is_no_array_is_refused() -> None:
    assert px.Buffer(jnp.ones(2, jnp.bfloat16)).val().backend == Jax(float="bf16")
    assert px.Buffer(torch.ones(2, dtype=torch.float64)).val().backend == Torch(float="f64")
    assert px.Buffer(np.ones(2)).val().backend == px.ones((1,)).backend
    half = px.Buffer(px.ones((2,), device=NumPy(float="f16")), full_precision=True)
    assert half.val().backend == NumPy()
    for bad, error, said in (
        ("text", KindError, "floats, ints or booleans"),
        (np.array([1j]), KindError, "complex"),
        (px.Param(px.ones((1,))), ModuleError, "px.Param\\(value, trained=False\\)"),
    ):
        with pytest.raises(error, match=said):
            px.Buffer(bad)
    with pytest.raises(ModuleError, match=r"shape \(2,\)"):
        px.Buffer(np.ones(2)).set(np.ones(3))
