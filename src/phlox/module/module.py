"""`Module`: an ordinary object whose parameters can be found, saved, moved and transformed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Self

from phlox.backend import Backend, Device, DeviceLike
from phlox.backend.contract.backend import off_tapes
from phlox.backend.numpy.random import fold_in
from phlox.backend.pytree import Node, register_node
from phlox.errors import KindError, ModuleError
from phlox.module.fields import Fields, fields_of, set_slot
from phlox.module.located import located
from phlox.module.param import Param
from phlox.module.select import Selector, select
from phlox.module.structure import Structure, build
from phlox.module.template import flatten, flatten_with_keys, unflatten
from phlox.module.wire import wire_of
from phlox.random.stream import key_of
from phlox.record import LoadReport, Record
from phlox.tensor import Tensor
from phlox.tensor.explain import shown


def _no_param(path: str, mapped: object) -> ModuleError:
    return ModuleError(f"{path}: a mapper must return a Param, got {type(mapped).__name__}; see Param.map")


def _with_tape(backend: Backend) -> Backend:
    from phlox.autodiff import Autodiff

    return backend if backend.differentiates else Autodiff(backend)


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
        if isinstance(call := vars(cls).get("__call__"), FunctionType):  # one that is compiled stays what it is
            cls.__call__ = located(call)
        register_node(Node(cls, flatten, unflatten, flatten_with_keys, wire_of(cls)))

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
        path = ""
        try:
            for path, param in self.named_params():
                visitor(path, param)
        except Exception as error:
            error.add_note(f"visit: at the parameter `{path}`")
            raise

    def map(self, mapper: Callable[[str, Param], Param]) -> Self:
        """A new module of the same structure with `mapper(path, param)` for every parameter; this one stays.

        Raises `ModuleError`, with the path, where the mapper returns anything but a `Param`.
        """
        structure = self.structure()
        params: list[Param] = []
        path = ""
        try:
            for path, param in structure.named():
                mapped = mapper(path, param)
                if not isinstance(mapped, Param):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise _no_param(path, mapped)
                params.append(mapped.copy() if mapped is param else mapped)
        except Exception as error:
            error.add_note(f"map: at the parameter `{path}`")
            raise
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

    def freeze(self, *which: Selector) -> Self:
        """A view of this module in which the parameters that are meant are not trained; the others stay as they are.

        `which` are patterns of paths, predicates `(path, param) -> bool`, or lists of these, see `phlox.module.select`;
        without any, all parameters are meant. Raises `ModuleError` for a pattern that matches nothing.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model = nn.Sequential([nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)])
        >>> [path for path, param in model.freeze("layers.0", "**.bias").named_params() if param.trained]
        ['layers.1.gamma', 'layers.1.beta', 'layers.2.weight']
        """
        return self._marked(select(self, *which), trained=False)

    def unfreeze(self, *which: Selector) -> Self:
        """A view of this module in which the parameters that are meant are trained again; see `freeze`.

        Those that were never declared as trained (running statistics, Int and Bool) stay as they are; where no others
        are meant, that is a `ModuleError`.
        """
        chosen = select(self, *which)
        if which and not any(param.trainable for param in chosen.values()):
            raise ModuleError(
                f"unfreeze: `{next(iter(chosen), which[0])}` is not declared as trained, and none of the others that "
                "are meant is; declare it with Param(..., trained=True)"
            )
        return self._marked(chosen, trained=True)

    def _marked(self, chosen: dict[str, Param], *, trained: bool) -> Self:
        def mark(path: str, param: Param) -> Param:
            twin = param.copy()
            if path in chosen:
                twin.set_trained(trained and param.trainable)
            return twin

        return self.map(mark)

    # --- devices and modes

    @property
    def training(self) -> bool | None:
        """Is this layer in training (dropout drops, batch norm takes the batch's statistics), whatever it computes on?

        None, unless said: it is where a tape is recorded. `train(tape=False)` and `valid(tape=True)` say it of every
        module in the view; for one layer, assign to it.
        """
        return fields_of(self).get("training")

    @training.setter
    def training(self, value: bool | None) -> None:
        if value is not None and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"training is True, False or None (where a tape is recorded), got {value!r}")
        if value is None:
            fields_of(self).pop("training", None)
        else:
            fields_of(self)["training"] = value

    def is_training(self, x: Tensor[Any, Any, Any]) -> bool:
        """Is this layer in training when it is called on `x`: by its mode or, without one, if `x` records a tape?"""
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"it takes a tensor, got {shown(x)}")
        training = self.training
        return x.backend.differentiates if training is None else training

    def to_device(self, device: DeviceLike) -> Self:
        """The same module on another device, be it another backend's; ids stay, deferred parameters stay deferred."""
        return self.map(lambda path, param: param.to_device(device))

    def train(self, *, tape: bool = True) -> Self:
        """This module in training, on `Autodiff` of its backend: layers drop out, and `backward` finds gradients.

        With `tape=False` it is in training without a tape: Monte-Carlo dropout. A view that shares the arrays and ids,
        to be used beside this module.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model, x = nn.Sequential([nn.Dropout(0.5)]), px.ones((1000,))
        >>> model.train(tape=False)(x).mean().item() == 1.0, model.valid()(x).mean().item() == 1.0
        (False, True)
        """
        return self._seen_from(_with_tape if tape else off_tapes, None if tape else True)

    def valid(self, *, tape: bool = False) -> Self:
        """This module in use, on its backend without any tape: layers do what they do in inference.

        With `tape=True` it computes so on a tape: evaluation with gradients. A view, as `train` gives.
        """
        return self._seen_from(_with_tape if tape else off_tapes, False if tape else None)

    def _seen_from(self, choose: Callable[[Backend], Backend], training: bool | None) -> Self:
        structure = self.structure()
        seen: list[Param] = []
        for param in structure.params:
            place = param.device
            seen.append(param.on_backend_of(Device(choose(place.backend), place.name)))
        return build(structure.in_mode(training), seen)

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
