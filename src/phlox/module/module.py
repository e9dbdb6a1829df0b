"""`Module`: an ordinary object whose parameters can be found, saved, moved and transformed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self

from phlox.backend import Backend, Device, DeviceLike
from phlox.backend.numpy.random import fold_in
from phlox.backend.pytree import Node, register_node
from phlox.errors import ModuleError
from phlox.module.param import Param, ParamId
from phlox.module.structure import Structure, Template, each_path
from phlox.random.stream import key_of
from phlox.record import LoadReport, Record

_templates: weakref.WeakValueDictionary[Any, Template] = weakref.WeakValueDictionary()


class Module:
    """Base of everything that has parameters. Nothing is imposed: a plain `__init__`, any method as the forward pass.

    Fields that are `Param`s or modules, or lists, tuples and dicts of these (mixed with anything else), are children;
    every other field is static: it is kept, and neither saved nor transformed. A module is a PyTree whose leaves are the
    arrays of its parameters, in the order of declaration.

    >>> import phlox as px
    >>> class Scale(px.Module):
    ...     def __init__(self):
    ...         self.factor = px.Param(px.ones((3,)))
    ...     def __call__(self, x):
    ...         return x * self.factor.val()
    >>> [path for path, _ in Scale().named_params()]
    ['factor']
    """

    __slots__ = ("__dict__", "__weakref__", "_pending", "_structure", "_watchers")

    # A new object may stand for (template, ids, arrays) and be built when a field is first asked for: most modules that
    # come out of a compiled function go straight into the next call.
    _pending: tuple[Template, tuple[ParamId, ...], Any] | None
    _structure: Structure | None
    _watchers: list[Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_node(Node(cls, flatten, unflatten, flatten_with_keys))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._adopt({})
        return self

    # --- fields

    def _adopt(self, fields: dict[str, Any]) -> None:
        _set(self, "_pending", None)
        _set(self, "_structure", None)
        _set(self, "_watchers", [])
        self.__dict__.update(fields)

    def _fields(self) -> dict[str, Any]:
        if self._pending is not None:
            self._materialize()
        return self.__dict__

    def _materialize(self) -> None:
        pending = self._pending
        if pending is not None:
            template, ids, arrays = pending
            _set(self, "_pending", None)
            self.__dict__.update(template.build(arrays, ids).__dict__)

    def __getattr__(self, name: str) -> Any:
        # Reached only where ordinary lookup has failed: the object may not have been built yet.
        if not name.startswith("__") and self._pending is not None:
            self._materialize()
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._pending is not None:
            self._materialize()
        _set(self, name, value)
        self._changed()

    def __delattr__(self, name: str) -> None:
        if self._pending is not None:
            self._materialize()
        object.__delattr__(self, name)
        self._changed()

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher.valid = False
        self._watchers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._fields())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._adopt(state)

    def structure(self) -> Structure:
        """What the module is made of; kept until a part of it changes."""
        if self._pending is not None:
            self._materialize()
        known = self._structure
        if known is None or not known.holds():
            known = Structure(self)
            _set(self, "_structure", known)
        return known

    # --- parameters

    def named_params(self) -> Iterator[tuple[str, Param]]:
        """Every parameter with its path (`layers.0.weight`), in the order of declaration, tied ones once."""
        return each_path(self.structure())

    def params(self) -> list[Param]:
        """Every parameter, tied ones once."""
        return list(self.structure().params)

    def num_params(self, *, trained_only: bool = False) -> int:
        """The number of elements of all parameters."""
        total = 0
        for param in self.params():
            size = 1
            for length in param.shape:
                size *= length
            total += size if param.trained or not trained_only else 0
        return total

    def visit(self, visitor: Callable[[str, Param], Any]) -> None:
        """Call `visitor(path, param)` for every parameter."""
        for path, param in self.named_params():
            visitor(path, param)

    def map(self, mapper: Callable[[str, Param], Param]) -> Self:
        """A new module of the same structure with `mapper(path, param)` for every parameter; this one stays as it is."""
        structure = self.structure()
        params: list[Param] = []
        for path, param in each_path(structure):
            mapped = mapper(path, param)
            if not isinstance(mapped, Param):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModuleError(f"{path}: a mapper must return a Param, got {type(mapped).__name__}; see Param.map")
            params.append(mapped.copy() if mapped is param else mapped)
        return structure.build(params)

    def init(self, seed: int | None = None, device: DeviceLike | None = None) -> Self:
        """Make all deferred parameters now, and return this module.

        With a `seed` the values depend on it and on the order of the parameters alone; without, each comes from the
        sub-stream that it reserved when it was declared. `device` is where deferred parameters are made. Parameters that
        are there already stay.
        """
        for number, param in enumerate(self.params()):
            if param.is_initialized:
                continue
            if device is not None:
                param._deferred = param.to_device(device)._deferred  # pyright: ignore[reportPrivateUsage]
            param.init(None if seed is None else fold_in(key_of(seed), number))
        return self

    def freeze(self, frozen: bool = True) -> Self:
        """A view of this module in which no parameter is trained (or, with False, every one is)."""
        marked = self.map(lambda path, param: param.copy())
        for param in marked.params():
            param.set_trained(not frozen)
        return marked

    # --- devices and modes

    def to_device(self, device: DeviceLike) -> Self:
        """The same module on another device, be it another backend's; ids stay, deferred parameters stay deferred."""
        return self.map(lambda path, param: param.to_device(device))

    def valid(self) -> Self:
        """This module on the inner backend: no tape, no dropout. A view: arrays are shared, and it can be used beside."""
        return self._seen_from(lambda backend: backend if backend.inner is None else backend.inner)

    def train(self) -> Self:
        """This module on `Autodiff` of its backend: a tape, and dropout. A view, as `valid` gives."""
        from phlox.autodiff import Autodiff

        return self._seen_from(lambda backend: backend if backend.differentiates else Autodiff(backend))

    def _seen_from(self, choose: Callable[[Backend], Backend]) -> Self:
        def view(path: str, param: Param) -> Param:
            place = param.device
            return param.on_backend_of(Device(choose(place.backend), place.name))

        return self.map(view)

    # --- records

    def into_record(self) -> Record:
        """The parameters as a record of lazy tensors; nothing is copied. Deferred parameters are made now."""
        from phlox.module.records import into_record

        return into_record(self)

    def load_record(self, record: Record, *, strict: bool = True) -> Self:
        """Take every parameter's value and id from a record, and return this module; no initializer runs.

        Everything is checked first: on `RecordError`, which reports all that does not fit, the module is unchanged.
        With `strict=False` parameters that the record lacks, and entries that the module lacks, are passed over.
        """
        from phlox.module.records import load_record

        load_record(self, record, strict=strict)
        return self

    def load_report(self, record: Record) -> LoadReport:
        """What `load_record` would find: missing, unexpected, misshapen and cast entries."""
        from phlox.module.records import report

        return report(self, record)

    def __repr__(self) -> str:
        from phlox.module.display import display

        return display(self)


_set = object.__setattr__


class Aux:
    """The structure of a module as JAX sees it: equal for modules built alike, whatever their parameters' ids."""

    __slots__ = ("ids", "template")

    def __init__(self, template: Template, ids: tuple[ParamId, ...]) -> None:
        self.template = template
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aux) and self.template is other.template

    def __hash__(self) -> int:
        return hash(self.template)

    def __repr__(self) -> str:
        return f"{self.template.skeleton.cls.__name__}[{', '.join(self.template.paths)}]"


def aux_of(structure: Structure) -> Aux:
    """The interned structure, and the ids."""
    known: Aux | None = structure.__dict__.get("aux")
    if known is None:
        key = structure.key()
        template = _templates.get(key)
        if template is None:
            template = _templates.setdefault(key, Template(structure))
        known = structure.__dict__["aux"] = Aux(template, tuple(param.id for param in structure.params))
    return known


def arrays_of(structure: Structure, template: Template) -> list[Any]:
    """The arrays of the parameters, without a tape."""
    if template.plain:
        return [param._tensor.primitive for param in structure.params]  # pyright: ignore
    return [param.ops.backend.strip(param.val().primitive) for param in structure.params]


def flatten(module: Module) -> tuple[Any, Aux]:
    """The arrays of the parameters, and the structure around them; deferred parameters are made."""
    pending = module._pending  # pyright: ignore[reportPrivateUsage]
    if pending is not None:
        return pending[2], Aux(pending[0], pending[1])
    structure = module.structure()
    for param in structure.params:
        if not param.is_initialized:
            param.init()
    structure = module.structure()
    aux = aux_of(structure)
    return arrays_of(structure, aux.template), aux


def flatten_with_keys(module: Module) -> tuple[Any, Aux]:
    """As `flatten`, with the path beside each array."""
    arrays, aux = flatten(module)
    return list(zip(aux.template.paths, arrays, strict=True)), aux


def unflatten(aux: Aux, arrays: Any) -> Module:
    """A module of this structure around other arrays; never validates, since JAX passes placeholders of any kind."""
    template = aux.template
    if template.eager:
        return template.build(tuple(arrays), aux.ids)
    module = object.__new__(template.skeleton.cls)
    module._adopt({})
    _set(module, "_pending", (template, aux.ids, tuple(arrays)))
    return module
