"""`phlox.export.onnx`: a model as an ONNX file that was run and compared."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phlox.backend import Device, Float
from phlox.backend.tracing.slices import noting_bounds
from phlox.errors import ExportError
from phlox.export.arguments import Arguments, read, sizes_to_try
from phlox.export.arguments import output_names as names_of_outputs
from phlox.export.borders import BorderReport
from phlox.export.to_onnx import check, model_file
from phlox.export.to_onnx.graph import OPSETS, Graph, Interface
from phlox.export.to_onnx.passes import rename, run_passes
from phlox.export.to_onnx.report import OnnxReport
from phlox.export.to_onnx.trace import Results, UnfitSizes, difference, host_parameters, trace
from phlox.export.tracing import target_of, text_of, valid
from phlox.module import Module
from phlox.transform.summary.evaluate import place_of

DEFAULT_OPSET = 20


def onnx(
    model: Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    opset: int = DEFAULT_OPSET,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    external_data: bool | None = None,
    check_file: bool = True,
    tolerance: float | None = None,
    runtime: str | None = None,
) -> OnnxReport:
    """Write a model as an ONNX file, run the file, and report how far its results are from the model's.

    The model is exported in inference mode (`model.valid()`), with the element types of its backend. If an axis of an
    input has a name in place of a size, it is open: the file takes any size there. The file is run with onnxruntime or,
    if that is not installed or lacks an operator, with the reference evaluator of the `onnx` package.

    Args:
        model: any module; its deferred parameters are initialized.
        inputs: a `TensorSpec`, tensor or array for each argument of the model, in a list, or in a dict by name. The
            file is run with the values of tensors and arrays.
        path: the file; an old one is replaced once the new one is complete. Large weights go to `path` + ".data".
        opset: the version of the operator set, 18 to 25; from 23 on attention is one operator.
        input_names: the names of the inputs; by default those of the arguments.
        output_names: the names of the outputs; by default "output", or "output_0" and so on, or the keys and fields of
            the model's result.
        sizes: the sizes to trace and run with, for each open axis, if the model does not take every size.
        external_data: whether large weights go to a file of their own; by default if they have 64 MB or more.
        check_file: whether to run the file.
        tolerance: the largest difference, relative to the largest element of an output, that counts as rounding; by
            default 1e-4 for f32, 1e-6 for f64, 3e-2 for f16 and 2e-1 for bf16.
        runtime: "onnxruntime" or "onnx.reference".

    Raises `ExportError`, with the layer and the line, for a model that cannot be exported, and for a file that differs
    from the model; the file is then deleted.

    >>> import tempfile, phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 2)]).init(seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = px.export.onnx(model, [px.TensorSpec(("batch", 8))], f"{folder}/model.onnx")
    >>> report.operators
    {'Gemm': 2, 'Gelu': 1}
    >>> report.largest_difference < 1e-5
    True
    """
    started = time.perf_counter()
    package = model_file.onnx_package()
    target = target_of("export.onnx", path)
    _check_opset(opset, package)
    model = valid("export.onnx", model)
    arguments = read(model, inputs, input_names)
    device = _device(model, arguments)
    bounds = set[int]()
    with noting_bounds(bounds):
        graph, results, tried = _trace_twice(model, arguments, sizes, device, opset)
    run_passes(graph)
    paths = {path for path, _ in model.named_params()} if output_names is None else set[str]()
    names = _output_names(results, output_names, {entry.name for entry in arguments.inputs} | paths)
    _rename_outputs(graph, names)
    metadata = {"phlox.model": type(model).__name__}
    if (config := model_file.config_text(model)) is not None:
        metadata["phlox.config"] = config
    with tempfile.TemporaryDirectory(prefix=".phlox-", dir=target.parent) as folder:
        files = model_file.write(
            graph, Path(folder) / target.name, title=type(model).__name__, metadata=metadata, external=external_data
        )
        check.validate(files[0])
        ran, reference, differences, borders = "", "", [], BorderReport([], {}, [])
        if check_file:
            ran, reference, differences, borders = check.compare(
                files[0], model, arguments, names, tried, device, runtime=runtime, tolerance=tolerance,
                bounds=None if sizes else bounds,
            )  # fmt: skip
        written = _move(files, target)
    return OnnxReport(
        path=target, files=written, size=sum(file.stat().st_size for file in written), opset=opset,
        inputs=_texts(graph.inputs), outputs=_texts(graph.outputs), operators=_operators(graph), runtime=ran,
        reference=reference, differences=tuple(differences), seconds=time.perf_counter() - started,
        constraints=tuple(borders.constraints()), tried=tuple(borders.sizes), remarks=tuple(borders.remarks),
    )  # fmt: skip


def _device(model: Module, arguments: Arguments) -> Device:
    """The device of the model's parameters, or of the inputs if it has only statistics."""
    device = place_of(model, [entry.spec for entry in arguments.inputs], training=False)
    params = [param for param in model.params() if param.kind is Float]
    if not params or any(not param.full_precision for param in params):
        return device
    params_device = params[0].device
    return device if device.backend.full_precision() is params_device.backend else params_device


def _check_opset(opset: int, package: Any) -> None:
    least, most = OPSETS
    most = min(most, package.defs.onnx_opset_version())
    if not least <= opset <= most:
        raise ExportError(f"export.onnx: opset is from {least} to {most}, got {opset}")


def _trace_twice(
    model: Module, arguments: Arguments, sizes: Mapping[str, Sequence[int]] | None, device: Any, opset: int
) -> tuple[Graph, Results, list[dict[str, int]]]:
    """The graph, and sizes that the model takes. It traces twice: a difference shows that a size was fixed."""
    parameters = host_parameters(model)
    traces: list[tuple[Graph, Results]] = []
    tried: list[dict[str, int]] = []
    failed: Exception | None = None
    candidates = sizes_to_try(arguments, sizes)
    for trial in candidates:
        try:
            traced = trace(model, arguments, trial, device, opset, parameters)
        except UnfitSizes as error:
            failed = failed or error
            continue
        if not tried or all(trial[name] != tried[0][name] for name in trial):
            traces.append(traced)
            tried.append(trial)
        if len(traces) == 2:
            break
    if not traces:
        assert failed is not None
        if len(candidates) == 1:
            raise failed
        shown = " and ".join(", ".join(f"{name}={size}" for name, size in trial.items()) for trial in candidates[:2])
        raise ExportError(
            f"{failed} (all {len(candidates)} choices of sizes that were tried failed, such as {shown}; "
            f"sizes={{'{arguments.open_axes()[-1]}': (32, 64)}} gives others, and a size in place of a name closes an "
            "axis)"
        ) from failed
    if len(traces) == 2:
        fixed = difference(traces[0][0], traces[1][0])
        if fixed is not None:
            raise ExportError(
                f"export.onnx: {fixed}: the graph depends on the size of an open axis ({tried[0]} and {tried[1]} give "
                "different ones); a size must not become a number there, by int(...), a loop or a comparison. Give "
                "that axis a size in place of its name"
            )
    count = max([len(choices) for choices in (sizes or {}).values()], default=0)
    requested = [dict(candidate) for candidate in candidates[:count] if candidate not in tried]
    single = [dict.fromkeys(open_sizes, 1) for open_sizes in tried[:1] if open_sizes and not sizes]
    return *traces[0], [*tried, *requested, *single]


def _output_names(results: Results, requested: Sequence[str] | None, reserved: set[str]) -> list[str]:
    names = names_of_outputs([path for path, _ in results], requested)
    if requested is not None and reserved & set(names):
        raise ExportError(f"export.onnx: output_names {sorted(reserved & set(names))} are names of inputs too")
    while reserved & set(names):
        names = [f"new_{name}" if name in reserved else name for name in names]
    return names


def _rename_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Give the outputs their names; other values with these names are renamed."""
    new_names = {output.name: name for output, name in zip(graph.outputs, names, strict=True)}
    others = {name for node in graph.nodes for name in node.outputs} - new_names.keys()
    moved_aside = {name: graph.fresh(f"{name}_inside") for name in others & set(names)}
    rename(graph, {**new_names, **moved_aside})
    for name in set(names) & (graph.parameters.keys() | graph.constants.keys()):
        raise ExportError(f"export.onnx: output_names: {name!r} is the path of a parameter; choose another")


def _move(sources: Sequence[Path], target: Path) -> tuple[Path, ...]:
    """Move the files to their final paths, the weights first."""
    files: list[Path] = []
    for file in reversed(sources):
        path = target.with_name(file.name)
        file.replace(path)
        files.insert(0, path)
    return tuple(files)


def _texts(interfaces: Sequence[Interface]) -> dict[str, str]:
    return {interface.name: text_of(interface.shape, interface.element) for interface in interfaces}


def _operators(graph: Graph) -> dict[str, int]:
    counts: Counter[str] = Counter()

    def count(part: Graph) -> None:
        for node in part.nodes:
            counts[node.op] += 1
            for value in node.attributes.values():
                if isinstance(value, Graph):
                    count(value)

    count(graph)
    return dict(counts.most_common())
