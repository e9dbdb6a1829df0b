"""Arrays without values, on any backend: `Abstract(B)`, and counting of its operations."""

from __future__ import annotations

from phlox.lazy import lazily
from phlox.transform.abstract.counting import Work, counted
from phlox.transform.abstract.decorator import Abstract, abstracted

__all__ = ["Abstract", "Work", "abstracted", "counted"]

__getattr__, __dir__ = lazily(__name__, {})
