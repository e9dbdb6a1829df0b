"""`ModelFile`: how the model of a run is made, its weights, and a few rows with its outputs, for tools."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import NumPy
from phlox.data.structure import host_array
from phlox.errors import ModuleError, RunError
from phlox.module import Module
from phlox.module.architecture import Plain, architecture, classes_in
from phlox.record import SafetensorsRecorder
from phlox.tensor import Tensor, tensor
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.folder.program_source import source_of
from phlox.train.observers.folder.run_folder import RunFolder
from phlox.train.state import ONLY

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
MODEL, WEIGHTS, SAMPLE, SOURCE = "architecture.json", "model.safetensors", "sample.npz", "model.py"
FORMAT = 1
OWN = "__main__:"
"""Begins the name of a class of the program itself."""
_ROWS, _BYTES = 8, 1 << 20
"""The largest number of rows in a sample, and of bytes of its inputs."""
_PARAMETERS = 50_000_000
"""The outputs of larger models are not computed at the end of a training."""


class ModelFile(Callback):
    """Writes into the folder of a run how its model is made, and at the end its weights and a sample.

    `architecture.json` has the architecture of each model, or the reason why it cannot be described. Classes that the
    program itself defines are written to `model.py`, with what they use. `model.safetensors` has the weights for
    inference after the last step, and `sample.npz` the inputs of a few rows of the last batch, with the model's
    outputs.
    """

    last = True
    writes = True

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._content: Plain = {}
        self._has_failed = False

    def on_fit_start(self, learner: AnyLearner) -> None:
        self._has_failed = False
        for name in (WEIGHTS, SAMPLE):  # of a former end of the run
            (self._run.path / name).unlink(missing_ok=True)
        models: Mapping[str, Module] = learner.state.models
        described = {name: _architecture_of(model) for name, model in models.items()}
        own = [name.partition(":")[2] for plain in described.values() for name in classes_in(plain) if OWN in name]
        try:
            if own:
                self._run.write(SOURCE, source_of(own).encode())
        except RunError as error:
            described = {name: _unknown(model, error) for name, model in models.items()}
        self._content = {"format": FORMAT, "models": described}
        self._write()

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        self._has_failed = isinstance(error, Exception)

    def on_fit_end(self, learner: AnyLearner) -> None:
        team = learner.stepper.team
        if self._has_failed or (team is not None and team.size > 1):  # checkpoints have the weights
            return
        SafetensorsRecorder().save(learner.stepper.weights(), self._run.file(WEIGHTS))
        model = learner.stepper.for_inference().get(ONLY)
        batch = learner.run.batch
        if model is None or batch is None or "module" not in self._content["models"][ONLY]:
            return
        try:
            self._content["sample"] = self._sampled(model, batch)
        except Exception as error:  # the step may call the model in another way, or NumPy may lack what it computes
            self._content["no_sample"] = f"{type(error).__name__}: {error}".partition("\n")[0]
        self._write()

    def _sampled(self, model: Module, batch: Any) -> Plain:
        """Write the sample, and describe its inputs."""
        inputs = cast("tuple[Any, ...]", batch)[0] if isinstance(batch, tuple) else batch
        arrays: Arrays = {}
        call = _described(inputs if type(inputs) is tuple and isinstance(batch, tuple) else (inputs,), arrays)
        rows = min(_ROWS, *(max(1, _BYTES // max(array[0].nbytes, 1)) for array in arrays.values()))
        arrays = {name: array[:rows] for name, array in arrays.items()}
        if model.num_params() <= _PARAMETERS:
            on_host = model.to_device(NumPy().device()).valid()
            outputs = on_host(*arguments(call, {name: tensor(array) for name, array in arrays.items()}))
            arrays |= {f"output{number}": array for number, array in enumerate(outputs_of(outputs))}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **cast("dict[str, Any]", arrays))
        self._run.write(SAMPLE, buffer.getvalue())
        return call

    def _write(self) -> None:
        self._run.write(MODEL, json.dumps(self._content, separators=(",", ":")).encode() + b"\n")


def _architecture_of(model: Module) -> Plain:
    """The architecture of a model, or why there is none."""
    try:
        return architecture(model)
    except ModuleError as error:
        return _unknown(model, error)


def _unknown(model: Module, error: Exception) -> Plain:
    return {"class": f"{type(model).__module__}:{type(model).__qualname__}", "unknown": str(error)}


def _described(value: Any, arrays: Arrays) -> Any:
    """The structure of inputs, with the names of arrays, which are added to `arrays`."""
    if isinstance(value, Mapping):
        return {"dict": {str(key): _described(part, arrays) for key, part in cast("Mapping[Any, Any]", value).items()}}
    if type(value) is tuple:
        return {"tuple": [_described(part, arrays) for part in cast("tuple[Any, ...]", value)]}
    array = host_array(value)
    if array is None or not array.ndim:
        raise RunError(f"an input is a {type(value).__name__}, not rows")
    name = f"x{len(arrays) or ''}"
    arrays[name] = array
    return name


def arguments(call: Any, arrays: Mapping[str, Any]) -> Any:
    """The inputs of a described structure, such as the arguments of a call."""
    if isinstance(call, str):
        return arrays[call]
    if "tuple" in call:
        return tuple([arguments(part, arrays) for part in call["tuple"]])
    return {name: arguments(part, arrays) for name, part in call["dict"].items()}


def outputs_of(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of an output in any nesting, in order."""
    if isinstance(value, Tensor):
        return [cast("Tensor[Any, Any, Any]", value).numpy()]
    if isinstance(value, Mapping):
        value = list(cast("Mapping[Any, Any]", value).values())
    parts = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    return [array for part in parts for array in outputs_of(part)]
