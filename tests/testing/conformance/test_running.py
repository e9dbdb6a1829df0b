"""Samples and references of a row, rounded to a precision before anything is compared."""

from __future__ import annotations

import numpy as np
import pytest

from phlox.backend import Torch
from phlox.testing.conformance import checks, running
from phlox.testing.conformance.row import Row, normal


def test_rows_are_rounded_to_the_precision() -> None:
    row = Row("third", lambda x: x, lambda x: x, ((np.array([1.0 / 3.0]),), (normal(2),)))
    assert running.key(row, 0, "f64") == "f64" and running.key(row, 0, "f32") == "f32"
    assert running.key(row, 1, "f32") == "f64" and running.key(row, 1, "bf16") == "bf16"
    assert running.reference_at(row, 0, "bf16")[0] == 0.333984375
    checks.values(row, Torch(float="bf16"), 0)
    assert running.rounded_sample((np.array([1e6]),), "f16") is None
    with pytest.raises(checks.NotCompared, match="too large for f16"):
        checks.values(Row("big", lambda x: x, lambda x: x, ((np.array([1e6]),),)), Torch(float="f16"), 0)
