"""`Stepper`: takes steps on a state; each call runs one program."""

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
from phlox.train.step.data_parallel import BatchShard, DataParallel
from phlox.train.step.functions import StepFunctions
from phlox.train.step.inputs import Asked, value_of
from phlox.train.step.metric_state import MetricState, Output
from phlox.train.step.nonfinite import undo_if_not_finite
from phlox.train.unchanged import completed, left_out_of
from phlox.transform import compile as compiled
from phlox.transform.compile.recompiles import fields_stay
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
        functions: the functions of a step.
        metric_state, validation: the measurements of the training, and of the validation.
        team: the processes that train together; None without a mesh.
        device: the device for batches.
        compiles: is a step compiled into one program?
        accumulate: the number of batches whose gradients make one step of the optimizers.
        carry: the carry at the beginning of an epoch, or a function that makes it.
        asked, asked_validating: the inputs that the user's functions get by name.
    """

    def __init__(
        self,
        state: TrainState,
        functions: StepFunctions,
        metric_state: MetricState,
        validation: MetricState,
        *,
        team: DataParallel | None,
        device: Device,
        compiles: bool,
        accumulate: int,
        carry: Any,
        asked: Asked,
        asked_validating: Asked,
    ) -> None:
        self.state, self.functions, self.metric_state, self.validation = state, functions, metric_state, validation
        self.team, self.device, self.compiles, self.accumulate = team, device, compiles, accumulate
        self._carry, self.asked, self.asked_validating = carry, asked, asked_validating
        self.is_lbfgs = any(isinstance(optimizer, Lbfgs) for optimizer in state.optimizers.values())
        self.takes_arrays = compiles and engine_of(device.backend).compiles and not self.is_lbfgs
        """Does a compiled step take NumPy arrays as they are?"""
        self.guards = False
        """Does every step wait for its loss, and keep the model before it until then? See `NanGuard`."""
        self.window: tuple[int, int | None] = (0, None)
        """The steps at which the fit began, and at which it is planned to end."""
        self.learner: Callable[[], Any] | None = None
        """Returns the learner, the argument of functions among the inputs."""
        self.position = 0
        """The position of the random stream before the last step."""
        self._programs: dict[Any, Callable[..., Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Stepper:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        shared: dict[str, Any] = {
            "_programs": {},
            "team": self.team,
            "device": self.device,
        }  # programs are compiled again when needed
        for name, value in vars(self).items():
            setattr(twin, name, shared[name] if name in shared else copy.deepcopy(value, memo))
        return twin

    # --- training

    def begin_epoch(self) -> None:
        """Forget the measurements and the carry of the epoch before."""
        state = self.state
        self.metric_state.reset()
        state.auxiliary.update(self.metric_state.auxiliary())
        state.auxiliary.pop("carry", None)
        state.saved_carry = None
        state.rows, state.epoch_seconds = 0, 0.0

    def run_steps(self, group: Sequence[Any]) -> Output:
        """Take a step on each batch of a group, in one call."""
        if self.team is None:
            return self._run_steps(group, None)
        shard: BatchShard = group[0]
        with self.team.rows_scope(shard):
            return self.team.readable(self._run_steps([item.batch for item in group], shard))

    def _run_steps(self, group: Sequence[Any], shard: BatchShard | None) -> Output:
        state, steps = self.state, len(group)
        batch = group[0] if steps == 1 else mapped(lambda *parts: np.stack([np.asarray(x) for x in parts]), *group)
        if not self.takes_arrays or (self.team is not None and self.team.partitions):
            batch = self._tensors(batch, shard, stacked=steps > 1)
        if self._carry is not None and "carry" not in state.auxiliary:
            state.auxiliary["carry"] = self.first_carry(state.models, self._tensors(group[0], shard), state.saved_carry)
            state.saved_carry = None
        applies = self.accumulate == 1 or (state.batch + 1) % self.accumulate == 0
        self.position = state.stream.position
        counts = {name: schedule.taken for name, schedule in state.schedules.items()}
        try:
            rates: list[dict[str, Rate]] = [] if applies else [dict.fromkeys(state.schedules, 0.0)]
            while applies and len(rates) < steps:
                rates.append(self._next_rates())
            output = self._call(rates, batch, steps, applies)
        except BaseException:
            for name, schedule in state.schedules.items():
                schedule.taken = counts[name]
            raise
        if applies:
            self._count(output.was_taken, steps)
        return output

    def _count(self, was_taken: Mapping[str, Any], steps: int) -> None:
        """Count the steps of the optimizers; schedules do not count steps that were skipped.

        If an optimizer may skip steps, this waits for the step, since the next rate depends on it.
        """
        state = self.state
        if not was_taken:
            state.updates += steps
            return
        arrays = {name: np.asarray(array.numpy()).reshape(-1) for name, array in was_taken.items()}
        for name, array in arrays.items():
            state.schedules[name].taken -= int((~array).sum())
        left_out = steps - int(np.logical_and.reduce(list(arrays.values())).sum())
        others = len(arrays) < len(state.optimizers)
        state.updates += steps if others else int(np.logical_or.reduce(list(arrays.values())).sum())
        state.skipped += left_out

    def _call(self, rates: list[dict[str, Rate]], batch: Any, steps: int, applies: bool) -> Output:
        state = self.state
        if self.is_lbfgs:
            state.models[ONLY], output = self._minimized(rates[0][ONLY], batch)
            for name, ema in state.auxiliary.get("ema", {}).items():
                ema.update(state.models[name])
            return output
        before = (
            (state.models, {name: each.twin() for name, each in state.optimizers.items()}) if self.guards else None
        )  # fmt: skip
        extra: tuple[Any, ...] = (applies,) if steps == 1 and self.accumulate > 1 else ()
        if self.asked.names:
            extra = (applies, self.inputs(self.asked, steps))
        if self.functions.is_single and steps == 1 and self.compiles:
            args = state.models[ONLY], state.optimizers[ONLY], state.auxiliary, rates[0][ONLY], batch
            model, state.auxiliary, output = self.program("train_one")(*args, *extra)
            state.models = {ONLY: model}
        else:
            step_rates = rates[0] if steps == 1 else _stacked(rates)
            args = state.models, state.optimizers, state.auxiliary, step_rates, batch
            state.models, state.auxiliary, output = self.program("train", steps)(*args, *extra)
        self.metric_state.keep(state.auxiliary)
        if before is not None:
            undo_if_not_finite(self, before, output)
        return output

    def inputs(self, asked: Asked, steps: int = 1) -> dict[str, Any]:
        """The arguments by name for the user's function; for several steps, a list by name."""
        if not asked.always and not (asked.names and self.state.inputs):
            return {}
        learner = None if self.learner is None else self.learner()
        values = {name: value_of(name, value, learner) for name, value in self.state.inputs.items()}
        first = self.state.step
        arguments = [asked.arguments(values, partial(self._offered, step)) for step in range(first, first + steps)]
        return arguments[0] if steps == 1 else _stacked(arguments)

    def _offered(self, step: int, name: str) -> Any:
        if name != "progress":
            return step if name == "step" else self.state.epoch
        first, last = self.window
        return None if last is None else (step - first) / max(last - first, 1)

    def flush(self) -> None:
        """At the end of an epoch, take a step with accumulated gradients that are left over."""
        state = self.state
        if self.accumulate > 1 and state.batch % self.accumulate:
            args = state.models, state.optimizers, state.auxiliary, self._next_rates()
            state.models, state.auxiliary, was_taken = self.program("flush")(*args)
            self.metric_state.keep(state.auxiliary)
            self._count(was_taken, 1)

    def drop_gradients(self) -> None:
        """Drop accumulated gradients of an epoch that is over."""
        for name, accumulator in self.state.auxiliary.get("accumulators", {}).items():
            accumulator.take(self.state.models[name])

    def _minimized(self, rate: Any, batch: Any) -> tuple[Any, Output]:
        """Take a step of L-BFGS on a batch; return the model after it, and the measurements of the model before."""
        gradient, state = self.program("gradient"), self.state
        kept: list[Output] = []
        extra = (self.inputs(self.asked),) if self.asked.names else ()

        def closure(model: Any) -> Any:
            loss, grads, output = gradient({ONLY: model}, state.auxiliary, batch, not kept, *extra)
            if output is not None:
                kept.append(output)
            return loss, grads

        return cast("Any", state.optimizers[ONLY]).minimize(rate, state.models[ONLY], closure), kept[0]

    def _next_rates(self) -> dict[str, Rate]:
        state, rates = self.state, dict[str, Any]()
        for name, schedule in state.schedules.items():
            rates[name] = schedule.step()
        single = self.functions.is_single
        if state.lr_set is not None:
            rates.update({ONLY: state.lr_set} if single else state.lr_set)
        if state.lr_scale != 1.0:
            rates = {name: _times(rate, state.lr_scale) for name, rate in rates.items()}
        state.lr = rates[ONLY] if single else rates
        return rates

    def _tensors(self, batch: Any, shard: BatchShard | None, *, stacked: bool = False) -> Any:
        """A batch as tensors on the device of the model."""
        if self.team is None or shard is None:
            return placed(batch, self.device)
        return self.team.batch_on_devices(batch, shard, self.device, stacked=stacked)

    def first_carry(self, models: Any, batch: Any, saved: list[Any] | None = None) -> Carried:
        """The carry at the beginning of an epoch, or with the saved values."""
        start = self._carry
        if callable(start):
            inference_models = {name: model.valid() for name, model in models.items()}
            start = start(inference_models[ONLY] if self.state.is_single else inference_models, batch)
        device = self.metric_state.device
        start = copy.deepcopy(map_leaves(lambda x: tensor(x, device=device), start, (np.ndarray, np.generic)))
        carried = Carried(start, device)
        for param, array in zip(carried.parts, saved or (), strict=saved is not None):
            param.set(tensor(array, device=param.device))
        return carried

    def program(self, name: str, steps: int = 1) -> Callable[..., Any]:
        """A function of the step, compiled if `compiles`, or if a call takes several steps."""
        key = name, steps, self.guards
        if key not in self._programs:
            function: Callable[..., Any] = getattr(self.functions, name)
            donate = () if self.guards else _DONATED.get(name, ())
            if steps > 1:
                over = ("rates", "batch", *["inputs"][: len(self.asked.names)])
                self._programs[key] = compiled(function, donate=donate, steps=steps, over=over)
            else:
                self._programs[key] = compiled(function, donate=donate) if self.compiles else function
                if not self.compiles and name != "measure":  # which gets views, whose fields are lost on every engine
                    return partial(self._first_call, function)
        return self._programs[key]

    def _first_call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that is not compiled, and raise `CompileError` if it does what a compiled one cannot."""
        models = [(name or "model", model) for name, model in self.state.models.items()]
        with fields_stay(function.__qualname__, models):
            return function(*args)

    # --- measurements

    def epoch_means(self) -> dict[str, Any]:
        """The loss and the metrics of an epoch over the rows of all processes. Call it in all; all must be read."""
        return self.metric_state.values(
            None if self.team is None else self.team.reduced_metrics(self.metric_state, means=False)
        )

    # --- models and records

    def for_inference(self) -> dict[str, Any]:
        """The models by name in inference mode; the averages of models that have one."""
        averages, models = self.state.auxiliary.get("ema", {}), self.state.models
        return {name: averages[name].average if name in averages else model.valid() for name, model in models.items()}

    def align(self) -> None:
        """Make values that processes compute from their own rows, such as running statistics, equal in all."""
        if self.team is not None and self.team.adds_up:
            averages: list[Any] = [*self.state.auxiliary.get("ema", {}).values()]
            self.team.align([*self.state.models.values(), *averages])
            with rows_of(self.functions.sums_are_local):
                for accumulator in self.state.auxiliary.get("accumulators", {}).values():
                    accumulator.agree()

    def into_record(self, **others: Any) -> Record:
        """The state as one record, without a copy, with further parts; all steps must have been read."""
        self.align()
        measured = self.metric_state.parts() if self.team is None else self.team.record_parts(self.metric_state)
        return self.state.into_record(measured, self._carry_record(), **others)

    def load_record(self, record: Record, *others: str) -> dict[str, Any]:
        """See `TrainState.load_record`; what the record leaves out must be in the models as it was."""
        base = left_out_of(record)
        if base:
            record = completed(record, gather(self.state.parts()))
        parts = self.state.load_record(record, *others)
        self.state.base = base
        if self.team is not None:
            shares = record.select("shares")
            self.team.load_share(self.metric_state, shares if len(shares) else None)
            if self.state.saved_carry is not None:
                self.state.saved_carry = self.team.own_carry(self.state.saved_carry)
        return parts

    def weights(self) -> Record:
        """The weights of the models for inference, without a copy; with several models, each under its name."""
        self.align()
        models = self.for_inference()
        return models[ONLY].into_record() if self.state.is_single else gather(models)

    def in_memory(self, record: Record) -> Record:
        """A copy of the whole record in host memory."""
        return in_memory(record if self.team is None else self.team.whole(record))

    def _carry_record(self) -> Record:
        state = self.state
        carried: Carried | None = state.auxiliary.get("carry")
        if carried is not None and self.team is not None and self.team.in_shards:
            return self.team.carry_record([param.val() for param in carried.parts])
        kept = state.saved_carry or [] if carried is None else [param.val().numpy() for param in carried.parts]
        return Record({f"part{number:04}": array for number, array in enumerate(kept)})


def _times(rate: Rate, scale: float) -> Rate:
    return {name: value * scale for name, value in rate.items()} if isinstance(rate, Mapping) else rate * scale


def _stacked(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The inputs or rates of several steps, as a list by name."""
    return {
        name: _stacked([entry[name] for entry in values])
        if isinstance(first, Mapping)
        else [entry[name] for entry in values]
        for name, first in values[0].items()
    }
