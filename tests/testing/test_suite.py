"""`check_backend` finds what is wrong with a backend, says where, and says what it could not compare.

Serves: phlox/testing/__main__.py
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from phlox.backend import Autodiff, NumPy, Torch
from phlox.errors import BackendError
from phlox.testing import PARTS, Failure, Report, check_backend
from phlox.testing.__main__ import main
from phlox.testing.conformance import running


def test_importing_the_kit_imports_no_engine_and_no_oracle() -> None:
    program = (
        "import sys, phlox.testing, phlox.testing.conformance.rows, phlox.testing.conformance.edges;"
        "print([m for m in ('torch', 'scipy', 'jax', 'hypothesis', 'pytest') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "a row touches a library while the table is built: put that into a lambda"


class Wrong(NumPy):
    """NumPy with faults of every sort."""

    def float_sin(self, x: Any) -> Any:
        return np.sin(x) + 1.0

    def float_floor(self, x: Any) -> Any:
        return np.floor(x).astype(np.float16)

    def float_sqrt(self, x: Any) -> Any:
        raise RuntimeError("the engine is on fire")

    def float_maximum(self, lhs: Any, rhs: Any) -> Any:
        return np.fmax(lhs, rhs)  # loses NaN

    @staticmethod
    def int_floordiv(lhs: Any, rhs: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.floor_divide(lhs, rhs)  # zero by zero is zero

    def random_uniform(self, state: Any, shape: Any, device: Any, rows: Any = None) -> Any:
        return np.zeros(shape, self.host_float_dtype)


@pytest.mark.parametrize(
    "part, only, words",
    [
        ("values", "sin", ("sin(Float (5,))", "5 of 5 elements are off", "got", "expected", "rtol=1e-05")),
        ("values", "floor", ("elements of type float16, expected float32",)),
        ("values", "sqrt", ("sqrt", "the engine is on fire")),
        ("values", "maximum", ("maximum(Float (16, 16), Float (16, 16))", "expected nan")),
        ("gradients", "cos", ("cos(Float (5,)), gradient towards argument 0",)),
        ("draws", "uniform", ("random uniform at state (0, 0, 0)",)),
        ("edges", "Integers", ("t([1]) // 0", "expected ZeroDivisionError")),
        ("edges", "Infinities", ("t([1.0, nan]).maximum(t([nan, 1.0]))", "got 1.0, expected nan")),
    ],
)
def test_faults_are_found_and_named(part: Any, only: str, words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        check_backend(Wrong(), only=only, parts=[part])
    text = str(caught.value)
    assert [word for word in words if word not in text] == [], text


def test_all_faults_are_gathered() -> None:
    report = check_backend(Wrong(), only="s", parts=["values"], raises=False)
    assert not report.ok
    assert {"sin", "sqrt"} <= {failure.operation for failure in report.failures}
    assert report.passed["values"] > 100
    with pytest.raises(AssertionError, match="Wrong"):
        report.check()


class Lacking(NumPy):
    """NumPy without logarithms."""

    @property
    def float_log(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise BackendError(f"{self!r} does not support `float_log`")


def test_what_is_not_supported_is_left_out_but_what_is_required_must_be_there() -> None:
    report = check_backend(Lacking(), only="log", parts=["contract", "values"], raises=False)
    assert [failure.message for failure in report.failures] == [
        "float_log is required of every backend, and Lacking() does not have it"
    ]
    assert sum(report.left_out.values()) > 0
    assert "does not support" in str(report) and "not compared" in str(report)


def test_without_the_libraries_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        if name.startswith(("torch", "scipy")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
        return importlib.import_module(name)

    monkeypatch.setattr("phlox.testing.conformance.row.import_module", absent)
    for cached in (running.reference_at, running.true_gradients_at):
        cached.cache_clear()
    report = check_backend(NumPy(), only="max", parts=["values", "gradients"])
    assert "Left out: torch is not installed: " in str(report)
    assert report.left_out["gradients", "torch is not installed"] > 0
    report = check_backend(NumPy(), only="erf", parts=["values"])
    assert report.left_out["values", "scipy is not installed"] > 0


@pytest.mark.parametrize(
    "backend", [NumPy(), NumPy(float="f64"), Torch(float="f16"), Autodiff(NumPy())], ids=repr
)  # fmt: skip
def test_our_own_pass(backend: Any) -> None:
    report = check_backend(backend, only="tanh")
    assert report.ok
    assert {"values", "gradients", "second derivatives", "empty tensors"} <= set(report.passed)


def test_wider_integers_pass() -> None:
    assert check_backend(NumPy(int="i64"), only="int", parts=["values"]).passed["values"] > 100
    check_backend(NumPy(int="i64"), parts=["draws", "edges"])


def test_the_report() -> None:
    report = Report("X()", {"native": 1, "derived": 0, "unsupported": 2})
    assert "there were none" in str(report) and report.ok
    report.failures += [Failure("values", f"op{i % 3}", "is off") for i in range(30)]
    text = report.summary(most=10)
    assert text.count("FAILED") == 10 and "20 more" in text and "op1 (" in text
    with pytest.raises(ValueError, match=f"unknown part 'all'.*{PARTS[0]}"):
        check_backend(NumPy(), parts=["all"])  # type: ignore[list-item]


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numpy", "--only", "tanh", "--float", "f64", "--part", "values"]) == 0
    assert "NumPy(float='f64'): " in capsys.readouterr().out
    assert main([f"{__name__}:Wrong", "--only", "sin", "--float", "f32"]) == 1
    assert "FAILED values, sin" in capsys.readouterr().out
    assert main(["numpy", "--only", "tanh", "--part", "values", "--autodiff"]) == 0
    assert "Autodiff(NumPy())" in capsys.readouterr().out
    for wrong in ("nonsense", "phlox.backend:nonsense", "nowhere:X", "phlox.errors:PhloxError"):
        assert main([wrong]) == 2
        assert "phlox.testing: " in capsys.readouterr().err
