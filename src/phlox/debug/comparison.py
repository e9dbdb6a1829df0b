"""`compare`: a model on several engines, or beside the same model of another library, layer by layer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from phlox.backend import Device, DeviceLike, as_device, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.registry import load
from phlox.debug.comparison_report import Comparison, differences
from phlox.debug.recordings import Recording, recorded
from phlox.debug.running import LossOf, as_arguments, checked_model
from phlox.errors import DeviceError, ModuleError
from phlox.module import Module

Weights: TypeAlias = Literal["copy", "theirs", "own"]
Contestant: TypeAlias = DeviceLike | os.PathLike[str] | Any
"""An engine; a PyTorch module; the path of an ONNX file, or a model of the `onnx` package."""

_TORCH = "phlox.interop.pytorch.beside"
"""Imported by name, because `interop` imports packages that import this one."""
_FLOATS = ("f64", "f32", "f16", "bf16")


def compare(
    model: Module,
    inputs: Any,
    backends: Sequence[Contestant],
    *,
    loss: LossOf | None = None,
    gradients: bool = True,
    tolerance: float = 1e-3,
    names: Mapping[str, str] | None = None,
    weights: Weights = "copy",
) -> Comparison:
    """Compare a model on several engines, or with its original, layer by layer: values and gradients.

    The model runs on each with the same parameters, inputs and random numbers, and is differentiated. Each layer is
    compared with the same layer on the first of `backends`, the reference. `print` the result, or write it with
    `.to_html(path)`; `.first_beyond(1e-4)` is the first row with a larger difference, `.rows` has all rows.

    Args:
        model: the model, in its current mode; it does not change. Every call of a layer is a row.
        inputs: the arguments of the model: `[x]`, `(x, mask)`, or `{"x": x}`; tensors or arrays.
        backends: two or more of: a backend, a device, a name (`"jax"`, `"torch:bf16"`, `"numpy:f64"`); a PyTorch module
            of the same structure; an ONNX file (which has no gradients), whose nodes are named by layers.
        loss: a function from the outputs to a scalar, which is differentiated; by default the sum of the outputs with
            fixed weights.
        gradients: whether to differentiate.
        tolerance: the largest difference that is accepted, relative to the largest magnitude of a layer.
        names: our path -> the path in a PyTorch module or an ONNX file, if it differs: `{"head": "fc"}`. The layers
            inside of a named layer follow it.
        weights: for a PyTorch module: "copy" copies our weights to a copy of it, "theirs" copies its weights to a copy
            of the model, "own" leaves both as they are.

    Raises `ModuleError` for fewer than two backends, and for a PyTorch module whose weights do not fit.

    >>> import phlox as px
    >>> from phlox import nn
    >>> from phlox.backend import NumPy
    >>> model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 4)]).init(0).valid()
    >>> report = px.debug.compare(model, [px.ones((2, 8))], ["numpy:f64", "numpy", NumPy(float="f16")])
    >>> report.ok, report.first_beyond(1e-5).backend, report.first_beyond(1e-5).path
    (True, 'numpy:f16', 'layers.0')
    """
    checked_model("compare", model)
    if isinstance(backends, (str, os.PathLike)) or len(backends) < 2:
        raise ModuleError(
            "compare: give two backends or more; the first is the reference: [NumPy(float='f64'), Torch()]"
        )
    if weights not in ("copy", "theirs", "own"):
        raise ModuleError(f"compare: weights is 'copy', 'theirs' or 'own', got {weights!r}")
    args, kwargs = as_arguments(inputs)
    contestants = [_recorder(contestant, dict(names or {}), weights) for contestant in backends]
    if weights == "theirs":
        torch_module = next((c.module for c in contestants if isinstance(c, _TorchRecorder)), None)
        if torch_module is None:
            raise ModuleError("compare: weights='theirs' needs a PyTorch module among the backends")
        model = load(f"{_TORCH}:with_their_weights")(model, torch_module, dict(names or {}))
    labels = Counter[str]()
    recordings: list[Recording] = []
    rows: tuple[list[Any], list[Any]] = ([], [])
    missing: dict[str, tuple[str, ...]] = {}
    for record in contestants:
        recording = record(model, args, kwargs, loss, gradients)
        labels[recording.label] += 1
        if labels[recording.label] > 1:
            recording.label += f" #{labels[recording.label]}"
        recordings.append(recording)
        if len(recordings) > 1:
            values, others, lacking = differences(recordings[0], recording)
            rows[0].append(values)
            rows[1].append(others)
            if lacking:
                missing[recording.label] = tuple(lacking)
            recording.calls, recording.parameters = [], {}  # only the reference is kept
    return Comparison(
        reference=recordings[0].label,
        backends=tuple([r.label for r in recordings[1:]]),
        rows=[*_interleaved(rows[0]), *_interleaved(rows[1])],
        tolerance=tolerance,
        missing=missing,
        losses={r.label: r.loss for r in recordings if r.loss is not None},
    )


def _interleaved(columns: list[list[Any]]) -> list[Any]:
    """The rows of several backends in the order of layers."""
    if len(columns) == 1:
        return columns[0]
    positions: dict[tuple[Any, ...], int] = {}
    for column in columns:
        for row in column:
            positions.setdefault((row.kind, row.path, row.call, row.output), len(positions))
    rows = [row for column in columns for row in column]
    return sorted(rows, key=lambda row: positions[row.kind, row.path, row.call, row.output])


Recorder: TypeAlias = Callable[[Module, Any, Any, LossOf | None, bool], Recording]


def _recorder(contestant: Contestant, names: dict[str, str], weights: Weights) -> Recorder:
    if is_torch_module(contestant):
        return _TorchRecorder(contestant, names, copied=weights == "copy")
    if is_onnx(contestant):
        return _OnnxRecorder(contestant, names)
    device = device_named(contestant) if isinstance(contestant, str) else as_device(cast("DeviceLike", contestant))
    device = device.on(engine_of(device.backend))
    label = label_of(device)

    def record(model: Module, args: Any, kwargs: Any, loss: LossOf | None, gradients: bool) -> Recording:
        return recorded(model, args, kwargs, device, label, loss=loss, gradients=gradients)

    return record


class _TorchRecorder:
    def __init__(self, module: Any, names: dict[str, str], *, copied: bool) -> None:
        self.module, self.names, self.copied = module, names, copied

    def __call__(self, model: Module, args: Any, kwargs: Any, loss: LossOf | None, gradients: bool) -> Recording:
        options: dict[str, Any] = {"loss": loss, "gradients": gradients, "copied": self.copied}
        return load(f"{_TORCH}:recorded_in_torch")(model, self.module, args, kwargs, self.names, **options)


class _OnnxRecorder:
    def __init__(self, file: Any, names: dict[str, str]) -> None:
        self.file, self.names = file, names

    def __call__(self, model: Module, args: Any, kwargs: Any, loss: LossOf | None, gradients: bool) -> Recording:
        from phlox.debug.onnx_recording import recorded_in_onnx

        return recorded_in_onnx(model, self.file, args, kwargs, self.names)


def is_torch_module(value: Any) -> bool:
    """Is this a PyTorch module? The check imports nothing."""
    return any(cls.__module__ == "torch.nn.modules.module" and cls.__name__ == "Module" for cls in type(value).__mro__)


def is_onnx(value: Any) -> bool:
    """Is this the path of an ONNX file, or a model of the `onnx` package?"""
    if isinstance(value, (str, os.PathLike)):
        return not isinstance(value, str) or value.endswith(".onnx")
    return type(value).__name__ == "ModelProto"


def device_named(text: str) -> Device:
    """A device by name, with its precision: `jax`, `torch:bf16`, `torch:gpu:0`, `torch:gpu:0:bf16`.

    >>> device_named("numpy:f64")
    NumPy(float='f64').device('cpu')
    """
    name, *parts = text.split(":")
    if not parts or parts[-1] not in _FLOATS:
        return as_device(text)
    engine: Any = load_backend(name)
    try:
        backend: Any = engine(float=parts[-1])
    except TypeError:
        raise DeviceError(f"{text}: {name} has no choice of precision; leave `:{parts[-1]}` out") from None
    return backend.device(":".join(parts[:-1]) or None)


def label_of(device: Device) -> str:
    """The name of a device in tables: `torch:bf16`; with the device's own name if it is not the CPU."""
    suffix = "" if device.name == "cpu" else f":{device.name}"
    return f"{device.backend.name}{suffix}:{device.backend.float_element}"
