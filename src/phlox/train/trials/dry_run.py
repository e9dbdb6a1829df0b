"""`Learner.dry_run`: a trial with two batches, to find errors early."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from phlox.backend.tracing.checks import checks
from phlox.errors import RunError
from phlox.host.page import Page, facts
from phlox.host.process_memory import peak_bytes
from phlox.host.text import Report, duration, size
from phlox.record import Record, load
from phlox.train.loop.batch_stream import BatchStream
from phlox.train.loop.fit import Fit
from phlox.train.loop.limits import Limits
from phlox.train.observers.callback import Callback
from phlox.train.trials.trial import on_trial

if TYPE_CHECKING:
    from phlox.train.learner import Learner

_BATCHES = 2


@dataclass(frozen=True)
class DryRun(Report):
    """The time and memory that `Learner.dry_run` measured; `print` it."""

    first_step: float
    """The seconds of the first step, tracing and compiling included."""
    step: float
    """The seconds of the second step."""
    model: int
    """The bytes of the parameters."""
    optimizer: int
    """The bytes of the optimizers' states, with their copies of the weights in f32 if they have any."""
    checkpoint: int
    """The bytes of a checkpoint on the disk."""
    process: int | None
    """The peak memory of the process so far, in bytes; None if the system does not report it."""
    device: int | None
    """The peak memory of the device, in bytes; None if it has no memory of its own."""
    left_out: tuple[str, ...]
    """The callbacks that were left out because they write files."""

    def _page(self) -> Page:
        pairs = [
            ("a step", duration(self.step)),
            ("the first step", duration(self.first_step)),
            ("parameters", size(self.model)),
            ("states of the optimizer", size(self.optimizer)),
            ("a checkpoint", f"{size(self.checkpoint)}; it was saved, and resumed bit for bit"),
            ("memory of the process, at most", "" if self.process is None else size(self.process)),
            ("memory of the device, at most", "" if self.device is None else size(self.device)),
            ("left out, since they write", ", ".join(self.left_out)),
        ]
        return Page("dry run", parts=[facts(pairs)], badges=[("all went well", "good")])


def _first_of(learner: Learner[Any], data: Any, name: str = "data") -> BatchStream:
    """The first batches of some data, in each epoch."""
    stream = learner.feed(data, name)
    stream.max_batches = _BATCHES
    return stream


def dry_run(learner: Learner[Any], data: Any, validation: Any, callbacks: list[Callback]) -> DryRun:
    """See `Learner.dry_run`."""
    if not hasattr(data, "epoch") and hasattr(data, "__iter__") and not isinstance(data, type) and iter(data) is data:
        raise RunError(
            "dry_run: the data give their batches only once, and would be used up; give a function that makes them"
        )
    if learner.team is not None and learner.team.size > 1:
        raise RunError("dry_run: it works with one process only; run the program without a launcher first")
    writing = [callback for callback in callbacks if type(callback).writes]
    quiet = [copy.deepcopy(callback) for callback in callbacks if not type(callback).writes]
    clock = _Clock()
    with on_trial(learner), tempfile.TemporaryDirectory() as folder:
        stream = _first_of(learner, data)
        held_out = None if validation is None else _first_of(learner, validation, "validation")
        learner.validation_data = validation
        fit = Fit(learner, stream, held_out, Limits(1, None, None), callbacks=[*quiet, clock])
        learner.attach(fit)
        with checks():  # of indices and divisions, which compiled steps do not check otherwise
            fit.run()
        path = learner.save(Path(folder) / "dry-run.safetensors")
        before, stored = learner.snapshot(), path.stat().st_size
        learner.load_state(load(path))
        _check_alike(before, learner.snapshot())
        model = sum(_bytes(callback.into_record()) for callback in learner.state.models.values())
        states = sum(_bytes(callback.into_record()) for callback in learner.state.optimizers.values())
        device = learner.device.backend.peak_memory_used(learner.device)
    return DryRun(
        clock.times[0], clock.times[-1], model, states, stored, peak_bytes() or None, device,
        tuple(type(callback).__name__ for callback in writing),
    )  # fmt: skip


class _Clock(Callback):
    """Measures the time of each step, including its result."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._start_time = 0.0

    def on_epoch_start(self, learner: Learner[Any]) -> None:
        self._start_time = perf_counter()

    def on_step_end(self, learner: Learner[Any]) -> None:
        _ = learner.loss
        now = perf_counter()
        self.times.append(now - self._start_time)
        self._start_time = now


def _check_alike(before: Record, after: Record) -> None:
    for path, entry in before.tensors.items():
        other = after.tensors.get(path)
        if other is None or entry.tensor.read().tobytes() != other.tensor.read().tobytes():
            raise RunError(f"dry_run: {path} has changed after it was saved and loaded; a resumed run would differ")


def _bytes(record: Record) -> int:
    return sum(entry.tensor.nbytes for entry in record.tensors.values())
