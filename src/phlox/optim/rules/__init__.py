"""The optimizers, one file each: how one parameter is updated."""

from __future__ import annotations
