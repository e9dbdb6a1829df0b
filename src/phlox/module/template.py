"""Modules as flat lists for compiled functions: the parameters' arrays, and an interned structure around them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from inspect import isdatadescriptor
from typing import Any, NamedTuple, cast

from phlox.backend import Backend, Device
from phlox.backend.contract.backend import backend_of_arrays
from phlox.errors import ModuleError
from phlox.module.donated import Donated
from phlox.module.fields import Fields, materialize, own_dict, set_pending, set_slot
from phlox.module.foreign_leaf import ForeignLeaf, accepted_classes, is_proper
from phlox.module.param import Param, ParamId
from phlox.module.statics import ByIdentity, Static, StaticSet, constant_key, open_objects, static_key
from phlox.module.structure import Container, Part, Structure, build
from phlox.tensor import Tensor
from phlox.tensor.engine_arrays import is_array
from phlox.tensor.tensor import wrap

LOOKUP = ("__getattr__", "__getattribute__")


class Template:
    """An interned structure: modules of equal structure share one object, so comparison is by identity.

    It holds everything to build a module from arrays, except the parameter ids.
    """

    __slots__ = ("__weakref__", "_types", "cls", "eager", "marks", "paths", "plain", "skeleton")

    def __init__(self, structure: Structure) -> None:
        self.skeleton = structure.skeleton
        self.cls = cls = structure.skeleton.cls
        self.paths = tuple(structure.paths)
        self.marks = tuple(param.mark for param in structure.params)
        self.plain = not any(ops.backend.differentiates for ops, *_ in self.marks)
        self._types = tuple([accepted_classes(ops) for ops, *_ in self.marks])
        # Fields are built when Python does not find an attribute. This fails if a field hides an attribute of its class
        # (except a property, which comes before the field), or if the class has its own attribute lookup.
        hiding = [getattr(cls, str(name)) for name in structure.skeleton.keys if hasattr(cls, str(name))]
        looked_up = any(getattr(cls, name) is not getattr(Fields, name) for name in LOOKUP)
        # A module that holds objects that can be changed must be compared at each use.
        changing = any(open_objects(value) for _, value in _static_fields(self.skeleton, ""))
        self.eager = looked_up or changing or not all(map(isdatadescriptor, hiding))

    def build(self, arrays: Sequence[Any], ids: tuple[ParamId, ...]) -> Any:
        """A module around these arrays; using an object that is not an array of the backend raises an error."""
        if len(arrays) != len(self.paths):
            raise ModuleError(
                f"a {self.cls.__name__} is built from {len(self.paths)} arrays ({self._shown()}), got {len(arrays)}; "
                "a function over the leaves of a PyTree must return as many leaves as it got, in their order"
            )
        revive = Param.revive
        params: list[Param] = []
        for (ops, trained, able, full), types, array, id in zip(self.marks, self._types, arrays, ids, strict=True):
            try:
                is_accepted = (array.__class__, array.dtype) in types or is_proper(ops, array)
            except Exception:  # it has no element type, or one that cannot be compared
                is_accepted = is_proper(ops, array)
            if is_accepted:
                params.append(revive(ops, array, trained, able, id, full))
            else:
                placeholder = array if isinstance(array, Donated) else ForeignLeaf(array, ops, self.paths[len(params)])
                params.append(Param.without_array(placeholder, trained, able, id, full))
        return build(self.skeleton, params)

    def described(self) -> str:
        """Parameters and static fields on one line, for errors about differing structures."""
        marked = zip(self.paths, self.marks, strict=True)
        params = [path if trained else f"{path} (not trained)" for path, (_, trained, *_) in marked]
        fields = [f"{path}={' '.join(repr(value).split())[:60]}" for path, value in _static_fields(self.skeleton, "")]
        return f"{self.cls.__name__}[{'; '.join([', '.join(params), *fields])}]"

    def _shown(self) -> str:
        return ", ".join(self.paths[:6]) + (", ..." if len(self.paths) > 6 else "")


_templates: weakref.WeakValueDictionary[Hashable, Template] = weakref.WeakValueDictionary()


class Aux:
    """The structure of a module as compiled functions see it: equal if they have the same template."""

    __slots__ = ("ids", "template")

    def __init__(self, template: Template, ids: tuple[ParamId, ...]) -> None:
        self.template = template
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return self.template is other.template if isinstance(other, Aux) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.template)

    def __repr__(self) -> str:
        return self.template.described()

    def fields(self, module: Any, arrays: tuple[Any, ...]) -> dict[str, Any]:
        """The fields of a module of this structure around these arrays."""
        return own_dict(self.template.build(arrays, self.ids))


def aux_of(structure: Structure) -> Aux:
    """The interned structure, and the ids; `ModuleError`, with the path, for a static value without a hash."""
    aux: Aux | None = structure.aux
    if aux is None:
        key = (_key_of(structure.skeleton, ()), tuple([param.mark for param in structure.params]))
        try:
            template = _templates.get(key)
        except Exception as error:
            raise refuse_incomparable(list(_static_fields(structure.skeleton, "")), error) from error
        if template is None:
            template = _templates.setdefault(key, Template(structure))
        aux = Aux(template, tuple([param.id for param in structure.params]))
        # Not cached if a static value is a tracer: each use checks whether its transformation has ended.
        traced_paths = [path for path, value in _static_fields(structure.skeleton, "") if is_passing(path, value)]
        if not traced_paths:
            structure.aux = aux
    return aux


def _static_fields(part: Part, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(part, Container):
        for key, child in zip(part.keys, part.children, strict=True):
            yield from _static_fields(child, f"{path}.{key}" if path else str(key))
    elif isinstance(part, Static):
        yield path, part.value


def is_passing(path: str, value: Any) -> bool:
    """Is this static value a tracer of a running transformation? Raises `ModuleError` if it has ended."""
    if not isinstance(value, Tensor):
        return False
    tensor = cast("Tensor[Any, Any, Any]", value)
    traced = tensor.backend.is_traced(tensor.primitive)
    if traced and backend_of_arrays(tensor.backend).is_leaked(tensor.backend.strip(tensor.primitive), surely=True):
        raise leaked_tracer(path)
    return traced


def _key_of(part: Part, path: tuple[str, ...]) -> Hashable:
    match part:
        case Static():
            return key_of_static(part, ".".join(path))
        case Container(cls, keys, children, _):
            parts = zip(keys, children, strict=True)
            kinds = tuple([static_key(key) for key in keys]) if issubclass(cls, dict) else keys
            return (cast("type[Any]", cls), kinds, tuple([_key_of(child, (*path, str(key))) for key, child in parts]))
        case _:
            return part


def key_of_static(part: Static, path: str) -> Hashable:
    """A key that is equal for equal static fields; `ModuleError`, with the path, if it cannot be compared."""
    value: Any = part.value
    if isinstance(part, StaticSet):
        return set, static_key(value)
    if isinstance(value, Tensor):
        return ByIdentity(cast("object", value))
    try:
        return constant_key(value)
    except TypeError as error:
        raise _incomparable(path, value, error) from None


def _incomparable(path: str, value: object, error: Exception) -> ModuleError:
    return ModuleError(
        f"the static field `{path}` is of type {type(value).__name__}, which cannot be compared ({error}) and so "
        "cannot pass through a transformation; "
        + ("make it a phlox.Buffer" if is_array(value) else "make it a tuple or a frozen dataclass")
    )


def refuse_incomparable(statics: list[tuple[str, Any]], error: Exception) -> ModuleError:
    """The error if comparing static fields with those of another module failed; it names the field."""
    suspects = [(path, value) for path, value in statics if type(value).__eq__ is not object.__eq__] or statics

    def fails(value: Any) -> bool:
        try:
            return not isinstance(value == value, bool)
        except Exception:
            return True

    suspects.sort(key=lambda item: (not fails(item[1]), "__eq__" not in vars(cast("type[Any]", type(item[1])))))
    path, value = suspects[0]
    return _incomparable(path, value, TypeError(f"its == fails with {type(error).__name__}: {error}"))


class Kept(NamedTuple):
    """A structure and arrays, from which the fields are built when one is read."""

    aux: Aux
    arrays: tuple[Any, ...]


def kept(module: Any) -> Kept | None:
    """The structure and arrays of a module whose fields are not built yet; None if they are built now."""
    pending = module._phlox_pending
    if pending.__class__ is Kept or pending is None:
        return pending
    materialize(module)
    return None


plain_values: set[type[Any]] = set()
"""Classes of leaves that are not tracers of a transformation."""


def flatten(module: Any) -> tuple[tuple[Any, ...], Aux]:
    """The arrays of the parameters, without a tape, and the structure; deferred parameters get their values.

    Raises `ModuleError`, with the path, for a tracer leaked from a transformation that has ended.
    """
    pending = module._phlox_pending
    if pending is not None and pending.__class__ is not Kept:
        pending = kept(module)
    if pending is not None:
        aux, arrays = pending
        if arrays and arrays[0].__class__ not in plain_values:  # all of them come from one call
            _check_leaked(aux.template, arrays)
        return arrays, aux
    structure: Structure = module.structure()
    try:
        arrays = [param._tensor.primitive for param in structure.params]  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    except AttributeError:
        for param in structure.params:
            if param.is_deferred:
                param.init()
        arrays = [param.leaf for param in structure.params]
    aux = aux_of(structure)
    template = aux.template
    if not template.plain:
        arrays = [ops.backend.strip(array) for (ops, *_), array in zip(template.marks, arrays, strict=True)]
    if not plain_values.issuperset(map(type, arrays)):
        _check_leaked(template, arrays)
    return tuple(arrays), aux


def _check_leaked(template: Template, leaves: Sequence[Any]) -> None:
    for path, (ops, *_), leaf in zip(template.paths, template.marks, leaves, strict=True):
        engine = backend_of_arrays(ops.backend)
        if isinstance(leaf, Donated):
            leaf.to_tensor()
        elif not engine.is_traced(leaf):
            plain_values.add(leaf.__class__)
        elif engine.is_leaked(leaf, surely=True):
            raise leaked_tracer(path)


def donate(module: Any, recipient: str, *, failed: bool = False) -> None:
    """Release the values of all parameters, because `recipient` may overwrite them; later use raises `DonatedError`.

    `failed` says that `recipient` overwrote them and then failed, so there are no new values.
    """
    pending = kept(module)
    if pending is None:
        for path, param in module.named_params():
            param.donate(path, recipient, failed=failed)
        return
    aux, arrays = pending
    template: Template = aux.template
    devices: dict[Backend, Device] = {}
    placeholders: list[Donated] = []
    for path, (ops, *_), array in zip(template.paths, template.marks, arrays, strict=True):
        device = devices.get(ops.backend)
        if device is None:  # one for all parameters, because asking the engine is slow
            engine = backend_of_arrays(ops.backend)
            # An engine does not know the device of an array that it has lost.
            device = engine.device() if failed else engine.device_of(array)
            device = devices[ops.backend] = device.on(ops.backend)
        placeholders.append(Donated(ops, array.shape, device, path, recipient, failed))
    set_slot(module, "_phlox_pending", Kept(aux, tuple(placeholders)))


def restore(module: Any, arrays: Sequence[Any]) -> None:
    """Give values to all parameters of a module that were donated."""
    pending = kept(module)
    if pending is not None:
        set_slot(module, "_phlox_pending", Kept(pending[0], tuple(arrays)))
        return
    for param, array in zip(module.params(), arrays, strict=True):
        ops = param.mark[0]
        param.restore(wrap(ops, array))


def leaked_tracer(path: str) -> ModuleError:
    """The error for a value that is used after the end of its transformation."""
    return ModuleError(
        f"`{path}` holds a value from inside a JAX transformation (jit, grad, vmap, scan) that has ended; return the "
        "value as a result, or pass the module in as an argument and return it"
    )


def unflatten(aux: Aux, arrays: Any) -> Any:
    """A module of this structure around other arrays, which are checked when they are used."""
    template: Template = aux.template
    if template.eager:
        return template.build(tuple(arrays), aux.ids)
    module: Any = object.__new__(template.cls)
    set_pending(module, Kept(aux, tuple(arrays)))
    return module
