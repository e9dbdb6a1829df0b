"""`Roots`: what is known of a function and its arguments before its code is read."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.module import Module
from phlox.module.statics import Static
from phlox.module.structure import Container, Part
from phlox.module.template import flatten
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.tensor import Tensor
from phlox.transform.compile.guards.guard import PLAIN
from phlox.transform.compile.guards.libraries import is_library
from phlox.transform.compile.guards.slots import Instance, Outside
from phlox.transform.tree import parts_of


class Holder:
    """An object that holds functions and arguments, and calls the functions with them."""

    def held(self) -> Iterable[Any]:
        """The functions and the arguments."""
        raise NotImplementedError


class Roots(NamedTuple):
    """What is known before the code is read; without arrays."""

    function: Any
    parameters: Mapping[str, Outside | Instance]
    """The arguments by name, as far as they are known: functions, and the classes of objects."""
    sources: list[Outside | Instance]
    """Functions and classes inside the arguments."""
    methods: list[Instance]
    """Classes of which Phlox may call any method."""


def roots_of(function: Any, arguments: Mapping[str, Any]) -> Roots:
    """The roots of a function and its arguments."""
    sources = {name: source for name, value in arguments.items() if (source := _source_of(value, name)) is not None}
    roots = Roots(function, sources, [], [])
    for name, value in arguments.items():
        _add_sources(value, name, roots)
    return roots


def _add_sources(value: Any, name: str, roots: Roots) -> None:
    if isinstance(value, Module):
        for part in parts_in(flatten(value)[1].template.skeleton):
            if isinstance(part, Static):
                roots.sources.append(Outside(part.value, name))
            elif isinstance(part, Container) and issubclass(part.cls, Module):
                roots.sources.append(Instance(part.cls))
    elif isinstance(value, Optimizer):
        roots.methods.append(Instance(type(value.optimizer if isinstance(value, OptimizerAdaptor) else value)))
    elif not isinstance(value, (*PLAIN, Tensor, np.ndarray)):
        for _, part in parts_of(value) or ():
            _add_sources(part, name, roots)
        source = _source_of(value, name)
        roots.sources.extend([] if source is None else [source])


def _source_of(value: Any, name: str) -> Outside | Instance | None:
    if isinstance(value, (FunctionType, MethodType, partial, Holder)):
        return Outside(value, name)
    is_object = isinstance(value, Module) or is_user_object(value)
    return Instance(cast("type[Any]", type(value))) if is_object else None


def is_user_object(value: Any) -> bool:
    """Is it a namespace or an object of a user's class, but not a function, class, tensor or module?"""
    if isinstance(value, (SimpleNamespace, Namespace)):
        return True
    return not isinstance(value, (type, FunctionType, MethodType, Tensor, Module)) and not is_library(type(value))


def parts_in(part: Part) -> Iterator[Part]:
    """All parts of the structure of a module."""
    yield part
    if isinstance(part, Container):
        for child in part.children:
            yield from parts_in(child)
