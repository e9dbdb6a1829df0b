"""Text generation with a causal model: `generate` returns whole texts, `stream` gives each token as it is drawn.

`prompts` brings prompts of different lengths into one batch, `sampling` draws a token from logits, `decoding` is the
loop over the tokens, with a cache of keys and values.
"""

from __future__ import annotations

from phlox.models.generation.decoding import generate, stream

__all__ = ["generate", "stream"]
