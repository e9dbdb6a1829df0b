"""`Torch`: the contract on PyTorch tensors."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.profiling import Profiled
from phlox.backend.contract.types import Array, Axes, Binary, Shape, Unary, native
from phlox.backend.contract.widening import ATTENTION, CONVOLUTIONS, delicate, widen
from phlox.backend.device import Device
from phlox.backend.kind import Int
from phlox.backend.parallel import RowGroup, part_of
from phlox.backend.settings import Settings
from phlox.backend.torch.arrays import ELEMENTS, Arrays
from phlox.backend.torch.collectives import Collectives
from phlox.backend.torch.compat import sizes_stay_open
from phlox.backend.torch.cpu.gemm import matmul
from phlox.backend.torch.ops import random
from phlox.backend.torch.ops.activation import ACTIVATIONS
from phlox.backend.torch.ops.attention import Attention, attends_narrow
from phlox.backend.torch.ops.conv import Conv, convolves_narrow
from phlox.backend.torch.ops.elementwise import Elementwise
from phlox.backend.torch.ops.experts import Experts
from phlox.backend.torch.ops.indexing import Indexing
from phlox.backend.torch.ops.linalg import Linalg
from phlox.backend.torch.ops.linear import Dense
from phlox.backend.torch.ops.loss import Loss
from phlox.backend.torch.ops.norm import Norm
from phlox.backend.torch.ops.packed import Packed
from phlox.backend.torch.ops.pooling import Pooling
from phlox.backend.torch.ops.recurrent import Recurrent
from phlox.backend.torch.ops.reduction import Reduction
from phlox.backend.torch.ops.sampling import Sampling
from phlox.backend.torch.ops.signal import Signal
from phlox.backend.torch.ops.sorting import Sorting
from phlox.backend.torch.ops.update import Update
from phlox.backend.torch.processes import ProcessesOfTorch
from phlox.backend.torch.sizes import is_symbolic
from phlox.backend.torch.tracer import TracerOps, is_tracer, makes_plain_tensors, tracing
from phlox.errors import RangeError

_LACKING = frozenset({"float_pow"})
"""The operations that PyTorch computes wrongly at half precision on a CPU: (-inf) ** 0.5 is NaN."""

_SOUND = frozenset({"float_sum", "float_mean", "float_var"})
"""The operations that PyTorch itself accumulates in f32, on every device, and rounds once."""


def _reduction(fn: Callable[..., Any]) -> Any:
    """A reduction over several axes; over none it is the identity, where torch would reduce over all."""

    def reduction(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axes, keepdims) if axes else x

    return staticmethod(reduction)


def _one_by_one(fn: Callable[..., Any], x: Array, axes: Axes, keepdims: bool, **options: Any) -> Array:
    """A reduction for which torch takes only one axis at a time, from the last axis to the first."""
    for axis in reversed(axes):
        x = fn(x, axis, keepdims, **options)
    return x


def _arg_reduction(fn: Callable[..., Any]) -> Any:
    def reduction(self: Torch, x: Array, axis: int) -> Array:
        return fn(x, axis).to(self.torch_int)

    return reduction


class _NotCacheable(Exception):
    """A tensor made now must not be cached. It is raised, since `lru_cache` does not store calls that raise."""


@lru_cache(4096)
def _scalar_tensor(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A nonzero scalar as a tensor of rank 0, which can be combined with tensors on every device."""
    if not makes_plain_tensors():
        raise _NotCacheable
    return torch.tensor(value, dtype=dtype, device="cpu")


def _with_cached_scalars(
    function: Callable[..., Any], traced: Callable[..., Any], dtype: torch.dtype
) -> Callable[[Any, Any], Array]:
    """A function of floats that caches scalars as tensors: torch takes longer to wrap a scalar than to multiply."""

    def operation(lhs: Any, rhs: Any) -> Array:
        if tracing.get():
            return traced(lhs, rhs)
        # Zeros of both signs are one key of a cache, so torch wraps them.
        # In a trace of PyTorch's own, only torch itself may wrap a number.
        if type(rhs) is float or type(rhs) is int:
            try:
                return function(lhs, _scalar_tensor(rhs, dtype)) if rhs else traced(lhs, rhs)
            except Exception:
                return traced(lhs, rhs)
        if type(lhs) is float or type(lhs) is int:
            try:
                return function(_scalar_tensor(lhs, dtype), rhs) if lhs else traced(lhs, rhs)
            except Exception:
                return traced(lhs, rhs)
        return function(lhs, rhs)

    return operation


_TAKING_SCALARS = (
    "float_add", "float_sub", "float_mul", "float_div", "float_pow", "float_maximum", "float_minimum", "where",
)  # fmt: skip


_COMPARING = ("float_equal", "float_not_equal", "float_less", "float_less_equal")


def _stays_narrow(function: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """A function at half precision whose result has half precision.

    A scalar argument of a program is an f32 tensor without axes. Beside a tensor with axes torch treats it as a scalar;
    beside another one without axes the result would be f32.
    """

    def operation(*arguments: Any) -> Array:
        result = function(*arguments)
        return result.to(dtype) if result.dtype is torch.float32 else result

    return operation


def _compared(function: Callable[[Any, Any], Array], dtype: torch.dtype) -> Callable[[Any, Any], Array]:
    """A comparison at half precision, to which a scalar is rounded; torch does not round it beside a 0-d tensor."""

    def operation(lhs: Any, rhs: Any) -> Array:
        return function(lhs, _recast(torch.float32, dtype, rhs))

    return operation


def _extreme(of_tensors: Callable[..., Any], bound: str) -> Any:
    clamp = torch.clamp_min if bound == "min" else torch.clamp_max

    def clamped(x: Array, number: Any) -> Array:
        try:
            return clamp(x, number)
        except RuntimeError:  # the number is too large for the dtype: there it is an infinity
            return clamp(x, math.copysign(math.inf, number))

    def extreme(lhs: Any, rhs: Any) -> Array:
        if not isinstance(rhs, torch.Tensor):
            return clamped(lhs, rhs)
        if not isinstance(lhs, torch.Tensor):
            return clamped(rhs, lhs)
        return of_tensors(lhs, rhs)

    return staticmethod(extreme)


def _quotient(lhs: Any, rhs: Any) -> Array:
    """lhs / rhs, rounded once; for a scalar over a tensor torch would also round the reciprocal."""
    if isinstance(lhs, torch.Tensor):
        return lhs / rhs
    wide = rhs.dtype if rhs.dtype is torch.float64 else torch.float32
    return torch.div(torch.full((), lhs, dtype=wide, device=rhs.device), rhs.to(wide))


def _divisor(x: Array) -> Array:
    """The divisor with ones for zeros: on a CPU, an integer division by zero would end the process."""
    return torch.where(x == 0, 1, x)


def _recast(source: torch.dtype, target: torch.dtype, x: Any) -> Any:
    """A tensor converted from one float dtype to another; anything else unchanged."""
    return x.to(target) if getattr(x, "dtype", None) is source else x


class Torch(
    Elementwise, Reduction, Indexing, Sorting, Linalg, Signal, Dense, Packed, Experts, Norm, Loss, Attention, Conv,
    Pooling, Sampling, Recurrent, Update, TracerOps, Collectives, ProcessesOfTorch, Arrays,
    EngineBackend,
):  # fmt: skip
    """The backend of PyTorch, on a CPU or a GPU; f32 by default, or f64, bf16, f16.

    Gradients are computed by Phlox, not by torch.autograd. At half precision PyTorch's own operations are used; derived
    operations are computed in f32 and rounded once.

    Args:
        float: the dtype of floats: "f32", "f64", "bf16" or "f16".
        int: the dtype of integers: "i32" or "i64".

    >>> Torch(float="bf16")
    Torch(float='bf16')
    """

    name = "torch"
    tunings = (Settings(torch_codegen="none"),)
    varying = (*ACTIVATIONS, "float_sigmoid", "float_sigmoid_backward", "float_tanh_backward")

    def is_on_processor(self, x: Array) -> bool:
        return x.device.type == "cpu"

    def setup(self) -> None:
        self.torch_float = ELEMENTS[self.float_element]
        self.torch_int = ELEMENTS[self.int_element]
        if self.float_element in ("f32", "f64"):  # narrower types would round the number; torch's own way does not
            self.float_add = _with_cached_scalars(torch.add, operator.add, self.torch_float)
            self.float_sub = _with_cached_scalars(torch.sub, operator.sub, self.torch_float)
            self.float_mul = _with_cached_scalars(torch.mul, operator.mul, self.torch_float)
            self.float_div = _with_cached_scalars(torch.div, _quotient, self.torch_float)
        else:
            wide = type(self)(int=self.int_element)
            grow = partial(_recast, self.torch_float, torch.float32)
            shrink = partial(_recast, torch.float32, self.torch_float)
            widen(self, wide, delicate(self, _SOUND) | _LACKING, grow, shrink)
            widen(self, wide, ATTENTION, grow, shrink, unless=attends_narrow)
            widen(self, wide, CONVOLUTIONS, grow, shrink, unless=convolves_narrow)
            for name in _TAKING_SCALARS:
                setattr(self, name, _stays_narrow(getattr(self, name), self.torch_float))
            for name in _COMPARING:
                setattr(self, name, _compared(getattr(self, name), self.torch_float))

    sizes_stay_open = staticmethod(sizes_stay_open)

    # --- shape

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        from phlox.backend.torch.compiler.program import Program  # slow to import

        return Program(fn, release, *self._numbers())

    def traces_loops(self) -> bool:
        return tracing.get()

    def scan(
        self,
        body: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]],
        carry: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool = False,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if tracing.get() and not is_symbolic(length):
            from phlox.backend.torch.compiler import loops  # slow to import

            return loops.scan(body, tuple(carry), tuple(xs), length, reverse)
        if not is_symbolic(length) or not xs or not carry or any(isinstance(x, tuple) for x in xs):
            return super().scan(body, carry, xs, length, reverse=reverse)
        from phlox.backend.torch import symbolic_loop

        return symbolic_loop.scan(body, tuple(carry), tuple(xs), reverse)

    def trace_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        from phlox.backend.torch.compiler.program import trace_only

        trace_only(fn, donated, kept)

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        from torch import profiler  # slow to import

        profile = profiler.profile()
        profile.start()

        def end() -> Profiled:
            profile.stop()
            path = folder / "trace.json"
            profile.export_chrome_trace(str(path))
            return Profiled(path, "https://ui.perfetto.dev, or chrome://tracing")

        return end

    def shape(self, x: Array) -> Shape:
        return tuple(x.shape)

    reshape = staticmethod(torch.reshape)
    permute_dims = staticmethod(torch.permute)
    broadcast_to = staticmethod(torch.broadcast_to)
    flip = staticmethod(torch.flip)

    @staticmethod
    def concat(arrays: Any, axis: int) -> Array:
        return torch.cat(tuple(arrays), axis)

    @staticmethod
    def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
        flat = [width for pair in reversed(widths) for width in pair]
        return torch.nn.functional.pad(x, flat, value=value)

    def where(self, condition: Array, if_true: Any, if_false: Any) -> Array:
        if isinstance(if_true, (int, float)) and isinstance(if_false, (int, float)):
            if_true = torch.full((), if_true, dtype=self.torch_float, device=condition.device)
        return torch.where(condition, if_true, if_false)

    roll = native(torch.roll)
    tile = native(torch.tile)
    windows = native(torch.Tensor.unfold)

    # --- float; Python's operators take a number on either side, torch's functions on the right only

    def float_full(self, shape: Shape, value: float, device: Device) -> Array:
        if isinstance(value, torch.Tensor):  # a traced scalar
            return value.to(self.torch_float).expand(shape)
        return torch.full(shape, value, dtype=self.torch_float, device=self.native_device(device))

    float_add: Binary = staticmethod(operator.add)
    float_sub: Binary = staticmethod(operator.sub)
    float_mul: Binary = staticmethod(operator.mul)
    float_div: Binary = staticmethod(_quotient)
    float_pow: Binary = native(operator.pow)
    float_maximum: Binary = _extreme(torch.maximum, "min")
    float_minimum: Binary = _extreme(torch.minimum, "max")
    float_neg: Unary = staticmethod(torch.neg)
    float_abs: Unary = staticmethod(torch.abs)
    float_floor: Unary = staticmethod(torch.floor)
    float_ceil: Unary = staticmethod(torch.ceil)
    float_round: Unary = staticmethod(torch.round)
    float_exp: Unary = staticmethod(torch.exp)
    float_expm1: Unary = staticmethod(torch.expm1)
    float_log: Unary = staticmethod(torch.log)
    float_log1p: Unary = staticmethod(torch.log1p)
    float_sqrt: Unary = staticmethod(torch.sqrt)
    float_rsqrt = native(torch.rsqrt)
    float_sin: Unary = staticmethod(torch.sin)
    float_cos: Unary = staticmethod(torch.cos)
    float_tanh: Unary = staticmethod(torch.tanh)
    float_erf: Unary = staticmethod(torch.erf)
    float_sigmoid = native(torch.sigmoid)
    float_relu = native(torch.relu)
    float_square = native(torch.square)

    @staticmethod
    def float_sign(x: Array) -> Array:
        return torch.where(torch.isnan(x), x, torch.sign(x))  # torch alone says that NaN's sign is zero

    float_equal: Binary = staticmethod(operator.eq)
    float_less: Binary = staticmethod(operator.lt)
    float_less_equal: Binary = staticmethod(operator.le)
    float_not_equal = native(operator.ne)

    float_sum = _reduction(torch.sum)
    float_max = _reduction(torch.amax)
    float_min = _reduction(torch.amin)
    float_argmax = _arg_reduction(torch.argmax)
    float_argmin = _arg_reduction(torch.argmin)
    float_cumsum = staticmethod(torch.cumsum)
    float_matmul: Binary = staticmethod(matmul)
    tile_product = native(torch.mm)
    stacked_products = native(torch.bmm)

    @staticmethod
    def float_prod(x: Array, axes: Axes, keepdims: bool) -> Array:
        return _one_by_one(torch.prod, x, axes, keepdims)

    def float_into_int(self, x: Array) -> Array:
        info = torch.iinfo(self.torch_int)
        truncated = torch.trunc(x.double())
        if x.numel():
            outside = ~((truncated >= info.min) & (truncated <= info.max))
            self._forbid(
                outside,
                lambda worst: RangeError(f"{worst} does not fit {self!r}'s integers ({info.dtype})"),
                lambda: x.reshape(-1).index_select(0, outside.reshape(-1).to(torch.int32).argmax().reshape(1))[0],
            )
        return truncated.to(self.torch_int)

    @staticmethod
    def float_into_bool(x: Array) -> Array:
        return x != 0

    # --- int

    def int_full(self, shape: Shape, value: int, device: Device) -> Array:
        if isinstance(value, torch.Tensor):
            return value.to(self.torch_int).expand(shape)
        return torch.full(shape, value, dtype=self.torch_int, device=self.native_device(device))

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Array:
        if is_symbolic(stop - start):
            return torch.arange(start, stop, step, dtype=self.torch_int, device=self.native_device(device))
        return self.from_host(np.arange(start, stop, step, dtype=np.int64), Int, device)

    int_add: Binary = staticmethod(operator.add)
    int_sub: Binary = staticmethod(operator.sub)
    int_mul: Binary = staticmethod(operator.mul)

    def int_floordiv(self, lhs: Any, rhs: Any) -> Array:
        self._forbid(rhs == 0, lambda: ZeroDivisionError("integer division by zero"))
        return (
            torch.where(rhs == 0, -1, lhs // _divisor(rhs))
            if isinstance(rhs, torch.Tensor) and is_tracer(rhs)
            else lhs // rhs
        )

    def int_mod(self, lhs: Any, rhs: Any) -> Array:
        self._forbid(rhs == 0, lambda: ZeroDivisionError("integer modulo by zero"))
        return (
            torch.where(rhs == 0, lhs, lhs % _divisor(rhs))
            if isinstance(rhs, torch.Tensor) and is_tracer(rhs)
            else lhs % rhs
        )

    def int_pow(self, lhs: Any, rhs: Any) -> Array:
        self._forbid(
            rhs < 0,
            lambda: RangeError("an integer to a negative power is no integer; convert with .float() first"),
        )
        return lhs ** (torch.clamp_min(rhs, 0) if is_tracer(rhs) else rhs)

    int_maximum: Binary = _extreme(torch.maximum, "min")
    int_minimum: Binary = _extreme(torch.minimum, "max")
    int_neg: Unary = staticmethod(torch.neg)
    int_abs: Unary = staticmethod(torch.abs)
    int_sign: Unary = staticmethod(torch.sign)
    int_equal: Binary = staticmethod(operator.eq)
    int_less: Binary = staticmethod(operator.lt)
    int_less_equal: Binary = staticmethod(operator.le)

    def int_sum(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        return torch.sum(x, axes, keepdims, dtype=self.torch_int) if axes else x

    def int_prod(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        return _one_by_one(torch.prod, x, axes, keepdims, dtype=self.torch_int)

    int_max = _reduction(torch.amax)
    int_min = _reduction(torch.amin)
    int_argmax = _arg_reduction(torch.argmax)
    int_argmin = _arg_reduction(torch.argmin)

    def int_cumsum(self, x: Array, axis: int) -> Array:
        return torch.cumsum(x, axis, dtype=self.torch_int)

    def int_into_float(self, x: Array) -> Array:
        return x.to(self.torch_float)

    @staticmethod
    def int_into_bool(x: Array) -> Array:
        return x != 0

    # --- bool

    def bool_full(self, shape: Shape, value: bool, device: Device) -> Array:
        return torch.full(shape, value, dtype=torch.bool, device=self.native_device(device))

    bool_and: Binary = native(operator.and_)
    bool_or: Binary = native(operator.or_)
    bool_xor: Binary = native(operator.xor)
    bool_not: Unary = staticmethod(torch.logical_not)

    bool_any = _reduction(torch.any)
    bool_all = _reduction(torch.all)

    def bool_into_int(self, x: Array) -> Array:
        return x.to(self.torch_int)

    def bool_into_float(self, x: Array) -> Array:
        return x.to(self.torch_float)

    # --- random

    def state_of_seed(self, seed: Array) -> Any:
        return random.state_of_seed(seed)

    def fold_in(self, state: Any, number: int) -> Any:
        return random.fold_in(state, number)

    def random_uniform(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        native = self.native_device(device)
        return random.random_uniform(state, shape, self.torch_float, native, part=part_of(rows, shape))

    def random_normal(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        native = self.native_device(device)
        return random.random_normal(state, shape, self.torch_float, native, part=part_of(rows, shape))

    def random_bernoulli(
        self, state: Array, shape: Shape, threshold: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        return random.random_bernoulli(state, shape, threshold, self.native_device(device), part=part_of(rows, shape))

    def random_integers(
        self, state: Array, shape: Shape, low: int, high: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        native = self.native_device(device)
        return random.random_integers(state, shape, low, high, native, part=part_of(rows, shape)).to(self.torch_int)

    def random_permutation(self, state: Array, n: int, device: Device) -> Array:
        return random.random_permutation(state, n, self.native_device(device)).to(self.torch_int)
