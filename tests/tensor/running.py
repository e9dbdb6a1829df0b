"""How rows of the table are carried out and compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import phlox as px
from phlox.backend import Autodiff, Backend
from phlox.testing import Tolerance, tolerance_of
from phlox.testing.close import compare
from tests.tensor.rows.row import Row, Sample

EXACT = Tolerance(0.0, 0.0)
BY_DIFFERENCES = Tolerance(2e-6, 2e-7)
"""Finite differences in float64 are no better than this."""


def tensors(sample: Sample, backend: Backend, *, views: bool = False) -> list[Any]:
    """The arguments as tensors, on request as views of memory in another order."""
    made: list[Any] = []
    for argument in sample:
        if not isinstance(argument, np.ndarray):
            made.append(argument)
        elif views and argument.ndim > 1:
            made.append(px.tensor(argument.T.copy(), device=backend).permute_dims(tuple(range(argument.ndim))[::-1]))
        elif views and argument.ndim == 1:
            made.append(px.tensor(np.repeat(argument[::-1], 2), device=backend)[::-2])
        else:
            made.append(px.tensor(argument, device=backend))
    return made


def differentiable(row: Row, sample: Sample) -> list[int]:
    """The places of the arguments to differentiate towards."""
    if not row.gradient:
        return []
    found = [i for i, a in enumerate(sample) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    return [i for i in found if i not in row.constant]


def kind_of(array: np.ndarray[Any, Any]) -> Any:
    return {"b": px.Bool, "i": px.Int, "f": px.Float}[array.dtype.kind]


def reference(row: Row, sample: Sample) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        return np.asarray(row.reference(*sample))


def check_value(row: Row, y: Any, wanted: np.ndarray[Any, Any], what: str) -> None:
    """Value, shape, kind and element type."""
    kind = kind_of(wanted)
    assert isinstance(y, px.Tensor), f"{what}: gave {type(y)}"
    assert y.kind is kind, f"{what}: of kind {y.kind.__name__}, expected {kind.__name__}"
    assert y.shape == wanted.shape, f"{what}: of shape {y.shape}, expected {wanted.shape}"
    assert y.numpy().dtype == y.backend.host_dtype(kind), f"{what}: elements of type {y.numpy().dtype}"
    tolerance = tolerance_of(y.backend).times(row.factor) if kind is px.Float else EXACT
    if kind is px.Float:
        with np.errstate(over="ignore"):
            wanted = wanted.astype(y.numpy().dtype)
    compare(y.numpy(), wanted, tolerance, what)


def cotangent(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Weights of the elements of a result, none of them zero, that float32 holds exactly."""
    values = np.cos(np.arange(int(np.prod(shape)), dtype=np.float64)) + 1.5
    return np.asarray(values.reshape(shape), np.float32).astype(np.float64)


def gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The gradients by the tape on `Autodiff(backend)`, weighted by `cotangent`."""
    arguments = tensors(sample, Autodiff(backend))
    places = differentiable(row, sample)
    for i in places:
        arguments[i] = arguments[i].require_grad()
    y = row.call(*arguments)
    grads = y.backward(px.tensor(cotangent(y.shape), device=backend))
    found = [arguments[i].grad(grads) for i in places]
    for g, i in zip(found, places, strict=True):
        assert g is None or (g.backend is backend and g.shape == sample[i].shape and g.kind is px.Float), row.name
    return [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(found, places, strict=True)]


def true_gradients(row: Row, sample: Sample) -> list[np.ndarray[Any, Any]]:
    """The same by PyTorch, or by finite differences of the reference."""
    places = differentiable(row, sample)
    if row.torch is not None:
        arguments = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in sample]
        for i in places:
            arguments[i].requires_grad_()
        y = row.torch(*arguments)
        found = torch.autograd.grad(y, [arguments[i] for i in places], torch.tensor(cotangent(tuple(y.shape))))
        return [g.numpy() for g in found]
    weights = cotangent(reference(row, sample).shape)
    return differences(lambda *moved: float((reference(row, moved) * weights).sum()), sample, places)


def differences(f: Any, sample: Sample, places: list[int], most: int = 10**9) -> list[np.ndarray[Any, Any]]:
    """Central differences of the number `f(*sample)` towards the arguments at `places`.

    Of a large argument only every so many elements, about `most` of them; NaN stands for the others.
    """
    found = [np.full_like(sample[i], np.nan) for i in places]
    for n, i in enumerate(places):
        everywhere = list(np.ndindex(*sample[i].shape))
        for at in everywhere[:: max(1, len(everywhere) // most)]:
            h = 1e-6 * max(1.0, abs(float(sample[i][at])))
            sides: list[float] = []
            for step in (h, -h):
                moved = [a.copy() if isinstance(a, np.ndarray) else a for a in sample]
                moved[i][at] += step
                sides.append(f(*moved))
            found[n][at] = (sides[0] - sides[1]) / (2 * h)
    return found


def directions(row: Row, sample: Sample) -> list[np.ndarray[Any, Any]]:
    return [
        cotangent(sample[i].shape)[..., ::-1] if sample[i].ndim else cotangent(()) for i in differentiable(row, sample)
    ]


def second_gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The gradients of the first gradients, weighted by `directions`, on `Autodiff(Autodiff(backend))`."""
    inner = Autodiff(backend)
    arguments = tensors(sample, Autodiff(inner))
    places = differentiable(row, sample)
    leaves = [px.tensor(sample[i], device=inner).require_grad() for i in places]
    for i, leaf in zip(places, leaves, strict=True):
        arguments[i] = px.Tensor.from_inner(leaf).require_grad()
    y = row.call(*arguments)
    grads = y.backward(px.tensor(cotangent(y.shape), device=inner))
    total = px.zeros((), device=inner)
    for i, direction in zip(places, directions(row, sample), strict=True):
        first = arguments[i].grad(grads)
        if first is not None:
            total = total + (first * px.tensor(direction, device=inner)).sum()
    if not total.is_require_grad():
        return [np.zeros_like(sample[i]) for i in places]
    found = total.backward()
    second = [leaf.grad(found) for leaf in leaves]
    return [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(second, places, strict=True)]


def true_second_gradients(row: Row, sample: Sample, backend: Backend) -> list[np.ndarray[Any, Any]]:
    """The same by finite differences of the first gradients, which are compared with others elsewhere."""
    weights = directions(row, sample)

    def first(*moved: Any) -> float:
        found = gradients(row, moved, backend)
        return float(sum((g * w).sum() for g, w in zip(found, weights, strict=True)))

    return differences(first, sample, differentiable(row, sample), most=8)
