"""The operations of the contract by name: which are required, which derived, and which native on an engine."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.backend import Backend
from phlox.backend.contract.collectives import CollectiveOps
from phlox.backend.contract.meshes import MeshOps
from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, RandomOps, ShapeOps
from phlox.backend.contract.tracing import TracingOps
from phlox.errors import BackendError

Provision: TypeAlias = Literal["native", "derived", "unsupported"]

_REQUIRED = (ShapeOps, FloatOps, IntOps, BoolOps, RandomOps)

REQUIRED: frozenset[str] = frozenset(name for family in _REQUIRED for name in family.__annotations__)
"""The operations that a backend must have."""

_NO_FAMILIES = (Backend, ArrayOps, TracingOps, MeshOps, CollectiveOps)
_FAMILIES = [cls for cls in Backend.__mro__ if issubclass(cls, ArrayOps) and cls not in _NO_FAMILIES]

DERIVED: dict[str, type[Any]] = {
    name: family
    for family in reversed(_FAMILIES)
    for name, value in vars(family).items()
    if not name.startswith("_") and (callable(value) or isinstance(value, staticmethod))
} | {"detach": ArrayOps}
"""The operations that are defined by other operations, and the family that defines each."""

OPERATIONS: frozenset[str] = REQUIRED | DERIVED.keys()
"""All operations."""


_PARTS = ("_forward", "_backward", "_dx", "_dw")


def families() -> dict[str, list[str]]:
    """The operations by family, without the forward and backward functions of composites, which are parts of these."""
    named = {f"required: {family.__name__.removesuffix('Ops').lower()}": family.__annotations__ for family in _REQUIRED}
    names_by_family = {title: list(names) for title, names in named.items()}
    for family in reversed(_FAMILIES):
        members = [name for name, owner in DERIVED.items() if owner is family and composite_of(name) == name]
        if members:
            names_by_family[family.__name__.removesuffix("Ops").lower()] = members
    return names_by_family


def composite_of(name: str) -> str:
    """The composite `f` that `f_forward` or `f_backward` is part of; any other operation itself."""
    return next((cut for suffix in _PARTS if (cut := name.removesuffix(suffix)) != name and cut in OPERATIONS), name)


def provision(backend: Backend, name: str) -> Provision:
    """How a backend implements an operation: natively, by the contract's definition, or not at all.

    A composite is native if any of its functions is.
    """
    try:
        getattr(backend, name)
    except BackendError:
        return "unsupported"
    parts = [name + suffix for suffix in ("", *_PARTS) if name + suffix in OPERATIONS]
    return "derived" if all(_is_derived(backend, part) for part in parts) else "native"


def _is_derived(backend: Backend, name: str) -> bool:
    override = vars(backend).get(name)
    if override is not None and not hasattr(override, "__wrapped__"):  # a wrapped function is the class's own
        return False
    owner = next((cls for cls in type(backend).__mro__ if name in vars(cls)), None)
    return owner is DERIVED.get(name, Backend)
