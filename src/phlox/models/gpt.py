"""GPT: a causal transformer that predicts the next token."""

from __future__ import annotations

from typing import Any

from phlox.backend import DeviceLike
from phlox.models.causal import CausalCache, CausalConfig
from phlox.models.decoder import Decoder, DecoderConfig
from phlox.models.parts import check_heads
from phlox.nn.activation import ActivationName

__all__ = ["Gpt", "GptConfig"]

_SHARED = (
    "vocabulary", "context", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_hidden", "tied", "epsilon",
    "activation", "dropout", "init_std",
)  # fmt: skip
"""Fields of the same name in both configs."""

GptCache = CausalCache
"""The keys and values of the previous tokens: one cache for each layer."""


class GptConfig(CausalConfig):
    """Hyper-parameters of `Gpt`.

    >>> import phlox as px
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    dropout: float = 0.0
    """The dropout rate of the embeddings, of the attention weights, and of the output of each block."""
    bias: bool = True
    """Whether linear layers and normalizations have a bias. The head has none."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""
    rotary: bool = False
    """Whether positions use rotary encoding instead of a learned embedding."""
    embedding_dropout: float | None = None
    """The dropout rate of the embeddings; by default `dropout`."""
    attention_dropout: float | None = None
    """The dropout rate of the attention weights; by default `dropout`."""
    epsilon: float = 1e-5
    """The epsilon of the normalizations."""
    activation: ActivationName = "gelu_tanh"
    init_std: float = 0.02
    """The standard deviation of the initial weights."""

    def validate(self) -> None:
        super().validate()
        check_heads(self.d_model, n_heads=self.n_heads)
        if self.rotary and self.d_model // self.n_heads % 2:
            raise ValueError(f"rotary needs heads of even width, got {self.d_model // self.n_heads}")

    def decoder(self) -> DecoderConfig:
        """The same as the config of a `Decoder`."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        for name in ("embedding_dropout", "attention_dropout"):
            rate = getattr(self, name)
            shared[name] = self.dropout if rate is None else rate
        return DecoderConfig(
            **shared,
            norm="layer",
            norm_bias=self.bias,
            positions="rotary" if self.rotary else "learned",
            attention_bias=self.bias,
            hidden_bias=self.bias,
            gated=False,
            scaled_init=True,
        )

    def init(self, device: DeviceLike | None = None) -> Gpt:
        """The model; its parameters are created when they are first used."""
        return Gpt(self, device)


class Gpt(Decoder):
    """A causal transformer with pre-normalization (Radford et al. 2019).

    Weights are initialized as in GPT-2: normal with standard deviation 0.02, divided by sqrt(2 n_layers) for layers
    whose result is added to the residual stream. Biases start at zero.
    """

    config: Any  # a GptConfig

    def __init__(self, config: GptConfig, device: DeviceLike | None = None) -> None:
        super().__init__(config.decoder(), device)
        self.config = config
