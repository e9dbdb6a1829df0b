"""Runs the file at several sizes of the open axes, and compares it with the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend import Device
from phlox.errors import ExportError
from phlox.export.arguments import Arguments
from phlox.export.borders import BorderReport, at_borders, sizes_at_borders
from phlox.export.comparison import case, differences, feeds, limit_of, outputs_of, reference_model
from phlox.export.report import Difference
from phlox.export.to_onnx.model_file import onnx_package
from phlox.module import Module

_MOST_BORDERS = 24
Runner = Callable[[Mapping[str, Any]], "list[np.ndarray[Any, Any]]"]


def validate(path: Path) -> None:
    """Run `onnx.checker` with inference of all shapes; `ExportError` with its message."""
    onnx = onnx_package()
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        raise ExportError(f"export.onnx: onnx.checker refuses the file: {error}") from error


def runtimes(path: Path, name: str | None) -> list[tuple[str, Callable[[], Runner]]]:
    """The runtimes that may run the file, by name, with a function that makes each; the first that works is used."""
    available: list[tuple[str, Callable[[], Runner]]] = [
        ("onnxruntime", lambda: _onnxruntime(path)),
        ("onnx.reference", lambda: _reference(path)),
    ]
    if name is None:
        return available
    chosen = [entry for entry in available if entry[0] == name]
    if not chosen:
        raise ExportError(f"export.onnx: runtime is 'onnxruntime' or 'onnx.reference', got {name!r}")
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


def _is_fragile(path: Path) -> bool:
    """Would an empty axis crash the process? It does in onnxruntime's recurrent operators."""
    model = onnx_package().load(str(path), load_external_data=False)
    return any(node.op_type in ("LSTM", "GRU", "RNN") for node in model.graph.node)


def _misread(path: Path) -> str | None:
    """Why the reference evaluator would compute the file wrongly; None if no such operator is in it."""
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
    device: Device,
    *,
    runtime: str | None,
    tolerance: float | None,
    bounds: Iterable[int] | None,
) -> tuple[str, str, list[Difference], BorderReport]:
    """The name of the runtime, the name of the reference, the differences, and the runs at borders.

    Borders of open axes are around `bounds`, where the model cuts the axes; None means no runs at borders.

    Raises `ExportError` if they differ by more than the tolerance, and if no runtime can run the file.
    """
    limit = limit_of(device.backend.float_element, tolerance)
    twin, twin_device = reference_model(model, device)
    reference = f"the model on {twin_device.backend!r}"
    refused: list[Exception] = []
    tried = [(trial, case(twin, arguments, trial, twin_device, refused)) for trial in sizes]
    cases = [(trial, *example) for trial, example in tried if example is not None]
    if not cases:
        raise ExportError(
            f"export.onnx: the model takes none of the sizes {[dict(trial) for trial in sizes]} that were tried; give "
            f"some that it takes: sizes={{'batch': (1, 3)}}. The first failed with: {refused[0]}"
        ) from refused[0]
    reasons: list[str] = []
    for name, make in runtimes(path, runtime):
        trying = ""
        try:
            run = make()
            results: list[Any] = []
            for at, values, _ in cases:
                trying = f" at {dict(at)}" if at else ""
                results.append(run(feeds(arguments, values, device.backend)))
        except ImportError:
            reasons.append(f"{name} is not installed")
            continue
        except Exception as error:
            reasons.append(f"{name}{trying}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}")
            continue
        compared: list[Difference] = []
        for (trial, values, expected), got in zip(cases, results, strict=True):

            def own_outputs(values: list[Any] = values) -> list[Any]:
                return outputs_of(model, arguments, values, device)

            compared += differences("export.onnx", trial, outputs, expected, got, limit, own_outputs)
        base = cases[0][0]
        border_sizes = [] if bounds is None else sizes_at_borders([*base], base, bounds)
        whole = [trial for trial in border_sizes if all(trial.values())] if _is_fragile(path) else border_sizes
        borders = at_borders(
            "export.onnx", (twin, twin_device, model, device), arguments, outputs, whole, base,
            lambda values, run=run: run(feeds(arguments, values, device.backend)), limit, _MOST_BORDERS,
        )  # fmt: skip
        if len(whole) < len(border_sizes):
            borders.remarks.append(
                "it was not tried with empty axes, for which onnxruntime's recurrent operators crash Python"
            )
        return name, reference, compared, borders
    raise ExportError(
        f"export.onnx: no runtime could run the file, so it was not compared: {'; '.join(reasons)}. check_file=False "
        "skips the check"
    )
