"""The structure of a module as text, for programs that are exported to a file and called in another process.

The text has everything that makes two structures equal: classes, names of fields, static values, and for each parameter
the backend, the kind and whether it is trained. A structure from a file is compared by its text. To build a module from
arrays, the process must have a module of the same structure, because functions and other objects are not saved.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any, cast

from phlox.backend import Backend, Device
from phlox.backend.pytree import PyTreeNode, StructureSerializer, register_node
from phlox.errors import ModuleError
from phlox.module.fields import set_pending
from phlox.module.param import Param, new_id
from phlox.module.statics import Static
from phlox.module.tree.aux_data import NodeAux
from phlox.module.tree.flattening import (
    PARAM,
    flatten_param,
    flatten_param_with_keys,
    unflatten_mixed,
    unflatten_param,
)
from phlox.module.tree.layout import Level, Mixed, MixedAux, Part, Slot, TreeLayout, live_layouts
from phlox.tensor import Tensor
from phlox.tensor.tensor import ops_from_bytes, ops_to_bytes


def serializer_of(cls: type[Any]) -> StructureSerializer:
    """The functions that write the structure of nodes of this class to a file, and read it."""
    return StructureSerializer(_to_bytes, partial(Distant, cls), _shell)


class Distant:
    """A structure that was read from a file. Structures are equal if their texts are."""

    __slots__ = ("cls", "text")

    def __init__(self, cls: type[Any], text: bytes) -> None:
        self.cls = cls
        self.text = text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (NodeAux, MixedAux)):
            return self.text == text_of(other)
        return isinstance(other, Distant) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"{self.cls.__name__}[{', '.join(json.loads(self.text)['paths'])}]"

    def fields(self, module: Any, children: tuple[Any, ...], scope: Any) -> dict[str, Any]:
        """The fields of a module of this structure around these children."""
        return cast("NodeAux", self.local_structure()).fields(module, children, scope)

    def local_structure(self) -> NodeAux | MixedAux:
        """The structure in this process with the same text, with new parameter ids."""
        content = json.loads(self.text)
        text = _dumped(content["parts"])
        if self.cls is Mixed:
            for level in {level for layout in live_layouts() for level in layout.levels() if not level.native}:
                if _dumped(_part(level)) == text:
                    return MixedAux(level)
        for layout in (PARAM, *live_layouts()):
            if layout.cls is self.cls and _text_of_layout(layout) == text:
                training, marks = content["mode"]
                mode = tuple([mark and (ops_from_bytes(mark[0].encode()), *mark[1:]) for mark in marks])
                return NodeAux(layout, (training, mode), tuple([new_id() for _ in layout.paths]))
        raise ModuleError(
            f"an exported program returns a {self!r}, but this process has no module of that structure, from "
            "which it could be built; create one with the same fields, keep it, and call again"
        )


def _to_bytes(aux: NodeAux | MixedAux | Distant) -> bytes:
    return aux.text if isinstance(aux, Distant) else text_of(aux)


def _shell(aux: Distant, children: Iterable[Any]) -> Any:
    if aux.cls is Mixed:
        return Mixed(aux, tuple(children))
    module = object.__new__(aux.cls)
    set_pending(module, (aux, tuple(children), None))
    return module


def text_of(aux: NodeAux | MixedAux) -> bytes:
    """The text of a structure, with everything that makes it equal to another one."""
    if isinstance(aux, MixedAux):
        return _dumped({"paths": list(map(str, aux.level.keys)), "parts": _part(aux.level)}).encode()
    training, marks = aux.mode
    mode = [training, [mark and [ops_to_bytes(mark[0]).decode(), *mark[1:]] for mark in marks]]
    parts = json.loads(_text_of_layout(aux.layout))
    return _dumped({"paths": aux.layout.paths, "mode": mode, "parts": parts}).encode()


def _text_of_layout(layout: TreeLayout) -> str:
    if layout.text is None:
        fields = [[name, _part(part)] for name, part in layout.parts.items()]
        layout.text = _dumped({"class": _name(layout.cls), "fields": fields, "ties": layout.ties})
    return layout.text


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _part(part: Part) -> Any:
    if isinstance(part, Static):
        return _static(part.value)
    if isinstance(part, Level):
        fields = [[_static(key), _part(child)] for key, child in zip(part.keys, part.parts, strict=True)]
        return {"class": _name(part.cls), "fields": fields}
    return {"place": isinstance(part, Slot)}


def _static(value: Any) -> Any:
    """A static value as text: plain ones in full, functions and classes by name, other objects by their class."""
    cls = cast("type[Any]", type(value))
    if value is None or isinstance(value, (bool, int, str)):
        return value if cls in (type(None), bool, int, str) else [_name(cls), repr(value)]
    if isinstance(value, float):
        return [_name(cls), value.hex()]
    if isinstance(value, (complex, bytes, range, slice, Backend, Device)):
        return [_name(cls), repr(cast("object", value))]
    if isinstance(value, Enum):
        return [_name(cls), value.name]
    if isinstance(value, type):
        return ["type", _name(cast("type[Any]", value))]
    if isinstance(value, partial):
        whole = cast("partial[Any]", value)
        return ["partial", _static(whole.func), _statics(whole.args), _static(tuple(whole.keywords.items()))]
    if isinstance(value, (frozenset, set)):
        return [_name(cls), sorted(_statics(cast("Iterable[Any]", value)), key=repr)]
    if isinstance(value, tuple):
        return [_name(cls), _statics(cast("Iterable[Any]", value))]
    if isinstance(value, Tensor):
        from hashlib import sha256

        host = cast("Tensor[Any, Any, Any]", value).numpy()
        return ["tensor", host.dtype.name, list(host.shape), sha256(host.tobytes()).hexdigest()]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        return [_name(cls), [[name, _static(getattr(value, name))] for name in names]]
    return _function(value, 2) if callable(value) else ["object", _name(cls)]


def _function(value: Any, depth: int) -> Any:
    """A function as text: its name, and the functions in it, which distinguish `lift(relu)` from `lift(tanh)`."""
    name = [getattr(value, attribute, None) for attribute in ("__module__", "__qualname__", "__name__")]
    texts = [text for text in name if isinstance(text, str)]
    inner: list[Any] = list(getattr(value, "__dict__", {}).values())
    for cell in getattr(value, "__closure__", None) or ():
        try:
            inner.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    functions = [_function(inner_function, depth - 1) for inner_function in inner if callable(inner_function) and depth]
    return ["function", _name(cast("type[Any]", type(value))), texts, functions]


def _statics(values: Iterable[Any]) -> list[Any]:
    return [_static(value) for value in values]


def _name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


register_node(PyTreeNode(Mixed, Mixed.flatten, unflatten_mixed, Mixed.with_keys, serializer_of(Mixed)))
register_node(PyTreeNode(Param, flatten_param, unflatten_param, flatten_param_with_keys, serializer_of(Param)))
