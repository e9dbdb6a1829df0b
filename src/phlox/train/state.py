"""The whole state of a learner as one record, and how it is saved between steps."""

# The parts of a learner know each other.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Device
from phlox.data.structure import mapped
from phlox.errors import RecordError
from phlox.optim import Lbfgs, LrSchedule, Optimizer
from phlox.optim.optimizer import Rate
from phlox.random.stream import Stream
from phlox.record import PrecisionSettings, Record, SafetensorsRecorder, gather, restore
from phlox.tensor import tensor
from phlox.train.feed import onto
from phlox.train.history import EpochReport, History, Values, flattened, plain
from phlox.train.host_records import in_memory, in_parts, whole
from phlox.train.meter import Meter, Output, Pending
from phlox.train.nonfinite import take_back
from phlox.train.steps import ONLY, Carried, StepFunctions
from phlox.transform import compile as compiled
from phlox.transform.tree import map_leaves

if TYPE_CHECKING:
    from phlox.train.loop import Fit
    from phlox.train.parallel.portions import Portion

FORMAT = 1
"""The version of the record's format; a later one cannot be read."""
_DONATED = {
    "train": ("models", "optimizers", "aids"), "train_one": ("model", "optimizer", "aids"),
    "flush": ("models", "optimizers", "aids"), "measure": ("aids",),
}  # fmt: skip
"""By function, the parameters whose memory a compiled program may overwrite."""
_OF_AIDS = {"ema": "ema=", "accumulators": "accumulate=", "scaler": "loss_scaling="}
"""By the name of what goes with a model through a step, the argument that makes it."""
_ALONE = "model"
"""The name of a single model in a record."""


class State:
    """The state of a learner from step to step, and its work between steps."""

    stream: Stream
    history: History
    events: list[tuple[int, str]]
    validation: Values
    epoch: int
    step: int
    updates: int
    rows: int
    lr: Any
    lr_scale: float
    accumulate: int
    compiles: bool
    _takes_arrays: bool
    """Does a compiled step take NumPy arrays as they are?"""
    guards: bool
    batch: Any
    device: Device
    """Of the first model, to which batches go, on a backend with a tape."""
    _team: Any
    """The `Team` of processes that train together; None without a mesh."""
    _single: bool
    _is_lbfgs: bool
    _models: dict[str, Any]
    _optimizers: dict[str, Optimizer]
    _schedules: dict[str, LrSchedule[Any]]
    _aids: dict[str, Any]
    _functions: StepFunctions
    _programs: dict[Any, Callable[..., Any]]
    _training: Meter
    extra: dict[str, float]
    _values: dict[str, float]
    _kept: Record | None
    _carry: Any
    _carry_saved: list[Any] | None
    _fit: Fit | None
    _last: Pending | None
    _batch_number: int
    """Of the next batch, in the epoch."""
    _position: int
    """Of the random stream, before the last step."""
    _epoch_seconds: float

    # --- as a record

    def snapshot(self) -> Record:
        """Return the whole state as one record in host memory, so that training may go on while it is written.

        It has models, optimizers, schedules, averages, the random stream, metrics, the position in the data, history
        and the states of callbacks. With several processes, call it in all of them; each gets the whole.
        """
        return self._kept or self._in_memory(self.into_record())

    def _in_memory(self, record: Record) -> Record:
        return in_memory(record if self._team is None else whole(self._team, record))

    def keep_state(self) -> None:
        """Save this state, if any, when the training ends, in place of the state at that time."""
        if self._team is not None and self._team.in_shards:
            self._kept = in_parts(self.into_record())
        else:
            self._kept = self.snapshot()

    def saved_state(self) -> Record:
        """As `snapshot`, to save the state of several processes or devices in shards: nothing is copied or gathered."""
        return self._kept or self.into_record()

    def into_record(self) -> Record:
        """Return the whole state as one record, without a copy. See `snapshot`."""
        self._read()
        self._align()
        measured = self._training.parts() if self._team is None else self._team.parts_of(self._training)
        held = {} if self._fit is None else self._fit.callback_records()
        return gather(
            {**self._parts(), **measured, "carry": self._carry_record(), "held": gather(held),
             **self._plain_parts()}
        )  # fmt: skip

    def weights(self) -> Record:
        """Return the weights of the model for inference, in host memory; several models each below its name."""
        return self._in_memory(self.weights_record())

    def weights_record(self) -> Record:
        """As `weights`, without a copy."""
        self._align()
        models = self._for_inference()
        return models[ONLY].into_record() if self._single else gather(models)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the whole state to a file, atomically, and return its path."""
        if self._team is not None and self._team.in_shards:
            record = self.snapshot()
            return Path(self._team.by_main(
                lambda: str(SafetensorsRecorder(precision=PrecisionSettings()).save(record, path))
            ))  # fmt: skip
        return Path(SafetensorsRecorder(precision=PrecisionSettings()).save(self.into_record(), path))

    def load_record(self, record: Record) -> None:
        """See `load_state`."""
        self.load_state(record)

    def load_state(self, record: Record, fit: Fit | None = None) -> None:
        """Restore the state from a record of `snapshot`: all of it, or nothing.

        Raises `RecordError`, which lists all that does not fit, such as another model, optimizer or metrics.
        """
        progress = record.values.get("progress")
        if not isinstance(progress, Mapping) or "format" not in progress:
            raise RecordError("the record is not the state of a learner; for a model alone use model.load_record")
        found = dict(cast("Mapping[str, Any]", progress))
        if found["format"] > FORMAT:
            raise RecordError(
                f"the record is of format {found['format']} of a learner, and this Phlox reads up to {FORMAT}; update "
                "Phlox"
            )
        own = self._training.parts()
        plain_parts: dict[str, Any] = dict.fromkeys(self._plain_parts())
        parts = {**self._parts(), **own, "means": None, "carry": None, "held": None, **plain_parts}
        shares = record.select("shares")
        if len(shares):  # of several processes; see phlox.train.parallel.sums
            parts["shares"] = None
        try:
            values: dict[str, Any] = restore(record, parts)
        except RecordError as error:
            raise RecordError(f"{error}{self._other_arguments(record)}") from error
        self._training.restore(values["means"] or {})
        if self._team is not None:
            self._team.take_share(self._training, shares if len(shares) else None)
        carry = record.select("carry")
        self._carry_saved = [carry.tensors[path].tensor.read() for path in carry] if len(carry) else None
        if self._carry_saved is not None and self._team is not None:
            self._carry_saved = self._team.own_carry(self._carry_saved)
        self._aids.pop("carry", None)
        self.epoch, self.step, self.updates = found["epoch"], found["step"], found["updates"]
        self.rows, self._batch_number, self._epoch_seconds = found["rows"], found["batch"], found["epoch_seconds"]
        self.lr, self.lr_scale, self.extra = found["lr"], found["lr_scale"], dict(found["extra"])
        self.history[:] = [EpochReport.from_plain(one) for one in cast("list[Any]", values["history"])]
        self.events[:] = [(step, text) for step, text in cast("list[Any]", values["events"])]
        self._values = dict(values["values"] or {})
        self.validation = dict(found["validation"] or {})
        if fit is not None:
            fit.first_epoch, fit.first_step = found["first_epoch"], found["first_step"]
            fit.spend(found["seconds"])
            fit.validates = found["validates"]
            fit.data.restore(values["data"])
            fit.restore_callbacks(values["callbacks"] or {}, record.select("held"))

    def _other_arguments(self, record: Record) -> str:
        """The arguments of the learner that differ from those of the record's learner, and what to do."""
        paths = [path.split(".") for path in record]
        held = {path[1] for path in paths if path[0] == "aids"}
        lines = [
            f"the training had {'' if name in held else 'no '}{argument}, and this learner has "
            f"{'none' if name in held else 'it'}"
            for name, argument in _OF_AIDS.items()
            if (name in held) != (name in self._aids)
        ]
        former = {".".join(path[2:-1]) for path in paths if path[:2] == ["totals", "sums"]}
        own = set(self._training.totals.sums)
        lines += [f"the training had the metric {name!r}, and this learner has not" for name in sorted(former - own)]
        lines += [f"the training had no metric {name!r}, and this learner has it" for name in sorted(own - former)]
        lines.append(
            "Make the learner as it was; or begin a new training from the weights alone: "
            f"model.load_record(Checkpoints.load(PATH).select('models.{_ALONE if self._single else 'NAME'}'))"
        )
        return "".join(f"\n{line}" for line in lines)

    def _parts(self) -> dict[str, Any]:
        """The parts that save and load themselves."""
        named = {_ALONE if name == ONLY else name: (name, one) for name, one in self._models.items()}

        def of(group: Mapping[str, Any]) -> dict[str, Any]:
            return {called: group[name] for called, (name, _) in named.items() if name in group}

        aids = {
            name: of(cast("Any", one)) if isinstance(one, dict) else one
            for name, one in self._aids.items()
            if name not in ("totals", "carry")
        }
        return {
            "models": of(self._models), "optimizers": of(self._optimizers), "schedules": of(self._schedules),
            **({"aids": aids} if aids else {}), "random": self.stream,
        }  # fmt: skip

    def _plain_parts(self) -> dict[str, Any]:
        fit = self._fit
        progress = {
            "format": FORMAT, "epoch": self.epoch, "step": self.step, "updates": self.updates, "rows": self.rows,
            "batch": self._batch_number, "epoch_seconds": self._epoch_seconds, "lr": plain(self.lr),
            "lr_scale": self.lr_scale, "extra": dict(self.extra), "validation": plain(self.validation),
            "first_epoch": 0 if fit is None else fit.first_epoch, "first_step": 0 if fit is None else fit.first_step,
            "seconds": 0.0 if fit is None else fit.seconds, "validates": fit is not None and fit.validates,
        }  # fmt: skip
        return {
            "progress": progress,
            "history": [one.to_plain() for one in self.history],
            "events": [list(event) for event in self.events],
            "values": dict(self._values),
            "data": None if fit is None else fit.data.state(),
            "callbacks": {} if fit is None else fit.callback_states(),
        }

    def _carry_record(self) -> Record:
        carried: Carried | None = self._aids.get("carry")
        # One that was restored is made when its first batch comes, which says on what device and in what form.
        if carried is not None and self._team is not None and self._team.in_shards:
            return self._team.carry_record([param.val() for param in carried.parts])
        kept = self._carry_saved or [] if carried is None else [param.val().numpy() for param in carried.parts]
        return Record({f"part{number:04}": array for number, array in enumerate(kept)})

    # --- with other processes

    @property
    def is_together(self) -> bool:
        """Have all processes ended the training after the same step?"""
        return self._fit is None or self._fit.joint is None or self._fit.joint.has_agreed

    def asks_to_save(self) -> bool:
        """Must all processes agree on a step after which they save? Then process 0, by its clock, asks for it."""
        joint = None if self._fit is None else self._fit.joint
        if joint is not None and joint.is_main:
            joint.ask_to_save()
        return joint is not None

    def _align(self) -> None:
        """Make values that each process computes from its own rows, such as running statistics, the same in all."""
        if self._team is not None and self._team.adds_up:
            averages: list[Any] = [*self._aids.get("ema", {}).values()]
            self._team.align([*self._models.values(), *averages])

    def _epoch_means(self) -> Values:
        """The loss and the metrics of an epoch, of the rows of all processes, which all call it."""
        self._read()
        return self._training.values(None if self._team is None else self._team.merged(self._training, means=False))

    # --- from step to step

    def _begin_fit(self) -> None:
        """If an earlier fit ended within an epoch, that epoch is over."""
        if self._batch_number:
            self.epoch, self._batch_number = self.epoch + 1, 0
            if self.history:
                self.history[-1] = self.history[-1].completed()

    def _begin_epoch(self) -> None:
        self._training.reset()
        self._aids.update(self._training.aids())
        self._aids.pop("carry", None)
        self._carry_saved = None
        self.rows, self._epoch_seconds = 0, 0.0

    def _take(self, group: list[Any]) -> Output:
        """The steps on a group of batches."""
        if self._team is None:
            return self._taken(group, None)
        portion: Portion = group[0]
        with self._team.rows_scope(portion):
            return self._team.readable(self._taken([one.batch for one in group], portion))

    def _onto(self, batch: Any, portion: Portion | None, *, stacked: bool = False) -> Any:
        """A batch as tensors on the device of the model."""
        if self._team is None or portion is None:
            return onto(batch, self.device)
        return self._team.placed(batch, portion, self.device, stacked=stacked)

    def _taken(self, group: list[Any], portion: Portion | None) -> Output:
        steps = len(group)
        batch = group[0] if steps == 1 else mapped(lambda *parts: np.stack([np.asarray(x) for x in parts]), *group)
        if not self._takes_arrays or (self._team is not None and self._team.partitions):
            batch = self._onto(batch, portion, stacked=steps > 1)
        if self._carry is not None and "carry" not in self._aids:
            self._aids["carry"] = self._carried(self._models, self._onto(group[0], portion), self._carry_saved)
            self._carry_saved = None
        number = self._batch_number + 1
        applies = self.accumulate == 1 or number % self.accumulate == 0
        self._position = self.stream.position
        taken = {name: schedule.taken for name, schedule in self._schedules.items()}
        try:
            rates: list[dict[str, Rate]] = (
                [self._next_rates() for _ in range(steps)] if applies else [dict.fromkeys(self._schedules, 0.0)]
            )
            output = self._call(rates, batch, steps, applies)
        except BaseException:
            for name, schedule in self._schedules.items():
                schedule.taken = taken[name]
            raise
        self.updates += steps if applies else 0
        return output

    def _call(self, rates: list[dict[str, Rate]], batch: Any, steps: int, applies: bool) -> Output:
        if self._is_lbfgs:
            self._models[ONLY], output = _minimized(cast("Any", self._optimizers[ONLY]), self, rates[0][ONLY], batch)
            self._average()
            return output
        given = rates[0] if steps == 1 else _transposed(rates)
        before = (self._models, {name: one.twin() for name, one in self._optimizers.items()}) if self.guards else None
        more = (applies,) if steps == 1 and self.accumulate > 1 else ()
        if self._single and steps == 1:
            args = self._models[ONLY], self._optimizers[ONLY], self._aids, rates[0][ONLY], batch
            model, self._aids, output = self._program("train_one")(*args, *more)
            self._models = {ONLY: model}
        else:
            program = self._program("train", steps)
            self._models, self._aids, output = program(self._models, self._optimizers, self._aids, given, batch, *more)
        self._training.keep(self._aids)
        if before is not None:
            take_back(self, before, output)
        return output

    def _flush(self) -> None:
        """At the end of an epoch, the step of gradients that are left over."""
        if self.accumulate > 1 and self._batch_number % self.accumulate:
            run = self._program("flush")
            self._models, self._aids = run(self._models, self._optimizers, self._aids, self._next_rates())
            self._training.keep(self._aids)
            self.updates += 1

    def _next_rates(self) -> dict[str, Rate]:
        scale = self.lr_scale
        rates = {name: _times(schedule.step(), scale) for name, schedule in self._schedules.items()}
        self.lr = rates[ONLY] if self._single else rates
        return rates

    def _carried(self, models: Any, batch: Any, saved: list[Any] | None = None) -> Carried:
        """The initial carry, or the saved one."""
        start = self._carry
        if callable(start):
            given = {name: one.valid() for name, one in models.items()}
            start = start(given[ONLY] if self._single else given, batch)
        place = self._training.device
        start = copy.deepcopy(map_leaves(lambda x: tensor(x, device=place), start, np.ndarray))
        carried = Carried(start, place)
        for param, array in zip(carried.parts, saved or (), strict=saved is not None):
            param.set(tensor(array, device=param.device))
        return carried

    def _average(self) -> None:
        for name, ema in self._aids.get("ema", {}).items():
            ema.update(self._models[name])

    def _for_inference(self) -> dict[str, Any]:
        averages = self._aids.get("ema", {})
        return {name: averages[name].average if name in averages else one.valid() for name, one in self._models.items()}

    def _read(self, leave: int = 0) -> None:
        """Read the losses of steps that have not been."""
        for step, loss in self._training.read(leave):
            if self._fit is not None:
                self._fit.check_loss(step, loss)

    def _note(self, kind: str, values: Values) -> None:
        self._values.update(flattened(kind, values))

    def _program(self, name: str, steps: int = 1) -> Callable[..., Any]:
        """A function of the step, compiled if steps are; several steps a call always are."""
        key = name, steps, self.guards
        if key not in self._programs:
            function: Callable[..., Any] = getattr(self._functions, name)
            donate = () if self.guards else _DONATED.get(name, ())
            if steps > 1:
                self._programs[key] = compiled(function, donate=donate, steps=steps, over=("rates", "batch"))
            else:
                self._programs[key] = compiled(function, donate=donate) if self.compiles else function
        return self._programs[key]


def _times(rate: Rate, scale: float) -> Rate:
    if scale == 1.0:
        return rate
    return {name: one * scale for name, one in rate.items()} if isinstance(rate, Mapping) else rate * scale


def _transposed(rates: list[dict[str, Rate]]) -> dict[str, Any]:
    """Rates of several steps: for each model, and group, a list."""
    found: dict[str, Any] = {}
    for name, first in rates[0].items():
        if isinstance(first, Mapping):
            found[name] = {group: [cast("Any", one[name])[group] for one in rates] for group in first}
        else:
            found[name] = [one[name] for one in rates]
    return found


def _minimized(optimizer: Lbfgs, learner: State, rate: Any, batch: Any) -> tuple[Any, Output]:
    """A step of L-BFGS on a batch: the model after it, and the measurements at its beginning."""
    gradient = learner._program("gradient")
    kept: list[Output] = []

    def closure(model: Any) -> Any:
        loss, grads, output = gradient({ONLY: model}, learner._aids, batch, not kept)
        if output is not None:
            kept.append(output)
        return loss, grads

    return optimizer.minimize(rate, learner._models[ONLY], closure), kept[0]
