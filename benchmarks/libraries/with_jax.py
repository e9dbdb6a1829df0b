# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""Plain JAX and Optax: one jitted step whose state is donated; `32`: 32 steps per call, by `lax.scan`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.libraries.common import Trainer
from benchmarks.workloads import BETAS, DECAY, EPSILON, LR, STEPS, Workload


def adamw() -> optax.GradientTransformation:
    """The optimizer with the settings of all contestants."""
    return optax.adamw(LR, b1=BETAS[0], b2=BETAS[1], eps=EPSILON, weight_decay=DECAY)


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over all labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def cast(tree: Any, workload: Workload) -> Any:
    """Cast floats to the workload's precision."""
    if not workload.bf16:
        return tree
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


class JaxTrainer(Trainer[jax.Array]):
    """The base class of all libraries on JAX: how to wait for a result and read it."""

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Inputs, targets and the example, on the device."""
        x, y, example = (jnp.asarray(array) for array in self.data[1:])
        x, example = cast((x, example), self.workload)
        return x, y, example

    def wait(self, handle: jax.Array) -> None:
        handle.block_until_ready()

    def array(self, handle: jax.Array) -> np.ndarray[Any, Any]:
        return np.asarray(handle.astype(jnp.float32))


class Contestant(JaxTrainer):
    """The empty variant, or `32`."""

    library = "with_jax"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        self.steps = int(variant) if variant else 1
        sizes, forward = workload.sizes, self.written.forward
        params, stats = self._parameters()
        optimizer = adamw()

        def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
            params, moments, stats, key = state
            key, now = (None, None) if key is None else jax.random.split(key)

            def loss_of(params: Any) -> tuple[jax.Array, Any]:
                logits, new = forward(sizes, params, stats, x, now, True)
                return cross_entropy(logits, y), new

            (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
            updates, moments = optimizer.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments, stats, key), loss

        def several(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
            return jax.lax.scan(lambda state, _: step(state, x, y), state, None, length=STEPS)

        self._step: Any = jax.jit(step if self.steps == 1 else several, donate_argnums=0)
        self.state = (params, optimizer.init(params), stats, jax.random.key(0) if workload.dropout else None)

    def _parameters(self) -> tuple[Any, Any]:
        found = self.written.parameters(self.workload.sizes, self.data[0])
        return cast(found, self.workload)

    def step(self) -> jax.Array:
        x, y, _ = self.arrays
        self.state, loss = self._step(self.state, x, y)
        return loss

    @cached_property
    def _predictor(self) -> tuple[Any, Any, Any, jax.Array]:
        sizes, forward = self.workload.sizes, self.written.forward
        run = jax.jit(lambda params, stats, x: forward(sizes, params, stats, x, None, False)[0])
        return run, *self._parameters(), self.arrays[2]

    def infer(self) -> jax.Array:
        run, params, stats, x = self._predictor
        return run(params, stats, x)
