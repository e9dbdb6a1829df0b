"""Window functions for spectral analysis. t goes from 0 to 1 over the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phlox.backend import DeviceLike
from phlox.errors import ShapeError
from phlox.tensor.creation import tensor
from phlox.tensor.tensor import Tensor


def _window_tensor(values: np.ndarray[Any, Any], n: int, periodic: bool, device: DeviceLike | None) -> Tensor:
    """The window as a tensor; a periodic one is a symmetric one of n + 1 samples without the last."""
    if n == 1:
        values = np.ones(1)
    return tensor(values[:n] if periodic else values, device=device)


def _times(name: str, n: int, periodic: bool) -> np.ndarray[Any, Any]:
    """The positions t of the samples, in a window from 0 to 1."""
    if n < 0:
        raise ShapeError(f"{name}: the number of samples must not be negative, got {n}")
    whole = n + 1 if periodic else n
    return np.arange(whole) / (whole - 1) if whole > 1 else np.full(whole, 0.5)


def _cosines(name: str, coefficients: Sequence[float], n: int, periodic: bool, device: DeviceLike | None) -> Tensor:
    """The sum of (-1)^k a_k cos(2 pi k t)."""
    t = _times(name, n, periodic)
    values = sum((-1) ** k * a * np.cos(2.0 * np.pi * k * t) for k, a in enumerate(coefficients))
    return _window_tensor(np.asarray(values, np.float64), n, periodic, device)


def rectangular_window(n: int, *, device: DeviceLike | None = None) -> Tensor:
    """A window of n ones.

    >>> import phlox as px
    >>> px.signal.rectangular_window(3).tolist()
    [1.0, 1.0, 1.0]
    """
    return _window_tensor(np.ones(len(_times("rectangular_window", n, False))), n, False, device)


def bartlett_window(n: int, *, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Bartlett window, a triangle: 1 - |2 t - 1|; for t see `hann_window`.

    >>> import phlox as px
    >>> px.signal.bartlett_window(4).numpy().round(4)
    array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _window_tensor(1.0 - np.abs(2.0 * _times("bartlett_window", n, periodic) - 1.0), n, periodic, device)


def hann_window(n: int, *, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Hann window: (1 - cos(2 pi t)) / 2, for n samples of t in [0, 1), or in [0, 1] unless `periodic`.

    >>> import phlox as px
    >>> px.signal.hann_window(4).numpy().round(4)
    array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _cosines("hann_window", (0.5, 0.5), n, periodic, device)


def hamming_window(n: int, *, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Hamming window: 0.54 - 0.46 cos(2 pi t); for t see `hann_window`.

    >>> import phlox as px
    >>> px.signal.hamming_window(4).numpy().round(4)
    array([0.08, 0.54, 1.  , 0.54], dtype=float32)
    """
    return _cosines("hamming_window", (0.54, 0.46), n, periodic, device)


def blackman_window(n: int, *, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Blackman window: 0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t); for t see `hann_window`.

    >>> import phlox as px
    >>> px.signal.blackman_window(4).numpy().round(4)
    array([-0.  ,  0.34,  1.  ,  0.34], dtype=float32)
    """
    return _cosines("blackman_window", (0.42, 0.5, 0.08), n, periodic, device)


def kaiser_window(n: int, *, beta: float = 12.0, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Kaiser window: I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta), for t as in `hann_window` (Kaiser 1974).

    I0 is the modified Bessel function.

    >>> import phlox as px
    >>> px.signal.kaiser_window(4).numpy().round(4)
    array([1.000e-04, 2.157e-01, 1.000e+00, 2.157e-01], dtype=float32)
    """
    t = _times("kaiser_window", n, periodic)
    values = np.i0(beta * np.sqrt(np.maximum(1.0 - (2.0 * t - 1.0) ** 2, 0.0))) / np.i0(beta)
    return _window_tensor(values, n, periodic, device)


def gaussian_window(n: int, *, std: float, periodic: bool = True, device: DeviceLike | None = None) -> Tensor:
    """The Gaussian window: exp(-(i - c)^2 / (2 std^2)) around the centre c; `std` is in samples.

    >>> import phlox as px
    >>> px.signal.gaussian_window(3, std=1.0, periodic=False).numpy().round(4)
    array([0.6065, 1.    , 0.6065], dtype=float32)
    """
    if std <= 0:
        raise ShapeError(f"gaussian_window: std must be positive, got {std}")
    whole = len(_times("gaussian_window", n, periodic))
    offsets = np.arange(whole) - (whole - 1) / 2
    return _window_tensor(np.exp(-0.5 * (offsets / std) ** 2), n, periodic, device)
