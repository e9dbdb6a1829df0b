"""The families of decoders: each is the names of its settings and weights, and what its models have in common."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from phlox.errors import ConfigError
from phlox.interop.adapter import Rule, split
from phlox.interop.adapter.layout import HeadParts, Then, Transposed
from phlox.interop.adapter.pattern import Pattern
from phlox.interop.huggingface.family import CausalFamily, Entry, with_defaults, without
from phlox.interop.huggingface.rotary import (
    GLOBAL,
    LOCAL,
    rotary_fields,
    rotary_settings,
    window_fields,
    window_settings,
)
from phlox.interop.huggingface.settings import Settings
from phlox.models import DecoderConfig

SIZES = (
    Entry("vocab_size", "vocabulary", Settings.whole, 32000),
    Entry("max_position_embeddings", "context", Settings.whole, 2048),
    Entry("num_hidden_layers", "n_layers", Settings.whole, 32),
    Entry("hidden_size", "d_model", Settings.whole, 4096),
    Entry("num_attention_heads", "n_heads", Settings.whole, 32),
    Entry("num_key_value_heads", "n_kv_heads", Settings.whole, None, saved="n_heads"),
    Entry("intermediate_size", "d_hidden", Settings.whole, 11008, saved="hidden_width"),
    Entry("tie_word_embeddings", "tied", Settings.flag, False),
    Entry("attention_dropout", "attention_dropout", Settings.number, 0.0),
    Entry("initializer_range", "init_std", Settings.number, 0.02),
)
RMS = Entry("rms_norm_eps", "epsilon", Settings.number, 1e-6)
SILU = Entry("hidden_act", "activation", Settings.activation, "silu")
HEAD = Entry("head_dim", "d_head", Settings.whole, None, saved="head_width")
BIAS = Entry("attention_bias", "attention_bias", Settings.flag, False)
HIDDEN_BIAS = Entry("mlp_bias", "hidden_bias", Settings.flag, False)
PADDING = Entry("pad_token_id", "padding_index", Settings.whole, None)

ATTENTION = tuple(
    [(f"self_attn.{a}_proj", f"attention.{b}") for a, b in zip("qkvo", ("query", "key", "value", "out"), strict=True)]
)
GATED = tuple([(f"mlp.{name}_proj", name) for name in ("gate", "up", "down")])
BEFORE = (("input_layernorm", "norm_1"), ("post_attention_layernorm", "norm_2"))
_BOTH = (
    ("input_layernorm", "norm_1"),
    ("post_attention_layernorm", "norm_1_after"),
    ("pre_feedforward_layernorm", "norm_2"),
    ("post_feedforward_layernorm", "norm_2_after"),
)
_AFTER = (("post_attention_layernorm", "norm_1_after"), ("post_feedforward_layernorm", "norm_2_after"))
QUERY_NORMS = (("self_attn.q_norm", "attention.query_norm"), ("self_attn.k_norm", "attention.key_norm"))


class DecoderFamily(CausalFamily):
    """The base: names as Llama's."""

    configs = (DecoderConfig,)
    prefix = "model"
    weights = (("embed_tokens.weight", "tokens.weight"),)
    outer_norms = (("norm", "norm"),)
    norms = BEFORE
    linears = (*ATTENTION, *GATED)
    no_weights = ("**.rotary_emb.inv_freq",)  # former versions saved the rotation frequencies
    unsupported = (("is_causal", True, "each token would see all others"),)
    harmless = frozenset({"pretraining_tp"})
    written: ClassVar[tuple[str, ...]] = ()
    """Further fields that the settings of the family say."""
    default_share: ClassVar[float | None] = None
    """The share of each head that is rotated if the file does not say it; None if all of it always is."""
    default_base: ClassVar[float] = 10000.0
    """The base of rotary positions if the file does not say it."""
    has_window: ClassVar[bool] = False
    default_window: ClassVar[int | None] = None
    has_switch: ClassVar[bool] = False
    """Does `use_sliding_window` say whether there is a window?"""

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        head = fields.get("d_head") or fields["d_model"] // fields["n_heads"]
        rotary = rotary_fields(settings, fields["context"], head, self.default_share, self.default_base)
        family = {"family": self.model_type} if DecoderConfig in self.configs else {}
        return {**family, **self.constants, **rotary, **self.windows(settings, fields)}

    def windows(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields about windows."""
        if not self.has_window:
            return {}
        n = fields["n_layers"]
        types = self.window_types(settings, n)
        window = window_fields(settings, n, default=self.default_window, types=types)
        return window if not self.has_switch or settings.flag("use_sliding_window", False) else {}

    def window_types(self, settings: Settings, n: int) -> list[str] | None:
        """The kinds of the layers if the file does not say them; None if all have a window."""
        return None

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        ours = {entry.ours for entry in self.entries} | {"family", "n_kv_heads", "rotary_base", "rotary_scaling"}
        ours |= {*self.written, *(("d_rotary",) if self.default_share is not None else ())}
        ours |= {"window", "window_layers"} if self.has_window else set()
        self.check_others(config, DecoderConfig(), self.constants, ours)
        windows = window_settings(config) if self.has_window else {}
        windows |= {"use_sliding_window": config.window is not None} if self.has_switch else {}
        return {
            "architectures": [self.architectures[0]],
            **self.entries_of(config),
            **rotary_settings(config),
            **windows,
        }


class GptNeoX(DecoderFamily):
    """Layer norms, both halves of a block in parallel, and one matrix for queries, keys and values, head by head."""

    model_type = "gpt_neox"
    architectures = ("GPTNeoXForCausalLM", "GPTNeoXModel")
    prefix = "gpt_neox"
    weights = (("embed_in.weight", "tokens.weight"),)
    outer_norms = (("final_layer_norm", "norm"),)
    linears = (("attention.dense", "attention.out"), ("mlp.dense_h_to_4h", "up"), ("mlp.dense_4h_to_h", "down"))
    no_weights = (*DecoderFamily.no_weights, "**.attention.bias", "**.attention.masked_bias")  # and masks
    head = "embed_out"
    entries = (
        *without(SIZES, "n_kv_heads"),
        Entry("layer_norm_eps", "epsilon", Settings.number, 1e-5),
        Entry("hidden_act", "activation", Settings.activation, "gelu"),
        Entry("hidden_dropout", "dropout", Settings.number, 0.0),
        Entry("use_parallel_residual", "parallel", Settings.flag, True),
        Entry("attention_bias", "attention_bias", Settings.flag, True),
    )
    constants: ClassVar = {"norm": "layer", "gated": False, "hidden_bias": True}
    default_share = 0.25

    def further_rules(self, config: DecoderConfig) -> list[Rule]:
        """See `Family.further_rules`."""
        rules: list[Rule] = []
        for end, layout in (
            ("weight", Then(HeadParts(config.n_heads, 3), Transposed())),
            ("bias", HeadParts(config.n_heads, 3)),
        ):
            ours = tuple([Pattern(f"blocks.*.attention.{name}.{end}") for name in ("query", "key", "value")])
            rules.append(Rule((Pattern(f"layers.*.attention.query_key_value.{end}"),), ours, layout))
        return rules


class Mistral(DecoderFamily):
    """A window in all layers."""

    model_type = "mistral"
    architectures = ("MistralForCausalLM", "MistralModel")
    entries = (*SIZES, RMS, SILU, HEAD, PADDING)
    has_window = True
    default_window = 4096


class Qwen2(DecoderFamily):
    """A bias in the projections of queries, keys and values; a window in the upper layers, if it is switched on."""

    model_type = "qwen2"
    architectures = ("Qwen2ForCausalLM", "Qwen2Model")
    entries = (*SIZES, RMS, SILU, PADDING)
    constants: ClassVar = {"attention_bias": True, "out_bias": False}
    has_window = True

    has_switch = True
    default_window = 4096

    def window_types(self, settings: Settings, n: int) -> list[str]:
        """See `DecoderFamily.window_types`."""
        first = settings.whole("max_window_layers", 28)
        return [GLOBAL if layer < first else LOCAL for layer in range(n)]


class Qwen3(Qwen2):
    """Queries and keys of each head are normalized."""

    model_type = "qwen3"
    architectures = ("Qwen3ForCausalLM", "Qwen3Model")
    entries = with_defaults((*SIZES, RMS, SILU, HEAD, BIAS, PADDING), head_dim=128)
    constants: ClassVar = {"query_norm": "heads"}
    norms = (*BEFORE, *QUERY_NORMS)


class SmolLM3(Qwen2):
    """Every fourth layer has no positions."""

    model_type = "smollm3"
    architectures = ("SmolLM3ForCausalLM", "SmolLM3Model")
    entries = (*SIZES, RMS, SILU, BIAS, HIDDEN_BIAS, PADDING)
    constants: ClassVar = {}
    default_base = 2e6
    written = ("unrotated_layers",)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        n, interval = fields["n_layers"], settings.whole("no_rope_layer_interval", 4)
        rotated: Any = settings.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(n)])
        unrotated = tuple([layer for layer, is_rotated in enumerate(rotated[:n]) if not is_rotated])
        return {**super().further_fields(settings, fields), "unrotated_layers": unrotated}

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        rotated = [int(layer not in config.unrotated_layers) for layer in range(config.n_layers)]
        return {**super().settings_of(config), "no_rope_layers": rotated}


class Olmo2(DecoderFamily):
    """Only the results of both halves of a block are normalized, and queries and keys over all heads."""

    model_type = "olmo2"
    architectures = ("Olmo2ForCausalLM", "Olmo2Model")
    entries = with_defaults((*SIZES, RMS, SILU, BIAS, PADDING), rms_norm_eps=1e-5)
    constants: ClassVar = {"norm_place": "after", "query_norm": "all"}
    norms = (*_AFTER, *QUERY_NORMS)


def nullable_number(settings: Settings, key: str, default: Any) -> Any:
    """A number, or null, which is not the default."""
    return settings.number(key, None if key in settings.data else default)


class Gemma(DecoderFamily):
    """Embeddings are scaled by the root of their width; normalizations multiply by 1 + gamma."""

    model_type = "gemma"
    architectures = ("GemmaForCausalLM", "GemmaModel")
    activation: ClassVar = Entry("hidden_act", "activation", Settings.activation, "gelu_pytorch_tanh")
    entries = with_defaults((*SIZES, RMS, activation, HEAD, BIAS, PADDING), tie_word_embeddings=True, head_dim=256)
    constants: ClassVar = {"norm_offset": 1.0}
    written = ("embedding_scale",)
    unsupported = (
        *DecoderFamily.unsupported,
        ("use_bidirectional_attention", False, "each token would see all others"),
    )

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        return {**super().further_fields(settings, fields), "embedding_scale": math.sqrt(fields["d_model"])}

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        if not math.isclose(config.embedding_scale, math.sqrt(config.d_model), rel_tol=1e-6):
            raise ConfigError(
                f"a {self.model_type} scales its embeddings by sqrt(d_model), got {config.embedding_scale}"
            )
        return super().settings_of(config)


class Gemma2(Gemma):
    """Normalizations before and after, caps of scores and logits, a window in every other layer."""

    model_type = "gemma2"
    architectures = ("Gemma2ForCausalLM", "Gemma2Model")
    entries = (
        *without(Gemma.entries, "activation"),
        Entry("hidden_activation", "activation", Settings.activation, "gelu_pytorch_tanh"),
        Entry("attn_logit_softcapping", "attention_cap", nullable_number, 50.0),
        Entry("final_logit_softcapping", "logits_cap", nullable_number, 30.0),
    )
    constants: ClassVar = {"norm_offset": 1.0, "norm_place": "both"}
    written = ("embedding_scale", "attention_scale")
    norms = _BOTH
    has_window = True
    default_window = 4096
    period: ClassVar[int] = 2
    """Every so many layers, one has no window."""

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        scale = settings.number("query_pre_attn_scalar", 256.0) ** -0.5
        return {**super().further_fields(settings, fields), "attention_scale": scale}

    def window_types(self, settings: Settings, n: int) -> list[str]:
        """See `DecoderFamily.window_types`."""
        period = settings.whole("sliding_window_pattern", self.period)
        return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(n)]

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        scale = config.attention_scale or config.head_width**-0.5
        return {**super().settings_of(config), "query_pre_attn_scalar": round(scale**-2.0)}


class Gemma3(Gemma2):
    """Queries and keys of each head are normalized; five of six layers have a window, with positions of their own."""

    model_type = "gemma3_text"
    architectures = ("Gemma3ForCausalLM", "Gemma3TextModel")
    entries = (
        *without(Gemma2.entries, "attention_cap", "logits_cap"),
        Entry("final_logit_softcapping", "logits_cap", Settings.number, None),
    )
    unsupported = (*Gemma2.unsupported, ("attn_logit_softcapping", None, "attention scores have no cap"))
    default_base = 1e6
    constants: ClassVar = {"norm_offset": 1.0, "norm_place": "both", "query_norm": "heads"}
    written = (*Gemma2.written, "local_rotary_base")
    norms = (*_BOTH, *QUERY_NORMS)
    period = 6

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `CausalFamily.further_fields`."""
        return {"local_rotary_base": 10000.0, **super().further_fields(settings, fields)}


class Phi3(DecoderFamily):
    """One matrix for queries, keys and values, and one for gate and hidden layer."""

    model_type = "phi3"
    default_share = 1.0
    architectures = ("Phi3ForCausalLM", "Phi3Model")
    entries = (
        *with_defaults((*SIZES, RMS, SILU, PADDING), rms_norm_eps=1e-5),
        Entry("resid_pdrop", "dropout", Settings.number, 0.0),
        Entry("embd_pdrop", "embedding_dropout", Settings.number, 0.0),
    )
    linears = (("self_attn.o_proj", "attention.out"), ("mlp.down_proj", "down"))
    has_window = True

    def further_rules(self, config: DecoderConfig) -> list[Rule]:
        """The fused matrices, whose parts have sizes of the config."""
        heads, groups = config.n_heads, config.n_kv_heads or config.n_heads
        queries = [f"blocks.*.attention.{name}.weight" for name in ("query", "key", "value")]
        return [
            split("layers.*.self_attn.qkv_proj.weight", queries, sizes=(heads, groups, groups), transposed=True),
            split("layers.*.mlp.gate_up_proj.weight", ["blocks.*.gate.weight", "blocks.*.up.weight"], transposed=True),
        ]


DECODERS: tuple[DecoderFamily, ...] = (
    GptNeoX(), Mistral(), Qwen2(), Qwen3(), SmolLM3(), Olmo2(), Gemma(), Gemma2(), Gemma3(), Phi3(),
)  # fmt: skip
