# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""One training step of the demo's network: Phlox compiled on JAX, the same network in Flax NNX, and in eager PyTorch.

All three have the same layers, batch, optimizer (AdamW) and dropout; each is written as its own users would.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import phlox as px
from benchmarks.harness import Ratio, built, compare, measure
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.models import DigitsConfig

BATCH = 64
CONFIG = DigitsConfig()
_rng = np.random.default_rng(0)
IMAGES = _rng.random((BATCH, 1, 8, 8), np.float32)
LABELS = _rng.integers(0, 10, BATCH)
LR = 1e-3


def phlox_step(backend: Backend, *, compiled: bool) -> Callable[[], float]:
    """Phlox."""
    device = Autodiff(backend).device()
    images, labels = px.tensor(IMAGES, device=device), px.tensor(LABELS, device=device)

    def step(model: Any, optimizer: Any, lr: float, images: px.Tensor, labels: Any) -> tuple[Any, px.Tensor]:
        loss = nn.cross_entropy_loss(model(images), labels)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    run = px.compile(step, donate=("model", "optimizer")) if compiled else step
    state = [CONFIG.init(device).init(seed=0)]
    optimizer = optim.AdamWConfig().init()

    def go() -> float:
        state[0], loss = run(state[0], optimizer, LR, images, labels)
        return loss.item()

    return go


def flax_step() -> Callable[[], float]:
    """Flax NNX, as in its documentation."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class FlaxNet(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            first, second = CONFIG.channels
            kernel = (CONFIG.kernel, CONFIG.kernel)
            self.conv_1 = nnx.Conv(1, first, kernel, rngs=rngs)
            self.conv_2 = nnx.Conv(first, second, kernel, rngs=rngs)
            self.dropout = nnx.Dropout(CONFIG.dropout, rngs=rngs)
            self.head = nnx.Linear(second * 4, CONFIG.classes, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.gelu(nnx.max_pool(self.conv_1(x), (2, 2), strides=(2, 2)))
            x = nnx.gelu(nnx.max_pool(self.conv_2(x), (2, 2), strides=(2, 2)))
            return self.head(self.dropout(x.reshape(x.shape[0], -1)))

    model = FlaxNet(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(LR), wrt=nnx.Param)
    images, labels = jnp.asarray(IMAGES.transpose(0, 2, 3, 1)), jnp.asarray(LABELS)

    @nnx.jit
    def step(model: Any, optimizer: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        def loss_fn(model: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return lambda: step(model, optimizer, images, labels).item()


def torch_step() -> Callable[[], float]:
    """Eager PyTorch."""
    first, second = CONFIG.channels
    t = torch.nn
    same = CONFIG.kernel // 2
    model = t.Sequential(
        t.Conv2d(1, first, CONFIG.kernel, padding=same), t.MaxPool2d(2), t.GELU("tanh"),
        t.Conv2d(first, second, CONFIG.kernel, padding=same), t.MaxPool2d(2), t.GELU("tanh"),
        t.Flatten(), t.Dropout(CONFIG.dropout), t.Linear(second * 4, CONFIG.classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(LABELS)

    def go() -> float:
        optimizer.zero_grad()
        loss = t.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return go


def run() -> list[Ratio]:
    """All rows of the table."""
    rows: list[Ratio] = []
    best = torch.get_num_threads()
    torch_times: dict[int, float] = {}
    for threads in {1, best}:  # PyTorch with the number of threads that suits it best here
        torch.set_num_threads(threads)
        torch_times[threads] = statistics.median(measure({"torch": torch_step()}, rounds=3, seconds=0.2)["torch"])
    torch.set_num_threads(min(torch_times, key=torch_times.__getitem__))
    makers: dict[str, Callable[[], Callable[[], float]]] = {
        "Phlox compiled on JAX": lambda: phlox_step(Jax(), compiled=True),
        "Flax NNX": flax_step,
        "PyTorch eager": torch_step,
        "Phlox eager on NumPy": lambda: phlox_step(NumPy(), compiled=False),
        "Phlox eager on Torch": lambda: phlox_step(Torch(), compiled=False),
    }
    times = measure(built(makers), seconds=0.1)
    workload = f"step of the demo's network, batch {BATCH}"
    subject = "Phlox compiled on JAX"
    rows.append(compare(workload, times, subject, "Flax NNX", target=0.5))
    rows.append(compare(workload, times, subject, "PyTorch eager", target=0.3))
    rows.append(compare(workload, times, "Phlox eager on NumPy", "PyTorch eager"))
    rows.append(compare(workload, times, "Phlox eager on Torch", "PyTorch eager"))
    return rows
