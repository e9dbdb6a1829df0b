"""Looking at records: summaries, and how two of them differ."""

from __future__ import annotations
