"""What packing does to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from phlox.host.text import table_text
from phlox.module import Module

M = TypeVar("M", bound=Module)
