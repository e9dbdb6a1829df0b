"""Reading the random keys of other libraries, such as JAX's, for the streams of Phlox, without importing a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend.pytree import register_with_imported_engines

_readers: list[Callable[[Any], Any]] = []


def register_reader(reader: Callable[[Any], Any]) -> None:
    """Add a function that reads the keys of a library, and its traced integers, which are seeds.

    It returns the two words of a key as integers or, for tracers, an array of three uint32: the words, and the position
    0. It returns None for anything else.
    """
    _readers.append(reader)


def read_key(source: Any) -> Any:
    """The words of a library's key, see `register_reader`; None for anything else."""
    register_with_imported_engines()
    keys = (reader(source) for reader in _readers)
    return next((words for words in keys if words is not None), None)
