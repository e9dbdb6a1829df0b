"""The base of every metric: statistics of a batch, merged over batches, and a value computed from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import Device, DeviceLike, Float, as_device
from phlox.errors import KindError, ShapeError, UnsupportedError
from phlox.host.text import html_by
from phlox.metrics.sums import AnyTensor, Sum, add, is_traced, nothing, on_host
from phlox.tensor import Tensor

State: TypeAlias = dict[str, Any]
"""Statistics by name: `Sum`s and `Rows`, or the states of a collection. `{}` is the state before the first batch."""

Shapes: TypeAlias = dict[str, "tuple[int, ...] | None"]
"""The shape of each sum of a state; None if rows are kept."""


class Rows(NamedTuple):
    """The rows that a metric keeps, batch by batch: a tensor for one batch, arrays on the host after a merge."""

    chunks: tuple[Any, ...]


class Statistic(ABC):
    """The base of measurements of a batch; a collection measures equal statistics only once."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """The shapes of the sums that `measure` returns, by name; None for `Rows`."""

    @abstractmethod
    def measure(self, *args: Any, **options: Any) -> State:
        """Measure the statistics of one batch: `measure(*batch, weights=None)`."""

    def merge(self, first: State, second: State) -> State:
        """Combine the states of two sets of rows, such as batches, shards or processes.

        Raises `ShapeError` for states of different metrics, and `UnsupportedError` if rows would be kept inside a
        compiled function.
        """
        if not first or not second:
            only = first or second
            return {part: _on_host(self, value) if isinstance(value, Rows) else value for part, value in only.items()}
        if first.keys() != second.keys():
            parts = f"states of {', '.join(first)} and of {', '.join(second)}"
            raise ShapeError(f"{_title(self)}: {parts} are of different metrics")
        return self._joined(first, {part: _on_same_device(self, second[part], first[part]) for part in first})

    def _joined(self, first: State, second: State) -> State:
        """Combine states of the same parts, with sums on one device."""
        return {part: _merge_part(self, first[part], second[part]) for part in first}

    @property
    def gathers(self) -> bool:
        """Does it keep rows, so that the state grows with every batch?"""
        return any(shape is None for shape in self.shapes().values())


class Metric(Statistic):
    """The base of streaming metrics: `init`, `update`, `compute`. A metric is immutable; its state is a separate value.

    `update(state, *batch)` is `merge(state, measure(*batch))`. A state is a dict of sums on the device of the first
    batch, so `update` compiles (`px.compile`). `merge` is associative, so the states of shards and processes can be
    combined. The result does not depend on how rows are divided into batches: counts are exact up to 2^48, and sums of
    floats are pairs of a value and its rounding error, as accurate as float64 over any number of batches.

    Metrics that need all rows (`gathers`) keep them on the host instead. With these, call `measure` in a compiled
    function and `merge` outside of it.

    A metric of your own defines `shapes`, `measure` and `result`; see docs/metrics.md.

    >>> from phlox import metrics
    >>> accuracy = metrics.Accuracy()
    >>> state = accuracy.init()
    >>> for predictions, targets in [([0, 1, 2], [0, 1, 1]), ([2], [2])]:
    ...     state = accuracy.update(state, predictions, targets)
    >>> accuracy.compute(state)
    0.75
    """

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            from phlox.other_names import of_object

            if hasattr(type(self), name):  # a property failed: read it again, because its own error was dropped
                return object.__getattribute__(self, name)
            raise AttributeError(of_object(self, name, "Metric"), name=name, obj=self)

    @property
    def statistic(self) -> Statistic:
        """The statistic that is measured: the metric itself, or one that it shares with other metrics."""
        return self

    @abstractmethod
    def result(self, *args: Any, **statistics: Any) -> Any:
        """Compute the value from the statistics, float64 arrays on the host, by name."""

    def init(self, device: DeviceLike | None = None) -> State:
        """Return the state before the first batch.

        Without a device it is `{}`, and the first batch decides the device and the backend. With a device it has zeros
        there, in the structure that `update` returns, so that a compiled update is traced only once.
        """
        if device is None:
            return {}
        state_device = _plain(as_device(device))
        shapes = self.statistic.shapes()
        return {name: Rows(()) if shape is None else nothing(shape, state_device) for name, shape in shapes.items()}

    def update(self, state: State, *args: Any, weights: Any = None) -> State:
        """Return the state after a further batch; the given state does not change.

        Raises `KindError` if the first argument is not a state.
        """
        if not isinstance(cast("Any", state), Mapping):
            raise KindError(
                f"{type(self).__name__}.update takes a state first, and got {type(state).__name__}; a metric keeps "
                "no state itself: state = metric.init(), then state = metric.update(state, ...) for each batch, and "
                "metric.compute(state); metric(...) is the value of one batch"
            )
        return self.merge(state, self.measure(*args, weights=weights))

    def compute(self, state: State) -> Any:
        """Compute the value: a float, an array with one value per class or output, or a dict; float64, on the host.

        Without any rows it is NaN, unless the metric says otherwise.
        """
        shapes = self.statistic.shapes()
        if state and state.keys() != shapes.keys():
            raise ShapeError(
                f"{type(self).__name__}: a state of {', '.join(state)} is another metric's; this one keeps "
                f"{', '.join(shapes)}"
            )
        statistics = {name: _fetch(state.get(name), shape) for name, shape in shapes.items()}
        with np.errstate(all="ignore"):
            return _plain_value(self.result(**statistics))

    def __call__(self, *args: Any, weights: Any = None) -> Any:
        """The value of a single batch."""
        return self.compute(self.measure(*args, weights=weights))


class Derived(Metric):
    """A metric that is computed from a statistic, which other metrics may share."""

    @property
    @abstractmethod
    def statistic(self) -> Statistic: ...

    def shapes(self) -> Shapes:
        return self.statistic.shapes()

    def measure(self, *args: Any, **options: Any) -> State:
        """The statistics of one batch; see the metric for its arguments."""
        return self.statistic.measure(*args, **options)

    def merge(self, first: State, second: State) -> State:
        """See `Statistic.merge`."""
        return self.statistic.merge(first, second)


class Results(dict[str, Any]):
    """The values of several metrics: a dict by name, which a notebook shows as a table."""

    _repr_html_ = html_by("phlox.metrics.pages", "page_of_results")


class Collection(Metric):
    """Several metrics with the same arguments as one metric; equal statistics are measured only once.

    Its value is a dict.

    Args:
        metrics: the metrics by name; they may be collections.

    >>> from phlox import metrics
    >>> both = metrics.Collection({"accuracy": metrics.Accuracy(num_classes=3), "f1": metrics.F1(num_classes=3)})
    >>> both([0, 1, 2, 2], [0, 1, 1, 2])
    {'accuracy': 0.75, 'f1': 0.777...}
    >>> len(both.measure([0, 1], [0, 1]))
    1
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = dict(metrics)
        self._groups: dict[str, Statistic] = {}
        self.group_of: dict[str, str] = {}
        for name, metric in self.metrics.items():
            if not isinstance(metric, Metric):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise KindError(f"Collection: {name!r} must be a metric, got {type(metric).__name__}")
            statistic = metric.statistic
            matches = (group for group, known in self._groups.items() if known == statistic)
            self.group_of[name] = group = next(matches, name)
            self._groups[group] = statistic

    def __repr__(self) -> str:
        return f"Collection({self.metrics!r})"

    def shapes(self) -> Shapes:
        """The shapes of its metrics' sums, by `name.sum`."""
        return {f"{n}.{part}": shape for n, group in self._groups.items() for part, shape in group.shapes().items()}

    def init(self, device: DeviceLike | None = None) -> State:
        if device is None:
            return {}
        return {group: self.metrics[group].init(device) for group in self._groups}

    def measure(self, *args: Any, **options: Any) -> State:
        """Measure the statistics of one batch, by the name of the first metric that needs them."""
        return {group: statistic.measure(*args, **options) for group, statistic in self._groups.items()}

    def merge(self, first: State, second: State) -> State:
        """See `Statistic.merge`."""
        if first and second and not first.keys() == second.keys() == self._groups.keys():
            raise ShapeError(
                f"Collection: states of {', '.join(first)} and of {', '.join(second)} are of different metrics, or not "
                f"of these: {self!r}"
            )
        groups = self._groups if first or second else {}
        return {
            group: statistic.merge(first.get(group, {}), second.get(group, {})) for group, statistic in groups.items()
        }

    def compute(self, state: State) -> Results:
        """Compute the values of all metrics, by name."""
        if state and state.keys() != self._groups.keys():
            raise ShapeError(f"Collection: a state of {', '.join(state)} is not of these metrics: {self!r}")
        return Results({n: metric.compute(state.get(self.group_of[n], {})) for n, metric in self.metrics.items()})

    def result(self, *args: Any, **statistics: Any) -> Any:
        raise NotImplementedError


def _plain(device: Device) -> Device:
    """The device without a tape, at full precision, for statistics."""
    backend = device.backend
    while backend.differentiates and (inner := backend.without_tape()) is not None:
        backend = inner
    return device.on(backend.full_precision())


def _title(statistic: Statistic) -> str:
    """The name of the metric that is measured, for errors."""
    fields = vars(statistic)
    return fields.get("name") or getattr(fields.get("classes"), "name", type(statistic).__name__)


def _on_same_device(statistic: Statistic, part: Any, other: Any) -> Any:
    """A part of a state, on the device of the same part of another."""
    if isinstance(part, Sum) and isinstance(other, Sum):
        if part.value.shape != other.value.shape:
            raise ShapeError(
                f"{_title(statistic)}: sums of shape {other.value.shape} and {part.value.shape} do not add up; are the "
                "states of metrics with other settings?"
            )
        if part.value.backend is other.value.backend and part.value.device == other.value.device:
            return part
        return Sum(part.value.to_device(other.value.device), part.error.to_device(other.value.device))
    if not (isinstance(part, Rows) and isinstance(other, Rows)):
        kinds = " and ".join(type(x).__name__ for x in cast("tuple[object, object]", (other, part)))
        raise ShapeError(f"{_title(statistic)}: {kinds} are of different metrics")
    return part


def _merge_part(statistic: Statistic, first: Any, second: Any) -> Any:
    if isinstance(first, Sum):
        return add(first, second)
    return Rows((*_on_host(statistic, first).chunks, *_on_host(statistic, second).chunks))


def _on_host(statistic: Statistic, rows: Rows) -> Rows:
    """The rows in host memory."""
    for chunk in rows.chunks:
        if isinstance(chunk, Tensor) and is_traced(cast("AnyTensor", chunk)):
            raise UnsupportedError(
                f"{_title(statistic)} keeps all rows, and a compiled function cannot hold a growing number of them; "
                "call measure there, return its result, and merge outside"
            )
    return Rows(tuple(_rows(chunk) for chunk in rows.chunks))


def _rows(chunk: Any) -> np.ndarray[Any, Any]:
    if not isinstance(chunk, Tensor):
        return chunk
    array = np.array(cast("Tensor[Any, Any, Any]", chunk).numpy())
    return array.astype(np.float32) if chunk.kind is Float and array.dtype.itemsize < 4 else array


def _fetch(value: Any, shape: tuple[int, ...] | None) -> Any:
    if isinstance(value, Sum):
        return on_host(value)
    if isinstance(value, Rows):
        return np.concatenate([_rows(chunk) for chunk in value.chunks]) if value.chunks else None
    return None if shape is None else np.zeros(shape)


def _plain_value(value: Any) -> Any:
    """A float for an array without axes."""
    return float(value) if isinstance(value, (float, int)) or getattr(value, "shape", None) == () else value
