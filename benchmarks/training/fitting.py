"""`Learner.fit` per step, against the compiled step on fixed tensors, and against `fit` of Keras and of Lightning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import phlox as px
from benchmarks import harness
from benchmarks.harness import Ratio, built, compare
from benchmarks.training.peers import Train, keras_fit, lightning_fit, on_threads, per_step
from benchmarks.training.tasks import CNN, LR, MLP, Task, sized
from phlox import nn, optim
from phlox.train import Callback

AT_ONCE = 32
"""So many steps a call."""
STEP, FIT, FIT_TORCH = "compiled step on fixed tensors", "Phlox fit on JAX", "Phlox fit on PyTorch, compiled"
FIT_AT_ONCE = f"{FIT}, steps_per_call={AT_ONCE}"
KERAS, LIGHTNING = "Keras fit on JAX", "Lightning fit"
KERAS_AT_ONCE = f"{KERAS}, steps_per_execution={AT_ONCE}"


class Clock(Callback):
    """Notes when epochs end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, learner: Any) -> None:
        self.ends.append(perf_counter())


def phlox_step(task: Task) -> Train:
    """A loop by hand on JAX over a compiled step, given the same tensors each time; the last loss is read."""
    learner = task.learner("jax")
    model, optimizer = learner.model, optim.AdamWConfig().init()
    x, y = (px.tensor(array, device=learner.device) for array in next(task.loader().epoch()))

    def step(model: Any, optimizer: Any, lr: float, x: px.Tensor, y: Any) -> tuple[Any, px.Tensor]:
        loss = nn.cross_entropy_loss(model(x), y)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    run = px.compile(step, donate=("model", "optimizer"))

    def train() -> float:
        nonlocal model
        begun = perf_counter()
        for _ in range(task.steps - 1):
            model, _ = run(model, optimizer, LR, x, y)
        model, loss = run(model, optimizer, LR, x, y)
        loss.item()
        return (perf_counter() - begun) / task.steps

    return train


def phlox_fit(task: Task, engine: str, **options: Any) -> Train:
    """`Learner.fit`."""
    learner, data = task.learner(engine, **options), task.loader()

    def train() -> float:
        clock = Clock()
        learner.fit(data, epochs=2, callbacks=[clock], progress=False)
        return per_step(clock.ends, task)

    return train


def in_turn(contestants: Mapping[str, Train], rounds: int) -> dict[str, list[float]]:
    """What each of them measures, in alternating rounds, after one to compile and warm up."""
    return {name: times[1:] for name, times in harness.in_turn(contestants, range(rounds + 1)).items()}


def mlp_rows(task: Task) -> list[Ratio]:
    """The small MLP, whose steps are so short that all else counts."""
    at_once = min(AT_ONCE, task.steps // 2)
    makers: dict[str, Callable[[], Train]] = {
        STEP: lambda: phlox_step(task),
        FIT: lambda: phlox_fit(task, "jax"),
        FIT_AT_ONCE: lambda: phlox_fit(task, "jax", steps_per_call=at_once),
        KERAS: lambda: keras_fit(task),
        KERAS_AT_ONCE: lambda: keras_fit(task, at_once),
        LIGHTNING: lambda: lightning_fit(task),
    }
    times = in_turn(built(makers), task.rounds)
    asked = [
        (FIT, STEP, 1.5), (FIT_AT_ONCE, STEP, 1.15), (FIT, KERAS, 0.6), (FIT_AT_ONCE, KERAS_AT_ONCE, None),
        (FIT, LIGHTNING, 0.3),
    ]  # fmt: skip
    title = f"step of a training, {task.title}"
    return [compare(title, times, one, peer, target=target) for one, peer, target in asked]


def cnn_rows(task: Task) -> list[Ratio]:
    """The small CNN, whose steps are long."""
    makers: dict[str, Callable[[], Train]] = {
        STEP: lambda: phlox_step(task),
        FIT: lambda: phlox_fit(task, "jax"),
        FIT_TORCH: lambda: on_threads(phlox_fit(task, "torch")),
        LIGHTNING: lambda: lightning_fit(task),
    }
    times = in_turn(built(makers), task.rounds)
    title = f"step of a training, {task.title}"
    best, other = sorted((FIT, FIT_TORCH), key=lambda name: statistics.median(times.get(name, [math.inf])))
    return [
        compare(title, times, FIT, STEP, target=1.03),
        compare(title, times, best, LIGHTNING, target=1.0),
        compare(title, times, other, LIGHTNING),
    ]


def run() -> list[Ratio]:
    """All rows."""
    return [*mlp_rows(sized(MLP)), *cnn_rows(sized(CNN))]
