"""The file is run, at several sizes of the open axes, and compared with the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend import Backend, Device, Float, backend_by_name, default_device
from phlox.backend.contract.backend import engine_of
from phlox.errors import ExportError, PhloxError
from phlox.export.to_onnx.arguments import Arguments, Input
from phlox.export.to_onnx.model_file import onnx_package
from phlox.export.to_onnx.report import Difference
from phlox.host.dtypes import HOST_DTYPES
from phlox.module import Module
from phlox.tensor import Tensor, tensor
from phlox.transform.tree import leaves_of

TOLERANCES = {"f64": 1e-6, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}
"""The largest relative difference that is taken for rounding, by the model's floats."""
_SMALL = 1 << 26
"""A model of fewer bytes is compared with itself in f64."""

Runner = Callable[[Mapping[str, Any]], "list[np.ndarray[Any, Any]]"]


def validate(path: Path) -> None:
    """`onnx.checker` with inference of all shapes; `ExportError` with what it says."""
    onnx = onnx_package()
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        raise ExportError(f"export.onnx: onnx.checker refuses the file: {error}") from error


def runtimes(path: Path, wanted: str | None) -> list[tuple[str, Callable[[], Runner]]]:
    """What can run the file: its name, and what makes it; the first that can is taken."""
    known: list[tuple[str, Callable[[], Runner]]] = [
        ("onnxruntime", lambda: _onnxruntime(path)),
        ("onnx.reference", lambda: _reference(path)),
    ]
    if wanted is None:
        return known
    chosen = [one for one in known if one[0] == wanted]
    if not chosen:
        raise ExportError(f"export.onnx: runtime is 'onnxruntime' or 'onnx.reference', got {wanted!r}")
    return chosen


def _onnxruntime(path: Path) -> Runner:
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

    runtime = cast(Any, onnxruntime)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def _reference(path: Path) -> Runner:
    from onnx.reference import ReferenceEvaluator

    if (reason := _misread(path)) is not None:
        raise NotImplementedError(reason)
    evaluator = cast(Any, ReferenceEvaluator)(str(path))

    def run(feeds: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return evaluator.run(None, dict(feeds))

    return run


def _misread(path: Path) -> str | None:
    """What the reference evaluator is known to compute wrongly, if the file has it."""
    model = onnx_package().load(str(path), load_external_data=False)
    for node in model.graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN") and len(node.input) > 4 and node.input[4]:
            return f"it ignores the sequence lengths of {node.op_type} ({node.name})"
    return None


def compare(
    path: Path,
    model: Module,
    arguments: Arguments,
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    place: Device,
    *,
    runtime: str | None,
    tolerance: float | None,
) -> tuple[str, str, list[Difference]]:
    """The name of the runtime, that of the reference, and how far they are apart.

    Raises `ExportError` where they differ by more than the tolerance, and where nothing can run the file.
    """
    element = place.backend.float_element
    limit = TOLERANCES[element] if tolerance is None else tolerance
    twin, there = _reference_model(model, place)
    reference = f"the model on {there.backend!r}"
    refused: list[Exception] = []
    tried = [(one, _case(twin, arguments, one, there, refused)) for one in sizes]
    cases = [(one, *taken) for one, taken in tried if taken is not None]
    if not cases:
        raise ExportError(
            f"export.onnx: the model takes none of the sizes {[dict(one) for one in sizes]} that were tried; give some "
            f"that it takes: sizes={{'batch': (1, 3)}}. The first failed with: {refused[0]}"
        ) from refused[0]
    reasons: list[str] = []
    for name, make in runtimes(path, runtime):
        trying = ""
        try:
            run = make()
            results: list[Any] = []
            for at, values, _ in cases:
                trying = f" at {dict(at)}" if at else ""
                results.append(run(_feeds(arguments, values, place.backend)))
        except ImportError:
            reasons.append(f"{name} is not installed")
            continue
        except Exception as error:
            reasons.append(f"{name}{trying}: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}")
            continue
        found: list[Difference] = []
        for (one, _, expected), got in zip(cases, results, strict=True):
            for title, want, have in zip(outputs, expected, got, strict=True):
                found.append(_difference(one, title, want, np.asarray(have), limit))
        return name, reference, found
    raise ExportError(
        f"export.onnx: nothing has run the file, so that it cannot be compared: {'; '.join(reasons)}. check_file=False "
        "leaves it unchecked"
    )


def _reference_model(model: Module, place: Device) -> tuple[Module, Device]:
    """The model in f64 with NumPy, where it is small; else as it is."""
    engine = engine_of(place.backend)
    total = sum(param.val().size for param in model.params()) * 8
    if engine.float_element not in ("f32", "f64") or total > _SMALL:
        return model, place
    wide = type(cast(Any, backend_by_name("numpy")))(float="f64", int=engine.int_element)
    return model.to_device(wide).valid(), wide.device()


def _case(
    model: Module, arguments: Arguments, sizes: Mapping[str, int], place: Device, refused: list[Exception]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]] | None:
    """Values for the inputs, and what the model gives for them; None if it does not take these sizes."""
    for highest in (10, 2, 1):
        rng = np.random.default_rng(0)
        values = [_values(one, sizes, rng, highest) for one in arguments.inputs]
        rest = iter(values)

        def made(one: Input) -> Any:
            return tensor(next(rest), kind=one.spec.kind, device=place)  # noqa: B023

        args, kwargs = arguments.filled(made)
        try:
            with default_device(place):
                outputs = cast("Callable[..., Any]", model)(*args, **kwargs)
        except PhloxError as error:
            refused.append(error)
            continue
        return values, [_float(one) for _, one in leaves_of(outputs, Tensor)]
    return None


def _float(one: Any) -> np.ndarray[Any, Any]:
    array = one.numpy()
    return array.astype(np.float64) if one.kind is Float else array


def _values(one: Input, sizes: Mapping[str, int], rng: np.random.Generator, highest: int) -> np.ndarray[Any, Any]:
    shape = one.spec.with_sizes(sizes).shape
    if one.example is not None:
        return one.example
    match one.spec.kind.name:
        case "float":
            return rng.normal(size=shape).astype(np.float32)
        case "int":
            return rng.integers(0, highest, shape)
        case _:
            return rng.random(shape) < 0.7


def _feeds(arguments: Arguments, values: Sequence[Any], backend: Backend) -> dict[str, Any]:
    engine = engine_of(backend)
    return {
        one.name: np.asarray(value).astype(
            HOST_DTYPES[{"float": engine.float_element, "int": engine.int_element, "bool": "bool"}[one.spec.kind.name]]
        )
        for one, value in zip(arguments.inputs, values, strict=True)
    }


def _difference(
    sizes: Mapping[str, int], output: str, want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], limit: float
) -> Difference:
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    place = f"export.onnx: output {output}" + (f" at {at}" if at else "")
    if want.shape != have.shape:
        raise ExportError(f"{place}: the file gives shape {have.shape}, and the model {want.shape}")
    want, have = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(want - have)
    apart = np.where((want == have) | (np.isnan(want) & np.isnan(have)), 0.0, apart)
    absolute = float(apart.max(initial=0.0))
    finite = np.abs(want[np.isfinite(want)])
    largest = float(finite.max(initial=0.0))
    relative = absolute / largest if largest else absolute
    if not relative <= limit:
        worst = tuple(
            map(int, np.unravel_index(int(np.nanargmax(np.where(np.isnan(apart), np.inf, apart))), apart.shape))
        )
        raise ExportError(
            f"{place}: the file differs from the model by {absolute:.3g} ({relative:.3g} of the largest element), at "
            f"{worst}: {have[worst]:.6g} and {want[worst]:.6g}; no file is left. A larger tolerance=... takes it"
        )
    return Difference(dict(sizes), output, absolute, relative)
