"""Flatten nested containers to the paths of a record.

A dict is always a level of paths. A list or tuple is a level, with indices from 0, only if it contains a tensor;
otherwise it is one plain value. Keys are strings or ints; dots in a key, as in a state dict, count as levels. An empty
dict is a plain value. A module is a level of its parameters, buffers and modules.

Values that a record cannot hold are listed with the reason; everything else is still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.record.dtypes import Array, checked_shape
from phlox.record.entry import LazyTensor
from phlox.record.formats.pytorch.values import (
    PLAINLY,
    ElementType,
    NumpyArray,
    NumpyType,
    Object,
    Pairs,
    Strided,
    Unreadable,
    WorkBudget,
    described,
)
from phlox.record.record import UnreadableEntryError, check_name
from phlox.record.values import Value, checked_value

Leaf: TypeAlias = "Strided | LazyTensor | Array | Value"

_MAX_DEPTH = 64


class Flat(NamedTuple):
    """The entries of a record, and the unreadable ones."""

    entries: dict[str, Leaf]
    unreadable: dict[str, str]
    """Path -> why."""


def flatten(root: object, budget: WorkBudget) -> Flat:
    """The tensors and plain values in `root`, an inert pickle, by path; a single tensor is called "data".

    Unreadable entries, with the reason, are: values that a record cannot hold, keys that are not valid paths, and a
    second entry of one path. Raises RecordError if nothing has a name, and for excessive nesting.

    >>> from phlox.record.formats.pytorch.values import Pairs
    >>> flatten(Pairs([("net", Pairs([("a.b", True)])), (0, [1, (2, "x")]), (("k",), 3)]), WorkBudget(100))
    Flat(entries={'net.a.b': True, '0': [1, [2, 'x']]}, unreadable={'[a value of type tuple]': 'the keys of ...'})
    """
    if is_tensor(root) or isinstance(root, Unreadable):
        root = Pairs([("data", root)])
    walk = _Walk(budget)
    if _level(root) is None and not (type(root) in (list, tuple) and walk.holds_tensor(root, 0)):
        raise RecordError(
            f"it holds {described(root)}, and no tensor by name; nothing of it was run. If you trust it, load it with "
            "the program that wrote it, and save its tensors by name, in a dict"
        )
    walk.visit(root, "", 0)
    return Flat(walk.entries, walk.unreadable)


def is_tensor(node: object) -> bool:
    """Whether `node` becomes a tensor of a record."""
    return isinstance(node, (Strided, LazyTensor)) or (isinstance(node, NumpyArray) and not node.is_scalar)


class _Walk:
    """One pass over an inert pickle."""

    def __init__(self, budget: WorkBudget) -> None:
        self.budget = budget
        self.entries: dict[str, Leaf] = {}
        self.unreadable: dict[str, str] = {}

    def visit(self, node: object, path: str, depth: int) -> None:
        """Add the content of `node` at `path` or below it."""
        if depth > _MAX_DEPTH:
            raise RecordError(f"{shown(path)}: it nests more than {_MAX_DEPTH} levels deep")
        children = self._children(node, path, depth)
        if children is None or (path and not children):
            self._put(node, path)
            return
        prefix = path + "." if path else ""
        for key, child in children.items():
            try:
                check_name(key)
            except UnreadableEntryError:
                self._list(
                    f"{prefix}{shown(key)}",
                    f"the key {shown(key)!r} makes no path, which is names joined by dots, none of them empty; rename "
                    "it before saving",
                )
            else:
                self.visit(child, prefix + key, depth + 1)

    def holds_tensor(self, node: object, depth: int) -> bool:
        """Whether `node` contains a tensor, or an unreadable one."""
        self.budget.charge(1)
        if depth > _MAX_DEPTH:
            raise RecordError(f"it nests more than {_MAX_DEPTH} levels deep")
        if is_tensor(node) or isinstance(node, Unreadable):
            return True
        children: Iterable[object] = ()
        if isinstance(node, (list, tuple)):
            children = cast("list[object]", node)
        elif (items := _level(node)) is not None:
            children = (item for _, item in items)
        return any(self.holds_tensor(child, depth + 1) for child in children)

    def _children(self, node: object, path: str, depth: int) -> dict[str, object] | None:
        """The children of `node`, if it is a level of paths."""
        if (items := _level(node)) is not None:
            children = self._keyed(items, path)
            if isinstance(node, Pairs) or items is cast("Object", node).items:
                return children
            # In a program, only tensors are state; the rest is its mode, settings and hooks.
            return {key: child for key, child in children.items() if self.holds_tensor(child, depth)}
        if isinstance(node, (list, tuple)) and self.holds_tensor(node := cast("list[object]", node), depth):
            return {str(i): item for i, item in enumerate(node)}
        return None

    def _keyed(self, items: Iterable[tuple[object, object]], path: str | None = None) -> dict[str, object]:
        """The items by key as text; of two with one key, the later, as in Python.

        Items with other keys are listed as unreadable below `path`; without a path, UnreadableEntryError is raised.
        """
        result: dict[str, object] = {}
        kinds: dict[str, type] = {}
        prefix = path + "." if path else ""
        for key, item in items:
            text = _key(key)
            self.budget.charge(1 + len(text or ""))
            if text is None:
                text, reason = f"[{described(key)}]", "the keys of a record are text or ints; rename it before saving"
            elif kinds.setdefault(text, type(key)) is not type(key):
                reason = f"a dict of it has {shown(text)!r} as text and as an int; rename one before saving"
                result.pop(text, None)
            else:
                result[text] = item
                continue
            if path is None:
                raise UnreadableEntryError(reason)
            self._list(prefix + shown(text), reason)
        return result

    def _put(self, node: object, path: str) -> None:
        self.budget.charge(len(path))
        if path in self.entries or path in self.unreadable:
            self.entries.pop(path, None)
            self._list(path, f"two entries of it have the path {shown(path)!r}; rename one before saving")
            return
        try:
            self.entries[path] = self._leaf(node, path)
        except UnreadableEntryError as error:
            self._list(path, str(error))

    def _list(self, path: str, why: str) -> None:
        self.budget.charge(len(path))
        self.unreadable[path] = why

    def _leaf(self, node: object, path: str) -> Leaf:
        if isinstance(node, Strided):
            if node.type.dtype is None:
                raise _error(Unreadable(f"a tensor of {node.type.name}", "cast it before saving"))
            return node
        if isinstance(node, LazyTensor):
            return node
        if isinstance(node, NumpyArray) and not node.is_scalar:
            return numpy_array(node, path)
        value = self._plain(node, path, 0)
        try:
            return checked_value(value, path)
        except RecordError as error:
            raise UnreadableEntryError(str(error).removeprefix(f"{path}: ")) from None

    def _plain(self, node: object, path: str, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise RecordError(f"{shown(path)}: it nests more than {_MAX_DEPTH} levels deep")
        if isinstance(node, str):
            self.budget.charge(1 + len(node))
            return node
        self.budget.charge(1)
        if node is None or isinstance(node, (bool, int, float)):
            return node
        if isinstance(node, (list, tuple)):
            return [self._plain(item, path, depth + 1) for item in cast("list[object]", node)]
        if isinstance(node, Pairs):
            return {key: self._plain(item, path, depth + 1) for key, item in self._keyed(node.items).items()}
        if isinstance(node, NumpyArray):
            array = numpy_array(node, path)
            return (array.astype(np.float64) if array.dtype.kind == "V" else array).item()
        if isinstance(node, ElementType):
            return node.name
        raise _error(node)


def _level(node: object) -> Iterable[tuple[object, object]] | None:
    """The keys and values of a level of paths: a dict, a module, or an object that is filled like a dict."""
    if isinstance(node, Pairs):
        return node.items
    if not isinstance(node, Object):
        return None
    if isinstance(node.state, Pairs):
        if node.name.startswith("__torch__."):  # an object of TorchScript: it has only attributes
            return node.state.items
        parts = {key: part for key, part in node.state.items if isinstance(key, str)}
        if isinstance(parts.get("_modules"), Pairs) and isinstance(parts.get("_parameters"), Pairs):
            return _of_module(parts)
    return node.items or None


def _of_module(parts: dict[str, object]) -> list[tuple[object, object]]:
    """The parameters, buffers and modules of a PyTorch module, as in its state dict."""
    non_persistent = parts.get("_non_persistent_buffers_set")
    unsaved = cast("list[object]", non_persistent) if isinstance(non_persistent, list) else []
    unsaved = {key for key in unsaved if isinstance(key, str)}
    result: list[tuple[object, object]] = []
    for name in ("_parameters", "_buffers", "_modules"):
        if isinstance(part := parts.get(name), Pairs):
            result += [(key, item) for key, item in part.items if not (isinstance(key, str) and key in unsaved)]
    return result


def _key(key: object) -> str | None:
    if isinstance(key, str):
        return key
    return str(key) if type(key) is int and -(2**63) <= key < 2**64 else None


def _error(node: object) -> UnreadableEntryError:
    reason = ": only running code could make it, and nothing of the file was run" if isinstance(node, Object) else ""
    remedy = node.remedy if isinstance(node, Unreadable) else PLAINLY
    return UnreadableEntryError(f"{described(node)}, which a record cannot hold{reason}; {remedy}")


def numpy_array(node: NumpyArray, path: str) -> Array:
    """The array that `node` describes, as a view of its bytes; RecordError if they do not fit."""
    if not isinstance(node.type, NumpyType):
        raise _error(node.type or Unreadable("a NumPy array without its elements"))
    dtype = node.type.dtype.newbyteorder(">") if node.type.big_endian else node.type.dtype
    shape = checked_shape(node.shape, dtype, path)
    flat = np.frombuffer(node.data, dtype)
    if dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise RecordError(f"{shown(path)}: it holds bytes other than 0 and 1 as booleans")
    if node.axes is None:
        return flat.reshape(shape, order="F" if node.is_fortran else "C")
    if sorted(node.axes) != list(range(len(shape))):
        raise RecordError(f"{shown(path)}: the order of its axes is invalid")
    return flat.reshape(shape).transpose(node.axes)
