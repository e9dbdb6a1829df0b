"""One causal transformer for all families: what differs between them is in its config."""

from __future__ import annotations

import math
from typing import Any, Literal

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.models.blocks import FeedForwardBlock, norm_of
from phlox.models.causal import CausalConfig, CausalModel, Tokens
from phlox.models.parts import check_counts, check_heads, dense
from phlox.models.rotary_scaling import RotaryScaling, ScaledRotaryEncoding
from phlox.module import Param
from phlox.nn import (
    Dropout,
    Embedding,
    KeyValueCache,
    LatentAttention,
    MixtureOfExperts,
    MultiHeadAttention,
    Normal,
    RotaryEncoding,
    Routing,
    balance_loss,
)
from phlox.nn.activation import ActivationName
from phlox.tensor import Tensor
from phlox.tensor.functional.loss_weight import with_term

__all__ = ["Decoder", "DecoderConfig", "ExpertsConfig", "LatentConfig"]


class LatentConfig(Config):
    """The sizes of multi-head latent attention, see `LatentAttention`."""

    kv_rank: int
    d_content: int
    d_rotary: int
    d_value: int
    q_rank: int | None = None

    def validate(self) -> None:
        check_counts(**self.to_dict())


class ExpertsConfig(Config):
    """The mixture of experts of a `Decoder`, see `MixtureOfExperts` for what is not said here."""

    n_experts: int
    top_k: int
    d_hidden: int | None = None
    """The width of the hidden layer of an expert; by default that of the model."""
    layers: tuple[int, ...] | None = None
    """The layers that have experts; by default all. The others have one feed-forward network."""
    balance: float = 0.0
    """The factor of `balance_loss` in the loss of the model."""
    d_shared: int | None = None
    shared_scale: bool = False
    bias: bool = False
    limit: float | None = None
    alpha: float = 1.702

    # The router
    scores: Literal["softmax", "sigmoid", "selected"] = "softmax"
    renormalized: bool = True
    scale: float = 1.0
    n_groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "two_best"] = "best"
    router_bias: bool = False
    correction: bool = False

    def validate(self) -> None:
        check_counts(n_experts=self.n_experts, top_k=self.top_k, d_hidden=self.d_hidden, d_shared=self.d_shared)
        if self.group_score == "two_best" and self.n_experts < 2 * self.n_groups:
            raise ValueError(f"{self.n_groups} groups need two experts each, and there are {self.n_experts} experts")


class DecoderConfig(CausalConfig):
    """Hyper-parameters of `Decoder`. The defaults are those of a small Llama.

    >>> import phlox as px
    >>> model = DecoderConfig(vocabulary=10, context=8, n_layers=1, d_model=8, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    family: str = ""
    """The name of the family whose files hold such a model, as in `config.json` ("qwen3"); it changes nothing else."""
    d_head: int | None = None
    """The width of a head; by default d_model / n_heads."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""

    # Normalization
    norm: Literal["rms", "layer"] = "rms"
    norm_place: Literal["before", "after", "both"] = "before"
    """Where each half of a block is normalized: its input, its result, or both."""
    norm_bias: bool = True
    """Whether layer norms have a bias."""
    norm_offset: float = 0.0
    """See `RmsNorm`."""
    epsilon: float = 1e-6
    parallel: bool = False
    """Whether both halves of a block have the same input, and their results are added together."""

    # Positions
    positions: Literal["rotary", "learned", "none"] = "rotary"
    interleaved: bool = False
    """See `RotaryEncoding`."""
    rotary_base: float = 10000.0
    """See `RotaryEncoding`."""
    rotary_scaling: RotaryScaling | None = None
    """How positions beyond the context of the original training are encoded, if they are."""
    d_rotary: int | None = None
    """How many elements of each head are rotated; by default all."""
    local_rotary_base: float | None = None
    """The base of layers with a window, which is not scaled; by default they are as the others."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers without rotary positions."""

    # Attention
    attention_bias: bool = False
    """Whether the projections of queries, keys and values have a bias."""
    out_bias: bool | None = None
    """Whether the projection of the result has one; by default as `attention_bias`."""
    query_norm: Literal["heads", "all"] | None = None
    """A normalization of queries and keys, see `MultiHeadAttention`."""
    attention_scale: float | None = None
    """The factor of the scores; by default 1 / sqrt(d_head)."""
    attention_cap: float | None = None
    """See `phlox.nn.attention`."""
    sinks: bool = False
    """See `phlox.nn.attention`."""
    window: int | None = None
    """To how many tokens a token attends, in layers with a window."""
    window_layers: tuple[int, ...] | None = None
    """These layers; by default all, if there is a window."""
    latent: LatentConfig | None = None
    """The sizes of multi-head latent attention, if keys and values are expanded from a latent (DeepSeek)."""

    # Feed-forward
    gated: bool = True
    """Whether a gate scales the hidden layer (Shazeer 2020)."""
    activation: ActivationName = "silu"
    """The activation of the gate or, without one, of the hidden layer."""
    hidden_bias: bool = False
    experts: ExpertsConfig | None = None
    """The mixture of experts in place of the feed-forward network, if there is one."""

    # Ends
    embedding_scale: float = 1.0
    """The factor of the embeddings."""
    head_bias: bool = False
    logits_cap: float | None = None
    """Logits l become cap * tanh(l / cap)."""
    padding_index: int | None = None
    """The token whose embedding starts at zero and is not trained, if there is one."""

    # Training
    dropout: float = 0.0
    """The dropout rate of the result of each half of a block."""
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    """The dropout rate of the attention weights."""
    init_std: float = 0.02
    """The standard deviation of the initial weights."""
    scaled_init: bool = False
    """Whether it is divided by sqrt(2 n_layers) in layers whose result is added to the residual stream, as in GPT-2."""

    def validate(self) -> None:
        super().validate()
        if self.latent is None and self.d_head is None:
            check_heads(self.d_model, n_heads=self.n_heads)
        rotated = self.head_width if self.d_rotary is None else self.d_rotary
        rotated = rotated if self.latent is None else self.latent.d_rotary
        if self.positions == "rotary" and (rotated % 2 or not 2 <= rotated <= self.head_width):
            name = "d_head" if self.d_rotary is None else "d_rotary"
            raise ValueError(f"{name} must be even for rotary positions and at most the width of a head, got {rotated}")
        for name, layers in (
            ("window_layers", self.window_layers or ()),
            ("unrotated_layers", self.unrotated_layers),
            ("experts.layers", (self.experts and self.experts.layers) or ()),
        ):
            wrong = [layer for layer in layers if not 0 <= layer < self.n_layers]
            if wrong:
                raise ValueError(f"{name} names layer {wrong[0]}, and there are {self.n_layers}")
        for name, cap in (("attention_cap", self.attention_cap), ("logits_cap", self.logits_cap)):
            if cap is not None and not cap > 0.0:
                raise ValueError(f"{name} must be positive, or None for no cap, got {cap}")

    @property
    def head_width(self) -> int:
        """The width of a head of queries and keys."""
        if self.latent is not None:
            return self.latent.d_content + self.latent.d_rotary
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    def window_of(self, layer: int) -> int | None:
        """The window of a layer."""
        return self.window if self.window_layers is None or layer in self.window_layers else None

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """The experts of a layer, if it has them."""
        experts = self.experts
        return experts if experts is None or experts.layers is None or layer in experts.layers else None

    def init(self, device: DeviceLike | None = None) -> Decoder:
        """The model; its parameters are created when they are first used."""
        return Decoder(self, device)


def attention_of(config: DecoderConfig, layer: int, device: DeviceLike | None) -> MultiHeadAttention:
    """The attention of a layer."""
    width, window, latent = config.head_width, config.window_of(layer), config.latent
    options: dict[str, Any] = {
        "bias": config.attention_bias,
        "dropout": config.attention_dropout,
        "causal": True,
        "scale": config.attention_scale,
        "initializer": Normal(std=config.init_std),
        "out_initializer": Normal(std=last_std(config)),
        "device": device,
    }
    if latent is not None:
        attention = LatentAttention(config.d_model, config.n_heads, **latent.to_dict(), **options)
        attention.rotary = rotary_of(config, latent.d_rotary, None, None)
        return attention
    attention = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=width,
        out_bias=config.out_bias,
        norm=config.query_norm,
        norm_epsilon=config.epsilon,
        norm_offset=config.norm_offset,
        window=window,
        cap=config.attention_cap,
        sinks=config.sinks,
        **options,
    )
    if config.positions == "rotary" and layer not in config.unrotated_layers:
        local_base = None if window is None else config.local_rotary_base
        attention.rotary = rotary_of(config, width, config.d_rotary, local_base)
    return attention


def rotary_of(config: DecoderConfig, width: int, d_rotary: int | None, local_base: float | None) -> RotaryEncoding:
    """The encoding of positions; with `local_base`, that of a layer with another base and no scaling."""
    base = config.rotary_base if local_base is None else local_base
    options: dict[str, Any] = {"base": base, "interleaved": config.interleaved, "d_rotary": d_rotary}
    if config.rotary_scaling is None or local_base is not None:
        return RotaryEncoding(width, **options)
    return ScaledRotaryEncoding(width, scaling=config.rotary_scaling, **options)


def last_std(config: DecoderConfig) -> float:
    """The standard deviation of the weights whose result is added to the residual stream."""
    return config.init_std / math.sqrt(2 * config.n_layers) if config.scaled_init else config.init_std


class DecoderBlock(FeedForwardBlock):
    """Attention, then a feed-forward network, each added to its input: [batch, n, d_model] to the same."""

    def __init__(self, config: DecoderConfig, layer: int, device: DeviceLike | None = None) -> None:
        before, after = config.norm_place != "after", config.norm_place != "before"
        self.norm_1 = norm_of(config, device) if before else None
        self.attention = attention_of(config, layer, device)
        self.norm_1_after = norm_of(config, device) if after else None
        self.norm_2 = norm_of(config, device) if before else None
        self.gate = self.up = self.down = self.experts = None
        if (experts := config.experts_of(layer)) is not None:
            self.experts = mixture_of(config, experts, device)
        else:
            self.create_mlp(config, config.hidden_width, device, last_std=last_std(config))
        self.norm_2_after = norm_of(config, device) if after else None
        self.dropout = Dropout(config.dropout)
        self.parallel = config.parallel

    def __call__(
        self,
        x: Tensor,
        cache: KeyValueCache | None = None,
        *,
        mask: Tensor[Any, Any, Any] | None = None,
        positions: Tokens | None = None,
    ) -> Any:
        """The result and, with a cache, the new cache; without one, the attention has `mask` and `positions`."""
        y, cache, _ = self._run(x, cache, mask, positions)
        return y if cache is None else (y, cache)

    def with_routing(
        self, x: Tensor, *, mask: Tensor[Any, Any, Any] | None = None, positions: Tokens | None = None
    ) -> tuple[Tensor, Routing | None]:
        """The result, and which experts the layer chose, if it has any."""
        y, _, routing = self._run(x, None, mask, positions)
        return y, routing

    def _run(
        self, x: Tensor, cache: KeyValueCache | None, mask: Tensor[Any, Any, Any] | None, positions: Tokens | None
    ) -> tuple[Tensor, KeyValueCache | None, Routing | None]:
        normed = x if self.norm_1 is None else self.norm_1(x)
        if cache is None:
            attended = self.attention(normed, mask=mask, positions=positions)
        else:
            attended, cache = self.attention(normed, cache=cache)
        if self.norm_1_after is not None:
            attended = self.norm_1_after(attended)
        y = x + self.dropout(attended)
        second, routing = x if self.parallel else y, None
        second = second if self.norm_2 is None else self.norm_2(second)
        if self.experts is None:
            hidden = self.mlp(second)
        else:
            hidden, routing = self.experts.with_routing(second)
        if self.norm_2_after is not None:
            hidden = self.norm_2_after(hidden)
        return y + self.dropout(hidden), cache, routing


def mixture_of(config: DecoderConfig, experts: ExpertsConfig, device: DeviceLike | None) -> MixtureOfExperts:
    """The experts of a layer."""
    fields = {name: value for name, value in experts.to_dict().items() if name not in ("d_hidden", "layers", "balance")}
    return MixtureOfExperts(
        config.d_model,
        experts.d_hidden or config.hidden_width,
        activation=config.activation,
        shared_bias=config.hidden_bias,
        initializer=Normal(std=config.init_std),
        out_initializer=Normal(std=last_std(config)),
        device=device,
        **fields,
    )


class Decoder(CausalModel[DecoderConfig, DecoderBlock]):
    """A causal transformer, described by its config.

    Weights start normally distributed with standard deviation `init_std`, biases at zero.
    """

    def __init__(self, config: DecoderConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=config.init_std), config.d_model
        self.config = config
        self.tokens = Embedding(
            config.vocabulary, width, padding_index=config.padding_index, initializer=weights, device=device
        )
        learned = config.positions == "learned"
        self.positions = Param.deferred((config.context, width), weights, device=device) if learned else None
        self.dropout = Dropout(config.embedding_dropout)
        self.blocks = [DecoderBlock(config, layer, device) for layer in range(config.n_layers)]
        self.norm = norm_of(config, device)
        self.head = None
        if not config.tied:
            self.head = dense(width, config.vocabulary, config.init_std, bias=config.head_bias, device=device)
        self.balance = 0.0 if config.experts is None else config.experts.balance
        self.embedding_scale, self.logits_cap = config.embedding_scale, config.logits_cap

    def embed(self, tokens: Tokens, cache: KeyValueCache | None = None, *, positions: Tokens | None = None) -> Tensor:
        """See `CausalModel.embed`."""
        x = self.tokens(tokens)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        if self.positions is not None:
            n, table = tokens.shape[1], self.positions.val()
            positions = positions if cache is None else cache.positions(n)
            if positions is not None:
                x = x + table.take(positions)
            else:
                x = x + (table if n == len(table) else table[:n])
        return self.dropout(x)

    def with_routings(self, tokens: Tokens, *, segments: Tokens | None = None) -> tuple[Tensor, list[Routing]]:
        """`hidden`, and which experts each layer with experts chose for each token."""
        x, options = self._inputs(tokens, segments)
        routings = list[Routing]()
        for block in self.blocks:
            x, routing = block.with_routing(x, **options)
            if routing is not None:
                routings.append(routing)
        return self.norm(x), routings

    def loss(
        self, tokens: Tokens, targets: Tokens, *, segments: Tokens | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """See `CausalModel.loss`; with `balance` in the config of experts, also the loss of their routers."""
        if not self.balance:
            return super().loss(tokens, targets, segments=segments, ignore_index=ignore_index)
        x, routings = self.with_routings(tokens, segments=segments)
        loss = self._loss(x, targets, segments, ignore_index)
        mask = None if segments is None else segments != 0
        balance = balance_loss(routings, mask).from_full_precision(loss) * self.balance
        return with_term(loss, balance)

    def logits(self, x: Tensor) -> Tensor:
        """See `CausalModel.logits`."""
        y = super().logits(x)
        cap = self.logits_cap
        return y if cap is None else (y * (1.0 / cap)).tanh() * cap
