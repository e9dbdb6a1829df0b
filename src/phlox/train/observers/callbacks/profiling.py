"""`Throughput` and `Profile`: how fast a training is, and what it spends its time on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ClassVar, cast

from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.profiling import Profiled
from phlox.errors import RunError
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.monitor import is_count, is_number

_WINDOWS = 100
"""The number of windows over which the median is taken."""


class Throughput(Callback):
    """Measures the speed of a training in steps, rows, tokens and floating-point operations (FLOPs) per second.

    Each speed is the median over windows of `every_steps` steps. The first window is left out, because it compiles. At
    the end of a window the callback waits for the engine. Validation, and the time between epochs, do not count.

    Args:
        every_steps: the length of a window, in steps.
        flops_per_row: the FLOPs of the forward and backward pass of a row, by the model's formula: about six for each
            trained parameter and token of a transformer.
        tokens_per_row: the number of tokens in a row, for sequence models.
        peak_flops: the peak FLOPs per second of the device, at the dtype in use.

    Attributes:
        values: `steps_per_second` and `rows_per_second`; also `tokens_per_second`, `flops_per_second` and `utilization`
            (a fraction of `peak_flops`) if the arguments they need are given. Empty before the end of the second
            window. In the rows of loggers they are `throughput/...`.

    Raises `RunError` for an argument that is not a number above zero, and for `peak_flops` without `flops_per_row`.

    >>> speed = Throughput(every_steps=20, tokens_per_row=1024)
    >>> speed.values
    {}
    """

    def __init__(
        self,
        every_steps: int = 50,
        flops_per_row: float | None = None,
        tokens_per_row: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        if not is_count(every_steps):
            raise RunError(f"Throughput: every_steps must be a whole number of at least one, got {every_steps!r}")
        numbers = {"flops_per_row": flops_per_row, "tokens_per_row": tokens_per_row, "peak_flops": peak_flops}
        for name, value in numbers.items():
            if value is not None and not (is_number(value) and 0.0 < value < math.inf):
                raise RunError(f"Throughput: {name} must be a number greater than zero, or None, got {value!r}")
        if peak_flops is not None and flops_per_row is None:
            raise RunError("Throughput: peak_flops= is the peak of the device; give flops_per_row= of the model, too")
        self.every_steps = every_steps
        self.flops_per_row, self.tokens_per_row, self.peak_flops = flops_per_row, tokens_per_row, peak_flops
        self.values: dict[str, float] = {}
        self._windows: deque[tuple[float, float]] = deque(maxlen=_WINDOWS)

    def on_fit_start(self, learner: AnyLearner) -> None:
        self.values = {}
        self._windows.clear()
        self._is_first = True
        self._step, self._counted_rows = learner.step, learner.rows
        self._steps = self._rows = 0  # of this window, like `_elapsed`
        self._elapsed = 0.0
        self._started: float | None = perf_counter()  # None while the clock is stopped

    def on_epoch_start(self, learner: AnyLearner) -> None:
        self._counted_rows, self._started = 0, perf_counter()

    def on_step_end(self, learner: AnyLearner) -> None:
        self._steps += learner.step - self._step
        self._rows += learner.rows - self._counted_rows
        self._step, self._counted_rows = learner.step, learner.rows
        if self._steps >= self.every_steps:
            self._pause(learner)
            self._window(learner)
            self._started = perf_counter()

    def on_validation_start(self, learner: AnyLearner) -> None:
        self._pause(learner)

    def on_validation_end(self, learner: AnyLearner) -> None:
        self._started = perf_counter()

    def on_epoch_end(self, learner: AnyLearner) -> None:
        if not learner.history or not learner.history[-1].validation:  # a validation has stopped the clock already
            self._pause(learner)
        self._started = None

    def _pause(self, learner: AnyLearner) -> None:
        """Stop the clock, once the engine has done all steps."""
        if self._started is not None:
            _ = learner.loss
            self._elapsed += perf_counter() - self._started
            self._started = None

    def _window(self, learner: AnyLearner) -> None:
        steps, rows, elapsed = self._steps, self._rows, self._elapsed
        self._steps = self._rows = 0
        self._elapsed = 0.0
        if self._is_first or elapsed <= 0.0:
            self._is_first = False
            return
        self._windows.append((steps / elapsed, rows / elapsed))
        rate = median(rows for _, rows in self._windows)
        values = {"steps_per_second": median(steps for steps, _ in self._windows), "rows_per_second": rate}
        if self.tokens_per_row is not None:
            values["tokens_per_second"] = rate * self.tokens_per_row
        if self.flops_per_row is not None:
            values["flops_per_second"] = rate * self.flops_per_row
            if self.peak_flops is not None:
                values["utilization"] = rate * self.flops_per_row / self.peak_flops
        self.values = values
        for name, value in values.items():
            learner.extra[f"throughput/{name}"] = value


class Profile(Callback):
    """Profiles some steps of a training, and writes the profile to a file.

    On JAX and PyTorch the file is a trace, which https://ui.perfetto.dev shows; on NumPy it is a profile of Python
    functions (`.prof`), for `pstats` or snakeviz. The learner notes the path with `warn`.

    Args:
        steps: the first and the last step, counted from 1 at the beginning of the training. The first steps compile;
            take later ones, and few of them.
        folder: the folder to write to. By default it is `profile` in the run's folder or, without one, in the working
            directory.

    Attributes:
        path: the file, once it is written.

    If a profile cannot be made or written, the learner is warned, and the training goes on. Raises `RunError` if
    `steps` is not a valid range.

    >>> callback = Profile((100, 105))
    """

    writes: ClassVar[bool] = True

    def __init__(self, steps: tuple[int, int] = (10, 13), folder: str | Path | None = None) -> None:
        pair = cast("Any", steps)
        if not isinstance(pair, (tuple, list)) or len(cast("Any", pair)) != 2 or not all(map(is_count, steps)):
            raise RunError(
                f"Profile: steps are the first and the last, counted from 1, such as (10, 13), got {steps!r}"
            )
        self.steps = (int(steps[0]), int(steps[1]))
        if steps[0] > steps[1]:
            raise RunError(f"Profile: the first step, {steps[0]}, comes after the last, {steps[1]}")
        self.folder = None if folder is None else Path(folder)
        self.path: Path | None = None
        self._end: Callable[[], Profiled] | None = None
        self._done = False
        self._first_step = 0

    def on_fit_start(self, learner: AnyLearner) -> None:
        self._done = learner.step >= self.steps[1]
        self._update(learner)

    def on_step_end(self, learner: AnyLearner) -> None:
        if not self._done:
            self._update(learner)

    def on_fit_end(self, learner: AnyLearner) -> None:
        self._finish(learner)

    def _update(self, learner: AnyLearner) -> None:
        if self._done:
            return
        if self._end is not None and learner.step >= self.steps[1]:
            self._finish(learner)
        elif self._end is None and learner.step >= self.steps[0] - 1:
            self._start(learner)

    def _start(self, learner: AnyLearner) -> None:
        if learner.step:
            _ = learner.loss  # waits for the engine: earlier steps must not be in the profile
        if self.folder is None:
            self.folder = (learner.folder or Path()) / "profile"
        self._first_step = learner.step + 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._end = engine_of(learner.device.backend).start_profile(self.folder)
        except (OSError, RuntimeError, ValueError) as error:
            self._done = True
            learner.warn(f"Profile: the profiler cannot be started: {error}")

    def _finish(self, learner: AnyLearner) -> None:
        end, self._end, self._done = self._end, None, True
        if end is None:
            return
        try:
            _ = learner.loss
            profiled = end()
        except (OSError, RuntimeError, ValueError) as error:
            learner.warn(f"Profile: the profile cannot be written: {error}")
            return
        self.path = profiled.path
        learner.warn(
            f"the profile of steps {self._first_step} to {learner.step} is in {profiled.path}; open it with "
            f"{profiled.opens}"
        )
