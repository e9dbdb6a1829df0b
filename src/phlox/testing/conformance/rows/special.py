# ruff: noqa: E501
# pyright: standard
"""Elementwise functions beyond arithmetic: exponentials, angles, error and gamma functions, remainders, bounds, closeness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.testing.conformance.row import (
    INF,
    NAN,
    SHAPES,
    SPECIAL,
    Row,
    exact,
    normal,
    other,
    positive,
    sp,
    torch,
    unit,
)

_WIDE = exact([*np.geomspace(1e-30, 1e30, 25), *-np.geomspace(1e-30, 1e30, 25)])
"""Over nearly the whole range of single precision."""
_UNIT = exact([*np.linspace(-1.0, 1.0, 41), 1.0 - 2.0**-24, 2.0**-24 - 1.0, 1e-20, -1e-8, 0.999, -0.9999])
_POSITIVE = exact([*np.geomspace(1e-30, 1e30, 31), *np.linspace(0.05, 12.0, 60), 1.0, 2.0])
_NEGATIVE = exact([-0.25, -0.75, -1.5, -2.25, -2.75, -3.5, -7.25, -10.5, -33.75, -1e-3, -1.0, -2.0, -17.0])


def _above_one(*shape: int) -> np.ndarray[Any, Any]:
    return exact(1.0 + positive(*shape))


def _probabilities(*shape: int) -> np.ndarray[Any, Any]:
    return exact(0.5 + 0.5 * unit(*shape))


def _beside_integers(*shape: int) -> np.ndarray[Any, Any]:
    """Positive and negative values, away from the poles of the gamma function."""
    return exact(np.round(normal(*shape) * 3.0) + 0.3)


def _unary(
    name: str, reference: Callable[..., Any], domain: Callable[..., Any] = normal, *specials: Any, **options: Any
) -> Row:
    samples = tuple((domain(*shape),) for shape in SHAPES)
    special_samples = tuple((x,) for x in (SPECIAL, *specials))
    return Row(name, lambda x: getattr(x, name)(), reference, samples, special_samples, noisy=True, **options)


def _nan_signed(x: Any) -> Any:
    return np.where(np.isnan(x), 1.0, x)


UNARY = [
    _unary("asin", np.arcsin, unit, _UNIT),
    _unary("acos", np.arccos, unit, _UNIT),
    _unary("atan", np.arctan, normal, _WIDE, _UNIT),
    _unary("sinh", np.sinh, normal, _UNIT, exact([88.0, 89.0, 89.4, -89.0, 100.0, -100.0, 1e-20])),
    _unary("cosh", np.cosh, normal, _UNIT, exact([88.0, 89.0, 89.4, -89.0, 100.0, -100.0])),
    _unary("asinh", np.arcsinh, normal, _WIDE, _UNIT),
    _unary("acosh", np.arccosh, _above_one, _POSITIVE, exact([1.0, 1.0 + 2.0**-23, 1.0001, 1.5, 2.0, 2.5, -3e7])),
    _unary("atanh", np.arctanh, unit, _UNIT),
    _unary("exp2", np.exp2, normal, exact([10.0, 100.0, 127.0, -100.0, 0.1])),
    _unary("erfc", lambda x: sp.erfc(x), normal, _UNIT, exact([1.5, 2.0, 3.0, 5.0, 8.0, 9.0, -3.0, -9.0, 100.0]), factor=2),
    _unary("erfinv", lambda x: sp.erfinv(x), unit, _UNIT),
    _unary("lgamma", lambda x: np.where(np.isneginf(x), np.inf, sp.gammaln(x)), _beside_integers, _POSITIVE, _NEGATIVE),
    _unary("digamma", lambda x: sp.digamma(x), _beside_integers, exact(_POSITIVE[_POSITIVE > 1e-15]), _NEGATIVE, factor=4),
    _unary("logit", lambda x: sp.logit(x), _probabilities, exact([0.5, 0.5001, 0.4999, 0.25, 0.75, 1e-20, 0.9999])),
    _unary("trunc", np.trunc, normal, exact([0.9, -0.9, 1.5, -1.5, 1e20]), second=False),
    _unary("cbrt", np.cbrt, positive, _WIDE),
    _unary("sinc", np.sinc, normal, _UNIT, exact([10.5, -100.25, 1e-30])),
    Row("sinc at 0", lambda x: x.sinc(), np.sinc, ((exact([0.0, -0.0, 1e-4, 0.2499, 0.25]),),)),
    _unary("deg2rad", np.deg2rad),
    _unary("rad2deg", np.rad2deg),
    Row("erfc far out", lambda x: x.erfc().log(), lambda x: sp.log_ndtr(-x * np.sqrt(2.0)) + np.log(2.0), (), ((exact([1.0, 4.0, 8.0, 9.0]),),), half=False),
    Row("sigmoid far out", lambda x: x.sigmoid().log(), lambda x: sp.log_expit(x), (), ((exact([-80.0, -40.0, -17.0, 0.0, 17.0]),),), half=False),
    Row("logit beside 1/2", lambda x: x.logit() * 1e6, lambda x: sp.logit(x) * 1e6, (), ((exact([0.5 + 2.0**-20, 0.5 - 2.0**-18]),),), half=False),
    Row("signbit", lambda x: x.signbit(), lambda x: np.signbit(_nan_signed(x)), ((normal(3, 4),), (normal(0),)), ((SPECIAL,),), gradient=False),
    Row("nan_to_num", lambda x: x.nan_to_num(2.0, 7.0, -8.0), lambda x: np.nan_to_num(x, nan=2.0, posinf=7.0, neginf=-8.0),
        ((normal(3, 4),), (normal(0),), (normal(),)), ((SPECIAL,),)),
    Row("nan_to_num of NaN alone", lambda x: x.nan_to_num(), lambda x: np.nan_to_num(x), ((normal(3, 4),),), ((exact([NAN, 1.0]),),)),
    Row("nan_to_num is finite", lambda x: x.nan_to_num().isfinite(), lambda x: np.full(x.shape, True), ((SPECIAL,),), gradient=False, half=False),
    Row("trigamma", lambda x: x.digamma(), lambda x: sp.digamma(x), ((_NEGATIVE[:9],), (exact([0.1, 1.5, 6.9, 7.1, 30.0]),)), factor=10),
]  # fmt: skip

# The sign of a zero, which comparisons do not see.
_ZEROS = exact([0.0, -0.0, -0.25, 0.25])
_KEEPING = {
    "asin": np.arcsin, "atan": np.arctan, "sinh": np.sinh, "asinh": np.arcsinh, "atanh": np.arctanh, "tan": np.tan,
    "erfinv": lambda x: x, "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "round": np.rint, "sqrt": lambda x: np.copysign(1.0, x),
    "sign": np.sign, "abs": np.abs, "sin": np.sin, "tanh": np.tanh, "expm1": np.expm1, "log1p": np.log1p, "erf": lambda x: x,
    "neg": np.negative, "cbrt": np.cbrt, "silu": lambda x: x, "leaky_relu": lambda x: x,
}  # fmt: skip
SIGNS = [
    Row(
        f"the sign of a zero: {name}",
        lambda x, n=name: (-x if n == "neg" else getattr(x, n)()).signbit(),
        lambda x, f=f: np.signbit(f(x)),
        ((_ZEROS[:2] if name in ("sqrt", "erfinv", "erf", "silu", "leaky_relu") else _ZEROS,),),
        gradient=False,
    )
    for name, f in _KEEPING.items()
]

_PAIRS = (
    (normal(3, 4), other(3, 4)),
    (normal(3, 4), normal(4)),
    (normal(3, 1), normal(2, 1, 4)),
    (normal(), normal(2, 3)),
    (normal(), other()),
    (normal(0, 3), normal(3)),
    (normal(2, 0, 3), normal(1, 3)),
)
_GRID = tuple(np.meshgrid(SPECIAL, SPECIAL))
_DIVIDED = tuple((exact(x * 5.0), np.where(np.abs(y) < 0.2, 0.75, y)) for x, y in _PAIRS)


def _binary(name: str, reference: Callable[..., Any], samples: Any = _PAIRS, **options: Any) -> list[Row]:
    """Rows with two tensors, and with a tensor and a scalar."""
    call = lambda x, y: getattr(x, name)(y)  # noqa: E731
    return [
        Row(name, call, reference, samples, (_GRID,), noisy=True, **options),
        Row(f"{name} number", lambda x: getattr(x, name)(0.75), lambda x: reference(x, 0.75), ((samples[0][0],), (samples[3][0],)),
            ((SPECIAL,),), noisy=True, **options),
    ]  # fmt: skip


def _signed(f: Callable[..., Any]) -> Callable[..., Any]:
    """The sign bit of a result that is not NaN."""
    return lambda x, y: np.signbit(_nan_signed(f(x, y)))


_REMAINDERS = {
    "//": (lambda x, y: x // y, np.floor_divide), "%": (lambda x, y: x % y, np.remainder),
    "divmod 0": (lambda x, y: divmod(x, y)[0], np.floor_divide), "divmod 1": (lambda x, y: divmod(x, y)[1], np.remainder),
    "fmod": (lambda x, y: x.fmod(y), np.fmod),
}  # fmt: skip

BINARY = [
    *_binary("atan2", np.arctan2),
    *_binary("hypot", np.hypot),
    *_binary("logaddexp", np.logaddexp),
    *_binary("copysign", lambda x, y: np.copysign(x, _nan_signed(y))),
    *_binary("xlogy", lambda x, y: sp.xlogy(x, y), tuple((x, exact(np.exp(np.clip(y, -1, 1)))) for x, y in _PAIRS)),
    Row("atan2 signs", lambda x, y: x.atan2(y).signbit(), _signed(np.arctan2), (_GRID,), gradient=False),
    Row("hypot far out", lambda x, y: x.hypot(y), np.hypot, (), ((exact([1e30, 1e-30, 3e38, 0.0]), exact([1e30, 1e-30, 1.0, 1e-38])),), half=False),
    Row("hypot at 0", lambda x, y: x.hypot(y), np.hypot, ((exact([0.0, 3.0]), exact([0.0, 4.0])),),
        torch=lambda x, y: torch.stack([x[0] * 0 + y[0] * 0, torch.hypot(x[1], y[1])]), second=False),
    Row("atan2 at 0", lambda x, y: x.atan2(y), np.arctan2, ((exact([0.0, 3.0]), exact([0.0, 4.0])),),
        torch=lambda x, y: torch.stack([x[0] * 0 + y[0] * 0, torch.atan2(x[1], y[1])]), second=False),
    Row("xlogy at 0", lambda x, y: x.xlogy(y), lambda x, y: sp.xlogy(x, y), ((exact([0.0, 0.0, 2.0]), exact([0.0, 3.0, 0.5])),),
        torch=lambda x, y: torch.stack([(x * 0 + y * 0)[0], *torch.xlogy(x[1:], y[1:])]), second=False),
    Row("logaddexp of infinities", lambda x, y: x.logaddexp(y), np.logaddexp, ((exact([-INF, -INF, 0.0]), exact([-INF, 1.0, 1.0])),),
        torch=lambda x, y: torch.stack([(0.5 * x + 0.5 * y)[0], y[1] + x[1] * 0, torch.logaddexp(x[2], y[2])]), second=False),
    *(
        row
        for name, (call, reference) in _REMAINDERS.items()
        for row in (
            Row(f"float {name}", call, reference, _DIVIDED, (_GRID, (exact([1e20, -7.5, 1e-20]), exact([3.0, 1e20, 0.3]))), second=False, noisy=True, factor=4, half=False),
            Row(f"float {name}, signs", lambda x, y, call=call: call(x, y).signbit(), _signed(reference), (_GRID,), gradient=False, noisy=True, half=False),
            Row(f"float {name} number", lambda x, call=call: call(x, -0.75), lambda x, f=reference: f(x, -0.75), ((_DIVIDED[0][0],),), second=False, half=False),
        )
    ),
    *(
        Row(f"float {name}", call, lambda x, f=f: f(x), ((_DIVIDED[0][1],),), second=False, noisy=True, half=False)
        for name, call, f in (
            ("2.5 // x", lambda x: 2.5 // x, lambda x: np.floor_divide(2.5, x)),
            ("2.5 % x", lambda x: 2.5 % x, lambda x: np.remainder(2.5, x)),
            ("divmod(2.5, x)", lambda x: divmod(2.5, x)[1], lambda x: np.remainder(2.5, x)),
        )
    ),
    Row("lerp", lambda x, y, w: x.lerp(y, w), lambda x, y, w: x + w * (y - x),
        ((normal(3, 4), other(3, 4), _probabilities(3, 4)), (normal(4), other(3, 1), _probabilities(1)), (normal(0), other(0), normal(0)))),
    *(
        Row(f"lerp {w}", lambda x, y, w=w: x.lerp(y, w), lambda x, y, w=w: x + w * (y - x), ((normal(3, 4), other(4)),))
        for w in (0, 0.25, 0.75, 1)
    ),
    Row("lerp number", lambda x, w: x.lerp(1.5, w), lambda x, w: x + w * (1.5 - x), ((normal(3, 4), _probabilities(4)),)),
    Row("lerp arrives", lambda x, y: x.lerp(y, 1.0) == y, lambda x, y: np.full(x.shape, True), ((exact([1e8, 0.1]), exact([0.3, 1e8])),), gradient=False, half=False),
    Row("clip by tensors", lambda x, a, b: x.clip(a, b), lambda x, a, b: np.minimum(np.maximum(x, a), b),
        ((normal(3, 4), exact(other(3, 4) - 0.5), exact(other(3, 4) + 0.5)), (normal(3, 4), exact(-positive(4)), positive(3, 1)),
         (normal(), exact(-positive(3)), positive()), (normal(0), normal(), other())), second=False),
    Row("clip below by a tensor", lambda x, a: x.clip(a), np.maximum, ((normal(3, 4), other(4)),), ((SPECIAL, exact([0.5])),), second=False),
    Row("clip above by a tensor", lambda x, b: x.clip(high=b), np.minimum, ((normal(3, 4), other(4)),), second=False),
    Row("clip by a number and a tensor", lambda x, b: x.clip(-0.5, b), lambda x, b: np.minimum(np.maximum(x, -0.5), b),
        ((normal(3, 4), other(4)),), second=False),
    Row("clip, bounds crossed", lambda x, a, b: x.clip(a, b), lambda x, a, b: np.minimum(np.maximum(x, a), b),
        ((normal(3, 4), exact(other(3, 4) + 0.5), exact(other(3, 4) - 0.5)),), second=False),
    Row("clip at bounds that are tensors", lambda x, a, b: x.clip(a, b), lambda x, a, b: np.clip(x, a, b),
        ((exact([-0.5, 0.5, 0.0, 2.0]), exact([-0.5] * 4), exact([0.5] * 4)),), torch=lambda x, a, b: torch.clamp(x, a, b), second=False),
]  # fmt: skip

_CLOSE = (
    (normal(3, 4), exact(normal(3, 4) * (1.0 + 1e-6))), (normal(3, 4), exact(normal(3, 4) * 1.001)), (normal(3, 1), other(4)),
    (normal(0), normal(0)), _GRID,
)  # fmt: skip


def _closeness(name: str, reduce: Callable[..., Any]) -> list[Row]:
    def row(title: str, samples: Any = _CLOSE, **options: Any) -> Row:
        return Row(
            f"{name} {title}", lambda x, y: getattr(x, name)(y, **options), lambda x, y: reduce(np.isclose(x, y, **options)),
            samples, gradient=False, half=False,
        )  # fmt: skip

    return [row("by default"), row("rtol", rtol=1e-2), row("atol", atol=0.5), row("equal_nan", equal_nan=True)]


CLOSE = [
    *_closeness("isclose", lambda close: close),
    *_closeness("allclose", np.all),
    Row("isclose number", lambda x: x.isclose(0.5), lambda x: np.isclose(x, 0.5), ((SPECIAL,),), gradient=False),
]

ROWS: list[Row] = [*UNARY, *SIGNS, *BINARY, *CLOSE]
