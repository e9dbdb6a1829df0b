"""Phlox's classes as JAX PyTrees: all that have been announced, and those that will be."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from phlox.backend.pytree import Node, listen


def _register(node: Node) -> None:
    with_keys = node.flatten_with_keys
    if with_keys is None:
        jax.tree_util.register_pytree_node(node.cls, node.flatten, node.unflatten)
    else:
        jax.tree_util.register_pytree_with_keys(node.cls, _keyed(with_keys), node.unflatten, node.flatten)


def _keyed(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(value)
        return [(jax.tree_util.GetAttrKey(str(key)), leaf) for key, leaf in leaves], structure

    return flatten_with_keys


listen(_register)
