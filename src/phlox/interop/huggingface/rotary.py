"""Rotary positions and windows in a `config.json`."""

from __future__ import annotations

from typing import Any

from phlox.errors import ConfigError
from phlox.interop.huggingface.settings import Settings
from phlox.models import DecoderConfig, DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from phlox.models.rotary_scaling import RotaryScaling

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def rotary_fields(
    settings: Settings, context: int, head: int, share: float | None, base: float = 10000.0
) -> dict[str, Any]:
    """The fields of our config about rotary positions; `head` is the width of a head, `share` the part of it that is
    rotated if the file does not say it; with None, all of it is in all files. `base` holds if the file has none.
    """
    table = settings.table("rope_scaling") or settings.table("rope_parameters") or Settings({}, settings.location)
    settings.get("rope_parameters", None)  # newer files have both
    fields: dict[str, Any] = {}
    if GLOBAL in table.data or LOCAL in table.data:  # positions differ by the kind of the layer
        local = table.table(LOCAL) or Settings({}, table.location)
        if local.text("rope_type", "default") != "default":
            raise ConfigError(
                f"{local.location}: rope_type={local.text('rope_type')!r} of layers with a window is not supported"
            )
        fields["local_rotary_base"] = local.number("rope_theta", 10000.0)
        table = table.table(GLOBAL) or Settings({}, table.location)
    elif (local_base := settings.number("rope_local_base_freq", None)) is not None:
        fields["local_rotary_base"] = local_base
    base = table.number("rope_theta", settings.number("rope_theta", settings.number("rotary_emb_base", base)))
    for source, key in (
        (settings, "rotary_pct"),
        (settings, "partial_rotary_factor"),
        (table, "partial_rotary_factor"),
    ):
        if share is None:
            source.only(key, 1.0, "a part of each head would not be rotated")
        else:
            share = source.number(key, share)
    share = 1.0 if share is None else share
    d_rotary = int(head * share)
    fields |= {"rotary_base": base, "rotary_scaling": _scaling(table, settings, context)}
    return fields | ({"d_rotary": d_rotary} if d_rotary != head else {})


def _scaling(table: Settings, settings: Settings, context: int) -> RotaryScaling | None:
    kind = table.text("rope_type", table.text("type", "default"))
    in_table = table.whole("original_max_position_embeddings", None)
    former = settings.whole("original_max_position_embeddings", None) or in_table or context  # as in `transformers`
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(table.number("factor"))
    if kind == "dynamic":
        return DynamicScaling(table.number("factor"), context)
    if kind == "llama3":
        low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
        return Llama3Scaling(factor=table.number("factor"), low=low, high=high, context=former)
    if kind == "yarn":
        return _yarn(table, former)
    if kind in ("longrope", "su"):
        factor = table.number("factor", None)
        return LongScaling(
            short=tuple(map(float, table.get("short_factor"))),
            long=tuple(map(float, table.get("long_factor"))),
            context=former,
            factor=context / former if factor is None else factor,
            attention_factor=table.number("attention_factor", None),
        )
    raise ConfigError(
        f"{table.location}: rotary positions of rope_type={kind!r} are not supported; supported are: default, linear, "
        "dynamic, llama3, yarn, longrope"
    )


def _yarn(table: Settings, context: int) -> YarnScaling:
    factor = table.number("factor")
    attention = table.number("attention_factor", None)
    one, other = table.number("mscale", None), table.number("mscale_all_dim", None)
    if attention is None and one and other:
        first, second = (YarnScaling(factor, context, attention_factor=None).grown(share) for share in (one, other))
        attention = first / second
    return YarnScaling(
        factor,
        context,
        fast=table.number("beta_fast", None) or 32.0,
        slow=table.number("beta_slow", None) or 1.0,
        truncate=table.flag("truncate", True),
        attention_factor=attention,
    )


_KINDS = {
    LinearScaling: "linear", DynamicScaling: "dynamic", Llama3Scaling: "llama3", YarnScaling: "yarn",
    LongScaling: "longrope",
}  # fmt: skip
_NAMES = {
    "low": "low_freq_factor", "high": "high_freq_factor", "fast": "beta_fast", "slow": "beta_slow",
    "short": "short_factor", "long": "long_factor", "context": "original_max_position_embeddings",
}  # fmt: skip
"""Our fields and their names, where they differ."""


def rotary_settings(config: DecoderConfig) -> dict[str, Any]:
    """The inverse."""
    scaling = config.rotary_scaling
    rotary: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        fields = scaling.to_dict()
        if "attention_factor" in fields:
            fields["attention_factor"] = scaling.magnitude
        if isinstance(scaling, DynamicScaling):
            del fields["context"]  # it is that of the model
        rotary = {"rope_type": _KINDS[type(scaling)], **{_NAMES.get(name, name): x for name, x in fields.items()}}
    share = {} if config.d_rotary is None else {"partial_rotary_factor": config.d_rotary / config.head_width}
    whole = {**rotary, "rope_theta": config.rotary_base, **share}
    if config.local_rotary_base is not None:
        local = {"rope_type": "default", "rope_theta": config.local_rotary_base}
        return {"rope_parameters": {GLOBAL: whole, LOCAL: local}}
    # Versions before `rope_parameters` read `rope_theta` and `rope_scaling`.
    long = {"original_max_position_embeddings": scaling.context} if isinstance(scaling, LongScaling) else {}
    return {
        **long,
        "rope_parameters": whole,
        "rope_theta": config.rotary_base,
        "rope_scaling": None if scaling is None else rotary,
        **share,
    }


def window_fields(settings: Settings, n_layers: int, *, default: int | None, types: list[str] | None) -> dict[str, Any]:
    """The fields of our config about windows; `types` are those of the layers if the file does not say them."""
    window = settings.whole("sliding_window", default)
    layers: Any = settings.get("layer_types", types)
    if layers is None:
        layers = [LOCAL] * n_layers
    unknown = sorted({str(kind) for kind in layers} - {LOCAL, GLOBAL})
    if unknown or len(layers) < n_layers:
        what = f"the kind {unknown[0]!r} is not supported" if unknown else f"there are {n_layers} layers"
        raise ConfigError(f"{settings.location}: layer_types: {what}")
    local = tuple([layer for layer, kind in enumerate(layers[:n_layers]) if kind == LOCAL])
    if window is None or not local:
        return {}
    return {"window": window} if len(local) == n_layers else {"window": window, "window_layers": local}


def window_settings(config: DecoderConfig) -> dict[str, Any]:
    """The inverse."""
    kinds = [GLOBAL if config.window is None or config.window_of(n) is None else LOCAL for n in range(config.n_layers)]
    return {"sliding_window": config.window, "layer_types": kinds}
