"""The reports of a training: its planned size, and one report for each epoch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from phlox.data.structure import host_array
from phlox.errors import RecordError, RunError
from phlox.host.text import html_by
from phlox.optim.optimizer import Rate
from phlox.train.values import is_picture, row_values, to_plain

E = TypeVar("E")
Values = dict[str, Any]
"""The loss and the metrics by name: a float or, for a metric with a value per class, a list of floats."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned size of a training; a field is None if it is not known."""

    epochs: int | None
    """The number of the last epoch."""
    steps: int | None
    """The number of the last step."""
    steps_per_epoch: int | None
    """The number of steps in an epoch."""
    batch_size: int | None
    """The number of rows in a batch."""
    first_epoch: int = 0
    """The number of epochs that had ended before this training began."""
    first_step: int = 0
    """The number of steps that had been taken before it began."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """The report of an epoch that has ended.

    >>> EpochReport(epoch=1, step=10, lr=0.1, train={"loss": 0.5}, seconds=2.0, rows=100).rate
    50.0
    """

    epoch: int
    """The number of the epoch, from 1."""
    step: int
    """The number of steps since the beginning of the training."""
    lr: Rate
    """The learning rate of the last step; by group if the groups have their own rates."""
    train: Values
    """The loss and the metrics over the epoch's batches, while the model was trained."""
    validation: Values = field(default_factory=dict[str, Any])
    """The loss and the metrics on the validation data, in inference mode; empty without validation."""
    seconds: float = 0.0
    """The time of the steps and of waiting for data, without validation and callbacks."""
    rows: int = 0
    """The number of rows (for example images) that were trained on."""
    complete: bool = True
    """Were all batches used? Not if a limit ended the epoch in the middle; it can then be resumed."""

    @property
    def rate(self) -> float:
        """The number of rows per second."""
        return self.rows / self.seconds if self.seconds > 0.0 else float("nan")

    def completed(self) -> EpochReport:
        """This report with `complete` set."""
        return replace(self, complete=True)

    def flat(self) -> dict[str, float]:
        """All scalars of the report in one dict: `train/loss`, `validation/accuracy`, `lr`; see `flattened`."""
        return {
            "epoch": self.epoch, "step": self.step, **flattened("lr", self.lr), **flattened("train", self.train),
            **flattened("validation", self.validation), "seconds": self.seconds, "rows_per_second": self.rate,
        }  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        """Convert to plain values, for records and JSON."""
        return plain(asdict(self))

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> EpochReport:
        """Make a report from the plain values of `to_plain`."""
        return cls(**{attribute.name: values[attribute.name] for attribute in fields(cls) if attribute.name in values})

    _repr_html_ = html_by("phlox.train.observers.views.pages", "page_of_epoch")


@dataclass(slots=True)
class Run:
    """Facts about a call of `fit` beyond the state of the training."""

    plan: Plan = field(default_factory=lambda: Plan(None, None, None, None))
    folder: Path | None = None
    validation_data: Any = None
    """The validation data, as they were given."""
    is_resumed: bool = False
    """Did it resume from a checkpoint?"""
    starts_over: bool = False
    """Was it to resume from a checkpoint, and there was none yet?"""
    stopped: str | None = None
    """The reason why it has ended or is about to end."""
    batch: Any = None
    """The last batch that was trained on."""
    last: Any = None
    """The last step, with its loss; see `Pending`."""
    is_whole: bool = True
    """After an exception: is the state unchanged since the last step?"""


class Growing(list[E]):
    """A list of plain values that only grows. Checkpoints save each of its entries once, in a file beside them.

    A callback that keeps a value of every epoch or step puts such a list into its `state`; `restore` gets it as a list.

    >>> seen = Growing([[1, 0.5]])
    >>> seen.append([2, 0.25])
    >>> seen.lines(2)
    ['[1, 0.5]\\n', '[2, 0.25]\\n']
    """

    def __init__(self, entries: Iterable[E] = ()) -> None:
        super().__init__(entries)
        self._lines: list[str] = []
        self._last: Any = None

    def encode(self, entry: E) -> Any:
        """An entry as plain values."""
        return plain(entry)

    def lines(self, count: int) -> list[str]:
        """At least the first `count` entries as lines of JSON; each entry is encoded only once.

        While earlier entries stay unchanged, every call extends and returns the same list. Raises `RecordError` for an
        entry that is no plain value.
        """
        lines = self._lines
        num_encoded = len(lines)
        if num_encoded > len(self) or (num_encoded and self[num_encoded - 1] is not self._last):
            self._lines = lines = []
            num_encoded = 0
        for entry in self[num_encoded:count]:
            try:
                lines.append(json.dumps(self.encode(entry)) + "\n")
            except (TypeError, ValueError) as error:
                raise RecordError(
                    f"an entry of a list that only grows is {entry!r:.200}, which is no plain value ({error}); give "
                    "numbers, texts, None, and lists and dicts of these"
                ) from error
            self._last = entry
        return lines


class History(Growing[EpochReport]):
    """The list of the epochs' reports (`EpochReport`); a notebook shows it as curves and a table.

    >>> history = History([EpochReport(epoch=1, step=10, lr=0.1, train={"loss": 0.5})])
    >>> history[-1].train["loss"]
    0.5
    """

    def encode(self, entry: EpochReport) -> Any:
        return entry.to_plain()

    _repr_html_ = html_by("phlox.train.observers.views.pages", "page_of_history")


def entries_of(lines: str) -> list[Any]:
    """The entries of lines of JSON."""
    return [json.loads(line) for line in lines.splitlines()]


def flattened(name: str, value: Any) -> dict[str, float]:
    """Flatten nested dicts and lists of scalars to `{"name/part": scalar}`; list items are counted from 0.

    >>> flattened("validation", {"loss": 0.5, "recall": [1.0, 0.25]})
    {'validation/loss': 0.5, 'validation/recall/0': 1.0, 'validation/recall/1': 0.25}
    """
    return dict(_flattened(name, value))


def _flattened(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            yield from _flattened(f"{name}/{key}", part)
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from _flattened(f"{name}/{number}", part)
    elif isinstance(value, (int, float)):
        yield name, value


def plain(value: Any) -> Any:
    """Convert to dicts, lists and Python scalars; arrays and tensors of any engine become lists."""
    if isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in cast("list[Any]", value)]
    array = host_array(value)
    return value if array is None else array.tolist()


def kept(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `extra` that a checkpoint keeps, as plain values: numbers, and what loggers show of other values.

    >>> list(kept({"score": np.float32(0.5), "shares": np.array([1, 2]), "weights": np.zeros(1000), "note": "a text"}))
    ['score', 'shares', 'weights']
    """
    values: dict[str, Any] = {}
    for name, value in extra.items():
        with contextlib.suppress(RunError):  # loggers report it
            entries = row_values(name, value)
            is_shown = any(map(is_picture, entries.values()))
            values |= {key: to_plain(entry) for key, entry in entries.items()} if is_shown else {name: plain(value)}
    return values
