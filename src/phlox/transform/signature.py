"""What goes into a compiled function and what comes out: arrays on one side, structure on the other.

`Reader` takes values apart into arrays and a key that is equal for calls which one program can serve. `Spec` puts the
results together again. Parameter ids are in no key: they are told apart by the place of the parameter among the
arguments, so that two models of one architecture share a program and keep their identities.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from phlox.backend import Backend, Device
from phlox.errors import CompileError
from phlox.module import GradientsParams, Module, ParamId
from phlox.module.module import Aux, flatten, unflatten
from phlox.module.param import new_id
from phlox.optim import LrSchedule, Optimizer
from phlox.optim.optimizer import Packed
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops

Ids = tuple[ParamId, ...]


@dataclass(slots=True)
class Reader:
    """The arguments of one call, taken apart."""

    donated: list[Any] = field(default_factory=list[Any])
    kept: list[Any] = field(default_factory=list[Any])
    modules: list[Module] = field(default_factory=list[Module])
    ids: list[Ids] = field(default_factory=list[Ids])
    """Of the parameters of each module and, after those, of the states of each optimizer."""
    optimizers: list[tuple[Optimizer, Packed]] = field(default_factory=list[tuple[Optimizer, Packed]])
    place: Device | None = None

    def read(self, value: Any, path: str, leaves: list[Any]) -> Hashable:
        """Append the arrays of a value to `leaves`; what is left is the key."""
        kind = type(value)
        if isinstance(value, Module):
            arrays, aux = flatten(value)
            leaves.extend(arrays)
            self.modules.append(value)
            self.ids.append(aux.ids)
            if aux.template.leaves:
                self._seen(aux.template.leaves[0][0].backend, arrays[0])
            return ("module", aux.template)
        if isinstance(value, Tensor):
            ops: Ops = value._ops  # pyright: ignore[reportPrivateUsage]
            if ops.backend.node_of(value.primitive) is not None:
                raise CompileError(
                    f"{path}: a tensor with a history on the tape cannot go into a compiled function, "
                    "which would lose it; pass it with .detach(), or make it inside"
                )
            array = ops.backend.strip(value.primitive)
            leaves.append(array)
            self._seen(ops.backend, array)
            return ops
        if kind is float or kind is int:
            leaves.append(value)
            return kind
        if kind is list or kind is tuple:
            return (kind, tuple(self.read(part, f"{path}[{i}]", leaves) for i, part in enumerate(value)))
        if kind is dict:
            return (kind, tuple(value), tuple(self.read(part, f"{path}[{k!r}]", leaves) for k, part in value.items()))
        if isinstance(value, GradientsParams):
            key = tuple(self.read(tensor, f"{path}.{id}", leaves) for id, tensor in value.items())
            return ("gradients", tuple(value), key)
        if isinstance(value, LrSchedule):
            raise CompileError(f"{path}: a schedule counts its steps outside; pass the rate, {path}.step(), instead")
        try:
            hash(value)
        except TypeError:
            raise CompileError(
                f"{path}: a {kind.__name__} can be neither an array nor a constant of a compiled function; "
                "make it a tensor, or something hashable"
            ) from None
        return (kind, value)

    def read_optimizer(self, optimizer: Optimizer, leaves: list[Any]) -> Hashable:
        """As `read`, once all modules have been read: states belong to parameters among the arguments, or to none."""
        assert self.place is not None
        packed = optimizer.pack(self.place)
        leaves.extend(packed.leaves)
        self.optimizers.append((optimizer, packed))
        self.ids.append(packed.ids)
        return ("optimizer", optimizer.settings(), packed.skeletons, self._owners(packed.ids))

    def _owners(self, ids: Ids) -> Hashable:
        for number in range(len(self.modules)):
            if self.ids[number] == ids:
                return number
        places = {id: (m, p) for m in range(len(self.modules)) for p, id in enumerate(self.ids[m])}
        return tuple(places.get(id) for id in ids)

    def _seen(self, backend: Backend, array: Any) -> None:
        if self.place is None:
            plain = backend
            while plain.inner is not None:
                plain = plain.inner
            self.place = plain.device_of(array)


class Rebuilder:
    """Puts the arguments together again from placeholders, inside the program that is being recorded."""

    def __init__(self, packed: dict[int, Packed]) -> None:
        self.packed = packed
        self.leaves: Iterator[Any] = iter(())
        self.modules: list[Module] = []

    def rebuild(self, value: Any) -> Any:
        """The value with placeholders for its arrays, read in the order in which `Reader` wrote them."""
        kind = type(value)
        if isinstance(value, Module):
            _, aux = flatten(value)
            module = unflatten(aux, [next(self.leaves) for _ in aux.ids])
            self.modules.append(module)
            return module
        if isinstance(value, Tensor):
            return value._with(next(self.leaves))  # pyright: ignore[reportPrivateUsage]
        if kind is float or kind is int:
            return next(self.leaves)
        if isinstance(value, Optimizer):
            packed = self.packed[id(value)]
            value.load_packed(packed._replace(leaves=[next(self.leaves) for _ in packed.leaves]))
            return value
        if isinstance(value, GradientsParams):
            return GradientsParams({id: self.rebuild(tensor) for id, tensor in value.items()})
        if kind is list or kind is tuple:
            return kind(self.rebuild(part) for part in value)
        if kind is dict:
            return {key: self.rebuild(part) for key, part in value.items()}
        return value


Maker = Callable[[Iterator[Any], list[Ids]], Any]
"""`(arrays, ids of the arguments' modules)`: a result."""


class Spec:
    """How to put the results of a program together."""

    def __init__(self, ids: list[Ids]) -> None:
        self.ids = ids
        self.places: dict[ParamId, tuple[int, int]] = {}
        for m, owner in enumerate(ids):
            for p, id in enumerate(owner):
                self.places.setdefault(id, (m, p))

    def write(self, value: Any, leaves: list[Any], path: str = "result") -> Maker:
        """Append the arrays of a result to `leaves` and return how to make it from them."""
        kind = type(value)
        if isinstance(value, Module):
            arrays, aux = flatten(value)
            leaves.extend(arrays)
            return self._module(aux, len(arrays))
        if isinstance(value, Tensor):
            return self._tensor(value, leaves)
        if isinstance(value, GradientsParams):
            ids = self._ids(tuple(value))
            makers = [self._tensor(tensor, leaves) for _, tensor in value.items()]

            def gradients(source: Iterator[Any], given: list[Ids]) -> Any:
                return GradientsParams({id: make(source, given) for id, make in zip(ids(given), makers, strict=True)})

            return gradients
        if kind is list or kind is tuple:
            parts = [self.write(part, leaves, f"{path}[{i}]") for i, part in enumerate(value)]
            return lambda source, given: kind(make(source, given) for make in parts)
        if kind is dict:
            items = [(key, self.write(part, leaves, f"{path}[{key!r}]")) for key, part in value.items()]
            return lambda source, given: {key: make(source, given) for key, make in items}
        if isinstance(value, Optimizer):
            raise CompileError(f"{path}: an optimizer keeps its state by itself; there is no need to return it")
        if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
            raise CompileError(f"{path}: a number computed in a compiled function must be returned as a tensor")
        return lambda source, given: value

    def _tensor(self, tensor: Tensor[Any, Any, Any], leaves: list[Any]) -> Maker:
        ops: Ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
        leaves.append(ops.backend.strip(tensor.primitive))
        return lambda source, given: Tensor.from_primitive(next(source), ops.backend, ops.kind)

    def _module(self, aux: Aux, count: int) -> Maker:
        ids = self._ids(aux.ids)
        return lambda source, given: unflatten(Aux(aux.template, ids(given)), [next(source) for _ in range(count)])

    def _ids(self, ids: Ids) -> Callable[[list[Ids]], Ids]:
        """The ids of this call's parameters that stand where `ids` stood when the program was recorded."""
        for number, module in enumerate(self.ids):
            if ids == module:
                return lambda given: given[number]
        places = [self.places.get(id) for id in ids]

        def find(given: list[Ids]) -> Ids:
            return tuple(new_id() if place is None else given[place[0]][place[1]] for place in places)

        return find

    def optimizer(self, optimizer: Optimizer, place: Device, leaves: list[Any]) -> Callable[..., Packed]:
        """As `write`, for the state that an optimizer has after the call."""
        packed = optimizer.pack(place)
        leaves.extend(packed.leaves)
        ids, count = self._ids(packed.ids), len(packed.leaves)
        return lambda source, given: packed._replace(ids=ids(given), leaves=[next(source) for _ in range(count)])
