"""What tracing has in common on all engines: checks of values, traced scalars, errors of leaked and donated arrays."""

from __future__ import annotations
