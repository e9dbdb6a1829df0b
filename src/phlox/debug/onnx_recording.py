"""Runs an ONNX file, and records the outputs of its nodes under the paths of the layers that they belong to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend.registry import load
from phlox.debug.recordings import Host, Recording
from phlox.debug.running import inputs_on, undisturbed
from phlox.errors import ExtraNotInstalledError, ModuleError
from phlox.module import Module
from phlox.module.calls import layer_name, named_modules, observed, with_function_layers
from phlox.record.names import nearest
from phlox.tensor import Tensor
from phlox.transform.tree import leaves_of


def recorded_in_onnx(
    model: Module, file: Any, args: Any, kwargs: Mapping[str, Any], names: Mapping[str, str]
) -> Recording:
    """Run an ONNX model on the same inputs, by `onnxruntime` if it is installed, otherwise by the `onnx` package.

    A node belongs to a layer if its name begins with the layer's path (`layers.0/Gemm`), with the path of a PyTorch
    module of the same structure (`/0/Gemm`), or with its name in `names`; the output of the last such node is the
    layer's output. `names` may have the name of a tensor, too.
    """
    onnx = _onnx()
    proto, label = _loaded(onnx, file)
    feeds = _feeds(onnx, proto, label, args, kwargs)
    view = with_function_layers(model)
    layers = dict(named_modules(view))
    torch_paths: Mapping[str, str] = load("phlox.interop.pytorch.layers:module_paths")(view)
    tensors = _outputs(proto, layers, names, label, torch_paths, cache(lambda: _counts(view, args, kwargs)))
    values = _run(onnx, proto, feeds, list(dict.fromkeys(name for _, name in tensors)), label)
    recording = Recording(label)
    for path, name in tensors:
        if values[name].dtype.kind == "f" or values[name].dtype.name == "bfloat16":
            recording.add(path, layer_name(layers[path]), [values[name]])
    return recording


def _counts(view: Module, args: Any, kwargs: Any) -> Counter[str]:
    """The number of calls of each layer."""
    counts = Counter[str]()
    args, kwargs = inputs_on(view, (args, kwargs))
    with undisturbed(), observed(view, lambda call: counts.update([call.path])):
        cast("Callable[..., Any]", view)(*args, **kwargs)
    return counts


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ExtraNotInstalledError(
            "compare: an ONNX file needs the package onnx; install Phlox with the extra 'onnx'"
        ) from error
    return cast("Any", onnx)


def _loaded(onnx: Any, file: Any) -> tuple[Any, str]:
    if not isinstance(file, (str, os.PathLike)):
        copied = onnx.ModelProto()
        copied.CopyFrom(file)
        return copied, "ONNX model"
    path = Path(cast("Any", file))
    if not path.is_file():
        raise ModuleError(f"compare: {path}: there is no such file; give an engine, a PyTorch module or an ONNX file")
    try:
        return onnx.load(str(path)), path.name
    except Exception as error:
        raise ModuleError(f"compare: {path}: this is not a readable ONNX file ({error})") from error


def _feeds(onnx: Any, proto: Any, label: str, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Host]:
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialized]
    arrays = [x for _, x in leaves_of(args, (Tensor, np.ndarray))]
    named: dict[str, Any] = {name: x for name, x in kwargs.items() if isinstance(x, (Tensor, np.ndarray))}
    names = [value.name for value in inputs]
    if wrong := [name for name in named if name not in names]:
        raise ModuleError(f"compare: {label} has no input {wrong[0]!r}; it has {', '.join(names)}")
    remaining = [name for name in names if name not in named]
    if len(remaining) != len(arrays):
        raise ModuleError(
            f"compare: {label} takes {len(names)} inputs ({', '.join(names)}), and {len(arrays) + len(named)} are given"
        )
    values: dict[str, Any] = {**dict(zip(remaining, arrays, strict=True)), **named}
    feeds: dict[str, Host] = {}
    for value in inputs:
        x = values[value.name]
        array = np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = array.astype(dtype)
    return feeds


def _outputs(
    proto: Any,
    layers: Mapping[str, Module],
    names: Mapping[str, str],
    label: str,
    torch_paths: Mapping[str, str],
    counts: Callable[[], Counter[str]],
) -> list[tuple[str, str]]:
    """Pairs of a layer and the name of its output, for each call, in the order of the nodes."""
    nodes: list[tuple[str, str]] = [(_plain(node.name), node.output[0]) for node in proto.graph.node]
    tensors = {name for node in proto.graph.node for name in node.output if name}
    for layer in names:
        if layer not in layers:
            near = nearest(layer, [layer for layer in layers if layer])
            raise ModuleError(
                f"compare: names: the model has no layer {layer!r}{f'; did you mean {near!r}?' if near else ''}"
            )
    positions = {name: n for n, node in enumerate(proto.graph.node) for name in node.output}
    outputs_of_layers: list[tuple[str, str]] = []
    for path in layers:
        if path in names:
            name = names[path]
            outputs = [name] if name in tensors else _last(nodes, [_plain(name)])
            if not outputs:
                near = nearest(name, [*tensors, *(node_name for node_name, _ in nodes)])
                raise ModuleError(
                    f"compare: names: {label} has no node or tensor {name!r}"
                    f"{f'; did you mean {near!r}?' if near else ''}"
                )
        elif not path:
            outputs = [proto.graph.output[0].name]
        else:
            outputs = _last(nodes, [path, *([torch_paths[path]] if torch_paths.get(path) else [])])
        if len(outputs) > 1 and len(outputs) != (calls := counts()[path]):
            outputs = outputs[-1:] if calls == 1 else []  # nodes of other layers are between those of one call
        outputs_of_layers += [(path, output) for output in outputs]
    return sorted(outputs_of_layers, key=lambda pair: positions.get(pair[1], len(positions)))


def _plain(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _last(nodes: Sequence[tuple[str, str]], prefixes: Sequence[str]) -> list[str]:
    """The output of the last node in each sequence of nodes whose names begin with the first path that matches."""
    for prefix in prefixes:
        inside = [name == prefix or name.startswith(f"{prefix}.") for name, _ in nodes]
        ends = [n for n, is_inside in enumerate(inside) if is_inside and not (n + 1 < len(inside) and inside[n + 1])]
        if ends:
            return [nodes[n][1] for n in ends]
    return []


def _run(onnx: Any, proto: Any, feeds: dict[str, Host], names: list[str], label: str) -> dict[str, Host]:
    outputs = {value.name for value in proto.graph.output}
    proto.graph.output.extend([onnx.ValueInfoProto(name=name) for name in names if name not in outputs])
    try:
        return dict(zip(names, _results(onnx, proto, feeds, names), strict=True))
    except Exception as error:
        raise ModuleError(f"compare: {label} cannot be run on these inputs: {error}") from error


def _results(onnx: Any, proto: Any, feeds: dict[str, Host], names: list[str]) -> list[Host]:
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return cast("Any", ReferenceEvaluator(proto)).run(names, feeds)
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    # Without optimization: fused nodes have no results of their own.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(names, feeds)
