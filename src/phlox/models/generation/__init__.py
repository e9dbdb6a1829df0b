"""Text generation with a causal model: `generate` returns whole texts, `stream` gives each token as it is drawn.

`prompts` pads prompts of different lengths to one batch, `processing` changes logits by what a text contains,
`sampling` draws a token from them, `decoding` is the loop over the tokens, with a cache of keys and values, and
`texts` has the two functions.
"""

from __future__ import annotations

from phlox.models.generation.texts import Generated, GenerationOptions, generate, stream

__all__ = ["Generated", "GenerationOptions", "generate", "stream"]
