# pyright: reportArgumentType=false
"""What cannot be normalised says what was tried, on what, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, ShapeError

BACKENDS = [NumPy(), Jax(), Autodiff(Torch())]


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def zeros(device: Any, *shape: int) -> Any:
    return px.zeros(shape, kind=px.Int, device=device)


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    "layer_norm of ints": (lambda d: f.layer_norm(zeros(d, 2, 3)), KindError, ("layer_norm", "x", "Int", ".float()")),
    "layer_norm of a list": (lambda d: f.layer_norm([1.0, 2.0]), KindError, ("layer_norm", "list", "phlox.tensor")),
    "layer_norm gamma": (
        lambda d: f.layer_norm(ones(d, 2, 3), ones(d, 2)),
        ShapeError,
        ("layer_norm", "gamma", "(2,)", "(2, 3)", "(3,)"),
    ),
    "layer_norm beta": (
        lambda d: f.layer_norm(ones(d, 2, 3), beta=ones(d, 2, 2)),
        ShapeError,
        ("layer_norm", "beta", "(2, 2)", "(2, 3)"),
    ),
    "layer_norm axes": (lambda d: f.layer_norm(ones(d, 2, 3), axes=3), ShapeError, ("layer_norm", "3", "(2, 3)")),
    "layer_norm of rank 0": (lambda d: f.layer_norm(ones(d)), ShapeError, ("layer_norm", "()")),
    "rms_norm gamma": (
        lambda d: f.rms_norm(ones(d, 2, 3), ones(d, 4)),
        ShapeError,
        ("rms_norm", "gamma", "(4,)", "(3,)"),
    ),
    "group_norm groups": (lambda d: f.group_norm(ones(d, 2, 4), 3), ShapeError, ("group_norm", "4", "3")),
    "group_norm no groups": (lambda d: f.group_norm(ones(d, 2, 4), 0), ShapeError, ("group_norm", "0")),
    "group_norm rank": (
        lambda d: f.group_norm(ones(d, 2), 1),
        ShapeError,
        ("group_norm", "[n, channels, ...]", "(2,)"),
    ),
    "group_norm gamma": (
        lambda d: f.group_norm(ones(d, 2, 4), 2, ones(d, 2)),
        ShapeError,
        ("group_norm", "gamma", "(2,)", "4"),
    ),
    "instance_norm beta": (
        lambda d: f.instance_norm(ones(d, 2, 4), beta=ones(d, 2)),
        ShapeError,
        ("instance_norm", "beta", "(2,)", "4"),
    ),
    "batch_norm mean": (
        lambda d: f.batch_norm(ones(d, 2, 4), ones(d, 2), ones(d, 4)),
        ShapeError,
        ("batch_norm", "mean", "(2,)", "4"),
    ),
    "batch_norm_train of bools": (
        lambda d: f.batch_norm_train(ones(d, 2, 4).bool()),
        KindError,
        ("batch_norm_train", "Bool", ".float()"),
    ),
    "local_response_norm": (
        lambda d: f.local_response_norm(ones(d, 2, 4), 0),
        ShapeError,
        ("local_response_norm", "0"),
    ),
    "normalize": (lambda d: f.normalize(zeros(d, 2, 4)), KindError, ("normalize", "Int", ".float()")),
    "normalize axis": (lambda d: f.normalize(ones(d, 2, 4), axis=2), ShapeError, ("norm", "2", "(2, 4)")),
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
