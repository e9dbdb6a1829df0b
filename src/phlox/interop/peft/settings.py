"""`adapter_config.json`: what it says about an adapter, and errors for what would change its results unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from phlox.errors import ConfigError
from phlox.host.text import short
from phlox.interop.huggingface.settings import Settings

T = TypeVar("T", int, str)
Names: TypeAlias = str | list[str] | None
NAME = "adapter_config.json"
ALL_LINEAR = "all-linear"
"""Stands for all linear layers but the head."""

_HARMLESS = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode",
    "init_ia3_weights", "lora_ga_config", "megatron_config", "megatron_core", "peft_version", "qalora_group_size",
    "revision", "runtime_config", "task_type",
})  # fmt: skip
"""Where an adapter comes from, how it was initialized, and how it is run."""

_ONLY: tuple[tuple[str, Any, str], ...] = (
    ("lora_bias", False, "the factors would have a bias"),
    ("use_qalora", False, "inputs would be averaged in groups"),
    ("loftq_config", {}, "it is for another base, with quantized weights"),
)
_INITIALIZED = (True, False, "gaussian", "eva", "orthogonal")
"""Initializations that leave the base as it is."""


class AdapterSettings(NamedTuple):
    """The content of `adapter_config.json`."""

    kind: Literal["LORA", "IA3"]
    rank: int
    alpha: float
    dropout: float
    rank_stabilized: bool
    is_dora: bool
    ranks: Mapping[str, Any]
    """Module, or a regular expression for some -> rank, where it is another one."""
    alphas: Mapping[str, Any]
    targets: Names
    """A regular expression, a list of modules or ends of their names, or None."""
    excluded: Names
    layers: list[int]
    """The numbers of the layers that are adapted; none for all of them."""
    layers_pattern: Names
    feedforward: Names
    further: list[str]
    """Modules that are trained and saved as a whole."""
    bias: str

    def rank_of(self, module: str) -> int:
        """The rank at a module."""
        return _by_pattern(self.ranks, module, self.rank)

    def alpha_of(self, module: str) -> float:
        """Alpha at a module."""
        return float(_by_pattern(self.alphas, module, self.alpha))

    def is_target(self, module: str) -> bool:
        """Whether the module is adapted, by the rules of PEFT."""
        if _matches(self.excluded, module) or self.is_further(module):
            return False
        if self.targets is None or (isinstance(self.targets, str) and self.targets.lower() == ALL_LINEAR):
            return True
        if not _matches(self.targets, module) or isinstance(self.targets, str) or not self.layers:
            return _matches(self.targets, module)
        patterns = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        matches = (re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module) for pattern in patterns or [r"[^.]*"])
        number = next((int(match[1]) for match in matches if match), None)
        return number in self.layers

    def is_further(self, module: str) -> bool:
        """Whether the module is trained as a whole, or part of one that is."""
        return any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.further)

    def is_feedforward(self, module: str) -> bool:
        """Whether IA3 scales the inputs of the module, and not its outputs."""
        names = self.feedforward or []
        return bool(re.fullmatch(names, module)) if isinstance(names, str) else module.endswith(tuple(names))


def read_adapter_settings(settings: Settings) -> AdapterSettings:
    """The settings of an adapter; `ConfigError` for those that are not supported, by name."""
    kind = settings.text("peft_type")
    if kind not in ("LORA", "IA3"):
        raise ConfigError(
            f"{settings.location}: adapters of the type {kind[:100]!r} are not supported; LORA and IA3 are"
        )
    for key, allowed, why in _ONLY:
        settings.only(key, allowed, why)
    initialized = settings.get("init_lora_weights", True)
    if initialized not in _INITIALIZED:
        raise ConfigError(
            f"{settings.location}: init_lora_weights={initialized!r} changes the base model; save the adapter for the "
            "original base (path_initial_model_for_weight_conversion of PEFT)"
        )
    settings.flag("fan_in_fan_out", False)  # the layout of their weight, which ours does not depend on
    read = AdapterSettings(
        kind=kind,
        rank=settings.whole("r", 8),
        alpha=settings.number("lora_alpha", 8.0),
        dropout=settings.number("lora_dropout", 0.0),
        rank_stabilized=settings.flag("use_rslora", False),
        is_dora=settings.flag("use_dora", False),
        ranks=_table(settings, "rank_pattern"),
        alphas=_table(settings, "alpha_pattern"),
        targets=_names(settings, "target_modules"),
        excluded=_names(settings, "exclude_modules"),
        layers=_listed(settings, "layers_to_transform", int) or [],
        layers_pattern=_names(settings, "layers_pattern"),
        feedforward=_names(settings, "feedforward_modules"),
        further=_listed(settings, "modules_to_save", str) or [],
        bias=settings.text("bias", "none"),
    )
    settings.check_all_read(_HARMLESS)
    try:
        read.is_target("")
        read.is_feedforward("")
        _by_pattern({**read.ranks, **read.alphas}, "", 0)
    except re.error as error:
        raise ConfigError(f"{settings.location}: its names of modules are not valid: {error}") from error
    return read


def _names(settings: Settings, key: str) -> Names:
    value = settings.get(key, None)
    return value if isinstance(value, str) else _listed(settings, key, str)


def _listed(settings: Settings, key: str, kind: type[T]) -> list[T] | None:
    value: Any = settings.get(key, None)
    entries: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    if value is not None and any(type(entry) is not kind for entry in entries):
        shown = short(cast("object", value))
        raise ConfigError(f"{settings.location}: {key} must have entries of the type {kind.__name__}, got {shown}")
    return None if value is None else entries


def _table(settings: Settings, key: str) -> Mapping[str, Any]:
    table = settings.table(key)
    if table is None:
        return {}
    return {name: table.number(name) if key == "alpha_pattern" else table.whole(name) for name in table.data}


def _matches(names: Names, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names or ())


def _by_pattern(values: Mapping[str, Any], module: str, default: Any) -> Any:
    return next((value for key, value in values.items() if re.match(rf"(.*\.)?({key})$", module)), default)
