"""GPT-2 in the files of Hugging Face: fused projections, and weights in Phlox's layout."""

from __future__ import annotations

from typing import Any, ClassVar

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename, split, transpose
from phlox.interop.huggingface.family import Family
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, Settings
from phlox.models import GptConfig

_PAIRS = (
    ("attn.c_proj", "attention.out"),
    ("mlp.c_fc", "up"),
    ("mlp.c_proj", "down"),
)
_FUSED = ("query", "key", "value")


class Gpt2(Family):
    """`Gpt` as GPT2LMHeadModel. GPT2Model, which has no head, is loaded if the head is the embedding's transpose."""

    model_type = "gpt2"
    configs = (GptConfig,)
    architectures = ("GPT2LMHeadModel", "GPT2Model")
    prefix = "transformer"
    unsupported = (
        ("scale_attn_weights", True, "attention scores would not be divided by the square root of the head width"),
        ("is_causal", True, "each token would see all others"),
        ("scale_attn_by_inverse_layer_idx", False, "each layer would divide its attention scores by its index"),
    )

    other_names: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    # n_ctx is a former name of n_positions; the summary is another head's; attention in f32 is more precise.
    harmless = frozenset({
        "n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    })  # fmt: skip

    def config_from(self, settings: Settings, architecture: str) -> GptConfig:
        """See `Family.config_from`."""
        tied = settings.flag("tie_word_embeddings", True)
        if architecture == "GPT2Model" and not tied:
            raise ConfigError(
                f"{settings.place}: GPT2Model has no head, and with tie_word_embeddings=False its embedding cannot "
                "replace one; save it as GPT2LMHeadModel"
            )
        dropout = settings.number("resid_pdrop", 0.1)
        embedding, attention = settings.number("embd_pdrop", 0.1), settings.number("attn_pdrop", 0.1)
        return GptConfig(
            vocabulary=settings.whole("vocab_size", 50257),
            context=settings.whole("n_positions", 1024),
            n_layers=settings.whole("n_layer", 12),
            d_model=settings.whole("n_embd", 768),
            n_heads=settings.whole("n_head", 12),
            d_hidden=settings.whole("n_inner", None),
            dropout=dropout,
            embedding_dropout=None if embedding == dropout else embedding,
            attention_dropout=None if attention == dropout else attention,
            tied=tied,
            epsilon=settings.number("layer_norm_epsilon", 1e-5),
            activation=settings.activation("activation_function", "gelu_new"),
            init_std=settings.number("initializer_range", 0.02),
        )

    def settings_of(self, config: GptConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        wrong = {
            "rotary=True": config.rotary,
            "bias=False": not config.bias,
            f"n_kv_heads={config.n_kv_heads}": config.n_kv_heads not in (None, config.n_heads),
        }
        for option, is_there in wrong.items():
            if is_there:
                raise ConfigError(f"a Gpt with {option} cannot be saved as a GPT-2, which does not have this option")
        return {
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": config.vocabulary,
            "n_positions": config.context,
            "n_layer": config.n_layers,
            "n_embd": config.d_model,
            "n_head": config.n_heads,
            "n_inner": config.d_hidden,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout if config.embedding_dropout is None else config.embedding_dropout,
            "attn_pdrop": config.dropout if config.attention_dropout is None else config.attention_dropout,
            "tie_word_embeddings": config.tied,
            "layer_norm_epsilon": config.epsilon,
            "activation_function": ACTIVATION_NAMES[config.activation],
            "initializer_range": config.init_std,
        }

    def adapter(self, config: GptConfig, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        rules: list[Rule] = [rename("wte.weight", "tokens.weight"), rename("wpe.weight", "positions")]
        for theirs, ours in (("h.*.ln_1", "blocks.*.norm_1"), ("h.*.ln_2", "blocks.*.norm_2"), ("ln_f", "norm")):
            rules += [rename(f"{theirs}.weight", f"{ours}.gamma"), rename(f"{theirs}.bias", f"{ours}.beta")]
        for end, axis in (("weight", 1), ("bias", 0)):
            parts = [f"blocks.*.attention.{name}.{end}" for name in _FUSED]
            rules.append(split(f"h.*.attn.c_attn.{end}", parts, axis=axis))
            rules += [rename(f"h.*.{theirs}.{end}", f"blocks.*.{ours}.{end}") for theirs, ours in _PAIRS]
        head = [] if config.tied else [transpose("lm_head.weight", "head.weight")]
        return Adapter([*Adapter(rules).under(prefix, "").rules, *head])

    def n_layers(self, config: GptConfig) -> int:
        """See `Family.n_layers`."""
        return config.n_layers

    def ignored(self, config: GptConfig) -> tuple[str, ...]:
        """See `Family.ignored`: former versions saved the causal mask."""
        return "**.attn.bias", "**.attn.masked_bias"

    def ties(self, config: GptConfig, prefix: str) -> tuple[tuple[str, str], ...]:
        """See `Family.ties`."""
        start = f"{prefix}." if prefix else ""
        return (("lm_head.weight", f"{start}wte.weight"),) if config.tied else ()
