"""The base class of `Tensor`: its two fields, and how an operation is dispatched."""

from __future__ import annotations

import math
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np

from phlox.backend import Backend, Bool, Device, Float, Int, Kind
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.scalar import TracedScalar
from phlox.backend.tracing.symbolic import is_symbolic, real, whole
from phlox.errors import CompileError, KindError, RangeError, ShapeError
from phlox.host.dtypes import LARGEST
from phlox.other_names import of_object
from phlox.tensor.backend_promotion import is_below, joined
from phlox.tensor.dispatch import Ops, ops_of
from phlox.tensor.engine_arrays import array_of, is_array, operand_of, scalar_of
from phlox.tensor.explain import failure, mixed, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phlox.tensor.tensor import Tensor

Number: TypeAlias = float | int
Operand: TypeAlias = "Tensor[Any, Any, Any] | Number"

_new = object.__new__


class TensorBase:
    """Two fields and no constructor, which makes creating a tensor as cheap as Python allows."""

    __slots__ = ("_ops", "primitive")

    _ops: Ops
    primitive: Any
    """The backend's own array."""

    def __getattr__(self, name: str) -> Any:
        """Raise `AttributeError` for a missing name, with Phlox's name for it.

        Python calls this too if a property raised `AttributeError`: it is evaluated again, to raise its own message.
        """
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)
        plain = name.removesuffix("_")
        new = f"x.{plain}(...), which returns a new tensor" if plain != name and hasattr(type(self), plain) else None
        raise AttributeError(of_object(self, name, "Tensor", otherwise=new), name=name, obj=self)

    if not TYPE_CHECKING:  # to a type checker it would mean that items can be assigned

        def __setitem__(self, key: Any, value: Any) -> None:
            raise KindError("tensors never change in place; write x = x.at[key].set(value), or .add(value)")

    @property
    def backend(self) -> Backend:
        """The backend that holds and computes this tensor."""
        return self._ops.backend

    @property
    def kind(self) -> type[Kind]:
        """`Float`, `Int` or `Bool`."""
        return self._ops.kind

    @property
    def device(self) -> Device:
        """The device that holds the values."""
        try:
            return self._ops.backend.device_of(self.primitive)
        except Exception as error:
            raise failure("device", self._ops, (self.primitive,), error) from error

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self._ops.shape(self.primitive)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements, on every engine; `kind` and `backend` say what a tensor computes with."""
        dtype: Any = getattr(self._ops.backend.strip(self.primitive), "dtype", None)
        return cast("Any", dtype) if isinstance(dtype, np.dtype) else self._ops.backend.host_dtype(self._ops.kind)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize

    @property
    def __jax_array__(self) -> Callable[[], Any]:
        """Lets JAX's functions take a tensor on JAX as its array. Tensors on other engines have no such attribute."""
        if not engine_of(self._ops.backend).is_jax:
            raise AttributeError(
                f"a tensor on {self._ops.backend!r} is not an array of JAX; move it with .to_device('jax')"
            )
        return partial(array_of, "jax.numpy", cast("Tensor[Any, Any, Any]", self))

    def _host(self, name: str) -> np.ndarray[Any, Any]:
        """The values in host memory, possibly shared with the backend."""
        ops = self._ops
        try:
            return ops.backend.to_host(self.primitive)
        except Exception as error:
            try:
                explained: Exception = failure(name, ops, (self.primitive,), error)
            except Exception as raised:  # an error of the trace: a better message follows below
                explained = raised
            if isinstance(explained, CompileError):
                raise explained from error
            if ops.backend.is_traced(self.primitive) and not ops.backend.batch_of(self.primitive):
                raise CompileError(
                    f"{name}: the values of a {ops.kind.__name__} tensor of shape {self.shape} are unknown during "
                    "tracing; compute with the tensor itself (phlox.where for a choice), or outside the traced function"
                ) from error
            if explained is error:
                raise
            raise explained from error

    # --- carrying out an operation

    def _apply(self, name: str, *arguments: Any) -> Self:
        """Apply the operation `name` to this tensor's array; the result has the same kind."""
        ops = self._ops
        result = _new(type(self))
        result._ops = ops
        try:
            result.primitive = ops[name](self.primitive, *arguments)
        except Exception as error:
            if any(isinstance(x, TracedScalar) for x in arguments):
                return self._apply(
                    name, *[self._operand(name, x) if isinstance(x, TracedScalar) else x for x in arguments]
                )
            raise failure(name, ops, (self.primitive, *arguments), error) from error
        return result

    def _apply_to(self, kind: type[Kind], name: str, *arguments: Any) -> Any:
        """Apply the operation `name` to this tensor's array; the result has the given kind."""
        result = self._apply(name, *arguments)
        result._ops = ops_of(self._ops.backend, kind)
        return result

    def _with(self, primitive: Any) -> Self:
        """Wrap an array as a tensor of the same kind and backend."""
        result = _new(type(self))
        result._ops = self._ops
        result.primitive = primitive
        return result

    def _on(self, backend: Backend) -> Self:
        """The same array as a constant on a decorator of this tensor's backend."""
        result = self._with(self.primitive)
        result._ops = ops_of(backend, self._ops.kind)
        return result

    def _promoted_with(self, other: Any) -> Self:
        """This tensor, promoted to the backend that can hold both it and another operand, if there is one."""
        if isinstance(other, TensorBase):
            backend = self._ops.backend
            common = joined(backend, other._ops.backend)
            if common is not None and common is not backend:
                return self._on(common)
        return self

    def _operand(self, name: str, other: Any) -> Any:
        """The other operand's array or scalar; `NotImplemented` if it is neither.

        Raises `KindError`, `BackendError` or `DeviceError` if the operands do not mix.
        """
        ops = self._ops
        if isinstance(other, TensorBase):
            if other._ops is not ops and (other.kind is not ops.kind or not is_below(other.backend, ops.backend)):
                raise mixed(name, ops, other._ops)
            return other.primitive
        if isinstance(other, np.generic):
            other = cast(Any, other).item()
        if isinstance(other, bool):
            if ops.kind is not Bool:
                raise KindError(f"{name}: a {ops.kind.__name__} tensor and a bool do not mix; write 1 or 0 instead")
            return other
        if isinstance(other, (int, float)):
            if ops.kind is Bool or (ops.kind is Int and isinstance(other, float)):
                raise KindError(
                    f"{name}: {ops.kind.__name__} tensors do not mix with the {type(other).__name__} {other!r}; "
                    f"convert with {'.float()' if isinstance(other, float) else '.int()'} first"
                )
            if isinstance(other, int):
                try:
                    ops.backend.check_scalar(other, ops.kind)
                except RangeError as error:
                    raise RangeError(f"{name}: {error}") from None
                if ops.kind is Float and not -(2**31) <= other < 2**31:
                    return float(other)  # an engine may convert a Python int to its own int dtype
            elif abs(other) > LARGEST[ops.backend.float_element]:
                return math.copysign(math.inf, other)  # rounds like the result of arithmetic
            return other
        if isinstance(other, TracedScalar):
            if ops.kind is Bool or (ops.kind is Int and not other.whole):
                raise KindError(
                    f"{name}: {ops.kind.__name__} tensors do not mix with the traced "
                    f"{'int' if other.whole else 'float'} argument; convert with "
                    f"{'.int()' if other.whole else '.float()'} first"
                )
            return other.as_operand(ops.backend, ops.kind)
        if ops.backend.is_traced_scalar(other):
            return scalar_of(name, ops, other)
        if is_symbolic(other):
            return real(other) if ops.kind is Float else whole(other)
        if isinstance(other, np.ndarray) and not cast("Any", other).shape:
            return self._operand(name, cast("Any", other).item())
        return operand_of(name, ops, other, self.device)

    def _as_operand(self, name: str, other: Any) -> Any:
        """An array as a tensor that can be combined with this one; anything else unchanged."""
        return self._with(self._operand(name, other)) if is_array(other) else other

    def _axis(self, name: str, axis: int) -> int:
        """One axis as a non-negative integer."""
        return self._positions(name, (axis,))[0]

    def _positions(self, name: str, axes: Sequence[Any]) -> tuple[int, ...]:
        """Axes in the given order, as non-negative integers."""
        shape = self.shape
        rank = len(shape)
        positions: list[int] = []
        for axis in axes:
            try:
                position = index(axis)
            except TypeError:
                raise KindError(f"{name}: an axis must be an integer, got {shown(axis)}") from None
            if not -rank <= position < rank:
                raise ShapeError(f"{name}: axis {position} is out of range for a tensor of shape {shape}")
            positions.append(position % rank)
        return tuple(positions)

    def _axes(self, name: str, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
        """Axes in ascending order, as non-negative integers; None means all axes."""
        if axis is None:
            return tuple(range(self.ndim))
        requested = axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = tuple(sorted(self._positions(name, requested)))
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{name}: {requested} repeats an axis of shape {self.shape}")
        return axes


def binary(name: str, doc: str) -> Callable[[Any, Any], Any]:
    """A binary method of operands of one kind. It is written flat because its overhead dominates small operations."""

    def method(self: Any, other: Any) -> Any:
        ops = self._ops
        if other.__class__ is float and ops.kind is Float:
            operand = other
        else:
            try:
                if other._ops is ops:
                    result = _new(self.__class__)
                    result._ops = ops
                    result.primitive = ops[name](self.primitive, other.primitive)
                    return result
            except AttributeError:
                pass  # not a tensor
            except Exception as error:
                raise failure(name, ops, (self.primitive, other.primitive), error) from error
            self = self._promoted_with(other)
            operand = self._operand(name, other)
            if operand is NotImplemented:
                return NotImplemented
        return self._apply(name, operand)

    method.__doc__ = doc
    return method


def reflected(name: str) -> Callable[[Any, Any], Any]:
    """The reflected method, for a scalar on the left."""

    def method(self: Any, other: Any) -> Any:
        operand = self._operand(name, other)
        if operand is NotImplemented:
            return NotImplemented
        ops = self._ops
        try:
            return self._with(ops[name](operand, self.primitive))
        except Exception as error:
            raise failure(name, ops, (operand, self.primitive), error) from error

    return method


def comparison(name: str, doc: str) -> Callable[[Any, Any], Any]:
    """A binary method of operands of one kind whose result is Bool."""

    def method(self: Any, other: Any) -> Any:
        self = self._promoted_with(other)
        operand = self._operand(name, other)
        if operand is NotImplemented:
            return NotImplemented
        return self._apply_to(Bool, name, operand)

    method.__doc__ = doc
    return method


__all__ = ["Bool", "Float", "Int", "Number", "Operand", "TensorBase", "binary", "comparison", "reflected"]
