# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""Equinox and Optax: `filter_jit`, everything but the data donated."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import equinox as eqx
import jax

from benchmarks.libraries.with_jax import JaxTrainer, adamw, cast, cross_entropy
from benchmarks.workloads import Workload


class Contestant(JaxTrainer):
    """It has one variant."""

    library = "with_equinox"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        forward = self.written.forward
        optimizer = adamw()
        model, state = self._model()

        def loss_of(model: Any, state: Any, key: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
            logits, state = forward(model, state, x, key, True)
            return cross_entropy(logits, y), state

        @eqx.filter_jit(donate="all-except-first")
        def step(data: Any, model: Any, moments: Any, state: Any, key: Any) -> Any:
            key, now = (None, None) if key is None else jax.random.split(key)
            (loss, state), grads = eqx.filter_value_and_grad(loss_of, has_aux=True)(model, state, now, *data)
            updates, moments = optimizer.update(grads, moments, eqx.filter(model, eqx.is_inexact_array))
            return (eqx.apply_updates(model, updates), moments, state, key), loss

        self._step: Any = step
        moments = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        self.held: Any = (model, moments, state, jax.random.key(0) if workload.dropout else None)

    def _model(self) -> tuple[Any, Any]:
        model, state = self.written.model(self.workload.sizes, self.data[0])
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        return eqx.combine(cast(arrays, self.workload), rest), state

    def step(self) -> jax.Array:
        self.held, loss = self._step(self.arrays[:2], *self.held)
        return loss

    @cached_property
    def _predictor(self) -> tuple[Any, Any, Any, jax.Array]:
        forward = self.written.forward
        model, state = self._model()
        run = eqx.filter_jit(lambda model, state, x: forward(model, state, x, None, False)[0])
        return run, eqx.nn.inference_mode(model), state, self.arrays[2]

    def infer(self) -> jax.Array:
        run, model, state, x = self._predictor
        return run(model, state, x)
