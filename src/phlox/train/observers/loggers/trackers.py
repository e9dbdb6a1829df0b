"""Loggers for tools to compare runs: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

from phlox.errors import ExtraNotInstalledError, RunError
from phlox.train.observers.callback import AnyLearner
from phlox.train.observers.loggers import event_file
from phlox.train.observers.loggers.event_file import EventFile
from phlox.train.observers.loggers.files import Logger, Row
from phlox.train.values import Histogram, Image

_PARAMS = 100
"""The number of parameters that MLflow takes in one call."""


class TensorBoardLogger(Logger):
    """Writes event files for TensorBoard, without TensorFlow or PyTorch: see them by `tensorboard --logdir runs`.

    Numbers are scalars, of float32; histograms and images are on the pages of these names. After a resume, TensorBoard
    no longer shows the values that were written after the checkpoint.

    Args:
        folder: the folder of this run's event files; it is created.
        every_steps: see `Logger`.
        config: the hyper-parameters of the run: a config, a dataclass or a dict, nested or not. They are shown as text
            and in the table of hyper-parameters.
        append: whether the folder may have event files of another run.

    Raises `RunError`, when the training begins, if the folder has event files of another run or cannot be written.

    >>> import tempfile
    >>> TensorBoardLogger(tempfile.mkdtemp() + "/first", config={"lr": 0.1})
    TensorBoardLogger('...first')
    """

    writes: ClassVar[bool] = True
    shows: ClassVar[tuple[type[Any], ...]] = (Histogram, Image)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        config: Any = None,
        append: bool = False,
    ) -> None:
        super().__init__(every_steps)
        self.folder, self.append = Path(folder), append
        self.config = nested(config, "TensorBoardLogger")
        self._file: EventFile | None = None
        self._is_own = False

    def begin(self, learner: AnyLearner) -> None:
        goes_on = learner.is_resumed or learner.starts_over or self.append or (self._is_own and learner.step > 0)
        try:
            if not goes_on and any(self.folder.glob("*tfevents*")):
                raise RunError(
                    f"TensorBoardLogger: {self.folder} has the events of another run; give another folder, or "
                    "append=True, and TensorBoard shows both as one"
                )
            self._file = EventFile(
                self.folder, self.last_step + 1 if learner.is_resumed else 0 if learner.starts_over else None
            )
            flat = flat_config(self.config)
            if flat and learner.step == 0:
                lines = "\n".join(f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in flat.items())
                self._file.write(0, event_file.text("config", f"| name | value |\n|---|---|\n{lines}"))
                self._file.write(0, event_file.hparams(flat, time.time()))
        except OSError as error:
            raise RunError(
                f"TensorBoardLogger: {self.folder} cannot be written ({error.strerror or error}); give another folder"
            ) from error
        self._is_own = True

    def write(self, row: Row) -> None:
        if self._file is not None:
            values = {name: value for name, value in row.items() if name != "step"}
            self._file.write(int(row["step"]), event_file.summary(values))

    def close(self) -> None:
        self._file = None

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.folder)!r})"


class _Tracker(Logger):
    """The base of loggers to other packages, which resume a run by its id."""

    writes: ClassVar[bool] = True
    tolerated: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    run_id: str | None = None

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "run_id": self.run_id}

    def restore(self, state: Mapping[str, Any], /) -> None:
        super().restore(state)
        self.run_id = state.get("run_id")


class MlflowLogger(_Tracker):
    """Logs to MLflow, through its package (`pip install mlflow`, or `mlflow-skinny`).

    At the end MLflow's status of the run is finished, failed, or killed (Ctrl-C). A resumed training resumes the run;
    MLflow also keeps the values that were written after the checkpoint. Images are logged as such, of a histogram its
    mean, standard deviation, least and greatest value. If the server cannot be reached during the training, the
    learner is warned once, and the training goes on.

    Args:
        experiment: the name of the experiment; it is created if needed.
        run_name: the name of the run; MLflow makes one up if None.
        tracking_uri: the server or folder; MLflow's default (`MLFLOW_TRACKING_URI`) if None.
        every_steps: see `Logger`.
        config: the hyper-parameters of the run: a config, a dataclass or a dict, nested or not. They become parameters.
        tags: the tags of the run.

    Attributes:
        run_id: the id of the run, once it has begun.

    Raises `ExtraNotInstalledError`, when the training begins, if the package is missing.

    >>> MlflowLogger("digits")
    MlflowLogger('digits')
    """

    shows: ClassVar[tuple[type[Any], ...]] = (Image,)

    def __init__(
        self,
        experiment: str = "phlox",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        every_steps: int | None = None,
        config: Any = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(every_steps)
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self.config, self.tags = nested(config, "MlflowLogger"), dict(tags or {})
        self._client: Any = None
        self._metric: Any = None

    def begin(self, learner: AnyLearner) -> None:
        mlflow = imported("mlflow", "MlflowLogger")
        entities = mlflow.entities
        self._metric = entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is not None and learner.step > 0:
            self._client.update_run(self.run_id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
        self.run_id = cast("str", self._client.create_run(number, run_name=self.run_name, tags=self.tags).info.run_id)
        params = [entities.Param(_allowed(name), str(value)) for name, value in flat_config(self.config).items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self.run_id, params=params[start : start + _PARAMS])

    def write(self, row: Row) -> None:
        now, step = int(time.time() * 1000), int(row["step"])
        images = {name: value for name, value in row.items() if isinstance(value, Image)}
        numbers = {name: value for name, value in row.items() if name != "step" and name not in images}
        metrics = [self._metric(_allowed(name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self.run_id, metrics=metrics)
        for name, image in images.items():
            self._client.log_image(self.run_id, image.pixels, key=_allowed(name), step=step)

    def close(self) -> None:
        failed = "KILLED" if isinstance(self.failed, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self.run_id, status="FINISHED" if self.failed is None else failed)

    def __repr__(self) -> str:
        return f"MlflowLogger({self.experiment!r})"


class WandbLogger(_Tracker):
    """Logs to Weights & Biases, through its package (`pip install wandb`).

    A resumed training resumes the run. The x-axis of the curves is `step`. Histograms and images are those of wandb.

    Args:
        project: the name of the project; the one of wandb's settings if None.
        name: the name of the run; wandb makes one up if None.
        offline: whether to write only to a folder, for `wandb sync` later.
        folder: the folder in which wandb makes its folder `wandb`; the working directory if None.
        every_steps: see `Logger`.
        config: the hyper-parameters of the run: a config, a dataclass or a dict, nested or not.
        tags: the tags of the run.
        options: further arguments of `wandb.init`, such as `entity=`, `group=`, `notes=`.

    Attributes:
        run_id: the id of the run, once it has begun.

    Raises `ExtraNotInstalledError`, when the training begins, if the package is missing.

    >>> WandbLogger("digits", offline=True)
    WandbLogger('digits')
    """

    shows: ClassVar[tuple[type[Any], ...]] = (Histogram, Image)

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        offline: bool = False,
        folder: str | os.PathLike[str] | None = None,
        every_steps: int | None = None,
        config: Any = None,
        tags: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(every_steps)
        self.project, self.name, self.offline = project, name, offline
        self.folder = None if folder is None else Path(folder)
        self.config, self.tags, self.options = nested(config, "WandbLogger"), tags, options
        self._run: Any = None
        self._wandb: Any = None

    def begin(self, learner: AnyLearner) -> None:
        self._wandb = wandb = imported("wandb", "WandbLogger")
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        arguments: dict[str, Any] = {"project": self.project, "name": self.name, "dir": self.folder}
        if self.offline:
            arguments["mode"] = "offline"
        if self.run_id is not None and learner.step > 0:
            arguments |= {"id": self.run_id, "resume": "allow"}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        self._run = wandb.init(config=self.config, tags=list(self.tags), **arguments, **self.options)
        self.run_id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def write(self, row: Row) -> None:
        self._run.log({name: self._as_its_own(value) for name, value in row.items()})

    def _as_its_own(self, value: Any) -> Any:
        if isinstance(value, Histogram):
            return self._wandb.Histogram(np_histogram=(value.counts, value.edges))
        if isinstance(value, Image):
            return self._wandb.Image(value.pixels[..., 0] if value.pixels.shape[2] == 1 else value.pixels)
        return value

    def close(self) -> None:
        self._run.finish(exit_code=0 if self.failed is None else 1)
        self._run = None

    def __repr__(self) -> str:
        return "WandbLogger()" if self.project is None else f"WandbLogger({self.project!r})"


def imported(package: str, logger: str) -> ModuleType:
    """Import an optional package; `ExtraNotInstalledError` if it is missing."""
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"{logger} needs {package}, which is not installed; install it with: pip install {package}"
        ) from error


def nested(config: Any, logger: str) -> dict[str, Any]:
    """Hyper-parameters as a dict; `RunError` for any other object."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return {str(name): value for name, value in cast("Mapping[Any, Any]", config).items()}
    if callable(getattr(config, "to_dict", None)):
        return config.to_dict()
    if _is_record(config):
        return asdict(config)
    raise RunError(f"{logger}: config must be a config, a dataclass or a dict, got a {type(config).__name__}")


def flat_config(config: Any, above: str = "") -> dict[str, str | float | bool]:
    """Hyper-parameters as numbers, texts and truth values by flat names.

    >>> flat_config({"model": {"layers": [64, 10]}, "lr": 0.1, "seed": None})
    {'model/layers': '[64, 10]', 'lr': 0.1, 'seed': 'None'}
    """
    flat: dict[str, str | float | bool] = {}
    for name, value in nested(config, "config").items():
        path = f"{above}{name}"
        if isinstance(value, Mapping) or callable(getattr(value, "to_dict", None)) or _is_record(value):
            flat |= flat_config(value, f"{path}/")
        elif isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            flat[path] = value
        else:
            flat[path] = str(value)
    return flat


def _is_record(value: Any) -> bool:
    """Is it an instance of a dataclass?"""
    return is_dataclass(value) and not isinstance(value, type)


def _allowed(name: str) -> str:
    """A name with only characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)
