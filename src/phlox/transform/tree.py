"""What holds the arguments and results of transformed functions: lists, tuples, dicts, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

from phlox.config import Config
from phlox.module import GradientsParams, Module
from phlox.optim import Optimizer
from phlox.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]

_CARRIED = (Tensor, Module, Optimizer, GradientsParams)


def same_sequence(kind: type[Any], parts: list[Any]) -> Any:
    """A list, tuple or named tuple of these parts."""
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def same_mapping(value: dict[Any, Any], items: Iterable[tuple[Any, Any]]) -> Any:
    """A dict like this one, of these items under the same keys."""
    if type(value) is dict:
        return dict(items)
    twin = copy.copy(value)  # what else it is, of a default or an order, stays
    twin.update(items)
    return twin


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass that holds tensors, modules, optimizers or gradients; any other value has none.

    A dataclass of nothing but numbers and names is a setting, and so a constant: its numbers may be sizes.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, Config, *_CARRIED)):
        return None
    # Of a slot or a default that was never set there is nothing to hold.
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return fields if _holds(fields.values()) else None


def _holds(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, _CARRIED) or fields_of(value) is not None:
            return True
        inside: Iterable[Any] = ()
        if isinstance(value, (list, tuple)):
            inside = cast("list[Any]", value)
        elif isinstance(value, dict):
            inside = cast("dict[Any, Any]", value).values()
        if _holds(inside):
            return True
    return False


def with_fields(value: Any, parts: dict[str, Any]) -> Any:
    """A copy of a dataclass with other values in its fields, whose `__post_init__` is not asked again."""
    twin = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(twin, name, part)
    return twin


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, and how the path to it goes on; None for what is no container."""
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", part) for place, part in enumerate(cast("list[Any]", value))]
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in cast("dict[Any, Any]", value).items()]
    if isinstance(value, GradientsParams):
        return [(f", gradient {number}", tensor) for number, (_, tensor) in enumerate(value.items())]
    fields = fields_of(value)
    return None if fields is None else [(f".{name}", part) for name, part in fields.items()]


def with_parts(value: Any, parts: list[Any]) -> Any:
    """A container like this one, with other parts in the order of `parts_of`."""
    if isinstance(value, (list, tuple)):
        return same_sequence(type(cast("list[Any]", value)), parts)
    if isinstance(value, dict):
        whole = cast("dict[Any, Any]", value)
        return same_mapping(whole, zip(whole, parts, strict=True))
    if isinstance(value, GradientsParams):
        return GradientsParams(dict(zip(value, parts, strict=True)))
    return with_fields(value, dict(zip(fields_of(value) or (), parts, strict=True)))


def map_parts(fn: Callable[[Any, str], Any], value: Any, path: str) -> Any:
    """The same containers with `fn(part, path)` in place of each part; what is no container stays."""
    parts = parts_of(value)
    return value if parts is None else with_parts(value, [fn(part, f"{path}{label}") for label, part in parts])


def map_tensors(fn: Callable[[AnyTensor], Any], value: Any) -> Any:
    """The same containers with `fn(tensor)` in place of each tensor, also in modules and gradients.

    A module comes back as another one, with the ids of its parameters, around what `fn` returned.
    """
    if isinstance(value, Tensor):
        return fn(cast("AnyTensor", value))
    if isinstance(value, Module):
        return value.map(lambda path, param: param.around(fn(param.val())))
    return map_parts(lambda part, path: map_tensors(fn, part), value, "")


def tensors_of(value: Any) -> list[AnyTensor]:
    """The tensors in a structure, in order."""
    found: list[AnyTensor] = []

    def visit(tensor: AnyTensor) -> AnyTensor:
        found.append(tensor)
        return tensor

    map_tensors(visit, value)
    return found
