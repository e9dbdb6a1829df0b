"""Decompositions of operations that Inductor computes less accurately than PyTorch's kernels do.

In vectorized loops Inductor computes `exp(x) - 1` for `expm1` and `x - floor(x / y) * y` for a remainder: near zero no
digit is right, and for large quotients the sign is wrong, too. An accurate formula can be fused into the loop; an
operation without one calls PyTorch's kernel. Without compiling, PyTorch's own operations run, and on a GPU Inductor
calls a library that is as accurate.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import torch

from phlox.backend.contract.special import ERF_DENOMINATOR, ERF_LIMIT, ERF_NUMERATOR
from phlox.backend.torch import compat

_aten: Any = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)

# --- PyTorch's kernels, which the compiler calls as they are

_library = torch.library.Library("phlox", "FRAGMENT")


def _kernel(name: str, function: Callable[..., Any], arguments: str) -> Any:
    """An operation of tensors whose value is `function` of them."""
    _library.define(f"{name}({arguments}) -> Tensor")
    _library.impl(name, function, "CPU")

    def on_fakes(*tensors: Any) -> Any:
        return tensors[0].new_empty(torch.broadcast_shapes(*[x.shape for x in tensors]))

    torch.library.register_fake(f"phlox::{name}", on_fakes, lib=_library)
    return getattr(torch.ops.phlox, name).default


_remainder = _kernel("remainder", torch.remainder, "Tensor x, Tensor y")
_fmod = _kernel("fmod", torch.fmod, "Tensor x, Tensor y")
_floor_divide = _kernel("floor_divide", torch.floor_divide, "Tensor x, Tensor y")
_erfinv = _kernel("erfinv", torch.erfinv, "Tensor x")


def _of_floats(kernel: Any) -> Any:
    """A kernel of two tensors for floats; either may be a number."""

    def decomposed(x: Any, y: Any) -> Any:
        example = x if isinstance(x, torch.Tensor) else y
        x, y = (operand if isinstance(operand, torch.Tensor) else example.new_full((), operand) for operand in (x, y))
        if not x.is_floating_point() or x.dtype != y.dtype or x.device.type != "cpu" or y.device.type != "cpu":
            return NotImplemented
        return kernel(x, y)

    return decomposed


def _rounded(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return _of_floats(_floor_divide)(x, y) if rounding_mode == "floor" else NotImplemented


# --- formulas


def _formula(function: Callable[..., Any]) -> Any:
    """A formula for floats on a processor; halves are computed in single precision and rounded once.

    It replaces operations on scalars too, such as Adam's corrections, although C's function is accurate: the compiler
    would call that in every iteration of the loops that read the scalar, but it computes an exponential only once.
    """

    @wraps(function)
    def decomposed(x: Any, *others: Any) -> Any:
        if not x.is_floating_point() or x.device.type != "cpu":
            return NotImplemented
        if x.dtype not in _HALVES:
            return function(x, *others)
        wide = [operand.float() if isinstance(operand, torch.Tensor) else operand for operand in (x, *others)]
        result = function(*wide)
        return result if result is NotImplemented else result.to(x.dtype)

    return decomposed


def _expm1(x: Any) -> Any:
    """tanh(x / 2) (exp(x) + 1)."""
    return torch.tanh(x * 0.5) * (torch.exp(x) + 1.0)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    first, *others = coefficients
    return reduce(lambda y, coefficient: y * x + coefficient, others, torch.full_like(x, first))


def _erf(x: Any) -> Any:
    """x P(x^2) / Q(x^2) in single precision; in double precision the compiler's own formula is right."""
    if x.dtype is not torch.float32:
        return NotImplemented
    x = x.clamp(-ERF_LIMIT, ERF_LIMIT)
    square = x * x
    return x * (_horner(ERF_NUMERATOR, square) / _horner(ERF_DENOMINATOR, square))


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0) -> Any:
    return torch.where(x > 0.0, x * scale, torch.expm1(x * rate) * (alpha * scale))


def _elu_backward(g: Any, alpha: float, scale: float, rate: float, is_result: bool, x: Any) -> Any:
    """The compiler tests x <= 0; so NaN would have the slope of positive numbers."""
    if is_result:
        return NotImplemented
    return torch.where(x > 0.0, g * scale, g * (alpha * scale * rate) * torch.exp(x * rate))


def _hardswish_backward(g: Any, x: Any) -> Any:
    """As `_elu_backward`, for NaN."""
    return torch.where(x <= -3.0, 0.0, torch.where(x >= 3.0, g, g * (x / 3.0 + 0.5)))


def _atanh(x: Any) -> Any:
    """log((1 + x) / (1 - x)) / 2, from 1 - |x| alone."""
    size = x.abs()
    return torch.copysign(torch.log1p(size * 2.0 / (1.0 - size)) * 0.5, x)


def _acosh(x: Any) -> Any:
    """log(x + sqrt(x^2 - 1)), where x^2 may overflow."""
    excess = x.clamp(max=2.0) - 1.0
    near = torch.log1p(excess + torch.sqrt(excess) * torch.sqrt(excess + 2.0))
    large = x.clamp(min=2.0)
    inverse = 1.0 / large
    far = torch.log(large) + torch.log1p(torch.sqrt((1.0 - inverse) * (inverse + 1.0)))
    return torch.where(x > 2.0, far, near)


def _sinh(x: Any) -> Any:
    """(exp(|x|) - exp(-|x|)) / 2 with the sign of x: by `expm1` near zero, else in factors without overflow."""
    size = x.abs()
    near = torch.expm1(size.clamp(max=1.0))
    half = torch.exp(size * 0.5)
    far = half * 0.5 * half - 0.5 / half / half
    return torch.copysign(torch.where(size < 1.0, (near + near / (near + 1.0)) * 0.5, far), x)


def _cosh(x: Any) -> Any:
    half = torch.exp(x.abs() * 0.5)
    return half * 0.5 * half + 0.5 / half / half


_PUBLIC: dict[Any, Callable[..., Any]] = {
    _aten.remainder.Tensor: _of_floats(_remainder),
    _aten.remainder.Scalar: _of_floats(_remainder),
    _aten.remainder.Scalar_Tensor: _of_floats(_remainder),
    _aten.fmod.Tensor: _of_floats(_fmod),
    _aten.fmod.Scalar: _of_floats(_fmod),
    _aten.floor_divide.default: _of_floats(_floor_divide),
    _aten.floor_divide.Scalar: _of_floats(_floor_divide),
    _aten.div.Tensor_mode: _rounded,
    _aten.div.Scalar_mode: _rounded,
    _aten.erfinv.default: _formula(_erfinv),
    _aten.expm1.default: _formula(_expm1),
    _aten.erf.default: _formula(_erf),
    _aten.atanh.default: _formula(_atanh),
    _aten.acosh.default: _formula(_acosh),
    _aten.sinh.default: _formula(_sinh),
    _aten.cosh.default: _formula(_cosh),
}
_PRIVATE = {
    compat.ELU: _formula(_elu),
    compat.ELU_BACKWARD: _formula(_elu_backward),
    compat.HARDSWISH_BACKWARD: _formula(_hardswish_backward),
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions by operation. If one returns NotImplemented, the compiler uses its own."""
    return {**_PUBLIC, **{part.value: function for part, function in _PRIVATE.items() if part.exists}}
