"""The hyper-parameters of an `EncoderDecoder`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from phlox.backend import DeviceLike
from phlox.models.parts import TransformerConfig, check_heads
from phlox.nn.activation import ActivationName

if TYPE_CHECKING:
    from phlox.models.encoder_decoder import EncoderDecoder

__all__ = ["EncoderDecoderConfig"]

Positions = Literal["relative", "learned", "frozen", "sinusoidal"]


class EncoderDecoderConfig(TransformerConfig):
    """Hyper-parameters of `EncoderDecoder`. The defaults are those of a small T5 1.1.

    >>> import phlox as px
    >>> model = EncoderDecoderConfig(vocabulary=10, n_layers=1, d_model=8, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]]), px.tensor([[0, 4]])).shape
    (1, 2, 10)
    """

    family: str = ""
    """The name of the family whose files hold such a model, as in `config.json` ("t5"); it changes nothing else."""
    vocabulary: int = 256
    """The number of different tokens; 256 for bytes."""
    context: int = 512
    """The largest number of tokens that the decoder can see."""
    source_context: int = 512
    """The largest number of tokens of a source, or of its vectors after the convolutions; relative positions have no
    such limit."""
    n_features: int | None = None
    """A source is a spectrogram with so many features at a time, as in Whisper; by default it is tokens."""
    n_layers: int = 4
    """The number of layers of the encoder."""
    n_decoder_layers: int | None = None
    """By default as many as the encoder has."""
    d_model: int = 256
    n_heads: int = 4
    n_decoder_heads: int | None = None
    """By default as many as the encoder has."""
    d_head: int | None = None
    """The width of a head; by default d_model / heads."""
    d_hidden: int | None = None
    """The width of the hidden layers of the encoder; by default 4 d_model."""
    d_decoder_hidden: int | None = None
    """The width of those of the decoder; by default as in the encoder."""

    # Normalization
    norm: Literal["rms", "layer"] = "rms"
    norm_place: Literal["before", "after"] = "before"
    """Whether the input of each part of a block is normalized, or the sum of its input and its result."""
    final_norm: bool = True
    """Whether the results of encoder and decoder are normalized."""
    embedding_norm: bool = False
    """Whether the embeddings are normalized."""
    epsilon: float = 1e-6

    # Positions
    positions: Positions = "relative"
    """Relative positions add a learned score to those of each head, by the distance of two tokens (Raffel et al.
    2020); the others are vectors that are added to the embeddings: learned; sinusoids (Vaswani et al. 2017); or a table
    that is not trained and begins as sinusoids, but may be another one in a file."""
    source_positions: Positions | None = None
    """Those of the encoder; by default as in the decoder."""
    position_offset: int = 0
    """The position of the first token: there are so many more learned positions."""
    buckets: int = 32
    """The number of groups of distances with one score each, for relative positions."""
    max_distance: int = 128
    """All larger distances are in one group."""
    shared_buckets: bool = True
    """Whether all layers of the encoder have the same scores, and all layers of the decoder."""

    # Attention
    attention_bias: bool = False
    key_bias: bool | None = None
    """Whether the projections of keys have a bias; by default as `attention_bias`."""
    attention_scale: float | None = 1.0
    """The factor of the scores; None for 1 / sqrt(d_head)."""

    # Feed-forward
    gated: bool = True
    """Whether a gate scales the hidden layer (Shazeer 2020)."""
    activation: ActivationName = "gelu_tanh"
    hidden_bias: bool = False

    # Ends
    embedding_scale: float = 1.0
    """The factor of the embeddings."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""
    logits_scale: float = 1.0
    """The factor of the input of the head."""
    head_bias: bool = False
    """Whether numbers that are not trained are added to the logits."""
    start_token: int = 0
    """The token before the first one of each target."""
    padding_token: int = 0
    """The token in the place of targets that have no loss."""
    train_padding: bool = True
    """Whether its embedding is trained; otherwise it starts at zero."""
    stop_tokens: tuple[int, ...] = ()
    """The tokens that end a text, unless `generate` is given others."""

    # Training
    dropout: float = 0.0
    """The dropout rate of the embeddings and of the result of each part of a block."""
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    """The dropout rate of the results of encoder and decoder."""
    init_std: float = 0.02

    def validate(self) -> None:
        super().validate()
        if self.d_head is None:
            check_heads(self.d_model, n_heads=self.n_heads, n_decoder_heads=self.n_decoder_heads or self.n_heads)
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"buckets must be at least 4, and max_distance more than half of them, got {self.buckets} and "
                f"{self.max_distance}"
            )
        for name in ("start_token", "padding_token"):
            if not 0 <= getattr(self, name) < self.vocabulary:
                raise ValueError(f"{name} must be a token of the vocabulary, got {getattr(self, name)}")

    @property
    def head_width(self) -> int:
        """The width of a head of the encoder."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def decoder_hidden_width(self) -> int:
        """The width of those of the decoder."""
        return self.hidden_width if self.d_decoder_hidden is None else self.d_decoder_hidden

    def init(self, device: DeviceLike | None = None) -> EncoderDecoder:
        """The model; its parameters are created when they are first used."""
        from phlox.models.encoder_decoder import EncoderDecoder

        return EncoderDecoder(self, device)
