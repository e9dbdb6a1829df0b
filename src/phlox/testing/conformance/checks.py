# pyright: standard
"""The checks of a row on a backend: values, gradients, second derivatives and empty tensors.

Each check raises `AssertionError` if the backend is wrong, and `NotCompared` if there is nothing to compare with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Backend
from phlox.backend.numpy import NumPy
from phlox.backend.threefry import generator
from phlox.errors import BackendError, EngineNotInstalledError, PhloxError
from phlox.testing.close import compare
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row, Sample
from phlox.testing.tolerances import Tolerance, tolerance_of

EXACT = Tolerance(0.0, 0.0)
BY_DIFFERENCES = Tolerance(2e-6, 2e-7)
"""The accuracy of finite differences in float64."""


class NotCompared(Exception):
    """A case could not be compared; the message is the reason."""


@contextmanager
def oracle() -> Iterator[None]:
    """A missing library of a reference raises `NotCompared`, since the backend is not at fault."""
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, PhloxError):
            raise
        raise NotCompared(f"{error.name or 'a library'} is not installed") from error


def lacking(error: Exception) -> str | None:
    """The reason, if the error says that a backend does not support something."""
    known = isinstance(error, BackendError) and not isinstance(error, EngineNotInstalledError)
    return str(error) if known and "does not support" in str(error) else None


# --- values


def check_value(row: Row, y: Any, expected: np.ndarray[Any, Any], title: str) -> None:
    """Check value, shape, kind and dtype."""
    kind = running.kind_of(expected)
    assert isinstance(y, px.Tensor), f"{title}: gave {type(y)}, expected a tensor"
    assert y.kind is kind, f"{title}: gave {y.kind.__name__}, expected {kind.__name__}"
    assert y.shape == expected.shape, f"{title}: gave shape {y.shape}, expected {expected.shape}"
    dtype = y.backend.host_dtype(kind)
    assert y.numpy().dtype == dtype, f"{title}: gave elements of type {y.numpy().dtype}, expected {dtype}"
    got = y.numpy()
    if kind is px.Float:
        with np.errstate(over="ignore"):
            expected = expected.astype(dtype)
    elif kind is px.Int:
        # References wrap around at 32 bits; with a wider dtype compare the low 32 bits.
        got, expected = got.astype(np.int32), expected.astype(np.int32)
    compare(got, expected, tolerance(row, y.backend, expected) if kind is px.Float else EXACT, title)


def tolerance(row: Row, backend: Backend, expected: np.ndarray[Any, Any]) -> Tolerance:
    """The tolerance for `wanted`; at half precision, cancellation leaves an error relative to the largest element."""
    usual = tolerance_of(backend).times(row.factor)
    if backend.float_element not in running.HALVES:
        return usual
    finite = np.abs(expected.astype(np.float64))
    finite = finite[np.isfinite(finite)]
    return Tolerance(usual.rtol, usual.atol * max(1.0, float(finite.max(initial=0.0))))


def value(row: Row, backend: Backend, n: int) -> None:
    """Check the n-th sample."""
    sample, title = _rounded(row, backend, n)
    with _quiet(row):
        check_value(row, row.call(*running.tensors(sample, backend)), _expected(row, backend, n), title)


def values(row: Row, backend: Backend, n: int, *, views: bool = True) -> None:
    """Check the n-th sample: plain, as views, and under Autodiff without and with tracked arguments.

    `views=False` omits the views, for an engine whose arrays are all contiguous.
    """
    sample, title = _rounded(row, backend, n)
    expected = _expected(row, backend, n)
    value(row, backend, n)
    with _quiet(row):
        if views and n == 0:
            check_value(row, row.call(*running.tensors(sample, backend, views=True)), expected, f"{title}, of views")
        if backend.differentiates:
            return
        tracked = running.tensors(sample, Autodiff(backend))
        check_value(row, row.call(*tracked), expected, f"{title}, under Autodiff")
        for i in running.differentiable(row, sample):
            tracked[i] = tracked[i].require_grad()
        check_value(row, row.call(*tracked), expected, f"{title}, on the tape")


def _expected(row: Row, backend: Backend, n: int) -> np.ndarray[Any, Any]:
    with oracle():
        return running.reference_at(row, n, running.key(row, n, backend.float_element))


def _quiet(row: Row) -> Any:
    return np.errstate(invalid="ignore", over="ignore") if row.noisy else nullcontext()


def _rounded(row: Row, backend: Backend, n: int) -> tuple[Sample, str]:
    sample = running.sample_at(row, n)
    rounded = running.rounded_sample(sample, backend.float_element)
    if rounded is None:
        raise NotCompared(f"numbers too large for {backend.float_element}")
    return rounded, f"{row.name}({running.described(sample)})"


# --- gradients


def first_gradients(row: Row, backend: Backend, n: int, got: list[np.ndarray[Any, Any]] | None = None) -> None:
    """Check the gradients of the n-th sample, or the given `got`, against PyTorch's or finite differences.

    At half precision, where rounding makes ties and breaks finite differences, they are compared with NumPy's backend
    in float64, which has its own check against these references.
    """
    sample, title = _rounded(row, backend, n)
    element = running.key(row, n, backend.float_element)
    width = tolerance_of(backend).times(4 * row.factor)
    half = backend.float_element in running.HALVES
    with oracle():
        if half:
            expected = running.gradients(row, sample, NumPy(float="f64"))
        else:
            expected = running.true_gradients_at(row, n, element)
            if row.torch is None and backend.float_element == "f64":
                width = BY_DIFFERENCES.times(row.factor)
    if got is None:
        got = running.gradients(row, sample, backend)
    for i, gradient, target in zip(running.differentiable(row, sample), got, expected, strict=True):
        if half:
            width = tolerance(row, backend, target).times(4)
        compare(gradient, target, width, f"{title}, gradient towards argument {i}")


def second_gradients(row: Row, backend: Backend, n: int) -> None:
    """Check second derivatives against finite differences of gradients.

    These need float64; other dtypes are compared with NumPy's backend in float64, which has its own check.
    """
    sample, title = _rounded(row, backend, n)
    whole = backend.float_element == "f64"
    with oracle():
        if whole:
            expected = running.true_second_gradients(row, sample, backend)
        else:
            expected = running.second_gradients(row, sample, NumPy(float="f64"))
    actual = running.second_gradients(row, sample, backend)
    for i, got, target in zip(running.differentiable(row, sample), actual, expected, strict=True):
        got = np.where(np.isnan(target), np.nan, got)
        width = BY_DIFFERENCES.times(4 * row.factor) if whole else tolerance(row, backend, target).times(16)
        compare(got, target, width, f"{title}, second derivative towards argument {i}")


# --- empty tensors

Outcome = tuple[str, Any]


def without_elements(sample: Sample) -> list[Sample]:
    """For each size, the sample with all axes of that size made empty, so that shapes still fit."""
    sizes = sorted({size for a in sample if isinstance(a, np.ndarray) for size in a.shape if size})
    samples: list[Sample] = []
    for size in sizes:
        emptied = [
            a[tuple(slice(0, 0) if s == size else slice(None) for s in a.shape)] if isinstance(a, np.ndarray) else a
            for a in sample
        ]
        samples.append(tuple(emptied))
    return samples


def _outcome(fn: Callable[[], Any]) -> Outcome:
    try:
        with np.errstate(all="ignore"):
            y = fn()
    except (PhloxError, ZeroDivisionError) as error:
        if lacking(error):
            raise
        return "error", type(error).__name__
    return "value", y


def empty_tensors(row: Row, backend: Backend) -> None:
    """Check that empty tensors give the same result as NumPy's backend: a value, or the same error of Phlox.

    If the reference has a value too, NumPy's backend must match it.
    """
    example = NumPy(float="f32" if backend.float_element in running.HALVES else backend.float_element)
    for sample in without_elements((row.samples + row.specials)[0]):
        title = f"{row.name}({running.described(sample)})"
        expected_outcome, expected = _outcome(lambda s=sample: row.call(*running.tensors(s, example)))
        if backend is not example:
            outcome, y = _outcome(lambda s=sample: row.call(*running.tensors(s, backend)))
        else:
            outcome, y = expected_outcome, expected
        if expected_outcome == "value":
            assert outcome == "value", f"{title}: raised {y}, expected {_shown(expected)}"
            target = _answer(row, sample)
            target = _common(expected.numpy()) if target is None or target.shape != expected.shape else target
            check_value(row, y, target, title)
            if running.differentiable(row, sample):
                _outcome(lambda s=sample: running.gradients(row, s, backend))
        else:
            assert outcome == "error", f"{title}: gave {_shown(y)}, expected {expected}"
            assert y == expected, f"{title}: raised {y}, expected {expected}"


def _answer(row: Row, sample: Sample) -> np.ndarray[Any, Any] | None:
    """The value of the reference; None if the reference does not support empty arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return running.reference(row, sample)
        except Exception:
            return None


def _shown(y: Any) -> str:
    return f"{y.kind.__name__} {y.shape}" if isinstance(y, px.Tensor) else repr(y)


def _common(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in the dtype of references."""
    return array.astype({"i": np.int32, "b": np.bool_}.get(array.dtype.kind, np.float64))


# --- random draws

DRAWS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "uniform": ("random_uniform", ((5, 7),)),
    "normal": ("random_normal", ((5, 7),)),
    "bernoulli": ("random_bernoulli", ((5, 7), 20000)),
    "integers": ("random_integers", ((5, 7), -3, 1000)),
    "permutation": ("random_permutation", (31,)),
    "uniform of nothing": ("random_uniform", ((2, 0),)),
    "normal of rank 0": ("random_normal", ((),)),
}
"""Draws by name: the operation, which the reference generator has too, and its arguments."""

STATES = [(0, 0, 0), (1, 2, 3), (2**32 - 1, 2**31, 7)]
"""Keys and positions of the generator."""


def draw(name: str, backend: Backend) -> None:
    """Check that a draw is bit-identical to the draw of the reference generator."""
    operation, arguments = DRAWS[name]
    of_floats = (backend.host_float_dtype,) if operation in ("random_uniform", "random_normal") else ()
    for words in STATES:
        state = np.array(words, np.uint32)
        got = backend.to_host(getattr(backend, operation)(state, *arguments, backend.device()))
        expected = getattr(generator, operation)(state, *arguments, *of_floats)
        kind = running.kind_of(expected) if expected.dtype.kind in "bi" else px.Float
        dtype = backend.host_dtype(kind)
        title = f"random {name} at state {words}"
        assert got.shape == expected.shape, f"{title}: gave shape {got.shape}, expected {expected.shape}"
        assert got.dtype == dtype, f"{title}: gave elements of type {got.dtype}, expected {dtype}"
        compare(got, expected, EXACT, title)
