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
from phlox.backend.pytree import StructureSerializer
from phlox.errors import ModuleError
from phlox.module.fields import postpone
from phlox.module.param import new_id
from phlox.module.structure import Container, Leaf, Part, Shared, Static
from phlox.module.template import Aux, Template, live_templates
from phlox.tensor import Tensor


def serializer_of(cls: type[Any]) -> StructureSerializer:
    """How the structure of modules of this class is written to a file and read."""
    return StructureSerializer(_to_bytes, partial(Distant, cls), _shell)


class Distant:
    """A structure that was read from a file: equal to those of the same text."""

    __slots__ = ("cls", "text")

    def __init__(self, cls: type[Any], text: bytes) -> None:
        self.cls = cls
        self.text = text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Aux):
            return self.text == text_of(other.template)
        return isinstance(other, Distant) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"{self.cls.__name__}[{', '.join(json.loads(self.text)['paths'])}]"

    def here(self) -> Aux:
        """The structure of this process that has the same text, for a module with ids of its own."""
        for template in live_templates():
            if template.cls is self.cls and text_of(template) == self.text:
                return Aux(template, tuple([new_id() for _ in template.paths]))
        raise ModuleError(
            f"an exported program returns a {self!r}, and there is no such module in this process that it could be "
            "made like; create one with the same fields, keep it, and call again"
        )


def _to_bytes(aux: Aux | Distant) -> bytes:
    return aux.text if isinstance(aux, Distant) else text_of(aux.template)


def _shell(aux: Distant, arrays: Iterable[Any]) -> Any:
    module = object.__new__(aux.cls)
    postpone(module, (cast("Aux", aux), tuple(arrays)))
    return module


def text_of(template: Template) -> bytes:
    """The text of a structure, with everything that makes it equal to another one."""
    if template.text is None:
        # A mark that few parameters have says nothing where it is not there: texts of before still mean the same.
        marks = [
            [repr(ops.backend), ops.kind.name, trained, able, *["full precision"] * full]
            for ops, trained, able, full in template.marks
        ]
        described = {"paths": template.paths, "parameters": marks, "parts": _part(template.skeleton)}
        template.text = json.dumps(described, separators=(",", ":")).encode()
    return template.text


def _part(part: Part) -> Any:
    match part:
        case Leaf(number):
            return {"parameter": number}
        case Shared(number):
            return {"shared": number}
        case Static(value):
            return _static(value)
        case Container(cls, keys, children, number):
            fields = [[_static(key), _part(child)] for key, child in zip(keys, children, strict=True)]
            return {"class": _name(cls), "fields": fields, "number": number}


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
    named = [text for text in name if isinstance(text, str)]
    inner: list[Any] = list(getattr(value, "__dict__", {}).values())
    for cell in getattr(value, "__closure__", None) or ():
        try:
            inner.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    functions = [_function(one, depth - 1) for one in inner if callable(one) and depth]
    return ["function", _name(cast("type[Any]", type(value))), named, functions]


def _statics(values: Iterable[Any]) -> list[Any]:
    return [_static(value) for value in values]


def _name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"
