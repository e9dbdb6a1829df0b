# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
# The other libraries are installed only for the benchmarks.
"""`fit` of Keras and of Lightning, as their users write it: functions that train, and give seconds per step."""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.training.tasks import CLASSES, LR, Task, torch_model

Train = Callable[[], float]
"""Trains for two epochs: the seconds of a step in the second one, so that what a `fit` begins with is not counted."""


def per_step(ends: list[float], task: Task) -> float:
    """Seconds of a step, of the times at which two epochs ended."""
    before, after = ends
    return (after - before) / task.steps


def keras_fit(task: Task, at_once: int = 1) -> Train:
    """Keras on JAX, with so many steps a call."""
    os.environ["KERAS_BACKEND"] = "jax"
    keras: Any = importlib.import_module("keras")

    x, y = task.data()
    layers = [keras.layers.Dense(width, activation="relu") for width in task.widths]
    model = keras.Sequential([keras.Input(task.shape), *layers, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(LR), loss, jit_compile=True, steps_per_execution=at_once)
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(perf_counter())

    def train() -> float:
        ends.clear()
        model.fit(x, y, batch_size=task.batch, epochs=2, callbacks=[Clock()], verbose=0)
        return per_step(ends, task)

    return train


def lightning_fit(task: Task) -> Train:
    """Lightning, with fused AdamW, on the number of threads that suits it better: all, or one.

    Logger, progress bar and checkpoints are off. Nothing is logged in the step.
    """
    import lightning.pytorch as lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ends: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch_model(task)

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return torch.nn.functional.cross_entropy(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), LR, fused=True)

        def on_train_epoch_end(self) -> None:
            ends.append(perf_counter())

    x, y = (torch.from_numpy(array) for array in task.data())
    module = Module()
    data = DataLoader(TensorDataset(x, y), task.batch, shuffle=True)

    def train() -> float:
        ends.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few workers, few steps
            trainer = lightning.Trainer(
                accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(module, data)
        return per_step(ends, task)

    return on_threads(train)


def on_threads(train: Train) -> Train:
    """A function on the number of threads of PyTorch with which it is faster, all or one; others get theirs back."""
    import torch

    most = torch.get_num_threads()

    def with_threads(threads: int) -> float:
        torch.set_num_threads(threads)
        try:
            return train()
        finally:
            torch.set_num_threads(most)

    with_threads(most)  # to warm up
    best = min({1, most}, key=with_threads)
    return lambda: with_threads(best)
