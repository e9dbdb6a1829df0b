"""Layers and arrays of other libraries in fields: what they are, and how a module can hold them.

Such a layer is neither trained nor saved nor moved with the module, and a compiled program keeps its old weights. So a
field that holds one is refused when the module is walked. Classes are recognised by their names, without an import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from phlox.errors import ModuleError
from phlox.module.fields import Fields, layout_before
from phlox.tensor.engine_arrays import is_array_type


class Outsider(NamedTuple):
    """A kind of objects of another library."""

    description: str
    remedy: str
    """The code to write instead."""
    engine: str
    wrap: str = ""
    """The adapter, if the kind is a layer."""


def _layer(description: str, package: str, engine: str) -> Outsider:
    wrap = f"phlox.interop.{package}.wrap"
    return Outsider(description, f"{wrap}(layer)", engine, wrap)


_ARRAY = "phlox.Param(phlox.tensor(array)) if it is trained, or phlox.Buffer(array)"
_KINDS = {
    ("flax.nnx", "Module"): _layer("a layer of Flax NNX", "flax", "jax"),
    ("flax.nnx", "Rngs"): Outsider("a random stream of Flax NNX", "phlox.random, whose draws need no keys", "jax"),
    ("flax.nnx", "RngStream"): Outsider("a random stream of Flax NNX", "phlox.random, whose draws need no keys", "jax"),
    ("flax.nnx", "Variable"): Outsider("a variable of Flax NNX", _ARRAY.replace("array", "variable[...]"), "jax"),
    ("flax.linen", "Module"): Outsider(
        "a layer of Flax Linen, which has no parameters of its own",
        "phlox.interop.flax.wrap(flax.nnx.bridge.ToNNX(layer, rngs=flax.nnx.Rngs(0)).lazy_init(x))",
        "jax",
        "phlox.interop.flax.wrap",
    ),
    ("equinox", "Module"): _layer("a layer of Equinox", "equinox", "jax"),
    ("torch.nn", "Module"): _layer("a layer of PyTorch", "pytorch", "torch"),
}
_ENGINES = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}


@lru_cache(maxsize=4096)
def foreign(cls: type[Any]) -> Outsider | None:
    """The kind of a class of another library's layers or arrays; None for other classes, and for NumPy arrays."""
    for base in cls.__mro__:
        for (package, name), kind in _KINDS.items():
            if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                return kind
    if not is_array_type(cls):
        return None
    engine = next((_ENGINES[name] for name in map(_package, cls.__mro__) if name in _ENGINES), None)
    return None if engine is None else Outsider(f"an array of {engine}", _ARRAY, engine)


def _package(cls: type[Any]) -> str:
    return cls.__module__.partition(".")[0]


def refuse_foreign(values: Sequence[tuple[str, Any]], modules: Mapping[str, Fields]) -> None:
    """Raise `ModuleError` for layers and arrays of other libraries in fields, given with their paths.

    A module in which a tree function has replaced a part may hold anything.
    """
    rebuilt = [path for path, module in modules.items() if layout_before(module) is not None]
    for path, value in values:
        kind = foreign(cast("type[Any]", type(value)))
        is_rebuilt = any(f"{path}.".startswith(f"{outer}." if outer else "") for outer in rebuilt)
        if kind is not None and not is_rebuilt and not _is_setting(value, kind):
            raise ModuleError(
                f"`{path}` is {kind.description} ({type(value).__name__}), which the module would neither train nor "
                f"save nor move; write {kind.remedy}, or phlox.reference(...) if another model owns it"
            )


def _is_setting(value: Any, kind: Outsider) -> bool:
    """Is it an Equinox object without arrays and modes, such as a solver?"""
    return kind is _KINDS["equinox", "Module"] and not _has_state(value)


def _has_state(value: Any) -> bool:
    cls = cast("type[Any]", type(value))
    if issubclass(cls, dict):
        return any(map(_has_state, value.values()))
    if issubclass(cls, (list, tuple)):
        return any(map(_has_state, value))
    if foreign(cls) is None:
        return False
    fields: dict[str, Any] = getattr(value, "__dict__", {})
    return is_array_type(cls) or cls.__module__.startswith("equinox.nn") or any(map(_has_state, fields.values()))
