"""The families of decoders with mixtures of experts: names of settings and weights, as in `decoders`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from phlox.errors import ConfigError
from phlox.interop.adapter import Rule, rename
from phlox.interop.adapter.layout import Alternating, Parts, Reversed, Stacked, Then, Transposed
from phlox.interop.adapter.pattern import Pattern
from phlox.interop.huggingface.decoders import (
    ATTENTION,
    BEFORE,
    BIAS,
    GATED,
    HEAD,
    HIDDEN_BIAS,
    PADDING,
    QUERY_NORMS,
    RMS,
    SILU,
    SIZES,
    DecoderFamily,
    Qwen2,
)
from phlox.interop.huggingface.family import Entry, with_defaults, without
from phlox.interop.huggingface.rotary import GLOBAL, LOCAL
from phlox.interop.huggingface.settings import Settings
from phlox.models import DecoderConfig, ExpertsConfig, LatentConfig, YarnScaling

TOP_K = Entry("num_experts_per_tok", "top_k", Settings.whole, 2)
WIDTH = Entry("moe_intermediate_size", "d_hidden", Settings.whole, 768)
RENORMALIZED = Entry("norm_topk_prob", "renormalized", Settings.flag, False)


class SparseFamily(DecoderFamily):
    """The base: each expert has matrices of its own in files, and an older or newer form has them stacked."""

    experts: ClassVar[Sequence[Entry]] = ()
    """The settings that are fields of `ExpertsConfig`."""
    expert_constants: ClassVar[dict[str, Any]] = {}
    """Its fields that are the same in all models of the family, if they are not the default."""
    expert_written: ClassVar[tuple[str, ...]] = ()
    """Its further fields that the settings of the family say."""
    has_balance: ClassVar[bool] = True
    """Is there a loss of routers?"""
    block: ClassVar[str] = "mlp"
    """The name of the mixture in a layer."""
    expert_names: ClassVar[Sequence[str]] = ("gate_proj", "up_proj", "down_proj")
    written = ("experts",)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        return {**super().further_fields(settings, fields), "experts": self.experts_from(settings, fields)}

    def experts_from(self, settings: Settings, fields: dict[str, Any]) -> ExpertsConfig:
        """The config of the experts."""
        values = {**self.expert_constants, **self.fields_from(settings, self.experts)}
        if self.has_balance:
            factor = settings.number("router_aux_loss_coef", 0.001)
            values["balance"] = factor if settings.flag("output_router_logits", False) else 0.0
        sparse = self.sparse_layers(settings, fields["n_layers"])
        return ExpertsConfig(**values, layers=None if len(sparse) == fields["n_layers"] else sparse)

    def sparse_layers(self, settings: Settings, n: int) -> tuple[int, ...]:
        """The layers that have experts."""
        return tuple(range(n))

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        experts = config.experts
        if experts is None:
            raise ConfigError(f"a Decoder without experts cannot be saved as {self.model_type}")
        ours = {entry.ours for entry in self.experts} | {*self.expert_written}
        if "d_hidden" in ours:
            experts = experts.replace(d_hidden=experts.d_hidden or config.hidden_width)
        ours |= {"balance"} if self.has_balance else set()
        ours |= {"layers"} if len(sparse_layers_of(config)) == config.n_layers else set()
        self.check_others(experts, ExpertsConfig(n_experts=1, top_k=1), self.expert_constants, ours)
        loss = {"router_aux_loss_coef": experts.balance or 0.001, "output_router_logits": experts.balance > 0.0}
        return {
            **super().settings_of(config),
            **self.entries_of(experts, self.experts),
            **(loss if self.has_balance else {}),
        }

    def further_rules(self, config: DecoderConfig) -> list[Rule]:
        """See `Family.further_rules`."""
        assert config.experts is not None
        rules: list[Rule] = []
        n = config.experts.n_experts
        for layer in sparse_layers_of(config):  # without wildcards, which would be compared with every name
            for theirs, ours in zip(self.expert_names, ("gate", "up", "down"), strict=True):
                start = f"layers.{layer}.{self.block}.experts"
                parts = tuple([Pattern(f"{start}.{expert}.{theirs}.weight") for expert in range(n)])
                rules.append(Rule(parts, (Pattern(f"blocks.{layer}.experts.{ours}.weight"),), Stacked(n)))
        return rules

    def former_rules(self, config: DecoderConfig) -> tuple[Rule, ...]:
        """See `Family.former_rules`: stacks of all experts, as `transformers` has them in memory."""
        assert config.experts is not None
        n = config.experts.n_experts
        gate, up, down = (
            [Pattern(f"**.{self.block}.experts.{expert}.{name}.weight") for expert in range(n)]
            for name in self.expert_names
        )
        parts = Reversed(Stacked(n, transposed=False))
        return (
            *super().former_rules(config),
            Rule((Pattern("**.mlp.experts.gate_up_proj"),), (*gate, *up), Then(Parts(1, (1, 1)), parts)),
            Rule((Pattern("**.mlp.experts.down_proj"),), (*down,), parts),
        )


def sparse_layers_of(config: DecoderConfig) -> tuple[int, ...]:
    """The layers that have experts."""
    return tuple([layer for layer in range(config.n_layers) if config.experts_of(layer) is not None])


class Mixtral(SparseFamily):
    """Experts in all layers, whose weights are renormalized."""

    model_type = "mixtral"
    architectures = ("MixtralForCausalLM", "MixtralModel")
    entries = (
        *with_defaults((*SIZES, RMS, SILU, HEAD, PADDING), rms_norm_eps=1e-5),
        Entry("sliding_window", "window", Settings.whole, None),
    )
    other_names: ClassVar = {"num_experts": "num_local_experts"}
    unsupported = (
        *SparseFamily.unsupported,
        ("router_jitter_noise", 0.0, "the input of routers would be noisy in training"),
    )
    experts = (Entry("num_local_experts", "n_experts", Settings.whole, 8), TOP_K)
    block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")
    linears = (*ATTENTION, ("block_sparse_moe.gate", "experts.router"))
    default_base = 1e6

    def former_rules(self, config: DecoderConfig) -> tuple[Rule, ...]:
        """See `Family.former_rules`."""
        return (*super().former_rules(config), rename("**.mlp.gate.weight", "**.block_sparse_moe.gate.weight"))


class _QwenMoe(SparseFamily):
    """Experts in every so many layers, but for some."""

    other_names: ClassVar = {"num_local_experts": "num_experts"}
    experts = (Entry("num_experts", "n_experts", Settings.whole, 128), TOP_K._replace(default=8), WIDTH, RENORMALIZED)
    expert_written = ("layers",)
    linears = (*ATTENTION, *GATED, ("mlp.gate", "experts.router"))

    def sparse_layers(self, settings: Settings, n: int) -> tuple[int, ...]:
        """See `SparseFamily.sparse_layers`."""
        step, dense = settings.whole("decoder_sparse_step", 1), settings.get("mlp_only_layers", [])
        return tuple([layer for layer in range(n) if layer not in dense and (layer + 1) % step == 0])

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        dense = [layer for layer in range(config.n_layers) if config.experts_of(layer) is None]
        return {**super().settings_of(config), "decoder_sparse_step": 1, "mlp_only_layers": dense}


class Qwen2Moe(_QwenMoe, Qwen2):
    """Beside the chosen experts, each token has a shared one, scaled by a linear map of it."""

    model_type = "qwen2_moe"
    architectures = ("Qwen2MoeForCausalLM", "Qwen2MoeModel")
    entries = (*SIZES, RMS, SILU, PADDING, BIAS._replace(theirs="qkv_bias", default=True))
    constants: ClassVar = {"out_bias": False}
    experts = (
        *with_defaults(_QwenMoe.experts, num_experts_per_tok=4),
        Entry("shared_expert_intermediate_size", "d_shared", Settings.whole, 5632),
    )
    expert_constants: ClassVar = {"shared_scale": True}
    linears = (
        *_QwenMoe.linears,
        *[(f"mlp.shared_expert.{name}_proj", f"experts.shared.{name}") for name in ("gate", "up", "down")],
        ("mlp.shared_expert_gate", "experts.shared.scale"),
    )

    def window_types(self, settings: Settings, n: int) -> list[str]:
        """See `DecoderFamily.window_types`."""
        first = settings.whole("max_window_layers", 28)
        return [LOCAL if layer % 2 == 0 and layer < first else GLOBAL for layer in range(n)]


def _window_if_used(settings: Settings, key: str, default: int) -> int | None:
    """The window, if it is switched on."""
    window = settings.whole(key, default)
    return window if settings.flag("use_sliding_window", False) else None


class Qwen3Moe(_QwenMoe):
    """Queries and keys of each head are normalized; a window in all layers, if it is switched on."""

    model_type = "qwen3_moe"
    architectures = ("Qwen3MoeForCausalLM", "Qwen3MoeModel")
    entries = (*SIZES, RMS, SILU, HEAD, BIAS, PADDING, Entry("sliding_window", "window", _window_if_used, 4096))
    constants: ClassVar = {"query_norm": "heads"}
    has_switch = True
    norms = (*BEFORE, *QUERY_NORMS)
    harmless = frozenset({*_QwenMoe.harmless, "max_window_layers"})


class GptOss(SparseFamily):
    """Attention with sinks, a window in every other layer, biases everywhere, and clipped gates."""

    model_type = "gpt_oss"
    architectures = ("GptOssForCausalLM", "GptOssModel")
    entries = with_defaults(
        (*SIZES, RMS, SILU, HEAD, BIAS, PADDING), rms_norm_eps=1e-5, head_dim=64, attention_bias=True
    )
    constants: ClassVar = {"sinks": True}
    other_names: ClassVar = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
    harmless = frozenset({*SparseFamily.harmless, "initial_context_length"})
    experts = (
        Entry("num_local_experts", "n_experts", Settings.whole, 128),
        TOP_K._replace(default=4),
        Entry("swiglu_limit", "limit", Settings.number, 7.0),
        Entry("swiglu_alpha", "alpha", Settings.number, 1.702),
    )
    expert_constants: ClassVar = {"scores": "selected", "router_bias": True, "bias": True}
    linears = (*ATTENTION, ("mlp.router", "experts.router"))
    has_window = True
    default_window = 128
    default_base = 150000.0

    def window_types(self, settings: Settings, n: int) -> list[str]:
        """See `DecoderFamily.window_types`."""
        return [GLOBAL if layer % 2 else LOCAL for layer in range(n)]

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        return {**super().settings_of(config), "sliding_window": config.window or self.default_window}

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        further = super().further_fields(settings, fields)
        if settings.get("rope_scaling", None) is None and settings.get("rope_parameters", None) is None:
            further["rotary_scaling"] = YarnScaling(factor=32.0, context=4096, truncate=False)  # as in `transformers`
        return further

    def further_rules(self, config: DecoderConfig) -> list[Rule]:
        """See `Family.further_rules`: all experts are stacked, and gates alternate with the hidden layer."""
        theirs, ours = "layers.*.mlp.experts", "blocks.*.experts"
        return [
            rename("layers.*.self_attn.sinks", "blocks.*.attention.sinks"),
            *[
                Rule(
                    (Pattern(f"{theirs}.gate_up_proj{end}"),),
                    (Pattern(f"{ours}.gate.{name}"), Pattern(f"{ours}.up.{name}")),
                    Alternating(),
                )
                for end, name in (("", "weight"), ("_bias", "bias"))
            ],
            rename(f"{theirs}.down_proj", f"{ours}.down.weight"),
            rename(f"{theirs}.down_proj_bias", f"{ours}.down.bias"),
        ]

    def former_rules(self, config: DecoderConfig) -> tuple[Rule, ...]:
        """See `Family.former_rules`."""
        return self.former


def _nullable(settings: Settings, key: str, default: Any) -> Any:
    """An integer, or null, which is not the default."""
    return settings.whole(key, None if key in settings.data else default)


_METHODS = ("greedy", "group_limited_greedy")


def _groups(settings: Settings, key: str, default: int) -> int:
    """A number of groups of experts, if the method of the routers has groups."""
    method, count = settings.text("topk_method", "greedy"), settings.whole(key, default)
    if method not in _METHODS:
        raise ConfigError(f"{settings.location}: topk_method={method[:100]!r} is not supported")
    return 1 if method == "greedy" else count


_EXPERTS_OF_DEEPSEEK = (
    Entry("n_routed_experts", "n_experts", Settings.whole, 64),
    TOP_K._replace(default=8),
    WIDTH._replace(default=1407),
    Entry("routed_scaling_factor", "scale", Settings.number, 1.0),
)


class DeepseekV2(SparseFamily):
    """Latent attention with interleaved positions, dense layers first, and shared experts."""

    model_type = "deepseek_v2"
    architectures = ("DeepseekV2ForCausalLM", "DeepseekV2Model")
    entries = (*without(SIZES, "n_kv_heads"), RMS, SILU, BIAS, HIDDEN_BIAS, PADDING)
    constants: ClassVar = {"interleaved": True}
    written = ("experts", "latent", "attention_scale")
    other_names: ClassVar = {"num_experts": "n_routed_experts"}
    unsupported = (
        *SparseFamily.unsupported,
        ("moe_layer_freq", 1, "only some of the upper layers would have experts"),
        ("scoring_func", "softmax", "routers would have other scores"),
        ("norm_topk_prob", False, "the weights of experts would be divided by their sum"),
    )
    harmless = frozenset({
        *SparseFamily.harmless, "qk_head_dim", "head_dim", "ep_size", "aux_loss_alpha", "seq_aux",
        "num_nextn_predict_layers", "num_mtp_layers", "output_router_logits",
    })  # fmt: skip
    latent: ClassVar = (
        Entry("kv_lora_rank", "kv_rank", Settings.whole, 512),
        Entry("q_lora_rank", "q_rank", _nullable, 1536),
        Entry("qk_nope_head_dim", "d_content", Settings.whole, 128),
        Entry("qk_rope_head_dim", "d_rotary", Settings.whole, 64),
        Entry("v_head_dim", "d_value", Settings.whole, 128),
    )
    experts = (
        *_EXPERTS_OF_DEEPSEEK,
        Entry("n_group", "n_groups", _groups, 1),
        Entry("topk_group", "top_groups", _groups, 1),
    )
    expert_constants: ClassVar = {"renormalized": False}
    expert_written = ("layers", "d_shared")
    method: ClassVar[str | None] = None
    """How routers choose; None: by groups, if there are any."""
    has_balance = False
    shared: ClassVar[int] = 2
    """The number of shared experts, if the file does not say it."""
    dense: ClassVar[int] = 0
    """The number of layers without experts, if the file does not say it."""
    norms = (
        *BEFORE, ("self_attn.q_a_layernorm", "attention.query_norm"),
        ("self_attn.kv_a_layernorm", "attention.key_value_norm"),
    )  # fmt: skip
    linears = (
        ("self_attn.q_a_proj", "attention.query_down"),
        ("self_attn.kv_a_proj_with_mqa", "attention.key_value_down"),
        ("self_attn.kv_b_proj", "attention.key_value_up"),
        ("self_attn.o_proj", "attention.out"),
        *GATED,
        ("mlp.gate", "experts.router"),
        *[(f"mlp.shared_experts.{name}_proj", f"experts.shared.{name}") for name in ("gate", "up", "down")],
    )

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        heads = fields["n_heads"]
        settings.only("num_key_value_heads", heads, f"each of the {heads} heads has its own keys and values")
        latent = LatentConfig(**self.fields_from(settings, self.latent))
        rotary = settings.table("rope_scaling") or settings.table("rope_parameters") or Settings({})
        share, scale = rotary.number("mscale_all_dim", 0.0), None
        if rotary.text("rope_type", rotary.text("type", "default")) != "default" and share:
            grown = 0.1 * share * math.log(max(rotary.number("factor"), 1.0)) + 1.0
            scale = grown**2 / math.sqrt(latent.d_content + latent.d_rotary)
        return {**super().further_fields(settings, fields), "latent": latent, "attention_scale": scale}

    def experts_from(self, settings: Settings, fields: dict[str, Any]) -> ExpertsConfig:
        """See `SparseFamily.experts_from`."""
        experts = super().experts_from(settings, fields)
        assert experts.d_hidden is not None
        return experts.replace(d_shared=settings.whole("n_shared_experts", self.shared) * experts.d_hidden or None)

    def sparse_layers(self, settings: Settings, n: int) -> tuple[int, ...]:
        """See `SparseFamily.sparse_layers`."""
        return tuple(range(settings.whole("first_k_dense_replace", self.dense), n))

    def settings_of(self, config: DecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        whole, experts, latent = super().settings_of(config), config.experts, config.latent
        if experts is None or latent is None:
            raise ConfigError(f"a Decoder without latent attention cannot be saved as {self.model_type}")
        sparse, shared = sparse_layers_of(config), (experts.d_shared or 0) / (experts.d_hidden or config.hidden_width)
        first, method = config.n_layers - len(sparse), _METHODS[experts.top_groups < experts.n_groups]
        if sparse != tuple(range(first, config.n_layers)) or shared % 1:
            raise ConfigError(
                f"a {self.model_type} has experts in all layers but the first, and shared experts as wide as them, "
                f"got layers={experts.layers} and d_shared={experts.d_shared}"
            )
        if config.attention_scale is not None:
            grown = math.sqrt(config.attention_scale * math.sqrt(config.head_width))
            factor = getattr(config.rotary_scaling, "factor", 1.0)
            if factor <= 1.0:
                raise ConfigError(f"a {self.model_type} has no attention_scale without a scaling of positions")
            share = {"mscale_all_dim": (grown - 1.0) / (0.1 * math.log(factor))}
            whole |= {key: {**whole[key], **share} for key in ("rope_parameters", "rope_scaling")}
        return {
            **whole, **self.entries_of(latent, self.latent), "topk_method": self.method or method,
            "head_dim": latent.d_rotary, "num_key_value_heads": config.n_heads, "n_shared_experts": int(shared),
            "first_k_dense_replace": first,
        }  # fmt: skip

    def further_rules(self, config: DecoderConfig) -> list[Rule]:
        """See `Family.further_rules`."""
        name = "q_proj" if config.latent is None or config.latent.q_rank is None else "q_b_proj"
        query = Rule(
            (Pattern(f"layers.*.self_attn.{name}.weight"),),
            (Pattern("blocks.*.attention.query.weight"),),
            Transposed(),
        )
        return [*super().further_rules(config), query]

    def ignored(self, config: DecoderConfig) -> tuple[str, ...]:
        """See `Family.ignored`: further layers, that predict more than one token."""
        further = [f"{start}layers.{config.n_layers}.**" for start in ("", "model.")]
        return (*super().ignored(config), *further)


class DeepseekV3(DeepseekV2):
    """Routers with a sigmoid, and a correction that balances experts."""

    model_type = "deepseek_v3"
    architectures = ("DeepseekV3ForCausalLM", "DeepseekV3Model")
    entries = (
        *without(DeepseekV2.entries, "hidden_bias"),
        Entry("rope_interleave", "interleaved", Settings.flag, True),
    )
    constants: ClassVar = {}
    other_names: ClassVar = {"num_local_experts": "n_routed_experts"}
    unsupported = (
        *SparseFamily.unsupported,
        ("moe_layer_freq", 1, "only some of the upper layers would have experts"),
        ("scoring_func", "sigmoid", "routers would have other scores"),
        ("topk_method", "noaux_tc", "routers would choose in another way"),
    )
    experts = (
        *with_defaults(_EXPERTS_OF_DEEPSEEK, routed_scaling_factor=2.5),
        RENORMALIZED._replace(default=True),
        Entry("n_group", "n_groups", Settings.whole, 8),
        Entry("topk_group", "top_groups", Settings.whole, 4),
    )
    method = "noaux_tc"
    expert_constants: ClassVar = {"scores": "sigmoid", "group_score": "two_best", "correction": True}
    shared = 1
    dense = 3
    weights = (
        *DeepseekV2.weights,
        ("layers.*.mlp.gate.e_score_correction_bias", "blocks.*.experts.router.correction"),
    )


SPARSE_DECODERS: tuple[DecoderFamily, ...] = (Mixtral(), Qwen2Moe(), Qwen3Moe(), GptOss(), DeepseekV2(), DeepseekV3())
