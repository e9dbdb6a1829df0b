"""`Module.summary`: a table of a model's layers, their cost and outputs, without running it."""

from __future__ import annotations

from phlox.lazy import lazily
from phlox.module.summary import Memory, Row, Summary
from phlox.transform.summary.summarize import summarize

__all__ = ["Memory", "Row", "Summary", "summarize"]

__getattr__, __dir__ = lazily(__name__, {})
