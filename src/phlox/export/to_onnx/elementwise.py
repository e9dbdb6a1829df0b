"""Operations on elements as operators, and operations that take no array: constants, unless a size is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Bool, Float, Int, Kind
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import KINDS
from phlox.backend.tracing.dimension import is_open
from phlox.export.to_onnx.graph import current
from phlox.transform.abstract.rules import RULES as SHAPES
from phlox.transform.abstract.rules import broadcast, kind_of_result

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def operator(name: str, op: str) -> Callable[..., Array]:
    """The rule of an operation that is one operator on operands of one kind."""
    kind, result = KINDS[name.partition("_")[0]], kind_of_result(name)

    def rule(A: OnnxEngine, *operands: Any) -> Array:
        options = {"to": A.type_of(result)} if op == "Cast" else {"fmod": 0} if op == "Mod" else {}
        return combined(A, op, operands, kind, result, **options)

    return rule


def combined(
    A: OnnxEngine, op: str, operands: Sequence[Any], kind: type[Kind], result: type[Kind], **options: Any
) -> Array:
    """An operator on operands that broadcast."""
    shape, _ = broadcast(A, operands)
    return A.emit(op, [A.operand(x, kind) for x in operands], shape, result, **options)


def same(A: OnnxEngine, x: Array, *options: Any) -> Array:
    """x itself."""
    return x


def expm1(A: OnnxEngine, x: Array) -> Array:
    """exp(x) - 1; near zero 2 t / (1 - t) with t = tanh(x / 2), which avoids cancellation."""
    t = A.float_tanh(A.float_mul(x, 0.5))
    near = A.float_div(A.float_mul(t, 2.0), A.float_sub(1.0, t))
    return A.where(A.float_less(A.float_abs(x), 0.5), near, A.float_sub(A.float_exp(x), 1.0))


def log1p(A: OnnxEngine, x: Array) -> Array:
    """log(1 + x): log(u) x / (u - 1), where u is the rounded sum (Kahan)."""
    u = A.float_add(x, 1.0)
    excess = A.float_sub(u, 1.0)
    exact = A.bool_or(A.float_equal(excess, 0.0), A.float_equal(u, math.inf))
    ratio = A.float_div(x, A.where(exact, 1.0, excess))
    return A.where(A.float_equal(excess, 0.0), x, A.float_mul(A.float_log(u), A.where(exact, 1.0, ratio)))


def fmod(A: OnnxEngine, lhs: Any, rhs: Any) -> Array:
    """Mod, with the sign of the dividend."""
    return combined(A, "Mod", (lhs, rhs), Float, Float, fmod=1)


def clip(kind: str) -> Callable[..., Array]:
    """Clip if both bounds are scalars; otherwise Max and Min."""

    def rule(A: OnnxEngine, x: Array, low: Any, high: Any) -> Array:
        bounds = [bound for bound in (low, high) if bound is not None]
        if all(isinstance(bound, (int, float)) for bound in bounds) and bounds:
            if kind == "float":  # runtimes replace a missing bound by the largest finite number
                low, high = -math.inf if low is None else low, math.inf if high is None else high
            ends = [None if bound is None else A.operand(bound, KINDS[kind]) for bound in (low, high)]
            return A.emit("Clip", [x, *ends] if high is not None else [x, ends[0]], A.shape(x), KINDS[kind])
        return getattr(ElementwiseOps, f"{kind}_clip")(A, x, low, high)

    return rule


def floordiv(A: OnnxEngine, lhs: Any, rhs: Any) -> Array:
    """Div, which rounds toward zero, minus one where the two remainders differ."""
    toward_zero = combined(A, "Div", (lhs, rhs), Int, Int)
    of_dividend = combined(A, "Mod", (lhs, rhs), Int, Int, fmod=1)
    above = A.int_not_equal(of_dividend, A.int_mod(lhs, rhs))
    return A.int_sub(toward_zero, A.bool_into_int(above))


def where(A: OnnxEngine, condition: Array, chosen: Any, other: Any) -> Array:
    """Where."""
    like = SHAPES["where"](A, condition, chosen, other)
    if like.kind is Bool:  # not all runtimes have Where for booleans
        chosen, other = (A.bool_full((), x, A.device()) if isinstance(x, bool) else x for x in (chosen, other))
        return A.bool_or(A.bool_and(condition, chosen), A.bool_and(A.bool_not(condition), other))
    operands = [condition, A.operand(chosen, like.kind), A.operand(other, like.kind)]
    return A.emit("Where", operands, like.shape, like.kind)


def leaky_relu(A: OnnxEngine, x: Array, slope: float) -> Array:
    """LeakyRelu."""
    return A.emit("LeakyRelu", [x], A.shape(x), Float, alpha=float(slope))


def prelu(A: OnnxEngine, x: Array, weight: Array) -> Array:
    """PRelu."""
    return combined(A, "PRelu", (x, weight), Float, Float)


_SELU = (1.6732632423543772, 1.0507009873554805)


def elu(A: OnnxEngine, x: Array, alpha: float, scale: float, rate: float) -> Array:
    """Elu, Selu or Celu, depending on the options."""
    if scale == 1.0 and rate == 1.0:
        return A.emit("Elu", [x], A.shape(x), Float, alpha=float(alpha))
    if rate == 1.0:
        return A.emit("Selu", [x], A.shape(x), Float, alpha=float(alpha), gamma=float(scale))
    if scale == 1.0 and math.isclose(alpha * rate, 1.0) and A.float_element == "f32":
        return A.emit("Celu", [x], A.shape(x), Float, alpha=float(alpha))
    return ActivationOps.float_elu(A, x, alpha, scale, rate)


def hardsigmoid(A: OnnxEngine, x: Array) -> Array:
    """HardSigmoid."""
    return A.emit("HardSigmoid", [x], A.shape(x), Float, alpha=1.0 / 6.0, beta=0.5)


def shrink(*, soft: bool) -> Callable[..., Array]:
    """Shrink; NaN, which runtimes turn into zero, stays NaN."""

    def rule(A: OnnxEngine, x: Array, bound: float) -> Array:
        shrunk = A.emit("Shrink", [x], A.shape(x), Float, lambd=float(bound), bias=float(bound) if soft else 0.0)
        return A.where(A.float_isnan(x), x, shrunk)

    return rule


def gelu(A: OnnxEngine, x: Array, approximate: bool) -> Array:
    """Gelu, an operator from opset 20 on."""
    if current().opset < 20:
        return DenseOps.gelu(A, x, approximate)
    return A.emit("Gelu", [x], A.shape(x), Float, approximate="tanh" if approximate else "none")


def full(kind: str) -> Callable[..., Array]:
    """Expand of a scalar."""

    def rule(A: OnnxEngine, shape: Shape, value: float, device: Device) -> Array:
        if not any(map(is_open, shape)) and not is_open(value):
            return getattr(A.inner, f"{kind}_full")(tuple(shape), value, device.on(A.inner))
        return filled(A, shape, value, kind)

    return rule


def filled(A: OnnxEngine, shape: Shape, value: float, kind: str) -> Array:
    """A value of the graph whose elements are all the same number."""
    scalar = A.scalar(value, KINDS[kind])
    y = A.emit("Expand", [scalar, current().vector(shape)], shape, KINDS[kind])
    y.fill = None if is_open(value) else value
    return y


def arange(A: OnnxEngine, start: int, stop: int, step: int, device: Device) -> Array:
    """Range."""
    if not any(map(is_open, (start, stop, step))):
        return A.inner.int_arange(start, stop, step, device.on(A.inner))
    graph, dtype, type_number = current(), A.host_dtype(Int), A.type_of(Int)
    bounds = [graph.scalar_size(bound, np.dtype(dtype), type_number) for bound in (start, stop, step)]
    return A.emit("Range", bounds, (-(-(stop - start) // step),), Int)


def refuse_random(A: OnnxEngine, *arguments: Any) -> Array:
    """Raise `ExportError`: random draws, which differ in each call, cannot be exported."""
    raise current().refuse(
        "draws random numbers, which an exported model cannot; export model.valid(), or pass the numbers as an input"
    )
