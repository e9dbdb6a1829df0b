"""One step of a training: functions of models, optimizers and a batch, which compile as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

from phlox.backend import Device
from phlox.backend.levels import has_history
from phlox.backend.parallel import RowGroup, row_group
from phlox.errors import PhloxError, RunError
from phlox.metrics.sums import is_traced
from phlox.module import GradientsParams, Module, Param
from phlox.module.param import set_together
from phlox.optim import Ema, GradientClipping, GradientsAccumulator, LossScaler, Optimizer
from phlox.tensor import Tensor
from phlox.train.meter import LOSS, Meter, Output, Totals, scalar
from phlox.transform.tree import leaves_of, map_leaves

AnyTensor = Tensor[Any, Any, Any]
Models: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[..., Any]
ONLY = ""
"""The name of a single model."""


class NotFiniteLossError(PhloxError, ArithmeticError):
    """The loss of a step is not finite, and the step was not taken."""


class _Place(NamedTuple):
    """A placeholder for a tensor in the structure of a carry."""

    number: int


class Carried(Module):
    """The carry from batch to batch, as parameters that are not trained, and its structure."""

    def __init__(self, start: Any, device: Device) -> None:
        self.parts: list[Param] = []
        self.form = map_leaves(lambda x: self._added(x, device), start, Tensor)

    def _added(self, x: AnyTensor, device: Device) -> _Place:
        self.parts.append(Param(x.detach().to_device(device), trained=False))
        return _Place(len(self.parts) - 1)

    def value(self) -> Any:
        """The carry with its tensors."""
        return _filled(self.form, [param.val() for param in self.parts])

    def set(self, value: Any) -> None:
        """Set other tensors of the same shapes, without gradients."""
        tensors: list[AnyTensor] = [x for _, x in leaves_of(value, Tensor)]
        shapes = [x.shape for x in tensors]
        if shapes != [param.shape for param in self.parts]:
            raise RunError(
                f"the step gives a carry of shapes {shapes}, and was given one of "
                f"{[param.shape for param in self.parts]}; a carry keeps its structure and shapes, so make all batches "
                "of one size (drop_last=True)"
            )
        set_together(
            [(param, x.detach().to_device(param.device)) for param, x in zip(self.parts, tensors, strict=True)]
        )


def _filled(form: Any, tensors: list[AnyTensor]) -> Any:
    if isinstance(form, _Place):
        return tensors[form.number]
    if isinstance(form, dict):
        return {name: _filled(part, tensors) for name, part in cast("dict[str, Any]", form).items()}
    if isinstance(form, (list, tuple)):
        whole: Any = cast("Any", form)
        parts = [_filled(part, tensors) for part in whole]
        return type(whole)(*parts) if hasattr(whole, "_fields") else type(whole)(parts)
    return form


class Result(NamedTuple):
    """The result of a user's step."""

    loss: AnyTensor | None
    inputs: Any = None
    """The arguments of the metrics."""
    scalars: Mapping[str, Any] = {}


def result_of(value: Any) -> Result:
    """The result from a loss, `(loss, inputs)` or `(loss, inputs, scalars)`; `RunError` for anything else."""
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    if isinstance(value, dict):
        parts = (None, None, cast("dict[str, Any]", value))
    if not 1 <= len(parts) <= 3:
        raise RunError(
            f"the step gives {len(parts)} values; it gives the loss, (loss, metric_inputs) or (loss, metric_inputs, "
            "scalars)"
        )
    result = Result(*parts)
    if not isinstance(result.scalars, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RunError(
            f"the scalars of a step are a dict by name, got a {type(cast('object', result.scalars)).__name__}"
        )
    if result.loss is None and not result.scalars:
        raise RunError("the step gives None; return the loss, a scalar tensor")
    return result


@dataclass(frozen=True)
class StepFunctions:
    """The step of a learner, made of the user's functions; its methods are compiled.

    `step` and `validate` take the models, the batch and, if there is one, the carry; `update` is called with models,
    optimizers and rates. `single` says that there is one model, which is then passed without a dict.
    """

    step: Step | None
    update: Step | None
    validate: Step | None
    training: Meter
    validation: Meter
    single: bool
    clip: GradientClipping | None
    carries: bool
    looks: bool
    """Is the loss checked before its step is taken, if its value is known?"""

    # --- training

    def train(
        self,
        models: Models,
        optimizers: dict[str, Optimizer],
        aids: dict[str, Any],
        rates: dict[str, Any],
        batch: Any,
        applies: bool = True,
    ) -> tuple[Models, dict[str, Any], Output]:
        """A step on a batch: the models after it, their companions (`aids`), and the measurements."""
        if self.update is not None:
            models, result = self._updated(models, optimizers, aids, rates, batch)
        else:
            models, result = self._stepped(models, optimizers, aids, rates, batch, applies)
        for name, ema in cast("dict[str, Ema[Any]]", aids.get("ema", {})).items():
            if applies:
                ema.update(models[name])
        return models, aids, self._output(self.training, aids.get("totals"), result)

    def train_one(
        self, model: Any, optimizer: Optimizer, aids: dict[str, Any], rate: Any, batch: Any, applies: bool = True
    ) -> tuple[Any, dict[str, Any], Output]:
        """As `train`, for a single model, without dicts, which a compiled call would have to flatten."""
        models, aids, output = self.train({ONLY: model}, {ONLY: optimizer}, aids, {ONLY: rate}, batch, applies)
        return models[ONLY], aids, output

    def _stepped(
        self, models: Models, optimizers: Any, aids: Any, rates: Any, batch: Any, applies: bool
    ) -> tuple[Models, Result]:
        result, grads = self._gradients(models, optimizers, aids, batch)
        after = dict(models)
        for name, optimizer in optimizers.items():
            of_model = grads[name]
            accumulator: GradientsAccumulator | None = aids.get("accumulators", {}).get(name)
            if accumulator is not None:
                accumulator.add(of_model, models[name])
                if not applies:
                    continue
                of_model = accumulator.take(models[name])
            if self.clip is not None:
                of_model = self.clip.of_all(of_model)
            after[name] = optimizer.step(rates[name], models[name], of_model)
        return after, result

    def flush(
        self, models: Models, optimizers: dict[str, Optimizer], aids: dict[str, Any], rates: dict[str, Any]
    ) -> tuple[Models, dict[str, Any]]:
        """The step with accumulated gradients that have not been applied yet."""
        after = dict(models)
        for name, optimizer in optimizers.items():
            grads = aids["accumulators"][name].take(models[name])
            if self.clip is not None:
                grads = self.clip.of_all(grads)
            after[name] = optimizer.step(rates[name], models[name], grads)
            if name in aids.get("ema", {}):
                aids["ema"][name].update(after[name])
        return after, aids

    def _gradients(
        self, models: Models, optimizers: Any, aids: Any, batch: Any
    ) -> tuple[Result, dict[str, GradientsParams]]:
        given = {name: model if name in optimizers else model.valid() for name, model in models.items()}
        result = self._called(self.step, given, batch, aids)
        if result.loss is None:
            raise RunError("the step gives no loss to minimize; return a scalar tensor first, or give update=")
        loss, group = result.loss, row_group()
        value = scalar(loss, LOSS)
        if group is not None:
            # The gradients are averaged over the processes, and so is what is reported.
            loss = loss if group.rows is None else loss * group.weight
            result = _over_processes(result, group)
            value = scalar(result.loss, LOSS)
        if self.looks and not is_traced(value):
            number = value.item()
            if not math.isfinite(number):
                raise NotFiniteLossError(str(number))
        if not has_history(loss.backend, loss.primitive):
            raise self._independent("the model" if self.single else "any model")
        scaler: LossScaler | None = aids.get("scaler")
        found = (loss if scaler is None else scaler.scaled(loss)).backward()
        grads: dict[str, GradientsParams] = {}
        for name in optimizers:
            of_model = GradientsParams.from_grads(found, models[name])
            if not len(of_model):
                raise self._independent("the model" if self.single else f"the model {name!r}")
            grads[name] = of_model if scaler is None else scaler.unscaled(of_model)
        return result, grads

    def _independent(self, what: str) -> RunError:
        return RunError(
            f"the loss depends on no trained parameter of {what}; is the model that the step is given called in it, "
            "and are its parameters not frozen?"
        )

    def _updated(self, models: Models, optimizers: Any, aids: Any, rates: Any, batch: Any) -> tuple[Models, Result]:
        assert self.update is not None
        carry: list[Any] = [aids["carry"].value()] if self.carries else []
        value = self.update(*[self._plain(x) for x in (models, optimizers, rates)], batch, *carry)
        if self.carries:
            value, carry_after = _with_carry(value, "update")
            aids["carry"].set(carry_after)
        if not isinstance(value, tuple) or not 2 <= len(cast("tuple[Any, ...]", value)) <= 3:
            raise RunError("update gives (models, logs) or (models, logs, metric_inputs), logs being a dict of scalars")
        after, logs, *inputs = cast("tuple[Any, ...]", value)
        if not isinstance(logs, Mapping):
            raise RunError(f"update gives logs that are no dict of scalars by name, but a {type(logs).__name__}")
        after = {ONLY: after} if self.single else after
        if not isinstance(after, Mapping) or set(cast("Mapping[str, Any]", after)) != set(models):
            raise RunError(f"update must give the models back under the same names: {', '.join(models)}")
        named = dict(cast("Mapping[str, Any]", logs))
        loss = named.pop(LOSS, None)
        result = Result(loss, inputs[0] if inputs else None, named)
        if (group := row_group()) is not None:
            result = _over_processes(result, group)
        return dict(cast("Mapping[str, Any]", after)), result

    # --- L-BFGS: the loss and its gradient, as often as it asks

    def gradient(
        self, models: Models, aids: dict[str, Any], batch: Any, counts: bool
    ) -> tuple[AnyTensor, GradientsParams, Output | None]:
        """The loss, its gradient and, if this evaluation counts, the measurements."""
        result, grads = self._gradients(models, {ONLY: None}, aids, batch)
        output = self._output(self.training, aids.get("totals"), result) if counts else None
        return scalar(result.loss, LOSS), grads[ONLY], output

    # --- validation

    def measure(self, models: Models, aids: dict[str, Any], batch: Any) -> tuple[dict[str, Any], Output]:
        """The measurements of a batch, in inference mode."""
        result = self._called(self.validate, models, batch, aids)
        return aids, self._output(self.validation, aids.get("totals"), result)

    def check_validates(self) -> None:
        """Raise `RunError` if there is no step for validation."""
        if self.validate is None:
            raise RunError("with update= there is no step to evaluate; give validate=(models, batch) to the learner")

    # --- what both need

    def _called(self, step: Step | None, models: Models, batch: Any, aids: Any) -> Result:
        assert step is not None
        if not self.carries:
            return result_of(step(self._plain(models), batch))
        value, carry = _with_carry(step(self._plain(models), batch, aids["carry"].value()), "the step")
        aids["carry"].set(carry)
        return result_of(value)

    def _plain(self, named: dict[str, Any]) -> Any:
        return named[ONLY] if self.single else dict(named)

    def _output(self, meter: Meter, totals: Totals | None, result: Result) -> Output:
        rows = meter.measured(result.inputs, totals)
        loss = None if result.loss is None else scalar(result.loss, LOSS)
        scalars = {name: scalar(value, name) for name, value in result.scalars.items()}
        return Output(loss, scalars, rows)


def _over_processes(result: Result, group: RowGroup) -> Result:
    """Convert loss and scalars from means over the rows of this process to means over all rows."""
    from phlox.distributed import mean

    loss = None if result.loss is None else scalar(result.loss, LOSS)
    values: dict[str, AnyTensor] = {} if loss is None else {LOSS: loss}
    for name, value in result.scalars.items():
        given = scalar(value, name)
        is_number = loss is not None and not isinstance(value, Tensor)
        values[name] = given.to_device(loss.device) if is_number and loss is not None else given
    if group.rows is not None:
        values = {name: x * group.weight for name, x in values.items()}
    values = mean(values)
    loss = None if loss is None else values.pop(LOSS)
    return result._replace(loss=loss, scalars=values)


def _with_carry(value: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != 2:
        raise RunError(f"with a carry {what} gives (what it gives without, the carry for the next batch)")
    return cast("tuple[Any, Any]", value)


def of_loss(loss: Callable[..., Any]) -> Step:
    """The step of a loss of (output, *targets), for batches of (input, *targets).

    A tuple of inputs is passed to the model as several arguments.
    """

    def step(model: Any, batch: Any) -> Any:
        if not isinstance(batch, tuple) or len(cast("tuple[Any, ...]", batch)) < 2:
            raise RunError(
                f"a learner with loss= needs batches of (input, target), got {_shown(batch)}; for others give step="
            )
        inputs, *targets = cast("tuple[Any, ...]", batch)
        output = model(*inputs) if type(inputs) is tuple else model(inputs)
        return loss(output, *targets), (output, *targets)

    return step


def _shown(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict of {', '.join(map(str, cast('Mapping[Any, Any]', batch)))}"
    if isinstance(batch, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', batch))}"
    return f"a {type(batch).__name__}" + (f" of shape {batch.shape}" if isinstance(batch, Tensor) else "")


def to_numpy(x: Any) -> Any:
    """A tensor as an array; anything else unchanged."""
    return x.numpy() if isinstance(x, Tensor) else x


def predicted(model: Any, batch: Any) -> Any:
    """The model's output for a batch or, of batches `(input, ...)`, for the input."""
    inputs = cast("tuple[Any, ...]", batch)[0] if isinstance(batch, tuple) else batch
    try:
        return model(*inputs) if isinstance(batch, tuple) and type(inputs) is tuple else model(inputs)
    except TypeError as error:
        error.add_note("predict: the model was called with the batch; where that is wrong give function=(model, batch)")
        raise
