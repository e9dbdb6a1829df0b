"""Phlox: the step is one function; variants name the engine, `eager`, and the number of steps per call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

import phlox as px
from benchmarks.libraries.common import Trainer
from benchmarks.workloads import BETAS, DECAY, EPSILON, LR, STEPS, Workload
from phlox import optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

ENGINES: dict[str, Callable[..., Backend]] = {"numpy": NumPy, "jax": Jax, "torch": Torch}


def device_name(engine: str) -> str | None:
    """The GPU, if the engine has one; else its default device."""
    if engine == "torch":
        import torch

        return "gpu" if torch.cuda.is_available() else None
    return None  # JAX's default device is a GPU if there is one


def step(model: Any, optimizer: Any, lr: float, x: px.Tensor, y: px.Tensor) -> tuple[Any, px.Tensor]:
    """One training step."""
    loss = model.loss(x, y)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss


class Contestant(Trainer[px.Tensor]):
    """`jax`, `jax 32`, `torch`, `numpy eager`."""

    library = "with_phlox"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        engine, *options = variant.split()
        backend = ENGINES[engine](float="bf16") if workload.bf16 else ENGINES[engine]()
        name = device_name(engine) if workload.bf16 else None
        self.plain, self.taped = backend.device(name), Autodiff(backend).device(name)
        self.compiled = "eager" not in options
        self.steps = STEPS if str(STEPS) in options else 1
        weights, x, y, _ = self.data
        self.model: Any = self.written.model(workload.sizes, weights, self.taped)
        self.optimizer = optim.AdamWConfig(beta_1=BETAS[0], beta_2=BETAS[1], epsilon=EPSILON, weight_decay=DECAY).init()
        self.x, self.y = px.tensor(x, device=self.taped), px.tensor(y, device=self.taped)
        steps = self.steps if self.steps > 1 else None
        self._step: Any = px.compile(step, donate=("model", "optimizer"), steps=steps) if self.compiled else step

    def step(self) -> px.Tensor:
        self.model, loss = self._step(self.model, self.optimizer, LR, self.x, self.y)
        return loss

    @cached_property
    def _predictor(self) -> tuple[Any, Any, px.Tensor]:
        weights, _, _, example = self.data
        model = self.written.model(self.workload.sizes, weights, self.plain).valid()

        def predict(model: Any, x: px.Tensor) -> px.Tensor:
            return model(x)

        run = px.compile(predict) if self.compiled else predict
        return run, model, px.tensor(example, device=self.plain)

    def infer(self) -> px.Tensor:
        run, model, x = self._predictor
        return run(model, x)

    def wait(self, handle: px.Tensor) -> None:
        ready = getattr(handle.primitive, "block_until_ready", None)
        if ready is not None:
            ready()
        elif self.plain.name != "cpu":
            handle.backend.await_array(handle.primitive)

    def array(self, handle: px.Tensor) -> np.ndarray[Any, Any]:
        return handle.numpy().astype(np.float32)
