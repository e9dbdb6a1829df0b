"""Convolution by PyTorch's kernels, where one of them is not to be called.

Serves: src/phlox/backend/torch/ops/conv.py
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from phlox.backend import Torch

BACKEND: Any = Torch()
_aten: Any = torch.ops.aten


class Calls(TorchDispatchMode):
    """The weight gradients that are asked of PyTorch: the sizes of the windows, and their steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten.convolution_backward.default and args[-1][1]:
            self.seen.append((tuple(args[2].shape), tuple(args[4])))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("channels", [1, 3, 7])
def test_windows_of_one_position_in_steps_never_reach_the_kernel_that_writes_past_its_memory(
    channels: int, stride: int
) -> None:
    rng = np.random.default_rng(channels)
    x, g = rng.normal(size=(2, channels, 8, 9)), rng.normal(size=(2, 5, -(-8 // stride), -(-9 // stride)))
    weight = rng.normal(size=(5, channels, 1, 1))
    steps: tuple[Any, ...] = (stride, stride), ((0, 0), (0, 0)), (1, 1), 1
    saved = torch.tensor(x, dtype=torch.float32), torch.tensor(weight, dtype=torch.float32)
    given = torch.tensor(g, dtype=torch.float32)
    with Calls() as calls:
        dx, dw, _ = BACKEND.conv_backward(saved, given, (True, True, False), *steps)
        again = BACKEND.conv_dw(saved[0], given, weight.shape, *steps)
    expected = np.zeros(x.shape)
    expected[:, :, ::stride, ::stride] = np.einsum("oc,nohw->nchw", weight[:, :, 0, 0], g)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)
    for found in (dw, again):
        np.testing.assert_allclose(
            found[:, :, 0, 0], np.einsum("nohw,nchw->oc", g, x[:, :, ::stride, ::stride]), rtol=1e-4, atol=1e-5
        )
    assert calls.seen == [(weight.shape, (1, 1))] * 2
