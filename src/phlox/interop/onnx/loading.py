"""`load`: an ONNX file as a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phlox.backend import DeviceLike, as_device
from phlox.errors import PhloxError, RecordError
from phlox.interop.onnx.bind import Binder
from phlox.interop.onnx.elements import known_to_numpy
from phlox.interop.onnx.graph import MAX_ITERATIONS
from phlox.interop.onnx.module import OnnxModule, Program, value_of
from phlox.interop.onnx.operators import import_all
from phlox.interop.onnx.reading import Tensors, onnx, read_model
from phlox.module import Param
from phlox.record.formats.reader import PathLike, Readable
from phlox.record.patterns import Patterns, selected
from phlox.tensor import tensor


def load(
    path: PathLike | Readable | Any,
    *,
    device: DeviceLike | None = None,
    trained: bool | Patterns | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> OnnxModule:
    """Load an ONNX file as a module, which runs on any engine, and can be trained, compiled and saved like any other.

    Float initializers that are weights become parameters, under their names. If an exporter made a name up, the
    parameter is named after the node that uses it, such as `layers.0.MatMul.weight`. Statistics of batch norms and
    large tables of integers are parameters that are not trained; options, scalars and indices are constants of the
    graph.

    Args:
        path: the path of the file, with its external data beside it; or its bytes, an open binary file, or a
            `ModelProto`.
        device: the device of the parameters; by default the default device.
        trained: the parameters to train: by default all weights; none for False; or patterns of paths.
        max_iterations: the most iterations that all loops of the model (`Loop`) together may make in one call; more
            are a RangeError.

    Raises:
        RecordError: the file is not ONNX, damaged, inconsistent, or newer than the installed `onnx` package; or a node
            lacks an input, an attribute or a graph, or is a loop without end.
        UnsupportedError: the file has unknown operators; the message lists all of them, with their nodes.
        ExtraNotInstalledError: the `onnx` package is not installed.

    >>> import numpy as np, onnx, phlox as px
    >>> weight = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "head.weight")
    >>> x, y = (onnx.helper.make_tensor_value_info(n, 1, ["batch", s]) for n, s in (("x", 3), ("y", 2)))
    >>> node = onnx.helper.make_node("MatMul", ["x", "head.weight"], ["y"])
    >>> graph = onnx.helper.make_graph([node], "linear", [x], [y], [weight])
    >>> model = load(onnx.helper.make_model(graph))
    >>> model(px.ones((1, 3))).tolist(), [path for path, _ in model.named_params()]
    ([[3.0, 3.0]], ['head.weight'])
    """
    if type(max_iterations) is not int or max_iterations < 1:
        raise RecordError(f"load: max_iterations={max_iterations!r}; give a whole number of at least 1")
    proto, folder, name = read_model(path)
    try:
        program, values, trainable = _bound(proto, Tensors(folder, name), name, max_iterations)
    except PhloxError:
        raise
    except Exception as error:  # a damaged file may cause any exception
        raise RecordError(f"{name}: is damaged, or contradicts itself ({type(error).__name__}: {error})") from error
    chosen = trainable
    if trained is False:
        chosen = set[str]()
    elif trained is not None and trained is not True:
        chosen = selected(trained, list(values))
    parameter_device = as_device(device)
    params = {
        path: Param(tensor(known_to_numpy(content), device=parameter_device), trained=path in chosen)
        for path, content in values.items()
    }
    return OnnxModule(program, params)


def program_from(source: bytes, max_iterations: int = MAX_ITERATIONS) -> Program:
    """Rebuild a program from its `source`."""
    proto, _, name = read_model(source)
    return _bound(proto, _WithoutWeights(None, name), name, max_iterations)[0]


def _bound(
    proto: Any, tensors: Tensors, name: str, max_iterations: int
) -> tuple[Program, dict[str, np.ndarray[Any, Any]], set[str]]:
    import_all()
    opsets = {("" if opset.domain == "ai.onnx" else opset.domain): int(opset.version) for opset in proto.opset_import}
    _check_versions(proto, opsets, name)
    binder = Binder(proto, tensors, name)
    graph = binder.bind(proto.graph, opsets)
    inputs = {value.name: value_of(value) for value in proto.graph.input}
    outputs = tuple(value_of(value) for value in proto.graph.output)
    weights = binder.weights
    source = _stripped(proto, graph.weights, tensors)
    graph_inputs = tuple(inputs[name] for name in graph.inputs)
    program = Program(graph, graph_inputs, outputs, opsets, tuple(weights.values), source, max_iterations)
    return program, weights.values, weights.trained


def _check_versions(proto: Any, opsets: Mapping[str, int], name: str) -> None:
    package = onnx()
    newest = package.defs.onnx_opset_version()
    version = opsets.get("")
    if version is not None and version > newest:
        raise RecordError(
            f"{name}: is written for opset {version}, and the installed onnx {package.__version__} knows up to "
            f"{newest}; install a newer one, or convert the file with onnx.version_converter"
        )


class _WithoutWeights(Tensors):
    """Tensors of a model whose weights were taken out: zeros of their shape, which nothing reads."""

    def array(self, proto: Any) -> np.ndarray[Any, Any]:
        if proto.doc_string == _TAKEN_OUT:
            dtype = onnx().helper.tensor_dtype_to_np_dtype(proto.data_type)
            return np.broadcast_to(np.zeros((), dtype), tuple(proto.dims))
        return super().array(proto)


_TAKEN_OUT = "phlox: the values are a parameter"


def _stripped(proto: Any, weights: Mapping[str, str], tensors: Tensors) -> bytes:
    """The model with its external data, but without the values of initializers that are parameters."""
    lean = onnx().ModelProto()
    lean.ir_version = proto.ir_version
    lean.producer_name = proto.producer_name
    lean.opset_import.extend(proto.opset_import)
    lean.functions.extend(proto.functions)
    graph = proto.graph
    lean.graph.name = graph.name
    for name in ("node", "input", "output", "sparse_initializer"):
        getattr(lean.graph, name).extend(getattr(graph, name))
    lean.graph.initializer.extend(_lean(t, tensors, taken_out=t.name in weights) for t in graph.initializer)
    _embed(lean.graph, tensors)
    for function in lean.functions:
        _embed(function, tensors)
    return lean.SerializeToString()


def _lean(proto: Any, tensors: Tensors, *, taken_out: bool) -> Any:
    if taken_out:
        dims = list(proto.dims)
        return onnx().TensorProto(name=proto.name, dims=dims, data_type=proto.data_type, doc_string=_TAKEN_OUT)
    return onnx().numpy_helper.from_array(tensors.array(proto), proto.name) if proto.data_location == 1 else proto


def _embed(graph: Any, tensors: Tensors) -> None:
    """Put external data of subgraphs and of attributes into the model."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == 4 and attribute.t.data_location == 1:
                attribute.t.CopyFrom(_lean(attribute.t, tensors, taken_out=False))
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                for index, initializer in enumerate(inner.initializer):
                    if initializer.data_location == 1:
                        inner.initializer[index].CopyFrom(_lean(initializer, tensors, taken_out=False))
                _embed(inner, tensors)
