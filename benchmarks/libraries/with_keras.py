# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""Keras, on the engine that KERAS_BACKEND names: `fit`; `32`: with `steps_per_execution=32`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import keras
import numpy as np

from benchmarks.libraries.common import Trainer
from benchmarks.workloads import BETAS, DECAY, EPSILON, LR, Workload

ON_JAX = keras.backend.backend() == "jax"
ENOUGH = 16
"""The number of steps that outweigh the start-up of `fit`."""
UNCORRECTED = EPSILON * (1.0 - BETAS[1] ** 5) ** 0.5
"""Keras adds its epsilon before the bias correction of the second moment. With this value it equals the epsilon of the
others in the middle of the ten compared steps."""


class Contestant(Trainer[Any]):
    """The empty variant, or `32`."""

    library = "with_keras"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        self.steps = int(variant) if variant else 1
        self.averaged = self.steps > 1
        self._repeated: dict[int, list[Any]] = {}
        if workload.bf16:
            # With weights in bf16 its optimizers do not move: 0.999 ** step is rounded to one.
            keras.config.set_dtype_policy("mixed_bfloat16")
        self.model = self._model()
        beta_1, beta_2 = BETAS
        optimizer = keras.optimizers.AdamW(LR, weight_decay=DECAY, beta_1=beta_1, beta_2=beta_2, epsilon=UNCORRECTED)
        self.model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=self.steps,
            jit_compile=True if ON_JAX else "auto",
        )

    def _model(self) -> Any:
        return self.written.model(self.workload.sizes, self.data[0])

    def _fit(self, n: int) -> float:
        """The mean of the losses of n steps."""
        if n not in self._repeated:
            x, y = self.data[1:3]
            self._repeated[n] = [np.tile(array, (n, *[1] * (array.ndim - 1))) for array in (x, y)]
        history = self.model.fit(*self._repeated[n], batch_size=len(self.data[1]), shuffle=False, verbose=0)
        return float(history.history["loss"][0])

    def step(self) -> Any:
        if self.steps > 1:
            return self._fit(self.steps)
        self.model.reset_metrics()
        return self.model.train_on_batch(self.data[1], self.data[2])

    def run(self, n: int) -> None:
        """Run by `fit`, unless its start-up would dominate the time."""
        if n >= ENOUGH or self.steps > 1:
            self._fit(-(-n // self.steps) * self.steps)
            return
        for _ in range(n):
            self.model.train_on_batch(self.data[1], self.data[2])

    @cached_property
    def _predictor(self) -> tuple[Any, Any]:
        model, example = self._model(), keras.ops.convert_to_tensor(self.data[3])
        if not ON_JAX:
            import torch

            def by_torch(x: Any) -> Any:
                with torch.inference_mode():
                    return model(x, training=False)

            return by_torch, example
        import jax

        trained = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]
        run = jax.jit(lambda trained, others, x: model.stateless_call(trained, others, x, training=False)[0])
        return lambda x: run(trained, others, x), example

    def infer(self) -> Any:
        run, example = self._predictor
        return run(example)

    def wait(self, handle: Any) -> None:
        ready = getattr(handle, "block_until_ready", None)
        if ready is not None:
            ready()

    def array(self, handle: Any) -> np.ndarray[Any, Any]:
        return np.asarray(keras.ops.convert_to_numpy(handle), np.float32)
