# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""Flax NNX, by both of its idioms: `split` once and `jax.jit`, as in its performance guide, and `nnx.jit`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
from flax import nnx

from benchmarks.libraries.with_jax import JaxTrainer, adamw, cast, cross_entropy
from benchmarks.workloads import Workload


def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """One training step, in place."""
    loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(x), y))(model)
    optimizer.update(model, grads)
    return loss


class Contestant(JaxTrainer):
    """`split`, `jit`."""

    library = "with_nnx"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        model = self._model()
        model.train()
        optimizer = nnx.Optimizer(model, adamw(), wrt=nnx.Param)
        if variant == "jit":
            self.held: Any = (model, optimizer)
            self._step: Any = nnx.jit(step, donate_argnums=(0, 1))
            return
        graph, self.held = nnx.split((model, optimizer))

        def of_state(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
            model, optimizer = nnx.merge(graph, state)
            loss = step(model, optimizer, x, y)
            return nnx.state((model, optimizer)), loss

        self._step = jax.jit(of_state, donate_argnums=0)

    def _model(self) -> Any:
        model = self.written.model(self.workload.sizes, self.data[0])
        nnx.update(model, cast(nnx.state(model, (nnx.Param, nnx.BatchStat)), self.workload))
        return model

    def step(self) -> jax.Array:
        x, y, _ = self.arrays
        if self.variant == "jit":
            return self._step(*self.held, x, y)
        self.held, loss = self._step(self.held, x, y)
        return loss

    @cached_property
    def _predictor(self) -> tuple[Any, Any, jax.Array]:
        model = self._model()
        model.eval()
        if self.variant == "jit":
            return nnx.jit(lambda model, x: model(x)), model, self.arrays[2]
        graph, state = nnx.split(model)
        return jax.jit(lambda state, x: nnx.merge(graph, state)(x)), state, self.arrays[2]

    def infer(self) -> jax.Array:
        run, model, x = self._predictor
        return run(model, x)
