"""Byte level: files, compression, checksums and archives."""

from __future__ import annotations
