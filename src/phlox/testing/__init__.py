"""Public tools for testing.

`check_backend` runs the whole conformance suite on a backend. `check_gradients` compares autodiff with finite
differences. `assert_close` compares values with a tolerance for the dtype. `phlox.testing.strategies` generates tensors
for Hypothesis. See docs/testing.md.
"""

from __future__ import annotations

from phlox.lazy import lazily
from phlox.testing.close import assert_close
from phlox.testing.gradients import check_gradients
from phlox.testing.report import Failure, Report
from phlox.testing.suite import PARTS, check_backend
from phlox.testing.tolerances import TOLERANCES, Tolerance, tolerance_of

__all__ = [
    "PARTS", "TOLERANCES", "Failure", "Report", "Tolerance", "assert_close", "check_backend", "check_gradients",
    "tolerance_of",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})
