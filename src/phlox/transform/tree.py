"""The arguments and results of transformed functions, as trees: which containers are walked through.

Lists, tuples, dicts, gradients, and dataclasses that hold tensors; how each is taken apart and built again is said in
`phlox.backend.pytree`. Tensors, modules and optimizers are leaves, and anything else is a constant.
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
    """What kind of container a value is; None for what is not walked through.

    A dataclass of nothing but numbers and names is a setting, and so a constant: its numbers may be sizes.
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
        inside = container_of(part)
        if inside is not None and (inside is DATACLASS or _holds(part, inside)):  # which has been asked
            return True
    return False


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, and how the path to it goes on; None for what is no container."""
    container = container_of(value)
    return None if container is None else [(container.label(key), part) for key, part in container.items(value)]


def with_parts(value: Any, parts: list[Any]) -> Any:
    """A container like this one, with other parts in the order of `parts_of`."""
    container = container_of_class(cast("type[Any]", type(value)))
    assert container is not None
    return container.build(value, parts)


def map_parts(fn: Callable[[Any, str], Any], value: Any, path: str) -> Any:
    """The same containers with `fn(part, path)` in place of each part; what is no container stays."""
    parts = parts_of(value)
    return value if parts is None else with_parts(value, [fn(part, f"{path}{label}") for label, part in parts])


def leaves_of(value: Any, classes: type[Any] | tuple[type[Any], ...], path: str = "") -> Iterator[tuple[str, Any]]:
    """What is of these classes in a tree, in order, each with its path."""
    if isinstance(value, classes):
        yield path, value
        return
    for label, part in parts_of(value) or ():
        yield from leaves_of(part, classes, path + label)


def map_leaves(fn: Callable[[Any], Any], value: Any, classes: type[Any] | tuple[type[Any], ...]) -> Any:
    """The same containers with `fn(leaf)` in place of what is of these classes."""
    if isinstance(value, classes):
        return fn(value)
    return map_parts(lambda part, path: map_leaves(fn, part, classes), value, "")


def map_tensors(fn: Callable[[AnyTensor], Any], value: Any) -> Any:
    """The same containers with `fn(tensor)` in place of each tensor, also in modules and gradients.

    A module comes back as another one, with the ids of its parameters, around what `fn` returned.
    """

    def mapped(leaf: Any) -> Any:
        if isinstance(leaf, Module):
            return leaf.map(lambda path, param: param.around(fn(param.val())))
        return fn(leaf)

    return map_leaves(mapped, value, (Tensor, Module))


def tensors_of(value: Any) -> list[AnyTensor]:
    """The tensors in a tree, in order, with those of modules and gradients."""
    leaves: Iterable[Any] = (leaf for _, leaf in leaves_of(value, (Tensor, Module)))
    found: list[AnyTensor] = []
    for leaf in leaves:
        found += [param.val() for param in leaf.params()] if isinstance(leaf, Module) else [leaf]
    return found
