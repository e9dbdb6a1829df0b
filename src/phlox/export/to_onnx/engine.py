"""The engine whose arrays are values of a graph: a model that runs on it writes its computation as nodes.

The rules of `phlox.transform.abstract` give the shapes. An operation in the table writes an operator; any other one
runs the contract's definition, which calls operations of the table. The inner engine computes operations on arrays that
have values, so constants are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from phlox.backend import Float, Int, Kind
from phlox.backend.contract import Backend
from phlox.backend.contract.sorting import SortingOps
from phlox.backend.contract.tracing import TracingOps
from phlox.backend.contract.types import Array
from phlox.backend.contract.widening import converters, delicate, widen
from phlox.backend.device import Device
from phlox.backend.tracing.dimension import Dimension, DimensionReal, is_open
from phlox.export.to_onnx.graph import current
from phlox.host.dtypes import HALF_ELEMENTS, HOST_DTYPES
from phlox.transform.abstract import Abstract
from phlox.transform.abstract.decorator import Blank

if TYPE_CHECKING:
    from phlox.export.to_onnx.loops import Body

TYPES = {"f32": 1, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11, "bf16": 16}
"""The number of an element type in the format (`TensorProto.DataType`)."""


class Value(Blank):
    """An array that is a value of the graph."""

    __slots__ = ("fill", "made_by", "name")

    name: str
    fill: float | None
    """The value of every element, if it is known."""
    made_by: tuple[str, Any, Any] | None
    """("reshape", from, ()) or ("transpose", from, axes), so that two in a row become one."""


class OnnxEngine(Abstract):
    """The engine `inner` with values of a graph for its arrays; see `phlox.export.onnx`."""

    box: type[Value] = Value  # pyright: ignore[reportIncompatibleVariableOverride]
    needs_values = "this operation has no operator in ONNX, or the shape of its result depends on values"
    _complete: ClassVar[set[Backend]] = set()

    def __new__(cls, inner: Backend) -> Self:
        from phlox.export.to_onnx import table  # the table uses this class

        cls.rules, cls.rules_from_nothing = table.RULES, table.FROM_NOTHING
        self = super().__new__(cls, inner)
        if inner not in cls._complete:
            cls._complete.add(inner)
            if self.float_element in HALF_ELEMENTS:
                _, grow, shrink = converters(self)
                names = delicate(self, table.SOUND_AT_HALF)
                if self.float_element == "bf16":
                    names |= table.FULL_AT_BF16
                widen(self, self.full_precision(), names, grow, shrink)
        return self

    def _operation(self, name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        inner = self.inner

        def operation(*arguments: Any) -> Any:
            for x in arguments:
                if type(x) in _OPEN or (isinstance(x, (list, tuple)) and _has_open(cast("Sequence[Any]", x))):
                    return rule(self, *[self.as_value(argument) for argument in arguments])
            return getattr(inner, name)(*arguments)

        return operation

    # --- making values

    def blank(self, shape: Sequence[int], kind: type[Kind] = Float, device: Device | None = None) -> Value:
        value = cast(Value, super().blank(shape, kind, device))
        value.name, value.fill, value.made_by = "", None, None
        return value

    def named(self, name: str, shape: Sequence[int], kind: type[Kind], device: Device | None = None) -> Value:
        """A value of the graph."""
        value = self.blank(shape, kind, device)
        value.name = name
        return value

    def as_value(self, x: Any) -> Any:
        """A constant array as a value; anything else unchanged."""
        if type(x) is Value or not hasattr(x, "dtype") or not hasattr(x, "shape"):
            return x
        host = self.inner.to_host(x)
        value = self.named(self.name_of(x), host.shape, self.inner.kind_of(x))
        first = host.flat[0] if host.size else np.zeros(())
        value.fill = first.item() if host.size and bool((host == first).all()) else None
        return value

    def emit(
        self, op: str, operands: Sequence[Any], shape: Sequence[int], kind: type[Kind], /, **attributes: Any
    ) -> Value:
        """The result of an operator; operands are values, arrays, names, or None for one that is left out."""
        (name,) = current().add(op, [self.name_of(x) for x in operands], **attributes)[:1]
        return self.named(name, shape, kind)

    def emit_several(
        self, op: str, operands: Sequence[Any], results: Sequence[tuple[Sequence[int], type[Kind]]], /,
        **attributes: Any,
    ) -> list[Value]:  # fmt: skip
        """The results of an operator that has several."""
        names = current().add(op, [self.name_of(x) for x in operands], len(results), **attributes)
        return [self.named(name, *result) for name, result in zip(names, results, strict=False)]

    def name_of(self, x: Any) -> str:
        """The name in the graph of a value or a constant array; a name is returned unchanged."""
        if x is None:
            return ""
        if isinstance(x, str):
            return x
        if type(x) is Value:
            return x.name
        kind = self.inner.kind_of(x)
        return current().constant(np.asarray(self.inner.to_host(x), self.host_dtype(kind)))

    def operand(self, x: Any, kind: type[Kind]) -> Any:
        """An operand that may be a Python scalar, as something that has a name."""
        if isinstance(x, (bool, int, float)):
            return self.scalar(x, kind)
        return x

    def scalar(self, x: float, kind: type[Kind]) -> str:
        """A constant scalar of this backend's elements, or one that is computed from sizes."""
        graph, dtype = current(), self.host_dtype(kind)
        if not is_open(x):
            with np.errstate(over="ignore"):
                return graph.constant(np.array(x).astype(dtype))
        wide = self.element_name(kind) if self.element_name(kind) not in HALF_ELEMENTS else "f32"
        if isinstance(x, DimensionReal):
            name = graph.real(x, HOST_DTYPES[wide], TYPES[wide])
        else:
            name = graph.scalar_size(cast(Dimension, x), HOST_DTYPES[wide], TYPES[wide])
        return name if HOST_DTYPES[wide] == dtype else graph.add("Cast", [name], to=self.type_of(kind))[0]

    def element_name(self, kind: type[Kind]) -> str:
        """The name of the elements of a kind: f32, i64, bool."""
        return self.float_element if kind is Float else self.int_element if kind is Int else "bool"

    def type_of(self, kind: type[Kind]) -> int:
        """The number of the element type of a kind in the format."""
        return TYPES[self.element_name(kind)]

    def to_kind(self, x: Any, kind: type[Kind]) -> Value:
        """A value converted to another kind."""
        return self.emit("Cast", [x], self.shape(x), kind, to=self.type_of(kind))

    # --- other precisions

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        below: Backend | None = target
        while below is not None and not isinstance(below, OnnxEngine):
            below = below.inner
        if type(x) is not Value or below is None or below is self:
            return super().cast(x, target, device)
        value = below.to_kind(x, x.kind)
        value.fill = x.fill
        return value

    def duplicate(self, x: Array) -> Array:
        return x

    # --- what the contract defines by loops in Python

    def traces_loops(self) -> bool:
        return True

    def scan(
        self,
        body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, *, reverse: bool = False,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:  # fmt: skip
        from phlox.export.to_onnx.loops import scan

        if not any(type(x) is Value for x in (*carry, *xs)) and not is_open(length):
            return TracingOps.scan(self, body, carry, xs, length, reverse=reverse)
        return scan(self, body, carry, xs, length, reverse)

    def _ctc_scan(self, emitted: Array, skip: Array, start: Array, fresh: Array) -> Array:
        n, states = self.shape(emitted)[1:]
        never = self._ctc_never()

        def body(carry: tuple[Array, ...], xs_of_step: tuple[Array, ...]) -> tuple[Sequence[Array], Sequence[Array]]:
            before, (emission, now) = carry[0], xs_of_step
            leap = self.float_add(self._shifted_states(before, 2, never), skip)
            arrived = self._logaddexp3(before, self._shifted_states(before, 1, never), leap)
            after = self.float_add(self.where(self.reshape(now, (n, 1)), start, arrived), emission)
            return [after], [after]

        begin = self.broadcast_to(start, (n, states))
        return self.scan(body, [begin], [emitted, fresh], self.shape(emitted)[0])[1][0]

    def _search(self, before: Callable[[Array, Array], Array], x: Array, values: Array, right: bool) -> Array:
        if not is_open(self.shape(x)[-1]):
            return SortingOps._search(self, before, x, values, right)
        rank = len(self.shape(x))
        rows, columns = self.expand_dims(x, (rank - 1,)), self.expand_dims(values, (rank,))
        is_before = self.bool_not(before(columns, rows)) if right else before(rows, columns)
        return self.int_sum(self.bool_into_int(is_before), (rank,), False)

    # --- errors

    def no_value(self, what: str) -> Exception:
        return current().refuse(f"{what}; use phlox.where in place of a branch, or compute it outside of the model")


_OPEN = frozenset({Value, Dimension, DimensionReal})
"""An operation on one of these becomes part of the graph: a value of the graph, or a scalar of open sizes."""


def _has_open(parts: Sequence[Any]) -> bool:
    for x in parts:
        if type(x) in _OPEN or (isinstance(x, (list, tuple)) and _has_open(cast("Sequence[Any]", x))):
            return True
        if isinstance(x, slice) and _has_open((cast("Any", x).start, cast("Any", x).stop)):
            return True
    return False
