"""Phlox's classes as JAX PyTrees: all that have been announced, and those that will be."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import jax
import jax.export

from phlox.backend.jax.compat import differentiates
from phlox.backend.pytree import Node, Wire, listen
from phlox.errors import KindError

_numbers: dict[str, count[int]] = {}
"""Of the classes that have been announced, by name."""


def _register(node: Node) -> None:
    with_keys, flatten = node.flatten_with_keys, node.flatten
    if node.integers is not None:
        flatten = _with_integers_refused(flatten, node.integers)
    if with_keys is None:
        jax.tree_util.register_pytree_node(node.cls, flatten, node.unflatten)
    else:
        jax.tree_util.register_pytree_with_keys(node.cls, _keyed(with_keys), node.unflatten, flatten)
    if node.wire is not None:
        _register_wire(node.cls, node.wire)


def _with_integers_refused(
    flatten: Callable[[Any], tuple[Any, Any]], integers: Callable[[Any], Iterable[str]]
) -> Callable[[Any], tuple[Any, Any]]:
    """As `flatten`, but where JAX is about to differentiate towards an integer, its own error is forestalled.

    JAX would say that some leaf is one; it does not know which.
    """

    def flatten_for_jax(value: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(value)
        if (names := integers(structure)) and differentiates():
            which = [f"`{name}`" for name in names]
            are = "is an integer" if len(which) == 1 else "are integers"
            raise KindError(
                f"jax.grad differentiates towards every parameter, and {', '.join(which)} of the "
                f"{type(value).__name__} {are}; use phlox.grad, which finds the gradients of Float parameters, or "
                "jax.grad(..., allow_int=True)"
            )
        return leaves, structure

    return flatten_for_jax


def _register_wire(cls: type[Any], wire: Wire) -> None:
    shell: Any = wire.shell
    name = f"{cls.__module__}.{cls.__qualname__}"
    number = next(_numbers.setdefault(name, count(1)))
    jax.export.register_pytree_node_serialization(
        cls,
        # A class that is defined anew, as in a notebook, is another one: what was exported with the first stays its.
        serialized_name=name if number == 1 else f"{name}#{number}",
        serialize_auxdata=wire.to_bytes,
        deserialize_auxdata=wire.from_bytes,
        from_children=shell,
    )


def _keyed(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(value)
        return [(jax.tree_util.GetAttrKey(str(key)), leaf) for key, leaf in leaves], structure

    return flatten_with_keys


listen(_register)
