"""Modules as PyTrees: the arrays of the parameters, and an interned structure around them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from typing import Any, cast

from phlox.errors import ModuleError
from phlox.module.fields import Fields, postpone
from phlox.module.param import Param, ParamId
from phlox.module.structure import ByIdentity, Container, Part, Static, Structure, build, static_key
from phlox.tensor import Tensor

_LOOKUP = ("__getattr__", "__getattribute__")


class Template:
    """An interned structure: modules built alike share one, so comparing structures is comparing identities.

    It holds what a module is built from when only arrays are given, and no id of any parameter.
    """

    __slots__ = ("__weakref__", "cls", "eager", "marks", "paths", "plain", "skeleton")

    def __init__(self, structure: Structure) -> None:
        self.skeleton = structure.skeleton
        self.cls = cls = structure.skeleton.cls
        self.paths = tuple(structure.paths)
        self.marks = tuple(param.mark for param in structure.params)
        self.plain = not any(ops.backend.differentiates for ops, _, _ in self.marks)
        # An object that is built on first access would miss a field that hides an attribute of its class, and relies on
        # being asked for attributes that are not there.
        hidden = any(hasattr(cls, str(name)) for name in structure.skeleton.keys)
        self.eager = hidden or any(getattr(cls, name) is not getattr(Fields, name) for name in _LOOKUP)

    def build(self, arrays: Iterable[Any], ids: tuple[ParamId, ...]) -> Any:
        """A module around these arrays."""
        revive = Param.revive
        parts = zip(self.marks, arrays, ids, strict=True)
        params = [revive(ops, array, trained, trainable, id) for (ops, trained, trainable), array, id in parts]
        return build(self.skeleton, params)


_templates: weakref.WeakValueDictionary[Hashable, Template] = weakref.WeakValueDictionary()


class Aux:
    """The structure of a module as JAX sees it: equal for modules built alike, whatever their parameters' ids.

    So that two models of one architecture share a compilation. What comes out of a raw `jax.jit` has therefore the ids
    of the module that it was first called with; `phlox.compile` gives every module its own.
    """

    __slots__ = ("ids", "template")

    def __init__(self, template: Template, ids: tuple[ParamId, ...]) -> None:
        self.template = template
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aux) and self.template is other.template

    def __hash__(self) -> int:
        return hash(self.template)

    def __repr__(self) -> str:
        return f"{self.template.cls.__name__}[{', '.join(self.template.paths)}]"


def aux_of(structure: Structure) -> Aux:
    """The interned structure, and the ids; `ModuleError`, with the path, for a static value without a hash."""
    known: Aux | None = structure.aux
    if known is None:
        key = (_key_of(structure.skeleton, ()), tuple(param.mark for param in structure.params))
        template = _templates.get(key)
        if template is None:
            template = _templates.setdefault(key, Template(structure))
        known = structure.aux = Aux(template, tuple(param.id for param in structure.params))
    return known


def _key_of(part: Part, path: tuple[str, ...]) -> Hashable:
    match part:
        case Static(value):
            if isinstance(value, Tensor):
                return ByIdentity(value)
            try:
                return static_key(value)
            except TypeError:
                raise ModuleError(
                    f"the static field `{'.'.join(path)}` is of type {type(value).__name__}, which cannot be compared "
                    "and so cannot pass through a transformation; make it a tuple, a frozen dataclass, or a Param of a "
                    "tensor"
                ) from None
        case Container(cls, keys, children, _):
            parts = zip(keys, children, strict=True)
            kinds = tuple([static_key(key) for key in keys]) if issubclass(cls, dict) else keys
            return (cast("type[Any]", cls), kinds, tuple([_key_of(child, (*path, str(key))) for key, child in parts]))
        case _:
            return part


def flatten(module: Any) -> tuple[tuple[Any, ...], Aux]:
    """The arrays of the parameters, without a tape, and the structure; deferred parameters are made."""
    pending = module._pending
    if pending is not None:
        return pending[1], pending[0]
    structure: Structure = module.structure()
    for param in structure.params:
        if not param.is_initialized:
            param.init()
    structure = module.structure()
    aux = aux_of(structure)
    values = [param.val() for param in structure.params]
    if aux.template.plain:
        return tuple([value.primitive for value in values]), aux
    return tuple([value.backend.strip(value.primitive) for value in values]), aux


def flatten_with_keys(module: Any) -> tuple[Any, Aux]:
    """As `flatten`, with the path beside each array."""
    arrays, aux = flatten(module)
    return list(zip(aux.template.paths, arrays, strict=True)), aux


def unflatten(aux: Aux, arrays: Any) -> Any:
    """A module of this structure around other arrays; never validates, since JAX passes placeholders of any kind."""
    template = aux.template
    if template.eager:
        return template.build(arrays, aux.ids)
    module = object.__new__(template.cls)
    postpone(module, (aux, tuple(arrays)))
    return module
