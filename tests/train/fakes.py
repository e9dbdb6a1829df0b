"""A learner without a training: what callbacks and loggers read, and a loop that calls them as `fit` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.errors import RunError
from phlox.record import Record
from phlox.train.events import EpochReport, Plan, flattened
from phlox.train.host_records import in_memory
from phlox.train.observers.callback import Callback
from phlox.train.observers.callbacks.control import modules_of


class FakeLearner:
    """Its `fit` takes the values of each step and of each validation from functions of the step's number."""

    def __init__(
        self,
        *,
        train: Callable[[int], Mapping[str, Any]] = lambda step: {"loss": 1.0 / step},
        validation: Callable[[int], Mapping[str, Any]] | None = None,
        model: Any = None,
        rows_per_step: int = 4,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._train, self._validate, self._clock = train, validation, clock
        self.model = model
        self.rows_per_step = rows_per_step
        self.validation_data = None if validation is None else object()
        self.epoch = self.step = self.updates = self.rows = 0
        self.lr: Any = 0.1
        self.lr_scale = 1.0
        self.schedule: Any = None
        self.optimizer: Any = None
        self.batch: Any = None
        self.device: Any = None
        self.loss = float("nan")
        self.seconds = 0.0
        self.validation: dict[str, Any] = {}
        self.history: list[EpochReport] = []
        self.events: list[tuple[int, str]] = []
        self.extra: dict[str, Any] = {}
        self.folder: Path | None = None
        self.plan = Plan(None, None, None, None)
        self.stopped: str | None = None
        self.is_resumed = self.starts_over = False
        self._seen: list[Mapping[str, Any]] = []
        self._resumed_after = ""

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def value_names(self, kind: str) -> tuple[list[str], bool]:
        return [], True

    def warn(self, text: str) -> None:
        self.events.append((self.step, text))

    def means(self) -> dict[str, Any]:
        names = self._seen[-1] if self._seen else {}
        return {name: np.mean([one[name] for one in self._seen], axis=0).tolist() for name in names}

    def values(self) -> dict[str, float]:
        return {
            **flattened("train", self.means()), **flattened("validation", self.validation), **flattened("lr", self.lr)
        }  # fmt: skip

    def value(self, name: str) -> float:
        values = self.values()
        if name not in values:
            raise RunError(f"there is no value {name!r}; there are {', '.join(values)}")
        return values[name]

    @property
    def average(self) -> Any:
        return self.model

    def weights(self) -> Record:
        modules = modules_of(self.model)
        if "" in modules:
            return in_memory(modules[""].into_record())
        return Record.merge({name: in_memory(module.into_record()) for name, module in modules.items()})

    def fit(
        self,
        callbacks: Sequence[Callback],
        *,
        epochs: int = 1,
        steps_per_epoch: int = 4,
        validate_at: Iterable[int] = (),
        seconds: float = 1.0,
        resumed: bool = False,
        to_end: bool = True,
    ) -> FakeLearner:
        """Epochs up to number `epochs`, with a validation at the end of each, and after the steps `validate_at`."""
        self.is_resumed, self.stopped = resumed, None
        first = Plan(epochs, epochs * steps_per_epoch, steps_per_epoch, self.rows_per_step, self.epoch, self.step)
        self.plan = first
        learner, started = cast("Any", self), list[Callback]()
        at = set(validate_at)
        try:
            for one in callbacks:
                one.on_fit_start(learner)
                started.append(one)
            while self.epoch < epochs and self.stopped is None:
                self._epoch(callbacks, steps_per_epoch, at, seconds)
        except BaseException as error:
            for one in started:
                one.on_exception(learner, error)
            raise
        finally:
            if to_end:
                for one in reversed(started):
                    one.on_fit_end(learner)
        return self

    def go_on(self, callbacks: Sequence[Callback], *, after: str, steps_per_epoch: int = 4, **options: Any) -> None:
        """`fit`, resumed after a "step", a "validation" or an "epoch", the attributes being what they were then."""
        self._resumed_after = after
        self.fit(callbacks, steps_per_epoch=steps_per_epoch, resumed=True, **options)

    def _epoch(self, callbacks: Sequence[Callback], steps: int, at: set[int], seconds: float) -> None:
        learner = cast("Any", self)
        after, self._resumed_after = self._resumed_after, ""
        done = self.step - steps * self.epoch
        if self.history and not self.history[-1].complete:
            self.history.pop()
        if after in ("step", "validation"):
            begun = self.seconds - seconds * done
            if after == "step" and self.step in at:
                self._validation(callbacks)
        else:
            self.rows, self._seen, begun, done = 0, [], self.seconds, 0
            for one in callbacks:
                one.on_epoch_start(learner)
        ended = True
        for _ in range(steps - done):
            self.step += 1
            self.updates += 1
            self.rows += self.rows_per_step
            self.seconds += seconds
            self.batch = (np.zeros((self.rows_per_step, 3)), np.zeros(self.rows_per_step))
            self._seen.append(self._train(self.step))
            self.loss = float(self._seen[-1].get("loss", float("nan")))
            for one in callbacks:
                one.on_step_end(learner)
            if self.step in at and self.stopped is None:
                self._validation(callbacks)
            if self.stopped is not None:
                ended = self.step == steps * (self.epoch + 1)
                break
        self._validation(callbacks)
        report = EpochReport(
            self.epoch + 1, self.step, self.lr, self.means(), dict(self.validation), self.seconds - begun, self.rows,
            ended,
        )  # fmt: skip
        self.history.append(report)
        self.epoch += ended
        for one in callbacks:
            one.on_epoch_end(learner)

    def _validation(self, callbacks: Sequence[Callback]) -> None:
        if self._validate is None:
            return
        for one in callbacks:
            one.on_validation_start(cast("Any", self))
        self.validation = dict(self._validate(self.step))
        for one in callbacks:
            one.on_validation_end(cast("Any", self))
