"""The architecture of a module as plain values: its classes, its fields, and the shapes of its parameters.

The module is built again without its constructors, around deferred parameters, which a record then fills. Building it
imports the classes that are named, and calls no function of theirs.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import DeviceLike, Float
from phlox.backend.kind import KINDS
from phlox.config import BaseConfig
from phlox.errors import ModuleError, PhloxError
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.module.statics import Static, StaticArray, StaticSet
from phlox.module.structure import Container, Leaf, Part, Shared, build
from phlox.other_names import class_of
from phlox.tensor import Tensor, zeros

Plain: TypeAlias = dict[str, Any]
Find: TypeAlias = Callable[[str], Any]
"""From `MODULE:NAME` to the object that it names."""

_CONTAINERS = {"builtins:dict": dict, "collections:OrderedDict": OrderedDict}
_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple}


def architecture(module: Module) -> Plain:
    """Describe a module so that `build_module` can build it; the result can be written as JSON.

    Raises `ModuleError`, with the path, for what other programs cannot find or read: a class that is defined in a
    function, a lambda, an object of another class than configs, dataclasses, enums and small arrays.

    >>> from phlox import nn
    >>> plain = architecture(nn.Sequential([nn.Linear(3, 2), nn.Dropout(0.1)]))
    >>> build_module(plain).layers[0]
    Linear(weight [3, 2] deferred, bias [2] deferred)
    """
    structure = module.structure()
    params = [
        {
            "kind": param.kind.name, "shape": list(param.shape), "trained": param.trained,
            "trainable": param.trainable, "full_precision": param.full_precision,
        }
        for param in structure.params
    ]  # fmt: skip
    return {"params": params, "module": _write(structure.skeleton, "")}


def build_module(plain: Plain, device: DeviceLike | None = None, find: Find | None = None) -> Any:
    """Build a module of this architecture; its Float parameters have no values yet.

    Args:
        plain: the result of `architecture`.
        device: the device of its parameters.
        find: returns the class or function that `MODULE:NAME` names; by default it is imported.

    Raises `ModuleError` for a description that is damaged, and for a name that cannot be imported.
    """
    try:
        params = [_param(part, device) for part in plain["params"]]
        root = _Reader(find or imported).read(plain["module"])
        if not isinstance(root, Container) or not issubclass(root.cls, Module):
            raise ModuleError("the architecture is not that of a module")
        return build(root, params)
    except PhloxError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModuleError(f"the architecture is damaged ({type(error).__name__}: {error})") from error


def imported(name: str) -> Any:
    """The object that `MODULE:NAME` names; `ModuleError` if it cannot be imported.

    What Python itself has is refused: no layer is there, and a file must not name `os.system` for a model to call.
    """
    module, _, path = name.partition(":")
    if name in _CONTAINERS:
        return _CONTAINERS[name]
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ModuleError(f"{name} is of Python itself, and no part of a model")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ModuleError(
            f"{name} cannot be imported ({error}); start in the folder from which it can, or set PYTHONPATH"
        ) from error
    if getattr(found, "__module__", None) != module:
        raise ModuleError(f"{name} is not defined in {module}, which is where a description names it")
    return found


def classes_in(plain: Plain) -> Iterator[str]:
    """The names of all classes and functions in an architecture, as `MODULE:NAME`."""
    for key, value in plain.items():
        if key in ("class", "config", "enum", "object", "dataclass") and isinstance(value, str):
            yield value
        for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from classes_in(cast("Plain", part))
            elif isinstance(part, list):
                yield from classes_in({"": part})


# --- writing


def _write(part: Part, path: str) -> Any:
    match part:
        case Leaf(number):
            return {"param": number}
        case Shared(number):
            return {"same": number}
        case StaticSet(value):
            return {"set": [_value(entry, path) for entry in cast("set[Any]", value)]}
        case StaticArray(value):
            array = cast("np.ndarray[Any, Any]", value)
            return {"array": array.tolist(), "dtype": array.dtype.str, "shape": list(array.shape)}
        case Static(value):
            return _value(value, path)
        case Container(cls, keys, children, number):
            parts = [_write(child, f"{path}.{key}".strip(".")) for key, child in zip(keys, children, strict=True)]
            if cls in (list, tuple):
                return {cls.__name__: parts, "number": number}
            named = [[_value(key, path), child] for key, child in zip(keys, parts, strict=True)]
            return {"class": _name(cls, path), "fields": named, "number": number}


def _value(value: Any, path: str) -> Any:
    """A static value as plain values."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        return {"object": _name(value, path)}
    if isinstance(value, Enum):
        return {"enum": _name(type(value), path), "name": value.name}
    if isinstance(value, BaseConfig):
        return {"config": _name(type(value), path), "values": value.to_dict()}
    if isinstance(value, (list, tuple)):
        parts = [_value(entry, path) for entry in cast("list[Any]", value)]
        return {"list" if isinstance(value, list) else "tuple": parts, "number": None}
    if is_dataclass(value):
        named = {field.name: _value(getattr(value, field.name), f"{path}.{field.name}") for field in fields(value)}
        return {"dataclass": _name(type(value), path), "values": named}
    raise ModuleError(f"`{path}` is {class_of(value)}, which cannot be described; make it a Config or a dataclass")


def _name(named: Any, path: str) -> str:
    """The name by which another program finds a class or a function."""
    for name in (named.__qualname__, named.__name__):
        try:
            if "<" not in name and imported(f"{named.__module__}:{name}") is named:
                return f"{named.__module__}:{name}"
        except ModuleError:
            continue
    place = f"`{path}`: " if path else ""
    raise ModuleError(
        f"{place}another program cannot import {named.__qualname__} of {named.__module__}; define it at the top of a "
        "file"
    )


# --- reading


def _param(plain: Plain, device: DeviceLike | None) -> Param:
    kind, shape, full = KINDS[plain["kind"]], tuple(map(int, plain["shape"])), bool(plain["full_precision"])
    if kind is Float:
        param = Param.deferred(shape, _no_value, device=device, trained=bool(plain["trainable"]), full_precision=full)
    else:
        param = Param(zeros(shape, kind=kind, device=device), trained=bool(plain["trainable"]), full_precision=full)
    param.trained = bool(plain["trained"])
    return param


def _no_value(shape: tuple[int, ...], fans: tuple[int, int], device: Any) -> Tensor[Any, Any, Any]:
    raise ModuleError(f"a parameter of shape {shape} has no value; load a record of the module")


class _Reader:
    """Reads the parts of a skeleton."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def read(self, plain: Any) -> Part:
        if not isinstance(plain, Mapping):
            return Static(plain)
        part = cast("Plain", plain)
        if "param" in part:
            return Leaf(part["param"])
        if "same" in part:
            return Shared(part["same"])
        if "fields" in part:
            cls = self._class(part["class"], object)
            keys = tuple([self._value(key) for key, _ in part["fields"]])
            return Container(cls, keys, tuple([self.read(child) for _, child in part["fields"]]), part["number"])
        for name, cls in _SEQUENCES.items():
            if name in part and part["number"] is not None:
                children = tuple([self.read(child) for child in part[name]])
                return Container(cls, tuple(range(len(children))), children, part["number"])
        if "set" in part:
            return StaticSet(frozenset(self._value(entry) for entry in part["set"]))
        if "array" in part:
            return StaticArray(np.array(part["array"], np.dtype(part["dtype"])).reshape(part["shape"]))
        return Static(self._value(part))

    def _value(self, plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            return plain
        part = cast("Plain", plain)
        for name, cls in _SEQUENCES.items():
            if name in part:
                return cls(map(self._value, part[name]))
        if "float" in part:
            return float(part["float"])
        if "object" in part:
            return self._find(part["object"])
        if "enum" in part:
            return self._class(part["enum"], Enum)[part["name"]]
        if "config" in part:
            return self._class(part["config"], BaseConfig).from_dict(part["values"])
        cls = self._class(part["dataclass"], object)
        if not is_dataclass(cls):
            raise ModuleError(f"{part['dataclass']} is no dataclass")
        value: Any = object.__new__(cast("type[Any]", cls))
        for name, inner in part["values"].items():
            object.__setattr__(value, name, self._value(inner))
        return value

    def _class(self, name: str, base: type[Any]) -> Any:
        cls = self._find(name)
        if not isinstance(cls, type) or not issubclass(cls, base):
            raise ModuleError(f"{name} is no class of the kind {base.__name__}")
        return cast("Any", cls)
