# pyright: standard
"""Runs rows of the table: on a backend, with autodiff, and by their references."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Backend
from phlox.host.dtypes import HOST_DTYPES, LARGEST
from phlox.testing.close import central_difference
from phlox.testing.conformance.row import Row, Sample, torch

HALVES = ("f16", "bf16")
"""The half-precision dtypes."""


def tensors(sample: Sample, backend: Backend, *, views: bool = False) -> list[Any]:
    """The arguments as tensors; with `views`, as views of memory in another order."""
    values: list[Any] = []
    for argument in sample:
        if not isinstance(argument, np.ndarray):
            values.append(argument)
        elif views and argument.ndim > 1:
            values.append(px.tensor(argument.T.copy(), device=backend).permute_dims(tuple(range(argument.ndim))[::-1]))
        elif views and argument.ndim == 1:
            values.append(px.tensor(np.repeat(argument[::-1], 2), device=backend)[::-2])
        else:
            values.append(px.tensor(argument, device=backend))
    return values


def described(sample: Sample) -> str:
    """A short description of the arguments."""
    return ", ".join(
        f"{kind_of(a).__name__} {a.shape}" if isinstance(a, np.ndarray) else repr(a) for a in sample
    )  # fmt: skip


def rounded_sample(sample: Sample, element: str) -> Sample | None:
    """The sample with floats rounded to a dtype, as float64; None if one is too large."""
    arguments: list[Any] = []
    for argument in sample:
        if isinstance(argument, np.ndarray) and argument.dtype == np.float64:
            if (np.abs(argument[np.isfinite(argument)]) > LARGEST[element]).any():
                return None
            argument = argument.astype(HOST_DTYPES[element]).astype(np.float64)
        arguments.append(argument)
    return tuple(arguments)


def differentiable(row: Row, sample: Sample) -> list[int]:
    """The indices of the arguments to differentiate."""
    if not row.gradient:
        return []
    indices = [i for i, a in enumerate(sample) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    return [i for i in indices if i not in row.constant]


def kind_of(array: np.ndarray[Any, Any]) -> Any:
    """The kind of tensor of a NumPy array."""
    return {"b": px.Bool, "i": px.Int, "f": px.Float}[array.dtype.kind]


def reference(row: Row, sample: Sample) -> np.ndarray[Any, Any]:
    """The reference value."""
    with np.errstate(all="ignore"):
        return np.asarray(row.reference(*sample))


def cotangent(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Nonzero weights of the elements of a result, exact in every dtype."""
    values = np.round((np.cos(np.arange(int(np.prod(shape)), dtype=np.float64)) + 1.5) * 32.0) / 32.0
    return values.reshape(shape)


def gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The gradients on `Autodiff(backend)`, with `cotangent`."""
    arguments = tensors(sample, Autodiff(backend))
    indices = differentiable(row, sample)
    for i in indices:
        arguments[i] = arguments[i].require_grad()
    y = row.call(*arguments)
    if not y.is_require_grad():
        return [np.zeros_like(sample[i]) for i in indices]
    grads = y.backward(px.tensor(cotangent(y.shape), device=backend))
    return as_arrays(row, sample, backend, [arguments[i].grad(grads) for i in indices])


def as_arrays(row: Row, sample: Sample, backend: Backend, gradients: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Gradients as arrays, after a check of shape, kind and dtype; zeros for a missing gradient."""
    indices = differentiable(row, sample)
    for g, i in zip(gradients, indices, strict=True):
        if g is not None:
            title = f"{row.name}: the gradient towards argument {i}"
            assert g.backend is backend, f"{title} is on {g.backend!r}, expected {backend!r}"
            assert g.shape == sample[i].shape, f"{title} is of shape {g.shape}, expected {sample[i].shape}"
            assert g.kind is px.Float, f"{title} is {g.kind.__name__}, expected Float"
            dtype = g.numpy().dtype
            assert dtype == backend.host_float_dtype, f"{title} has elements of type {dtype}"
    return [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(gradients, indices, strict=True)]


def true_gradients(row: Row, sample: Sample) -> list[np.ndarray[Any, Any]]:
    """The same gradients by PyTorch, or by finite differences of the reference."""
    indices = differentiable(row, sample)
    if row.torch is not None:
        arguments = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in sample]
        for i in indices:
            arguments[i].requires_grad_()
        y = row.torch(*arguments)
        grads = torch.autograd.grad(y, [arguments[i] for i in indices], torch.tensor(cotangent(tuple(y.shape))))
        return [g.numpy() for g in grads]
    weights = cotangent(reference(row, sample).shape)
    return differences(lambda *moved: float((reference(row, moved) * weights).sum()), sample, indices)


def differences(f: Any, sample: Sample, indices: list[int], most: int = 10**9) -> list[np.ndarray[Any, Any]]:
    """Central differences of the scalar `f(*sample)` with respect to the arguments at `indices`.

    For a large argument, only about `most` evenly spaced elements are computed; the others are NaN.
    """
    results = [np.full_like(sample[i], np.nan) for i in indices]
    for n, i in enumerate(indices):
        everywhere = list(np.ndindex(*sample[i].shape))
        for at in everywhere[:: max(1, len(everywhere) // most)]:
            results[n][at] = central_difference(lambda x, i=i: f(*sample[:i], x, *sample[i + 1 :]), sample[i], at)
    return results


def directions(row: Row, sample: Sample) -> list[np.ndarray[Any, Any]]:
    """The weights of the first gradients; their weighted sum is differentiated again."""
    return [
        cotangent(sample[i].shape)[..., ::-1] if sample[i].ndim else cotangent(()) for i in differentiable(row, sample)
    ]


def second_gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The gradients of the first gradients, weighted by `directions`, on `Autodiff(Autodiff(backend))`."""
    inner = Autodiff(backend)
    arguments = tensors(sample, Autodiff(inner))
    indices = differentiable(row, sample)
    leaves = [px.tensor(sample[i], device=inner).require_grad() for i in indices]
    for i, leaf in zip(indices, leaves, strict=True):
        arguments[i] = px.Tensor.from_inner(leaf).require_grad()
    y = row.call(*arguments)
    if not y.is_require_grad():
        return [np.zeros_like(sample[i]) for i in indices]
    grads = y.backward(px.tensor(cotangent(y.shape), device=inner))
    total = px.zeros((), device=inner)
    for i, direction in zip(indices, directions(row, sample), strict=True):
        first = arguments[i].grad(grads)
        if first is not None:
            total = total + (first * px.tensor(direction, device=inner)).sum()
    if not total.is_require_grad():
        return [np.zeros_like(sample[i]) for i in indices]
    grads_of_total = total.backward()
    second = [leaf.grad(grads_of_total) for leaf in leaves]
    return [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(second, indices, strict=True)]


def true_second_gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The same second gradients by finite differences of the first gradients, which have their own check."""
    weights = directions(row, sample)

    def first(*moved: Any) -> float:
        grads = gradients(row, moved, backend)
        return float(sum((g * w).sum() for g, w in zip(grads, weights, strict=True)))

    return differences(first, sample, differentiable(row, sample), most=8)


# --- references are cached for all backends of a dtype, and mostly for all dtypes


def _unchanged(sample: Sample, element: str) -> bool:
    rounded = rounded_sample(sample, element)
    return rounded is not None and all(
        a is b or np.array_equal(a, b, equal_nan=True) for a, b in zip(sample, rounded, strict=True)
    )  # fmt: skip


def sample_at(row: Row, n: int) -> Sample:
    """The n-th sample; specials come after the others."""
    return (row.samples + row.specials)[n]


@cache
def key(row: Row, n: int, element: str) -> str:
    """The dtype for the reference: f64 if the sample is exact in the given dtype."""
    return "f64" if _unchanged(sample_at(row, n), element) else element


@cache
def reference_at(row: Row, n: int, element: str) -> np.ndarray[Any, Any]:
    """`reference` of the n-th sample rounded to a dtype."""
    return reference(row, rounded_sample(sample_at(row, n), element) or ())


@cache
def true_gradients_at(row: Row, n: int, element: str) -> list[np.ndarray[Any, Any]]:
    """`true_gradients` of the n-th sample rounded to a dtype."""
    return true_gradients(row, rounded_sample(sample_at(row, n), element) or ())
