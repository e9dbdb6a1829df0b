"""Callbacks that control a training by a value or at a point in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from phlox.errors import ModuleError, RecordError, RunError
from phlox.module import Module
from phlox.optim import LrSchedule
from phlox.record import Record, TensorEntry, gather
from phlox.train.events import flattened
from phlox.train.host_records import in_memory
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.monitor import Monitor, Watch, better_mode, is_count, is_number, mode_of

Selector: TypeAlias = str | Callable[[str, Any], bool] | Sequence[str]


class EarlyStopping(Monitor):
    """Stops the training when a value has not improved for a while.

    Args:
        monitor: the name of the value, see `Monitor`.
        patience: stop after this many checks in a row without an improvement. A check is a validation for
            `validation/...`, an epoch for any other value. NaN is no improvement.
        min_delta: a value counts as better if it is better than the best one by more than this.
        mode: whether less ("min") or more ("max") of it is better; "auto" derives that from its name.
        restore_best: whether the model gets the weights of the best value back at the end. They are copied to host
            memory whenever the value improves. If the training ends with an exception, the model is left as it is;
            `best_weights` still has them.
        threshold: the training ends at once when the value is as good as this.

    Attributes:
        bad: the number of checks in a row without an improvement.
        best_weights: with `restore_best`, the weights at the best value, as a record; None before the first.

    Another `fit` of the same learner begins with full patience. If a training that this callback stopped is resumed, it
    stops at once, unless the patience is larger now. Raises `RunError` as `Monitor` does, and for a patience that is
    not an integer of at least 1.

    >>> EarlyStopping("validation/accuracy", patience=3, restore_best=True)
    EarlyStopping('validation/accuracy', mode='max')
    """

    def __init__(
        self,
        monitor: str = "validation/loss",
        *,
        patience: int = 10,
        min_delta: float = 0.0,
        mode: Literal["auto", "min", "max"] = "auto",
        restore_best: bool = False,
        threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        if not is_count(patience):
            raise RunError(f"EarlyStopping: patience must be a whole number of at least one, got {patience!r}")
        if threshold is not None and (not is_number(threshold) or math.isnan(threshold)):
            raise RunError(f"EarlyStopping: threshold must be a number or None, got {threshold!r}")
        self.patience, self.restore_best, self.threshold = patience, restore_best, threshold

    def reset(self) -> None:
        super().reset()
        self.bad = 0
        self.best_weights: Record | None = None
        self._failed = False

    def on_fit_start(self, learner: AnyLearner) -> None:
        super().on_fit_start(learner)
        self._failed = False
        if not learner.is_resumed:
            self.bad = 0
        elif self.best is not None:
            self._stop_if_over(learner, self.best)

    def observe(self, learner: AnyLearner, value: float, improved: bool) -> None:
        if improved:
            self.bad = 0
            if self.restore_best:
                self.best_weights = learner.weights()
        else:
            self.bad += 1
        self._stop_if_over(learner, value)

    def _stop_if_over(self, learner: AnyLearner, value: float) -> None:
        if self.threshold is not None and _reaches(value, self.threshold, self.mode):
            learner.stop(f"{self.monitor} is {value:.6g}, as good as the threshold {self.threshold:.6g}")
        elif self.bad >= self.patience:
            unit = "validation" if self.is_of_validation else "epoch"
            best = (
                "has been no number"
                if self.best is None
                else f"has not got better than {self.best:.6g} ({_when(self)})"
            )
            learner.stop(f"{self.monitor} {best} for {self.bad} {unit}{'s' if self.bad > 1 else ''}")

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        self._failed = True

    def on_fit_end(self, learner: AnyLearner) -> None:
        if not self.restore_best or self._failed or self.best is None or self.best_step == learner.step:
            return
        if self.best_weights is None:
            learner.warn(
                f"EarlyStopping: the weights at the best {self.monitor} ({_when(self)}) are not in the checkpoint that "
                "the training was resumed from; the model has those of the last step"
            )
            return
        for models in (learner.model, learner.average):
            for part, module in modules_of(models).items():
                _load_weights(module, self.best_weights.select(part) if part else self.best_weights)
        learner.warn(f"the model has the weights of {_when(self)} again: {self.monitor} was best, {self.best:.6g}")

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "bad": self.bad}

    def restore(self, state: Mapping[str, Any], /) -> None:
        super().restore(state)
        self.bad = int(state.get("bad", 0)) if state.get("monitor", self.monitor) == self.monitor else 0

    def into_record(self) -> Record:
        """Return the state together with the best weights, as a record, for `phlox.record.gather`."""
        weights = {} if self.best_weights is None else {"best_weights": self.best_weights}
        return gather(state=dict(self.state()), **weights)

    def load_record(self, record: Record, /) -> None:
        """Restore from a record of `into_record`; `RecordError` for any other."""
        state = record.values.get("state")
        if not isinstance(state, Mapping):
            raise RecordError("the record is not one of EarlyStopping, which has a state")
        weights = record.select("best_weights") if any(path.startswith("best_weights.") for path in record) else None
        # A copy: the file of the record may be gone when the weights are needed.
        weights = None if weights is None else in_memory(weights)
        self.restore(state)
        self.best_weights = weights


class ReduceOnPlateau(Watch):
    """Reports a value to the learner's schedule, so that an `optim.ReduceOnPlateauLr` in it reduces the learning rate.

    Each reduction is noted with `learner.warn`. In a dict of schedules, all that have a `ReduceOnPlateauLr` get the
    value. NaN counts as the worst value.

    Args:
        monitor: the name of the value, see `Watch`.

    Raises `RunError`, when the training begins, if no part of the schedule takes a value, or if the mode of the
    schedule contradicts the name of the value.

    >>> from phlox import optim
    >>> schedule = optim.ReduceOnPlateauLr(0.1, mode="max", patience=2)  # the lr= of the learner
    >>> ReduceOnPlateau("validation/accuracy")                           # one of its callbacks
    ReduceOnPlateau('validation/accuracy')
    """

    def __init__(self, monitor: str = "validation/loss") -> None:
        super().__init__(monitor)

    def on_fit_start(self, learner: AnyLearner) -> None:
        super().on_fit_start(learner)
        listeners = [part for schedule in _schedules(learner).values() for part in _listeners(schedule)]
        if not listeners:
            raise RunError(
                "ReduceOnPlateau: no part of the learner's schedule listens to a value; give lr="
                "optim.ReduceOnPlateauLr(...), or a schedule that is made of one"
            )
        try:
            right = better_mode(self.monitor)
        except RunError:
            return
        for part in listeners:
            if getattr(part, "mode", right) != right:
                raise RunError(
                    f"ReduceOnPlateau: {'less' if right == 'min' else 'more'} of {self.monitor!r} is better, and the "
                    f'schedule has it the other way; give optim.ReduceOnPlateauLr(..., mode="{right}")'
                )

    def look(self, learner: AnyLearner, value: float) -> None:
        for name, schedule in _schedules(learner).items():
            parts = list(_listeners(schedule))
            if not parts:
                continue
            before = flattened("", schedule.rate(schedule.taken))
            if math.isnan(value):  # a schedule refuses NaN: report the worst value
                schedule.report(-math.inf if getattr(parts[0], "mode", "min") == "max" else math.inf)
            else:
                schedule.report(value)
            for group, rate in flattened("", schedule.rate(schedule.taken)).items():
                if rate < before[group]:
                    whose = "".join(f" of {part}" for part in (name, group.strip("/")) if part)
                    learner.warn(
                        f"{self.monitor} ({value:.6g}) gets no better: the learning rate{whose} is {rate:.6g}, it was "
                        f"{before[group]:.6g}"
                    )


class Unfreeze(Callback):
    """Unfreezes frozen parameters at the start of an epoch, so that they are trained from then on.

    Freeze them in the model that you give to the learner: `model.freeze("backbone.**")`. A resumed training unfreezes
    them again.

    Args:
        patterns: as for `Module.unfreeze`: a pattern of paths, several, or a function of path and parameter.
        epoch: the number of the epoch, from 1, before which they are unfrozen.
        lr_scale: a factor for `learner.lr_scale`, which scales all learning rates, applied at the same time.
        model: the name of the model, if the learner has several.

    Raises `RunError` if `epoch` is not an integer of at least 1 and, when the training begins, `ModuleError` for a
    pattern that matches no parameter.

    >>> Unfreeze("backbone.**", epoch=3, lr_scale=0.1)
    Unfreeze('backbone.**', epoch=3)
    """

    def __init__(
        self, patterns: Selector, epoch: int, *, lr_scale: float | None = None, model: str | None = None
    ) -> None:
        self.patterns: tuple[Any, ...] = (
            (patterns,) if isinstance(patterns, str) or callable(patterns) else (*patterns,)
        )
        if not is_count(epoch):
            raise RunError(f"Unfreeze: epoch must be a whole number, the first being 1, got {epoch!r}")
        if lr_scale is not None and (not is_number(lr_scale) or not 0.0 <= lr_scale < math.inf):
            raise RunError(f"Unfreeze: lr_scale must be a finite number of at least zero, or None, got {lr_scale!r}")
        self.epoch, self.lr_scale, self.model = epoch, lr_scale, model
        self.done = False

    def on_fit_start(self, learner: AnyLearner) -> None:
        if learner.step == 0:
            self.done = False
        before = self._module(learner)
        try:
            after = before.unfreeze(*self.patterns)  # raises for a wrong pattern now, and not only at that epoch
        except ModuleError as error:
            raise ModuleError(f"Unfreeze: {error}") from error
        if self.done:
            self._set(learner, after)
        elif [param.trained for param in before.params()] == [param.trained for param in after.params()]:
            learner.warn(
                f"{self!r}: none of these parameters is frozen; freeze them first: give model.freeze(...) to the "
                "learner"
            )

    def on_epoch_start(self, learner: AnyLearner) -> None:
        if self.done or learner.epoch + 1 < self.epoch:
            return
        self._set(learner, self._module(learner).unfreeze(*self.patterns))
        if self.lr_scale is not None:
            learner.lr_scale *= self.lr_scale
        self.done = True

    def state(self) -> Mapping[str, Any]:
        return {"done": self.done}

    def restore(self, state: Mapping[str, Any], /) -> None:
        self.done = bool(state.get("done", False))

    def _module(self, learner: AnyLearner) -> Module:
        modules = modules_of(learner.model)
        name = "" if self.model is None else self.model
        if name not in modules:
            raise RunError(
                f"Unfreeze: the learner has the models {', '.join(modules)}; give model=..."
                if "" not in modules
                else f"Unfreeze: the learner has one model, without a name, got model={name!r}; leave out model="
            )
        return modules[name]

    def _set(self, learner: AnyLearner, module: Module) -> None:
        learner.model = module if self.model is None else {**learner.model, self.model: module}

    def __repr__(self) -> str:
        return f"Unfreeze({', '.join(map(repr, self.patterns))}, epoch={self.epoch})"


class StopAfter(Watch):
    """Ends the training when the first of several limits is reached.

    Limits count from the beginning of the training, before any resume.

    Args:
        epochs: the number of epochs.
        steps: the number of steps.
        seconds: the seconds of training.
        value: `("validation/accuracy", 0.99)` stops when that value is as good as this. If its name does not imply a
            mode, give the mode third: `("validation/heat", 0.1, "min")`.

    Raises `RunError` if no limit is given, or if a number of epochs, steps or seconds is not greater than zero.

    >>> StopAfter(epochs=10, value=("validation/accuracy", 0.99))
    StopAfter(epochs=10, value=('validation/accuracy', 0.99))
    """

    def __init__(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        value: tuple[str, float] | tuple[str, float, Literal["min", "max"]] | None = None,
    ) -> None:
        self._limits = {"epochs": epochs, "steps": steps, "seconds": seconds, "value": value}
        self._limits = {name: limit for name, limit in self._limits.items() if limit is not None}
        if not self._limits:
            raise RunError("StopAfter: give epochs=, steps=, seconds= or value=, or several of them")
        for name, limit in (("epochs", epochs), ("steps", steps)):
            if limit is not None and not is_count(limit):
                raise RunError(f"StopAfter: {name} must be a whole number of at least one, got {limit!r}")
        if seconds is not None and not (is_number(seconds) and seconds > 0.0):
            raise RunError(f"StopAfter: seconds must be a number greater than zero, got {seconds!r}")
        self.epochs, self.steps, self.seconds, self.goal = epochs, steps, seconds, 0.0
        if value is None:
            self.monitor = ""
            return
        goal = cast("tuple[Any, ...]", value)
        if not isinstance(cast("Any", value), tuple) or not 2 <= len(goal) <= 3 or not is_number(goal[1]):
            raise RunError(f'StopAfter: value is a name and a number, ("validation/accuracy", 0.99), got {value!r}')
        super().__init__(goal[0])
        self.goal, self.mode = float(goal[1]), mode_of(self.monitor, goal[2] if goal[2:] else "auto", "StopAfter")

    @property
    def _asking(self) -> str:
        return "StopAfter: value"

    def on_step_end(self, learner: AnyLearner) -> None:
        if self.steps is not None and learner.step >= self.steps:
            learner.stop(f"{learner.step} steps were taken, of {self.steps} that StopAfter allows")
        elif self.seconds is not None and learner.seconds >= self.seconds:
            learner.stop(f"{learner.seconds:.0f} seconds have passed, of {self.seconds:g} that StopAfter allows")

    def on_epoch_end(self, learner: AnyLearner) -> None:
        if self.monitor:
            super().on_epoch_end(learner)
        if self.epochs is not None and learner.epoch >= self.epochs:
            learner.stop(f"{learner.epoch} epochs have ended, of {self.epochs} that StopAfter allows")

    def look(self, learner: AnyLearner, value: float) -> None:
        if _reaches(value, self.goal, self.mode):
            learner.stop(f"{self.monitor} is {value:.6g}, as good as {self.goal:.6g}")

    def __repr__(self) -> str:
        return f"StopAfter({', '.join(f'{name}={limit!r}' for name, limit in self._limits.items())})"


def modules_of(model: Any) -> dict[str, Module]:
    """The models of a learner by name; a single model has an empty name."""
    return dict(cast("Mapping[str, Module]", model)) if isinstance(model, Mapping) else {"": model}


def _load_weights(module: Module, weights: Record) -> None:
    """Load weights, also of another module, and keep the ids by which the optimizer knows the parameters."""
    own = module.into_record().tensors
    module.load_record(
        Record({
            path: TensorEntry(entry.tensor, own[path].id if path in own else None)
            for path, entry in weights.tensors.items()
        }, aliases=weights.aliases)
    )  # fmt: skip


def _reaches(value: float, goal: float, mode: str) -> bool:
    return value <= goal if mode == "min" else value >= goal


def _when(monitor: Monitor) -> str:
    return f"epoch {monitor.best_epoch}, step {monitor.best_step}"


def _schedules(learner: AnyLearner) -> dict[str, LrSchedule[Any]]:
    schedule: Any = learner.schedule
    named = cast("Mapping[str, Any]", schedule) if isinstance(schedule, Mapping) else {"": schedule}
    return {name: part for name, part in named.items() if isinstance(part, LrSchedule)}


def _listeners(schedule: LrSchedule[Any]) -> Iterator[LrSchedule[Any]]:
    """The parts of a schedule that react to a reported value, now or later."""
    if type(schedule).hear is not LrSchedule.hear:
        yield schedule
    for part in schedule.parts().values():
        yield from _listeners(part)
