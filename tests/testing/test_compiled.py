"""Compiled means what eager means: rows of the table on awkward values, in one program an engine."""

from __future__ import annotations

from typing import Any

import pytest

from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.torch.compiler.codegen import PASSES_VARIABLE, VARIABLE
from phlox.testing import compiled
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

NAMES = (
    "expm1", "erf", "erfc", "erfinv", "atanh", "acosh", "asinh", "sinh", "cosh", "log1p", "cbrt", "sinc", "lgamma",
    "float //", "float %", "float // number", "float % number", "float fmod", "float 2.5 % x", "div", "pow",
    "/ x, -0.5", "x ** -2.0", "elu", "selu", "celu 2", "softshrink", "hardshrink", "hardswish", "hardtanh", "mish",
    "silu", "softplus", "log_sigmoid", "logit", "xlogy", "hypot", "iteration", "zeros_like", "sign",
)  # fmt: skip
DIFFERENTIATED = ("elu", "selu", "softshrink", "hardswish", "hardtanh", "mish", "silu")


def _rows(names: tuple[str, ...]) -> list[Row]:
    found = [row for row in ROWS if row.name in names]
    assert {row.name for row in found} == set(names)
    return found


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=str)
def test_awkward_values(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    found = [*compiled.cases(_rows(NAMES), "f32"), *compiled.cases(_rows(DIFFERENTIATED), "f32", gradients=True)]
    assert len(found) > 50
    assert list(compiled.differences(found, backend, together=len(found))) == []


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_a_fault_of_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    monkeypatch.setenv(PASSES_VARIABLE, "-decompositions")
    lines = list(compiled.differences(compiled.cases(_rows(("expm1", "elu")), "f32"), Torch()))
    assert [line.partition("(")[0] for line in lines] == ["expm1", "elu"]


def test_what_a_program_cannot_have_is_left_out() -> None:
    rows = [
        Row("chosen", lambda x: x[x > 0.0], lambda x: x[x > 0.0], _rows(("expm1",))[0].samples),
        Row("wrong", _wrong, lambda x: x, _rows(("expm1",))[0].samples),
    ]
    lines = list(compiled.differences(compiled.cases(rows, "f32"), Jax()))
    assert len(lines) == 1
    assert lines[0].startswith("wrong(")


def _wrong(x: Any) -> Any:
    """Another value where it is traced."""
    backend = x.backend
    return x + (1.0 if not isinstance(backend, NumPy) and backend.is_traced(x.primitive) else 0.0)


def test_awkward_values_are_of_the_element_type() -> None:
    for element in ("f32", "f64", "bf16", "f16"):
        values = compiled.awkward(element)
        assert len(values) % 16 != 0  # so that the ends of loops are run, too
        assert (values != values).sum() == 2
