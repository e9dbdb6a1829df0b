"""Operations on floats with derivative zero: comparisons, indices, conversions to other kinds."""

from __future__ import annotations

CONSTANT: frozenset[str] = frozenset(
    {
        "float_equal",
        "float_not_equal",
        "float_less",
        "float_less_equal",
        "float_greater",
        "float_greater_equal",
        "float_isnan",
        "float_isinf",
        "float_isfinite",
        "float_isclose",
        "float_signbit",
        "float_argmax",
        "float_argmin",
        "float_argsort",
        "float_argtopk",
        "float_searchsorted",
        "float_unique",
        "float_into_int",
        "float_into_bool",
        "detach",
    }
)
