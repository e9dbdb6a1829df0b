"""`LrSchedule`: the base class of all learning-rate schedules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, cast

from typing_extensions import TypeVar

from phlox.backend.pytree import PyTreeNode, register_node, register_with_imported_engines, transformation
from phlox.errors import OptimizerError, RecordError
from phlox.host.signal_guard import Prepared, commit
from phlox.optim.schedule.checks import is_count, is_rate, is_scalar, refuse
from phlox.optim.schedule.pytree import flatten_schedule, flatten_with_keys, unflatten_schedule
from phlox.optim.schedule.scalars import engine, is_traced
from phlox.optim.schedule.sketch import sketch
from phlox.other_names import class_of
from phlox.record import Record
from phlox.record.gather import trial_load, undoable

if TYPE_CHECKING:
    from phlox.optim.schedule.compose import ProductLr, SumLr

R = TypeVar("R", bound="float | Mapping[str, float]", default=float, covariant=True)
"""The result of a schedule: a rate or, for `GroupedLr`, a rate for each group of parameters by name."""


class StateField(NamedTuple):
    """The check of an attribute that is saved."""

    expected: str
    fits: Callable[[object], bool]


COUNT = StateField("a whole number of at least zero", is_count)
NUMBER = StateField("a number", is_scalar)
RATE = StateField("a finite number of at least zero", is_rate)


class LrSchedule(ABC, Generic[R]):
    """Base class of schedules, which return the learning rate of one step after the other. Implement `rate`.

    Schedules can be combined: `a * b`, `a + b` and `0.5 * a` multiply or add the rates of their parts at each step.
    `WarmUpLr`, `SequenceLr` and `GroupedLr` are made of schedules too.

    Attributes:
        taken: the number of steps taken so far; set it to continue from any step.
        saved: a class attribute: the names of further attributes in the state, with their checks.
        by_group: a class attribute: whether there is a rate for each group of parameters.

    `step` raises `OptimizerError` for a rate that is negative or not finite.

    >>> from phlox import optim
    >>> class HalvingLr(optim.LrSchedule):
    ...     def rate(self, step):
    ...         return 0.1 * 0.5**step
    >>> schedule = optim.WarmUpLr(HalvingLr(), num_iters=2)
    >>> [schedule.step() for _ in range(4)]
    [0.0, 0.05, 0.1, 0.05]
    """

    taken: int = 0
    _from_tree: bool = False  # whether its numbers came out of a tree, and may have to be converted to Python numbers
    _scope: Any = None  # the JAX transformation in which it was created
    saved: ClassVar[Mapping[str, StateField]] = {}
    by_group: ClassVar[bool] = False

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        register_with_imported_engines()
        schedule = super().__new__(cls)
        if (now := transformation()) is not None:
            schedule._scope = now
        return schedule

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_node(PyTreeNode(cls, flatten_schedule, unflatten_schedule, flatten_with_keys))

    @abstractmethod
    def rate(self, step: int) -> R:
        """The learning rate of any step; the first step is number zero. The schedule does not change.

        If the schedule is an argument of a function that JAX transforms, `step` is a tracer: operators and the
        functions of `jax.numpy` can be used, branches cannot.
        """

    def step(self) -> R:
        """Return the learning rate of the next step, and count it as taken.

        Raises `OptimizerError` in a function that JAX transforms if the schedule is not one of its arguments.
        """
        if self._from_tree:
            self._to_python_numbers()
        if (now := transformation()) is not None and (self._scope is None or self._scope() is not now()):
            refuse(
                self,
                "a schedule that was created outside of a function that JAX transforms would count only once, when the "
                "function is traced; pass it to the function as an argument, and return it, or pass the rate",
            )
        rate = rate_of(self, self.taken)
        self.taken += 1
        return rate

    def report(self, metric: float) -> None:
        """Report a metric, for example at the end of an epoch.

        Only `ReduceOnPlateauLr` uses it: this schedule, or the parts of it that are active at this step. Raises
        `OptimizerError` if the metric is NaN or not a number.
        """
        if self._from_tree:
            self._to_python_numbers()
        if is_traced(self.taken):
            refuse(self, "report branches on the value of the metric; call it outside of jax.jit, scan and vmap")
        active = {id(part): part for part in self.listeners(max(self.taken - 1, 0))}
        fields_before = [(part, dict(vars(part))) for part in active.values()]

        def hear() -> None:
            for part in active.values():  # once each, even if it is a part several times
                part.hear(metric)

        def undo() -> None:
            for part, fields in fields_before:
                vars(part).update(fields)

        commit(hear, undo)

    def hear(self, metric: float) -> None:
        """React to a reported metric; by default, do nothing."""

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        """The schedules that this one is made of, by the names under which their states are saved."""
        return {}

    def listeners(self, step: int) -> Iterator[LrSchedule[Any]]:
        """The schedules that are active at a step: this one, and its active parts."""
        yield self
        for part in self.parts().values():
            yield from part.listeners(step)

    def sketch(self, steps: int, *, width: int = 60) -> str:
        """Plot the rates of the first `steps` steps as text, in bars from zero to the greatest rate.

        Each group of parameters has a line. The schedule does not change. Raises `OptimizerError` if no rate can be
        plotted.

        >>> from phlox import optim
        >>> print(optim.WarmUpLr(optim.CosineAnnealingLr(0.1, num_iters=24), num_iters=8).sketch(32))
        ▁▂▃▄▅▆▇███████▇▇▇▆▆▅▅▄▃▃▃▂▂▁▁▁▁▁  0 to 0.1 in 32 steps
        """
        return sketch(curves_of(self, steps)[1], steps, width)

    def _to_python_numbers(self) -> None:
        """Convert what came out of a tree to Python numbers, as far as the values are known."""
        for name in ("taken", *self.saved):
            value: Any = getattr(self, name)
            if isinstance(value, (int, float)) or is_traced(value):
                continue
            shape = getattr(value, "shape", None)
            if shape != () or not hasattr(value, "item"):
                of_shape = "" if shape is None else f" of shape {shape}"
                refuse(
                    self,
                    f"a PyTree function gave {class_of(value)}{of_shape} for its {name}, which must be one number; "
                    "step the schedules of several models together inside jax.vmap",
                )
            setattr(self, name, value.item())
        for part in self.parts().values():
            part._to_python_numbers()
        self._from_tree = False

    def into_record(self) -> Record:
        """The position in the schedule and the states of its parts, as a record; settings are not saved."""
        if self._from_tree:
            self._to_python_numbers()
        parts = Record.merge({f"parts.{name}": part.into_record() for name, part in self.parts().items()})
        own = {"taken": self.taken, **{name: getattr(self, name) for name in self.saved}}
        return Record(
            {**own, **{path: parts[path] for path in parts}},
            {"schedule": type(self).__name__, **parts.metadata},
            aliases=parts.aliases,
        )

    def load_record(self, record: Record) -> None:
        """Continue from the position in a record.

        Raises `RecordError`, and keeps the old position, if the record is not of a schedule of this class. The error
        lists everything that is wrong with it and its parts.
        """
        self._loading(record)()

    def prepare_load(self, record: Record) -> Callable[[], object]:
        """`load_record` in two steps, for `phlox.record.restore`: checks now, and returns a function that loads."""
        if type(self).load_record is not LrSchedule.load_record:
            return trial_load(self, record)
        return self._loading(record)

    def _loading(self, record: Record) -> Prepared[None]:
        saved_by = record.metadata.get("schedule")
        if saved_by is not None and all(saved_by != kind.__name__ for kind in type(self).__mro__):
            raise RecordError(
                f"the record is of a {saved_by}, and this is a {type(self).__name__}; create the schedule as it was "
                "when it was saved or, to continue with another, set its `taken`"
            )
        values: dict[str, Any] = {"taken": record.values.get("taken")}
        if not COUNT.fits(values["taken"]):
            raise RecordError("taken: the record is not of a schedule, which has the number of steps taken")
        problems: list[str] = []
        for name, field in self.saved.items():
            values[name] = record.values.get(name)
            if not field.fits(values[name]):
                problems.append(f"{name}: expected {field.expected}, found {values[name]!r}; the record is damaged")
        parts = self.parts()
        names_in_record = dict.fromkeys(path.split(".")[1] for path in record if path.startswith("parts."))
        if surplus := [name for name in names_in_record if name not in parts]:
            problems.append(
                f"parts.{surplus[0]}: the record has this part, but this {type(self).__name__} does not; create the "
                "schedule as it was when it was saved"
            )
        loads: list[Prepared[object]] = []
        for name, part in parts.items():
            try:
                loads.append(undoable(part, part.prepare_load(record.select(f"parts.{name}"))))
            except RecordError as error:
                problems += [f"parts.{name}: {line}" for line in str(error).splitlines()]
        if problems:
            raise RecordError("\n".join(problems))

        def load() -> None:
            for name, value in values.items():
                setattr(self, name, value)
            for load_part in loads:
                load_part()

        def keep() -> Callable[[], None]:
            before = dict(vars(self))

            def undo() -> None:
                vars(self).update(before)
                for load_part in loads:
                    load_part.undo()

            return undo

        return Prepared(load, keep)

    def __mul__(self: LrSchedule, other: LrSchedule | float) -> ProductLr:
        from phlox.optim.schedule.compose import ProductLr  # it derives from this class

        return ProductLr(self, other)

    def __rmul__(self: LrSchedule, other: float) -> ProductLr:
        from phlox.optim.schedule.compose import ProductLr

        return ProductLr(other, self)

    def __add__(self: LrSchedule, other: LrSchedule | float) -> SumLr:
        from phlox.optim.schedule.compose import SumLr

        return SumLr(self, other)

    def __radd__(self: LrSchedule, other: float) -> SumLr:
        from phlox.optim.schedule.compose import SumLr

        return SumLr(other, self)

    def __repr__(self) -> str:
        state = {"taken", *self.saved}
        shown = {name: value for name, value in vars(self).items() if name not in state and not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_MOST = 20_000  # points of a curve


def rate_of(schedule: LrSchedule[R], step: int) -> R:
    """The rate of a step; raises `OptimizerError`, naming the schedule, if it is not a valid rate."""
    try:
        rate = schedule.rate(step)
    except Exception as error:
        if is_traced(step) and engine().is_trace_error(error):
            refuse(
                schedule,
                "its rate needs the value of the step, which is unknown in a function that JAX transforms; write the "
                "rate with operators and functions of jax.numpy, or step outside, and pass the rate",
                error,
            )
        raise
    if type(rate) is float and 0.0 <= rate < math.inf:  # the usual case
        return rate
    for name, value in _named(rate).items():
        if not is_rate(value) and not is_traced(value):
            group = f" of the group {name!r}" if isinstance(rate, Mapping) else ""
            refuse(schedule, f"the rate{group} at step {step} must be a finite number of at least zero, got {value!r}")
    return rate


def curves_of(schedule: LrSchedule[Any], steps: int) -> tuple[list[int], dict[str, list[float]]]:
    """Steps from 0 to `steps` - 1, as many as a plot can show, and the rates at them.

    There is a curve for each group, by name; for a schedule without groups, one with an empty name.
    """
    if not isinstance(cast("Any", steps), int) or steps < 1:
        raise OptimizerError(f"steps must be a whole number of at least one, got {steps!r}; there is nothing to draw")
    points = range(steps)
    if steps > _MOST:
        points = [number * (steps - 1) // (_MOST - 1) for number in range(_MOST)]
    rates = [_named(rate_of(schedule, step)) for step in points]
    return list(points), {name: [float(rate[name]) for rate in rates] for name in rates[0]}


def _named(rate: float | Mapping[str, float]) -> Mapping[str, float]:
    return rate if isinstance(rate, Mapping) else {"": rate}
