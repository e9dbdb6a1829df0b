"""`Learner`: trains a model, whatever a step of it is."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import numpy as np

from phlox import random
from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.distributed.mesh import Mesh
from phlox.errors import RunError
from phlox.metrics.base import Metric, Results
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
    check_function,
    copied,
    device_of,
    engine_behind,
    named_models,
    optimizer_of,
    schedule_of,
    team_of,
    whole,
)
from phlox.train.callback import Callback
from phlox.train.evaluation import evaluate, predict
from phlox.train.feed import Feed
from phlox.train.history import History, Plan, Values
from phlox.train.loop import Fit, Limits
from phlox.train.meter import Meter, Pending
from phlox.train.state import State
from phlox.train.steps import ONLY, StepFunctions, of_loss

if TYPE_CHECKING:
    from phlox.config import BaseConfig
    from phlox.record import Record
    from phlox.train.folder.run_folder import RunFolder
    from phlox.train.trials.dry_run import DryRun
    from phlox.train.trials.lr_find import LrCurve

M = TypeVar("M")
Precision = Literal["f64", "f32", "bf16", "f16"]


class Learner(State, Generic[M]):
    """Trains a model on batches: `fit`, `evaluate`, `predict`, and one record of its whole state.

    Args:
        model: a module on any backend, or several in a dict by name. The learner trains a copy and leaves yours
            unchanged; `learner.model` is the model after the last step.
        optimizer: a config such as `optim.AdamWConfig()`, or an optimizer; for several models a dict by their names.
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
        precision: the precision of the model's computation, such as "bf16"; optimizers keep copies of the weights in
            f32.
        steps_per_call: the number of steps in one call of a compiled program; callbacks are called after each call.
        compile: whether a step is compiled into one program; the default is to compile on JAX only.
        carry: state that is passed from batch to batch, such as that of an RNN: tensors in any nesting, or a function
            of (model, batch) that makes them. The step is then a function from `(model, batch, carry)` to `(result,
            carry)`. The carry is reset at each epoch, and no gradient flows through it to an earlier batch.
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
        mesh: Mesh | None = None,
    ) -> None:
        self._single = isinstance(model, Module)
        self._team = None if mesh is None else team_of(mesh)
        self._models: dict[str, Any] = {
            name: copied(one, precision, self._team).train() for name, one in named_models(model).items()
        }
        self.device: Device = self._place()
        """Of the first model, to which batches go, on a backend with a tape."""
        self.stream = Stream(random.current().substream())
        """The random numbers of the training: dropout draws from it, and nothing else does."""
        half = precision == "f16" or any(engine_behind(one).float_element == "f16" for one in self._models.values())
        scales: Any = half if loss_scaling is None else loss_scaling
        self._optimizers = {
            name: optimizer_of(one, name, skips=bool(scales))
            for name, one in self._by_model(optimizer, "optimizer", KINDS).items()
        }
        if not self._optimizers:
            raise RunError("optimizer: none of the models has one, so that nothing would be trained")
        rates = self._rates(lr)
        self._schedules = {name: schedule_of(one, name) for name, one in rates.items()}
        self.accumulate = whole("accumulate", accumulate)
        self.steps_per_call = whole("steps_per_call", steps_per_call)
        given = [name for name, one in (("loss", loss), ("step", step), ("update", update)) if one is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise RunError(f"a learner needs one of loss=, step= and update=, got {got}")
        for name, one in (("loss", loss), ("step", step), ("update", update), ("validate", validate)):
            check_function(name, one)
        if loss is not None and not self._single:
            raise RunError("loss=: with several models it is not known which is meant; give step=(models, batch)")
        if update is not None and (self.accumulate > 1 or clip is not None or scales):
            raise RunError("update= does the whole step, so that accumulate, clip and loss_scaling are its own to do")
        self._is_lbfgs = any(isinstance(one, Lbfgs) for one in self._optimizers.values())
        if self._is_lbfgs and (
            not self._single or update is not None or self.accumulate > 1 or self.steps_per_call > 1
        ):
            raise RunError(
                "L-BFGS evaluates the loss several times a step: it goes with one model, and without update, "
                "accumulate and steps_per_call"
            )
        if self.steps_per_call > 1 and self.accumulate > 1:
            raise RunError("steps_per_call and accumulate do not go together; give a larger batch_size to the loader")
        if scales and len(self._optimizers) > 1:
            raise RunError("loss_scaling goes with one optimizer; with several, scale the losses in update=")
        if clip is not None and not isinstance(cast("Any", clip), GradientClipping):
            raise RunError(f"clip: give optim.GradientClipping.global_norm(1.0) or the like, got {clip!r}")
        if ema is not None and not 0.0 <= ema < 1.0:
            raise RunError(f"ema: the decay of the average lies in [0, 1), got {ema}; 0.999 is usual")
        self.compiles = engine_of(self.device.backend).prefers_compiled if compile is None else bool(compile)
        self._takes_arrays = self.compiles and engine_of(self.device.backend).compiles and not self._is_lbfgs
        self._own_step = step or update
        chosen = of_loss(loss) if loss is not None else step
        self._training, self._validation = (Meter(metrics or {}, self.device) for _ in range(2))
        self.metrics = self._training.metrics
        """By name; those of a `Collection` as `name/part`."""
        self._carry, self._carry_saved = carry, None
        self._functions = StepFunctions(
            chosen, update, validate or chosen, self._training, self._validation, self._single, clip,
            carry is not None, looks=not (self.compiles and engine_of(self.device.backend).compiles),
        )  # fmt: skip
        self._aids: dict[str, Any] = self._training.aids()
        trained = {name: self._models[name] for name in self._optimizers}
        if ema is not None:
            self._aids["ema"] = {name: Ema(one, decay=ema) for name, one in trained.items()}
        if self.accumulate > 1:
            self._aids["accumulators"] = {name: GradientsAccumulator(one) for name, one in trained.items()}
        if scales:
            self._aids["scaler"] = scales if isinstance(scales, LossScaler) else LossScaler(device=self.device)
        self._programs: dict[Any, Callable[..., Any]] = {}
        self.guards = False
        """Is the loss of every step waited for, and the model before it kept until it is known? See `NanGuard`."""
        self.epoch = self.step = self.updates = self.rows = self._batch_number = 0
        self.lr: Any = 0.0
        self.lr_scale = 1.0
        self.history: History = History()
        self.events: list[tuple[int, str]] = []
        self.extra: dict[str, float] = {}
        self.validation: Values = {}
        self.validation_data: Any = None
        self.plan = Plan(None, None, None, None)
        self.folder: Path | None = None
        self.batch: Any = None
        self.is_resumed = False
        self.stopped: str | None = None
        self._values: dict[str, float] = {}
        self._kept: Record | None = None
        self._last: Pending | None = None
        self._position, self._epoch_seconds = 0, 0.0
        self._fit: Fit | None = None

    # --- what it holds

    @property
    def model(self) -> M:
        """The model after the last step, in training mode, or a dict of several by name.

        For inference use `learner.model.valid()`. A compiled step overwrites the model before it: get the model again
        after a further step, and do not keep the old one.
        """
        return self._models[ONLY] if self._single else cast("M", dict(self._models))

    @model.setter
    def model(self, model: M) -> None:
        new = named_models(model)
        if set(new) != set(self._models):
            raise RunError(
                f"model: a learner keeps its models ({', '.join(self._models) or 'one'}); got {', '.join(new)}"
            )
        self._models = {name: cast("Any", one).train() for name, one in new.items()}
        self.device = self._place()

    @property
    def average(self) -> M:
        """The averaged model (`ema=`), in inference mode; without `ema`, the model itself."""
        found = self._for_inference()
        return found[ONLY] if self._single else cast("M", found)

    @property
    def optimizer(self) -> Any:
        """The optimizer, or a dict of several by the name of the model."""
        return self._optimizers[ONLY] if self._single else dict(self._optimizers)

    @property
    def schedule(self) -> Any:
        """The schedule of the learning rate, or a dict of several by the name of the model."""
        return self._schedules[ONLY] if self._single else dict(self._schedules)

    @property
    def loss(self) -> float:
        """The loss of the last step, NaN before the first; reading it waits for the engine."""
        last = self._last
        if last is None or last.output.loss is None:
            return float("nan")
        array = np.asarray(last.output.loss.numpy())
        return float(array if last.of is None else array[last.of])

    @property
    def seconds(self) -> float:
        """The seconds of the current or last `fit`, with the time before it was resumed."""
        return 0.0 if self._fit is None else self._fit.seconds

    def means(self) -> Values:
        """Return the loss and the metrics of this epoch so far; waits for the engine.

        With several processes on PyTorch or NumPy, the metrics are over the rows of this process until the epoch ends;
        then they are over the rows of all.
        """
        self._read()
        return self._training.values()

    def values(self) -> dict[str, float]:
        """Return the newest values in one dict, with names such as `train/loss` and `validation/accuracy`."""
        return dict(self._values)

    def value(self, name: str) -> float:
        """Return the newest value of this name; `RunError`, which lists the names, if there is none."""
        if name not in self._values:
            known = ", ".join(self._values) or "none before the end of the first epoch"
            raise RunError(f"there is no value {name!r}; there are: {known}")
        return self._values[name]

    # --- what callbacks do

    def stop(self, reason: str) -> None:
        """End the training after this step, for the given reason."""
        self.stopped = self.stopped or reason

    def warn(self, text: str) -> None:
        """Add an event to `learner.events`, which views and reports show."""
        self.events.append((self.step, text))

    def announce(self, path: Path) -> None:
        """Tell all callbacks that a checkpoint is complete."""
        if self._fit is not None:
            self._fit.tell("on_checkpoint", path)

    # --- training

    if not TYPE_CHECKING:  # to a type checker it would mean that every attribute exists

        def __getattr__(self, name: str) -> Any:
            from phlox.other_names import of_object
            from phlox.other_names.objects import LEARNER

            if hasattr(type(self), name):  # a property that has failed: ask it once more, for its own error was dropped
                return object.__getattribute__(self, name)
            raise AttributeError(of_object(self, name, LEARNER), name=name, obj=self)

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
        fit, `RecordError` for a checkpoint of another model, and any exception of a callback.
        """
        limits = Limits.of(epochs, steps, time)
        if validation is not None:
            self._functions.check_validates()
        if dry_run:
            sys.stdout.write(f"{self.dry_run(data, validation=validation, callbacks=callbacks)}\n")
            return self.history
        self._fit = Fit(
            self, self.feed(data), None if validation is None else self.feed(validation, "validation"), limits,
            (whole("validate_every", validate_every), validate_every_steps), callbacks,
            folder=folder, resume=resume, overwrite=overwrite, progress=progress,
            config=config,
        )  # fmt: skip
        self.validation_data = validation
        self._fit.run()
        return self.history

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

    def evaluate(self, data: Any) -> Results:
        """Compute the loss and the metrics on all batches of `data`, in inference mode; all rows have equal weight.

        With several processes (`mesh=`) call it in all of them; each gets the values over all rows.
        """
        return evaluate(self, data)

    def predict(self, data: Any, function: Callable[..., Any] | None = None) -> Any:
        """Compute the outputs for all rows, in inference mode, as NumPy arrays in the structure of the model's output.

        With several processes (`mesh=`) call it in all of them; each gets the outputs for all rows, batch by batch.

        Args:
            data: a `Loader` or any iterable of batches.
            function: a function from `(model, batch)` to the outputs, whose first axis is the rows. Without it the
                model is called with the batch or, if batches are `(input, ...)`, with the input.
        """
        return predict(self, data, function)

    def _repr_html_(self) -> str:
        from phlox.train.views.html import html_of_learner

        return html_of_learner(self)

    # --- within

    def feed(self, data: Any, name: str = "data") -> Feed:
        """The batches of this process, to train on or, with `name="validation"`, to validate on."""
        if self._team is None:
            return Feed(data, name)
        return self._team.feed(data, name, trains=name == "data", weighs=self._functions.update is None)

    def _place(self) -> Device:
        place = device_of(next(iter(self._models.values())))
        return place if self._team is None else self._team.device(place)

    def _by_model(self, given: Any, what: str, kinds: str) -> dict[str, Any]:
        """What was given for the models, by their names."""
        if self._single:
            if isinstance(given, Mapping):
                raise RunError(
                    f"{what}: one for each of several models was given, and there is one model; give {kinds}"
                )
            return {ONLY: given}
        if not isinstance(given, Mapping):
            raise RunError(f"{what}: for several models give a dict by their names ({', '.join(self._models)})")
        named = cast("Mapping[str, Any]", given)
        if unknown := [name for name in named if name not in self._models]:
            raise RunError(f"{what}: there is no model {unknown[0]!r}; there are {', '.join(self._models)}")
        return dict(named)

    def _rates(self, lr: Any) -> dict[str, Any]:
        if lr is None:
            if all(isinstance(one, Lbfgs) for one in self._optimizers.values()):
                lr = 1.0
            else:
                raise RunError("lr: give the learning rate, a number or a schedule such as optim.CosineAnnealingLr")
        if not isinstance(lr, Mapping):
            return {name: lr if n == 0 else copy.deepcopy(lr) for n, name in enumerate(self._optimizers)}
        rates = self._by_model(lr, "lr", "a number or a schedule")
        if set(rates) != set(self._optimizers):
            raise RunError(f"lr: give one for each of {', '.join(self._optimizers)}, got {', '.join(rates)}")
        return rates
