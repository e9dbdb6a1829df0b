"""The command line: `phlox`, also as `python -m phlox`."""

from __future__ import annotations

from phlox.cli.main import main

__all__ = ["main"]
