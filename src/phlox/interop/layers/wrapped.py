"""`Wrapped`: a layer of another library as a module.

The library's adapter takes a layer apart once: into arrays, which become parameters, and the rest, a `Form`. A call
puts the arrays of the parameters, or whatever stands for them in a transformation, into the form, and calls that as one
native function, which the engine differentiates. Arrays that the call has replaced (running statistics, counts of a
random stream) are set into their parameters afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from phlox.backend import Backend, DeviceLike, Float
from phlox.backend.contract.backend import engine_of
from phlox.batching import joined
from phlox.errors import BackendError, KindError, ModuleError, UnsupportedError
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.module import Module, Param
from phlox.module.fields import Fields, fields_of
from phlox.module.foreign_layer import foreign
from phlox.module.param import set_together
from phlox.tensor import Tensor
from phlox.tensor.backend_promotion import common_backend
from phlox.tensor.dispatch import ops_of
from phlox.tensor.engine_arrays import backend_like, engine_with
from phlox.tensor.tensor import wrap
from phlox.transform.tree import map_leaves

Key: TypeAlias = str | int
Apply: TypeAlias = Callable[[Sequence[Any], tuple[Any, ...], dict[str, Any]], tuple[Any, Sequence[Any]]]
"""`(arrays, args, kwargs)`: the result, and the arrays after the call: the same objects, where nothing changed."""


class Leaf(NamedTuple):
    """An array of a layer, in a kind of elements that tensors have."""

    path: tuple[Key, ...]
    array: Any
    trained: bool
    trainable: bool
    full_precision: bool
    """Is it kept at f32 or higher in a model of half precision?"""


class Form(Protocol):
    """A layer without its arrays. It does not change, and forms of equal layers are equal, as static fields are."""

    engine: str
    """The engine that the library computes with."""
    library: str
    field_paths: tuple[tuple[Key, ...], ...]
    """The path of each parameter in the fields of the module; the module sets it."""

    @property
    def arrays(self) -> type[Any]:
        """The class of the engine's arrays."""
        ...

    def in_mode(self, training: bool) -> Apply:
        """The function for one call, which may be run again for its derivative."""
        ...

    def __hash__(self) -> int: ...


class Wrapped(Module):
    """A layer of another library as a module; made by `wrap` of `phlox.interop.flax`, `.equinox` and `.pytorch`.

    Its parameters have the library's names. What the library trains is trained; everything else that is an array is
    saved, and changed by calls, but not trained. A call takes and returns tensors (given arrays, it returns arrays),
    in the library's own layout.
    """

    def __init__(self, form: Form, leaves: Sequence[Leaf], device: DeviceLike | None = None) -> None:
        self._layer = form
        params = _params(leaves)
        if device is not None:
            params = [param.to_device(device) for param in params]
        names = [(_free(leaf.path[0]), *leaf.path[1:]) for leaf in leaves]
        form.field_paths = tuple(names)
        fields_of(self).update(_nested(list(zip(names, params, strict=True))))

    if TYPE_CHECKING:  # its fields have the names of another library

        def __getattr__(self, name: str) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        form, fields = self._layer, fields_of(self)
        params = [_at(fields, path) for path in form.field_paths]
        tensors: list[Tensor[Any, Any, Any]] = []
        map_leaves(tensors.append, (args, kwargs), Tensor)
        _check_engine(form, [param.device for param in params[:1]], [x.device for x in tensors])
        values = [param.val() for param in params]
        backend = _backend_of(values, tensors)
        training = self.is_training(tensors[0]) if tensors else bool(self.training)
        apply, changed, outline = form.in_mode(training), list[int](), list[Any]()
        count = len(params)

        def run(*arrays: Any) -> tuple[Any, ...]:
            left = iter(arrays[count:])
            native_args, native_kwargs = map_leaves(lambda x: next(left), (args, kwargs), Tensor)
            result, after = apply(arrays[:count], native_args, native_kwargs)
            changed[:] = [n for n, (old, new) in enumerate(zip(arrays, after, strict=False)) if new is not old]
            arrays_of_result: list[Any] = []
            outline[:] = [map_leaves(lambda x: _Slot(_append(arrays_of_result, x)), result, form.arrays)]
            engine = engine_of(backend)
            own = [engine_of(params[n].backend) for n in changed]
            return (
                *[_as_element(engine, x) for x in arrays_of_result],
                *[_as_element(target, after[n]) for n, target in zip(changed, own, strict=True)],
            )

        outputs = backend.call_native(run, *[_operand(x, backend) for x in (*values, *tensors)])
        results = outputs[: len(outputs) - len(changed)]
        after = [_state(backend, params[n], y) for n, y in zip(changed, outputs[len(results) :], strict=True)]
        if changed:
            set_together(list(zip([params[n] for n in changed], after, strict=True)))
        return map_leaves(lambda slot: _tensor(backend, results[slot.position]), outline[0], _Slot)


class _Slot(NamedTuple):
    """The placeholder of an array in a result."""

    position: int


def _append(arrays: list[Any], x: Any) -> int:
    arrays.append(x)
    return len(arrays) - 1


# --- a call


def _check_engine(form: Form, own: Sequence[Any], inputs: Sequence[Any]) -> None:
    for subject, devices in (("its parameters are", own), ("a tensor is", inputs)):
        for device in devices:
            if engine_of(device.backend).name != form.engine:
                raise BackendError(
                    f"a layer of {form.library} computes on {form.engine!r}, and {subject} on {str(device)!r}; move "
                    f"the whole model and its inputs there, model.to_device({form.engine!r}), or write the layer with "
                    "phlox.nn"
                )


def _backend_of(values: Sequence[Any], tensors: Sequence[Any]) -> Backend:
    """The backend of the call. In a model of half precision, values kept at full precision do not count."""
    if not values and not tensors:
        raise KindError("it has no parameters and was called without a tensor, so its backend is unknown")
    half = any(x.backend.float_element in HALF_ELEMENTS for x in (*values, *tensors))
    narrow = [x for x in (*values, *tensors) if not half or x.backend.float_element in HALF_ELEMENTS]
    backend = common_backend("the call", narrow)
    for x in values:
        backend = joined(backend, x.backend) or backend
    return backend


def _operand(x: Any, backend: Backend) -> Any:
    """A tensor as the backend's own array; a tensor of full precision keeps it."""
    if x.backend is backend or joined(backend, x.backend) is backend:
        return x._on(backend).primitive if x.backend is not backend else x.primitive
    if x.backend.batch_of(x.primitive):
        raise UnsupportedError(
            "inside phlox.vmap, statistics of full precision cannot differ from example to example in a layer of half "
            "precision; use jax.vmap, or keep the model at full precision"
        )
    return x.backend.strip(x.primitive)


def _as_element(engine: Backend, x: Any) -> Any:
    """The engine's own array in its element type."""
    own: Any = engine
    return x if x.dtype == own.element(own.kind_of(x)) else own.cast(x, own, own.device_of(x))


def _tensor(backend: Backend, y: Any) -> Tensor[Any, Any, Any]:
    return wrap(ops_of(backend, backend.kind_of(y)), y)


def _state(backend: Backend, param: Param, y: Any) -> Tensor[Any, Any, Any]:
    """The new value of a parameter, without history, where the parameter is."""
    kind, array = backend.kind_of(y), backend.strip(y)
    batched = bool(backend.batch_of(y))
    if batched and not param.backend.batched:  # the parameter refuses a batch
        return _tensor(backend, y).detach()
    return Tensor.from_primitive(array, param.backend, kind)


# --- fields


def _params(leaves: Sequence[Leaf]) -> list[Param]:
    """The arrays as parameters. The widest of them say the precision of a layer, so that no digits are lost."""
    floats = [leaf.array for leaf in sorted(leaves, key=lambda leaf: not leaf.trained) if _is_float(leaf.array)]
    backend = backend_like(floats[:1]) or (engine_with(leaves[0].array) if leaves else None)
    return [] if backend is None else [_param(leaf, backend) for leaf in leaves]


def _is_float(array: Any) -> bool:
    engine = engine_with(array)
    return engine is not None and engine.kind_of(array) is Float


def _param(leaf: Leaf, backend: Backend) -> Param:
    kind = backend.kind_of(leaf.array)
    half = backend.float_element in HALF_ELEMENTS
    full = kind is Float and (leaf.full_precision or (half and leaf.array.dtype.itemsize > 2))
    own = backend.full_precision() if full else backend
    array = own.duplicate(_as_element(own, leaf.array))  # later steps may overwrite it
    param = Param(Tensor.from_primitive(array, own, kind), trained=leaf.trainable, full_precision=full)
    param.set_trained(leaf.trained)
    return param


def _free(name: Key) -> str:
    """The name of a field; a name that would hide an attribute of every module gets an underscore."""
    text = str(name)
    return f"{text}_" if hasattr(Wrapped, text) or text == "_layer" else text


def _nested(leaves: Sequence[tuple[tuple[Key, ...], Any]]) -> dict[str, Any]:
    """Values by path as nested dicts, and lists where the keys are numbers, with None at those that are missing."""
    parts: dict[Key, list[tuple[tuple[Key, ...], Any]]] = {}
    for path, value in leaves:
        parts.setdefault(path[0], []).append((path[1:], value))
    return {str(key): _list_or_dict(below) for key, below in parts.items()}


def _list_or_dict(leaves: Sequence[tuple[tuple[Key, ...], Any]]) -> Any:
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    nested, keys = _nested(leaves), [path[0] for path, _ in leaves]
    numbers = [key for key in keys if isinstance(key, int)]
    return nested if len(numbers) < len(keys) else [nested.get(str(index)) for index in range(max(numbers) + 1)]


def _at(fields: dict[str, Any], path: tuple[Key, ...]) -> Any:
    part: Any = fields
    for key in path:
        is_list = isinstance(part, list)
        part = part[key if is_list else str(key)]
    return part


# --- what is wrapped


def check_layer(layer: Any, cls: type[Any], name: str) -> None:
    """Raise `ModuleError` for anything but a layer of this class; `name` is the full name of the calling function."""
    if isinstance(layer, Fields):
        raise ModuleError(f"{name}: a {type(layer).__name__} is a module of Phlox; put it into the field as it is")
    if isinstance(layer, type):
        raise ModuleError(f"{name}: got the class {layer.__name__}; give an instance of it: {layer.__name__}(...)")
    if isinstance(layer, cls):
        return
    other = foreign(cast("type[Any]", type(layer)))
    if other is not None and other.wrap:
        raise ModuleError(f"{name}: got {other.description}; write {other.remedy}")
    if callable(layer) and not hasattr(type(layer), "_fields") and hasattr(layer, "__name__"):
        raise ModuleError(
            f"{name}: got the function {layer.__name__}; give the layer that it calls, or put a function of arrays "
            "among tensors with phlox.lift(function)"
        )
    package = cls.__module__.partition(".")[0]
    raise ModuleError(f"{name}: takes a layer, an instance of {package}'s {cls.__name__}; got {type(layer).__name__}")
