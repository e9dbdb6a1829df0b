"""Llama: a causal transformer with RMS normalization, rotary positions, grouped-query attention and a gated MLP."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.models.decoder import Decoder, DecoderConfig

__all__ = ["Llama", "LlamaConfig"]


class LlamaConfig(DecoderConfig):
    """Hyper-parameters of `Llama`: those of a `Decoder`, whose defaults are a Llama's.

    >>> import phlox as px
    >>> model = LlamaConfig(vocabulary=10, context=8, n_layers=1, d_model=8, n_heads=4, n_kv_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    def init(self, device: DeviceLike | None = None) -> Llama:
        """The model; its parameters are created when they are first used."""
        return Llama(self, device)


class Llama(Decoder):
    """A causal transformer with rotary positions and a gated MLP (Touvron et al. 2023).

    Query heads may share keys and values, as since Llama 2. Weights start normally distributed with standard deviation
    0.02, biases at zero.
    """
