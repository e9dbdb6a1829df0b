"""The time that training loses to checkpoints which are written in the background."""

from __future__ import annotations

import tempfile

from benchmarks.harness import Ratio, compare
from benchmarks.training.fitting import Clock, in_turn
from benchmarks.training.peers import Train, per_step
from benchmarks.training.tasks import CNN, LARGE, Task, sized
from phlox.train import Checkpoints

INTERVAL = 100
"""Steps between two checkpoints of the trainings that rows are about; those that are timed have more of them."""


def phlox_fit(task: Task, every: int | None) -> Train:
    """`Learner.fit` on JAX, with a checkpoint after so many steps, in a new folder each time."""
    learner, data = task.learner("jax"), task.loader()

    def train() -> float:
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            saved = [] if every is None else [Checkpoints(folder, every_steps=every)]
            learner.fit(data, epochs=2, callbacks=[clock, *saved], progress=False)
        return per_step(clock.ends, task)

    return train


def rows(task: Task) -> list[Ratio]:
    """An epoch with checkpoints and without; what each costs is put on the time of `INTERVAL` steps."""
    every = task.steps // 2
    found = in_turn({"with": phlox_fit(task, every), "without": phlox_fit(task, None)}, task.rounds)
    without = [INTERVAL * step for step in found["without"]]
    lost = [(a - b) * every for a, b in zip(found["with"], found["without"], strict=True)]
    subject, peer = "Phlox fit on JAX, with Checkpoints in the background", "without"
    times = {subject: [a + b for a, b in zip(without, lost, strict=True)], peer: without}
    title = f"{INTERVAL} steps of a training and one checkpoint, {task.title}"
    return [compare(title, times, subject, peer, target=1.02)]


def run() -> list[Ratio]:
    """All rows."""
    return [row for task in (CNN, LARGE) for row in rows(sized(task))]
