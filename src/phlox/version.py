"""The version of Phlox: this line is its only place."""

from __future__ import annotations

__version__ = "0.2.0"
