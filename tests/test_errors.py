"""Errors in a notebook: the user's lines, and ours folded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import PhloxError
from phlox.train import Learner


def _loss(output: Any, target: Any) -> Any:
    return nn.mse_loss(output, target[:, :2])  # the shapes differ


def test_a_notebook_shows_the_lines_of_the_user() -> None:
    x = np.ones((4, 3), np.float32)
    with pytest.raises(PhloxError) as caught:
        Learner(nn.Linear(3, 1), optim.SgdConfig(), 0.1, _loss).fit(Loader((x, x), 2), epochs=1, progress=False)
    lines = caught.value._render_traceback_()
    text = "\n".join(lines)
    assert "return nn.mse_loss(output, target[:, :2])" in text and "progress=False)" in text
    assert lines[0].startswith("Traceback") and text.count("calls in phlox") == 2 and "phlox/train" not in text
    assert "ShapeError: mse_loss: prediction of shape (2, 1)" in text and "in step 1: batch 0 of epoch 1" in text
