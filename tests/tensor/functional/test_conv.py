"""What convolution says to bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import BackendError, KindError, ShapeError


@pytest.fixture(params=[NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)
def device(request: Any) -> Any:
    return request.param.device()


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def ints(device: Any, *shape: int) -> Any:
    return px.zeros(shape, device=device).int()


Case = tuple[Callable[[Any], Any], tuple[str, ...]]

CASES: dict[str, Case] = {
    "rank": (lambda d: f.conv1d(ones(d, 2, 3), ones(d, 4, 3, 2)),
             ("conv1d", "[n, channels, length]", "(2, 3)", "(4, 3, 2)")),
    "rank of the weight": (lambda d: f.conv3d(ones(d, 1, 1, 3, 3, 3), ones(d, 1, 1, 2, 2)),
                           ("conv3d", "kd, kh, kw", "(1, 1, 2, 2)")),
    "channels": (lambda d: f.conv1d(ones(d, 1, 4, 5), ones(d, 2, 3, 2)), ("conv1d", "(1, 4, 5)", "3 channels")),
    "groups": (lambda d: f.conv1d(ones(d, 1, 4, 5), ones(d, 3, 2, 2), groups=2), ("conv1d", "2 groups", "3 output")),
    "no groups": (lambda d: f.conv1d(ones(d, 1, 4, 5), ones(d, 3, 4, 2), groups=0), ("conv1d", "0 groups")),
    "bias": (lambda d: f.conv1d(ones(d, 1, 4, 5), ones(d, 3, 4, 2), ones(d, 2)), ("conv1d", "(2,)", "3 output")),
    "kernel": (lambda d: f.conv2d(ones(d, 1, 1, 4, 4), ones(d, 1, 1, 3, 2), dilation=2),
               ("conv2d", "(3, 2)", "(5, 3)", "larger", "(4, 4)")),
    "kernel of nothing": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 0)), ("conv1d", "(0,)", "at least 1")),
    "stride": (lambda d: f.conv2d(ones(d, 1, 1, 4, 4), ones(d, 1, 1, 2, 2), stride=(1, 2, 3)),
               ("conv2d", "stride", "one or 2 integers", "(1, 2, 3)")),
    "dilation": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 2), dilation=0),
                 ("conv1d", "dilation", "at least 1", "0")),
    "half a stride": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 2), stride=cast(int, 0.5)),
                      ("conv1d", "stride", "0.5")),
    "negative padding": (lambda d: f.conv2d(ones(d, 1, 1, 4, 4), ones(d, 1, 1, 2, 2), padding=(1, -1)),
                         ("conv2d", "padding", "(1, -1)", "(before, after)")),
    "a pair for one axis": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 2), padding=(2, 0)),
                            ("conv1d", "padding", "((1, 2),)", "(2, 0)")),
    "a padding of three": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 2), padding=((1, 2, 3),)),
                           ("conv1d", "padding", "(1, 2, 3)")),
    "a padding by another name": (lambda d: f.conv1d(ones(d, 1, 1, 4), ones(d, 1, 1, 2), padding="full"),
                                  ("conv1d", "padding", "'full'", '"same"')),
    "transposed rank": (lambda d: f.conv_transpose2d(ones(d, 1, 2, 3), ones(d, 2, 1, 2, 2)),
                        ("conv_transpose2d", "(1, 2, 3)", "[channels, out / groups")),
    "transposed channels": (lambda d: f.conv_transpose1d(ones(d, 1, 2, 3), ones(d, 3, 1, 2)),
                            ("conv_transpose1d", "3 channels", "(1, 2, 3)")),
    "transposed groups": (lambda d: f.conv_transpose1d(ones(d, 1, 3, 3), ones(d, 3, 1, 2), groups=2),
                          ("conv_transpose1d", "2 groups", "divisible")),
    "transposed bias": (lambda d: f.conv_transpose1d(ones(d, 1, 4, 3), ones(d, 4, 1, 2), ones(d, 1), groups=2),
                        ("conv_transpose1d", "(1,)", "2 output")),
    "transposed padding by name": (lambda d: f.conv_transpose1d(ones(d, 1, 2, 3), ones(d, 2, 1, 2), padding="same"),
                                   ("conv_transpose1d", "'same'", "integers")),
    "output_padding": (lambda d: f.conv_transpose1d(ones(d, 1, 2, 3), ones(d, 2, 1, 2), stride=2, output_padding=2),
                       ("conv_transpose1d", "output_padding", "(2,)", "less than the stride")),
    "transposed to nothing": (lambda d: f.conv_transpose1d(ones(d, 1, 2, 2), ones(d, 2, 1, 2), padding=2),
                              ("conv_transpose1d", "(-1,)", "at least 1")),
    "unfold rank": (lambda d: f.unfold(ones(d, 2, 3), 2), ("unfold", "(2, 3)", "spatial")),
    "unfold window": (lambda d: f.unfold(ones(d, 1, 1, 2, 3), 3), ("unfold", "(3, 3)", "larger", "(2, 3)")),
    "fold columns": (lambda d: f.fold(ones(d, 1, 4, 5), (3, 3), 2), ("fold", "channels * 4, 4", "(1, 4, 5)")),
    "fold channels": (lambda d: f.fold(ones(d, 1, 6, 4), (3, 3), 2), ("fold", "channels * 4, 4", "(1, 6, 4)")),
    "fold size": (lambda d: f.fold(ones(d, 1, 4, 4), cast(Any, 3), 2), ("fold", "size", "sequence", "3")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_shapes_fit(case: str, device: Any) -> None:
    call, parts = CASES[case]
    with pytest.raises(ShapeError) as caught:
        call(device)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_kinds_and_backends(device: Any) -> None:
    x, w = ones(device, 1, 1, 3), ones(device, 1, 1, 2)
    with pytest.raises(KindError, match=r"conv1d.*Int.*\.float\(\)"):
        f.conv1d(x, ints(device, 1, 1, 2))
    with pytest.raises(KindError, match=r"unfold.*Int.*\.float\(\)"):
        f.unfold(ints(device, 1, 1, 3), 2)
    with pytest.raises(BackendError, match="conv1d.*f64"):
        f.conv1d(x, ones(NumPy(float="f64"), 1, 1, 2))
    assert f.conv1d(x, w).shape == (1, 1, 2)


def test_constants_meet_what_is_differentiated() -> None:
    x, w = ones(NumPy(), 1, 1, 3), ones(Autodiff(NumPy()), 1, 1, 2).require_grad()
    y = f.conv1d(x, w)
    assert y.backend is Autodiff(NumPy())
    gradient = w.grad(y.sum().backward())
    assert gradient is not None and gradient.tolist() == [[[2.0, 2.0]]]
