"""Devices of one engine: creation on them, moves between them, and that their tensors do not meet."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import DeviceError
from tests.simulated_devices import check_on_devices

SEVERAL = """
import pytest
import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax
from phlox.errors import DeviceError

jax = Jax()
zero, one = jax.device(), jax.device("cpu:1")
assert str(zero) == "jax:cpu:0" and str(one) == "jax:cpu:1" and jax.device("cpu") == zero
x, y = px.ones((2,), device="jax:cpu:0"), px.ones((2,), device="jax:cpu:1")
d = px.ones((2,), device="jax")
assert d.device == x.device == zero and y.device == one and (y + 1.0).device == one and y.tolist() == [1.0, 1.0]
calls = [
    lambda: x + y, lambda: x < y, lambda: x.maximum(y), lambda: x @ y, lambda: px.where(x > 0.0, x, y),
    lambda: px.concat([x, y]), lambda: px.stack([x, y]), lambda: px.einsum("i,i->", x, y),
    lambda: x.take(px.tensor([0], device=one)), lambda: px.functional.linear(x, y.reshape(2, 1)),
    lambda: px.functional.layer_norm(x, y),
    lambda: x.to_device(Autodiff(jax).device("cpu:0")).require_grad() * y.to_device(Autodiff(jax).device("cpu:1")),
    lambda: nn.Linear(2, 2, device=one)(x.reshape(1, 2)), lambda: px.compile(lambda x, y: x + y)(x, y),
]
for call in calls:
    with pytest.raises(DeviceError, match=r"different devices, .*cpu:0 and .*cpu:1; move one of them to"):
        call()
# What nobody placed goes along to what it meets; placed on the device where it is already, it stays there.
along = [d * y, y + d, d.maximum(y), px.concat([d, y]), px.compile(lambda d, y: d * y)(d, y)]
along += [nn.Linear(2, 2, device=jax).init(0)(y.reshape(1, 2)), (d.to_device("jax") * y), d.to_device(zero) * y]
assert {str(z.device) for z in along} == {"jax:cpu:1"} and d.to_device(zero) is d and d.device == zero
with pytest.raises(DeviceError, match="different devices"):
    d.to_device("jax:cpu:0") * y
assert (x.to_device(one) + y).device == one and y.to_device(zero).device == zero
assert y.to_device("numpy").device.name == "cpu"

tape = Autodiff(jax)
leaf = px.tensor([1.0, 2.0], device=tape).require_grad()
there = leaf.to_device(tape.device("cpu:1"))
gradient = leaf.grad((there * there).sum().backward())
assert there.device.name == "cpu:1" and gradient.device == zero and gradient.tolist() == [2.0, 4.0]

with px.default_device("jax:cpu:2"):
    made = [px.arange(3), px.zeros((2,)), px.tensor([1.0]), px.eye(2), px.random.normal((2,)), px.ones((2,)).exp()]
    assert {str(z.device) for z in made} == {"jax:cpu:2"}
assert {str(z.device) for z in (px.zeros_like(y), px.full_like(y, 2.0), y.to_full_precision())} == {"jax:cpu:1"}

wide = Jax(float="f64")
w = px.ones((2,), device=wide.device("cpu:1"))
assert (w * 0.1).device.name == "cpu:1" and w.to_device(jax.device("cpu:2")).device.name == "cpu:2"
with pytest.raises(DeviceError, match="cpu:0 and"):
    w + px.ones((2,), device=wide.device("cpu:0"))
with pytest.raises(DeviceError, match="cpu:9.*cpu:0, cpu:1, cpu:2"):
    jax.device("cpu:9")
assert "jax:cpu:1" in repr(y)

import pickle
assert pickle.loads(pickle.dumps(y)).device == one and (pickle.loads(pickle.dumps(d)) * y).device == one
"""


@pytest.mark.full
def test_several_jax_devices() -> None:
    check_on_devices(3, SEVERAL)


def test_torch_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    backend = Torch()
    with pytest.raises(DeviceError, match="has no device 'gpu:7' here"):
        backend.device("gpu:7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(backend.device("gpu")) == "torch:gpu:0" and backend.device("gpu:1").name == "gpu:1"
    assert Torch.native_device(backend.device("gpu:1")) == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="it has cpu, gpu:0, gpu:1"):
        backend.device("gpu:2")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert Torch.native_device(backend.device("mps")) == torch.device("mps")
    assert Autodiff(backend).device("gpu:1").name == "gpu:1"


def test_torch_devices_do_not_mix() -> None:
    """On PyTorch's device for shapes without values, which is everywhere."""
    import torch

    backend = Torch()
    x, y = px.ones((2,), device=backend), px.Tensor.from_primitive(torch.ones(2, device="meta"), backend)
    for call in (lambda: x.maximum(y), lambda: x @ y, lambda: px.functional.layer_norm(x, y)):
        with pytest.raises(DeviceError, match="different devices, torch:cpu and torch:meta"):
            call()


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Torch(float="bf16")], ids=repr)
def test_a_device_stands_for_its_backend(backend: Any) -> None:
    device = backend.device()
    assert backend.device(device.name) == device and device.backend is backend
    for given in (device, backend):
        assert px.zeros((2,), device=given).device == device
        with px.default_device(given) as resolved:
            assert resolved == device and px.arange(3).device == device
    x = px.ones((2,), device=backend)
    assert x.to_device(device) is x


COMPILED_ONCE = """
import jax, numpy as np, phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

device = Autodiff(Jax()).device()
model = nn.Linear(700, 500, device=device).init(0)
weight = np.ones((700, 500), np.float32)  # of more than a megabyte
model = model.map(lambda path, param: param.map(lambda x: px.tensor(weight, device=device) if "weight" in path else x))
optimizer, x = optim.AdamWConfig().init(), px.ones((2, 700), device=device)
made = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: made.append(event) if event.endswith("backend_compile_duration") else None
)

@px.compile
def step(model, optimizer, x):
    loss = model(x).square().mean()
    return optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))

model = step(model, optimizer, x)
assert made
made.clear()
model = step(step(model, optimizer, x), optimizer, x)
assert not made, made
"""


def test_a_step_of_loaded_weights_is_compiled_once() -> None:
    """Arrays that come from the host and those that a program makes are held to the only device, or not, alike."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_ONCE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
