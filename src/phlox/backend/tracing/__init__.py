"""What a program that is being traced needs of every engine: checks of values, scalars, errors of lifetime."""

from __future__ import annotations
