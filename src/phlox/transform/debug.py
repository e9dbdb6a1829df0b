"""`phlox.debug`: finding what is wrong inside compiled functions."""

from __future__ import annotations

from phlox.backend.checks import checks

__all__ = ["checks"]
