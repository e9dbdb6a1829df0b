"""The fields of a module, which may not have been built yet, and the observers of their changes."""

from __future__ import annotations

import weakref
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias
from weakref import WeakValueDictionary

from phlox.backend.pytree import register_with_imported_engines
from phlox.errors import ModuleError
from phlox.other_names import answers, of_object, refuse_options

if TYPE_CHECKING:
    from phlox.module.structure import Structure

set_slot = object.__setattr__
_building = RLock()


class Observer(Protocol):
    """An object that caches the structure of a module."""

    valid: bool
    """Whether the module still has the same parts."""
    ids_differ: bool
    """Whether it is known that no two of its parameters have the same id."""
    aux: Any
    tree: Any
    """The structures around the parameters' values; None if they must be computed again."""


class Watched:
    """A module or a parameter: its observers are notified when it changes."""

    __slots__ = ("__weakref__", "_phlox_watchers")

    _phlox_watchers: tuple[weakref.ref[Observer], ...]

    def watch(self, observer: Observer) -> None:
        """Set `observer.valid` to False at the next change; the observer is not kept alive."""
        refs = self._phlox_watchers
        if refs:
            refs = [ref for ref in refs if (other := ref()) is not None and other.valid]
        set_slot(self, "_phlox_watchers", (*refs, weakref.ref(observer)))

    def changed(self) -> None:
        """Notify the observers that its parts have changed."""
        observers = self._phlox_watchers
        if observers:
            set_slot(self, "_phlox_watchers", ())
            for ref in observers:
                observer = ref()
                if observer is not None:
                    observer.valid = False


Pending: TypeAlias = tuple[Any, ...]
"""What the fields of a module will be built from: a structure, and the further arguments of its method `fields`."""


class _Slots(Watched):
    """The slots of an object besides its fields; a base class, so that `Fields` can override `__dict__`."""

    __slots__ = ("__dict__", "_phlox_before", "_phlox_pending", "_phlox_structure")

    _phlox_before: Any
    """The layout of its tree before a tree function replaced a part; not set otherwise."""

    _phlox_pending: Pending | None
    _phlox_structure: Structure | None


own_dict: Any = _Slots.__dict__["__dict__"].__get__
"""The dict of an object's fields, whether they are built or not."""

set_pending: Any = _Slots.__dict__["_phlox_pending"].__set__
"""Mark a new object as one whose fields, and other slots, are built at their first use."""

_before: Any = _Slots.__dict__["_phlox_before"].__get__


def layout_before(module: Fields) -> Any:
    """The layout of its tree before a tree function replaced a part, or None."""
    try:
        return _before(module)
    except AttributeError:
        return None


_exposed: WeakValueDictionary[int, Fields] = WeakValueDictionary()
"""By identity, the objects whose dict of fields other code may hold, and could change unnoticed."""


class Fields(_Slots):
    """The base of `Module`: an ordinary object, or the arrays from which its fields will be built.

    Most modules that a compiled function returns go straight into the next call, so fields are built at their first
    use.
    """

    __slots__ = ()

    # `Generic` would store the type of `Box[int](...)` among the fields; a property without a setter prevents it.
    __orig_class__ = property()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        register_with_imported_engines()
        if kwargs and not answers("option").keys().isdisjoint(kwargs):
            refuse_options(cls, kwargs)
        self = super().__new__(cls)
        set_up(self)
        return self

    @property
    def __dict__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        if _exposed.get(id(self)) is not self:
            _exposed[id(self)] = self
            self.changed()
        return fields_of(self)

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            # Called only if ordinary lookup failed: the fields were not built at that moment.
            fields = fields_of(self)
            if name in fields:
                return fields[name]
            getter = _getter(type(self), name)
            if getter is not None:  # a property failed: read it again, because its own error was dropped
                return getter(self, type(self))
            raise AttributeError(of_object(self, name, "Module", fields), name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RESERVED:
            raise reserved(type(self), name)
        if self._phlox_pending is not None:
            materialize(self)
        set_slot(self, name, value)
        if self._phlox_watchers:
            self.changed()

    def __delattr__(self, name: str) -> None:
        if self._phlox_pending is not None:
            materialize(self)
        object.__delattr__(self, name)
        self.changed()

    def __getstate__(self) -> dict[str, Any]:
        return dict(fields_of(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        fields_of(self).update(state)
        self.changed()


RESERVED: set[str] = {"_phlox_before", "_phlox_pending", "_phlox_structure", "_phlox_watchers"}
"""Names that no field may have, because it would hide a method of modules; `Module` adds its own."""


def reserved(cls: type[Any], name: str) -> ModuleError:
    """The error for a field with a reserved name."""
    hidden = f"the method `{name}` of every module" if not name.startswith("_phlox") else "internal data of modules"
    return ModuleError(
        f"{cls.__name__}: a field cannot be called `{name}`, because it would hide {hidden}; give it another name"
    )


def _getter(cls: type[Any], name: str) -> Any:
    """The `__get__` of a property (or another descriptor) of a class, if the name is one."""
    for base in cls.__mro__:
        if name in vars(base):
            value = vars(base)[name]
            return None if isinstance(value, property) and value.fget is None else getattr(value, "__get__", None)
    return None


def fields_of(module: Fields) -> dict[str, Any]:
    """The fields of an object, by name; call `changed()` after changing them."""
    if module._phlox_pending is not None:  # pyright: ignore[reportPrivateUsage]
        materialize(module)
    return own_dict(module)


def may_change_unseen(module: Fields) -> bool:
    """Can a field change unnoticed, because its dict is known outside or its class has its own `__setattr__`?"""
    cls = type(module)
    own = cls.__setattr__ is not Fields.__setattr__ or cls.__delattr__ is not Fields.__delattr__
    return own or _exposed.get(id(module)) is module


def set_up(module: Fields) -> None:
    """Set up a new object without fields. (With fields to be made later, `set_pending` is enough.)"""
    set_pending(module, None)
    set_slot(module, "_phlox_structure", None)
    set_slot(module, "_phlox_watchers", ())


def materialize(module: Fields) -> None:
    """Build the fields now if they are not built yet; other threads see all of them or none."""
    with _building:
        pending = module._phlox_pending  # pyright: ignore[reportPrivateUsage]
        if pending is not None:
            set_slot(module, "_phlox_structure", None)
            set_slot(module, "_phlox_watchers", ())
            structure, *arguments = pending
            own_dict(module).update(structure.fields(module, *arguments))
            set_slot(module, "_phlox_pending", None)
