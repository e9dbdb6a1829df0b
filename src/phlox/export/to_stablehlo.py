"""`phlox.export.stablehlo`: a model as a program that JAX alone loads and runs."""

# JAX's type annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend.tracing.symbolic import noting_assumptions
from phlox.errors import ExportError, ExtraNotInstalledError
from phlox.export.arguments import Arguments
from phlox.export.report import ExportReport
from phlox.export.tracing import Program, Traced, write
from phlox.module import Module

_CALL = "export.stablehlo"
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_ROUNDS = 4


def stablehlo(
    model: Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    platforms: Sequence[str] = ("cpu",),
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    check_file: bool = True,
    tolerance: float | None = None,
) -> ExportReport:
    """Write a model with its weights as a StableHLO program, run it, and report how far its results are off.

    The file is a serialized `jax.export` program. JAX runs it without Phlox:
    `jax.export.deserialize(open(path, "rb").read()).call(x)`. It takes the inputs in order, and returns an array, or a
    dict by name if there are several outputs. Conditions on open axes that follow from the model's own shape checks are
    part of the program, which refuses other sizes; the report lists them.

    Args:
        model: any module; its deferred parameters are initialized.
        inputs: a `TensorSpec`, tensor or array for each argument of the model, in a list, or in a dict by name.
        path: the file; an old one is replaced once the new one is complete.
        platforms: the platforms of the program, one or more of "cpu", "cuda", "rocm", "tpu".
        input_names: the names of the inputs; by default those of the arguments.
        output_names: the names of the outputs; by default "output", or "output_0" and so on, or the keys and fields of
            the model's result.
        sizes: the sizes to run with, for each open axis, if the model does not take every size.
        check_file: whether to run the file, which needs one of the platforms here.
        tolerance: as for `phlox.export.onnx`.

    Raises `ExportError`, with the layer and the line, for a model that cannot be exported, and for a file that differs
    from the model; the file is then deleted.

    >>> import tempfile, phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 2)]).init(seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = px.export.stablehlo(model, [px.TensorSpec(("batch", 8))], f"{folder}/model.stablehlo")
    >>> report.inputs, report.largest_difference < 1e-5
    ({'x': 'f32 [batch, 8]'}, True)
    """
    jax = _jax()
    if isinstance(platforms, str) or not platforms or not set(platforms) <= set(_PLATFORMS):
        raise ExportError(f"{_CALL}: platforms are some of {', '.join(_PLATFORMS)}, in a list, got {platforms!r}")

    def make(traced: Traced, candidates: Sequence[Mapping[str, int]]) -> Program:
        platform = _device(jax, platforms) if check_file else ""
        with _width(jax, traced):
            exported, constraints = _exported(jax, traced, list(platforms))
            data = bytes(exported.serialize())
        avals = _in_order(exported, traced)
        return Program(
            partial(_save, data), partial(_runner, jax, traced, platform),
            [(aval.shape, _SHORT.get(str(aval.dtype), str(aval.dtype))) for aval in avals],
            constraints, f"jax.export on {platform}", (ValueError,), borders=3, least=1,
        )  # fmt: skip

    return write(
        _CALL, "jax", make, model, inputs, path, input_names=input_names, output_names=output_names, sizes=sizes,
        check_file=check_file, tolerance=tolerance,
    )  # fmt: skip


def _width(jax: Any, traced: Traced) -> AbstractContextManager[Any]:
    """A scope in which JAX has elements of 64 bits, if the model has them."""
    engine = traced.engine
    return jax.enable_x64(True) if "f64" in engine.float_element or "i64" in engine.int_element else nullcontext()


_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64"}


def _jax() -> Any:
    try:
        import jax
        import jax.export as _  # noqa: F401
    except ImportError:
        raise ExtraNotInstalledError(f"{_CALL} needs JAX: install Phlox with the extra 'jax'") from None
    if find_spec("flatbuffers") is None:  # JAX writes programs with it, but does not require it
        raise ExtraNotInstalledError(f"{_CALL} needs flatbuffers: install Phlox with the extra 'jax'")
    return jax


def _exported(jax: Any, traced: Traced, platforms: list[str]) -> tuple[Any, list[str]]:
    """The program, and its conditions on open axes; the model is traced again until no further condition is needed."""
    names = traced.arguments.open_axes()
    constraints: list[str] = []
    for _ in range(_ROUNDS):
        specs = _specs(jax, traced.arguments, traced, names, constraints)

        def program(*arrays: Any) -> Any:
            outputs = traced(arrays)
            return outputs[0] if len(outputs) == 1 else dict(zip(traced.outputs, outputs, strict=True))

        assumed: list[tuple[Any, Any]] = []
        try:
            with noting_assumptions() as assumed:
                exported = jax.export.export(jax.jit(program), platforms=platforms)(*specs)
        except ExportError:
            raise
        except Exception as error:
            further = _constraints(assumed, constraints)
            if not further:
                raise traced.refuse(_CALL, error) from error
        else:
            further = _constraints(assumed, constraints)
            if not further:
                return exported, constraints
        constraints += further
    raise ExportError(f"{_CALL}: the conditions {', '.join(constraints)} do not determine the open axes")


def _constraints(assumed: Sequence[tuple[Any, Any]], constraints: Sequence[str]) -> list[str]:
    conditions = dict.fromkeys(f"{left} >= {right}" for left, right in assumed)
    return [condition for condition in conditions if condition not in constraints]


def _specs(jax: Any, arguments: Arguments, traced: Traced, names: list[str], constraints: list[str]) -> list[Any]:
    scope = jax.export.SymbolicScope(constraints)
    open_sizes = (
        dict(zip(names, jax.export.symbolic_shape(", ".join(names), scope=scope), strict=True)) if names else {}
    )
    shapes = [tuple([open_sizes.get(cast(Any, size), size) for size in entry.spec.shape]) for entry in arguments.inputs]
    elements = [traced.engine.element(entry.spec.kind) for entry in arguments.inputs]
    return [jax.ShapeDtypeStruct(*spec) for spec in zip(shapes, elements, strict=True)]


def _in_order(exported: Any, traced: Traced) -> list[Any]:
    """The shapes of the outputs; a dict's are in the order of its keys."""
    order = sorted(range(len(traced.outputs)), key=lambda index: traced.outputs[index])
    avals = [None] * len(order)
    for index, aval in zip(order, exported.out_avals, strict=True):
        avals[index] = aval
    return avals


def _device(jax: Any, platforms: Sequence[str]) -> str:
    """The first platform that has a device on this machine."""
    for platform in platforms:
        try:
            if jax.devices("gpu" if platform in ("cuda", "rocm") else platform):
                return platform
        except RuntimeError:
            continue
    raise ExportError(
        f"{_CALL}: there is no device of {', '.join(platforms)} here, so the file cannot be run; add 'cpu' to "
        "platforms, or leave it unchecked with check_file=False"
    )


def _save(data: bytes, file: Path) -> None:
    file.write_bytes(data)


def _runner(jax: Any, traced: Traced, platform: str, file: Path) -> Any:
    program = jax.export.deserialize(bytearray(file.read_bytes()))
    device = jax.devices("gpu" if platform in ("cuda", "rocm") else platform)[0]

    def run(values: Sequence[Any]) -> list[Any]:
        with _width(jax, traced):
            arrays = [
                jax.device_put(np.asarray(value).astype(traced.engine.element(entry.spec.kind)), device)
                for value, entry in zip(values, traced.arguments.inputs, strict=True)
            ]
            result = program.call(*arrays)
        outputs = [result[name] for name in traced.outputs] if isinstance(result, dict) else [result]
        return [np.asarray(x) for x in outputs]

    return run
