"""`Buffer`: a field that holds an array that is not trained, such as a table or a random key."""

from __future__ import annotations

from typing import Any, ClassVar, cast, final

from phlox.backend import DeviceLike
from phlox.backend.contract.backend import engine_of
from phlox.errors import KindError, ModuleError
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.tensor import Tensor, tensor
from phlox.tensor.engine_arrays import backend_like, is_array, kind_of


@final
class Buffer(Module):
    """An array that belongs to a module and is not trained: a table, a mask, running sums, a key of JAX.

    It is a leaf of the module's tree, goes through compiled functions as an argument, and moves with `to_device`. A
    NumPy array in a plain field is instead a constant of the programs, and should be small.

    Args:
        value: a tensor, an array of any library, numbers, or a key of `jax.random`. An array of JAX or PyTorch stays
            where it is, on a backend of its own precision.
        saved: whether it is a part of the module's record. Use False for values that the constructor computes anew.
        device: where a NumPy array or numbers go; None is the default device.
        full_precision: as in `Param`: keep it at f32 or higher in modules of half precision.

    Raises `KindError` if `value` holds no numbers. `val()` gives the value, and `set(value)` another one.

    >>> import numpy as np
    >>> import phlox as px
    >>> class Scaled(px.Module):
    ...     def __init__(self):
    ...         self.linear = px.nn.Linear(2, 2)
    ...         self.table = px.Buffer(np.array([1.0, 2.0]), saved=False)
    ...     def __call__(self, x):
    ...         return self.linear(x) * self.table.val()
    >>> model = Scaled()
    >>> [path for path, _ in model.named_params()], list(model.into_record())
    (['linear.weight', 'linear.bias', 'table.value'], ['linear.weight', 'linear.bias'])
    """

    _phlox_may_be_unsaved: ClassVar = True

    value: Param
    saved: bool

    def __init__(
        self, value: Any, *, saved: bool = True, device: DeviceLike | None = None, full_precision: bool = False
    ) -> None:
        self.saved = saved
        self._element: Any = None
        if not isinstance(value, (Tensor, Param)) and is_array(value) and kind_of(value) is None:
            value, self._element = _signed(value)
        self.value = Param(_as_tensor(value, device), trained=False, full_precision=full_precision)

    def val(self) -> Any:
        """The value: a tensor or, if it was a key or unsigned integers of JAX, such an array again."""
        value = self.value.val()
        if self._element is None:
            return value
        if engine_of(value.backend).name != "jax":
            raise ModuleError(
                f"this Buffer holds a random key of JAX, but is on {str(value.device)!r}; use it on JAX, or draw with "
                "phlox.random, whose streams are the same everywhere"
            )
        return _trees().from_signed(value.backend.strip(value.primitive), self._element)

    def set(self, value: Any) -> None:
        """Replace the value, by one of the same shape and kind."""
        if self._element is not None:
            value, self._element = _signed(value)
        self.value.set(_as_tensor(value, self.value.device))


def _as_tensor(value: Any, device: DeviceLike | None) -> Tensor[Any, Any, Any]:
    if isinstance(value, Param):
        raise ModuleError("a Buffer holds an array; a Param that is not trained is px.Param(value, trained=False)")
    if isinstance(value, Tensor) and device is None:
        return cast("Tensor[Any, Any, Any]", value)
    array = cast("Any", value)
    backend = backend_like([array]) if device is None and is_array(array) else None
    if backend is not None and backend.name != "numpy":
        return Tensor.from_primitive(array, backend, kind_of(array))
    return tensor(array, device=device)


def _signed(value: Any) -> tuple[Tensor[Any, Any, Any], Any]:
    """A key or unsigned integers of JAX as a tensor of signed integers, and the original element type."""
    backend = backend_like([value])
    if backend is None or backend.name != "jax":
        raise KindError(f"a Buffer holds floats, integers, booleans or a key of JAX, got an array of {value.dtype}")
    trees = _trees()
    return Tensor.from_primitive(trees.as_signed(value), backend), trees.element_of(value)


def _trees() -> Any:
    from phlox.backend.jax import trees

    return trees
