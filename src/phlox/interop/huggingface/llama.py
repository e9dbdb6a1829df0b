"""Llama in the files of Hugging Face: rotary pairs half a head apart, as in Phlox, and their scaling."""

from __future__ import annotations

from typing import Any

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename, transpose
from phlox.interop.huggingface.family import Family
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, Settings
from phlox.models import LinearScaling, Llama3Scaling, LlamaConfig

_DENSE = (
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.out"),
    ("mlp.gate_proj", "gate"),
    ("mlp.up_proj", "up"),
    ("mlp.down_proj", "down"),
)


class Llama(Family):
    """`Llama` as LlamaForCausalLM. LlamaModel, without a head, is loaded if the head is the embedding's transpose."""

    model_type = "llama"
    configs = (LlamaConfig,)
    architectures = ("LlamaForCausalLM", "LlamaModel")
    prefix = "model"
    unsupported = (("is_causal", True, "each token would see all others"),)
    # In how many pieces products are computed, and what only some kinds of rotary positions have.
    harmless = frozenset({
        "pretraining_tp", "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings",
    })  # fmt: skip

    def config_from(self, settings: Settings, architecture: str) -> LlamaConfig:
        """See `Family.config_from`."""
        tied = settings.flag("tie_word_embeddings", False)
        if architecture == "LlamaModel" and not tied:
            raise ConfigError(
                f"{settings.place}: LlamaModel has no head, and with tie_word_embeddings=False its embedding cannot "
                "replace one; save it as LlamaForCausalLM"
            )
        context = settings.whole("max_position_embeddings", 2048)
        return LlamaConfig(
            vocabulary=settings.whole("vocab_size", 32000),
            context=context,
            n_layers=settings.whole("num_hidden_layers", 32),
            d_model=settings.whole("hidden_size", 4096),
            n_heads=settings.whole("num_attention_heads", 32),
            n_kv_heads=settings.whole("num_key_value_heads", None),
            d_hidden=settings.whole("intermediate_size", 11008),
            d_head=settings.whole("head_dim", None),
            attention_bias=settings.flag("attention_bias", False),
            hidden_bias=settings.flag("mlp_bias", False),
            tied=tied,
            activation=settings.activation("hidden_act", "silu"),
            epsilon=settings.number("rms_norm_eps", 1e-6),
            attention_dropout=settings.number("attention_dropout", 0.0),
            padding_index=settings.whole("pad_token_id", None),
            init_std=settings.number("initializer_range", 0.02),
            **_rotary(settings, context),
        )

    def settings_of(self, config: LlamaConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        scaling = config.rotary_scaling
        rotary: dict[str, Any] = {"rope_type": "default"}
        if isinstance(scaling, LinearScaling):
            rotary = {"rope_type": "linear", "factor": scaling.factor}
        elif scaling is not None:
            rotary = {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.context,
            }
        # Versions before `rope_parameters` read `rope_theta` and `rope_scaling`.
        former = {"rope_theta": config.rotary_base, "rope_scaling": None if scaling is None else dict(rotary)}
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": config.vocabulary,
            "max_position_embeddings": config.context,
            "num_hidden_layers": config.n_layers,
            "hidden_size": config.d_model,
            "num_attention_heads": config.n_heads,
            "num_key_value_heads": config.n_heads if config.n_kv_heads is None else config.n_kv_heads,
            "intermediate_size": config.hidden_width,
            "head_dim": config.head_width,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.hidden_bias,
            "tie_word_embeddings": config.tied,
            "hidden_act": ACTIVATION_NAMES[config.activation],
            "rms_norm_eps": config.epsilon,
            "attention_dropout": config.attention_dropout,
            "pad_token_id": config.padding_index,
            "initializer_range": config.init_std,
            "rope_parameters": {**rotary, "rope_theta": config.rotary_base},
            **former,
        }

    def adapter(self, config: LlamaConfig, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        rules: list[Rule] = [
            rename("embed_tokens.weight", "tokens.weight"),
            rename("layers.*.input_layernorm.weight", "blocks.*.norm_1.gamma"),
            rename("layers.*.post_attention_layernorm.weight", "blocks.*.norm_2.gamma"),
            rename("norm.weight", "norm.gamma"),
        ]
        for theirs, ours in _DENSE:
            rules.append(transpose(f"layers.*.{theirs}.weight", f"blocks.*.{ours}.weight"))
            rules.append(rename(f"layers.*.{theirs}.bias", f"blocks.*.{ours}.bias"))
        head = [] if config.tied else [transpose("lm_head.weight", "head.weight")]
        return Adapter([*Adapter(rules).under(prefix, "").rules, *head])

    def n_layers(self, config: LlamaConfig) -> int:
        """See `Family.n_layers`."""
        return config.n_layers

    def ignored(self, config: LlamaConfig) -> tuple[str, ...]:
        """See `Family.ignored`: former versions saved the rotation frequencies."""
        return ("**.rotary_emb.inv_freq",)

    def ties(self, config: LlamaConfig, prefix: str) -> tuple[tuple[str, str], ...]:
        """See `Family.ties`."""
        start = f"{prefix}." if prefix else ""
        return (("lm_head.weight", f"{start}embed_tokens.weight"),) if config.tied else ()


def _rotary(settings: Settings, context: int) -> dict[str, Any]:
    rotary = settings.table("rope_scaling")
    if rotary is None:
        rotary = settings.table("rope_parameters") or Settings({}, settings.place)
    settings.get("rope_parameters", None)  # newer files have both
    for key, value in rotary.data.items():
        if isinstance(value, dict):
            raise ConfigError(f"{rotary.place}: {key}: rotary positions that differ by layer are not supported")
    for table in (settings, rotary):
        if table.number("partial_rotary_factor", 1.0) != 1.0:
            raise ConfigError(
                f"{table.place}: partial_rotary_factor={table.get('partial_rotary_factor')} is not supported: a part "
                "of each head would not be rotated"
            )
    base = rotary.number("rope_theta", settings.number("rope_theta", 10000.0))
    kind = rotary.text("rope_type", rotary.text("type", "default"))
    scaling = None
    if kind == "linear":
        scaling = LinearScaling(rotary.number("factor"))
    elif kind == "llama3":
        former = rotary.whole("original_max_position_embeddings", context)
        scaling = Llama3Scaling(
            factor=rotary.number("factor"),
            low=rotary.number("low_freq_factor"),
            high=rotary.number("high_freq_factor"),
            context=settings.whole("original_max_position_embeddings", former),
        )
    elif kind != "default":
        raise ConfigError(
            f"{rotary.place}: rotary positions of rope_type={kind!r} are not supported; "
            "supported are: default, linear, llama3"
        )
    return {"rotary_base": base, "rotary_scaling": scaling}
