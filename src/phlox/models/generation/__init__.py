"""Text generation with a causal model: `generate` returns whole texts, `stream` gives each token as it is drawn.

`prompts` pads prompts of different lengths to one batch, `sampling` draws a token from logits, `decoding` is the
loop over the tokens, with a cache of keys and values.
"""

from __future__ import annotations

from phlox.models.generation.decoding import GenerationOptions, generate, stream

__all__ = ["GenerationOptions", "generate", "stream"]
