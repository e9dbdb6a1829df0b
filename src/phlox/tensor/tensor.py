"""The `Tensor` class."""

from __future__ import annotations

import builtins
import math
from typing import Any, Generic, Self, cast

import numpy as np
from typing_extensions import TypeVar

from phlox.backend import Backend, Bool, Decorator, DeviceLike, Float, Int, Kind, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.levels import is_followed, levels
from phlox.backend.pytree import PyTreeNode, StructureSerializer, register_node
from phlox.backend.registry import load_backend, load_decorator
from phlox.errors import AutodiffError, BackendError, KindError, ShapeError
from phlox.host.text import html_by
from phlox.tensor.activation import Activation
from phlox.tensor.arithmetic import Arithmetic
from phlox.tensor.dispatch import Ops, ops_of
from phlox.tensor.elementwise import Elementwise
from phlox.tensor.engine_arrays import one_of_many
from phlox.tensor.explain import failure
from phlox.tensor.indexing import Indexing
from phlox.tensor.products import Products
from phlox.tensor.reduction import Reduction
from phlox.tensor.shaping import Shaping
from phlox.tensor.sorting import Sorting

B = TypeVar("B", bound=Backend, default=Any)
D = TypeVar("D", default=Any)
K = TypeVar("K", bound=Kind, default=Float)


class Gradients:
    """The gradients of one backward pass; `tensor.grad(gradients)` returns one of them.

    >>> import phlox as px
    >>> x = px.tensor([3.0], device=px.autodiff.Autodiff(px.backend.NumPy())).require_grad()
    >>> x.grad((x * x).sum().backward()).tolist()
    [6.0]
    """

    __slots__ = ("backend", "found")

    def __init__(self, backend: Backend, found: dict[int, Any]) -> None:
        self.backend = backend
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        return f"Gradients(of {len(self)} leaves on {self.backend!r})"

    _repr_html_ = html_by("phlox.tensor.pages", "page_of_gradients")


class Tensor(Arithmetic, Elementwise, Activation, Products, Reduction, Shaping, Indexing, Sorting, Generic[B, D, K]):
    """An immutable array of any rank, of one kind (Float, Int or Bool), on one device of one backend.

    Create one with `phlox.tensor`, `zeros`, `arange`, `random.normal`, ... For type checkers it is `Tensor[B, D, K]`:
    backend, rank (any by default) and kind (`Float` by default).

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x.T).sum(axis=-1).numpy()
    array([16., 36.], dtype=float32)
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("create tensors with phlox.tensor(values), zeros, ones, full, arange or phlox.random")

    @staticmethod
    def from_primitive(primitive: Any, backend: Backend, kind: type[Kind] | None = None) -> Tensor[Any, Any, Any]:
        """Wrap one of the backend's own arrays as a tensor, without a copy."""
        return wrap(ops_of(backend, backend.kind_of(primitive) if kind is None else kind), primitive)

    # --- kinds and devices

    def float(self) -> Tensor[B, D, Float]:
        """Convert to Float. Integers are rounded if necessary; true is 1."""
        return self if self.kind is Float else self._apply_to(Float, "into_float")  # pyright: ignore[reportReturnType]

    def int(self) -> Tensor[B, D, Int]:
        """Convert to Int, rounding toward zero. NaN or a value out of range raises `RangeError` (not when traced)."""
        return self if self.kind is Int else self._apply_to(Int, "into_int")  # pyright: ignore[reportReturnType]

    def bool(self) -> Tensor[B, D, Bool]:
        """Convert to Bool: true where nonzero."""
        return self if self.kind is Bool else self._apply_to(Bool, "into_bool")  # pyright: ignore[reportReturnType]

    def to_device(self, device: DeviceLike) -> Tensor[Any, D, K]:
        """Move to another device, possibly of another backend. Returns x itself if it is already there. Differentiable.

        Values are rounded to the other backend's dtype. One that does not fit raises `RangeError` (not during tracing).
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
        """Convert half precision to f32, on the same engine and device; otherwise return x itself. Differentiable.

        Use it for numerically delicate computations; `from_full_precision` converts back.

        >>> import phlox as px
        >>> from phlox.backend import NumPy
        >>> x = px.full((3000,), 100.0, device=NumPy(float="f16"))
        >>> x.square().mean().item(), x.to_full_precision().square().sum().item()
        (10000.0, 30000000.0)
        """
        return self._at_precision(self._ops.backend.full_precision())

    def from_full_precision(self, like: Tensor[Any, Any, Any] | Backend) -> Tensor[Any, D, K]:
        """Convert to the precision of `like`, on this device: the inverse of `to_full_precision`.

        Values are rounded like results of arithmetic: one that is too large becomes an infinity. Raises `BackendError`
        if the backend of `like` is not this one at another precision.
        """
        backend = like.backend if isinstance(like, Tensor) else like
        if backend.full_precision() is not self._ops.backend.full_precision():
            raise BackendError(
                f"from_full_precision: {backend!r} is not {self._ops.backend!r} at another precision; "
                "to change the backend use .to_device(...)"
            )
        return self._at_precision(backend)

    def _at_precision(self, backend: Backend) -> Tensor[Any, Any, Any]:
        own_backend = self._ops.backend
        if backend is own_backend:
            return self
        device = self.device.on(backend)
        return wrap(ops_of(backend, self.kind), own_backend.cast(self.primitive, backend, device))

    # --- autodiff

    def require_grad(self) -> Self:
        """The same values as a new leaf of the tape: `backward` computes its gradient. Earlier history is dropped.

        Raises `AutodiffError` on a backend without autodiff, `KindError` for Int and Bool.
        """
        if self.kind is not Float:
            raise KindError(f"{self.kind.__name__} tensors have no gradients; convert with .float() first")
        return self._with(self._ops.backend.make_leaf(self.primitive))

    def is_require_grad(self) -> builtins.bool:
        """Does this tensor require a gradient: is it a leaf of the tape, or does it depend on one?"""
        return self._ops.backend.node_of(self.primitive) is not None

    def detach(self) -> Self:
        """The same values without history: a constant for autodiff."""
        return self._with(self._ops.backend.detach(self.primitive))

    def backward(
        self, cotangent: Tensor[Any, Any, Any] | None = None, *, retain_graph: builtins.bool = False
    ) -> Gradients:
        """The gradients of this tensor with respect to all leaves that it depends on.

        A tensor with more than one element needs a `cotangent` of its shape, on the inner backend. The saved values of
        the graph are freed unless `retain_graph`. With nested tapes, the outermost decorator that tracks this tensor is
        used.

        Raises `AutodiffError` if this tensor depends on no leaf, if the graph was already freed, and inside a
        differentiated function (`phlox.grad`) whose own history it would cut.
        """
        backend = self._ops.backend
        if backend.node_of(self.primitive) is None:
            lower = backend.without_tape()
            if lower is not None and lower.differentiates:  # a constant on this tape may have a history on a tape below
                return self.inner().backward(cotangent, retain_graph=retain_graph)
        cotangent_array = None
        if cotangent is not None:
            if cotangent.backend is not backend.inner or cotangent.shape != self.shape:
                raise ShapeError(
                    f"backward: the cotangent must be of shape {self.shape} on {backend.inner!r}, "
                    f"got shape {cotangent.shape} on {cotangent.backend!r}"
                )
            cotangent_array = cotangent.primitive
        gradients = backend.backward(self.primitive, cotangent_array, retain_graph)
        for level in levels():
            if not gradients.keys().isdisjoint(level.leaves()):
                raise AutodiffError(
                    "backward() inside a differentiated function would cut that function's history; use phlox.grad or "
                    "phlox.value_and_grad for the inner gradient, or call .detach() first"
                )
        return Gradients(backend, gradients)

    def grad(self, gradients: Gradients) -> Tensor[Any, D, K] | None:
        """This leaf's gradient, on its inner backend; None if the differentiated tensor did not depend on it.

        The differentiated tensor may be on another backend: `to_device` and `to_full_precision` are on the tape.
        """
        backend = self._ops.backend
        node = backend.node_of(self.primitive)
        if node is None and backend is not gradients.backend:
            raise BackendError(f"grad: the gradients are on {gradients.backend!r}, but the tensor is on {backend!r}")
        gradient = None if node is None else gradients.found.get(node.id)
        return None if gradient is None else wrap(ops_of(backend.inner, Float), gradient)  # pyright: ignore[reportArgumentType]

    def inner(self) -> Tensor[Any, D, K]:
        """The same values on the inner backend, without one tape. History on a lower tape is kept."""
        backend = self._ops.backend
        inner = backend.without_tape()
        if inner is None:
            raise BackendError(f"{backend!r} has no inner backend: it is not a decorator")
        return wrap(ops_of(inner, self.kind), backend.value(self.primitive))

    @staticmethod
    def from_inner(tensor: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """The same values as constants on `Autodiff` of the tensor's backend."""
        return wrap(ops_of(tensor.backend.with_autodiff(), tensor.kind), tensor.primitive)

    # --- values

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, read-only because it may share memory. Waits for asynchronous computation."""
        view = self._host("numpy").view()
        view.flags.writeable = False
        return view

    def item(self) -> Any:
        """The value of a tensor of one element as a Python scalar; raises `ShapeError` for more elements."""
        if self.size != 1:
            raise ShapeError(f"item: a tensor of shape {self.shape} is not a single value")
        return self._host("item").item()

    def tolist(self) -> Any:
        """The values as nested lists of Python scalars."""
        return self._host("tolist").tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Export the array to another library, without a copy if both support it; see the Array API standard."""
        try:
            return self._ops.backend.to_dlpack(self.primitive, **options)
        except BufferError:  # the error that the protocol prescribes if a copy is needed
            raise
        except Exception as error:
            raise failure("__dlpack__", self._ops, (self.primitive,), error) from error

    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]:
        return self._ops.backend.dlpack_device(self.primitive)

    # With a NumPy array or scalar on the left, use the operators of this class.
    __array_priority__ = 1000

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __int__(self) -> builtins.int:
        return int(self.item())

    def __complex__(self) -> builtins.complex:
        return complex(self.item())

    def __index__(self) -> builtins.int:
        if self.kind is not Int:
            raise KindError(
                f"an index must be an integer, got a {self.kind.__name__} tensor; convert with .int() first"
            )
        return self.item()

    def __round__(self, ndigits: builtins.int | None = None) -> Any:
        return round(self._single_value("round"), ndigits)

    def __trunc__(self) -> builtins.int:
        return math.trunc(self._single_value("trunc"))

    def __format__(self, spec: str) -> str:
        return format(self._single_value("format"), spec) if spec else str(self)

    def _single_value(self, name: str) -> Any:
        """The value of one element as a Python scalar, for the numeric protocols."""
        if self.size != 1:
            raise ShapeError(
                f"{name}: a tensor of shape {self.shape} is not a scalar; select one element first, or use "
                ".tolist(), .numpy() or the tensor's own .round() and .trunc()"
            )
        return self.item()

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions compute on the values (half precision as f32) and return NumPy's results."""
        if func in (np.shape, np.ndim) and len(args) == 1:  # they need no values
            return getattr(args[0], func.__name__)
        return func(*map(_as_numpy, args), **{name: _as_numpy(value) for name, value in kwargs.items()})

    def __repr__(self) -> str:
        return _text_of(self._ops.backend, self._ops.kind, self.primitive)

    _repr_html_ = html_by("phlox.tensor.pages", "page_of_tensor")

    # Pickling keeps only the values, not the history. A copy is the tensor itself, since it is immutable.

    def __reduce__(self) -> tuple[Any, ...]:
        device = self.device
        device_name = device.name if device.committed else None  # None: the default device where it is unpickled
        return _restore, (self.numpy(), self._ops.backend, self.kind, device_name)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _text_of(backend: Backend, kind: type[Kind], primitive: Any) -> str:
    """Kind, shape, device and abbreviated values, or the state of a tensor without values (traced, donated, ...)."""
    shows_dtype = kind.name != "bool" and backend.host_dtype(kind).name not in ("float32", "int32")
    name = f"{kind.__name__}[{element_of(backend, kind)}]" if shows_dtype else kind.__name__
    try:
        state = state_of(backend, primitive)
        if state == DONATED:
            return f"Tensor({name} on {backend.name}, {DONATED})"
        head = f"Tensor({name} {backend.shape(primitive)} on {backend.device_of(primitive)}"
        if state:
            return f"{head}, {state})"
        host = backend.to_host(primitive)
    except Exception:  # an object that a PyTree function put in the array's place
        return f"Tensor({name} on {backend.name}, holding {primitive!r})"
    if kind.name == "float" and host.dtype.itemsize == 2:
        host = host.astype(np.float32)
    values = np.array2string(host, separator=", ", threshold=50, edgeitems=3, precision=5)
    joint = "\n" if "\n" in values else " "
    return f"{head}:{joint}{values})"


DONATED = "donated"


def state_of(backend: Backend, primitive: Any) -> str:
    """Why an array has no values to show: donated, traced, one of several examples; empty if it has values."""
    if backend.is_donated(backend.strip(primitive)):
        return DONATED
    batch = backend.batch_of(primitive)
    if batch:
        return f"one of {' x '.join(map(str, batch))} examples"
    if backend.is_traced(primitive):
        ended = engine_of(backend).is_leaked(backend.strip(primitive))
        return "leaked from a transformation that has ended" if ended else "traced"
    if not backend.is_here(primitive):
        return "in shards of several processes; px.distributed.gather(...) brings it here"
    return ""


def element_of(backend: Backend, kind: type[Kind]) -> str:
    """The element type of tensors of a kind that is not Bool."""
    return backend.float_element if kind.name == "float" else backend.int_element


def _as_numpy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return cast("Tensor[Any, Any, Any]", value).to_full_precision().numpy()
    if type(value) in (list, tuple):
        return type(value)([_as_numpy(part) for part in value])
    return value


_new = object.__new__


def wrap(ops: Ops, primitive: Any) -> Tensor[Any, Any, Any]:
    """Wrap an array that belongs to `ops` as a tensor, unchecked."""
    result = _new(Tensor)
    result._ops = ops  # pyright: ignore[reportPrivateUsage]
    result.primitive = primitive
    return result


def _restore(
    values: np.ndarray[Any, Any], backend: Backend, kind: type[Kind], device_name: str | None
) -> Tensor[Any, Any, Any]:
    return wrap(ops_of(backend, kind), backend.from_host(values, kind, backend.device(device_name)))


def _flatten(tensor: Tensor[Any, Any, Any]) -> tuple[tuple[Any], Ops]:
    ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
    if is_followed(ops.backend, tensor.primitive):
        raise history_lost("a tensor")
    if ops.backend.batched and ops.backend.batch_of(tensor.primitive):
        raise one_of_many("jax")
    return (ops.backend.strip(tensor.primitive),), ops


def history_lost(owner: str) -> AutodiffError:
    """The error for a PyTree function inside a differentiated function: it would silently cut the history."""
    return AutodiffError(
        f"jax's functions see the array of {owner} without its history, so the gradient of the function that is being "
        "differentiated would be wrong; map tensors in Python, modules with module.map, or call .detach() first"
    )


def _unflatten(ops: Ops, leaves: Any) -> Tensor[Any, Any, Any]:
    return wrap(ops, next(iter(leaves)))


def ops_to_bytes(ops: Ops) -> bytes:
    """Serialise kind, engine, dtypes and decorators (outermost first) of a tensor, for exported programs."""
    import json  # not at the top, like all modules that are slow to import and seldom needed

    backend: Backend = ops.backend
    decorators: list[tuple[str, dict[str, Any]]] = []
    while isinstance(backend, Decorator):
        decorators.append(backend.spec())
        backend = backend.inner
    return json.dumps([ops.kind.name, backend.name, backend.float_element, backend.int_element, decorators]).encode()


def ops_from_bytes(text: bytes) -> Ops:
    """The inverse of `ops_to_bytes`."""
    import json

    name, engine, floats, ints, decorators = json.loads(text)
    backend: Backend = cast("Any", load_backend(engine))(float=floats, int=ints)
    for decorator, options in reversed(decorators):
        backend = load_decorator(decorator)(backend, **options)
    return ops_of(backend, next(kind for kind in (Float, Int, Bool) if kind.name == name))


register_node(
    PyTreeNode(Tensor, _flatten, _unflatten, serializer=StructureSerializer(ops_to_bytes, ops_from_bytes, _unflatten))
)
