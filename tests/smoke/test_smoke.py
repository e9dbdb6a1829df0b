"""What must work with every supported version of an engine, in a minute: `make versions` runs this in each environment.

Serves: tools/versions.py

Only the engines that are installed are tried, and nothing but pytest and hypothesis is needed beside them.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend
from phlox.record import load
from phlox.testing import assert_close

pytestmark = pytest.mark.full  # with the versions that are installed, the other tests try as much
INSTALLED = ["numpy", *(name for name in ("jax", "torch") if find_spec(name))]
CLASSES = {"numpy": "NumPy", "jax": "Jax", "torch": "Torch"}

engines = pytest.mark.parametrize("engine", INSTALLED)


def backend_of(engine: str) -> Backend:
    return getattr(px.backend, CLASSES[engine])()


class Classifier(px.Module):
    def __init__(self, device: Any = None) -> None:
        self.conv = nn.Conv2d(1, 4, 3, padding="same", device=device)
        self.norm = nn.LayerNorm(4 * 6 * 6, device=device)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(4 * 6 * 6, 3, device=device)

    def __call__(self, x: Any) -> Any:
        x = self.conv(x).gelu().reshape((x.shape[0], -1))
        return self.head(self.dropout(self.norm(x)))


def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss = nn.cross_entropy_loss(model(x), y)
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(0.01, model, grads), loss


def trained(backend: Backend, *, compiled: bool, steps: int = 2) -> tuple[Any, list[float]]:
    """A classifier after some steps of AdamW, and its losses."""
    device = Autodiff(backend).device()
    with px.random.stream(5):
        model, optimizer = Classifier(device).init(seed=1).train(), optim.AdamWConfig().init()
        x = px.random.normal((8, 1, 6, 6), device=device)
        y = px.random.integers((8,), 0, 3, device=device)
        take = px.compile(step) if compiled else step
        losses: list[float] = []
        for _ in range(steps):
            model, loss = take(model, optimizer, x, y)
            losses.append(loss.item())
    return model, losses


@engines
def test_a_fresh_process_imports_and_computes(engine: str) -> None:
    code = (
        "import phlox as px\n"
        f"backend = px.backend.{CLASSES[engine]}()\n"
        "assert (px.ones((2,), device=backend) + 1.0).tolist() == [2.0, 2.0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@engines
def test_a_training_step_eager_and_compiled(engine: str) -> None:
    reference, expected = trained(backend_of("numpy"), compiled=False)
    for compiled in (False, True):
        model, losses = trained(backend_of(engine), compiled=compiled)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        bias, wanted = (one.head.bias.val().numpy() for one in (model, reference))
        np.testing.assert_allclose(bias, wanted, rtol=1e-3, atol=1e-4)
    assert expected[1] < expected[0]


@engines
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_vmap_and_scan(engine: str, compiled: bool) -> None:
    device = Autodiff(backend_of(engine)).device()
    rows = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)

    def per_row(xs: Any) -> Any:
        return px.vmap(lambda x: (x.tanh() * x).sum())(xs)

    def running(xs: Any) -> Any:
        return px.scan(lambda h, x: (h * 0.5 + x, h.sum()), px.zeros((3,), device=device), xs)

    xs = px.tensor(rows, device=device)
    wrap = px.compile if compiled else (lambda function: function)
    assert_close(wrap(per_row)(xs), (np.tanh(rows) * rows).sum(1))
    last, sums = wrap(running)(xs)
    expected, state = [], np.zeros(3, np.float32)
    for row in rows:
        expected.append(state.sum())
        state = state * np.float32(0.5) + row
    assert_close(last, state)
    assert_close(sums, np.array(expected))


@engines
@pytest.mark.parametrize("name", ["model.safetensors", "model.msgpack", "model.phlox", "model.json", "model.npz"])
def test_saved_on_one_backend_loaded_on_another(engine: str, name: str, tmp_path: Path) -> None:
    model = Classifier(backend_of(engine)).init(seed=2)
    path = model.save(tmp_path / name)
    assert len(load(path).paths()) == 6
    for other in INSTALLED:
        again = Classifier(backend_of(other))
        again.load(path)
        for (where, param), (same, copy) in zip(model.named_params(), again.named_params(), strict=True):
            assert where == same
            assert param.val().numpy().tobytes() == copy.val().numpy().tobytes()


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """The generator from its paper, in plain integers."""
    full = 0xFFFFFFFF
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + keys[0]) & full, (counter[1] + keys[1]) & full
    for i in range(20):
        turns = (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]
        x = (x + y) & full
        y = ((y << turns) & full | y >> (32 - turns)) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x, y = (x + keys[j % 3]) & full, (y + keys[(j + 1) % 3] + j) & full
    return x, y


@engines
def test_random_bits_are_those_of_the_specification(engine: str) -> None:
    assert threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)) == (0xC4923A9C, 0x483DF7A0)  # as published
    key, n = (7, 11), 6
    pairs = [threefry(key, (0, i)) for i in range(n // 2)]
    words = [a for a, _ in pairs] + [b for _, b in pairs]
    expected = np.array([(word >> 8) / 2**24 for word in words], np.float32)
    device = backend_of(engine).device()

    def draw(x: Any) -> Any:
        return x + px.random.uniform((n,), device=device)

    for function in (draw, px.compile(draw)):
        with px.random.stream(key):
            assert function(px.zeros((n,), device=device)).numpy().tobytes() == expected.tobytes()
    with px.random.stream(3):
        normal = px.random.normal((1000,), device=device).numpy()
    with px.random.stream(3):
        assert normal.tobytes() == px.random.normal((1000,), device="numpy").numpy().tobytes()
