"""The one `Tensor`."""

from __future__ import annotations

import builtins
import math
from typing import Any, Generic, Self, cast

import numpy as np
from typing_extensions import TypeVar

from phlox.backend import Backend, Bool, DeviceLike, Float, Int, Kind, as_device
from phlox.backend.levels import is_followed, levels
from phlox.backend.pytree import PyTreeNode, StructureSerializer, register_node
from phlox.errors import AutodiffError, BackendError, KindError, ShapeError
from phlox.tensor.activation import Activation
from phlox.tensor.arithmetic import Arithmetic
from phlox.tensor.dispatch import Ops, ops_of
from phlox.tensor.display import text_of
from phlox.tensor.elementwise import Elementwise
from phlox.tensor.explain import failure
from phlox.tensor.gradients import Gradients
from phlox.tensor.indexing import Indexing
from phlox.tensor.products import Products
from phlox.tensor.reduction import Reduction
from phlox.tensor.serialization import ops_from_bytes, ops_to_bytes
from phlox.tensor.shaping import Shaping
from phlox.tensor.sorting import Sorting

B = TypeVar("B", bound=Backend, default=Any)
D = TypeVar("D", default=Any)
K = TypeVar("K", bound=Kind, default=Float)


class Tensor(Arithmetic, Elementwise, Activation, Products, Reduction, Shaping, Indexing, Sorting, Generic[B, D, K]):
    """Numbers of one kind in an array of any rank, on one device of one backend. Immutable; cheap to share.

    Make one with `phlox.tensor`, `zeros`, `arange`, `random.normal`, ... To a type checker it is `Tensor[B, D, K]`: its
    backend, its rank (any, unless said), its kind (`Float`, unless said).

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x.T).sum(axis=-1).numpy()
    array([16., 36.], dtype=float32)
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("make tensors with phlox.tensor(values), zeros, ones, full, arange or phlox.random")

    @staticmethod
    def from_primitive(primitive: Any, backend: Backend, kind: type[Kind] | None = None) -> Tensor[Any, Any, Any]:
        """A tensor around one of the backend's own arrays, as it is."""
        return wrap(ops_of(backend, backend.kind_of(primitive) if kind is None else kind), primitive)

    # --- kinds and devices

    def float(self) -> Tensor[B, D, Float]:
        """As Float: integers are rounded where need be, truth is 1."""
        return self if self.kind is Float else self._apply_to(Float, "into_float")  # pyright: ignore[reportReturnType]

    def int(self) -> Tensor[B, D, Int]:
        """As Int: floats are rounded toward zero; NaN and what is out of range is `RangeError` (not under a trace)."""
        return self if self.kind is Int else self._apply_to(Int, "into_int")  # pyright: ignore[reportReturnType]

    def bool(self) -> Tensor[B, D, Bool]:
        """As Bool: true where not zero."""
        return self if self.kind is Bool else self._apply_to(Bool, "into_bool")  # pyright: ignore[reportReturnType]

    def to_device(self, device: DeviceLike) -> Tensor[Any, D, K]:
        """On another device, be it another backend's; the same tensor if it is there already. Differentiable.

        Values are rounded to the other backend's elements; one that does not fit is `RangeError` (not under a trace).
        """
        target = as_device(device)
        backend = self._ops.backend
        try:
            if target.backend is backend:
                return self if target.holds(self.device) else self._with(backend.to_device(self.primitive, target))
            backend.check_fits(self.primitive, target.backend)
            return wrap(ops_of(target.backend, self.kind), backend.cast(self.primitive, target.backend, target))
        except Exception as error:
            raise failure("to_device", self._ops, (self.primitive,), error) from error

    def to_full_precision(self) -> Tensor[Any, D, K]:
        """On the same engine and device at f32 where the backend has half precision; otherwise this very tensor.

        For what is numerically delicate; `from_full_precision` is the way back. Differentiable.

        >>> import phlox as px
        >>> from phlox.backend import NumPy
        >>> x = px.full((3000,), 100.0, device=NumPy(float="f16"))
        >>> x.square().mean().item(), x.to_full_precision().square().sum().item()
        (10000.0, 30000000.0)
        """
        return self._at_precision(self._ops.backend.full_precision())

    def from_full_precision(self, like: Tensor[Any, Any, Any] | Backend) -> Tensor[Any, D, K]:
        """On the backend of `like`, on this device: the way back from `to_full_precision`.

        Values round as results of arithmetic do, so one that is too large becomes an infinity. Raises `BackendError` if
        that backend is not this one at another precision.
        """
        backend = like.backend if isinstance(like, Tensor) else like
        if backend.full_precision() is not self._ops.backend.full_precision():
            raise BackendError(
                f"from_full_precision: {backend!r} is not {self._ops.backend!r} at another precision; "
                "between backends move with .to_device(...)"
            )
        return self._at_precision(backend)

    def _at_precision(self, backend: Backend) -> Tensor[Any, Any, Any]:
        mine = self._ops.backend
        if backend is mine:
            return self
        place = self.device.on(backend)
        return wrap(ops_of(backend, self.kind), mine.cast(self.primitive, backend, place))

    # --- autodiff

    def require_grad(self) -> Self:
        """The same values as a leaf of the tape, whose gradient `backward` finds; the history before is cut.

        Raises `AutodiffError` on a backend without a tape, `KindError` for Int and Bool.
        """
        if self.kind is not Float:
            raise KindError(f"{self.kind.__name__} tensors have no gradients; convert with .float() first")
        return self._with(self._ops.backend.make_leaf(self.primitive))

    def is_require_grad(self) -> builtins.bool:
        """Does this tensor depend on a leaf of the tape (or is one)?"""
        return self._ops.backend.node_of(self.primitive) is not None

    def detach(self) -> Self:
        """The same values without their history."""
        return self._with(self._ops.backend.detach(self.primitive))

    def backward(
        self, cotangent: Tensor[Any, Any, Any] | None = None, *, retain_graph: builtins.bool = False
    ) -> Gradients:
        """The gradients of all leaves that this tensor depends on.

        A tensor of more than one element needs a `cotangent` of its shape, on the inner backend. What the graph saved
        is freed on the way unless `retain_graph`. With tapes one above the other, it is the highest that follows this
        tensor. Raises `AutodiffError` where there is nothing to differentiate, where the graph has been freed already,
        and inside of a differentiated function (`phlox.grad`) whose own tape would end here.
        """
        backend = self._ops.backend
        if backend.node_of(self.primitive) is None:
            lower = backend.without_tape()
            if lower is not None and lower.differentiates:  # a constant on this tape, which one below may follow
                return self.inner().backward(cotangent, retain_graph=retain_graph)
        given = None
        if cotangent is not None:
            if cotangent.backend is not backend.inner or cotangent.shape != self.shape:
                raise ShapeError(
                    f"backward: the cotangent must be of shape {self.shape} on {backend.inner!r}, "
                    f"got shape {cotangent.shape} on {cotangent.backend!r}"
                )
            given = cotangent.primitive
        found = backend.backward(self.primitive, given, retain_graph)
        for level in levels():
            if not found.keys().isdisjoint(level.leaves()):
                raise AutodiffError(
                    "backward() inside of a differentiated function would cut the history of what is differentiated "
                    "there; use phlox.grad or phlox.value_and_grad for the inner gradient, or .detach() first"
                )
        return Gradients(backend, found)

    def grad(self, gradients: Gradients) -> Tensor[Any, D, K] | None:
        """This leaf's gradient, on its inner backend; None if the differentiated tensor did not depend on it.

        That tensor may have been on another backend: `to_device` and `to_full_precision` are steps of the tape.
        """
        backend = self._ops.backend
        node = backend.node_of(self.primitive)
        if node is None and backend is not gradients.backend:
            raise BackendError(f"grad: the gradients are of {gradients.backend!r}, the tensor is on {backend!r}")
        found = None if node is None else gradients.found.get(node.id)
        return None if found is None else wrap(ops_of(backend.inner, Float), found)  # pyright: ignore[reportArgumentType]

    def inner(self) -> Tensor[Any, D, K]:
        """The same values on the backend without its tape; with two tapes, what the lower one knows stays."""
        backend = self._ops.backend
        inner = backend.without_tape()
        if inner is None:
            raise BackendError(f"{backend!r} has no inner backend: it is no decorator")
        return wrap(ops_of(inner, self.kind), backend.value(self.primitive))

    @staticmethod
    def from_inner(tensor: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """The same values as constants on the tensor's backend with a tape, or with one more."""
        return wrap(ops_of(tensor.backend.with_autodiff(), tensor.kind), tensor.primitive)

    # --- values

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, read-only since it may share memory; waits for an asynchronous engine."""
        view = self._host("numpy").view()
        view.flags.writeable = False
        return view

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number; otherwise `ShapeError`."""
        if self.size != 1:
            raise ShapeError(f"item: a tensor of shape {self.shape} is not a single value")
        return self._host("item").item()

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self._host("tolist").tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """The array for another library, without a copy where the two agree; see the Array API standard."""
        try:
            return self._ops.backend.to_dlpack(self.primitive, **options)
        except BufferError:  # what the protocol says where the two do not agree
            raise
        except Exception as error:
            raise failure("__dlpack__", self._ops, (self.primitive,), error) from error

    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]:
        return self._ops.backend.dlpack_device(self.primitive)

    # With an array or a scalar of NumPy on the left, the operators of this class are asked.
    __array_priority__ = 1000

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __int__(self) -> builtins.int:
        return int(self.item())

    def __complex__(self) -> builtins.complex:
        return complex(self.item())

    def __index__(self) -> builtins.int:
        if self.kind is not Int:
            raise KindError(f"an index is an integer, got a {self.kind.__name__} tensor; convert with .int() first")
        return self.item()

    def __round__(self, ndigits: builtins.int | None = None) -> Any:
        return round(self._only("round"), ndigits)

    def __trunc__(self) -> builtins.int:
        return math.trunc(self._only("trunc"))

    def __format__(self, spec: str) -> str:
        return format(self._only("format"), spec) if spec else str(self)

    def _only(self, name: str) -> Any:
        """The value of one element as a Python number, for what numbers do."""
        if self.size != 1:
            raise ShapeError(
                f"{name}: a tensor of shape {self.shape} is not a single number; take one with .item(), or use "
                ".tolist(), .numpy() or the tensor's own .round() and .trunc()"
            )
        return self.item()

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions compute on the values, those of half precision at f32; the result is NumPy's."""
        return func(*map(_as_numpy, args), **{name: _as_numpy(value) for name, value in kwargs.items()})

    def __repr__(self) -> str:
        return text_of(self._ops.backend, self._ops.kind, self.primitive)

    # The values are what is pickled: history ends there. A copy is the tensor itself, which nothing can change.

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.numpy(), self._ops.backend, self.kind, self.device.name)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _as_numpy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return cast("Tensor[Any, Any, Any]", value).to_full_precision().numpy()
    if type(value) in (list, tuple):
        return type(value)([_as_numpy(part) for part in value])
    return value


_new = object.__new__


def wrap(ops: Ops, primitive: Any) -> Tensor[Any, Any, Any]:
    """A tensor around an array that is known to belong to `ops`."""
    result = _new(Tensor)
    result._ops = ops  # pyright: ignore[reportPrivateUsage]
    result.primitive = primitive
    return result


def _restore(values: np.ndarray[Any, Any], backend: Backend, kind: type[Kind], place: str) -> Tensor[Any, Any, Any]:
    return wrap(ops_of(backend, kind), backend.from_host(values, kind, backend.device(place)))


def _flatten(tensor: Tensor[Any, Any, Any]) -> tuple[tuple[Any], Ops]:
    ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
    if is_followed(ops.backend, tensor.primitive):
        raise history_lost("a tensor")
    return (ops.backend.strip(tensor.primitive),), ops


def history_lost(what: str) -> AutodiffError:
    """For a PyTree function inside of a differentiated one, which would cut the history without a word."""
    return AutodiffError(
        f"the functions of jax see the array of {what} without its history, and the gradient of the function that is "
        "being differentiated here would be wrong; map tensors with Python, modules with module.map, or .detach() first"
    )


def _unflatten(ops: Ops, leaves: Any) -> Tensor[Any, Any, Any]:
    return wrap(ops, next(iter(leaves)))


register_node(
    PyTreeNode(Tensor, _flatten, _unflatten, serializer=StructureSerializer(ops_to_bytes, ops_from_bytes, _unflatten))
)
