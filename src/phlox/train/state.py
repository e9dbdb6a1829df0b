"""`TrainState`: the state of a training between two steps, as data, and its record.

It knows no loop, no callback and no file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from phlox.errors import RecordError, RunWarning
from phlox.optim import LrSchedule, Optimizer
from phlox.random.stream import Stream
from phlox.record import Record, gather, restore
from phlox.train.events import EpochReport, Growing, History, Values, entries_of, kept, plain
from phlox.train.values import from_plain

FORMAT = 3
"""The version of the record's format; a later one cannot be read."""
ONLY = ""
"""The name of a single model."""
LOG = "log"
"""The name, in a record, of lists that only grow: their numbers of entries, and their lines or the file with them."""
COUNTS, LINES = "counts", "lines"
HISTORY, EVENTS = "history", "events"
ALONE = "model"
"""The name of a single model in a record."""
_OF_AUXILIARY = {"ema": "ema=", "accumulators": "accumulate=", "scaler": "loss_scaling="}
"""By the name of an auxiliary state of a step, the learner's argument that makes it."""


class Measured(Protocol):
    """The measurements of an epoch so far; see `MetricState`."""

    def parts(self) -> dict[str, Any]:
        """The parts of its record."""
        ...

    def restore(self, means: Mapping[str, Any]) -> None:
        """Restore the means; the other parts restore themselves."""
        ...

    def names_of_sums(self) -> list[str]:
        """The names of metrics that are sums."""
        ...


@dataclass
class RunState:
    """The facts about the running call of `fit` that a resumed call needs."""

    first_epoch: int = 0
    """The number of the epoch at the beginning of the call: its limits count from there."""
    first_step: int = 0
    """The number of the step at the beginning of the call."""
    seconds: float = 0.0
    """The time of the call so far."""
    validates: bool = False
    """Is a validation due that has not begun?"""
    validated: tuple[int, int] | None = None
    """The numbers of steps and of optimizer steps at the last validation."""


@dataclass
class TrainState:
    """The state of a training between two steps.

    A compiled step takes and returns `models`, `optimizers` and `auxiliary`; everything else stays on the host.
    """

    models: dict[str, Any]
    """The models by name; a single model has the name `ONLY`."""
    optimizers: dict[str, Optimizer]
    schedules: dict[str, LrSchedule[Any]]
    auxiliary: dict[str, Any]
    """Further states that a step updates: averages (`ema`), `accumulators`, `scaler`, sums of metrics (`totals`), and
    the `carry`."""
    measured: Measured
    """The losses and metrics of this epoch so far."""
    stream: Stream
    """The random numbers of the training: dropout draws from it, and nothing else does."""
    seed: int | None = None
    """The seed that the stream was made from; None if none was chosen."""
    epoch: int = 0
    """The number of epochs that have ended."""
    batch: int = 0
    """The number of the next batch in its epoch."""
    step: int = 0
    """The number of steps: of batches that the models were trained on."""
    updates: int = 0
    """The number of steps of the optimizers."""
    skipped: int = 0
    """The number of steps that an optimizer skipped, because its gradients were not finite."""
    rows: int = 0
    """The number of rows of this epoch so far."""
    epoch_seconds: float = 0.0
    """The time of this epoch's steps so far."""
    lr: Any = 0.0
    """The learning rate of the last step; by model and by group if there are several."""
    lr_set: Any = None
    """A rate set by hand in place of the schedules; None to follow the schedules."""
    lr_scale: float = 1.0
    """A factor of all learning rates."""
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Numbers that the user's step gets by name."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of callbacks, by name, for the loggers."""
    history: History = field(default_factory=History)
    events: Growing[tuple[int, str]] = field(default_factory=Growing[tuple[int, str]])
    """Warnings and other news, each with its step."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """The newest values, by names such as `train/loss`."""
    validation: Values = field(default_factory=dict[str, Any])
    """The values of the last validation."""
    run: RunState = field(default_factory=RunState)
    base: dict[str, int] = field(default_factory=dict[str, int])
    """Checksums of what was not trained when the training began, by path in the record, if checkpoints leave it out."""
    saved_carry: list[Any] | None = None
    """The arrays of a restored carry, until the first batch determines its device and structure."""

    @property
    def is_single(self) -> bool:
        """Is there one model, without a name?"""
        return ONLY in self.models

    # --- as a record

    def grown(self) -> dict[str, Growing[Any]]:
        """The lists of the state that only grow, by name."""
        if not isinstance(self.history, History):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.history = History(self.history)
        if not isinstance(self.events, Growing):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.events = Growing(self.events)
        return {HISTORY: self.history, EVENTS: self.events}

    def into_record(
        self,
        measured: Mapping[str, Any],
        carry: Record,
        *,
        grown: Mapping[str, Growing[Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Record:
        """The state as one record, without a copy. Of lists that only grow it has the lengths: see `with_lines`.

        Args:
            measured: the parts of the measurements, of all processes if there are several.
            carry: the carry.
            grown: all lists that only grow, by name; those of the state if None.
            settings: see `phlox.train.settings`; a resumed training reports which of them have changed.
            others: further parts: the position in the data, the states of callbacks.
        """
        lists = self.grown() if grown is None else grown
        counts = {name: len(entries) for name, entries in lists.items()}
        if self.history and not self.history[-1].complete:
            counts[HISTORY] -= 1
        own = {
            "progress": {**self._progress(), "settings": dict(settings or {})},
            LOG: {COUNTS: counts},
            "values": dict(self.values),
        }
        return gather({**self.parts(), **measured, "carry": carry, **others, **own})

    def load_record(self, record: Record, *others: str) -> dict[str, Any]:
        """Restore the state, all of it or nothing, and return further parts, by name.

        Lists of callbacks that only grow are put into their states, in the part `callbacks`. Gives a `RunWarning` if
        the record lacks the lines of these lists.

        Raises `RecordError`, which lists all that does not fit, such as another model, optimizer or metrics.
        """
        progress = record.values.get("progress")
        if not isinstance(progress, Mapping) or "format" not in progress:
            raise RecordError("the record is not the state of a learner; for a model alone use model.load_record")
        saved = dict(cast("Mapping[str, Any]", progress))
        if saved["format"] > FORMAT:
            raise RecordError(
                f"the record has format {saved['format']} of a learner, and this Phlox reads formats up to {FORMAT}; "
                "update Phlox"
            )
        grown = _entries(saved["format"], record.values)
        names = ["means", "carry", "progress", "values", *others]
        names += [HISTORY, EVENTS] if saved["format"] == 1 else [LOG]
        parts = {**self.parts(), **self.measured.parts(), **dict.fromkeys(names)}
        if len(record.select("shares")):  # saved by several processes; see phlox.train.step.sums
            parts["shares"] = None
        try:
            values: dict[str, Any] = restore(record, parts)
        except RecordError as error:
            raise RecordError(f"{error}{self._other_arguments(record)}") from error
        self.measured.restore(values["means"] or {})
        carry = record.select("carry")
        self.saved_carry = [carry.tensors[path].tensor.read() for path in carry] if len(carry) else None
        self.auxiliary.pop("carry", None)
        self._set_progress(saved)
        unfinished = [saved["unfinished"]] if saved.get("unfinished") else []
        self.history[:] = [EpochReport.from_plain(report) for report in [*grown.pop(HISTORY, ()), *unfinished]]
        self.events[:] = [(step, text) for step, text in grown.pop(EVENTS, ())]
        self.values = dict(values["values"] or {})
        callbacks: Mapping[str, Mapping[str, Any]] = values.get("callbacks") or {}
        states = {name: dict(state) for name, state in callbacks.items()}
        for name, entries in grown.items():
            callback, _, key = name.partition(".")
            states.setdefault(callback, {})[key] = entries
        return {name: states if name == "callbacks" else values[name] for name in others}

    def parts(self) -> dict[str, Any]:
        """The parts that save and load themselves."""
        names = {ALONE if name == ONLY else name: name for name in self.models}

        def of(group: Mapping[str, Any]) -> dict[str, Any]:
            return {recorded_name: group[name] for recorded_name, name in names.items() if name in group}

        aids = {
            name: of(cast("Any", value)) if isinstance(value, dict) else value
            for name, value in self.auxiliary.items()
            if name not in ("totals", "carry")
        }
        return {
            "models": of(self.models), "optimizers": of(self.optimizers), "schedules": of(self.schedules),
            **({"aids": aids} if aids else {}), "random": self.stream,
        }  # fmt: skip

    def _progress(self) -> dict[str, Any]:
        run = self.run
        return {
            "format": FORMAT, "epoch": self.epoch, "step": self.step, "updates": self.updates,
            "skipped": self.skipped, "rows": self.rows, "batch": self.batch, "epoch_seconds": self.epoch_seconds,
            "lr": plain(self.lr), "lr_set": plain(self.lr_set), "lr_scale": float(self.lr_scale),
            "inputs": numbers_of(self.inputs), "extra": kept(self.extra), "validation": plain(self.validation),
            "first_epoch": run.first_epoch, "first_step": run.first_step, "seconds": run.seconds,
            "unfinished": None if not self.history or self.history[-1].complete else self.history[-1].to_plain(),
            "validates": run.validates, "validated": None if run.validated is None else list(run.validated),
        }  # fmt: skip

    def _set_progress(self, progress: Mapping[str, Any]) -> None:
        self.epoch, self.step, self.updates = progress["epoch"], progress["step"], progress["updates"]
        self.skipped = progress.get("skipped", 0)
        self.rows, self.batch, self.epoch_seconds = progress["rows"], progress["batch"], progress["epoch_seconds"]
        self.lr, self.lr_set, self.lr_scale = progress["lr"], progress.get("lr_set"), progress["lr_scale"]
        self.inputs = {**self.inputs, **(progress.get("inputs") or {})}
        self.extra = {name: from_plain(value) for name, value in progress["extra"].items()}
        self.validation = dict(progress["validation"] or {})
        validated = progress.get("validated")
        self.run = RunState(
            progress["first_epoch"], progress["first_step"], progress["seconds"], progress["validates"],
            None if validated is None else (validated[0], validated[1]),
        )  # fmt: skip

    def _other_arguments(self, record: Record) -> str:
        """Lines about the arguments that differ from those of the record's learner, and the remedy."""
        paths = [path.split(".") for path in record]
        recorded = {path[1] for path in paths if path[0] == "aids"}
        lines = [
            f"the training had {'' if name in recorded else 'no '}{argument}, and this learner has "
            f"{'none' if name in recorded else 'it'}"
            for name, argument in _OF_AUXILIARY.items()
            if (name in recorded) != (name in self.auxiliary)
        ]
        former = {".".join(path[2:-1]) for path in paths if path[:2] == ["totals", "sums"]}
        own = set(self.measured.names_of_sums())
        lines += [f"the training had the metric {name!r}, and this learner has not" for name in sorted(former - own)]
        lines += [f"the training had no metric {name!r}, and this learner has it" for name in sorted(own - former)]
        lines.append(
            "Make the learner as it was; or begin a new training from the weights alone: "
            f"model.load_record(Checkpoints.load(PATH).select('models.{ALONE if self.is_single else 'NAME'}'))"
        )
        return "".join(f"\n{line}" for line in lines)


def with_lines(record: Record, grown: Mapping[str, Growing[Any]]) -> Record:
    """The record of a state with the lines of all lists that only grow, so that it needs no other file."""
    counts: Mapping[str, int] = record[LOG][COUNTS]
    lines = {name: "".join(grown[name].lines(count)[:count]) for name, count in counts.items()}
    return record.with_entries({LOG: {COUNTS: dict(counts), LINES: lines}})


def _entries(format: int, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The entries of the lists that only grow, by name."""
    if format == 1:
        return {name: list(values.get(name, ())) for name in (HISTORY, EVENTS)}
    log: Mapping[str, Any] = values.get(LOG, {})
    if format == 2:
        return {name: entries_of(lines) for name, lines in log.items()}
    counts: Mapping[str, int] = log.get(COUNTS, {})
    if LINES not in log and any(counts.values()):
        warnings.warn(
            f"the record lacks its history ({described(counts)}), which is in {log.get('file', 'a file')} beside the "
            "checkpoint; Checkpoints.load(PATH) reads both. Everything else is restored",
            RunWarning,
            stacklevel=5,
        )
    return {name: entries_of(log.get(LINES, {}).get(name, "")) for name in counts}


def described(counts: Mapping[str, int]) -> str:
    """The numbers of entries of lists that only grow, in words.

    >>> described({"history": 3, "events": 0, "Report.losses": 7})
    '3 reports of epochs, 7 entries of callbacks'
    """
    others = sum(count for name, count in counts.items() if name not in (HISTORY, EVENTS))
    words = {
        "reports of epochs": counts.get(HISTORY, 0), "events": counts.get(EVENTS, 0), "entries of callbacks": others,
    }  # fmt: skip
    return ", ".join(f"{count} {noun}" for noun, count in words.items() if count)


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, as Python numbers; a record keeps only these."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        number = plain(value)
        if isinstance(number, (bool, int, float)):
            numbers[name] = number
    return numbers
