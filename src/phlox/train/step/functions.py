"""One step of a training: functions of models, optimizers and a batch, which compile as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend.levels import has_history
from phlox.backend.parallel import RowGroup, no_sync, row_group, rows_of
from phlox.errors import PhloxError, RunError
from phlox.metrics.sums import is_traced
from phlox.module import GradientsParams
from phlox.optim import Ema, GradientClipping, GradientsAccumulator, LossScaler, Optimizer
from phlox.tensor import Tensor, tensor
from phlox.tensor.functional.loss_weight import Loss
from phlox.tensor.noted_means import Means, noting_means
from phlox.train.state import ONLY
from phlox.train.step.batch import count
from phlox.train.step.metric_state import LOSS, MetricState, Output, Totals, reported, scalar
from phlox.train.step.precision import Narrow, wide

AnyTensor = Tensor[Any, Any, Any]
Models: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[..., Any]
_NOTHING: Mapping[str, Any] = {}


class NotFiniteLossError(PhloxError, ArithmeticError):
    """Raised if the loss of a step is not finite; the step was not taken."""


class Result(NamedTuple):
    """The result of a user's step."""

    loss: AnyTensor | None
    inputs: Any = None
    """The arguments of the metrics."""
    scalars: Mapping[str, Any] = {}
    """Further values to report: numbers and arrays, as tensors once they are checked."""
    weight: AnyTensor | float | None = None
    """The weight of the loss in a mean over batches, if it is known."""
    sums: Callable[[], Loss] | None = None
    """Gives the loss as its two sums, if its weight is known."""
    is_weighted: bool = False
    """Does the loss leave out items, or weight them unequally?"""


def result_of(value: Any, means: Means | None = None) -> Result:
    """Parse the value of a user's step: a loss, `(loss, inputs)` or `(loss, inputs, scalars)`; else `RunError`."""
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    if isinstance(value, dict):
        parts = (None, None, cast("dict[str, Any]", value))
    if not 1 <= len(parts) <= 3:
        raise RunError(
            f"the step returns {len(parts)} values; return the loss, (loss, metric_inputs) or (loss, metric_inputs, "
            "scalars)"
        )
    result = Result(*parts)
    if not isinstance(result.scalars, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RunError(
            f"the scalars of a step must be a dict by name, got a {type(cast('object', result.scalars)).__name__}"
        )
    if result.loss is None and not result.scalars:
        raise RunError("the step returns None; return the loss, a scalar tensor")
    loss: Any = result.loss
    if isinstance(loss, Loss):
        return result._replace(loss=loss.mean, weight=loss.weight, sums=lambda: loss, is_weighted=True)
    if means is None or loss is None:
        return result
    weight, sums = means.of(loss)
    return result._replace(weight=weight, sums=sums, is_weighted=means.weighted)


@dataclass(frozen=True)
class StepFunctions:
    """The step of a learner, which calls the user's functions; its methods are compiled.

    `step` and `validate` take the models, the batch and, if there is one, the carry; `update` takes models, optimizers,
    rates and the batch. If `is_single`, there is one model, and it is passed without a dict.
    """

    step: Step | None
    update: Step | None
    validate: Step | None
    training: MetricState
    validation: MetricState
    is_single: bool
    clip: GradientClipping | None
    has_carry: bool
    checks_loss_before_step: bool
    """Is the loss checked before the optimizer's step, if its value is known?"""
    narrow: Narrow | None = None
    """Converts models to the precision in which a step computes; None if they have that precision."""
    sums_are_local: RowGroup | None = None
    """The processes, if each keeps the sum of its own gradients until the last batch of an optimizer's step."""

    # --- training

    def train(
        self,
        models: Models,
        optimizers: dict[str, Optimizer],
        auxiliary: dict[str, Any],
        rates: dict[str, Any],
        batch: Any,
        applies: bool = True,
        inputs: Mapping[str, Any] = _NOTHING,
    ) -> tuple[Models, dict[str, Any], Output]:
        """Take a step on a batch; return the models after it, the auxiliary states, and the measurements."""
        taken: dict[str, AnyTensor] = {}
        if self.update is not None:
            models, result = self._call_update(models, optimizers, auxiliary, rates, batch, inputs)
        else:
            models, result, taken = self._take_step(models, optimizers, auxiliary, rates, batch, applies, inputs)
        for name, ema in cast("dict[str, Ema[Any]]", auxiliary.get("ema", {})).items():
            if applies:
                ema.update(models[name])
        return (
            models,
            auxiliary,
            self._output(self.training, auxiliary.get("totals"), result)._replace(was_taken=taken),
        )

    def train_one(
        self,
        model: Any,
        optimizer: Optimizer,
        auxiliary: dict[str, Any],
        rate: Any,
        batch: Any,
        applies: bool = True,
        inputs: Mapping[str, Any] = _NOTHING,
    ) -> tuple[Any, dict[str, Any], Output]:
        """As `train`, for a single model: without dicts, which a compiled call would have to flatten."""
        models, auxiliary, output = self.train(
            {ONLY: model}, {ONLY: optimizer}, auxiliary, {ONLY: rate}, batch, applies, inputs
        )
        return models[ONLY], auxiliary, output

    def _take_step(
        self, models: Models, optimizers: Any, auxiliary: Any, rates: Any, batch: Any, applies: bool, inputs: Any
    ) -> tuple[Models, Result, dict[str, AnyTensor]]:
        result, grads = self.gradients(models, optimizers, auxiliary, batch, inputs)
        accumulators: dict[str, GradientsAccumulator] = auxiliary.get("accumulators", {})
        if accumulators:
            group, rows = row_group(), count(batch)
            rows = float(rows if group is None else sum(group.rows or [rows * group.size]))
            weight = rows if result.weight is None else result.weight
            for name, accumulator in accumulators.items():
                accumulator.add(grads[name], models[name], weight)
            if not applies:
                return dict(models), result, {}
            grads = self._accumulated(models, accumulators)
        after, was_taken = self._apply_gradients(models, optimizers, rates, grads)
        return after, result, was_taken

    def _accumulated(
        self, models: Models, accumulators: Mapping[str, GradientsAccumulator]
    ) -> dict[str, GradientsParams]:
        """The gradients of a step, summed over its batches and all processes."""
        # A batch that is not divided over the processes has no row group; the sums still belong to `sums_are_local`.
        with rows_of(row_group() if self.sums_are_local is None else self.sums_are_local):
            return {name: accumulator.take(models[name]) for name, accumulator in accumulators.items()}

    def _apply_gradients(
        self, models: Models, optimizers: Any, rates: Any, grads: dict[str, GradientsParams]
    ) -> tuple[Models, dict[str, AnyTensor]]:
        """The models after a step; and for each optimizer that skips steps that are not finite: was the step taken?"""
        skipping = [name for name, optimizer in optimizers.items() if getattr(optimizer, "skip_nonfinite", False)]
        if self.clip is not None:
            before, grads = grads, self.clip.of_all_together(grads)
            if self.clip.kind == "value":  # it makes infinities finite, and the optimizer must still see them
                grads |= {name: grads[name].where(before[name].isfinite(), math.nan) for name in skipping}
        was_taken = {name: grads[name].isfinite() for name in skipping} if skipping else {}
        after = dict(models)
        for name, optimizer in optimizers.items():
            after[name] = optimizer.step(rates[name], models[name], grads[name])
        return after, was_taken

    def flush(
        self, models: Models, optimizers: dict[str, Optimizer], auxiliary: dict[str, Any], rates: dict[str, Any]
    ) -> tuple[Models, dict[str, Any], dict[str, AnyTensor]]:
        """Take the step with the accumulated gradients that have not been applied yet; see `train`."""
        grads = self._accumulated(models, auxiliary["accumulators"])
        after, was_taken = self._apply_gradients(models, optimizers, rates, grads)
        for name, ema in auxiliary.get("ema", {}).items():
            ema.update(after[name])
        return after, auxiliary, was_taken

    def gradients(
        self, models: Models, optimizers: Any, auxiliary: Any, batch: Any, inputs: Any
    ) -> tuple[Result, dict[str, GradientsParams]]:
        """The result of the user's step, and the gradients of its loss by model."""
        step_models = {name: model if name in optimizers else model.valid() for name, model in models.items()}
        step_models, give_back = self.narrowed(step_models)
        result = self._call_step(self.step, step_models, batch, auxiliary, inputs)
        give_back()
        if result.loss is None:
            raise RunError("the step returns no loss to minimize; return a scalar tensor first, or give update=")
        loss, result = self._weigh(result, row_group(), "accumulators" in auxiliary)
        value = scalar(result.loss, LOSS)
        result = result._replace(loss=value)
        if self.checks_loss_before_step and not is_traced(value):
            number = float(value.numpy())
            if not math.isfinite(number):
                raise NotFiniteLossError(str(number))
        if not has_history(loss.backend, loss.primitive):
            raise self._independent("the model" if self.is_single else "any model")
        scaler: LossScaler | None = auxiliary.get("scaler")
        with nullcontext() if self.sums_are_local is None else no_sync():
            return result, self._grads_by_model(loss, scaler, optimizers, step_models)

    def _grads_by_model(
        self, loss: AnyTensor, scaler: LossScaler | None, optimizers: Any, models: Models
    ) -> dict[str, GradientsParams]:
        """The gradients of a loss by model, unscaled."""
        if scaler is None:
            all_grads = loss.backward()
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # the scaler finds its scale by steps that overflow
                all_grads = scaler.scaled(loss).backward()
        grads: dict[str, GradientsParams] = {}
        for name in optimizers:
            of_model = GradientsParams.from_grads(all_grads, models[name])
            if self.narrow is not None:
                of_model = of_model.map(lambda grad: grad.to_full_precision())
            if not len(of_model):
                raise self._independent("the model" if self.is_single else f"the model {name!r}")
            grads[name] = of_model if scaler is None else scaler.unscaled(of_model)
        return grads

    def _weigh(self, result: Result, group: RowGroup | None, accumulates: bool) -> tuple[AnyTensor, Result]:
        """The scalar to differentiate, and the result over all processes, which average their gradients."""
        loss, sums = result.loss, result.sums
        assert loss is not None
        if (accumulates or group is not None) and sums is not None and result.is_weighted and not sums().separable:
            raise RunError(
                "the loss compares rows with each other (Loss(..., separable=False)), so the losses of several batches "
                "or processes do not add up to the loss of all rows; take a larger batch_size without accumulate=, "
                "and one process, or a mesh of JAX, on which a batch is one array"
            )
        if sums is None:
            if result.is_weighted and (accumulates or group is not None):
                raise RunError(
                    "the loss is no mean over rows: it is made of means that leave out rows or weight them unequally "
                    "(ignore_index=, class weights), and accumulate= or several processes need these weights; "
                    "return phlox.train.Loss(total, weight) in place of the loss"
                )
            if group is None:
                return loss, result
            whole = _over_processes(result, group)
            return loss if group.rows is None else loss * group.weight, whole
        if group is not None:
            from phlox.distributed import mean

            own = sums()
            device = own.total.to_full_precision().device
            weight = own.weight.detach().to_full_precision().float() if isinstance(own.weight, Tensor) else tensor(
                float(own.weight), device=device
            )  # fmt: skip
            weight = mean({"weight": weight})["weight"]
            part = own.part_of(weight)
            result = _over_processes(result._replace(loss=part), group, weighs_loss=False)
            return part, result._replace(weight=weight * float(group.size), sums=None)
        exact = _exact(result)
        return (exact.loss if result.is_weighted and exact.loss is not None else loss), exact

    def _independent(self, model_name: str) -> RunError:
        return RunError(
            f"the loss depends on no trained parameter of {model_name}; call the model that the step is given, and do "
            "not freeze all of its parameters"
        )

    def _call_update(
        self, models: Models, optimizers: Any, auxiliary: Any, rates: Any, batch: Any, inputs: Any
    ) -> tuple[Models, Result]:
        assert self.update is not None
        carry: list[Any] = [auxiliary["carry"].value()] if self.has_carry else []
        value = self.update(*[self._plain(x) for x in (models, optimizers, rates)], batch, *carry, **inputs)
        if self.has_carry:
            value, carry_after = _with_carry(value, "update")
            auxiliary["carry"].set(carry_after)
        if not isinstance(value, tuple) or not 2 <= len(cast("tuple[Any, ...]", value)) <= 3:
            raise RunError("update must return (models, logs) or (models, logs, metric_inputs); logs is a dict")
        after, logs, *inputs = cast("tuple[Any, ...]", value)
        if not isinstance(logs, Mapping):
            raise RunError(f"update must return logs as a dict of scalars by name, got a {type(logs).__name__}")
        after = {ONLY: after} if self.is_single else after
        if not isinstance(after, Mapping) or set(cast("Mapping[str, Any]", after)) != set(models):
            raise RunError(f"update must return the models under the same names: {', '.join(models)}")
        named = dict(cast("Mapping[str, Any]", logs))
        loss = named.pop(LOSS, None)
        loss = None if loss is None else scalar(loss, LOSS)
        result = self._check_scalars(Result(loss, inputs[0] if inputs else None, named))
        if (group := row_group()) is not None:
            result = _over_processes(result, group)
        return dict(cast("Mapping[str, Any]", after)), result

    # --- L-BFGS, which asks for the loss and its gradient several times a step

    def gradient(
        self, models: Models, auxiliary: dict[str, Any], batch: Any, counts: bool, inputs: Mapping[str, Any] = _NOTHING
    ) -> tuple[AnyTensor, GradientsParams, Output | None]:
        """The loss, its gradient and, if `counts`, the measurements."""
        result, grads = self.gradients(models, {ONLY: None}, auxiliary, batch, inputs)
        output = self._output(self.training, auxiliary.get("totals"), result) if counts else None
        assert result.loss is not None
        return result.loss, grads[ONLY], output

    # --- validation

    def measure(
        self, models: Models, auxiliary: dict[str, Any], batch: Any, inputs: Mapping[str, Any] = _NOTHING
    ) -> tuple[dict[str, Any], Output]:
        """The measurements of a batch, in inference mode."""
        result = _exact(self._call_step(self.validate, models, batch, auxiliary, inputs))
        if result.loss is not None:
            result = result._replace(loss=scalar(result.loss, LOSS))
        return auxiliary, self._output(self.validation, auxiliary.get("totals"), result)

    def check_validates(self) -> None:
        """Raise `RunError` if there is no step for validation."""
        if self.validate is None:
            raise RunError("with update= there is no step to evaluate; give validate=(models, batch) to the learner")

    # --- shared by training and validation

    def narrowed(self, models: Models) -> tuple[Models, Callable[[], None]]:
        """The models at the precision of a step, and a function that copies values that their calls set back."""
        if self.narrow is None:
            return models, lambda: None
        narrowed = {name: self.narrow.model(model) for name, model in models.items()}

        def give_back() -> None:
            for _, give_back_model in narrowed.values():
                give_back_model()

        return {name: model for name, (model, _) in narrowed.items()}, give_back

    def carry(self, auxiliary: Mapping[str, Any]) -> list[Any]:
        """The carry for a step, as a list of one; empty without a carry."""
        if not self.has_carry:
            return []
        value = auxiliary["carry"].value()
        return [value if self.narrow is None else self.narrow.values(value)]

    def _call_step(self, step: Step | None, models: Models, batch: Any, auxiliary: Any, inputs: Any) -> Result:
        assert step is not None
        with noting_means() as means:
            value = step(self._plain(models), batch, *self.carry(auxiliary), **inputs)
            if self.has_carry:
                value, carry = _with_carry(value, "the step")
                auxiliary["carry"].set(carry)
            result = result_of(value, means)
            return self._check_scalars(result) if result.scalars else result

    def _check_scalars(self, result: Result) -> Result:
        """The result with its scalars checked and converted to tensors, before the step is taken."""
        device = self.training.device
        return result._replace(scalars={name: reported(x, name, device) for name, x in result.scalars.items()})

    def _plain(self, named: dict[str, Any]) -> Any:
        return named[ONLY] if self.is_single else dict(named)

    def _output(self, metric_state: MetricState, totals: Totals | None, result: Result) -> Output:
        rows = metric_state.measure_batch(result.inputs, totals)
        return Output(result.loss, dict(result.scalars), rows, _weight_of(result))


# Errors of compiled functions begin with these names.
for _function in (StepFunctions.train, StepFunctions.train_one, StepFunctions.flush, StepFunctions.gradient):
    _function.__qualname__ = "the training step"
StepFunctions.measure.__qualname__ = "the validation step"


def _exact(result: Result) -> Result:
    """The result with the loss at full precision, if its sums are known; the loss is zero if its weight is zero."""
    if result.sums is None or result.loss is None:
        return result
    if not result.is_weighted and (backend := result.loss.backend) is backend.full_precision():
        return result
    sums = result.sums()
    return result._replace(loss=sums.part_of(sums.weight))


def _weight_of(result: Result) -> Any:
    """The weight of the loss in its mean over batches; None if that is its number of rows."""
    loss, weight = result.loss, result.weight
    if loss is None or weight is None:
        return None
    if isinstance(weight, Tensor):
        return weight.detach()
    return tensor(float(weight), device=loss.device) if is_traced(loss) else float(weight)


def _over_processes(result: Result, group: RowGroup, *, weighs_loss: bool = True) -> Result:
    """Convert loss and scalars from means over the rows of this process to means over all rows.

    If `weighs_loss` is False, the loss is weighted already.
    """
    from phlox.distributed import mean

    loss = None if result.loss is None else scalar(result.loss, LOSS)
    values: dict[str, AnyTensor] = {} if loss is None else {LOSS: loss}
    values |= result.scalars
    if group.rows is not None:
        values = {name: x * group.weight if weighs_loss or name != LOSS else x for name, x in values.items()}
    values = mean(values)
    loss = None if loss is None else values.pop(LOSS)
    return result._replace(loss=loss, scalars=values)


def _with_carry(value: Any, function_name: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != 2:
        raise RunError(f"with a carry {function_name} must return (its result, the carry for the next batch)")
    return cast("tuple[Any, Any]", value)


def of_step(step: Step | None, narrow: Narrow | None) -> Step | None:
    """A user's step, with inputs at half precision if there is a `narrow`."""
    if step is None or narrow is None:
        return step

    def narrowed(models: Any, batch: Any, *carry: Any, **named: Any) -> Any:
        return step(models, narrow.values(batch), *carry, **narrow.values(named))

    return narrowed


def of_loss(loss: Callable[..., Any], narrow: Narrow | None = None) -> Step:
    """The step of a loss of (output, *targets), for batches of (input, *targets).

    A tuple of inputs is passed to the model as several arguments. If the model computes at half precision, the loss
    gets its outputs, and the targets, at full precision.
    """

    def step(model: Any, batch: Any, **named: Any) -> Any:
        if not isinstance(batch, tuple) or len(cast("tuple[Any, ...]", batch)) < 2:
            raise RunError(
                f"a learner with loss= needs batches of (input, target), got {_shown(batch)}; for others give step="
            )
        inputs, *targets = cast("tuple[Any, ...]", batch)
        if narrow is not None:
            inputs = narrow.values(inputs)
        output = model(*inputs) if type(inputs) is tuple else model(inputs)
        if narrow is not None:
            output, targets = wide(output), wide(targets)
        return loss(output, *targets, **named), (output, *targets)

    return step


def _shown(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict of {', '.join(map(str, cast('Mapping[Any, Any]', batch)))}"
    if isinstance(batch, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', batch))}"
    return f"a {type(batch).__name__}" + (f" of shape {batch.shape}" if isinstance(batch, Tensor) else "")
