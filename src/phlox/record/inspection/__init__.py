"""Inspection of records: summaries, and differences between two records."""

from __future__ import annotations
