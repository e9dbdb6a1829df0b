"""Phlox's classes as JAX PyTrees: all classes registered before or after this import."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.export

from phlox.backend.jax.compat import differentiates, note_keeping, transformation
from phlox.backend.pytree import (
    FIELD,
    INDEX,
    ITEM,
    PyTreeNode,
    StructureSerializer,
    add_listener,
    ask,
)

_numbers: dict[str, count[int]] = {}
"""The number of registered classes of each name."""


def _register(node: PyTreeNode) -> None:
    with_keys, flatten = node.flatten_with_keys, node.flatten
    if with_keys is None:
        jax.tree_util.register_pytree_node(node.cls, flatten, node.unflatten)
    else:
        jax.tree_util.register_pytree_with_keys(node.cls, _keyed(with_keys), node.unflatten, flatten)
    if node.serializer is not None:
        _register_serializer(node.cls, node.serializer)


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


_KEYS: dict[str, Any] = {
    FIELD: jax.tree_util.GetAttrKey,
    INDEX: jax.tree_util.SequenceKey,
    ITEM: jax.tree_util.DictKey,
}


def _keyed(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(value)
        return [(_KEYS[kind](key), leaf) for (kind, key), leaf in leaves], structure

    return flatten_with_keys


add_listener(_register)
ask(transformation, differentiates)
note_keeping()
