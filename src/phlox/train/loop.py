"""`Fit`: one call of `Learner.fit`, from its first batch to the event that ends it."""

# The parts of a learner know each other.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox import random
from phlox.backend.processes import report_progress
from phlox.errors import RunError
from phlox.record import Record
from phlox.record.gather import Recordable
from phlox.train.callback import Callback
from phlox.train.feed import Feed, alike, count
from phlox.train.folder.run_folder import RunFolder
from phlox.train.history import EpochReport, Plan, plain
from phlox.train.interrupts import Interrupts
from phlox.train.meter import Pending
from phlox.train.nonfinite import find_in_step
from phlox.train.steps import NotFiniteLossError

if TYPE_CHECKING:
    from phlox.config import BaseConfig
    from phlox.train.learner import Learner
    from phlox.train.parallel.joint import Joint

_ROWS_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a training; None means no limit."""

    epochs: int | None
    steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, epochs: Any, steps: Any, time: Any) -> Limits:
        """Make the limits; `RunError` for an invalid limit, or if none is given."""
        for name, value in (("epochs", epochs), ("steps", steps)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
                raise RunError(f"fit: {name} is a whole number of 1 or more, got {value!r}")
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.0 < seconds < math.inf
        ):
            raise RunError(f"fit: time is a number of seconds above 0, or a timedelta, got {time!r}")
        if epochs is None and steps is None and seconds is None:
            raise RunError("fit: say how long: epochs=, steps= or time=")
        return cls(epochs, steps, seconds)


class Fit:
    """A running training."""

    def __init__(
        self,
        learner: Learner[Any],
        data: Feed,
        validation: Feed | None,
        limits: Limits,
        validate_every: tuple[int, int | None],
        callbacks: Iterable[Callback],
        *,
        folder: Any = None,
        resume: Any = False,
        overwrite: bool = False,
        progress: bool = False,
        config: BaseConfig | None = None,
    ) -> None:
        self.learner, self.data, self.validation, self.limits = learner, data, validation, limits
        self.team = learner._team
        self.joint: Joint | None = None
        """What it does together with other processes, where there are some."""
        self._every, self._every_steps = validate_every
        if isinstance(callbacks, Callback):
            raise RunError(f"callbacks: give a list of them, [{callbacks!r}]")
        for one in (callbacks := list(callbacks)):
            if not isinstance(cast("Any", one), Callback):
                what = getattr(one, "__name__", type(one).__name__)
                raise RunError(f"callbacks: give instances of Callback, got {what}")
        if self._every_steps is not None and (isinstance(self._every_steps, bool) or self._every_steps < 1):
            raise RunError(f"fit: validate_every_steps is a whole number of 1 or more, got {self._every_steps!r}")
        self._run: Any = folder if isinstance(folder, RunFolder) else None
        self.folder: Path | None = folder.path if isinstance(folder, RunFolder) else folder and Path(folder)
        self._resume, self._overwrite, self._progress = resume, overwrite, progress
        self.callbacks, self.config = callbacks, config
        self._started: list[Callback] = []
        self.first_epoch, self.first_step = learner.epoch, learner.step
        self._spent = 0.0
        self._begun: float | None = None  # while it does not run
        self._before = learner.step
        self._since = perf_counter()
        self.validates = False
        """Is a validation due that has not begun?"""
        self._handlers: dict[str, list[Callable[..., Any]]] = {}
        self.interrupts = Interrupts(self._say)

    def spend(self, seconds: float) -> None:
        """Count the time that a training has taken before it was resumed."""
        self._spent = seconds

    def callback_states(self) -> dict[str, Any]:
        """The states of callbacks, as plain values, by name."""
        named = {name: plain(one.state()) for name, one in self._named_callbacks() if not isinstance(one, Recordable)}
        return {name: state for name, state in named.items() if state}

    def callback_records(self) -> dict[str, Record]:
        """The records of callbacks that hold tensors, by name."""
        return {name: one.into_record() for name, one in self._named_callbacks() if isinstance(one, Recordable)}

    def restore_callbacks(self, states: Mapping[str, Any], records: Record) -> None:
        """Restore the states of callbacks; those without a saved state start fresh."""
        for name, one in self._named_callbacks():
            if isinstance(one, Recordable):
                if len(own := records.select(name)):
                    one.load_record(own)
            elif name in states:
                one.restore(states[name])

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        for one in self.callbacks:
            name = type(one).__name__
            seen[name] = seen.get(name, 0) + 1
            yield f"{name}{seen[name] if seen[name] > 1 else ''}", one

    @property
    def seconds(self) -> float:
        """The seconds so far, with those before a resume."""
        return self._spent + (0.0 if self._begun is None else perf_counter() - self._begun)

    # --- from beginning to end

    def run(self) -> None:
        """Train until a limit is reached."""
        learner = self.learner
        with ExitStack() as stack:
            if self.team is not None and self.team.size > 1:
                self.joint = self.team.joint(self)
            self._prepare(stack)
            stack.enter_context(self.interrupts)
            self.data.of_arrays = learner.compiles
            if learner.compiles and learner.steps_per_call == 1 and (self.team is None or not self.team.partitions):
                self.data.on_device(learner.device)
            try:
                for callback in self.callbacks:
                    self._started.append(callback)
                    callback.on_fit_start(learner)
                with random.stream(learner.stream), nullcontext() if self.team is None else self.team.scope():
                    if self.joint is not None:
                        self.joint.begin()
                    while not self._ends():
                        self._epoch()
                    if self.joint is not None:
                        self.joint.end()
                if self._signal is not None:
                    self.interrupts.came = self._signal
                    self.interrupts.end(self._how_to_go_on())
            except BaseException as error:
                if self.joint is not None:
                    self.joint.fail(error)
                self._finish(error)
                raise
            self._finish(None)
            if self.interrupts.came is not None:  # after the last step, when there was nothing left to end
                self.interrupts.end(f"the training had ended, after step {learner.step:,}")

    @property
    def _signal(self) -> int | None:
        """The signal because of which it ends: of several processes, that of one of them."""
        return self.interrupts.came if self.joint is None else self.joint.signal

    def _prepare(self, stack: ExitStack) -> None:
        from phlox.train.run import prepare  # which needs callbacks, views and loggers

        learner = self.learner
        learner.stopped, learner.is_resumed, learner.folder = None, False, self.folder
        record = prepare(
            self, self._run or self.folder, self._resume, stack, overwrite=self._overwrite, shows=self._progress
        )
        if self.joint is not None and not self.joint.is_main:
            self.callbacks = [one for one in self.callbacks if not type(one).is_of_main()]
        self.callbacks.sort(key=lambda one: type(one).last)
        if record is None:
            learner._begin_fit()
            self.first_epoch, self.first_step = learner.epoch, learner.step
        else:
            learner.load_state(record, fit=self)
            learner.is_resumed = True
        learner.plan = self._plan()
        self._begun = perf_counter()

    def _finish(self, error: BaseException | None) -> None:
        """Tell all callbacks that it is over; of several exceptions the first goes on, the others are its notes."""
        learner, raised = self.learner, error
        events: list[tuple[Callback, Callable[[], object]]] = []
        if error is not None:
            events += [(one, partial(one.on_exception, learner, error)) for one in self._started]
        events += [(one, partial(one.on_fit_end, learner)) for one in reversed(self._started)]
        self._spent, self._begun = self.seconds, None
        for one, event in events:
            try:
                event()
            except BaseException as other:
                if raised is None:
                    raised = other
                else:
                    raised.add_note(f"then {type(one).__name__} failed too: {type(other).__name__}: {other}")
        learner._kept = None
        if raised is not None and error is None:
            raise raised

    def _how_to_go_on(self) -> str:
        learner = self.learner
        text = f"the training was stopped after step {learner.step:,} (epoch {learner.epoch + 1})"
        if self.folder is not None:
            return f"{text}; its state is saved: go on with fit(..., folder={str(self.folder)!r}, resume=True)"
        places = [one for one in self.callbacks if type(one).last and getattr(one, "folder", None)]
        if places:
            return f"{text}; its state is saved: go on with fit(..., resume={str(getattr(places[0], 'folder', ''))!r})"
        return f"{text}; nothing was saved, since fit has no folder="

    def _say(self, text: str) -> None:
        self.learner.warn(text)
        if self.team is None or self.team.is_main:
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()

    # --- events

    def tell(self, event: str, *more: Any) -> None:
        """Call the method for an event of all callbacks."""
        for method in self._methods(event):
            method(self.learner, *more)

    def _methods(self, event: str) -> list[Callable[..., Any]]:
        """The methods of callbacks that override this event, so that a step makes no useless calls."""
        found = self._handlers.get(event)
        if found is None:
            nothing = getattr(Callback, event)
            methods: list[Callable[..., Any]] = [getattr(one, event) for one in self.callbacks]
            found = [method for method in methods if getattr(method, "__func__", method) is not nothing]
            self._handlers[event] = found
        return found

    # --- limits

    def _ends(self, *, in_epoch: bool = False) -> bool:
        """Is the training over? Called between two steps, within an epoch or between epochs."""
        learner, limits = self.learner, self.limits
        if self.joint is None and self.interrupts.came is not None:
            learner.stop("interrupted")
        elif limits.epochs is not None and learner.epoch >= self.first_epoch + limits.epochs:
            learner.stop("1 epoch is over" if limits.epochs == 1 else f"{limits.epochs} epochs are over")
        elif limits.steps is not None and learner.step >= self.first_step + limits.steps:
            learner.stop("1 step is over" if limits.steps == 1 else f"{limits.steps} steps are over")
        elif self.joint is not None:
            return self.joint.ends(goes_on=not in_epoch or self._has_more())
        elif limits.seconds is not None and self.seconds >= limits.seconds:
            learner.stop(f"{limits.seconds:g} seconds are over")
        return learner.stopped is not None

    def _plan(self) -> Plan:
        batches, limits, start = self.data.batches, self.limits, self.first_step
        last_epoch = None if limits.epochs is None else self.first_epoch + limits.epochs
        ends = [start + limits.steps] if limits.steps is not None else []
        if batches is not None and limits.epochs is not None:
            ends.append(start + batches * limits.epochs)
        if last_epoch is None and batches and limits.steps is not None:
            last_epoch = self.first_epoch + -(-limits.steps // batches)
        return Plan(last_epoch, min(ends) if ends else None, batches, self.data.batch_size, self.first_epoch, start)

    # --- an epoch

    def _epoch(self) -> None:
        learner = self.learner
        if learner.history and not learner.history[-1].complete:
            learner.history.pop()
        if learner._batch_number == 0:
            learner._begin_epoch()
            self.tell("on_epoch_start")
        self._validate_if_due()
        ended = True
        self._since = perf_counter()
        with _closing(self.data.epoch(learner.epoch, learner._batch_number)) as batches:
            groups = self._groups(batches)
            for group in groups:
                self.take(group)
                report_progress()
                self.validates = self._validates_within()
                self.tell("on_step_end")  # where the state may be saved, with what is still to be done
                self._validate_if_due()
                self._since = perf_counter()
                if self._ends(in_epoch=True):
                    # Another process may have found out that the data have come to their end.
                    ended = self.joint is not None and self.data.batches is None and next(groups, None) is None
                    break
        if not ended and self.data.batches is not None:
            ended = learner._batch_number >= self.data.batches
        if not ended and self._signal is not None:
            learner._read()
            return
        if ended and learner._batch_number == 0:
            raise RunError(f"fit: epoch {learner.epoch + 1} has no batch; is the data empty, or used up?")
        self._end_epoch(complete=ended)

    def _has_more(self) -> bool:
        """Has the epoch another batch, as far as is known?"""
        return self.data.batches is None or self.learner._batch_number < self.data.batches

    def _end_epoch(self, *, complete: bool) -> None:
        learner = self.learner
        if complete:
            learner._flush()
        elif any(type(one).writes for one in self.callbacks):
            # What follows is said of an epoch that is not over: a training that goes on from here knows nothing of it.
            learner.keep_state()
        train = learner._epoch_means()
        self._count_time()
        seconds = learner._epoch_seconds
        learner._note("train", train)
        validated = False
        if self.validation is not None and (not complete or (learner.epoch + 1) % self._every == 0):
            self.validate()
            validated = True
        report = EpochReport(
            learner.epoch + 1, learner.step, learner.lr, train, learner.validation if validated else {}, seconds,
            learner.rows, complete,
        )  # fmt: skip
        learner.history.append(report)
        if complete:
            learner.epoch += 1
            learner._batch_number = 0
        if self.joint is not None:
            self.joint.check()
        self.tell("on_epoch_end")

    def _validate_if_due(self) -> None:
        if self.validates:
            self.validates = False
            self.validate()

    def _validates_within(self) -> bool:
        every, learner = self._every_steps, self.learner
        return self.validation is not None and every is not None and learner.step // every > self._before // every

    def validate(self) -> None:
        """Compute the loss and the metrics on the validation data."""
        learner = self.learner
        assert self.validation is not None
        self.tell("on_validation_start")
        learner.validation = learner.evaluate(self.validation)
        learner._note("validation", learner.validation)
        self.tell("on_validation_end")

    # --- steps

    def _groups(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        """The batches of each call: one for each of its steps if all have one size; the last ones come alone."""
        size = self.learner.steps_per_call
        if size == 1:
            for batch in batches:
                yield [batch]
            return
        group: list[Any] = []
        for batch in batches:
            if group and not alike(batch, group[0]):
                yield from ([one] for one in group)
                group = []
            group.append(batch)
            if len(group) == size:
                yield group
                group = []
        yield from ([one] for one in group)

    def take(self, group: list[Any]) -> None:
        """Take the steps on some batches, in one call."""
        learner = self.learner
        self._before = learner.step
        number = learner._batch_number
        rows, learner.batch = (count(group[0]), group[-1]) if self.team is None else (group[0].rows, group[-1].batch)
        try:
            output = learner._take(group)
        except NotFiniteLossError as error:
            raise self._not_finite(str(error), learner.step + 1, learner.epoch, number, taken=False) from None
        except Exception as error:
            shown = self._rows_shown(learner.epoch, number)
            error.add_note(f"in step {learner.step + 1}: batch {number} of epoch {learner.epoch + 1}{shown}")
            raise
        several = len(group) > 1
        for at in range(len(group)):
            learner.step += 1
            learner._last = Pending(learner.step, learner.epoch, number + at, rows, output, at if several else None)
            for step, loss in learner._training.add(learner._last):
                self.check_loss(step, loss)
        learner.rows += rows * len(group)
        learner._batch_number += len(group)
        self._count_time()

    def _count_time(self) -> None:
        """Count the time since the last step and what it was told to: of the data, and of the steps themselves."""
        now = perf_counter()
        self.learner._epoch_seconds += now - self._since
        self._since = now

    def check_loss(self, step: Pending, loss: float) -> None:
        """Raise `RunError` for a loss that is not finite."""
        if not math.isfinite(loss):
            raise self._not_finite(str(loss), step.step, step.epoch, step.number, taken=True)

    def _not_finite(self, loss: str, step: int, epoch: int, number: int, *, taken: bool) -> RunError:
        lead = "" if not taken else " (it was found after later steps were taken; NanGuard() finds it at once)"
        text = (
            f"the loss of step {step} is {loss}: batch {number} of epoch {epoch + 1}{self._rows_shown(epoch, number)}"
            f"{lead}; look at these rows, lower the learning rate, or clip the gradients (clip=)"
        )
        # After later steps the model is another one, but the data are the same.
        found = find_in_step(self.learner) if not taken else None
        return RunError(text if found is None else f"{text}. First not finite: {found}")

    def _rows_shown(self, epoch: int, number: int) -> str:
        rows = self.data.rows(epoch, number)
        if rows is None:
            return ""
        shown = ", ".join(map(str, rows[:_ROWS_SHOWN].tolist()))
        return f", rows {shown}{', ...' if len(rows) > _ROWS_SHOWN else ''}"


@contextmanager
def _closing(batches: Iterator[Any]) -> Generator[Iterator[Any]]:
    """Ends a generator of batches, and its workers, whatever happens."""
    try:
        yield batches
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
