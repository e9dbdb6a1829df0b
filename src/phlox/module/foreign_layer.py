"""Layers and arrays of other libraries in fields: what they are, and how a module takes them.

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


class Foreign(NamedTuple):
    """A kind of objects of another library."""

    what: str
    remedy: str
    """The line to write instead."""
    engine: str
    wrap: str = ""
    """The adapter, if it is one of layers."""


def _layer(what: str, package: str, engine: str) -> Foreign:
    wrap = f"phlox.interop.{package}.wrap"
    return Foreign(what, f"{wrap}(layer)", engine, wrap)


_ARRAY = "phlox.Param(phlox.tensor(array)) if it is trained, or phlox.Buffer(array)"
_KINDS = {
    ("flax.nnx", "Module"): _layer("a layer of Flax NNX", "flax", "jax"),
    ("flax.nnx", "Rngs"): Foreign("a random stream of Flax NNX", "phlox.random, whose draws need no keys", "jax"),
    ("flax.nnx", "RngStream"): Foreign("a random stream of Flax NNX", "phlox.random, whose draws need no keys", "jax"),
    ("flax.nnx", "Variable"): Foreign("a variable of Flax NNX", _ARRAY.replace("array", "variable[...]"), "jax"),
    ("flax.linen", "Module"): Foreign(
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
def foreign(cls: type[Any]) -> Foreign | None:
    """What a class of another library's layers or arrays is; None for any other class, and for NumPy's arrays."""
    for base in cls.__mro__:
        for (package, name), kind in _KINDS.items():
            if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                return kind
    if not is_array_type(cls):
        return None
    engine = next((_ENGINES[name] for name in map(_package, cls.__mro__) if name in _ENGINES), None)
    return None if engine is None else Foreign(f"an array of {engine}", _ARRAY, engine)


def _package(cls: type[Any]) -> str:
    return cls.__module__.partition(".")[0]


def refuse_foreign(found: Sequence[tuple[str, Any]], modules: Mapping[str, Fields]) -> None:
    """Raise `ModuleError` for layers and arrays of other libraries in fields, given with their paths.

    In a module in which a function over trees has put something else into the place of a part, anything may stand.
    """
    rebuilt = [path for path, module in modules.items() if layout_before(module) is not None]
    for path, value in found:
        kind = foreign(cast("type[Any]", type(value)))
        inside = any(f"{path}.".startswith(f"{around}." if around else "") for around in rebuilt)
        if kind is not None and not inside and not _is_setting(value, kind):
            raise ModuleError(
                f"`{path}` is {kind.what} ({type(value).__name__}), which the module would neither train nor save nor "
                f"move; write {kind.remedy}, or phlox.reference(...) if it belongs to somebody else"
            )


def _is_setting(value: Any, kind: Foreign) -> bool:
    """Is it an object of Equinox's without arrays and modes, such as a solver?"""
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
