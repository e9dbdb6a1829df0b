# pyright: reportArgumentType=false
"""What cannot be sampled says what was tried, on what, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Autodiff(Torch())]


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def zeros(device: Any, *shape: int) -> Any:
    return px.zeros(shape, kind=px.Int, device=device)


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    "interpolate rank": (lambda d: f.interpolate(ones(d, 2, 3), 4), ShapeError, ("interpolate", "(2, 3)", "spatial")),
    "interpolate mode": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), 4, mode="sinc"),
        RangeError,
        ("interpolate", "sinc", "nearest"),
    ),
    "interpolate axes": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), 4, mode="bilinear"),
        ShapeError,
        ("interpolate", "bilinear", "2", "(1, 2, 3)"),
    ),
    "interpolate both": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), 4, scale_factor=2.0),
        ShapeError,
        ("interpolate", "size", "scale_factor"),
    ),
    "interpolate neither": (
        lambda d: f.interpolate(ones(d, 1, 2, 3)),
        ShapeError,
        ("interpolate", "size", "scale_factor"),
    ),
    "interpolate zero": (lambda d: f.interpolate(ones(d, 1, 2, 3), 0), ShapeError, ("interpolate", "positive", "(0,)")),
    "interpolate shrinks away": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), scale_factor=0.1),
        ShapeError,
        ("interpolate", "positive", "(0,)"),
    ),
    "interpolate no pixels": (lambda d: f.interpolate(ones(d, 1, 2, 0), 3), ShapeError, ("interpolate", "(0,)")),
    "interpolate factor": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), scale_factor=-1.0),
        RangeError,
        ("interpolate", "scale_factor", "-1.0"),
    ),
    "interpolate sizes": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), (4, 5)),
        ShapeError,
        ("interpolate", "size", "(4, 5)"),
    ),
    "interpolate corners": (
        lambda d: f.interpolate(ones(d, 1, 2, 3), 4, align_corners=True),
        RangeError,
        ("interpolate", "align_corners", "nearest"),
    ),
    "interpolate ints": (lambda d: f.interpolate(zeros(d, 1, 2, 3), 4), KindError, ("interpolate", "Int", ".float()")),
    "grid_sample shapes": (
        lambda d: f.grid_sample(ones(d, 1, 2, 3, 4), ones(d, 1, 2, 3, 3)),
        ShapeError,
        ("grid_sample", "(1, 2, 3, 4)", "(1, 2, 3, 3)"),
    ),
    "grid_sample batch": (
        lambda d: f.grid_sample(ones(d, 1, 2, 3, 4), ones(d, 2, 2, 3, 2)),
        ShapeError,
        ("grid_sample", "(2, 2, 3, 2)"),
    ),
    "grid_sample mode": (
        lambda d: f.grid_sample(ones(d, 1, 2, 3, 4), ones(d, 1, 2, 3, 2), mode="area"),
        RangeError,
        ("grid_sample", "area", "bilinear"),
    ),
    "grid_sample cubic volume": (
        lambda d: f.grid_sample(ones(d, 1, 2, 3, 4, 5), ones(d, 1, 2, 3, 4, 3), mode="bicubic"),
        RangeError,
        ("grid_sample", "bicubic"),
    ),
    "grid_sample padding": (
        lambda d: f.grid_sample(ones(d, 1, 2, 3, 4), ones(d, 1, 2, 3, 2), padding_mode="wrap"),
        RangeError,
        ("grid_sample", "wrap", "border"),
    ),
    "grid_sample no pixels": (
        lambda d: f.grid_sample(ones(d, 1, 2, 0, 4), ones(d, 1, 2, 3, 2)),
        ShapeError,
        ("grid_sample", "no pixels"),
    ),
    "affine_grid": (
        lambda d: f.affine_grid(ones(d, 1, 2, 3), (2, 1, 4, 4)),
        ShapeError,
        ("affine_grid", "(1, 2, 3)", "(2, 1, 4, 4)"),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_errors(case: str, backend: Any) -> None:
    call, error, words = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
