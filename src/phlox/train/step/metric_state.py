"""The measurements of a pass over data: the mean loss, the metrics, and further scalars of the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from phlox.backend import Device, Float
from phlox.errors import KindError, PhloxError, RecordError, RunError
from phlox.host.signal_guard import Prepared
from phlox.metrics.aggregation import Mean as MeanMetric
from phlox.metrics.base import Collection, Metric, Rows, Shapes, State
from phlox.metrics.sums import Sum
from phlox.module import Module, Param
from phlox.module.param import set_together
from phlox.other_names import described, equivalent
from phlox.record import Record
from phlox.tensor import Tensor, full, tensor
from phlox.train.events import Values, plain
from phlox.train.step.batch import count, without_tape
from phlox.train.values import MOST

if TYPE_CHECKING:
    from phlox.train.step.sums import ReducedMetrics

AnyTensor = Tensor[Any, Any, Any]

LOSS = "loss"
_LAG = 64
"""How many steps the loop may be ahead of the last loss that was read, so that it does not wait for the engine."""


class MetricInputs(NamedTuple):
    """The arguments of a metric's update together with a weight for each row.

    A step returns a tuple of arguments for all metrics, a dict of tuples by the name of the metric, or a dict of
    `MetricInputs` if rows have weights.

    >>> MetricInputs(args=([0.2, 0.9], [0.0, 1.0]), weights=[1.0, 0.5]).weights
    [1.0, 0.5]
    """

    args: tuple[Any, ...]
    """The arguments, such as `(output, target)`."""
    weights: Any = None
    """The weights, [rows]; None for equal weights."""


@dataclass(frozen=True)
class MeanOf(Metric):
    """The mean of a function of a metric's arguments, a scalar for each batch, weighted with the batch's rows."""

    function: Callable[..., Any]

    def shapes(self) -> Shapes:
        return MeanMetric().shapes()

    def measure(self, *args: Any, weights: Any = None) -> State:
        """The statistics of a batch."""
        device = next((x.device for x in args if isinstance(x, Tensor)), None)
        value = scalar(self.function(*args), getattr(self.function, "__name__", "metric"), device)
        rows = float(count(args))
        return MeanMetric().measure(value.reshape((1,)), weights=full((1,), rows, device=value.device))

    def result(self, *args: Any, **statistics: Any) -> Any:
        return MeanMetric().result(*args, **statistics)


class Totals(Module):
    """The sums of all metrics that have sums, as parameters, so that a compiled step adds to them."""

    def __init__(self, sums: dict[str, list[Param]]) -> None:
        self.sums = sums


class Output(NamedTuple):
    """The outputs of a step besides models and states."""

    loss: AnyTensor | None
    scalars: dict[str, Any]
    rows: dict[str, Any]
    """By metric, the values that it keeps of every row of the batch."""
    weight: Any = None
    """The weight of the loss in a mean over batches; None if that is the number of rows."""
    was_taken: Mapping[str, AnyTensor] = {}
    """By model whose optimizer skips steps that are not finite: was this step taken?"""


@dataclass(slots=True)
class Pending:
    """A step whose loss has not been read yet."""

    step: int
    epoch: int
    number: int
    """The number of its batch in the epoch."""
    rows: int
    output: Output
    index_in_call: int | None
    """The index of the step in its call; None if the call took one step."""


class Mean(NamedTuple):
    """A weighted mean of numbers, or of arrays of one shape, as two sums."""

    total: Any = 0.0
    weight: float = 0.0

    def add(self, value: Any, weight: float) -> Mean:
        """The mean with a further value."""
        return Mean(self.total + value * weight, self.weight + weight)

    @property
    def value(self) -> Any:
        """The mean; NaN without values."""
        return self.total / self.weight if self.weight else self.total * float("nan")

    def to_plain(self) -> list[Any]:
        """The two sums as plain values."""
        return [plain(self.total), self.weight]

    @classmethod
    def from_plain(cls, pair: Sequence[Any]) -> Mean:
        """The inverse of `to_plain`."""
        total, weight = pair
        return cls(np.asarray(total, np.float64) if isinstance(total, list) else total, weight)


class MetricState:
    """The loss, the metrics and further scalars of one pass over data, as they accumulate.

    Args:
        metrics: the metrics by name; a metric of a `Collection` is named `name/part`, with the collection's name first.
        device: the device of the model.

    Raises `RunError` for the name `loss`, which is the loss's own, `KindError` for an object that is no metric.
    """

    def __init__(self, metrics: Mapping[str, Any], device: Device) -> None:
        self.metrics = dict(_flat(metrics))
        if LOSS in self.metrics:
            raise RunError(f"metrics: {LOSS!r} is the loss's own name; give this metric another")
        self._all = Collection(self.metrics)
        self._summed = {name: metric for name, metric in self.metrics.items() if not metric.gathers}
        self.device = device = without_tape(device)
        self._starts = {name: metric.init(device) for name, metric in self._summed.items()}
        self.totals = Totals(
            {name: [Param(x, trained=False, full_precision=True) for x in _tensors(start)]
             for name, start in self._starts.items()}
        )  # fmt: skip
        self.gathered: dict[str, State] = {}
        self.means: dict[str, Mean] = {}
        self.pending: deque[Pending] = deque()
        self.remarks: list[str] = []
        """Warnings about the values that were read."""

    # --- within a step

    def measure_batch(self, inputs: Any, totals: Totals | None) -> dict[str, Any]:
        """Add a batch to the totals, and return the values that metrics keep of its rows, by name."""
        if inputs is None or not self.metrics:
            return {}
        states: dict[str, State] = {}
        if isinstance(inputs, Mapping):
            for name, value in cast("Mapping[str, Any]", inputs).items():
                if name not in self.metrics:
                    raise RunError(
                        f"the step returned inputs for a metric {name!r} that the learner does not have; it has "
                        f"{', '.join(self.metrics)}"
                    )
                arguments = _inputs(value, name)
                states[name] = self.metrics[name].measure(*arguments.args, weights=arguments.weights)
        else:
            arguments = _inputs(inputs, "all metrics")
            shared = self._all.measure(*arguments.args, weights=arguments.weights)
            states = {name: shared[self._all.group_of[name]] for name in self.metrics}
        changes: list[tuple[Param, AnyTensor]] = []
        rows: dict[str, Any] = {}
        for name, state in states.items():
            if name not in self._summed:
                rows[name] = state
                continue
            assert totals is not None
            params = totals.sums[name]
            before = _state_from(self._starts[name], iter([param.val() for param in params]))
            after = self.metrics[name].merge(before, state)
            changes += zip(params, _tensors(after), strict=True)
        set_together(changes)
        return rows

    # --- around a step

    def auxiliary(self) -> dict[str, Any]:
        """The additional inputs and outputs of a step: the totals, if there are any."""
        return {"totals": self.totals} if self._summed else {}

    def keep(self, auxiliary: Mapping[str, Any]) -> None:
        """Set the totals to those that a step has returned."""
        self.totals = auxiliary.get("totals", self.totals)

    def reset(self) -> None:
        """Forget all measurements."""
        self.gathered, self.means = {}, {}
        self.pending.clear()
        zeros = [x for start in self._starts.values() for x in _tensors(start)]
        params = [param for params in self.totals.sums.values() for param in params]
        # `x * 0.0` allocates new memory: a compiled step may overwrite the memory of the totals.
        set_together([(param, x * 0.0) for param, x in zip(params, zeros, strict=True)])

    def add(self, step: Pending) -> Iterator[tuple[Pending, float]]:
        """Add the results of a step, and read the losses of steps so old that the engine need not be waited for."""
        self.pending.append(step)
        if len(self.pending) > _LAG:
            yield from self.read(_LAG // 2)

    def read(self, leave: int = 0) -> Iterator[tuple[Pending, float]]:
        """Read the unread steps, except the last `leave`: each with its loss, NaN if there is none."""
        while len(self.pending) > leave:
            step = self.pending.popleft()
            output = step.output
            loss = float("nan") if output.loss is None else _number(output.loss, step.index_in_call)
            weight = step.rows if output.weight is None else _number(output.weight, step.index_in_call)
            if output.loss is not None and weight:  # a batch of weight zero has no loss
                self._count(LOSS, loss, weight)
            for name, value in output.scalars.items():
                self._count(name, _number(value, step.index_in_call), step.rows)
            for name, state in output.rows.items():
                self.gathered[name] = self.metrics[name].merge(
                    self.gathered.get(name, {}),
                    state if step.index_in_call is None else _rows_of_step(state, step.index_in_call),
                )
            if output.loss is not None and weight:
                yield step, loss

    def sums(self) -> dict[str, State]:
        """The states of metrics that are sums, by name."""
        return {
            name: _state_from(self._starts[name], iter([param.val() for param in self.totals.sums[name]]))
            for name in self._summed
        }

    def values(self, reduced: ReducedMetrics | None = None) -> Values:
        """The loss, the scalars and the metrics so far; all steps must have been read.

        Args:
            reduced: the measurements of all processes, to use in place of this process's.
        """
        means = self.means if reduced is None else reduced.means
        states = {**self.gathered, **self.sums()} if reduced is None else {**reduced.rows, **reduced.sums}
        values: Values = {name: plain(mean.value) for name, mean in means.items()}
        return values | {name: plain(metric.compute(states.get(name, {}))) for name, metric in self.metrics.items()}

    def _count(self, name: str, value: Any, rows: float) -> None:
        before = self.means.get(name)
        if before is None:
            self.means[name] = Mean().add(value, rows)
        elif np.shape(before.total) == np.shape(value):
            self.means[name] = before.add(value, rows)
        else:
            self.remarks.append(
                f"the step reports {name!r} in shapes {np.shape(before.total)} and {np.shape(value)}, which have no "
                f"common mean; only values of the first shape are used. Report the mean over rows, {name}.mean(axis=0)"
            )

    # --- records

    def names_of_sums(self) -> list[str]:
        """The names of metrics that are sums."""
        return list(self._summed)

    def parts(self) -> dict[str, Any]:
        """The parts of the record of the measurements; all steps must have been read."""
        return {
            "totals": self.totals,
            "means": {name: mean.to_plain() for name, mean in self.means.items()},
            "rows": KeptRows(self),
        }

    def restore(self, means: Mapping[str, Any]) -> None:
        """Restore the means from `parts`; the other parts are restored by themselves."""
        self.pending.clear()
        self.means = {name: Mean.from_plain(pair) for name, pair in means.items()}


class KeptRows:
    """The rows that metrics keep, as a part of a record: those of `metric_state`, or `rows` in their place."""

    def __init__(self, metric_state: MetricState, rows: dict[str, State] | None = None) -> None:
        self._metric_state = metric_state
        self._rows = rows

    def _names(self) -> dict[str, str]:
        """The names of metrics, by their numbers: a name in a record may have no dots and slashes."""
        return {f"{number}": name for number, name in enumerate(self._metric_state.metrics)}

    def into_record(self) -> Record:
        """The rows of each metric, concatenated."""
        kept = self._metric_state.gathered if self._rows is None else self._rows
        return Record(
            {
                f"{number}_{part}": np.concatenate([np.asarray(chunk) for chunk in rows.chunks])
                for number, name in self._names().items()
                for part, rows in kept.get(name, {}).items()
            }
        )

    def load_record(self, record: Record) -> None:
        """Load the rows of metrics; `RecordError` for those of other metrics."""
        self.prepare_load(record)()

    def prepare_load(self, record: Record) -> Callable[[], object]:
        """Check the record, and return the function that loads it."""
        names, rows = self._names(), dict[str, State]()
        for path in record:
            number, _, part = path.partition("_")
            shapes = self._metric_state.metrics[names[number]].shapes() if number in names else {}
            if part not in shapes or shapes[part] is not None:
                raise RecordError(
                    f"the record has rows of the metric number {number}, and the learner's metrics are "
                    f"{', '.join(self._metric_state.metrics) or 'none'}; give it the metrics that it had"
                )
            rows.setdefault(names[number], {})[part] = Rows((np.array(record.tensors[path].tensor.read()),))

        def load() -> None:
            self._metric_state.gathered = rows

        return Prepared(load, lambda: partial(setattr, self._metric_state, "gathered", self._metric_state.gathered))


def _flat(metrics: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Metric]]:
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(
            f'metrics: give a dict by name, such as {{"accuracy": metrics.Accuracy()}}, got {described(metrics)}'
        )
    for name, metric in metrics.items():
        if isinstance(metric, Collection):
            yield from _flat(metric.metrics, f"{above}{name}/")
        elif isinstance(metric, Metric):
            yield f"{above}{name}", metric
        elif callable(metric) and not isinstance(metric, type):
            yield f"{above}{name}", MeanOf(metric)
        else:
            got = described(metric) + equivalent(metric, "phlox.metrics")
            raise KindError(
                f"metrics: {above}{name} must be a metric such as metrics.Accuracy(), or a function of the outputs and "
                f"targets, got {got}"
            )


def _inputs(value: Any, name: str) -> MetricInputs:
    if isinstance(value, MetricInputs):
        return value
    if isinstance(value, tuple):
        return MetricInputs(cast("tuple[Any, ...]", value))
    raise RunError(
        f"the step's value for {name} must be a tuple of the metric's arguments, got a {type(value).__name__}; "
        "return (loss, (output, targets))"
    )


def _tensors(state: State) -> list[AnyTensor]:
    return [x for part in state.values() for x in cast("Sum", part)]


def _state_from(start: State, tensors: Iterator[AnyTensor]) -> State:
    return {name: Sum(next(tensors), next(tensors)) for name in start}


def _number(value: Any, index: int | None) -> Any:
    """A number or an array on the host; of a call of several steps, the value of the step of this index."""
    if isinstance(value, float):
        return value
    array: Any = np.asarray(value.numpy() if isinstance(value, Tensor) else value, np.float64)
    array = array if index is None else array[index]
    return array if array.ndim else float(array)


def _rows_of_step(state: State, index: int) -> State:
    return {part: Rows(tuple(chunk[index] for chunk in kept.chunks)) for part, kept in state.items()}


def scalar(value: Any, name: str, device: Device | None = None) -> AnyTensor:
    """A scalar tensor without history, from a tensor or a number of any engine; `RunError` for anything else."""
    result = value.detach() if isinstance(cast("object", value), Tensor) else _tensor(value, device)
    if result is None or result.shape != ():
        got = f"a {type(value).__name__}" if result is None else f"a tensor of shape {result.shape}"
        raise RunError(f"the {name} must be a scalar, got {got}; take its mean, {name}.mean()")
    return result


def reported(value: Any, name: str, device: Device) -> AnyTensor:
    """A value that a step reports by name, a number or a small array, as Floats without history.

    Raises `RunError` for anything else, and for a large array.
    """
    result = _tensor(value, device.on(device.backend.full_precision()))
    if result is None:
        raise RunError(
            f"the step reports {name!r}, a {type(value).__name__}; give a number, or an array of up to {MOST} numbers"
        )
    if result.size > MOST:
        raise RunError(
            f"the step reports {name!r}, an array of shape {result.shape}, which has more than {MOST} numbers; give "
            f"the mean over its rows, {name}.mean(axis=0), or report it from a callback: learner.extra[{name!r}] = "
            "px.train.Histogram(...)"
        )
    return result if result.kind is Float else result.float()


def _tensor(value: Any, device: Device | None) -> AnyTensor | None:
    """A tensor, a number or an array of numbers as a tensor without history; None for anything else."""
    if isinstance(value, Tensor):
        return cast("AnyTensor", value).detach()
    if not isinstance(value, (bool, int, float, list, tuple)) and getattr(value, "shape", None) is None:
        return None
    try:
        return tensor(float(value) if isinstance(value, (int, float)) else value, device=device)
    except PhloxError:
        return None
