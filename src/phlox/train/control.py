"""`Control`: the interface of a training for callbacks and programs: its state, and methods to control it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import ref

import numpy as np

from phlox.backend import Device
from phlox.errors import RunError
from phlox.metrics.base import Metric, Results
from phlox.optim.optimizer import Rate
from phlox.other_names import answering
from phlox.random.stream import Stream
from phlox.record import PrecisionSettings, Record, SafetensorsRecorder, gather
from phlox.train.events import Growing, History, Plan, Run, Values, flattened, plain
from phlox.train.host_records import in_parts
from phlox.train.loop.evaluation import evaluate
from phlox.train.observers.callbacks.monitor import did_you_mean
from phlox.train.settings import settings_of
from phlox.train.state import ONLY, TrainState, with_lines
from phlox.train.step.data_parallel import DataParallel
from phlox.train.step.gradients import check_has_gradients, gradients_on
from phlox.train.step.metric_state import LOSS, MetricState
from phlox.train.step.stepper import Stepper
from phlox.train.unchanged import remember_base, weights_without_unchanged, without_unchanged

if TYPE_CHECKING:
    from phlox.train.loop.fit import Fit

M = TypeVar("M")
T = TypeVar("T")


class shown(Generic[T]):
    """An attribute that is stored in another object: the training's state, its run or its stepper."""

    def __init__(self, doc: str, *, of: str = "state", fixed: bool = False) -> None:
        self.__doc__, self._of, self._fixed = doc, of, fixed

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: type[Any] | None = None) -> T:
        return cast("T", self) if holder is None else getattr(getattr(holder, self._of), self._name)

    def __set__(self, holder: Any, value: T) -> None:
        if self._fixed:
            raise AttributeError(f"{self._name} cannot be set: {self.__doc__}", name=self._name, obj=holder)
        setattr(getattr(holder, self._of), self._name, value)


class Control(Generic[M]):
    """A training as its callbacks see it.

    Attributes:
        state: the state, as data.
        run: facts about the current or last call of `fit`.
        stepper: takes the steps.
    """

    state: TrainState
    run: Run
    stepper: Stepper
    steps_per_call: int
    _fit: Fit | None = None
    _kept: Record | None = None

    epoch = shown[int]("the number of epochs that have ended")
    step = shown[int]("the number of steps: of batches that were trained on")
    updates = shown[int]("the number of steps of the optimizer")
    skipped = shown[int]("the number of steps that the optimizer left out, because gradients were not finite")
    rows = shown[int]("the number of rows of this epoch so far")
    history = shown[History]("the reports of the epochs")
    events = shown[list[tuple[int, str]]]("warnings and other news, each with its step")
    extra = shown[dict[str, Any]]("values of callbacks by name, which loggers write with the next row")
    inputs = shown[dict[str, Any]]("numbers that the step gets by name")
    validation = shown[Values]("the values of the last validation")
    stream = shown[Stream]("the random numbers of the training: dropout draws from it, and nothing else does")
    plan = shown[Plan]("the planned size of the training", of="run")
    folder = shown[Path | None]("the folder of the run; None without one", of="run")
    batch = shown[Any]("the last batch that was trained on", of="run")
    validation_data = shown[Any]("the validation data, as they were given to `fit`", of="run")
    is_resumed = shown[bool]("did this `fit` resume from a checkpoint?", of="run", fixed=True)
    starts_over = shown[bool](
        "was this `fit` to resume from a checkpoint, but found none (at the first start, or after an early kill)?",
        of="run", fixed=True,
    )  # fmt: skip
    stopped = shown["str | None"]("why the training has ended or is about to end", of="run", fixed=True)
    is_whole = shown[bool](
        "after an exception: is the state unchanged since the last step?", of="run", fixed=True
    )  # fmt: skip
    device = shown[Device]("the device of the first model, for batches, on a backend with a tape", of="stepper")
    compiles = shown[bool]("is a step compiled into one program?", of="stepper", fixed=True)
    accumulate = shown[int]("the number of batches for a step of the optimizer", of="stepper", fixed=True)
    guards = shown[bool](
        "does every step wait for its loss, and keep the model before it until then? See `NanGuard`",
        of="stepper",
    )

    def __deepcopy__(self, memo: dict[int, Any]) -> Control[M]:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            if name == "run":
                twin.run = replace(value)
            elif name not in ("_fit", "_kept"):  # they belong to a fit of the original
                setattr(twin, name, copy.deepcopy(value, memo))
        twin.stepper.learner = ref(twin)
        twin.load_state(self.snapshot())  # into new memory: a compiled step overwrites that of its arguments
        return twin

    # --- the state

    @property
    def optimizer(self) -> Any:
        """The optimizer, or a dict of several by the name of the model."""
        return self._plain(self.state.optimizers)

    @property
    def schedule(self) -> Any:
        """The schedule of the learning rate, or a dict of several by the name of the model."""
        return self._plain(self.state.schedules)

    @property
    def average(self) -> M:
        """The averaged model (`ema=`), in inference mode; without `ema`, the model itself."""
        return self._plain(self.stepper.for_inference())

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by name; those of a `Collection` as `name/part`."""
        return self.stepper.metric_state.metrics

    def check_has_gradients(self) -> None:
        """Raise `RunError` if `gradients` would."""
        check_has_gradients(self.stepper)

    @property
    def team(self) -> DataParallel | None:
        """The processes that train together; None without `mesh=`."""
        return self.stepper.team

    @property
    def lr(self) -> Any:
        """The learning rate of the last step; by model and by group if there are several.

        Set it to train with this rate from the next step on, in place of the schedule, which continues to count steps;
        set None to follow the schedule again. Setting it makes `lr_scale` 1.
        """
        return self.state.lr

    @lr.setter
    def lr(self, rate: Any) -> None:
        names = list(self.state.schedules)
        if rate is not None:
            rates: Mapping[str, Any] = {ONLY: rate} if self.state.is_single else rate
            if not isinstance(rates, Mapping) or set(rates) != set(names):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RunError(f"lr: give a rate for each of {', '.join(names)}, got {rate!r}")
            rate = {name: _rate_of(group_rate, "lr") for name, group_rate in rates.items()}
            rate = rate[ONLY] if self.state.is_single else rate
            self.state.lr = rate
        self.state.lr_set, self.state.lr_scale = rate, 1.0

    @property
    def lr_scale(self) -> float:
        """A factor of all learning rates, from the next step on."""
        return self.state.lr_scale

    @lr_scale.setter
    def lr_scale(self, factor: float) -> None:
        self.state.lr_scale = _number_of(factor, "lr_scale")

    @property
    def loss(self) -> float:
        """The loss of the last step, NaN before the first; reading it waits for the engine."""
        last = self.run.last
        if last is None or last.output.loss is None:
            return float("nan")
        array = np.asarray(last.output.loss.numpy())
        return float(array if last.index_in_call is None else array[last.index_in_call])

    @property
    def seconds(self) -> float:
        """The seconds of the current or last `fit`, including the time before a resume."""
        return 0.0 if self._fit is None else self._fit.seconds

    def means(self) -> Values:
        """Return the loss and the metrics of this epoch so far; waits for the engine.

        With several processes on PyTorch or NumPy, the metrics are over the rows of this process until the epoch ends;
        then they are over the rows of all.
        """
        self.read()
        return self.stepper.metric_state.values()

    def gradients(self) -> dict[str, Any]:
        """Compute the gradient of the loss on the last batch with the current weights: arrays by path, on the host.

        It takes a forward and a backward pass, eagerly, and changes nothing. With several models the paths begin with
        their names. Raises `RunError` with `update=`, and with several processes or devices.
        """
        by_model = gradients_on(self.stepper, self.run.batch)
        return {f"{name}.{path}" if name else path: g for name, grads in by_model.items() for path, g in grads.items()}

    def values(self) -> dict[str, float]:
        """Return the newest values in one dict, with names such as `train/loss` and `validation/accuracy`."""
        return dict(self.state.values)

    def value(self, name: str) -> float:
        """Return the newest value of this name; `RunError`, which lists the names, if there is none."""
        values = self.state.values
        if name not in values:
            names = ", ".join(values) or "none before the end of the first epoch"
            raise RunError(f"there is no value {name!r}; there are: {names}{did_you_mean(name, list(values))}")
        return values[name]

    def value_names(self, kind: str) -> tuple[list[str], bool]:
        """The names of the future values of a kind, `train` or `validation`, as far as they are known.

        Returns the names (one name may stand for several values, `name/part`), and whether a step of your own may
        report further values.
        """
        stepper = self.stepper
        argument = (stepper.asked if kind == "train" else stepper.asked_validating).argument
        if kind not in ("train", "validation") or (kind == "validation" and self.validation_data is None):
            return [], False
        names = [*self.metrics] if argument == "update" else [LOSS, *self.metrics]
        return [f"{kind}/{name}" for name in names], argument != "loss"

    # --- actions

    def stop(self, reason: str) -> None:
        """End the training after this step, for the given reason."""
        self.run.stopped = self.run.stopped or reason

    def warn(self, text: str) -> None:
        """Add an event to `learner.events`, which views and reports show."""
        self.state.events.append((self.state.step, text))

    def announce(self, path: Path) -> None:
        """Tell all callbacks that a checkpoint is complete."""
        if self._fit is not None:
            self._fit.tell("on_checkpoint", path)

    @answering
    def evaluate(self, data: Any) -> Results:
        """Compute the loss and the metrics on all batches of `data`, in inference mode; all rows have equal weight.

        With several processes (`mesh=`) call it in all of them; each gets the values over all rows.
        """
        results = evaluate(self.stepper, data)
        self._remark(self.stepper.validation)
        return results

    def _remark(self, metric_state: MetricState) -> None:
        """Warn, once each, about values that could not be used."""
        remarks, metric_state.remarks = metric_state.remarks, []
        for text in dict.fromkeys(remarks):
            if not any(said == text for _, said in self.events):
                self.warn(text)

    def note(self, kind: str, values: Values) -> None:
        """Set the newest values of a kind, `train` or `validation`."""
        self.state.values.update(flattened(kind, values))

    def read(self) -> None:
        """Read the losses of all steps, and raise `RunError` for one that is not finite."""
        for step, loss in self.stepper.metric_state.read():
            if self._fit is not None:
                self._fit.check_loss(step, loss)
        self._remark(self.stepper.metric_state)

    def attach(self, fit: Fit | None) -> Fit | None:
        """Set the running fit, and return the former one."""
        former, self._fit = self._fit, fit
        return former

    # --- saving

    def snapshot(self, *, whole: bool = True, frozen: bool = True) -> Record:
        """Return the whole state as one record in host memory, so that the training may go on while it is written.

        It has models, optimizers, schedules, averages, the random stream, metrics, the position in the data, history
        and the states of callbacks. With several processes, call it in all of them; each gets the whole.

        Args:
            whole: False leaves out the entries of lists that only grow; see `grown`.
            frozen: False leaves out parameters that are not trained and are as they were; see `remember_base`.
        """
        record = self._kept or self._state_record()
        record = record if frozen else without_unchanged(self.state, record)
        return self._completed(record if self._kept else self.stepper.in_memory(record), whole)

    def remember_base(self) -> None:
        """Note checksums of all that is not trained, so that records may leave it out while it stays as it is."""
        remember_base(self.state, self._state_record())

    def saved_state(self, *, whole: bool = True) -> Record:
        """As `snapshot`, to save the state of several processes or devices in shards: nothing is copied or gathered."""
        return self._completed(self._kept or self._state_record(), whole)

    def into_record(self) -> Record:
        """Return the whole state as one record, without a copy. See `snapshot`."""
        return self._completed(self._state_record(), True)

    def grown(self) -> dict[str, Growing[Any]]:
        """The lists that only grow, by name: the history, the events, and those in the states of callbacks."""
        fit = self._fit
        return self.state.grown() | ({} if fit is None else fit.callback_lists())

    def settings(self) -> dict[str, Any]:
        """The settings of optimizers, schedules and the like, as plain values by name."""
        averages: Mapping[str, Any] = self.state.auxiliary.get("ema", {})
        return settings_of({
            "optimizer": self.optimizer, "lr": self.schedule, "accumulate": self.accumulate,
            "clip": self.stepper.functions.clip, "ema": next((average.decay for average in averages.values()), None),
            "seed": self.state.seed,
        })  # fmt: skip

    def _completed(self, record: Record, whole: bool) -> Record:
        return with_lines(record, self.grown()) if whole else record

    def _state_record(self) -> Record:
        self.read()
        fit, grown = self._fit, self.grown()
        settings = self.settings()
        if fit is None:
            return self.stepper.into_record(grown=grown, settings=settings, data=None, callbacks={}, held=gather({}))
        self.state.run.seconds = fit.seconds
        return self.stepper.into_record(
            grown=grown, settings=settings, data=fit.data.state(), callbacks=fit.callback_states(),
            held=gather(fit.callback_records()),
        )  # fmt: skip

    def keep_state(self) -> None:
        """Keep the current state, to be saved at the end of the training in place of the state at that time."""
        if self.team is not None and self.team.in_shards:
            self._kept = in_parts(self._state_record())
        else:
            self._kept = self.snapshot(whole=False)

    def forget_kept(self) -> None:
        """Drop the state of `keep_state`: save the current state again."""
        self._kept = None

    def weights(self, *, frozen: bool = True) -> Record:
        """Return the weights of the model for inference, in host memory; several models each below its name.

        With `frozen=False` without those that are not trained and are as they were; see `remember_base`.
        """
        record = self.weights_record()
        return self.stepper.in_memory(record if frozen else weights_without_unchanged(self.state, record))

    def weights_record(self) -> Record:
        """As `weights`, without a copy."""
        return self.stepper.weights()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the whole state to a file, atomically, and return its path."""
        if self.team is not None and self.team.in_shards:
            record = self.snapshot()
            return Path(self.team.by_main(
                lambda: str(SafetensorsRecorder(precision=PrecisionSettings()).save(record, path))
            ))  # fmt: skip
        return Path(SafetensorsRecorder(precision=PrecisionSettings()).save(self.into_record(), path))

    def load_record(self, record: Record) -> None:
        """See `load_state`."""
        self.load_state(record)

    def load_state(self, record: Record) -> None:
        """Restore the state from a record of `snapshot`: all of it, or nothing.

        Raises `RecordError`, which lists everything that does not fit, such as another model, optimizer or metrics.
        """
        self.stepper.load_record(record, "data", "callbacks", "held")

    # --- with other processes

    @property
    def is_together(self) -> bool:
        """Have all processes ended the training after the same step?"""
        return self._fit is None or self._fit.lock_step is None or self._fit.lock_step.has_agreed

    def asks_to_save(self) -> bool:
        """Must several processes save after the same step? Then process 0, by its clock, asks for it."""
        lock_step = None if self._fit is None else self._fit.lock_step
        if lock_step is not None and lock_step.is_main:
            lock_step.ask_to_save()
        return lock_step is not None

    def _plain(self, named: Mapping[str, Any]) -> Any:
        return named[ONLY] if self.state.is_single else dict(named)


def _rate_of(value: Any, name: str) -> Rate:
    if isinstance(value, Mapping):
        return {str(group): _number_of(rate, name) for group, rate in cast("Mapping[Any, Any]", value).items()}
    return _number_of(value, name)


def _number_of(value: Any, name: str) -> float:
    """The value as a Python number; `RunError` for anything but a finite number of at least zero."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 <= number < math.inf:
        raise RunError(f"{name} must be a finite number of at least zero, got {value!r}")
    return float(number)
