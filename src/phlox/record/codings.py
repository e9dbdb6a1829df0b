"""How words of packed matrices hold codes: those of the contract, for the columns that there are."""

from __future__ import annotations

from phlox.backend.contract.nn.packed import CODINGS as CODINGS
from phlox.backend.contract.nn.packed import pack as words_of
from phlox.backend.contract.nn.packed import unpacked_codes
from phlox.record.dtypes import Array

__all__ = ["CODINGS", "codes_of", "words_of"]


def codes_of(words: Array, bits: int, columns: int) -> Array:
    """The codes of a packed matrix, uint8 or uint16 [rows, columns]."""
    return unpacked_codes(words, bits)[:, :columns]
