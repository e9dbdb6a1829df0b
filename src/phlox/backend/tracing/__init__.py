"""Tracing, as far as it is the same on all engines: checks, traced scalars, errors of leaked and donated arrays."""

from __future__ import annotations
