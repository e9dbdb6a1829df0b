"""Kernels of our own in C++ for x86 processors, Python beside its source; compiled programs use them."""

from __future__ import annotations
