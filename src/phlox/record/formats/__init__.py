"""File formats of records, one module each."""

from __future__ import annotations
