"""The results of a compiled function: how to build them from the arrays that the program returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, cast

from phlox.backend import Backend, Device
from phlox.backend.pytree import shell_of
from phlox.config import Config
from phlox.errors import CompileError
from phlox.module import GradientsParams, Module, ParamId
from phlox.module.param import new_id
from phlox.module.template import Aux, flatten, unflatten
from phlox.optim import Optimizer
from phlox.optim.state.flat import FlatState
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops
from phlox.tensor.tensor import wrap
from phlox.transform.compile.signature import Ids, IdSource, first_positions
from phlox.transform.tree import container_of

Maker: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]
"""`(arrays, owners of this call, followed by its optimizers)`: a result."""

StateMaker: TypeAlias = Callable[[Sequence[Any], Sequence[IdSource], Device], FlatState]
"""`(arrays, owners of this call, device)`: an optimizer's state."""

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, Enum, type, Backend, Device, Config)


class Returned(NamedTuple):
    """A module in the result."""

    path: str
    module: Module
    ids: Ids
    position: int
    """The position of the tuple of its arrays."""


def no_history(name: str) -> str:
    """The error for a gradient with respect to a result of a compiled function."""
    return (
        f"a gradient has reached a result of {name}, a compiled function, which keeps no history; call backward "
        "inside, as a compiled step does, or compile the gradient: phlox.compile(phlox.grad(fn))"
    )


class OutputWriter:
    """Flattens results into arrays and tuples of arrays, and returns how to rebuild those of later calls."""

    def __init__(self, owners: Sequence[IdSource], optimizers: Sequence[Optimizer], name: str) -> None:
        self.arrays: list[Any] = []
        self.modules: list[Returned] = []
        self._owners, self._optimizers, self._name = owners, optimizers, name
        self.has_optimizers = False
        """Is an optimizer in the result?"""
        self._positions = first_positions(owner.ids for owner in owners)

    def write(self, value: Any, path: str = "the result") -> Maker:
        """Append the arrays of a result, and return how to build it; `CompileError` if it cannot leave a program."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, Module):
            return self._module(value, path)
        if isinstance(value, Tensor):
            return self._tensor(cast("Tensor[Any, Any, Any]", value))
        if isinstance(value, GradientsParams):
            return self._gradients(value)
        container = container_of(value)
        if container is not None:
            makers = [self.write(part, path + container.label(key)) for key, part in container.items(value)]
            if kind is tuple:
                return lambda arrays, owners: tuple([make(arrays, owners) for make in makers])
            shell = shell_of(container, value, len(makers))
            return lambda arrays, owners: container.build(shell, [make(arrays, owners) for make in makers])
        if isinstance(value, Optimizer):
            return self._optimizer(value, path)
        if isinstance(value, _CONSTANTS):
            return lambda arrays, owners: value
        if getattr(value, "ndim", None) == 0:
            raise CompileError(f"{path}: a number computed in a compiled function must be returned as a tensor")
        raise CompileError(
            f"{path}: a compiled function cannot return a {kind.__name__}; it returns modules, tensors, gradients and "
            "constants, in lists, tuples, dicts and dataclasses"
        )

    def _append(self, array: Any) -> int:
        """Append an array, or a tuple of arrays, and return its position."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _tensor(self, tensor: Tensor[Any, Any, Any]) -> Maker:
        ops: Ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
        backend = ops.backend
        position = self._append(backend.strip(tensor.primitive))
        if not backend.requires_grad(tensor.primitive):
            return lambda arrays, owners: wrap(ops, arrays[position])
        message = no_history(self._name)
        return lambda arrays, owners: wrap(ops, backend.poisoned(arrays[position], message))

    def _gradients(self, value: GradientsParams) -> Maker:
        ids = self._ids(tuple(value))
        makers = [self._tensor(tensor) for _, tensor in value.items()]

        def make(arrays: Sequence[Any], owners: Sequence[IdSource]) -> GradientsParams:
            tensors = [make(arrays, owners) for make in makers]
            return GradientsParams(dict(zip(ids(owners), tensors, strict=True)))

        return make

    def _module(self, value: Module, path: str) -> Maker:
        arrays, aux = flatten(value)
        position = self._append(arrays)
        self.modules.append(Returned(path, value, aux.ids, position))
        template, ids = aux.template, self._ids(aux.ids)
        for number, owner in enumerate(self._owners):
            if isinstance(owner, Aux) and owner.template is template and owner.ids == aux.ids:
                # One object in the call and in the result makes the next call's comparison one of identity.
                return lambda arrays, owners: unflatten(cast("Aux", owners[number]), arrays[position])
        return lambda arrays, owners: unflatten(Aux(template, ids(owners)), arrays[position])

    def _optimizer(self, optimizer: Optimizer, path: str) -> Maker:
        for number, argument in enumerate(self._optimizers):
            if argument is optimizer:
                self.has_optimizers, position = True, len(self._owners) + number
                return lambda arrays, owners: owners[position]
        raise CompileError(
            f"{path}: a compiled function returns only optimizers that are its arguments; make this one outside"
        )

    def state(self, optimizer: Optimizer, device: Device) -> StateMaker:
        """Like `write`, for the state of an optimizer after the call."""
        packed = optimizer.pack(device)
        position = self._append(packed.leaves)
        ids, form = self._ids(packed.ids), packed.form

        def make(arrays: Sequence[Any], owners: Sequence[IdSource], device: Device) -> FlatState:
            return FlatState(ids(owners), form, arrays[position], device)

        return make

    def _ids(self, ids: Ids) -> Callable[[Sequence[IdSource]], Ids]:
        """A function from the owners of a call to its ids at the positions that `ids` had during the trace."""
        for number, owner in enumerate(self._owners):
            if ids == owner.ids:
                return lambda owners: owners[number].ids
        positions = [self._positions.get(id) for id in ids]

        def find(owners: Sequence[IdSource]) -> tuple[ParamId, ...]:
            return tuple(new_id() if at is None else owners[at[0]].ids[at[1]] for at in positions)

        return find
