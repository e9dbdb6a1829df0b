"""Random keys of the libraries that engines are made of, for the streams of Phlox, which import none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend.pytree import meet_engines

_readers: list[Callable[[Any], Any]] = []


def register_reader(reader: Callable[[Any], Any]) -> None:
    """Announce a function that reads the keys of a library.

    It gives their two words as integers or, where these are tracers in a program, an array of three uint32 (the
    words, and the position 0); None for what is no key.
    """
    _readers.append(reader)


def read_key(source: Any) -> Any:
    """What a library's key says, see `register_reader`; None for what is no key of any."""
    meet_engines()
    found = (reader(source) for reader in _readers)
    return next((words for words in found if words is not None), None)
