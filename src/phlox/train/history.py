"""The reports of a training: its planned size, and one report for each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

import numpy as np

from phlox.optim.optimizer import Rate

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
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})

    def _repr_html_(self) -> str:
        from phlox.train.views.html import html_of_epoch

        return html_of_epoch(self)


class History(list[EpochReport]):
    """The list of the epochs' reports (`EpochReport`); a notebook shows it as curves and a table.

    >>> history = History([EpochReport(epoch=1, step=10, lr=0.1, train={"loss": 0.5})])
    >>> history[-1].train["loss"]
    0.5
    """

    def _repr_html_(self) -> str:
        from phlox.train.views.html import html_of_history

        return html_of_history(self)


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
    """Convert to dicts, lists and Python scalars; arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in cast("list[Any]", value)]
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("Any", value).tolist()
    return value
