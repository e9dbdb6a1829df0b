"""`Module`: an ordinary object whose parameters can be found, saved, moved and transformed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Self

from phlox.backend import Backend, Device, DeviceLike
from phlox.backend.numpy.random import fold_in
from phlox.backend.pytree import Node, register_node
from phlox.errors import ModuleError
from phlox.module.fields import Fields, set_slot
from phlox.module.param import Param
from phlox.module.structure import Structure
from phlox.module.template import flatten, flatten_with_keys, unflatten
from phlox.random.stream import key_of
from phlox.record import LoadReport, Record


class Module(Fields):
    """Base of everything that has parameters. Nothing is imposed: a plain `__init__`, any method as the forward pass.

    Fields that are `Param`s or modules, or lists, tuples and dicts of these (mixed with anything else), are children;
    every other field is static: it is kept, and neither saved nor transformed. A module is a PyTree whose leaves are
    the arrays of its parameters, in the order of declaration.

    >>> import phlox as px
    >>> class Scale(px.Module):
    ...     def __init__(self):
    ...         self.factor = px.Param(px.ones((3,)))
    ...     def __call__(self, x):
    ...         return x * self.factor.val()
    >>> [path for path, _ in Scale().named_params()]
    ['factor']
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__slots__" in vars(cls) and vars(cls)["__slots__"]:
            raise ModuleError(f"{cls.__name__}: the fields of a module are found in its __dict__; take __slots__ away")
        register_node(Node(cls, flatten, unflatten, flatten_with_keys))

    def structure(self) -> Structure:
        """What the module is made of; kept until a part of it changes."""
        known = self._structure
        if known is None or not known.holds():
            known = Structure(self)
            set_slot(self, "_structure", known)
        return known

    # --- parameters

    def named_params(self) -> Iterator[tuple[str, Param]]:
        """Every parameter with its path (`layers.0.weight`), in the order of declaration, tied ones once."""
        return self.structure().named()

    def params(self) -> list[Param]:
        """Every parameter, tied ones once."""
        return list(self.structure().params)

    def num_params(self, *, trained_only: bool = False) -> int:
        """The number of elements of all parameters."""
        return sum(math.prod(param.shape) for param in self.params() if param.trained or not trained_only)

    def visit(self, visitor: Callable[[str, Param], Any]) -> None:
        """Call `visitor(path, param)` for every parameter."""
        for path, param in self.named_params():
            visitor(path, param)

    def map(self, mapper: Callable[[str, Param], Param]) -> Self:
        """A new module of the same structure with `mapper(path, param)` for every parameter; this one stays.

        Raises `ModuleError`, with the path, where the mapper returns anything but a `Param`.
        """
        structure = self.structure()
        params: list[Param] = []
        for path, param in structure.named():
            mapped = mapper(path, param)
            if not isinstance(mapped, Param):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModuleError(f"{path}: a mapper must return a Param, got {type(mapped).__name__}; see Param.map")
            params.append(mapped.copy() if mapped is param else mapped)
        return structure.build(params)

    def init(self, seed: int | None = None, device: DeviceLike | None = None) -> Self:
        """Make all deferred parameters now, and return this module.

        With a `seed` the values depend on it and on the order of the parameters alone; without, each comes from the
        sub-stream that it reserved when it was declared. `device` is where deferred parameters are made. Parameters
        that are there already stay.
        """
        for number, param in enumerate(self.params()):
            if param.is_initialized:
                continue
            if device is not None:
                param._deferred = param.to_device(device)._deferred  # pyright: ignore[reportPrivateUsage]
            param.init(None if seed is None else fold_in(key_of(seed), number))
        return self

    def freeze(self, frozen: bool = True) -> Self:
        """A view of this module in which no parameter is trained; with False, those that were declared as trained are.

        Running statistics, which were not, stay as they are.
        """

        def mark(path: str, param: Param) -> Param:
            twin = param.copy()
            twin.set_trained(param.trainable and not frozen)
            return twin

        return self.map(mark)

    # --- devices and modes

    def to_device(self, device: DeviceLike) -> Self:
        """The same module on another device, be it another backend's; ids stay, deferred parameters stay deferred."""
        return self.map(lambda path, param: param.to_device(device))

    def valid(self) -> Self:
        """This module on the inner backend: no tape, no dropout. A view that shares the arrays, to be used beside."""
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
