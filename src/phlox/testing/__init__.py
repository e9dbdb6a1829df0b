"""The public kit to test with: closeness at the precision of an element type, and gradients by finite differences."""

from __future__ import annotations

from phlox.testing.close import assert_close
from phlox.testing.gradients import check_gradients
from phlox.testing.tolerances import TOLERANCES, Tolerance, tolerance_of

__all__ = ["TOLERANCES", "Tolerance", "assert_close", "check_gradients", "tolerance_of"]
