"""All batching rules: how each operation on one example is carried out for a batch."""

from __future__ import annotations

from phlox.batching.build import Rule
from phlox.batching.rules.indexing import INDEXING
from phlox.batching.rules.nn import NN
from phlox.batching.rules.products import PRODUCTS
from phlox.batching.rules.random import RANDOM
from phlox.batching.rules.shape import SHAPE

RULES: dict[str, Rule] = {**SHAPE, **INDEXING, **PRODUCTS, **NN, **RANDOM}
"""An operation without an entry is derived from operations that have one; see the contract."""

FORWARDED = ("float_full", "int_full", "bool_full", "int_arange", "bool_tri")
"""Operations that take no array: their results are the same for all examples."""
