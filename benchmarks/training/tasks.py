"""What is trained: two small models, each written for Phlox, PyTorch and Keras, with data that can be learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.harness import quick
from phlox import nn, optim
from phlox.data import Loader
from phlox.train import Learner

CLASSES, LR = 10, 1e-3


@dataclass(frozen=True)
class Task:
    """A model by its sizes, and how long an epoch of it is."""

    shape: tuple[int, ...]
    """Of a row."""
    widths: tuple[int, ...]
    """Of the hidden layers, or the channels of the convolutions."""
    batch: int = 64
    steps: int = 416
    """In an epoch: thirteen calls of 32 steps."""
    rounds: int = 15

    @property
    def title(self) -> str:
        """For the table."""
        if self.is_cnn:
            size = "x".join(map(str, self.shape[::-1]))
            return f"CNN, {len(self.widths)} convolutions on {size}, batch {self.batch}"
        return f"MLP {'-'.join(map(str, (*self.shape, *self.widths, CLASSES)))}, batch {self.batch}"

    @property
    def is_cnn(self) -> bool:
        """Are its rows images?"""
        return len(self.shape) == 3

    def data(self) -> tuple[Any, Any]:
        """Rows, f32 `[n, *shape]`, and labels, which depend on them linearly."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch * self.steps, *self.shape), np.float32)
        flat = x.reshape(len(x), -1)
        return x, (flat @ rng.standard_normal((flat.shape[1], CLASSES), np.float32)).argmax(axis=1)

    def loader(self) -> Loader:
        """The batches of an epoch."""
        return Loader(self.data(), self.batch, shuffle=True)

    def learner(self, engine: str, **options: Any) -> Learner[Any]:
        """A learner of the model in Phlox, whose steps are compiled."""
        make = _phlox_cnn if self.is_cnn else _phlox_mlp
        model = make(self).init(seed=0, device=engine)
        return Learner(model, optim.AdamWConfig(), LR, nn.cross_entropy_loss, compile=True, **options)


MLP = Task((64,), (128,))
CNN = Task((3, 32, 32), (16, 32, 64), steps=30, rounds=9)
LARGE = Task((784,), (2048, 1536), steps=40, rounds=9)
"""Of 4.8 million parameters: a checkpoint of it has 57 MB."""


def sized(task: Task) -> Task:
    """The task; for a quick run a tiny one of its kind."""
    if not quick():
        return task
    shape = (3, 8, 8) if task.is_cnn else (8,)
    return replace(task, shape=shape, widths=(4,) * len(task.widths), batch=4, steps=8, rounds=2)


def _phlox_mlp(task: Task) -> nn.Sequential:
    layers: list[Any] = []
    for a, b in pairwise((*task.shape, *task.widths)):
        layers += [nn.Linear(a, b), nn.Relu()]
    return nn.Sequential([*layers, nn.Linear(task.widths[-1], CLASSES)])


def _phlox_cnn(task: Task) -> nn.Sequential:
    layers: list[Any] = []
    for a, b in pairwise((task.shape[0], *task.widths)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.Relu(), nn.MaxPool2d(2)]
    return nn.Sequential([*layers, nn.Flatten(), nn.Linear(_features(task), CLASSES)])


def torch_model(task: Task) -> Any:
    """The same in PyTorch."""
    from torch import nn as t

    make: Callable[[int, int], list[Any]] = (
        (lambda a, b: [t.Conv2d(a, b, 3, padding=1), t.ReLU(), t.MaxPool2d(2)])
        if task.is_cnn
        else (lambda a, b: [t.Linear(a, b), t.ReLU()])
    )
    layers = [layer for a, b in pairwise((task.shape[0], *task.widths)) for layer in make(a, b)]
    return t.Sequential(*layers, t.Flatten(), t.Linear(_features(task), CLASSES))


def _features(task: Task) -> int:
    """What the last layer gets."""
    side = task.shape[-1] // 2 ** len(task.widths) if task.is_cnn else 1
    return task.widths[-1] * side**2
