"""The arguments and results of transformed functions, as trees.

Containers are lists, tuples, dicts, gradients, and dataclasses that hold tensors; `phlox.backend.pytree` flattens and
builds them. Tensors, modules and optimizers are leaves, and anything else is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

from phlox.backend.pytree import DATACLASS, DEQUE, Container, container_of_class
from phlox.config import Config
from phlox.module import GradientsParams, Module
from phlox.optim import Optimizer
from phlox.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]

_CARRIED = (Tensor, Module, Optimizer, GradientsParams)


def container_of(value: Any) -> Container | None:
    """The kind of container that a value is; None if it is not one.

    A dataclass that holds only numbers and names is a setting, and so a constant: its numbers may be sizes.
    """
    container = container_of_class(cast("type[Any]", type(value)))
    if container is not None and container is DATACLASS:
        is_carrier = not isinstance(value, (Config, Tensor, Module, Optimizer)) and _holds(value, container)
        return container if is_carrier else None
    return None if container is DEQUE else container


def _holds(value: Any, container: Container) -> bool:
    """Does a container hold tensors, modules, optimizers or gradients?"""
    for _, part in container.items(value):
        if isinstance(part, _CARRIED):
            return True
        nested = container_of(part)
        if nested is not None and (nested is DATACLASS or _holds(part, nested)):  # checked by `container_of`
            return True
    return False


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container, each with its path suffix; None if it is not a container."""
    container = container_of(value)
    return None if container is None else [(container.label(key), part) for key, part in container.items(value)]


def with_parts(value: Any, parts: list[Any]) -> Any:
    """The same container with other parts, in the order of `parts_of`."""
    container = container_of_class(cast("type[Any]", type(value)))
    assert container is not None
    return container.build(value, parts)


def map_parts(fn: Callable[[Any, str], Any], value: Any, path: str) -> Any:
    """The same container with `fn(part, path)` in place of each part; any other value is returned unchanged."""
    parts = parts_of(value)
    return value if parts is None else with_parts(value, [fn(part, f"{path}{label}") for label, part in parts])


def leaves_of(value: Any, classes: type[Any] | tuple[type[Any], ...], path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of these classes in a tree, in order, with their paths."""
    if isinstance(value, classes):
        yield path, value
        return
    for label, part in parts_of(value) or ():
        yield from leaves_of(part, classes, path + label)


def map_leaves(fn: Callable[[Any], Any], value: Any, classes: type[Any] | tuple[type[Any], ...]) -> Any:
    """The same containers with `fn(leaf)` in place of each leaf of these classes."""
    if isinstance(value, classes):
        return fn(value)
    return map_parts(lambda part, path: map_leaves(fn, part, classes), value, "")


def map_tensors(fn: Callable[[AnyTensor], Any], value: Any) -> Any:
    """The same containers with `fn(tensor)` in place of each tensor, also in modules and gradients.

    A module is replaced by a new one with the same parameter ids, around the results of `fn`.
    """

    def map_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Module):
            return leaf.map(lambda path, param: param.around(fn(param.val())))
        return fn(leaf)

    return map_leaves(map_leaf, value, (Tensor, Module))


def tensors_of(value: Any) -> list[AnyTensor]:
    """The tensors in a tree, in order, including the tensors of modules and gradients."""
    leaves: Iterable[Any] = (leaf for _, leaf in leaves_of(value, (Tensor, Module)))
    tensors: list[AnyTensor] = []
    for leaf in leaves:
        tensors += [param.val() for param in leaf.params()] if isinstance(leaf, Module) else [leaf]
    return tensors
