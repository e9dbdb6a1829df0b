"""`Learner`: trains a model with any kind of step."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from weakref import ref

from phlox import random
from phlox.backend.contract.backend import engine_of
from phlox.distributed.mesh import Mesh
from phlox.errors import RunError, RunWarning
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.host.output import output
from phlox.host.text import html_by
from phlox.metrics.base import Metric
from phlox.module import Module
from phlox.optim import (
    Ema,
    GradientClipping,
    GradientsAccumulator,
    Lbfgs,
    LossScaler,
    LrSchedule,
)  # fmt: skip
from phlox.other_names import answering
from phlox.random.stream import Stream
from phlox.train.arguments import (
    KINDS,
    check_callbacks,
    check_function,
    copied,
    device_of,
    engine_behind,
    in_training,
    named_models,
    optimizer_of,
    remark_on_statistics,
    schedule_of,
    team_of,
    whole,
)
from phlox.train.control import Control
from phlox.train.events import History, Run
from phlox.train.loop.batch_stream import BatchStream
from phlox.train.loop.evaluation import batch_stream_of, predict
from phlox.train.loop.fit import Fit
from phlox.train.loop.limits import Limits
from phlox.train.observers.callback import Callback
from phlox.train.run import Preparation
from phlox.train.settings import settings_of
from phlox.train.state import ONLY, TrainState
from phlox.train.step.functions import StepFunctions, of_loss, of_step
from phlox.train.step.inputs import Asked
from phlox.train.step.metric_state import MetricState
from phlox.train.step.precision import Narrow
from phlox.train.step.stepper import Stepper

if TYPE_CHECKING:
    from phlox.config import BaseConfig
    from phlox.train.observers.folder.run_folder import RunFolder
    from phlox.train.trials.dry_run import DryRun
    from phlox.train.trials.lr_find import LrCurve

M = TypeVar("M")
Precision = Literal["f64", "f32", "bf16", "f16"]


class Learner(Control[M]):
    """Trains a model on batches: `fit`, `evaluate`, `predict`, and one record of its whole state.

    Args:
        model: a module on any backend, or several in a dict by name. The learner trains a copy and leaves yours
            unchanged; `learner.model` is the model after the last step.
        optimizer: a config such as `optim.AdamWConfig()`, its class (with the defaults), or an optimizer; for several
            models a dict by their names.
            A model without one (a teacher) is not trained, and the step gets it in inference mode.
        lr: the learning rate: a number, a schedule (which advances with each step of the optimizer), or a dict of
            these by the names of the models.
        loss: a function from `(output, *targets)` to a scalar. Batches are then `(input, *targets)`; a tuple of inputs
            is passed to the model as several arguments, and the metrics are updated with `(output, *targets)`.
        step: in place of `loss`, a function from `(model, batch)` to the loss, to `(loss, metric_inputs)`, or to
            `(loss, metric_inputs, scalars)`. `metric_inputs` is a tuple for all metrics, or a dict of tuples (or of
            `MetricInputs`, with weights) by metric; `scalars` is a dict of further scalars, whose means are reported.
        update: in place of `step`, your own update: a function from `(models, optimizers, rates, batch)` to
            `(models, logs)` or `(models, logs, metric_inputs)`; logs are scalars by name.
        validate: the `step` for validation, if it is a different function.
        metrics: a dict by name of metrics from `phlox.metrics`, or of functions of the same arguments, whose means are
            reported.
        accumulate: the number of batches whose gradients make one step of the optimizer.
        clip: gradient clipping, such as `optim.GradientClipping.global_norm(1.0)`.
        ema: the decay of an average of the weights (`optim.Ema`), which validation, `predict` and best checkpoints use.
        loss_scaling: for f16, so that small gradients do not vanish: True, or an `optim.LossScaler`. By default it is
            on if the model is in f16.
        precision: the precision that steps compute in, such as "bf16". The model, averages and files stay in f32; with
            `update`, the models themselves are of this precision, and optimizers keep copies in f32.
        steps_per_call: the number of steps in one call of a compiled program; callbacks are called after each call.
        compile: whether a step is compiled into one program; the default is to compile on JAX only.
        carry: state that is passed from batch to batch, such as that of an RNN: tensors in any nesting, or a function
            of (model, batch) that makes them. The step is then a function from `(model, batch, carry)` to `(result,
            carry)`. The carry is reset at each epoch, and no gradient flows through it to an earlier batch.
        inputs: by name, numbers (or functions of the learner, called before each step) that change during the
            training: the weight of a part of the loss, a temperature. `loss`, `step`, `validate` and `update` get what
            their further parameters name, `def step(model, batch, beta)`, or a dict of all, `def step(model, batch,
            inputs)`. `step` (steps taken before), `epoch` (epochs ended) and `progress` (from 0 to 1) are always
            offered. Set `learner.inputs["beta"]` at any time; a new number compiles nothing.
        mesh: the devices of all processes, a `px.distributed.Mesh`: each process has its rows of each batch. The model
            is a result of `model.shard(layout, mesh)`, or is replicated.

    Raises `RunError` for an argument that is invalid or contradicts another.

    >>> import numpy as np
    >>> from phlox import nn, optim
    >>> from phlox.data import Loader
    >>> from phlox.train import Learner
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    >>> learner = Learner(nn.Linear(1, 1), optim.SgdConfig(), 0.3, nn.mse_loss)
    >>> history = learner.fit(Loader((x, 2 * x), 16, shuffle=True), epochs=20, progress=False)
    >>> history[-1].train["loss"] < 1e-3
    True
    """

    @answering
    def __init__(
        self,
        model: M,
        optimizer: Any,
        lr: float | LrSchedule[Any] | Mapping[str, Any] | None = None,
        loss: Callable[..., Any] | None = None,
        *,
        step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        validate: Callable[..., Any] | None = None,
        metrics: Mapping[str, Metric | Callable[..., Any]] | None = None,
        accumulate: int = 1,
        clip: GradientClipping | None = None,
        ema: float | None = None,
        loss_scaling: bool | LossScaler | None = None,
        precision: Precision | None = None,
        steps_per_call: int = 1,
        compile: bool | None = None,
        carry: Any = None,
        inputs: Mapping[str, Any] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        team = None if mesh is None else team_of(mesh)
        # With update=, which takes the whole step, the models themselves have this precision.
        narrow = Narrow(precision) if update is None and precision in HALF_ELEMENTS else None
        models: dict[str, Any] = {
            name: in_training(copied(module, precision, team, narrows=narrow is not None))
            for name, module in named_models(model).items()
        }
        is_single = isinstance(model, Module)
        elements = [engine_behind(module).float_element for module in models.values()]
        half = "f16" in (None if narrow is None else narrow.element, *elements)
        scales: Any = half if loss_scaling is None else loss_scaling
        optimizers = {
            name: optimizer_of(value, name, skips=bool(scales))
            for name, value in _by_model(models, optimizer, "optimizer", KINDS).items()
        }
        if not optimizers:
            raise RunError("optimizer: none of the models has one, so nothing would be trained")
        schedules = {name: schedule_of(rate, name) for name, rate in _rates(models, optimizers, lr).items()}
        accumulate = whole("accumulate", accumulate)
        self.steps_per_call = whole("steps_per_call", steps_per_call)
        names = [name for name, value in (("loss", loss), ("step", step), ("update", update)) if value is not None]
        if len(names) != 1:
            got = " and ".join(names) or "none of them"
            raise RunError(f"a learner needs one of loss=, step= and update=, got {got}")
        for name, value in (("loss", loss), ("step", step), ("update", update), ("validate", validate)):
            check_function(name, value)
        if loss is not None and not is_single:
            raise RunError("loss=: with several models it is unclear which one to call; give step=(models, batch)")
        if update is not None and (accumulate > 1 or clip is not None or scales):
            raise RunError("update= does the whole step, so it must accumulate, clip and scale the loss by itself")
        if any(isinstance(each, Lbfgs) for each in optimizers.values()) and (
            not is_single or update is not None or accumulate > 1 or self.steps_per_call > 1
        ):
            raise RunError(
                "L-BFGS evaluates the loss several times a step: give one model, and leave out update, accumulate and "
                "steps_per_call"
            )
        if self.steps_per_call > 1 and accumulate > 1:
            raise RunError("steps_per_call and accumulate exclude each other; give a larger batch_size to the loader")
        if scales and len(optimizers) > 1:
            raise RunError("loss_scaling works with one optimizer; with several, scale the losses in update=")
        if clip is not None and not isinstance(cast("Any", clip), GradientClipping):
            raise RunError(f"clip: give optim.GradientClipping.global_norm(1.0) or the like, got {clip!r}")
        if ema is not None and not 0.0 <= ema < 1.0:
            raise RunError(f"ema: the decay of the average lies in [0, 1), got {ema}; 0.999 is usual")
        device = device_of(next(iter(models.values())))
        device = device if team is None else team.device(device)
        engine = engine_of(device.backend)
        compiles = engine.prefers_compiled if compile is None else bool(compile)
        training, validation = (MetricState(metrics or {}, device) for _ in range(2))
        chosen = of_loss(loss, narrow) if loss is not None else of_step(step, narrow)
        local = None if team is None else team.local_sums(accumulate > 1, bool(scales))
        functions = StepFunctions(
            chosen, update, of_step(validate, narrow) or chosen, training, validation, is_single, clip,
            carry is not None, checks_loss_before_step=not (compiles and engine.compiles), narrow=narrow,
            sums_are_local=local,
        )  # fmt: skip
        auxiliary: dict[str, Any] = training.auxiliary()
        trained = {name: models[name] for name in optimizers}
        if ema is not None:
            auxiliary["ema"] = {name: Ema(module, decay=ema) for name, module in trained.items()}
        if accumulate > 1:
            auxiliary["accumulators"] = {
                name: GradientsAccumulator(module, local=local is not None) for name, module in trained.items()
            }
        if scales:
            auxiliary["scaler"] = (scales if isinstance(scales, LossScaler) else LossScaler()).to_device(device)
        source = random.current()
        high, low = source.key
        self.state = TrainState(
            models, optimizers, schedules, auxiliary, training, Stream(source.substream()),
            (int(high) << 32) + int(low) if source.seeded else None, inputs=dict(inputs or {}),
        )  # fmt: skip
        num_args = 2 + (carry is not None)
        asked = (
            Asked(loss, "loss", None) if loss is not None
            else Asked(step, "step", num_args) if step is not None
            else Asked(update, "update", num_args + 2)
        )  # fmt: skip
        asked_validating = asked if validate is None and update is None else Asked(validate, "validate", num_args)
        self.stepper = Stepper(
            self.state, functions, training, validation, team=team, device=device, compiles=compiles,
            accumulate=accumulate, carry=carry, asked=asked, asked_validating=asked_validating,
        )  # fmt: skip
        self.stepper.learner = ref(self)
        self.description = settings_of({
            "model": {name: type(module).__name__ for name, module in models.items()} if not is_single
            else type(models[ONLY]).__name__,
            "loss": loss, "step": step, "update": update, "precision": precision or engine.float_element,
            "engine": str(device), "compile": compiles, "steps_per_call": self.steps_per_call,
        })  # fmt: skip
        """What `settings` leaves out, because a resumed training may change it without a word."""
        self.run = Run()

    @property
    def model(self) -> M:
        """The model after the last step, in training mode, or a dict of several by name.

        For inference use `learner.model.valid()`. A compiled step overwrites the model before it: get the model again
        after a further step, and do not keep the old one.
        """
        return self._plain(self.state.models)

    @model.setter
    def model(self, model: M) -> None:
        new, own = named_models(model), self.state.models
        if set(new) != set(own):
            raise RunError(f"model: a learner keeps its models ({', '.join(own) or 'one'}); got {', '.join(new)}")
        self.state.models = {name: in_training(module) for name, module in new.items()}
        device = device_of(next(iter(new.values())))
        self.stepper.device = device if self.team is None else self.team.device(device)

    # --- training

    if not TYPE_CHECKING:  # to a type checker it would mean that every attribute exists

        def __getattr__(self, name: str) -> Any:
            from phlox.other_names import of_object

            if hasattr(type(self), name):  # a property that failed: call it again, because its own error was dropped
                return object.__getattribute__(self, name)
            raise AttributeError(of_object(self, name, "Learner"), name=name, obj=self)

    @answering
    def fit(
        self,
        data: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        time: float | timedelta | None = None,
        validation: Any = None,
        validate_every: int = 1,
        validate_every_steps: int | None = None,
        callbacks: Iterable[Callback] = (),
        folder: str | os.PathLike[str] | RunFolder | None = None,
        resume: bool | str | os.PathLike[str] = False,
        overwrite: bool = False,
        progress: bool = True,
        config: BaseConfig | None = None,
        dry_run: bool = False,
    ) -> History:
        """Train until a limit is reached, and return the history.

        Limits count from the beginning of this fit; for a resumed fit, from where it first began.

        Args:
            data: a `Loader`, or any iterable of batches: a generator (or, for several epochs, a function that makes
                one), a PyTorch `DataLoader`, a grain data set.
            epochs, steps, time: the limits; give at least one. Time is in seconds, or a `timedelta`.
            validation: validation data, in the form of `data`; the loss and the metrics are measured on it in inference
                mode.
            validate_every: the number of epochs after which to validate.
            validate_every_steps: the number of steps after which to validate within an epoch, too.
            callbacks: the callbacks, called in this order; see `Callback`.
            folder: the folder of the run, for settings, environment, metrics, checkpoints and a report. If you give an
                open `RunFolder`, call its `complete` yourself.
            resume: True to resume the run in `folder`, or the path of a checkpoint or a folder of checkpoints. Without
                a checkpoint the training begins at the start.
            overwrite: whether a finished run in `folder` may be replaced.
            progress: whether to show the progress: a live view in a terminal, otherwise a line for each epoch.
            config: the settings of the run, which are written to `config.json` in its folder.
            dry_run: whether to try only two batches of everything, with a checkpoint and a resume, and to change
                nothing; it prints what `learner.dry_run` returns.

        Ctrl-C (or SIGTERM) ends the training after the current step, and saves the state if there is a folder. `fit`
        then raises a `KeyboardInterrupt` that says how to resume. A second Ctrl-C ends it at once.

        Raises `RunError` for invalid arguments and for a loss that is not finite, `DataError` for batches that do not
        fit, `RecordError` for a checkpoint of another model, and any exception of a callback. Warns (`RunWarning`) of
        batch norm with `accumulate`, or over the rows of each of several processes: the step is not that of all rows.
        """
        limits = Limits.of(epochs, steps, time)
        if validation is not None:
            self.stepper.functions.check_validates()
        if dry_run:
            output().write(f"{self.dry_run(data, validation=validation, callbacks=callbacks)}\n")
            return self.history
        every_epochs = whole("validate_every", validate_every)
        if validate_every_steps is not None:
            validate_every_steps = whole("validate_every_steps", validate_every_steps)
        self._warn_of_statistics()
        preparation = Preparation(
            folder, resume=resume, overwrite=overwrite, shows=progress, config=config
        )  # fmt: skip
        self.run = Run(folder=preparation.path, validation_data=validation)
        fit = Fit(
            self, batch_stream_of(self.stepper, data),
            None if validation is None else batch_stream_of(self.stepper, validation, "validation"),
            limits, (every_epochs, validate_every_steps), check_callbacks(callbacks), preparation,
        )  # fmt: skip
        self.attach(fit)
        fit.run()
        return self.history

    def _warn_of_statistics(self) -> None:
        """Warn, once, of layers whose statistics are computed from only a part of the rows of a step."""
        trained = {name: self.state.models[name] for name in self.state.optimizers}
        text = remark_on_statistics(trained, self.accumulate, self.team is not None and self.team.adds_up)
        if text is None or any(said == text for _, said in self.events):
            return
        self.warn(text)
        if self.team is None or self.team.is_main:
            warnings.warn(text, RunWarning, stacklevel=4)

    def dry_run(self, data: Any, *, validation: Any = None, callbacks: Iterable[Callback] = ()) -> DryRun:
        """Try two batches of everything, with a checkpoint and a resume, to find late errors early; changes nothing.

        Callbacks that write files are left out. Returns the time of a step and the memory; `print` the result.
        """
        from phlox.train.trials.dry_run import dry_run

        return dry_run(self, data, validation, list(callbacks))

    def lr_find(self, data: Any, *, low: float = 1e-7, high: float = 1.0, steps: int = 100) -> LrCurve:
        """Measure the loss at learning rates from low to high, to find a good one; changes nothing.

        Each step has a higher rate than the one before. The search ends early if the loss diverges. Source: Smith 2017,
        "Cyclical learning rates for training neural networks".

        Args:
            data: as for `fit`.
            low, high: the first and the last learning rate.
            steps: the number of steps, at least 10.
        """
        from phlox.train.trials.lr_find import lr_find

        return lr_find(self, data, low, high, steps)

    @answering
    def predict(self, data: Any, function: Callable[..., Any] | None = None) -> Any:
        """Compute the outputs for all rows, in inference mode, as NumPy arrays in the structure of the model's output.

        With several processes (`mesh=`) call it in all of them; each gets the outputs for all rows, batch by batch.

        Args:
            data: a `Loader` or any iterable of batches.
            function: a function from `(model, batch)` to the outputs, whose first axis is the rows. Without it the
                model is called with the batch or, if batches are `(input, ...)`, with the input.
        """
        return predict(self.stepper, data, function)

    def __repr__(self) -> str:
        about = {**self.settings(), **self.description}
        shown = [str(about[name]) for name in ("model", "optimizer", "loss", "step", "update") if about.get(name)]
        return f"Learner({', '.join(shown)}, lr={about.get('lr')}, {self.device}, epoch {self.epoch}, step {self.step})"

    _repr_html_ = html_by("phlox.train.observers.views.pages", "page_of_learner")

    def feed(self, data: Any, name: str = "data") -> BatchStream:
        """The batches of this process, to train on or, with `name="validation"`, to validate on."""
        return batch_stream_of(self.stepper, data, name)


def _by_model(models: Mapping[str, Any], value: Any, argument: str, kinds: str) -> dict[str, Any]:
    """The values of an argument by the names of the models."""
    if ONLY in models:
        if isinstance(value, Mapping):
            raise RunError(f"{argument}: got a dict for several models, and there is one model; give {kinds}")
        return {ONLY: value}
    if not isinstance(value, Mapping):
        raise RunError(f"{argument}: for several models give a dict by their names ({', '.join(models)})")
    named = cast("Mapping[str, Any]", value)
    if unknown := [name for name in named if name not in models]:
        raise RunError(f"{argument}: there is no model {unknown[0]!r}; there are {', '.join(models)}")
    return dict(named)


def _rates(models: Mapping[str, Any], optimizers: Mapping[str, Any], lr: Any) -> dict[str, Any]:
    if lr is None:
        if all(isinstance(optimizer, Lbfgs) for optimizer in optimizers.values()):
            lr = 1.0
        else:
            raise RunError("lr: give the learning rate, a number or a schedule such as optim.CosineAnnealingLr")
    if not isinstance(lr, Mapping):
        return {name: lr if n == 0 else copy.deepcopy(lr) for n, name in enumerate(optimizers)}
    rates = _by_model(models, lr, "lr", "a number or a schedule")
    if set(rates) != set(optimizers):
        raise RunError(f"lr: give one for each of {', '.join(optimizers)}, got {', '.join(rates)}")
    return rates
