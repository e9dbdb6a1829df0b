"""The formats that records are read and written in, one file each."""

from __future__ import annotations
