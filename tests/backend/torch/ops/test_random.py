"""Draws of true and false in programs on PyTorch: those of NumPy, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.threefry import generator as host
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.kernels import bernoulli
from phlox.backend.torch.ops import random
from phlox.errors import RangeError

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
KEY = np.array([3152804728, 4217229735, 18], np.uint32)


def drawn(state: Any, shape: tuple[int, ...], threshold: int) -> torch.Tensor:
    """By the operation of a program, at its run."""
    words = torch.from_numpy(state.astype(np.int64))
    return random._operation()(words, "random_bernoulli", shape, torch.bool, threshold, None, True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers the kernel drew, by call."""
    found, original = list[int](), bernoulli.draw

    def counted(state: Any, shape: Any, threshold: int, part: Any) -> torch.Tensor | None:
        found.append(int(np.prod(shape)))
        return original(state, shape, threshold, part)

    monkeypatch.setattr(bernoulli, "draw", counted)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("threshold", [0, 1, 6554, 32768, 65535, 65536])
def test_every_bit_is_that_of_numpy(threshold: int, threads: int, calls: list[int]) -> None:
    torch.set_num_threads(threads)
    sizes = [*range(140), 1000, 4097, 100003]
    for n in sizes:
        state = KEY + np.uint32(n)  # also beyond the last word
        np.testing.assert_array_equal(drawn(state, (n,), threshold), host.random_bernoulli(state, (n,), threshold))
    assert calls == sizes


def test_what_cannot_be_drawn_is_refused(calls: list[int]) -> None:
    with pytest.raises(RangeError, match="position 0xFFFFFFFF of a random stream is reserved"):
        drawn(np.array([1, 2, 0xFFFFFFFF], np.uint32), (2, 3), 7)
    with pytest.raises(RangeError, match="65537"):
        drawn(KEY, (2, 3), 65537)
    assert calls == [6, 6]


def test_other_draws_and_programs_without_code_are_left_to_numpy(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = torch.from_numpy(KEY.astype(np.int64))
    uniform = random._operation()(words, "random_uniform", (5,), torch.float32, None, None, False)
    np.testing.assert_array_equal(uniform, host.random_uniform(KEY, (5,), np.float32))
    monkeypatch.setenv(VARIABLE, "none")
    with px.random.stream(5):
        dropped = px.compile(lambda x: nn.dropout(x, 0.3))(px.ones((5,), device=Torch().device()))
    with px.random.stream(5):
        assert (dropped == nn.dropout(px.ones((5,), device=Torch().device()), 0.3)).all().item()
    assert calls == []


def test_a_compiled_step_drops_what_an_eager_one_drops(calls: list[int]) -> None:
    device = Autodiff(Torch()).device()
    x = px.ones((7, 33), device=device)

    def dropped(layer: nn.Dropout, x: px.Tensor) -> px.Tensor:
        return layer(x)

    layer, found = nn.Dropout(0.3), list[Any]()
    for run in (dropped, px.compile(dropped)):
        with px.random.stream(5):
            found.append(run(layer, x).numpy())
    eager, compiled = found
    np.testing.assert_array_equal(compiled, eager)
    assert 0 < (compiled == 0).sum() < compiled.size
    assert calls == [7 * 33]
