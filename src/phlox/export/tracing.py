"""Tracing a model with an engine's exporter, then writing, running and comparing the program.

While the model runs, its parameters have other values, and the name of the running layer is known.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from phlox import random
from phlox.backend import Backend, Device, backend_by_name, default_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.slices import noting_bounds
from phlox.errors import ExportError
from phlox.export.arguments import Arguments, output_names, read, sizes_to_try
from phlox.export.borders import BorderReport, at_borders, sizes_at_borders
from phlox.export.comparison import Limit, case, differences, limit_of, outputs_of, reference_model
from phlox.export.lines import line_of_error
from phlox.export.report import Difference, ExportReport
from phlox.module import Module
from phlox.module.calls import observed, with_function_layers
from phlox.module.param import restoring_params
from phlox.random import Stream
from phlox.tensor import Tensor
from phlox.transform.summary.evaluate import place_of, with_values
from phlox.transform.tree import AnyTensor, leaves_of

Values = list[Any]


@contextmanager
def of_call(name: str) -> Generator[None]:
    """A scope in which errors of the shared export code begin with the name of this call."""
    try:
        yield
    except ExportError as error:
        raise ExportError(str(error).replace("export.onnx", name, 1)).with_traceback(error.__traceback__) from error


def engine_for(model: Module, device: Device, name: str) -> Device:
    """The default device of the engine `name`, at the precision of the model."""
    engine = engine_of(device.backend)
    if engine.name == name:
        return device.on(engine)
    return type(cast(Any, backend_by_name(name)))(float=engine.float_element).device()


@contextmanager
def undisturbed(device: Device) -> Generator[None]:
    """A scope that does not change random streams or parameters."""
    with default_device(device), random.stream(Stream((0, 0))), restoring_params():
        yield


class Traced:
    """A model on an engine, for that engine's exporter to call.

    Attributes:
        outputs: the names of its outputs, once it was called.
        bounds: the positions at which it cuts open axes.
        path: the layer that is being called.
    """

    def __init__(self, model: Module, arguments: Arguments, device: Device, names: Sequence[str] | None) -> None:
        self.original, self.model = model, model.to_device(device)
        self.arguments, self.device, self._names = arguments, device, names
        self.engine: Backend = engine_of(device.backend)
        self.outputs: list[str] = []
        self.paths: list[str] = []
        self.bounds = set[int]()

    def parameters(self) -> dict[str, Any]:
        """The engine's arrays by path; a shared parameter appears once."""
        return {path: self.engine_array(param.val()) for path, param in self.model.structure().named()}

    @staticmethod
    def engine_array(tensor: AnyTensor) -> Any:
        """The engine's own array of a tensor."""
        return tensor.backend.strip(tensor.primitive)

    def __call__(self, arrays: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The model's outputs as arrays of the engine, for arrays in the order of its inputs."""
        remaining = iter(arrays)
        args, kwargs = self.arguments.filled(lambda x: Tensor.from_primitive(next(remaining), self.engine, x.spec.kind))
        model = with_function_layers(self.model if parameters is None else self._with(parameters))
        self.paths.clear()
        with (
            undisturbed(self.device),
            noting_bounds(self.bounds),
            observed(model, lambda call: self.paths.pop(), on_enter=lambda call: self.paths.append(call.path)),
        ):
            result = cast("Callable[..., Any]", model)(*args, **kwargs)
        tensors = list(leaves_of(result, Tensor))
        if not tensors:
            raise ExportError(
                f"export.onnx: {type(self.model).__name__} returned no tensor, but {type(result).__name__}"
            )
        self.outputs = output_names([path for path, _ in tensors], self._names)
        return [self.engine_array(x) for _, x in tensors]

    def _with(self, parameters: Mapping[str, Any]) -> Module:
        return with_values(self.model, lambda path, param: (parameters[path], engine_of(param.backend)))

    def refuse(self, call: str, error: BaseException) -> ExportError:
        """The error for a model that the engine does not export, with the layer and the line."""
        line = line_of_error(error)
        layer = f"layer `{self.paths[-1]}`" if self.paths and self.paths[-1] else "the model"
        text = " ".join(str(error).split())
        cause = error.__cause__
        while cause is not None:  # the engine's own error is more specific
            text, cause = f"{type(cause).__name__}: {' '.join(str(cause).split())}", cause.__cause__
        return ExportError(
            f"{call}: {layer}{f' ({line})' if line else ''}: {text[:400]}. If an open axis is the cause, give it a "
            "size in place of its name"
        )


Run: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""The outputs of a file for values of its inputs."""


class Program(NamedTuple):
    """A program made by an engine's exporter."""

    save: Callable[[Path], object]
    load: Callable[[Path], Run]
    outputs: list[tuple[Sequence[Any], str]]
    """Shape and element type of each."""
    constraints: list[str]
    runtime: str
    """The name of the runtime for the file."""
    refuses: tuple[type[Exception], ...]
    """The exceptions that it raises for sizes that the file does not take."""
    borders: int
    """The number of sizes at borders with which the file is run."""
    least: int = 0
    """The smallest size that an axis may have."""
    assumes: int = 0
    """The exporter assumes that no axis is smaller; a wrong result at a smaller size is only a remark in the report."""


def write(
    call: str,
    engine: str,
    make: Callable[[Traced, Sequence[Mapping[str, int]]], Program],
    model: Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    sizes: Mapping[str, Sequence[int]] | None,
    check_file: bool,
    tolerance: float | None,
) -> ExportReport:
    """Trace the model on an engine, write the program of `make`, and run the file; error messages begin with `call`."""
    started = time.perf_counter()
    target = target_of(call, path)
    model = valid(call, model)
    with of_call(call):
        arguments = read(model, inputs, input_names)
        candidates = candidates_of(arguments, sizes)
        device = place_of(model, [entry.spec for entry in arguments.inputs], training=False)
        traced = Traced(model, arguments, engine_for(model, device, engine), output_names)
        program = make(traced, candidates)
        with tempfile.TemporaryDirectory(prefix=".phlox-", dir=target.parent) as folder:
            temporary = Path(folder) / target.name
            try:
                program.save(temporary)
            except Exception as error:
                raise traced.refuse(call, error) from error
            reference, compared, borders = "", [], BorderReport([], {}, [])
            if check_file:
                limit = limit_of(traced.engine.float_element, tolerance)
                reference, compared, borders = _compare_file(
                    call, traced, device, candidates, program, temporary, limit, bounds=not sizes
                )
            temporary.replace(target)
    return ExportReport(
        path=target, size=target.stat().st_size,
        inputs=_inputs_of(traced),
        outputs={name: text_of(*output) for name, output in zip(traced.outputs, program.outputs, strict=True)},
        runtime=program.runtime if check_file else "", reference=reference, differences=tuple(compared),
        seconds=time.perf_counter() - started, tried=tuple(borders.sizes), remarks=tuple(borders.remarks),
        constraints=tuple(dict.fromkeys([*program.constraints, *borders.constraints()])),
    )  # fmt: skip


_MOST_RUNS = 3


def _compare_file(
    call: str,
    traced: Traced,
    device: Device,
    candidates: Sequence[Mapping[str, int]],
    program: Program,
    file: Path,
    limit: Limit,
    *,
    bounds: bool,
) -> tuple[str, list[Difference], BorderReport]:
    """The name of the reference, the differences at some sizes that model and file take, and the runs at borders."""
    twin, twin_device = reference_model(traced.original, device)
    run = program.load(file)
    compared: list[Difference] = []
    refused: list[Exception] = []
    base: Mapping[str, int] | None = None
    ran = 0
    for sizes in candidates:
        values_and_outputs = case(twin, traced.arguments, sizes, twin_device, refused)
        if values_and_outputs is None:
            continue
        values, expected = values_and_outputs
        try:
            results = run(values)
        except program.refuses as error:
            refused.append(error)
            continue
        except Exception as error:
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ExportError(f"{call}: {program.runtime} cannot run the file{at and f' at {at}'}: {error}") from error

        def own_outputs(values: Sequence[Any] = values) -> list[Any]:
            return outputs_of(traced.original, traced.arguments, values, device)

        compared += differences(call, sizes, traced.outputs, expected, results, limit, own_outputs)
        ran, base = ran + 1, base or sizes
        if ran == _MOST_RUNS:
            break
    if base is None:
        raise ExportError(f"{call}: no sizes were found that model and file take; the first failed with: {refused[0]}")
    border_sizes = sizes_at_borders([*base], base, traced.bounds) if bounds else []
    border_sizes = [chosen for chosen in border_sizes if min(chosen.values()) >= program.least]
    models = twin, twin_device, traced.original, device
    borders = at_borders(
        call, models, traced.arguments, traced.outputs, border_sizes, base, run, limit, program.borders, program.assumes
    )
    return f"the model on {twin_device.backend!r}", compared, borders


def candidates_of(arguments: Arguments, requested: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Sizes to try: two choices, then a size of one for all axes, then others that may fit."""
    candidates = sizes_to_try(arguments, requested)
    single = [dict.fromkeys(candidates[0], 1)] if candidates[0] and not requested else []
    return [*candidates[:2], *single, *candidates[2:]]


def valid(call: str, model: object) -> Module:
    """The model in inference mode; `ExportError` for anything else."""
    if not isinstance(model, Module):
        raise ExportError(f"{call}: the model must be a phlox.Module, got {type(model).__name__}")
    return model.valid()


def target_of(call: str, path: str | os.PathLike[str]) -> Path:
    """The file to write; `ExportError` if it is a folder, or its folder does not exist."""
    target = Path(path)
    if target.is_dir():
        raise ExportError(f"{call}: {target} is a folder; give the path of a file")
    if not target.absolute().parent.is_dir():
        raise ExportError(f"{call}: there is no folder {target.absolute().parent}; make it first")
    return target


def text_of(shape: Sequence[Any], element: str) -> str:
    """An input or an output in a report: `f32 [batch, 8]`."""
    return f"{element} [{', '.join(map(str, shape))}]"


def _inputs_of(traced: Traced) -> dict[str, str]:
    """The text of each input in a report, by name."""
    engine = traced.engine
    elements = {"float": engine.float_element, "int": engine.int_element, "bool": "bool"}
    return {entry.name: text_of(entry.spec.shape, elements[entry.spec.kind.name]) for entry in traced.arguments.inputs}
