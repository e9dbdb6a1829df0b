"""Llama in the files of Hugging Face: rotary pairs half a head apart, as in Phlox, and their scaling."""

from __future__ import annotations

from typing import Any

from phlox.errors import ConfigError
from phlox.interop.adapter import Rule, rename
from phlox.interop.huggingface.family import CausalFamily, Entry, dense
from phlox.interop.huggingface.settings import Settings
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


class Llama(CausalFamily):
    """`Llama` as LlamaForCausalLM. LlamaModel, without a head, is loaded if the head is the embedding's transpose."""

    model_type = "llama"
    configs = (LlamaConfig,)
    architectures = ("LlamaForCausalLM", "LlamaModel")
    prefix = "model"
    embedding = "embed_tokens"
    unsupported = (("is_causal", True, "each token would see all others"),)
    # In how many pieces products are computed, and what only some kinds of rotary positions have.
    harmless = frozenset({
        "pretraining_tp", "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings",
    })  # fmt: skip

    entries = (
        Entry("vocab_size", "vocabulary", Settings.whole, 32000),
        Entry("max_position_embeddings", "context", Settings.whole, 2048),
        Entry("num_hidden_layers", "n_layers", Settings.whole, 32),
        Entry("hidden_size", "d_model", Settings.whole, 4096),
        Entry("num_attention_heads", "n_heads", Settings.whole, 32),
        Entry("num_key_value_heads", "n_kv_heads", Settings.whole, None, saved="n_heads"),
        Entry("intermediate_size", "d_hidden", Settings.whole, 11008, saved="hidden_width"),
        Entry("head_dim", "d_head", Settings.whole, None, saved="head_width"),
        Entry("attention_bias", "attention_bias", Settings.flag, False),
        Entry("mlp_bias", "hidden_bias", Settings.flag, False),
        Entry("tie_word_embeddings", "tied", Settings.flag, False),
        Entry("hidden_act", "activation", Settings.activation, "silu"),
        Entry("rms_norm_eps", "epsilon", Settings.number, 1e-6),
        Entry("attention_dropout", "attention_dropout", Settings.number, 0.0),
        Entry("pad_token_id", "padding_index", Settings.whole, None),
        Entry("initializer_range", "init_std", Settings.number, 0.02),
    )

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `CausalFamily.further_fields`."""
        return _rotary(settings, fields["context"])

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
            **self.entries_of(config),
            "rope_parameters": {**rotary, "rope_theta": config.rotary_base},
            **former,
        }

    def rules(self) -> list[Rule]:
        """See `CausalFamily.rules`."""
        return [
            rename("embed_tokens.weight", "tokens.weight"),
            rename("layers.*.input_layernorm.weight", "blocks.*.norm_1.gamma"),
            rename("layers.*.post_attention_layernorm.weight", "blocks.*.norm_2.gamma"),
            rename("norm.weight", "norm.gamma"),
            *(rule for theirs, ours in _DENSE for rule in dense(f"layers.*.{theirs}", f"blocks.*.{ours}")),
        ]

    def ignored(self, config: LlamaConfig) -> tuple[str, ...]:
        """See `Family.ignored`: former versions saved the rotation frequencies."""
        return ("**.rotary_emb.inv_freq",)


def _rotary(settings: Settings, context: int) -> dict[str, Any]:
    rotary = settings.table("rope_scaling")
    if rotary is None:
        rotary = settings.table("rope_parameters") or Settings({}, settings.location)
    settings.get("rope_parameters", None)  # newer files have both
    for key, value in rotary.data.items():
        if isinstance(value, dict):
            raise ConfigError(f"{rotary.location}: {key}: rotary positions that differ by layer are not supported")
    for table in (settings, rotary):
        if table.number("partial_rotary_factor", 1.0) != 1.0:
            raise ConfigError(
                f"{table.location}: partial_rotary_factor={table.get('partial_rotary_factor')} is not supported: a "
                "part of each head would not be rotated"
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
            f"{rotary.location}: rotary positions of rope_type={kind!r} are not supported; "
            "supported are: default, linear, llama3"
        )
    return {"rotary_base": base, "rotary_scaling": scaling}
