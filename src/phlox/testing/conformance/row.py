# pyright: standard
"""A row of the table of operations: a call, its samples, and an independent reference."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np


class Library:
    """A reference library, imported when a row that needs it runs; rows must not use it earlier."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


torch: Any = Library("torch")
tf: Any = Library("torch.nn.functional")
sp: Any = Library("scipy.special")
scipy_linalg: Any = Library("scipy.linalg")
scipy_signal: Any = Library("scipy.signal")

Sample = tuple[Any, ...]
"""Arguments: a NumPy array of floats, ints or booleans becomes a tensor; others are passed unchanged."""


@dataclass(frozen=True, eq=False)
class Row:
    """One operation, or one form of its call."""

    name: str
    call: Callable[..., Any]
    """On tensors of Phlox."""
    reference: Callable[..., Any]
    """On NumPy arrays of float64, int32 and bool."""
    samples: tuple[Sample, ...]
    specials: tuple[Sample, ...] = ()
    """Samples for the value only: infinities, NaNs, points without a derivative."""
    torch: Callable[..., Any] | None = None
    """The call on PyTorch tensors in float64, for gradients; without it, finite differences of `reference` are used."""
    constant: tuple[int, ...] = ()
    """Float arguments that are not differentiated."""
    gradient: bool = True
    second: bool = True
    """Are second derivatives compared too?"""
    noisy: bool = False
    """Does NumPy warn? It does if `+`, `-` or `*` overflows or gives NaN; suppressing that would triple their cost."""
    factor: float = 1.0
    """Factor of the tolerance."""
    half: bool = True
    """Is it compared at half precision too? No, if it needs more than three digits internally, or is discontinuous."""

    def __str__(self) -> str:
        return self.name


def normal(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Normal floats that are exact in float32; the same shape gives the same values."""
    rng = np.random.default_rng(zlib.crc32(repr(shape).encode()))
    return np.asarray(rng.normal(size=shape) * scale, np.float32).astype(np.float64)


def other(*shape: int) -> np.ndarray[Any, Any]:
    """Floats different from `normal(*shape)`."""
    return np.asarray(
        np.random.default_rng(zlib.crc32(repr(shape).encode()) + 1).normal(size=shape), np.float32
    ).astype(np.float64)


def positive(*shape: int) -> np.ndarray[Any, Any]:
    """Floats between about 0.3 and 3."""
    return exact(np.exp(np.clip(normal(*shape), -1.2, 1.2)))


def unit(*shape: int) -> np.ndarray[Any, Any]:
    """Floats in (-0.9, 0.9)."""
    return exact(np.tanh(normal(*shape)) * 0.9)


def ints(*shape: int, low: int = -9, high: int = 10) -> np.ndarray[Any, Any]:
    """Integers in [low, high)."""
    return np.asarray(
        np.random.default_rng(zlib.crc32(repr(shape).encode()) + low).integers(low, high, shape), np.int32
    )


def bools(*shape: int) -> np.ndarray[Any, Any]:
    """Booleans."""
    return np.asarray(np.random.default_rng(zlib.crc32(repr(shape).encode())).integers(0, 2, shape), np.bool_)


def exact(values: Any) -> np.ndarray[Any, Any]:
    """Values rounded to float32, as float64."""
    return np.asarray(np.asarray(values, np.float32), np.float64)


def same(
    name: str, call: Callable[..., Any], *samples: Sample, specials: tuple[Sample, ...] = (), **options: Any
) -> Row:
    """A row whose call works on NumPy arrays too, as the reference."""
    return Row(name, call, call, samples, specials, **options)


INF, NAN = float("inf"), float("nan")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1.5, 3.0, -3.0, 20.0, -20.0, INF, -INF, NAN])
SHAPES = ((), (5,), (3, 4), (2, 1, 3), (0,), (2, 0, 3))
"""The shapes of the samples of elementwise operations."""
