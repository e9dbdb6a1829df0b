"""`x.at[key]`: functional updates, each of which returns a new tensor."""

# Part of the Tensor class, in a file of its own.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from phlox.backend import Bool
from phlox.errors import KindError, ShapeError
from phlox.tensor.base import Number, TensorBase
from phlox.tensor.index_parsing import ELEMENTWISE, Entry, parse, sole_mask

if TYPE_CHECKING:
    from phlox.backend.contract.indexing import Mode

X = TypeVar("X", bound=TensorBase)


class At(Generic[X]):
    """The object `x.at`; index it for functional updates."""

    __slots__ = ("_x",)

    def __init__(self, x: X) -> None:
        self._x = x

    def __getitem__(self, key: Entry | tuple[Entry, ...]) -> IndexUpdate[X]:
        return IndexUpdate(self._x, key)


class IndexUpdate(Generic[X]):
    """The object `x.at[key]`. Values `v` are scalars, or tensors that broadcast to the shape of `x[key]`.

    Each method returns a new tensor of the shape of x.
    """

    __slots__ = ("_key", "_x")

    def __init__(self, x: X, key: Any) -> None:
        self._x, self._key = x, key

    if not TYPE_CHECKING:  # to a type checker it would mean that every attribute exists

        def __getattr__(self, name: str) -> Any:
            from phlox.other_names import of_object

            raise AttributeError(of_object(self, name, "x.at[key]"), name=name, obj=self)

    def get(self) -> X:
        """`x[key]`."""
        x, key = parse(self._x, self._key)
        return key.read(x)

    def set(self, v: X | Number) -> X:
        """Write v at the key. Where the key repeats an element, the last value is kept."""
        return self._write("set", v)

    def add(self, v: X | Number) -> X:
        """Add v at the key. Where the key repeats an element, all values are added."""
        return self._write("add", v)

    def sub(self, v: X | Number) -> X:
        """Subtract v at the key. Where the key repeats an element, all values are subtracted."""
        return self._write("add", v._apply("neg") if isinstance(v, TensorBase) else -v)

    def mul(self, v: X | Number) -> X:
        """Multiply by v at the key. Where the key repeats an element, all values are multiplied."""
        return self._write("mul", v)

    def min(self, v: X | Number) -> X:
        """Write the minimum of x and v at the key; NaN if either is NaN."""
        return self._write("min", v)

    def max(self, v: X | Number) -> X:
        """Write the maximum of x and v at the key; NaN if either is NaN."""
        return self._write("max", v)

    def _write(self, mode: Mode, v: X | Number) -> X:
        x, name = self._x._promoted_with(v)._promoted_with(self._key), f"at[...].{mode}"
        if x.kind is Bool and mode != "set":
            raise KindError(f"{name}: Bool tensors can only be set; convert with .int() first")
        mask = sole_mask(x, self._key)
        if mask is not None and (not isinstance(v, TensorBase) or v.ndim <= x.ndim - mask.ndim):
            # One value, or one row, is written where the mask is true: the number of true elements need not be known.
            values = broadcast_value(x, name, v, x.shape[mask.ndim :])
            if mode != "set":
                values = x._apply(ELEMENTWISE[mode], values.primitive)
            mask = mask._apply("reshape", (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
            return x._with(x.backend.where(mask.primitive, values.primitive, x.primitive))
        x, key = parse(x, self._key)
        return key.write(x, broadcast_value(x, name, v, key.result_shape()), mode)


def broadcast_value(x: X, name: str, value: Any, shape: tuple[int, ...]) -> X:
    """Broadcast a scalar or a tensor to this shape, as a tensor of x's kind."""
    operand = x._operand(name, value)
    if operand is NotImplemented:
        raise KindError(f"{name}: the value must be a scalar or a {x.kind.__name__} tensor, got {type(value).__name__}")
    if isinstance(value, TensorBase):
        result = x._with(operand)
    else:
        is_traced = not isinstance(operand, (bool, int, float))
        result = x._with(getattr(x.backend, f"{x.kind.name}_full")((), 0 if is_traced else operand, x.device))
        if is_traced:  # a scalar argument of the traced function may have another dtype than the tensor
            result = result._apply("add", operand)
    sizes = result.shape
    if sizes == shape:
        return result
    if len(sizes) > len(shape) or any(a not in (1, b) for a, b in zip(sizes[::-1], shape[::-1], strict=False)):
        raise ShapeError(f"{name}: a value of shape {sizes} does not broadcast to the indexed shape {shape}")
    return result._apply("broadcast_to", shape)
