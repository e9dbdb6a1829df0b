"""Losses, by the names under which they are looked for; see `phlox.functional`."""

from __future__ import annotations

from phlox.tensor.functional import cross_entropy as cross_entropy_loss
from phlox.tensor.functional import mse_loss

__all__ = ["cross_entropy_loss", "mse_loss"]
