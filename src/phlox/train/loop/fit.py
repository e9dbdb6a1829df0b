"""`Fit`: one call of `Learner.fit`, which walks through the table of transitions and notifies callbacks."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from phlox import random
from phlox.backend.processes import report_progress
from phlox.errors import RunError, RunWarning
from phlox.host.output import Output
from phlox.record import Record
from phlox.record.gather import Recordable
from phlox.train.events import EpochReport, Growing, Plan, Run, plain
from phlox.train.loop.batch_stream import BatchStream
from phlox.train.loop.interrupts import Interrupts
from phlox.train.loop.limits import Limits
from phlox.train.loop.lock_step import LockStep
from phlox.train.loop.transitions import Phase, bound
from phlox.train.step.batch import alike, count
from phlox.train.step.functions import NotFiniteLossError
from phlox.train.step.metric_state import Pending
from phlox.train.step.nonfinite import find_in_step

if TYPE_CHECKING:
    from phlox.train.observers.callback import AnyLearner, Callback

_ROWS_SHOWN = 16
Prepare = Callable[["Fit", ExitStack], "Record | None"]
"""Opens the folder of a run, adds the callbacks of every run, and returns the record to resume from or None."""


class Fit:
    """A running training.

    Args:
        control: the learner, which callbacks get.
        data, validation: the batches.
        limits: the limits of the training.
        validate_every: the number of epochs after which to validate, and the number of steps.
        callbacks: the callbacks.
        prepare: called at the beginning.
    """

    def __init__(
        self,
        control: AnyLearner,
        data: BatchStream,
        validation: BatchStream | None,
        limits: Limits,
        validate_every: tuple[int, int | None] = (1, None),
        callbacks: Iterable[Callback] = (),
        prepare: Prepare = lambda fit, stack: None,
    ) -> None:
        self.control, self.state, self.stepper = control, control.state, control.stepper
        self.data, self.validation, self.limits = data, validation, limits
        self.team = self.stepper.team
        self.lock_step: LockStep | None = None
        """The checks with the other processes; None if there is only one process."""
        self.callbacks = list(callbacks)
        self.phase = Phase.FRESH
        self.interrupts = Interrupts(self._say)
        self.notes: list[str] = []
        """Differences of a resumed training from the saved one, to report once the state is restored."""
        self._prepare = prepare
        self._validate_every_epochs, self._validate_every_steps = validate_every
        self._started: list[Callback] = []
        self._handlers: dict[str, list[Callable[..., Any]]] = {}
        self._earlier_seconds = 0.0
        self._start_time: float | None = None  # None while the training does not run
        self._last_time = perf_counter()
        self._batches: Any = None
        self._groups: Iterator[list[tuple[int, Any]]] = iter(())
        self._group: list[tuple[int, Any]] | None = None
        self._is_cut_off = self._was_reading_interrupted = False
        self._skipped = 0
        """The number of skipped steps that callbacks were told about."""
        self._counts_before_epoch = (0, 0)
        """The numbers of taken and of skipped optimizer steps before this epoch."""
        self._action = ""

    @property
    def seconds(self) -> float:
        """The seconds so far, including the time before a resume."""
        return self._earlier_seconds + (0.0 if self._start_time is None else perf_counter() - self._start_time)

    def settings(self) -> dict[str, Any]:
        """What tells this training from others, as plain values by name."""
        settings = {**self.control.settings(), **self.control.description, "batch_size": self.data.batch_size}
        return {name: value for name, value in settings.items() if value is not None}

    # --- the whole run

    def run(self) -> None:
        """Train until a limit is reached."""
        with ExitStack() as stack:
            if self.team is not None and self.team.size > 1:
                self.lock_step = LockStep(self, self.team)
            self._begin(stack)
            stack.enter_context(self.interrupts)
            stack.callback(self._close_batches)
            for stream in (self.data, self.validation):
                if stream is not None:
                    stack.enter_context(stream.open())
            self.data.needs_arrays = self.stepper.compiles
            is_partitioned = self.team is not None and self.team.partitions
            if self.stepper.compiles and self.control.steps_per_call == 1 and not is_partitioned:
                self.data.on_device(self.stepper.device)
            try:
                for callback in self.callbacks:
                    self._started.append(callback)
                    callback.on_fit_start(self.control)
                self._try_validation()
                with random.stream(self.state.stream), nullcontext() if self.team is None else self.team.scope():
                    if self.lock_step is not None:
                        self.lock_step.begin()
                    self._walk()
                    if self.lock_step is not None:
                        self.lock_step.end()
                if self._signal is not None:
                    self.interrupts.received = self._signal
                    self.interrupts.end(self._resume_advice())
            except BaseException as error:
                if self.lock_step is not None:
                    self.lock_step.fail(error)
                # Reading data does not change the state after the last step.
                self.control.run.is_whole = self._action == "read_batches" or not isinstance(error, Exception)
                self._finish(error)
                raise
            self._finish(None)
            if self.interrupts.received is not None:  # after the last step, when there was nothing left to end
                self.interrupts.end(f"the training had ended, after step {self.state.step:,}")

    def _try_validation(self) -> None:
        """Measure one batch of the validation data, so that what does not fit is an error before the first epoch."""
        stream = self.validation
        if stream is None or self.team is not None or not stream.gives_a_batch_at_once:
            return
        most, stream.max_batches = stream.max_batches, 1
        try:
            self.control.evaluate(stream)
        except Exception as error:
            error.add_note("in the first batch of the validation data, which was tried before the training")
            raise
        finally:
            stream.max_batches = most

    def _walk(self) -> None:
        """Follow the table of transitions until the run has ended."""
        table = bound(self)
        while self.phase is not Phase.ENDED:
            for when, do, name, to in table[self.phase]:
                if when is None or when():
                    if do is not None:
                        self._action = name
                        do()
                        self._action = ""
                    self.phase = to
                    break

    @property
    def _signal(self) -> int | None:
        """The signal that ends the training; with several processes, a signal that one of them got."""
        return self.interrupts.received if self.lock_step is None else self.lock_step.signal

    def _begin(self, stack: ExitStack) -> None:
        self.control.run = run = Run(folder=self.control.run.folder, validation_data=self.control.run.validation_data)
        record = self._prepare(self, stack)
        if self.lock_step is not None and not self.lock_step.is_main:
            self.callbacks = [callback for callback in self.callbacks if not type(callback).is_of_main()]
        self.callbacks.sort(key=lambda callback: type(callback).last)
        if record is not None:
            self.restore(record)
            self.phase, run.is_resumed = Phase.RESUMED, True
            for text in self.notes:
                self.control.warn(text)
                warnings.warn(text, RunWarning, stacklevel=5)
        else:
            self.leave_former_epoch()
            self.state.run = type(self.state.run)(self.state.epoch, self.state.step)
        run.plan = self._plan()
        self.stepper.window = run.plan.first_step, run.plan.steps
        self._skipped = self.state.skipped
        self._start_time = perf_counter()

    def _finish(self, error: BaseException | None) -> None:
        """Tell all callbacks that the training is over; raise their first exception, with the others as its notes."""
        raised = error
        events: list[tuple[Callback, Callable[[], object]]] = []
        if error is not None:
            events += [(callback, partial(callback.on_exception, self.control, error)) for callback in self._started]
        events += [(callback, partial(callback.on_fit_end, self.control)) for callback in reversed(self._started)]
        self._earlier_seconds, self._start_time = self.seconds, None
        for callback, event in events:
            try:
                event()
            except BaseException as other:
                if raised is None:
                    raised = other
                else:
                    raised.add_note(f"then {type(callback).__name__} failed too: {type(other).__name__}: {other}")
        self.control.forget_kept()
        if raised is not None and error is None:
            raise raised

    def _resume_advice(self) -> str:
        state, folder = self.state, self.control.run.folder
        text = f"the training was stopped after step {state.step:,} (epoch {state.epoch + 1})"
        if folder is not None:
            return f"{text}; its state is saved: resume with fit(..., folder={str(folder)!r}, resume=True)"
        savers = [callback for callback in self.callbacks if type(callback).last and getattr(callback, "folder", None)]
        if savers:
            return f"{text}; its state is saved: resume with fit(..., resume={str(getattr(savers[0], 'folder', ''))!r})"
        return f"{text}; nothing was saved, because fit had no folder="

    def _say(self, text: str) -> None:
        self.control.warn(text)
        if self.team is None or self.team.is_main:
            output = Output(sys.stderr)
            output.write(f"\n{text}\n")
            output.flush()

    # --- events, and the states of callbacks

    def tell(self, event: str, *args: Any) -> None:
        """Call the method `event` of all callbacks that have it."""
        handlers = self._handlers.get(event)
        if handlers is None:  # only callbacks that override this method, so that a step makes no useless calls
            handlers = self._handlers[event] = [getattr(each, event) for each in self.callbacks if each.hears(event)]
        for method in handlers:
            method(self.control, *args)

    def callback_states(self) -> dict[str, Any]:
        """The states of callbacks, as plain values, by name."""
        states: dict[str, Any] = {}
        for name, callback in self._stateful_callbacks():
            state = {key: plain(value) for key, value in callback.state().items() if not isinstance(value, Growing)}
            if state:
                states[name] = state
        return states

    def callback_lists(self) -> dict[str, Growing[Any]]:
        """The lists that only grow in the states of callbacks, as `NAME.KEY`."""
        return {
            f"{name}.{key}": value
            for name, callback in self._stateful_callbacks()
            for key, value in callback.state().items()
            if isinstance(value, Growing)
        }

    def callback_records(self) -> dict[str, Record]:
        """The records of callbacks that hold tensors, by name."""
        return {name: each.into_record() for name, each in self.named_callbacks() if isinstance(each, Recordable)}

    def restore(self, record: Record) -> None:
        """Restore the state from a record."""
        parts = self.stepper.load_record(record, "data", "callbacks", "held")
        self._earlier_seconds = self.state.run.seconds
        self.data.restore(parts["data"])
        states: Mapping[str, Any] = parts["callbacks"] or {}
        records = record.select("held")
        for name, callback in self.named_callbacks():
            if isinstance(callback, Recordable):
                if len(callback_record := records.select(name)):
                    callback.load_record(callback_record)
            elif name in states:
                callback.restore(states[name])

    def _stateful_callbacks(self) -> Iterator[tuple[str, Callback]]:
        return ((name, callback) for name, callback in self.named_callbacks() if not isinstance(callback, Recordable))

    def named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """The callbacks by the name of their class, with a number from the second callback of a class on."""
        seen: dict[str, int] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            seen[name] = seen.get(name, 0) + 1
            yield f"{name}{seen[name] if seen[name] > 1 else ''}", callback

    # --- questions of the table

    def is_over(self) -> bool:
        """Is the training over, between two steps or between two epochs?"""
        run, state, limits = self.control.run, self.state, self.limits
        if self.lock_step is None and self.interrupts.received is not None:
            self.control.stop("interrupted")
        elif limits.epochs is not None and state.epoch >= state.run.first_epoch + limits.epochs:
            self.control.stop("1 epoch is over" if limits.epochs == 1 else f"{limits.epochs} epochs are over")
        elif limits.steps is not None and state.step >= state.run.first_step + limits.steps:
            self.control.stop("1 step is over" if limits.steps == 1 else f"{limits.steps} steps are over")
        elif self.lock_step is not None:
            in_epoch, batches = self.phase is Phase.IN_EPOCH, self.data.batches
            return self.lock_step.ends(goes_on=not in_epoch or batches is None or state.batch < batches)
        elif limits.seconds is not None and self.seconds >= limits.seconds:
            self.control.stop(f"{limits.seconds:g} seconds are over")
        return run.stopped is not None

    def is_within_epoch(self) -> bool:
        """Were some batches of an epoch trained on, and the epoch not ended?"""
        return self.state.batch > 0

    def is_validation_due(self) -> bool:
        """Is a validation due within the epoch?"""
        return self.state.run.validates

    def has_batches(self) -> bool:
        """Does the epoch have further batches?"""
        return self._group is not None

    def was_reading_interrupted(self) -> bool:
        """Did a signal interrupt the reading of a batch?"""
        return self._was_reading_interrupted

    def is_epoch_complete(self) -> bool:
        """Were all batches of the epoch trained on, as far as their number is known?"""
        batches = self.data.batches
        return batches is not None and self.state.batch >= batches

    def was_interrupted(self) -> bool:
        """Does the training end because of a signal?"""
        return self._signal is not None

    def is_final_validation_due(self) -> bool:
        """Must the current model be validated before the report, and was it not yet?"""
        state = self.state
        if self.validation is None or state.run.validated == (state.step, state.updates):
            return False
        return self._is_cut_off or (state.epoch + 1) % self._validate_every_epochs == 0

    def is_cut_off(self) -> bool:
        """Does the training end within an epoch?"""
        return self._is_cut_off

    # --- actions of the table

    def leave_former_epoch(self) -> None:
        """If an earlier fit ended within an epoch, end that epoch."""
        state = self.state
        if state.batch:
            if state.batch % self.stepper.accumulate:
                self.stepper.drop_gradients()
            state.epoch, state.batch = state.epoch + 1, 0
            if state.history:
                state.history[-1] = state.history[-1].completed()

    def begin_epoch(self) -> None:
        """Begin the next epoch."""
        self.stepper.begin_epoch()
        self.tell("on_epoch_start")
        self.open_epoch()

    def open_epoch(self) -> None:
        """Get the batches of the epoch, from the next one on."""
        state = self.state
        if state.history and not state.history[-1].complete:
            state.history.pop()
        self._counts_before_epoch = state.updates, state.skipped
        self._batches = self.data.epoch(state.epoch, state.batch)
        self._groups = self._grouped(self._batches)

    def read_batches(self) -> None:
        """Read the batches of the next call, if there are any."""
        self._last_time = perf_counter()
        try:
            self._group = next(self._groups, None)
        except Exception:
            if not self.interrupts.was_cause():
                raise
            if self.lock_step is not None:  # the other processes go on to a step that this one cannot take
                self.interrupts.end()
            self._group, self._was_reading_interrupted = None, True
            self.control.stop("interrupted")

    def take_step(self) -> None:
        """Take the steps on the batches that were read."""
        assert self._group is not None
        before = self.state.step
        self.run_steps(self._group)
        report_progress()
        every = self._validate_every_steps
        # Set before the callbacks get the step, because they may save the state, and a resumed run must validate.
        if self.validation is not None and every is not None and self.state.step // every > before // every:
            self.state.run.validates = True

    def tell_step(self) -> None:
        """Tell callbacks of the step."""
        if self.state.skipped > self._skipped:
            self._skipped = self.state.skipped
            self.tell("on_step_skipped")
        self.tell("on_step_end")

    def validate(self) -> None:
        """Compute the loss and the metrics on the validation data."""
        state = self.state
        state.run.validates = False
        assert self.validation is not None
        self.tell("on_validation_start")
        state.validation = self.control.evaluate(self.validation)
        state.run.validated = state.step, state.updates
        self.control.note("validation", state.validation)
        self.tell("on_validation_end")

    def read_losses(self) -> None:
        """Read the losses that were not read yet: one of them may not be finite."""
        self.control.read()

    def keep_state(self) -> None:
        """Keep the current state, to be saved in place of the state at the end."""
        if any(type(callback).writes for callback in self.callbacks):
            self.control.keep_state()

    def flush(self) -> None:
        """Measure an epoch that is complete."""
        if self.state.batch == 0:
            raise RunError(f"fit: epoch {self.state.epoch + 1} has no batch; is the data empty, or used up?")
        self._close_batches()
        self.stepper.flush()
        self._measure()

    def measure_cut_off(self) -> None:
        """Measure an epoch as far as it went."""
        self._is_cut_off = True
        self._close_batches()
        self._measure()

    def _measure(self) -> None:
        self.control.read()
        self.means = self.stepper.epoch_means()
        self._count_time()
        self.control.note("train", self.means)

    def report(self) -> None:
        """Report the epoch, and go on to the next."""
        state = self.state
        is_validated = state.run.validated == (state.step, state.updates)
        report = EpochReport(
            state.epoch + 1, state.step, state.lr, self.means, state.validation if is_validated else {},
            state.epoch_seconds, state.rows, not self._is_cut_off,
        )  # fmt: skip
        state.history.append(report)
        if not self._is_cut_off:
            state.epoch += 1
            state.batch = 0
        if self.lock_step is not None:
            self.lock_step.check()
        updates, skipped = self._counts_before_epoch
        if state.skipped > skipped and state.updates == updates:
            self.control.warn(
                f"the optimizer took no step in epoch {state.history[-1].epoch}: the gradients of all "
                f"{state.skipped - skipped} steps were not finite; give loss_scaling=optim.LossScaler(...) a smaller "
                "scale, or look for the reason with px.debug.find_nan"
            )
        self.tell("on_epoch_end")

    # --- steps

    def _plan(self) -> Plan:
        batches, limits, run = self.data.batches, self.limits, self.state.run
        last_epoch = None if limits.epochs is None else run.first_epoch + limits.epochs
        ends = [run.first_step + limits.steps] if limits.steps is not None else []
        if batches is not None and limits.epochs is not None:
            ends.append(run.first_step + batches * limits.epochs)
        if last_epoch is None and batches and limits.steps is not None:
            last_epoch = run.first_epoch + -(-limits.steps // batches)
        last_step = min(ends) if ends else None
        return Plan(last_epoch, last_step, batches, self.data.batch_size, run.first_epoch, run.first_step)

    def _grouped(self, batches: Iterator[Any]) -> Iterator[list[tuple[int, Any]]]:
        """The numbered batches of each call: `steps_per_call` batches if they have the same size, otherwise one."""
        size = self.control.steps_per_call
        if size == 1:
            for batch in batches:
                yield [(self.data.number, batch)]
            return
        group: list[tuple[int, Any]] = []
        for batch in batches:
            if group and not alike(batch, group[0][1]):
                yield from ([numbered_batch] for numbered_batch in group)
                group = []
            group.append((self.data.number, batch))
            if len(group) == size:
                yield group
                group = []
        yield from ([numbered_batch] for numbered_batch in group)

    def _close_batches(self) -> None:
        """Close the iterator over the batches of an epoch, and so its workers."""
        close, self._batches = getattr(self._batches, "close", None), None
        self._groups = iter(())
        if close is not None:
            close()

    def run_steps(self, group: list[tuple[int, Any]]) -> None:
        """Take a step on each of these numbered batches, in one call."""
        state, run = self.state, self.control.run
        (number, *_), batches = zip(*group, strict=True)
        rows = count(batches[0]) if self.team is None else batches[0].rows
        run.batch = batches[-1] if self.team is None else batches[-1].batch
        state.batch = number
        try:
            output = self.stepper.run_steps(batches)
        except NotFiniteLossError as error:
            raise self._nonfinite_error(str(error), state.step + 1, state.epoch, number, was_taken=False) from None
        except Exception as error:
            shown = self._rows_shown(state.epoch, number)
            error.add_note(f"in step {state.step + 1}: batch {number} of epoch {state.epoch + 1}{shown}")
            raise
        has_several = len(group) > 1
        for index in range(len(group)):
            state.step += 1
            run.last = Pending(state.step, state.epoch, group[index][0], rows, output, index if has_several else None)
            for step, loss in self.stepper.metric_state.add(run.last):
                self.check_loss(step, loss)
        state.rows += rows * len(group)
        state.batch = group[-1][0] + 1
        self._count_time()

    def _count_time(self) -> None:
        """Add the time since the last call to the epoch's: the time of the data and of the steps."""
        now = perf_counter()
        self.state.epoch_seconds += now - self._last_time
        self._last_time = now

    def check_loss(self, step: Pending, loss: float) -> None:
        """Raise `RunError` for a loss that is not finite."""
        if not math.isfinite(loss):
            raise self._nonfinite_error(str(loss), step.step, step.epoch, step.number, was_taken=True)

    def _nonfinite_error(self, loss: str, step: int, epoch: int, number: int, *, was_taken: bool) -> RunError:
        lead = "" if not was_taken else " (noticed only after later steps; NanGuard() notices it at once)"
        text = (
            f"the loss of step {step} is {loss}: batch {number} of epoch {epoch + 1}{self._rows_shown(epoch, number)}"
            f"{lead}; look at these rows, lower the learning rate, or clip the gradients (clip=)"
        )
        # Only before later steps: these change the model, and the search repeats the step with it.
        origin = find_in_step(self.stepper, self.control.run.batch) if not was_taken else None
        return RunError(text if origin is None else f"{text}. First not finite: {origin}")

    def _rows_shown(self, epoch: int, number: int) -> str:
        rows = self.data.rows(epoch, number)
        if rows is None:
            return ""
        shown = ", ".join(map(str, rows[:_ROWS_SHOWN].tolist()))
        return f", rows {shown}{', ...' if len(rows) > _ROWS_SHOWN else ''}"
