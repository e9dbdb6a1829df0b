"""Comparing a model with its exported file: inputs, the model's outputs, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from phlox.backend import Backend, Device, Float, backend_by_name, default_device
from phlox.backend.contract.backend import engine_of
from phlox.errors import ExportError, PhloxError
from phlox.export.arguments import Arguments, Input
from phlox.export.report import Difference
from phlox.host.dtypes import HOST_DTYPES
from phlox.module import Module
from phlox.tensor import Tensor, tensor
from phlox.transform.tree import leaves_of

TOLERANCES = {"f64": 1e-6, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}
"""The largest relative difference that counts as rounding, by the float dtype of the model."""
_INTEGERS = ((0, 10), (0, 2), (0, 1), (1, 10), (1, 2))
"""Bounds of integers to try until the model takes them: some models use them as indices, or divide by them."""
_SMALL = 1 << 26
"""A model with fewer bytes than this is computed in f64 as the reference."""


def reference_model(model: Module, device: Device) -> tuple[Module, Device]:
    """The model, which is in inference mode, in f64 on NumPy if it is small; otherwise unchanged."""
    engine = engine_of(device.backend)
    total = sum(param.val().size for param in model.params()) * 8
    if engine.float_element not in ("f32", "f64") or total > _SMALL:
        return model, device
    wide = type(cast(Any, backend_by_name("numpy")))(float="f64", int=engine.int_element)
    return model.to_device(wide), wide.device()


def case(
    model: Module, arguments: Arguments, sizes: Mapping[str, int], device: Device, refused: list[Exception]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]] | None:
    """Values for the inputs, and the model's outputs for them; None if it does not take these sizes."""
    for bounds in _INTEGERS:
        rng = np.random.default_rng(0)
        values = [_values(entry, sizes, rng, bounds) for entry in arguments.inputs]
        try:
            return values, outputs_of(model, arguments, values, device)
        except (PhloxError, ZeroDivisionError) as error:
            refused.append(error)
    return None


def outputs_of(
    model: Module, arguments: Arguments, values: Sequence[Any], device: Device
) -> list[np.ndarray[Any, Any]]:
    """The model's outputs for these inputs, floats in f64."""
    remaining = iter(values)
    args, kwargs = arguments.filled(lambda entry: tensor(next(remaining), kind=entry.spec.kind, device=device))
    with default_device(device):
        outputs = cast("Callable[..., Any]", model)(*args, **kwargs)
    return [_float(x) for _, x in leaves_of(outputs, Tensor)]


def _float(x: Any) -> np.ndarray[Any, Any]:
    array = x.numpy()
    return array.astype(np.float64) if x.kind is Float else array


def _values(
    entry: Input, sizes: Mapping[str, int], rng: np.random.Generator, bounds: tuple[int, int]
) -> np.ndarray[Any, Any]:
    shape = entry.spec.with_sizes(sizes).shape
    if entry.example is not None:
        return entry.example
    match entry.spec.kind.name:
        case "float":
            return rng.normal(size=shape).astype(np.float32)
        case "int":
            return rng.integers(*bounds, shape)
        case _:
            return rng.random(shape) < 0.7


def feeds(arguments: Arguments, values: Sequence[Any], backend: Backend) -> dict[str, Any]:
    """The inputs by name, with the element types of the engine."""
    engine = engine_of(backend)
    return {
        x.name: np.asarray(value).astype(
            HOST_DTYPES[{"float": engine.float_element, "int": engine.int_element, "bool": "bool"}[x.spec.kind.name]]
        )
        for x, value in zip(arguments.inputs, values, strict=True)
    }


class Limit(NamedTuple):
    """The largest difference of a file from the model that is accepted."""

    relative: float
    """Relative to the largest element of an output."""
    absolute: float
    """A few roundings of 1.0: the results of saturated functions, whose range is one, differ by these."""
    rounding: float
    """The relative difference between the model and itself in f64 that counts as rounding."""


def limit_of(element: str, tolerance: float | None) -> Limit:
    """The limit for a float dtype; if a tolerance is given, it is the only limit."""
    rounding = TOLERANCES[element]
    if tolerance is not None:
        return Limit(tolerance, 0.0, rounding)
    eps = float(cast("Any", ml_dtypes.finfo(HOST_DTYPES[element])).eps)
    return Limit(rounding, 4.0 * eps, rounding)


def differences(
    call: str,
    sizes: Mapping[str, int],
    outputs: Sequence[str],
    expected: Sequence[np.ndarray[Any, Any]],
    actual: Sequence[Any],
    limit: Limit,
    own: Callable[[], Sequence[np.ndarray[Any, Any]]],
) -> list[Difference]:
    """The difference of each result from the expected one; `ExportError` if it is over the limit.

    Where the model's own result in its own precision (`own`) differs from the expected one by more than rounding, since
    its range is smaller, its own result is accepted, too.
    """
    results: list[Difference] = []
    itself: Sequence[np.ndarray[Any, Any]] | None = None
    for index, (title, want) in enumerate(zip(outputs, expected, strict=True)):
        have = np.asarray(actual[index])
        try:
            results.append(_difference(call, sizes, title, want, have, limit))
        except ExportError:
            itself = own() if itself is None else itself
            nearer = itself[index]
            if not have.shape == want.shape == nearer.shape:
                raise
            with np.errstate(all="ignore"):
                exact = have.astype(np.float64)
                size = np.maximum(np.abs(nearer), np.abs(want))
                away = ~np.isfinite(size) | ~(np.abs(nearer - want) <= limit.rounding * size)
                away &= (exact == nearer) | ~((exact == want) | (np.abs(exact - want) <= np.abs(exact - nearer)))
            results.append(_difference(call, sizes, title, np.where(away, nearer, want), have, limit))
    return results


def _difference(
    call: str,
    sizes: Mapping[str, int],
    output: str,
    want: np.ndarray[Any, Any],
    have: np.ndarray[Any, Any],
    limit: Limit,
) -> Difference:
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    where = f"{call}: output {output}" + (f" at {at}" if at else "")
    if want.shape != have.shape:
        raise ExportError(f"{where}: the file gives shape {have.shape}, and the model {want.shape}")
    want, have = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(want - have)
    apart = np.where((want == have) | (np.isnan(want) & np.isnan(have)), 0.0, apart)
    absolute = float(apart.max(initial=0.0))
    finite = np.abs(want[np.isfinite(want)])
    largest = float(finite.max(initial=0.0))
    relative = absolute / largest if largest else absolute
    if not relative <= limit.relative and not absolute <= limit.absolute:
        worst = tuple(
            map(int, np.unravel_index(int(np.nanargmax(np.where(np.isnan(apart), np.inf, apart))), apart.shape))
        )
        raise ExportError(
            f"{where}: the file differs from the model by {absolute:.3g} ({relative:.3g} of the largest element), at "
            f"{worst}: {have[worst]:.6g} and {want[worst]:.6g}; no file is left. A larger tolerance=... accepts it"
        )
    return Difference(dict(sizes), output, absolute, relative)
