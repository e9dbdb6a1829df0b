"""Operations along given axes: axis i of an example is axis i + 1 of the inner array."""

from __future__ import annotations

from typing import Any

from phlox.backend.contract.required import BoolOps, FloatOps, IntOps
from phlox.batching.build import AxisRule, GeneralRule, Rule, shifted

_REDUCTIONS = [
    name
    for family in (FloatOps, IntOps, BoolOps)
    for name, annotation in family.__annotations__.items()
    if annotation in ("Reduction", "ArgReduction", "Callable[[Array, Axes, bool], Array]")
]

_FIRST = (
    *_REDUCTIONS,
    "flip", "squeeze", "expand_dims", "windows",
    "float_mean", "float_var", "float_std", "float_logsumexp", "float_norm", "float_median", "bool_count_nonzero",
    "float_cumsum", "int_cumsum", "float_cumprod", "int_cumprod", "float_cummax", "int_cummax", "float_cummin",
    "int_cummin", "float_logcumsumexp",
    "float_argsort", "int_argsort", "float_sort", "int_sort",
    "softmax", "log_softmax", "glu",
)  # fmt: skip
"""Operations whose first option is an axis, or several axes."""

_SECOND = ("roll", "repeat", "float_argtopk", "int_argtopk")
"""Operations whose second option is an axis, or several axes."""


def _with_new_first_axis(name: str) -> Rule:
    """The rule of an operation with a new first axis in its result: the batch axis moves before it."""

    def rule(M: Any, x: Any, axes: Any, *options: Any) -> Any:
        result = getattr(M.inner, name)(x.value, shifted(axes), *options)
        return M.boxed(M.moved(result, 1, 0))

    return GeneralRule(1, rule)


def _windows_adjoint(M: Any, g: Any, axis: int, size: int, step: int, shape: tuple[int, ...]) -> Any:
    n = M.size([g])
    return M.boxed(M.inner.float_windows_adjoint(g.value, axis + 1, size, step, (n, *shape)))


ALONG: dict[str, Rule] = {
    **{name: AxisRule((0,)) for name in _FIRST},
    **{name: AxisRule((1,)) for name in _SECOND},
    "float_order_statistics": _with_new_first_axis("float_order_statistics"),
    "float_quantile": _with_new_first_axis("float_quantile"),
    "float_windows_adjoint": GeneralRule(1, _windows_adjoint),
}
