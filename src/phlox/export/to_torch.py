"""`phlox.export.torch`: a model as a PyTorch program (.pt2), which PyTorch alone loads and runs."""

# PyTorch's type annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend.tracing.symbolic import noting_assumptions
from phlox.errors import ExportError, ExtraNotInstalledError, PhloxError
from phlox.export.comparison import case
from phlox.export.report import ExportReport
from phlox.export.tracing import Program, Traced, write
from phlox.module import Module

_CALL = "export.torch"
_ROUNDS = 4
_FIX = re.compile(r"^\s*(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", re.MULTILINE)
"""PyTorch's suggestion for an axis: `height = Dim('height', min=3)`."""


def torch(
    model: Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    check_file: bool = True,
    tolerance: float | None = None,
) -> ExportReport:
    """Write a model with its weights as a PyTorch program, run it, and report how far its results are off.

    The file is a `torch.export` program. PyTorch runs it without Phlox: `torch.export.load(path).module()(x)`, which
    returns a tensor, or a dict by name if there are several outputs. The program has only PyTorch's own operators, and
    its parameters have the paths of the Phlox model.

    Args:
        model: any module; its deferred parameters are initialized.
        inputs: a `TensorSpec`, tensor or array for each argument of the model, in a list, or in a dict by name.
        path: the file, with the suffix .pt2; an old one is replaced once the new one is complete.
        input_names: the names of the inputs; by default those of the arguments.
        output_names: the names of the outputs; by default "output", or "output_0" and so on, or the keys and fields of
            the model's result.
        sizes: the sizes to trace and run with, for each open axis, if the model does not take every size.
        check_file: whether to run the file.
        tolerance: as for `phlox.export.onnx`.

    Raises `ExportError`, with the layer and the line, for a model that cannot be exported, and for a file that differs
    from the model; the file is then deleted.

    >>> import tempfile, phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 2)]).init(seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = px.export.torch(model, [px.TensorSpec(("batch", 8))], f"{folder}/model.pt2")
    >>> report.inputs, report.largest_difference < 1e-5
    ({'x': 'f32 [batch, 8]'}, True)
    """
    pytorch = _torch()
    file = Path(path)
    if file.suffix != ".pt2":
        raise ExportError(f"{_CALL}: PyTorch wants the suffix .pt2; got {file.name}: use {file.stem}.pt2")

    def make(traced: Traced, candidates: Sequence[Mapping[str, int]]) -> Program:
        program, ranges = _exported(pytorch, traced, _example(traced, candidates))
        _check_operators(program.graph_module)
        return Program(
            partial(_save, pytorch, program), partial(_runner, pytorch, traced), _outputs(program, traced), ranges,
            "torch.export", (RuntimeError, AssertionError), borders=24, assumes=1,
        )  # fmt: skip

    return write(
        _CALL, "torch", make, model, inputs, path, input_names=input_names, output_names=output_names, sizes=sizes,
        check_file=check_file, tolerance=tolerance,
    )  # fmt: skip


def _torch() -> Any:
    try:
        import torch
        import torch.export as _  # noqa: F401
    except ImportError:
        raise ExtraNotInstalledError(f"{_CALL} needs PyTorch: install Phlox with the extra 'torch'") from None
    return torch


def _example(traced: Traced, candidates: Sequence[Mapping[str, int]]) -> tuple[dict[str, int], list[Any]]:
    """Sizes that the model takes, and inputs of these sizes. No size is 1, which PyTorch regards as broadcasting."""
    refused: list[Exception] = []
    for sizes in candidates:
        if 1 in sizes.values() and len(candidates) > 1:
            continue
        example = case(traced.model, traced.arguments, sizes, traced.device, refused)
        if example is not None:
            return dict(sizes), _tensors(traced, example[0])
    raise ExportError(
        f"{_CALL}: the model takes none of the sizes that were tried, such as {candidates[0]}; sizes=... gives others. "
        f"The first failed with: {refused[0] if refused else 'a size of 1 cannot be traced with'}"
    )


def _tensors(traced: Traced, values: Sequence[Any]) -> list[Any]:
    import torch

    elements = [traced.engine.element(entry.spec.kind) for entry in traced.arguments.inputs]
    return [torch.from_numpy(np.array(value)).to(element) for value, element in zip(values, elements, strict=True)]


def _save(pytorch: Any, program: Any, file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytorch.export.save(program, file)


def _program(pytorch: Any, traced: Traced) -> Any:
    """The model as a PyTorch module, whose parameters have our paths."""
    root = pytorch.nn.Module()
    names: dict[str, tuple[Any, str]] = {}
    for path, array in traced.parameters().items():
        owner = root
        *parts, last = re.findall(r"\w+", path)
        for part in parts:
            if not hasattr(owner, part):
                owner.add_module(part, pytorch.nn.Module())
            owner = getattr(owner, part)
        array = array.detach()
        if array.is_floating_point():
            owner.register_parameter(last, pytorch.nn.Parameter(array, requires_grad=False))
        else:
            owner.register_buffer(last, array)
        names[path] = owner, last

    class Program(pytorch.nn.Module):
        def forward(self, *arrays: Any) -> Any:
            with noting_assumptions() as assumed:
                outputs = traced(arrays, {path: getattr(*owner_and_name) for path, owner_and_name in names.items()})
            for left, right in assumed:
                pytorch._check(left >= right)
            return outputs[0] if len(outputs) == 1 else dict(zip(traced.outputs, outputs, strict=True))

    root.__class__ = Program
    return root


def _exported(pytorch: Any, traced: Traced, example: tuple[dict[str, int], list[Any]]) -> tuple[Any, list[str]]:
    """The program, and the ranges that its open axes are restricted to."""
    inputs = traced.arguments.inputs
    limits: dict[str, dict[str, int]] = {name: {} for name in traced.arguments.open_axes()}
    root = _program(pytorch, traced)
    for _ in range(_ROUNDS):
        dims = {name: pytorch.export.Dim(name, **limit) for name, limit in limits.items()}
        shapes = tuple({axis: dims[name] for axis, name in entry.spec.open_axes.items()} or None for entry in inputs)
        try:
            with warnings.catch_warnings(), pytorch.no_grad(), cast(Any, traced.engine).sizes_stay_open():
                warnings.simplefilter("ignore")
                program = pytorch.export.export(
                    root, tuple(example[1]), dynamic_shapes=(shapes,), prefer_deferred_runtime_asserts_over_guards=True
                )
        except ExportError:
            raise
        except PhloxError as error:
            raise traced.refuse(_CALL, error) from error
        except Exception as error:
            suggested = {
                name: {key: int(value) for key, value in (("min", low), ("max", high)) if value}
                for name, low, high in _FIX.findall(str(error))
                if name in limits
            }
            if not any(limits[name] != {**limits[name], **limit} for name, limit in suggested.items()):
                raise _refused(traced, error, list(limits)) from error
            for name, limit in suggested.items():
                limits[name].update(limit)
        else:
            return program, [
                f"{name} {sign} {limit[key]}"
                for name, limit in limits.items()
                for key, sign in (("min", ">="), ("max", "<="))
                if key in limit
            ]
    raise ExportError(f"{_CALL}: the ranges of the open axes do not converge: {limits}")


def _refused(traced: Traced, error: Exception, names: Sequence[str]) -> ExportError:
    """The error for a model that PyTorch does not export; it names an axis that the trace has fixed."""
    text = str(error)
    fixed = [name for name in names if re.search(rf"^\s*{name} = ", text, re.MULTILINE)]
    if not fixed:
        return traced.refuse(_CALL, error)
    return ExportError(
        f"{_CALL}: the program depends on the sizes of {', '.join(fixed)}, so no single program is right for all; "
        f"give such an axis a size in place of its name. PyTorch says: {' '.join(text.split())[:400]}"
    )


def _check_operators(graph: Any) -> None:
    """Raise `ExportError` if the program has an operator of Phlox, which would not exist without Phlox."""
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if str(node.target).startswith("phlox."):
                raise ExportError(f"{_CALL}: the program has {node.target}, which is not one of PyTorch's operators")


_SHORT = {f"torch.{name}": short for short, name in
          [("f32", "float32"), ("f64", "float64"), ("f16", "float16"), ("bf16", "bfloat16"), ("i32", "int32"),
           ("i64", "int64"), ("bool", "bool")]}  # fmt: skip


def _outputs(program: Any, traced: Traced) -> list[tuple[Sequence[Any], str]]:
    (node,) = program.graph.find_nodes(op="output")
    values = [x.meta["val"] for x in node.args[0]]
    named: dict[str, str] = {}
    placeholders = [x.meta["val"] for x in program.graph.find_nodes(op="placeholder")][-len(traced.arguments.inputs) :]
    for entry, value in zip(traced.arguments.inputs, placeholders, strict=True):
        named |= {str(value.shape[axis]): name for axis, name in entry.spec.open_axes.items()}
    return [
        (
            [re.sub(r"\bs\d+\b", lambda at: named.get(at[0], at[0]), str(size)) for size in value.shape],
            _SHORT[str(value.dtype)],
        )
        for value in values[-len(traced.outputs) :]
    ]


def _runner(pytorch: Any, traced: Traced, file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = pytorch.export.load(file).module()

    def run(values: Sequence[Any]) -> list[Any]:
        with pytorch.no_grad():
            result = program(*_tensors(traced, values))
        outputs = [result[name] for name in traced.outputs] if isinstance(result, dict) else [result]
        return [x.float().numpy() if x.dtype == pytorch.bfloat16 else x.numpy() for x in outputs]

    return run
