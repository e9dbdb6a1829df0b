"""Phlox's classes as JAX PyTrees: all that are registered, now and later."""

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
from phlox.backend.pytree import PyTreeNode, StructureSerializer, add_listener
from phlox.errors import KindError

_numbers: dict[str, count[int]] = {}
"""How many classes of each name have been registered."""


def _register(node: PyTreeNode) -> None:
    with_keys, flatten = node.flatten_with_keys, node.flatten
    if node.integers is not None:
        flatten = _with_integers_refused(flatten, node.integers)
    if with_keys is None:
        jax.tree_util.register_pytree_node(node.cls, flatten, node.unflatten)
    else:
        jax.tree_util.register_pytree_with_keys(node.cls, _keyed(with_keys), node.unflatten, flatten)
    if node.serializer is not None:
        _register_serializer(node.cls, node.serializer)


def _with_integers_refused(
    flatten: Callable[[Any], tuple[Any, Any]], integers: Callable[[Any], Iterable[str]]
) -> Callable[[Any], tuple[Any, Any]]:
    """As `flatten`, with a better error where JAX is about to differentiate with respect to an integer.

    JAX's own error cannot say which leaf it is.
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


def _register_serializer(cls: type[Any], serializer: StructureSerializer) -> None:
    shell: Any = serializer.shell
    name = f"{cls.__module__}.{cls.__qualname__}"
    number = next(_numbers.setdefault(name, count(1)))
    jax.export.register_pytree_node_serialization(
        cls,
        # A class that is defined again, as in a notebook, gets another name: earlier exports belong to the first.
        serialized_name=name if number == 1 else f"{name}#{number}",
        serialize_auxdata=serializer.to_bytes,
        deserialize_auxdata=serializer.from_bytes,
        from_children=shell,
    )


def _keyed(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(value)
        return [(jax.tree_util.GetAttrKey(str(key)), leaf) for key, leaf in leaves], structure

    return flatten_with_keys


add_listener(_register)
