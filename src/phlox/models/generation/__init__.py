"""Text generation with a causal model: `generate` returns whole texts, `stream` gives each token as it is drawn.

`prompts` pads prompts of different lengths to one batch, `processing` changes logits by what a text contains,
`sampling` draws a token from them, `ends` finds where texts end, `decoding` is the loop over the tokens, with a cache
of keys and values, `options` checks all options, and `texts` has the two functions.
"""

from __future__ import annotations

from phlox.models.generation.ends import StopText
from phlox.models.generation.grammar import Grammar
from phlox.models.generation.options import GenerationOptions
from phlox.models.generation.prefix_cache import PrefixCache
from phlox.models.generation.texts import Completion, Generated, Step, generate, stream

__all__ = [
    "Completion",
    "Generated",
    "GenerationOptions",
    "Grammar",
    "PrefixCache",
    "Step",
    "StopText",
    "generate",
    "stream",
]
