"""Objects that a PyTree function puts in place of a parameter's array, and the error when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import Backend, Device, Float, Kind
from phlox.backend.contract.backend import backend_of_arrays, engine_of
from phlox.errors import BackendError, ModuleError
from phlox.host.dtypes import FLOAT_ELEMENTS
from phlox.other_names import class_of
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops, ops_of

ArrayClasses: TypeAlias = "set[tuple[type[Any], Any]]"
"""Classes and element types."""

_proper: dict[Ops, ArrayClasses] = {}


def accepted_classes(ops: Ops) -> ArrayClasses:
    """The class and dtype of arrays that were accepted for tensors of `ops`, so that later ones pass quickly."""
    return _proper.setdefault(ops, set())


def is_proper(ops: Ops, array: Any) -> bool:
    """Is this an array of the engine, or its tracer for one, with the element type of this kind?"""
    engine = engine_of(ops.backend)
    array_class = _class_of_arrays(engine)
    if ops.backend.has_slices:
        array = backend_of_arrays(ops.backend).below(array)
    try:
        if not (engine.is_traced(array) or isinstance(array, array_class or object)):
            return False
        if array.dtype == engine.element(ops.kind):
            if array_class is not None:
                accepted_classes(ops).add((array.__class__, array.dtype))
            return True
    except Exception:  # an object that does not behave like an array
        pass
    return False


def alike(ops: Ops, array: Any) -> Ops | None:
    """The operations for a Float array of the same engine in another precision; None if it is not such an array."""
    if ops.kind is Float:
        for element in FLOAT_ELEMENTS:
            try:
                other_ops = ops_of(ops.backend.with_float(element), Float)
            except BackendError:  # this engine does not have the precision
                continue
            if is_proper(other_ops, array):
                return other_ops
    return None


_MARKERS = {("equinox._tree", "_LeafWrapper"), ("penzai.core.selectors", "_LeafWrapper")}
"""Classes in which tools wrap all leaves, to recognise the leaves that a user's function selects from a tree."""


def is_marker(leaf: object) -> bool:
    """Is it such a wrapper? Then its parameter is a node of the tree, so that the tool finds the parameter."""
    cls = type(leaf)
    return (cls.__module__, cls.__name__) in _MARKERS


_classes: dict[Backend, type[Any]] = {}


def _class_of_arrays(engine: Backend) -> type[Any] | None:
    """The class of the engine's arrays; None if it is not known yet, because a trace has only tracers."""
    if engine not in _classes:
        array = engine.from_host(np.zeros(1, engine.host_float_dtype), Float, engine.device())
        if engine.is_traced(array):
            return None
        _classes[engine] = type(array)
    return _classes[engine]


@dataclass(frozen=True, slots=True)
class ForeignLeaf:
    """An object that is not an array of the parameter's backend: it stays as a leaf, but its value cannot be used."""

    leaf: Any
    ops: Ops
    path: str

    @property
    def kind(self) -> type[Kind]:
        """The kind of the array that it replaced."""
        return self.ops.kind

    @property
    def has_shape(self) -> bool:
        """Does it have a shape?"""
        return isinstance(getattr(self.leaf, "shape", None), tuple)

    @property
    def is_abstract(self) -> bool:
        """Does it have a shape and an element type, but no values?"""
        return self.has_shape and hasattr(self.leaf, "dtype") and not hasattr(self.leaf, "__array__")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; raises `ModuleError` if it has none."""
        if not self.has_shape:
            raise self.error()
        return cast("tuple[int, ...]", self.leaf.shape)

    @property
    def device(self) -> Device:
        """The device that an array in its place would have."""
        return self.ops.backend.device()

    def seen_from(self, backend: Backend) -> ForeignLeaf:
        """The same leaf for a parameter on another backend over this engine."""
        return ForeignLeaf(self.leaf, ops_of(backend, self.ops.kind), self.path)

    def to_tensor(self, path: str = "") -> Tensor[Any, Any, Any]:
        """A tensor of its values, if it is a NumPy array of the right element type; otherwise `ModuleError`.

        `path` is the path of its parameter in the largest module that is known to hold it.
        """
        engine = engine_of(self.ops.backend)
        is_numpy = isinstance(self.leaf, (np.ndarray, np.generic))
        host: Any = np.asarray(self.leaf) if is_numpy else None
        if host is None or host.dtype != engine.host_dtype(self.ops.kind):
            raise self.error(path)
        array = engine.from_host(host, self.ops.kind, engine.device())
        return Tensor.from_primitive(array, self.ops.backend, self.ops.kind)

    def error(self, path: str = "") -> ModuleError:
        """The error when its value is used."""
        backend, kind, leaf = self.ops.backend, self.ops.kind, self.leaf
        engine = engine_of(backend)
        owner = f"`{path or self.path}` is a {kind.__name__} parameter on {backend!r} ({engine.host_dtype(kind).name})"
        if not (self.has_shape and hasattr(leaf, "dtype")):
            return ModuleError(
                f"{owner}, and a PyTree function (jax.tree.map, tree_unflatten) gave it {class_of(leaf)}; "
                "to compute with the module, it must give an array for each array"
            )
        element_and_shape = f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
        if self.is_abstract:
            return ModuleError(
                f"{owner} that is abstract: {element_and_shape} without values; create the module to compute with "
                "it, or pass it to jax.eval_shape"
            )
        if isinstance(leaf, (_class_of_arrays(engine) or np.ndarray, np.ndarray)):
            return ModuleError(
                f"{owner}, and a PyTree function gave it an array of {element_and_shape}; keep the element type, or "
                "move the whole module with .to_device(...) to a backend of that type"
            )
        return ModuleError(
            f"{owner}, and a PyTree function gave it {class_of(leaf)} of {element_and_shape}; move the module to "
            "the backend of such arrays before, with .to_device(...)"
        )
