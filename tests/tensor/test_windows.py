"""Windows against SciPy's, periodic and symmetric, of every length from none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.signal

from phlox import signal
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import ShapeError

THEIRS: dict[str, tuple[Callable[..., Any], dict[str, float], Any]] = {
    "bartlett": (signal.bartlett_window, {}, "bartlett"),
    "hann": (signal.hann_window, {}, "hann"),
    "hamming": (signal.hamming_window, {}, "hamming"),
    "blackman": (signal.blackman_window, {}, "blackman"),
    "kaiser": (signal.kaiser_window, {}, ("kaiser", 12.0)),
    "kaiser 5": (signal.kaiser_window, {"beta": 5.0}, ("kaiser", 5.0)),
    "gaussian": (signal.gaussian_window, {"std": 1.7}, ("gaussian", 1.7)),
}


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("name", THEIRS)
def test_windows(name: str, n: int, periodic: bool) -> None:
    window, options, theirs = THEIRS[name]
    found = window(n, periodic=periodic, device=NumPy(float="f64"), **options).numpy()
    np.testing.assert_allclose(found, scipy.signal.get_window(theirs, n, fftbins=periodic), atol=1e-15)


@pytest.mark.parametrize("device", [NumPy(), Jax(), Torch()], ids=repr)
def test_they_are_on_the_device_asked_for(device: Any) -> None:
    assert signal.hann_window(8, device=device).backend == device
    np.testing.assert_array_equal(signal.rectangular_window(3, device=device).numpy(), np.ones(3))


@pytest.mark.parametrize("name", THEIRS)
def test_none_and_fewer(name: str) -> None:
    window, options, _ = THEIRS[name]
    assert window(0, **options).shape == window(0, periodic=False, **options).shape == (0,)
    with pytest.raises(ShapeError, match=f"{window.__name__}: .* must not be negative, got -1"):
        window(-1, **options)


def test_a_gaussian_of_no_width() -> None:
    with pytest.raises(ShapeError, match=r"gaussian_window: std must be positive, got 0\.0"):
        signal.gaussian_window(3, std=0.0)
