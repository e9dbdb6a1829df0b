# pyright: reportMissingImports=false
# The peers are installed beside Phlox only where benchmarks are run.
"""A training step so small that starting it is most of its time: 64-128-10, batch 64, AdamW; against raw `jax.jit`.

A loop that does not read its losses queues one call behind the other; one that reads each waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

BATCH, STEPS, LR, DECAY = 64, 32, 1e-3, 0.01
_rng = np.random.default_rng(0)
INPUTS = _rng.normal(size=(STEPS, BATCH, 64)).astype(np.float32)
LABELS = _rng.integers(0, 10, (STEPS, BATCH)).astype(np.int32)

Go = Callable[[], Any]
"""One call: the losses of its steps, perhaps not ready yet."""


class Mlp(px.Module):
    """Two linear layers."""

    def __init__(self, device: px.Device | None = None) -> None:
        self.hidden = nn.Linear(64, 128, device=device)
        self.out = nn.Linear(128, 10, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.out(self.hidden(x).relu())


def with_phlox(steps: int | None = None) -> Go:
    """Phlox; with `steps`, so many in one call."""
    device = Autodiff(Jax()).device()

    def step(model: Mlp, optimizer: Any, lr: float, x: px.Tensor, labels: Any) -> tuple[Mlp, px.Tensor]:
        loss = nn.cross_entropy_loss(model(x), labels)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    over = () if steps is None else ("x", "labels")
    run = px.compile(step, donate=("model", "optimizer"), steps=steps, over=over)
    x, labels = (px.tensor(a[0] if steps is None else a, device=device) for a in (INPUTS, LABELS))
    optimizer = optim.AdamWConfig(weight_decay=DECAY).init()
    state = [Mlp(device).init(seed=0)]

    def go() -> Any:
        state[0], loss = run(state[0], optimizer, LR, x, labels)
        return loss.primitive

    return go


def with_jax(steps: int | None = None) -> Go:
    """Raw `jax.jit` and Optax; with `steps`, so many in one call by `lax.scan`."""
    optimizer = optax.adamw(LR, weight_decay=DECAY)

    def loss_of(p: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ p["w1"] + p["b1"])
        logits = hidden @ p["w2"] + p["b2"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(p: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(p, x, labels)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, loss

    def several(p: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        def one(carry: Any, data: Any) -> Any:
            *carry, loss = step(*carry, *data)
            return tuple(carry), loss

        carry, losses = jax.lax.scan(one, (p, state), (x, labels))
        return *carry, losses

    model = Mlp(Jax().device()).init(seed=0)
    arrays = [jnp.array(param.val().primitive) for param in model.params()]
    p = dict(zip(("w1", "b1", "w2", "b2"), arrays, strict=True))
    run = jax.jit(step if steps is None else several, donate_argnums=(0, 1))
    x, labels = (jnp.asarray(a[0] if steps is None else a) for a in (INPUTS, LABELS))
    held = [p, optimizer.init(p)]

    def go() -> Any:
        held[0], held[1], loss = run(held[0], held[1], x, labels)
        return loss

    return go


def queued(go: Go) -> Callable[[], Any]:
    """As many calls as there are batches, and then the wait for the last."""

    def run() -> Any:
        for _ in range(STEPS - 1):
            go()
        return jax.block_until_ready(go())

    return run


def awaited(go: Go) -> Callable[[], Any]:
    """One call, and the wait for it."""
    return lambda: jax.block_until_ready(go())


def run() -> list[Ratio]:
    """All rows."""
    plain, several = "phlox.compile", f"phlox.compile, steps={STEPS}"
    raw, scanned = "jax.jit", f"jax.jit, lax.scan of {STEPS}"
    contestants: dict[str, Go] = {
        plain: with_phlox(), raw: with_jax(), several: with_phlox(STEPS), scanned: with_jax(STEPS)
    }  # fmt: skip
    for ours, theirs in ((plain, raw), (several, scanned)):
        for _ in range(3):
            np.testing.assert_allclose(contestants[ours](), contestants[theirs](), rtol=1e-4)
    times = measure(
        {
            plain: queued(contestants[plain]),
            raw: queued(contestants[raw]),
            several: awaited(contestants[several]),
            scanned: awaited(contestants[scanned]),
        },
        rounds=21,
    )
    times = {name: [seconds / STEPS for seconds in found] for name, found in times.items()}
    waiting = measure({name: awaited(contestants[name]) for name in (plain, raw)}, rounds=21)
    workload = f"step of an MLP 64-128-10, batch {BATCH}, AdamW"
    return [
        compare(workload, times, plain, raw, target=1.0),
        compare(workload, times, several, raw, target=0.75),
        compare(workload, times, several, scanned),
        compare(workload, times, scanned, raw),
        compare(f"{workload}, each awaited", waiting, plain, raw),
    ]
