"""Llama in GGUF: rotary pairs lie side by side, so the rows of queries and keys have another order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from phlox.errors import ConfigError
from phlox.interop.adapter import Rule, convert, ignore
from phlox.interop.gguf.family import Architecture, Key, Keys
from phlox.interop.huggingface.llama import Llama
from phlox.models import LinearScaling, Llama3Scaling, LlamaConfig
from phlox.record import Array, Record

_FACTORS = "rope_freqs.weight"
_LOW, _HIGH, _CONTEXT = 1.0, 4.0, 8192
"""Of all models that Meta has published with the scaling of Llama 3; files have its effect alone, not these."""


class GgufLlama(Architecture):
    """`Llama` as llama, without experts."""

    name = "llama"
    family = Llama()
    keys = (
        Key("vocab_size", "vocab_size", is_required=False),
        Key("context_length", "max_position_embeddings"),
        Key("embedding_length", "hidden_size"),
        Key("block_count", "num_hidden_layers"),
        Key("feed_forward_length", "intermediate_size"),
        Key("attention.head_count", "num_attention_heads"),
        Key("attention.head_count_kv", "num_key_value_heads", is_required=False),
        Key("attention.key_length", "head_dim", is_required=False),
        Key("attention.layer_norm_rms_epsilon", "rms_norm_eps", "f32"),
        Key("rope.freq_base", "rope_theta", "f32", is_required=False),
    )
    assumed = {"hidden_act": "silu"}  # noqa: RUF012
    only = (
        ("expert_count", 0, "the model is a mixture of experts"),
        ("expert_used_count", 0, "the model is a mixture of experts"),
        ("attention.causal", True, "each token would see all others"),
    )
    harmless = ("rope.scaling.finetuned",)
    names = (
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
        ("blk.*.attn_norm", "model.layers.*.input_layernorm"),
        ("blk.*.ffn_norm", "model.layers.*.post_attention_layernorm"),
        ("blk.*.attn_v", "model.layers.*.self_attn.v_proj"),
        ("blk.*.attn_output", "model.layers.*.self_attn.o_proj"),
        ("blk.*.ffn_gate", "model.layers.*.mlp.gate_proj"),
        ("blk.*.ffn_up", "model.layers.*.mlp.up_proj"),
        ("blk.*.ffn_down", "model.layers.*.mlp.down_proj"),
    )

    def rules(self, config: LlamaConfig) -> list[Rule]:
        """See `Architecture.rules`."""
        rules = super().rules(config)
        for name, heads in (("q", config.n_heads), ("k", config.n_kv_heads or config.n_heads)):
            forward, backward = partial(_apart, heads), partial(_in_pairs, heads)
            rules.append(convert(f"blk.*.attn_{name}.*", f"model.layers.*.self_attn.{name}_proj.*", forward, backward))
        scaling = config.rotary_scaling
        factors = _factors(config, scaling) if isinstance(scaling, Llama3Scaling) else None
        return [*rules, ignore(_FACTORS, written=factors)]

    def further_settings(self, keys: Keys, record: Record, data: dict[str, Any]) -> dict[str, Any]:
        """See `Architecture.further_settings`."""
        width = data.get("head_dim", data["hidden_size"] // max(1, data["num_attention_heads"]))
        keys.only("rope.dimension_count", width, f"a part of each head of {width} would not be rotated")
        keys.only("attention.value_length", width, f"values would not have the width of keys, {width}")
        kind, factor = keys.get("rope.scaling.type", "none"), keys.get("rope.scaling.factor", 1.0)
        context = keys.get("rope.scaling.original_context_length", _CONTEXT)
        rotary: dict[str, Any] = {"rope_type": "default"}
        if kind == "linear":
            rotary = {"rope_type": "linear", "factor": factor}
        elif kind != "none":
            raise keys.error("rope.scaling.type", f"{kind!r} is not supported; supported are: none, linear")
        elif _FACTORS in record:
            written = record[_FACTORS].tensor.read()
            scaling = Llama3Scaling(factor=float(written.max(initial=1)), low=_LOW, high=_HIGH, context=context)
            base = data.get("rope_theta", 10000.0)
            config = LlamaConfig(rotary_base=base, d_head=width, rotary_scaling=scaling)
            if written.shape != (width // 2,) or not np.allclose(_factors(config, scaling), written, rtol=1e-4):
                raise ConfigError(
                    f"{_FACTORS} are not the factors of Llama 3's scaling with low_freq_factor={_LOW}, "
                    f"high_freq_factor={_HIGH} and an original context of {context}, which alone is supported"
                )
            rotary = {
                "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": _LOW, "high_freq_factor": _HIGH,
                "original_max_position_embeddings": context,
            }  # fmt: skip
        biases = {"attention_bias": "blk.0.attn_q.bias" in record, "mlp_bias": "blk.0.ffn_up.bias" in record}
        return {"rope_parameters": rotary, **biases}

    def further_keys(self, config: LlamaConfig) -> dict[str, tuple[str, Any]]:
        """See `Architecture.further_keys`."""
        width, scaling = ("u32", config.head_width), config.rotary_scaling
        keys: dict[str, tuple[str, Any]] = {"rope.dimension_count": width, "attention.value_length": width}
        keys["rope.freq_base"] = "f32", config.rotary_base
        if isinstance(scaling, LinearScaling):
            return {**keys, "rope.scaling.type": ("str", "linear"), "rope.scaling.factor": ("f32", scaling.factor)}
        if scaling is None:
            return keys
        if not isinstance(scaling, Llama3Scaling) or (scaling.low, scaling.high) != (_LOW, _HIGH):
            raise ConfigError(
                f"save: GGUF has no keys for {scaling}; it has some for LinearScaling, and for Llama3Scaling with "
                f"low={_LOW} and high={_HIGH}"
            )
        return {**keys, "rope.scaling.original_context_length": ("u32", scaling.context)}


def _apart(heads: int, rows: Array) -> Array:
    """From rows in a file, with the two of each pair in turn, to those with all first ones first, in each head."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _in_pairs(heads: int, rows: Array) -> Array:
    """The inverse."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _factors(config: LlamaConfig, scaling: Llama3Scaling) -> Array:
    """By how much each frequency is divided."""
    turns = [config.rotary_base ** (-2.0 * i / config.head_width) for i in range(config.head_width // 2)]
    return np.array([turn / scaling.scaled(turn) for turn in turns], np.float32)
