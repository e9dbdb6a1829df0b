"""Phlox's classes as JAX PyTrees: all that have been announced, and those that will be."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.export

from phlox.backend.pytree import Node, Wire, listen

_numbers: dict[str, count[int]] = {}
"""Of the classes that have been announced, by name."""


def _register(node: Node) -> None:
    with_keys = node.flatten_with_keys
    if with_keys is None:
        jax.tree_util.register_pytree_node(node.cls, node.flatten, node.unflatten)
    else:
        jax.tree_util.register_pytree_with_keys(node.cls, _keyed(with_keys), node.unflatten, node.flatten)
    if node.wire is not None:
        _register_wire(node.cls, node.wire)


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
