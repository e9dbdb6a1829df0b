"""`RunModel`: the model of a run, built from the files in its folder, without the program that trained it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend import Device, DeviceLike, as_device
from phlox.errors import RecordError, RunError
from phlox.module import Module, no_initializers
from phlox.module.architecture import Plain, build_module, classes_in, imported
from phlox.record import Record, load
from phlox.tensor import tensor
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.folder.model_file import (
    FORMAT,
    MODEL,
    OWN,
    SAMPLE,
    SOURCE,
    WEIGHTS,
    Arrays,
    arguments,
    outputs_of,
)
from phlox.train.observers.folder.program_source import source_of
from phlox.train.state import ALONE, ONLY
from phlox.transform import TensorSpec


def load_model(
    folder: str | os.PathLike[str], device: DeviceLike | None = None, *, name: str = ONLY, trust: bool = False
) -> Any:
    """Load the model that a `Learner` trained in a folder, in inference mode.

    The model is built from the files of the run; its constructor does not run. The weights are those of the end of the
    training or, if it did not end, of the newest checkpoint.

    Args:
        folder: the folder of the run, `fit(..., folder=)`.
        device: the device of the model.
        name: which model, of a learner of several.
        trust: whether classes that the program itself defined may be defined again, by running `model.py` of the run.

    Raises `RunError` for a folder that is not that of such a run, for a model that cannot be built, and for a class of
    the program itself without `trust`; `RecordError` for damaged weights.

    >>> import tempfile
    >>> import numpy as np
    >>> from phlox import nn, optim
    >>> from phlox.data import Loader
    >>> from phlox.train import Learner, load_model
    >>> folder, rows = tempfile.mkdtemp(), (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
    >>> learner = Learner(nn.Linear(2, 1), optim.SgdConfig(), 0.1, nn.mse_loss)
    >>> history = learner.fit(Loader(rows, 4), epochs=1, folder=folder, progress=False)
    >>> load_model(folder, "numpy")
    Linear(weight [2, 1], bias [1], training=False)
    """
    return RunModel(folder, device, name=name, trust=trust).model


class RunModel:
    """The model of a run, and the sample of its inputs and outputs. See `load_model` for arguments and errors.

    Attributes:
        model: the model, in inference mode.
        inputs, outputs: the arrays of the sample by name; empty if the run has none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: DeviceLike | None = None,
        *,
        name: str = ONLY,
        trust: bool = False,
    ) -> None:
        self.path = Path(folder)
        self.device: Device = as_device(device)
        self._content, self._trusts = _content_of(self.path), trust
        models: dict[str, Plain] = self._content["models"]
        if name not in models:
            raise RunError(f"{self.path}: has no model {name!r}; its models are {', '.join(map(repr, models))}")
        part = models[name]
        if "unknown" in part:
            raise RunError(
                f"{self.path}: only the program that trained it can make its model, {part['class']} ({part['unknown']})"
            )
        self._own: Any = None
        with no_initializers():
            module: Module = build_module(part, self.device, self._find)
            try:
                self.model: Any = module.load_record(self._weights(name)).valid()
            except RecordError as error:
                raise RecordError(f"{self.path}: {error}") from error
        self._call: Any = self._content.get("sample") if name == ONLY else None
        arrays = self._sample() if self._call is not None else {}
        self.inputs: Arrays = {key: array for key, array in arrays.items() if not key.startswith("output")}
        self.outputs: list[Any] = [array for key, array in arrays.items() if key.startswith("output")]

    def __call__(self, inputs: Arrays) -> list[Any]:
        """The outputs for inputs of the names in the sample, as arrays, in order."""
        return outputs_of(
            self.model(*self.arguments({name: tensor(x, device=self.device) for name, x in inputs.items()}))
        )

    def arguments(self, inputs: Any) -> Any:
        """The arguments of a call of the model, from inputs by name."""
        if self._call is None:
            reason = self._content.get("no_sample", "the training has not ended")
            raise RunError(f"{self.path}: the run does not say how its model is called ({reason})")
        return arguments(self._call, inputs)

    def specs(self) -> Any:
        """The arguments of a call as `TensorSpec`s, whose first axis is open."""
        specs = {
            name: TensorSpec(("batch", *array.shape[1:]), tensor(array[:1], device=self.device).kind, self.device)
            for name, array in self.inputs.items()
        }
        return self.arguments(specs)

    def _find(self, name: str) -> Any:
        """A class or function by name; one of the program itself from `model.py`."""
        if not name.startswith(OWN):
            return imported(name)
        source = self.path / SOURCE
        if self._own is None:
            if self._is_running(source):
                return imported(name)
            if not self._trusts:
                raise RunError(
                    f"{self.path}: {name.removeprefix(OWN)} is a class of the program that trained it, which is copied "
                    f"in {source}; read that file, and allow it to run: trust=True"
                )
            spec = importlib.util.spec_from_file_location(f"phlox_run_{abs(hash(source.resolve()))}", source)
            if spec is None or spec.loader is None or not source.is_file():
                raise RunError(f"{source}: is missing, and it has the classes of the model")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                del sys.modules[spec.name]
                raise RunError(f"{source}: cannot be run ({type(error).__name__}: {error})") from error
            self._own = module.__name__
        return imported(f"{self._own}:{name.removeprefix(OWN)}")

    def _is_running(self, source: Path) -> bool:
        """Does this program define the classes of the model, just as the program that trained it?"""
        models: dict[str, Plain] = self._content["models"]
        own = [name.partition(":")[2] for plain in models.values() for name in classes_in(plain) if OWN in name]
        try:
            return source_of(own) == source.read_text(encoding="utf-8")
        except (RunError, OSError, SyntaxError, ValueError):
            return False

    def _weights(self, name: str) -> Record:
        path = self.path / WEIGHTS
        if path.is_file():
            record = load(path)
            return record.select(name) if name else record
        if not Checkpoints.exist_in(self.path):
            raise RunError(f"{self.path}: has no weights yet: neither {WEIGHTS} nor a checkpoint")
        return Checkpoints.load(self.path).select(f"models.{name or ALONE}")

    def _sample(self) -> Arrays:
        path = self.path / SAMPLE
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception as error:  # zip structure, checksum, array headers: each has its own error
            raise RunError(f"{path}: is damaged or missing ({error}); train again") from error


def _content_of(folder: Path) -> Plain:
    path = folder / MODEL
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        models = content["models"]
        if content["format"] > FORMAT:
            raise RunError(f"{path}: was written by a newer Phlox; install that one")
        if not isinstance(models, dict):
            raise TypeError("its models are no object")
    except FileNotFoundError:
        raise RunError(
            f"{path}: is missing; a training writes it, with Learner.fit(..., folder={str(folder)!r})"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunError(f"{path}: is damaged ({type(error).__name__}: {error}); train again") from error
    return cast("Plain", content)
