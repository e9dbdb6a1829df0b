"""`Stepper`: takes steps on a state, each a call of one program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.backend.parallel import rows_of
from phlox.data.loader import placed
from phlox.data.structure import mapped
from phlox.optim import Lbfgs
from phlox.optim.optimizer import Rate
from phlox.record import Record, gather
from phlox.tensor import tensor
from phlox.train.host_records import in_memory
from phlox.train.state import ONLY, TrainState
from phlox.train.step.carry import Carried
from phlox.train.step.functions import StepFunctions
from phlox.train.step.inputs import Asked, value_of
from phlox.train.step.meter import Meter, Output
from phlox.train.step.nonfinite import take_back
from phlox.train.step.team import Portion, Team
from phlox.transform import compile as compiled
from phlox.transform.tree import map_leaves

_DONATED = {
    "train": ("models", "optimizers", "auxiliary"), "train_one": ("model", "optimizer", "auxiliary"),
    "flush": ("models", "optimizers", "auxiliary"), "measure": ("auxiliary",),
}  # fmt: skip
"""By function, the parameters whose memory a compiled program may overwrite."""


class Stepper:
    """Takes steps on a state.

    Args:
        state: the state.
        functions: what a step computes.
        meter, validation: what measures the training, and the validation.
        team: the processes that train together; None without a mesh.
        device: where batches go.
        compiles: is a step compiled into one program?
        accumulate: the number of batches whose gradients make one step of the optimizers.
        carry: what is passed from batch to batch at the beginning of an epoch, or the function that makes it.
        asked, asked_validating: what the user's functions ask for by name.
    """

    def __init__(
        self,
        state: TrainState,
        functions: StepFunctions,
        meter: Meter,
        validation: Meter,
        *,
        team: Team | None,
        device: Device,
        compiles: bool,
        accumulate: int,
        carry: Any,
        asked: Asked,
        asked_validating: Asked,
    ) -> None:
        self.state, self.functions, self.meter, self.validation = state, functions, meter, validation
        self.team, self.device, self.compiles, self.accumulate = team, device, compiles, accumulate
        self._carry, self.asked, self.asked_validating = carry, asked, asked_validating
        self.is_lbfgs = any(isinstance(one, Lbfgs) for one in state.optimizers.values())
        self.takes_arrays = compiles and engine_of(device.backend).compiles and not self.is_lbfgs
        """Does a compiled step take NumPy arrays as they are?"""
        self.guards = False
        """Is the loss of every step waited for, and the model before it kept until it is known? See `NanGuard`."""
        self.window: tuple[int, int | None] = (0, None)
        """The steps at which the fit began, and is planned to end."""
        self.learner: Callable[[], Any] | None = None
        """Gives the learner, which functions among the inputs are called with."""
        self.position = 0
        """Of the random stream, before the last step."""
        self._programs: dict[Any, Callable[..., Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Stepper:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        shared: dict[str, Any] = {
            "_programs": {},
            "team": self.team,
            "device": self.device,
        }  # programs are made anew, when needed
        for name, value in vars(self).items():
            setattr(twin, name, shared[name] if name in shared else copy.deepcopy(value, memo))
        return twin

    # --- training

    def begin_epoch(self) -> None:
        """Forget what was measured in the epoch before, and its carry."""
        state = self.state
        self.meter.reset()
        state.auxiliary.update(self.meter.auxiliary())
        state.auxiliary.pop("carry", None)
        state.saved_carry = None
        state.rows, state.epoch_seconds = 0, 0.0

    def take(self, group: Sequence[Any]) -> Output:
        """Take the steps on a group of batches, in one call."""
        if self.team is None:
            return self._taken(group, None)
        portion: Portion = group[0]
        with self.team.rows_scope(portion):
            return self.team.readable(self._taken([one.batch for one in group], portion))

    def _taken(self, group: Sequence[Any], portion: Portion | None) -> Output:
        state, steps = self.state, len(group)
        batch = group[0] if steps == 1 else mapped(lambda *parts: np.stack([np.asarray(x) for x in parts]), *group)
        if not self.takes_arrays or (self.team is not None and self.team.partitions):
            batch = self._onto(batch, portion, stacked=steps > 1)
        if self._carry is not None and "carry" not in state.auxiliary:
            state.auxiliary["carry"] = self.carried(state.models, self._onto(group[0], portion), state.saved_carry)
            state.saved_carry = None
        applies = self.accumulate == 1 or (state.batch + 1) % self.accumulate == 0
        self.position = state.stream.position
        taken = {name: schedule.taken for name, schedule in state.schedules.items()}
        try:
            rates: list[dict[str, Rate]] = [] if applies else [dict.fromkeys(state.schedules, 0.0)]
            while applies and len(rates) < steps:
                rates.append(self._next_rates())
            output = self._call(rates, batch, steps, applies)
        except BaseException:
            for name, schedule in state.schedules.items():
                schedule.taken = taken[name]
            raise
        if applies:
            self._count(output.taken, steps)
        return output

    def _count(self, taken: Mapping[str, Any], steps: int) -> None:
        """Count steps of the optimizers; of those that were left out, no schedule knows.

        Where optimizers leave steps out, this waits for the step, since the next rate depends on it.
        """
        state = self.state
        if not taken:
            state.updates += steps
            return
        were = {name: np.asarray(one.numpy()).reshape(-1) for name, one in taken.items()}
        for name, one in were.items():
            state.schedules[name].taken -= int((~one).sum())
        left_out = steps - int(np.logical_and.reduce(list(were.values())).sum())
        others = len(were) < len(state.optimizers)
        state.updates += steps if others else int(np.logical_or.reduce(list(were.values())).sum())
        state.skipped += left_out

    def _call(self, rates: list[dict[str, Rate]], batch: Any, steps: int, applies: bool) -> Output:
        state = self.state
        if self.is_lbfgs:
            state.models[ONLY], output = self._minimized(rates[0][ONLY], batch)
            for name, ema in state.auxiliary.get("ema", {}).items():
                ema.update(state.models[name])
            return output
        before = (
            (state.models, {name: one.twin() for name, one in state.optimizers.items()}) if self.guards else None
        )  # fmt: skip
        more: tuple[Any, ...] = (applies,) if steps == 1 and self.accumulate > 1 else ()
        if self.asked.names:
            more = (applies, self.inputs(self.asked, steps))
        if self.functions.single and steps == 1 and self.compiles:
            args = state.models[ONLY], state.optimizers[ONLY], state.auxiliary, rates[0][ONLY], batch
            model, state.auxiliary, output = self.program("train_one")(*args, *more)
            state.models = {ONLY: model}
        else:
            given = rates[0] if steps == 1 else _stacked(rates)
            args = state.models, state.optimizers, state.auxiliary, given, batch
            state.models, state.auxiliary, output = self.program("train", steps)(*args, *more)
        self.meter.keep(state.auxiliary)
        if before is not None:
            take_back(self, before, output)
        return output

    def inputs(self, asked: Asked, steps: int = 1) -> dict[str, Any]:
        """What the user's function is given by name; for several steps, a list of each."""
        if not asked.always and not (asked.names and self.state.inputs):
            return {}
        learner = None if self.learner is None else self.learner()
        given = {name: value_of(name, one, learner) for name, one in self.state.inputs.items()}
        first = self.state.step
        found = [asked.given(given, partial(self._offered, step)) for step in range(first, first + steps)]
        return found[0] if steps == 1 else _stacked(found)

    def _offered(self, step: int, name: str) -> Any:
        if name != "progress":
            return step if name == "step" else self.state.epoch
        first, last = self.window
        return None if last is None else (step - first) / max(last - first, 1)

    def flush(self) -> None:
        """At the end of an epoch, the step of gradients that are left over."""
        state = self.state
        if self.accumulate > 1 and state.batch % self.accumulate:
            args = state.models, state.optimizers, state.auxiliary, self._next_rates()
            state.models, state.auxiliary, taken = self.program("flush")(*args)
            self.meter.keep(state.auxiliary)
            self._count(taken, 1)

    def drop_gradients(self) -> None:
        """Forget gradients of an epoch that is over and made no step."""
        for name, accumulator in self.state.auxiliary.get("accumulators", {}).items():
            accumulator.take(self.state.models[name])

    def _minimized(self, rate: Any, batch: Any) -> tuple[Any, Output]:
        """A step of L-BFGS on a batch: the model after it, and the measurements at its beginning."""
        gradient, state = self.program("gradient"), self.state
        kept: list[Output] = []
        more = (self.inputs(self.asked),) if self.asked.names else ()

        def closure(model: Any) -> Any:
            loss, grads, output = gradient({ONLY: model}, state.auxiliary, batch, not kept, *more)
            if output is not None:
                kept.append(output)
            return loss, grads

        return cast("Any", state.optimizers[ONLY]).minimize(rate, state.models[ONLY], closure), kept[0]

    def _next_rates(self) -> dict[str, Rate]:
        state, rates = self.state, dict[str, Any]()
        for name, schedule in state.schedules.items():
            rates[name] = schedule.step()
        single = self.functions.single
        if state.lr_set is not None:
            rates.update({ONLY: state.lr_set} if single else state.lr_set)
        if state.lr_scale != 1.0:
            rates = {name: _times(rate, state.lr_scale) for name, rate in rates.items()}
        state.lr = rates[ONLY] if single else rates
        return rates

    def _onto(self, batch: Any, portion: Portion | None, *, stacked: bool = False) -> Any:
        """A batch as tensors on the device of the model."""
        if self.team is None or portion is None:
            return placed(batch, self.device)
        return self.team.placed(batch, portion, self.device, stacked=stacked)

    def carried(self, models: Any, batch: Any, saved: list[Any] | None = None) -> Carried:
        """The initial carry, or the saved one."""
        start = self._carry
        if callable(start):
            given = {name: one.valid() for name, one in models.items()}
            start = start(given[ONLY] if self.state.is_single else given, batch)
        place = self.meter.device
        start = copy.deepcopy(map_leaves(lambda x: tensor(x, device=place), start, (np.ndarray, np.generic)))
        carried = Carried(start, place)
        for param, array in zip(carried.parts, saved or (), strict=saved is not None):
            param.set(tensor(array, device=param.device))
        return carried

    def program(self, name: str, steps: int = 1) -> Callable[..., Any]:
        """A function of the step, compiled if steps are; several steps a call always are."""
        key = name, steps, self.guards
        if key not in self._programs:
            function: Callable[..., Any] = getattr(self.functions, name)
            donate = () if self.guards else _DONATED.get(name, ())
            if steps > 1:
                over = ("rates", "batch", *["inputs"][: len(self.asked.names)])
                self._programs[key] = compiled(function, donate=donate, steps=steps, over=over)
            else:
                self._programs[key] = compiled(function, donate=donate) if self.compiles else function
        return self._programs[key]

    # --- what it has measured

    def epoch_means(self) -> dict[str, Any]:
        """The loss and the metrics of an epoch, of the rows of all processes, which all call it; all must be read."""
        return self.meter.values(None if self.team is None else self.team.merged(self.meter, means=False))

    # --- for others

    def for_inference(self) -> dict[str, Any]:
        """The models by name, averaged where there are averages, in inference mode."""
        averages, models = self.state.auxiliary.get("ema", {}), self.state.models
        return {name: averages[name].average if name in averages else one.valid() for name, one in models.items()}

    def align(self) -> None:
        """Make values that each process computes from its own rows, such as running statistics, the same in all."""
        if self.team is not None and self.team.adds_up:
            averages: list[Any] = [*self.state.auxiliary.get("ema", {}).values()]
            self.team.align([*self.state.models.values(), *averages])
            with rows_of(self.functions.sums_are_local):
                for accumulator in self.state.auxiliary.get("accumulators", {}).values():
                    accumulator.agree()

    def into_record(self, **others: Any) -> Record:
        """The state as one record, without a copy, with further parts; all steps must have been read."""
        self.align()
        measured = self.meter.parts() if self.team is None else self.team.parts_of(self.meter)
        return self.state.into_record(measured, self._carry_record(), **others)

    def load_record(self, record: Record, *others: str) -> dict[str, Any]:
        """See `TrainState.load_record`."""
        found = self.state.load_record(record, *others)
        if self.team is not None:
            shares = record.select("shares")
            self.team.take_share(self.meter, shares if len(shares) else None)
            if self.state.saved_carry is not None:
                self.state.saved_carry = self.team.own_carry(self.state.saved_carry)
        return found

    def weights(self) -> Record:
        """The weights of the models for inference, without a copy; several models each below its name."""
        self.align()
        models = self.for_inference()
        return models[ONLY].into_record() if self.state.is_single else gather(models)

    def in_memory(self, record: Record) -> Record:
        """A whole record in host memory of its own."""
        return in_memory(record if self.team is None else self.team.whole(record))

    def _carry_record(self) -> Record:
        state = self.state
        carried: Carried | None = state.auxiliary.get("carry")
        if carried is not None and self.team is not None and self.team.in_shards:
            return self.team.carry_record([param.val() for param in carried.parts])
        kept = state.saved_carry or [] if carried is None else [param.val().numpy() for param in carried.parts]
        return Record({f"part{number:04}": array for number, array in enumerate(kept)})


def _times(rate: Rate, scale: float) -> Rate:
    return {name: one * scale for name, one in rate.items()} if isinstance(rate, Mapping) else rate * scale


def _stacked(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs or rates of several steps: of each, by name, a list."""
    return {
        name: _stacked([one[name] for one in values]) if isinstance(first, Mapping) else [one[name] for one in values]
        for name, first in values[0].items()
    }
