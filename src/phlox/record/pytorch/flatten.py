"""From nested containers to the paths of a record.

A dict is a level of paths, whatever it holds; a list or tuple is one only where there is a tensor in it, by its numbers
from 0, and otherwise one plain value. Keys are text or ints; the dots that a key has, as those of a state dict do,
count as levels. An empty dict is a plain value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, cast

import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import Array, checked_shape
from phlox.record.pytorch.values import (
    ElementType,
    Meter,
    NumpyArray,
    NumpyType,
    Pairs,
    Refused,
    Strided,
    called,
    shown,
)
from phlox.record.values import Value

Leaf: TypeAlias = "Strided | Array | Value"

_MAX_DEPTH = 64
_REMEDY = "save the state_dict() alone, or what holds it without this, with torch.save or safetensors"


def flatten(root: object, meter: Meter) -> dict[str, Leaf]:
    """The tensors and plain values in `root`, an inert pickle, by path; a tensor alone is called "data".

    RecordError naming the path of what a record cannot hold, for keys that make no path, and for two entries of one.

    >>> from phlox.record.pytorch.values import Pairs
    >>> flatten(Pairs([("net", Pairs([("a.b", True)])), (0, [1, (2, "x")])]), Meter(100))
    {'net.a.b': True, '0': [1, [2, 'x']]}
    """
    entries: dict[str, Leaf] = {}
    if isinstance(root, (Strided, Refused)) or (isinstance(root, NumpyArray) and not root.is_scalar):
        root = Pairs([("data", root)])
    if not isinstance(root, Pairs) and not _holds_tensor(root, meter, 0):
        raise RecordError(f"it holds {called(root)}, and no tensor by name; {_REMEDY}")
    _visit(root, "", entries, meter, 0)
    return entries


def _visit(node: object, path: str, entries: dict[str, Leaf], meter: Meter, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise RecordError(f"{shown(path)}: it nests more than {_MAX_DEPTH} levels deep")
    children = _children(node, meter, depth)
    if children is None or (path and not children):
        meter.charge(len(path))
        if path in entries:
            raise RecordError(f"two entries of it have the path {shown(path)!r}; rename one before saving")
        entries[path] = _leaf(node, path, meter)
        return
    before = path + "." if path else ""
    for key, child in children.items():
        if not all(key.split(".")):
            raise RecordError(
                f"{shown(path)}: the key {shown(key)!r} makes no path, which is names joined by dots, none of them "
                "empty; rename it before saving"
            )
        _visit(child, before + key, entries, meter, depth + 1)


def _children(node: object, meter: Meter, depth: int) -> dict[str, object] | None:
    """What is below `node`, where it is a level of paths."""
    if isinstance(node, Pairs):
        return _keyed(node, meter)
    if isinstance(node, (list, tuple)) and _holds_tensor(node := cast("list[object]", node), meter, depth):
        return {str(i): item for i, item in enumerate(node)}
    return None


def _keyed(node: Pairs, meter: Meter) -> dict[str, object]:
    """The items by key as text; the later of two under one key, as in Python; RecordError where "0" and 0 are both."""
    result: dict[str, object] = {}
    kinds: dict[str, type] = {}
    for key, item in node.items:
        text = _key(key)
        meter.charge(1 + len(text))
        if kinds.setdefault(text, type(key)) is not type(key):
            raise RecordError(f"a dict of it has {shown(text)!r} as text and as an int; rename one before saving")
        result[text] = item
    return result


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if type(key) is int and -(2**63) <= key < 2**64:
        return str(key)
    raise RecordError(
        f"{called(key)} is the key of a dict; those of a record are text or ints. Rename it before saving"
    )


def _holds_tensor(node: object, meter: Meter, depth: int) -> bool:
    meter.charge(1)
    if depth > _MAX_DEPTH:
        raise RecordError(f"it nests more than {_MAX_DEPTH} levels deep")
    children: Iterable[object] = ()
    if isinstance(node, (list, tuple)):
        children = cast("list[object]", node)
    elif isinstance(node, Pairs):
        children = (item for _, item in node.items)
    elif isinstance(node, NumpyArray):
        return not node.is_scalar
    return isinstance(node, (Strided, Refused)) or any(_holds_tensor(child, meter, depth + 1) for child in children)


def _leaf(node: object, path: str, meter: Meter) -> Leaf:
    if isinstance(node, Strided):
        if node.type.dtype is None:
            raise RecordError(
                f"{shown(path)}: a tensor of {node.type.name}, which a record cannot hold; cast it before saving"
            )
        return node
    if isinstance(node, NumpyArray) and not node.is_scalar:
        return numpy_array(node, path)
    return _plain(node, path, meter, 0)


def _plain(node: object, path: str, meter: Meter, depth: int) -> Value:
    if depth > _MAX_DEPTH:
        raise RecordError(f"{shown(path)}: it nests more than {_MAX_DEPTH} levels deep")
    if isinstance(node, str):
        meter.charge(1 + len(node))
        return node
    meter.charge(1)
    if node is None or isinstance(node, (bool, int, float)):
        return node
    if isinstance(node, (list, tuple)):
        return [_plain(item, path, meter, depth + 1) for item in cast("list[object]", node)]
    if isinstance(node, Pairs):
        return {key: _plain(item, path, meter, depth + 1) for key, item in _keyed(node, meter).items()}
    if isinstance(node, NumpyArray):
        return numpy_array(node, path).item()
    if isinstance(node, ElementType):
        return node.name
    raise RecordError(f"{shown(path)}: {called(node)}, which a record cannot hold; {_REMEDY}")


def numpy_array(node: NumpyArray, path: str) -> Array:
    """The array that `node` describes, a view of its bytes; RecordError where it does not fit them."""
    if not isinstance(node.type, NumpyType):
        what = node.type.what if node.type is not None else "a NumPy array without its elements"
        raise RecordError(f"{shown(path)}: {what}, which a record cannot hold; {_REMEDY}")
    dtype = np.dtype((">" if node.type.big_endian else "<") + node.type.name)
    shape = checked_shape(node.shape, dtype, path)
    flat = np.frombuffer(node.data, dtype)
    if dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise RecordError(f"{shown(path)}: it holds bytes other than 0 and 1 as booleans")
    return flat.reshape(shape, order="F" if node.is_fortran else "C")
