"""An ONNX file beside a model: what its nodes give, under the paths of the layers that they are named by."""

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
    """An ONNX model run on the same inputs, by `onnxruntime` where it is installed, else by the `onnx` package.

    A node belongs to a layer if its name begins with the layer's path (`layers.0/Gemm`), with the path of a PyTorch
    module of the same structure (`/0/Gemm`), or with the name that is given; the last of them gives what the layer
    gives. A name may be that of a tensor too.
    """
    onnx = _onnx()
    proto, label = _loaded(onnx, file)
    feeds = _feeds(onnx, proto, label, args, kwargs)
    view = with_function_layers(model)
    layers = dict(named_modules(view))
    theirs: Mapping[str, str] = load("phlox.interop.pytorch.layers:module_paths")(view)
    wanted = _outputs(proto, layers, names, label, theirs, cache(lambda: _counts(view, args, kwargs)))
    values = _run(onnx, proto, feeds, list(dict.fromkeys(name for _, name in wanted)), label)
    found = Recording(label)
    for path, name in wanted:
        if values[name].dtype.kind == "f" or values[name].dtype.name == "bfloat16":
            found.add(path, layer_name(layers[path]), [values[name]])
    return found


def _counts(view: Module, args: Any, kwargs: Any) -> Counter[str]:
    """How often each layer is called."""
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
            "compare: an ONNX file needs the package onnx; install it with: pip install 'phlox[onnx]'"
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
        raise ModuleError(f"compare: {path}: this is no ONNX file that can be read ({error})") from error


def _feeds(onnx: Any, proto: Any, label: str, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Host]:
    held = {one.name for one in proto.graph.initializer}
    wanted = [one for one in proto.graph.input if one.name not in held]
    given = [x for _, x in leaves_of(args, (Tensor, np.ndarray))]
    named: dict[str, Any] = {name: x for name, x in kwargs.items() if isinstance(x, (Tensor, np.ndarray))}
    known = [one.name for one in wanted]
    if wrong := [name for name in named if name not in known]:
        raise ModuleError(f"compare: {label} has no input {wrong[0]!r}; it has {', '.join(known)}")
    rest = [name for name in known if name not in named]
    if len(rest) != len(given):
        raise ModuleError(
            f"compare: {label} takes {len(known)} inputs ({', '.join(known)}), and {len(given) + len(named)} are given"
        )
    values: dict[str, Any] = {**dict(zip(rest, given, strict=True)), **named}
    found: dict[str, Host] = {}
    for one in wanted:
        x = values[one.name]
        array = np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        found[one.name] = array.astype(dtype)
    return found


def _outputs(
    proto: Any,
    layers: Mapping[str, Module],
    names: Mapping[str, str],
    label: str,
    theirs: Mapping[str, str],
    counts: Callable[[], Counter[str]],
) -> list[tuple[str, str]]:
    """The tensors that layers give, call by call, in the order in which they are computed."""
    nodes: list[tuple[str, str]] = [(_plain(node.name), node.output[0]) for node in proto.graph.node]
    tensors = {name for node in proto.graph.node for name in node.output if name}
    for ours in names:
        if ours not in layers:
            near = nearest(ours, [one for one in layers if one])
            raise ModuleError(
                f"compare: names: the model has no layer {ours!r}{f'; did you mean {near!r}?' if near else ''}"
            )
    places = {name: n for n, node in enumerate(proto.graph.node) for name in node.output}
    found: list[tuple[str, str]] = []
    for path in layers:
        if path in names:
            given = names[path]
            outputs = [given] if given in tensors else _last(nodes, [_plain(given)])
            if not outputs:
                near = nearest(given, [*tensors, *(name for name, _ in nodes)])
                raise ModuleError(
                    f"compare: names: {label} has no node or tensor {given!r}"
                    f"{f'; did you mean {near!r}?' if near else ''}"
                )
        elif not path:
            outputs = [proto.graph.output[0].name]
        else:
            outputs = _last(nodes, [path, *([theirs[path]] if theirs.get(path) else [])])
        if len(outputs) > 1 and len(outputs) != (calls := counts()[path]):
            outputs = outputs[-1:] if calls == 1 else []  # nodes of others stand between those of one call
        found += [(path, output) for output in outputs]
    return sorted(found, key=lambda pair: places.get(pair[1], len(places)))


def _plain(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _last(nodes: Sequence[tuple[str, str]], prefixes: Sequence[str]) -> list[str]:
    """What the last of the nodes gives whose names begin with one of these paths; of each sequence of such nodes."""
    for prefix in prefixes:
        inside = [name == prefix or name.startswith(f"{prefix}.") for name, _ in nodes]
        ends = [n for n, mine in enumerate(inside) if mine and not (n + 1 < len(inside) and inside[n + 1])]
        if ends:
            return [nodes[n][1] for n in ends]
    return []


def _run(onnx: Any, proto: Any, feeds: dict[str, Host], wanted: list[str], label: str) -> dict[str, Host]:
    known = {one.name for one in proto.graph.output}
    proto.graph.output.extend([onnx.ValueInfoProto(name=name) for name in wanted if name not in known])
    try:
        return dict(zip(wanted, _results(onnx, proto, feeds, wanted), strict=True))
    except Exception as error:
        raise ModuleError(f"compare: {label} cannot be run on these inputs: {error}") from error


def _results(onnx: Any, proto: Any, feeds: dict[str, Host], wanted: list[str]) -> list[Host]:
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return cast("Any", ReferenceEvaluator(proto)).run(wanted, feeds)
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    # As the file says it: nodes that are fused have no result of their own.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(wanted, feeds)
