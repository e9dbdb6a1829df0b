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
    """The reason, if a backend says that it does not support something."""
    known = isinstance(error, BackendError) and not isinstance(error, EngineNotInstalledError)
    return str(error) if known and "does not support" in str(error) else None


# --- values


def check_value(row: Row, y: Any, wanted: np.ndarray[Any, Any], what: str) -> None:
    """Check value, shape, kind and dtype."""
    kind = running.kind_of(wanted)
    assert isinstance(y, px.Tensor), f"{what}: gave {type(y)}, expected a tensor"
    assert y.kind is kind, f"{what}: gave {y.kind.__name__}, expected {kind.__name__}"
    assert y.shape == wanted.shape, f"{what}: gave shape {y.shape}, expected {wanted.shape}"
    dtype = y.backend.host_dtype(kind)
    assert y.numpy().dtype == dtype, f"{what}: gave elements of type {y.numpy().dtype}, expected {dtype}"
    got = y.numpy()
    if kind is px.Float:
        with np.errstate(over="ignore"):
            wanted = wanted.astype(dtype)
    elif kind is px.Int:
        # References wrap around at 32 bits; with a wider dtype compare the low 32 bits.
        got, wanted = got.astype(np.int32), wanted.astype(np.int32)
    compare(got, wanted, tolerance(row, y.backend, wanted) if kind is px.Float else EXACT, what)


def tolerance(row: Row, backend: Backend, wanted: np.ndarray[Any, Any]) -> Tolerance:
    """The tolerance for `wanted`; at half precision, cancellation leaves an error relative to the largest element."""
    usual = tolerance_of(backend).times(row.factor)
    if backend.float_element not in running.HALVES:
        return usual
    finite = np.abs(wanted.astype(np.float64))
    finite = finite[np.isfinite(finite)]
    return Tolerance(usual.rtol, usual.atol * max(1.0, float(finite.max(initial=0.0))))


def value(row: Row, backend: Backend, n: int) -> None:
    """Check the n-th sample."""
    sample, what = _held(row, backend, n)
    with _quiet(row):
        check_value(row, row.call(*running.tensors(sample, backend)), _wanted(row, backend, n), what)


def values(row: Row, backend: Backend, n: int, *, views: bool = True) -> None:
    """Check the n-th sample: plain, as views, under Autodiff without and with tracked arguments.

    Without `views`, not as views: for an engine all of whose arrays are contiguous.
    """
    sample, what = _held(row, backend, n)
    wanted = _wanted(row, backend, n)
    value(row, backend, n)
    with _quiet(row):
        if views and n == 0:
            check_value(row, row.call(*running.tensors(sample, backend, views=True)), wanted, f"{what}, of views")
        if backend.differentiates:
            return
        tracked = running.tensors(sample, Autodiff(backend))
        check_value(row, row.call(*tracked), wanted, f"{what}, under Autodiff")
        for i in running.differentiable(row, sample):
            tracked[i] = tracked[i].require_grad()
        check_value(row, row.call(*tracked), wanted, f"{what}, on the tape")


def _wanted(row: Row, backend: Backend, n: int) -> np.ndarray[Any, Any]:
    with oracle():
        return running.reference_at(row, n, running.key(row, n, backend.float_element))


def _quiet(row: Row) -> Any:
    return np.errstate(invalid="ignore", over="ignore") if row.noisy else nullcontext()


def _held(row: Row, backend: Backend, n: int) -> tuple[Sample, str]:
    sample = running.sample_at(row, n)
    held = running.rounded_sample(sample, backend.float_element)
    if held is None:
        raise NotCompared(f"numbers too large for {backend.float_element}")
    return held, f"{row.name}({running.described(sample)})"


# --- gradients


def first_gradients(row: Row, backend: Backend, n: int, got: list[np.ndarray[Any, Any]] | None = None) -> None:
    """Check the gradients of the n-th sample, or those that were `got`, against PyTorch's, or finite differences.

    At half precision, where rounding makes ties and breaks finite differences, they are compared with NumPy's backend
    in float64, which is itself checked like that.
    """
    sample, what = _held(row, backend, n)
    element = running.key(row, n, backend.float_element)
    width = tolerance_of(backend).times(4 * row.factor)
    half = backend.float_element in running.HALVES
    with oracle():
        if half:
            wanted = running.gradients(row, sample, NumPy(float="f64"))
        else:
            wanted = running.true_gradients_at(row, n, element)
            if row.torch is None and backend.float_element == "f64":
                width = BY_DIFFERENCES.times(row.factor)
    if got is None:
        got = running.gradients(row, sample, backend)
    for i, found, right in zip(running.differentiable(row, sample), got, wanted, strict=True):
        if half:
            width = tolerance(row, backend, right).times(4)
        compare(found, right, width, f"{what}, gradient towards argument {i}")


def second_gradients(row: Row, backend: Backend, n: int) -> None:
    """Check second derivatives against finite differences of gradients.

    These need float64; other dtypes are compared with NumPy's backend in float64, which is itself checked like that.
    """
    sample, what = _held(row, backend, n)
    whole = backend.float_element == "f64"
    with oracle():
        if whole:
            wanted = running.true_second_gradients(row, sample, backend)
        else:
            wanted = running.second_gradients(row, sample, NumPy(float="f64"))
    found = running.second_gradients(row, sample, backend)
    for i, got, right in zip(running.differentiable(row, sample), found, wanted, strict=True):
        got = np.where(np.isnan(right), np.nan, got)
        width = BY_DIFFERENCES.times(4 * row.factor) if whole else tolerance(row, backend, right).times(16)
        compare(got, right, width, f"{what}, second derivative towards argument {i}")


# --- empty tensors

Outcome = tuple[str, Any]


def without_elements(sample: Sample) -> list[Sample]:
    """For each size, the sample with all axes of that size made empty, so that shapes still fit."""
    sizes = sorted({size for a in sample if isinstance(a, np.ndarray) for size in a.shape if size})
    found: list[Sample] = []
    for size in sizes:
        emptied = [
            a[tuple(slice(0, 0) if s == size else slice(None) for s in a.shape)] if isinstance(a, np.ndarray) else a
            for a in sample
        ]
        found.append(tuple(emptied))
    return found


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
    """Check that empty tensors give the result of NumPy's backend: a value, or the same error of Phlox.

    If the reference has a value too, NumPy's backend must match it.
    """
    example = NumPy(float="f32" if backend.float_element in running.HALVES else backend.float_element)
    for sample in without_elements((row.samples + row.specials)[0]):
        what = f"{row.name}({running.described(sample)})"
        how, wanted = _outcome(lambda s=sample: row.call(*running.tensors(s, example)))
        if backend is not example:
            got, y = _outcome(lambda s=sample: row.call(*running.tensors(s, backend)))
        else:
            got, y = how, wanted
        if how == "value":
            assert got == "value", f"{what}: raised {y}, expected {_shown(wanted)}"
            right = _answer(row, sample)
            right = _common(wanted.numpy()) if right is None or right.shape != wanted.shape else right
            check_value(row, y, right, what)
            if running.differentiable(row, sample):
                _outcome(lambda s=sample: running.gradients(row, s, backend))
        else:
            assert got == "error", f"{what}: gave {_shown(y)}, expected {wanted}"
            assert y == wanted, f"{what}: raised {y}, expected {wanted}"


def _answer(row: Row, sample: Sample) -> np.ndarray[Any, Any] | None:
    """The value of the reference, or None: not all support empty arrays."""
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
    """Check that a draw is bit-identical to that of the reference generator."""
    operation, arguments = DRAWS[name]
    of_floats = (backend.host_float_dtype,) if operation in ("random_uniform", "random_normal") else ()
    for words in STATES:
        state = np.array(words, np.uint32)
        got = backend.to_host(getattr(backend, operation)(state, *arguments, backend.device()))
        wanted = getattr(generator, operation)(state, *arguments, *of_floats)
        kind = running.kind_of(wanted) if wanted.dtype.kind in "bi" else px.Float
        dtype = backend.host_dtype(kind)
        what = f"random {name} at state {words}"
        assert got.shape == wanted.shape, f"{what}: gave shape {got.shape}, expected {wanted.shape}"
        assert got.dtype == dtype, f"{what}: gave elements of type {got.dtype}, expected {dtype}"
        compare(got, wanted, EXACT, what)
