"""`Param`: the only thing that a module saves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from operator import index
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, final

from phlox.backend import Backend, Device, DeviceLike, Float, Kind, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.levels import depth, is_followed
from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.pytree import transformation
from phlox.errors import KindError, ModuleError
from phlox.host.signal_guard import commit, scope
from phlox.host.text import html_by
from phlox.module.deferred import Deferred, Initializer, JaxInitializer, TraceContext, as_initializer, standard_normal
from phlox.module.donated import Donated
from phlox.module.fields import Watched
from phlox.module.foreign_leaf import ForeignLeaf
from phlox.module.identity import ParamId, new_id
from phlox.other_names import class_of, of_object
from phlox.random import current
from phlox.random.roots import Root
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops
from phlox.tensor.tensor import wrap

_changes: ContextVar[dict[Param, Tensor[Any, Any, Any]] | None] = ContextVar("phlox_changes", default=None)


@contextmanager
def noting_changes() -> Generator[dict[Param, Tensor[Any, Any, Any]]]:
    """Within this scope, collect the parameters that are `set`, with their old values."""
    changes: dict[Param, Tensor[Any, Any, Any]] = {}
    try:
        with scope(_changes, changes):
            yield changes
    finally:
        outer_changes = _changes.get()
        if outer_changes is not None:
            for param, value in changes.items():
                outer_changes.setdefault(param, value)


@contextmanager
def restoring_params() -> Generator[None]:
    """Within this scope parameters may be `set`; afterwards they have their old values again."""
    with noting_changes() as changes:
        try:
            yield
        finally:
            for param, value in changes.items():
                param.set(value)


@contextmanager
def with_old_values(changes: dict[Param, Tensor[Any, Any, Any]]) -> Generator[None]:
    """Within this scope parameters have the values from before they were set; afterwards their current values again."""
    new_values = {param: param._tensor for param in changes}  # pyright: ignore[reportPrivateUsage]
    try:
        with scope(_changes, None):
            for param, value in changes.items():
                param._tensor = value  # pyright: ignore[reportPrivateUsage]
            yield
    finally:
        for param, value in new_values.items():
            param._tensor = value  # pyright: ignore[reportPrivateUsage]


_init_lock = RLock()


@final
class Param(Watched):
    """A tensor that a module owns. It has an id, and may be trained or not.

    A parameter may be deferred: it has only a shape and an initializer, and its value is created when it is first
    needed (see `Param.deferred`). On a backend with a tape, the value of a trained parameter is a leaf of the tape.

    Args:
        value: the tensor.
        trained: whether optimizers change it. Running statistics are not trained; Int and Bool parameters never are.
        id: the id of the parameter that this one continues; by default a new id.
        full_precision: keep a Float at f32 or higher on every device. Use it in modules of half precision for values
            that accumulate over steps: running statistics, sums, averages. The parameter's backend is then
            `device.backend.full_precision()`; to combine it with tensors of half precision, convert one of the two.

    >>> import phlox as px
    >>> px.Param(px.zeros((2, 3))).shape
    (2, 3)
    >>> from phlox.backend import NumPy
    >>> total = px.Param(px.zeros((2,), device=NumPy(float="bf16")), trained=False, full_precision=True)
    >>> total.backend, total.to_device(NumPy(float="f16")).backend
    (NumPy(), NumPy())
    """

    __slots__ = ("_deferred", "_scope", "_tensor", "declared", "full_precision", "id", "trainable", "trained")

    _phlox_holds_tensor: ClassVar = True
    """It holds a tensor, but is not a tensor: for error messages that say how to get the tensor."""

    id: ParamId
    trained: bool
    """Whether optimizers change it now. Change it through `Module.freeze`."""
    trainable: bool
    """Whether it was declared as trained; it is trained unless frozen."""
    full_precision: bool
    """Whether it is kept at f32 or higher, on backends of half precision too."""
    declared: bool
    """Whether it was created with this value and a new id, and no value was set since. Not set for other parameters."""
    _tensor: Tensor[Any, Any, Any] | None
    _deferred: Deferred | ForeignLeaf | Donated | None
    _scope: Any
    """The JAX transformation in which it was created, as a weak reference; None if it was created outside of any."""

    def __init__(
        self,
        value: Tensor[Any, Any, Any],
        *,
        trained: bool = True,
        id: ParamId | None = None,
        full_precision: bool = False,
    ) -> None:
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"a Param holds a tensor, got {type(value).__name__}; make one with phlox.tensor(...)")
        self.id = new_id() if id is None else id
        self.declared = id is None
        self.trained = self.trainable = trained and value.kind is Float
        self.full_precision = full_precision and value.kind is Float
        self._phlox_watchers = ()
        self._deferred = None
        self._scope = transformation()
        self._tensor = self._initial_value(value)

    @classmethod
    def deferred(
        cls,
        shape: tuple[int, ...],
        initializer: Initializer | JaxInitializer = standard_normal,
        *,
        fans: tuple[int, int] | None = None,
        device: DeviceLike | None = None,
        trained: bool = True,
        full_precision: bool = False,
        kind: type[Kind] = Float,
    ) -> Param:
        """A parameter whose value is created when it is first needed.

        The parameter reserves a random sub-stream now. So its value depends on the seed and on the order in which
        parameters are declared, but not on the order in which they are used.

        Args:
            shape: the shape of the value.
            initializer: one of `phlox.nn`, a function `(shape, fans, device)`, or an initializer of JAX or Flax, `(key,
                shape, dtype)`, which needs JAX but works on every backend. By default values are standard normal.
            fans: (fan_in, fan_out) for the initializer; by default the first and the last size of the shape.
            device: where the value is created.
            trained, full_precision: as in `Param`.
            kind: of the value that the initializer creates.

        Raises `ModuleError` if a size is negative or not an integer.

        >>> import phlox as px
        >>> weight = px.Param.deferred((2, 3), px.nn.Zeros())
        >>> weight.is_deferred, weight.val().shape, weight.is_deferred
        (True, (2, 3), False)
        """
        try:
            sizes = tuple([index(size) for size in shape])
        except TypeError:
            sizes = (-1,)
        if min(sizes, default=0) < 0:
            raise ModuleError(f"a parameter cannot have the shape {shape}: sizes are integers of at least zero")
        shape = sizes
        if fans is None:
            fans = (shape[0], shape[-1]) if shape else (1, 1)
        target = _at_full_precision(as_device(device)) if full_precision else as_device(device)
        context = TraceContext.now(engine_of(target.backend))
        root = current().substream()
        deferred = Deferred(shape, as_initializer(initializer), fans, target, root, context, kind)
        trained = trained and kind is Float
        return cls._create(None, deferred, new_id(), trained, trained, full_precision)

    @classmethod
    def _create(
        cls,
        tensor: Tensor[Any, Any, Any] | None,
        deferred: Deferred | ForeignLeaf | Donated | None,
        id: ParamId,
        trained: bool,
        trainable: bool,
        full_precision: bool = False,
    ) -> Param:
        self = object.__new__(cls)
        self.id = id
        self.trained = trained
        self.trainable = trainable
        self.full_precision = full_precision
        self._phlox_watchers = ()
        self._deferred = deferred
        self._tensor = tensor
        self._scope = None
        return self

    @classmethod
    def revive(
        cls,
        ops: Ops,
        array: Any,
        trained: bool,
        trainable: bool,
        id: ParamId,
        full_precision: bool = False,
        scope: Any = None,
    ) -> Param:
        """A parameter around an engine's array; `scope` is the JAX transformation in which it is created."""
        backend = ops.backend
        primitive = backend.make_leaf(array) if trained and backend.differentiates else array
        param = cls._create(wrap(ops, primitive), None, id, trained, trainable, full_precision)
        param._scope = scope
        return param

    @classmethod
    def without_array(
        cls, holder: ForeignLeaf | Donated, trained: bool, trainable: bool, id: ParamId, full_precision: bool = False
    ) -> Param:
        """A parameter whose array was donated, or was replaced by a PyTree function."""
        return cls._create(None, holder, id, trained, trainable, full_precision)

    def _initial_value(self, value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """The value for a new parameter; inside a differentiated function it keeps its history."""
        if is_followed(value._ops.backend, value.primitive):  # pyright: ignore[reportPrivateUsage]
            return value
        return self._leaf(value)

    def _leaf(self, value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        if self.full_precision:
            value = value.to_full_precision()
        if not value._ops.backend.differentiates:  # pyright: ignore[reportPrivateUsage]
            return value
        return value.require_grad() if self.trained else value.detach()

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property failed, or a slot is not set: read it again
                return object.__getattribute__(self, name)
            of_value = f"param.val().{name}" if hasattr(Tensor, name) else None
            raise AttributeError(of_object(self, name, "Param", otherwise=of_value), name=name, obj=self)

        def _refuse_arithmetic(self, *_: Any) -> Any:
            raise KindError("a Param is not a tensor; compute with the tensor that it holds, param.val()")

        __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = __neg__ = __getitem__ = _refuse_arithmetic
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = _refuse_arithmetic
        __iter__ = None  # otherwise __getitem__ would make it iterable

    # --- properties

    @property
    def is_initialized(self) -> bool:
        """Does the parameter have a value? A deferred one has none yet."""
        return self._tensor is not None or isinstance(self._deferred, Donated)

    @property
    def is_deferred(self) -> bool:
        """Is the value still to be created by an initializer?"""
        return isinstance(self._deferred, Deferred)

    @property
    def leaf(self) -> Any:
        """The engine's own array, without a tape, or the object that a PyTree function put in its place."""
        deferred = self._deferred
        if isinstance(deferred, ForeignLeaf):
            return deferred.leaf
        value = self.val()
        return value.backend.strip(value.primitive)

    @property
    def has_shape(self) -> bool:
        """Does it have a shape? False only if a PyTree function replaced the array with an object without one."""
        return not isinstance(self._deferred, ForeignLeaf) or self._deferred.has_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, also of a deferred parameter."""
        return self.val().shape if self._deferred is None else self._deferred.shape

    @property
    def device(self) -> Device:
        """The device of the value, also of a deferred parameter."""
        return self.val().device if self._deferred is None else self._deferred.device

    @property
    def backend(self) -> Backend:
        """The backend of the value, also of a deferred parameter."""
        return self.val().backend if self._deferred is None else self._deferred.device.backend

    @property
    def kind(self) -> type[Kind]:
        """The kind of the value, also of a deferred parameter."""
        return self.val().kind if self._deferred is None else self._deferred.kind

    @property
    def mark(self) -> tuple[Ops, bool, bool, bool]:
        """Its properties in a structure: backend and kind; whether it is trained, trainable and at full precision."""
        deferred = self._deferred
        has_ops = isinstance(deferred, (ForeignLeaf, Donated))
        ops = deferred.ops if has_ops else self.val()._ops  # pyright: ignore[reportPrivateUsage]
        return ops, self.trained, self.trainable, self.full_precision

    def changed(self) -> None:
        """Notify the observers that the kind of parameter has changed, but not its place in the module."""
        for ref in self._phlox_watchers:
            watcher = ref()
            if watcher is not None:
                watcher.aux = watcher.tree = None

    # --- the value

    def val(self) -> Tensor[Any, Any, Any]:
        """The value. If it is deferred, it is created now."""
        tensor = self._tensor
        return self.init() if tensor is None else tensor

    def init(self, root: Root | None = None, id: ParamId | None = None) -> Tensor[Any, Any, Any]:
        """Create a deferred value now, from the parameter's own sub-stream or from another key, with this id if given.

        A value and an id that exist are kept. Concurrent threads get the same value.
        """
        with _init_lock:
            if self._tensor is not None:
                return self._tensor
            deferred = self._deferred
            assert deferred is not None
            if not isinstance(deferred, Deferred):
                return self._replace(deferred.to_tensor(self._path()))
            try:
                value = self._replace(deferred.create(root))
            except Exception as error:
                memory_error = out_of_memory(f"initialising {self._description()}", self.backend, error)
                if memory_error is None:
                    raise
                raise memory_error from error
            if id is not None:
                self.set_id(id)
            return value

    def set(self, value: Tensor[Any, Any, Any]) -> None:
        """Replace the value, for example of running statistics, by one of the same shape and kind, without history.

        Raises `ModuleError` for another shape or kind, and if a value inside a transformation would escape from it.
        """
        current = self._deferred if self._tensor is None else self._tensor
        assert current is not None
        if value.shape != current.shape:
            raise ModuleError(f"{self._description()} cannot take a value of shape {value.shape}")
        ops = value._ops  # pyright: ignore[reportPrivateUsage]
        backend = ops.backend
        if ops.kind is not current.kind:
            raise ModuleError(
                f"{self._description()} and kind {current.kind.__name__} cannot take a value of {ops.kind.__name__}"
            )
        if backend.batched:
            if len(backend.batch_of(value.primitive)) > len(self._batch()):
                raise ModuleError(
                    f"{self._description()} that all examples share would get a value that differs from "
                    "example to example, and would escape from phlox.vmap; return the value, or pass the module to the "
                    "function as an argument with an axis in in_axes"
                )
            if backend.batched > self.backend.batched:  # the same for all examples: it is valid outside too
                value = value.detach()._on(self.backend)  # pyright: ignore[reportPrivateUsage]
        own_depth = depth(self.backend)
        while depth(value.backend) > own_depth:  # the tape of a differentiated function that ends before
            value = value.detach().inner()
        if backend.is_traced(value.primitive):
            if backend.is_tracing() and not self._is_of_program(backend):
                raise ModuleError(
                    f"{self._description()} that was created outside of a compiled function or of a loop in it "
                    "would get a value from inside, which is invalid afterwards; pass its module to the function as an "
                    "argument, and into a phlox.scan as part of the carry"
                )
            if self._outlives(value):
                raise ModuleError(
                    f"{self._description()} that was created outside of a function that JAX transforms (grad, vmap, "
                    "jvp) would get a value from inside, which is invalid afterwards; pass its module to the function "
                    "as an argument, and return it"
                )
        changes = _changes.get()
        if changes is not None and self._tensor is not None:
            changes.setdefault(self, self._tensor)
        self._replace(value)

    def _outlives(self, value: Tensor[Any, Any, Any]) -> bool:
        """Does the parameter live longer than a transformation that the value belongs to?"""
        scope, engine = self._scope, engine_of(value.backend)
        if scope is not None and (current := transformation()) is not None and current() is scope():
            return False
        return engine.outlives(self.leaf, value.backend.strip(value.primitive))

    def donate(self, path: str, recipient: str, *, failed: bool = False) -> None:
        """Release the value, because `recipient` may overwrite it; a later use raises `DonatedError`."""
        value = self.val()
        ops = value._ops  # pyright: ignore[reportPrivateUsage]
        # An engine does not know the device of an array that it has lost.
        device = ops.backend.device() if failed else value.device
        self.donate_as(Donated(ops, value.shape, device, path, recipient, failed))

    def donate_as(self, donated: Donated) -> None:
        """As `donate`, with a prepared error."""
        self._deferred, self._tensor = donated, None

    def restore(self, value: Tensor[Any, Any, Any]) -> None:
        """Take back the donated value, because it was not overwritten."""
        self._tensor, self._deferred = self._leaf(value), None

    def _description(self) -> str:
        """Its description in errors, with its path in the largest module that holds it."""
        name = self._path()
        return f"`{name}`, a parameter of shape {self.shape}" if name else f"a parameter of shape {self.shape}"

    def _path(self) -> str:
        """Its path in the largest module that is known to hold it; empty if none is known."""
        walks: list[Any] = [walk for ref in self._phlox_watchers if (walk := ref()) is not None and walk.valid]
        paths = [path for walk in walks for path, param in walk.named() if param is self]
        return max(paths, key=len, default="")

    def _batch(self) -> tuple[int, ...]:
        return () if self._tensor is None else self._tensor.backend.batch_of(self._tensor.primitive)

    def _is_of_program(self, backend: Backend) -> bool:
        """Does the value belong to the program that is being traced?"""
        if not self._is_traced():
            return False
        tensor = self.val()
        return tensor.backend.trace_of(tensor.primitive) is backend.current_trace()

    def _is_traced(self) -> bool:
        return self._tensor is not None and self._tensor.backend.is_traced(self._tensor.primitive)

    def _replace(self, value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        before = self._tensor
        self._tensor = new = self._leaf(value)
        self._deferred, self.declared = None, False
        if before is None or before._ops is not new._ops:  # pyright: ignore[reportPrivateUsage]
            self.changed()
        return new

    def load(self, value: Tensor[Any, Any, Any], id: ParamId) -> None:
        """Set a value and an id without checks; neither may belong to a program being traced. See `set`, `set_id`."""
        before, changes, ops = self._tensor, _changes.get(), value._ops  # pyright: ignore[reportPrivateUsage]
        if changes is not None and before is not None:
            changes.setdefault(self, before)
        self._tensor = self._leaf(value) if ops.backend.differentiates or self.full_precision else value
        self._deferred, self.declared = None, False
        if id != self.id:
            self.set_id(id)
        elif before is None or before._ops is not self._tensor._ops:  # pyright: ignore[reportPrivateUsage]
            self.changed()

    def set_id(self, id: ParamId) -> None:
        """Set the id of the parameter that it continues, for example when a record is loaded.

        Another parameter of the module may already have this id: the caller must make them differ.
        """
        if id != self.id:
            self.id = id
            self.changed()
            for ref in self._phlox_watchers:
                watcher = ref()
                if watcher is not None:
                    watcher.ids_differ = False

    def set_trained(self, trained: bool) -> None:
        """Mark it as trained or not; only Float parameters can be."""
        trained = trained and self.kind is Float
        if trained != self.trained:
            self.trained = trained
            if self._tensor is not None:
                self._tensor = self._leaf(self._tensor)
            self.changed()

    # --- other parameters with the same id

    def map(self, fn: Callable[[Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]) -> Param:
        """A parameter with the value `fn(value)`, and with the same id and flags.

        `fn` runs without a tape. Inside a differentiated function (`phlox.grad`) it runs on the tape, so that gradients
        flow through the new parameter to the old one.
        """
        value = self.val()
        followed = is_followed(value._ops.backend, value.primitive)  # pyright: ignore[reportPrivateUsage]
        return self.holding(fn(value if followed else value.detach()))

    def holding(self, value: Tensor[Any, Any, Any]) -> Param:
        """A parameter with another value, and the same id and flags."""
        return self._like(value, self.id)

    def another(self, value: Tensor[Any, Any, Any]) -> Param:
        """A parameter with another value, a new id, and the same flags."""
        return self._like(value, None)

    def _like(self, value: Tensor[Any, Any, Any], id: ParamId | None) -> Param:
        twin = Param(value, trained=self.trained, id=id, full_precision=self.full_precision)
        twin.trainable = self.trainable and value.kind is Float
        return twin

    def around(self, value: Tensor[Any, Any, Any]) -> Param:
        """The same parameter with this tensor and its history, inside a transformation."""
        return self._create(value, None, self.id, self.trained, self.trainable, self.full_precision)

    def to_device(self, device: DeviceLike) -> Param:
        """The same parameter on another device; a deferred one stays deferred."""
        target = _at_full_precision(as_device(device)) if self.full_precision else as_device(device)
        deferred = self._deferred
        if not isinstance(deferred, Deferred):
            return self.map(lambda value: value.to_device(target))
        moved = replace(deferred, device=target)
        return self._create(None, moved, self.id, self.trained, self.trainable, self.full_precision)

    def declare_on(self, device: DeviceLike) -> None:
        """Move a parameter that is as it was declared, with or without a value; leave any other."""
        if not self.is_initialized or self.declared:
            moved = self.to_device(device)
            self._tensor, self._deferred = moved._tensor, moved._deferred
            self.changed()

    def on_backend_of(self, device: Device) -> Param:
        """The same array on a decorator of its backend, or on the backend without one; no value is moved."""
        deferred = self._deferred
        if isinstance(deferred, ForeignLeaf):
            placeholder = deferred.seen_from(device.backend)
            return self._create(None, placeholder, self.id, self.trained, self.trainable, self.full_precision)
        if deferred is not None:
            return self.to_device(device)
        tensor = self.val()
        if tensor.backend is device.backend:  # the same leaf: both parameters have the same gradient
            return self.around(tensor)
        array = tensor.backend.strip(tensor.primitive)
        return self.holding(Tensor.from_primitive(array, device.backend, tensor.kind))

    def copy(self) -> Param:
        """A copy with the same id and, on a tape, with a leaf of its own."""
        twin = self.view()
        twin.become_a_leaf()
        return twin

    def view(self) -> Param:
        """A copy with the same id and, on a tape, with the same leaf."""
        return self._create(self._tensor, self._deferred, self.id, self.trained, self.trainable, self.full_precision)

    def within(self) -> Param:
        """A view that belongs to the current JAX transformation: it can be set to values from inside."""
        twin = self.view()
        twin._scope = transformation()
        return twin

    def tell_apart(self, other: Param, id: ParamId) -> bool:
        """Make this copy a parameter of its own, with another id and another leaf.

        Returns whether both were one leaf of a tape.
        """
        shared = False
        own, others = self._tensor, other._tensor
        if own is not None and others is not None and own.backend is others.backend:
            node = own.backend.node_of(own.primitive)
            shared = node is not None and node is others.backend.node_of(others.primitive)
        if shared:
            self.become_a_leaf()
        self.set_id(id)
        return shared

    def become_a_leaf(self) -> None:
        """Become a leaf of the tape that no other parameter shares; a computed value keeps its history."""
        value = self._tensor
        if value is None or not value._ops.backend.differentiates:  # pyright: ignore[reportPrivateUsage]
            return
        if not is_followed(value.backend, value.primitive):  # no outer function is differentiated with respect to it
            self._tensor = value._with(value.backend.copy_leaf(value.primitive))  # pyright: ignore[reportPrivateUsage]

    def __copy__(self) -> Param:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        memo[id(self)] = twin = self.copy()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._deferred, ForeignLeaf):
            return Param.without_array, (self._deferred, self.trained, self.trainable, self.id, self.full_precision)
        return _restore, (self.val().detach(), self.id, self.trained, self.trainable, self.full_precision)

    def remarks(self) -> list[str]:
        """The remarks that are printed after its shape."""
        deferred, tensor = self._deferred, self._tensor
        remarks: list[str] = []
        if isinstance(deferred, ForeignLeaf):
            remarks.append("abstract" if deferred.is_abstract else f"holding {class_of(deferred.leaf)}")
        elif self._is_donated():
            remarks.append("donated and used up")
        elif tensor is None:
            remarks.append("deferred")
        elif self._is_traced():
            is_leaked = engine_of(tensor.backend).is_leaked(self.leaf)
            remarks.append("leaked from a transformation that has ended" if is_leaked else "traced")
        if not self.trained:
            remarks.append("not trained")
        return remarks

    def __repr__(self) -> str:
        shape = f"{self.shape} " if self.has_shape else ""
        location = self.backend.name if self._is_donated() else self.device
        return f"Param({', '.join([f'{shape}on {location}', *self.remarks()])})"

    _repr_html_ = html_by("phlox.module.pages", "page_of_param")

    def _is_donated(self) -> bool:
        if isinstance(self._deferred, Donated):
            return True
        return self._tensor is not None and self._tensor.backend.is_donated(self._tensor.primitive)


def set_together(values: Sequence[tuple[Param, Tensor[Any, Any, Any]]]) -> None:
    """`set` several parameters: all of them or, after an error or interrupt, none.

    Create the tensors before the call, because Ctrl-C waits until all are set.
    """

    def apply() -> None:
        for param, value in values:
            param.set(value)

    commit(apply, undo_of([param for param, _ in values]))


def undo_of(params: Sequence[Param]) -> Callable[[], None]:
    """A function that resets parameters to the values and ids that they have now."""
    before = [(param, param._tensor, param._deferred, param.id) for param in params]  # pyright: ignore[reportPrivateUsage]

    def undo() -> None:
        for param, tensor, deferred, id in before:
            param._tensor, param._deferred, param.id = tensor, deferred, id  # pyright: ignore[reportPrivateUsage]
            param.changed()

    return undo


def _at_full_precision(device: Device) -> Device:
    """The same device with a backend of full precision."""
    return device.on(device.backend.full_precision())


def _restore(
    value: Tensor[Any, Any, Any], id: ParamId, trained: bool, trainable: bool, full_precision: bool = False
) -> Param:
    restored = Param(value, trained=trained, id=id, full_precision=full_precision)
    restored.trainable = trainable
    return restored
