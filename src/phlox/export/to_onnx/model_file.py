"""A graph as a file of the format, with large weights in a file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phlox.backend.tracing.dimension import is_open
from phlox.errors import ExportError, ExtraNotInstalledError
from phlox.export.to_onnx.engine import TYPES
from phlox.export.to_onnx.graph import Graph, Interface, Node
from phlox.version import __version__

INLINE = 1 << 26
"""If all weights have at least this many bytes, they go to a file of their own by default."""
_SMALL = 1 << 10
"""A constant of fewer bytes stays in the model's own file."""
_ALIGNED = 1 << 12
_MOST = 2**31 - 2**20
"""The maximum size of a file of the format."""
_NAMES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11, "bfloat16": 16}


def onnx_package() -> Any:
    """The `onnx` package; `ExtraNotInstalledError` without it."""
    try:
        import onnx
    except ImportError as error:
        raise ExtraNotInstalledError(
            "export.onnx needs the onnx package; install Phlox with the extra 'onnx'"
        ) from error
    return onnx


def write(graph: Graph, path: Path, *, title: str, metadata: Mapping[str, str], external: bool | None) -> list[Path]:
    """Write the graph to `path`, and large weights to `path` + ".data". Returns the paths of the files."""
    onnx = onnx_package()
    weights: dict[str, np.ndarray[Any, Any]] = {**graph.parameters, **graph.constants}
    total = sum(array.nbytes for array in weights.values())
    if external is False and total > _MOST:
        raise ExportError(
            f"export.onnx: weights of {total:,} bytes do not fit into one file, which holds 2 GB; leave external_data "
            "out, then they go to a second file"
        )
    outside = total > INLINE if external is None else external
    data = path.with_name(f"{path.name}.data")
    tensors: list[Any] = []
    large: list[np.ndarray[Any, Any]] = []
    position = 0
    for name, array in weights.items():
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=_NAMES[array.dtype.name])
        if outside and array.nbytes >= _SMALL:
            position = -(-position // _ALIGNED) * _ALIGNED
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", position), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            large.append(array)
            position += array.nbytes
        else:
            tensor.raw_data = _bytes(array).tobytes()
        tensors.append(tensor)
    model = _model(onnx, graph, title, tensors, metadata)
    if large:
        with data.open("wb") as file:
            for array in large:
                file.write(bytes(-file.tell() % _ALIGNED))
                file.write(_bytes(array).data)
    path.write_bytes(model.SerializeToString())
    return [path, data] if large else [path]


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements in order, without a copy if they are in order already."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.size else np.zeros(0, np.uint8)


def _model(onnx: Any, graph: Graph, title: str, tensors: list[Any], metadata: Mapping[str, str]) -> Any:
    proto = _graph(onnx, graph, title)
    proto.initializer.extend(tensors)
    opset = onnx.helper.make_opsetid("", graph.opset)
    model = onnx.helper.make_model(
        proto, opset_imports=[opset], producer_name="phlox", producer_version=__version__,
        ir_version=onnx.helper.find_min_ir_version_for([opset]),
    )  # fmt: skip
    onnx.helper.set_model_props(model, dict(metadata))
    return model


def _graph(onnx: Any, graph: Graph, title: str) -> Any:
    return onnx.helper.make_graph(
        [_node(onnx, node) for node in graph.nodes],
        title,
        [_interface(onnx, interface) for interface in graph.inputs],
        [_interface(onnx, interface) for interface in graph.outputs],
    )


def _node(onnx: Any, node: Node) -> Any:
    attributes = {
        name: _graph(onnx, value, f"{node.name}/body") if isinstance(value, Graph) else value
        for name, value in node.attributes.items()
    }
    proto = onnx.helper.make_node(node.op, node.inputs, node.outputs, name=node.name, **attributes)
    if node.line:
        proto.doc_string = node.line
    return proto


def _interface(onnx: Any, interface: Interface) -> Any:
    return onnx.helper.make_tensor_value_info(interface.name, TYPES[interface.element], _sizes(interface.shape))


def _sizes(shape: Iterable[int]) -> list[int | str]:
    """Sizes; those of open axes are names, or expressions of names."""
    return [str(size) if is_open(size) else int(size) for size in shape]


def config_text(model: Any) -> str | None:
    """The config of a model as JSON, if it has one that can be written as JSON."""
    config = getattr(model, "config", None)
    try:
        return None if config is None else json.dumps(config.to_dict())
    except (AttributeError, TypeError, ValueError):
        return None
