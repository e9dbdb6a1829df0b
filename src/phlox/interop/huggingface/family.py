"""`Family`: how one family of Hugging Face models is loaded and saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule
from phlox.interop.huggingface.settings import Settings


class Family(ABC):
    """One `model_type`: conversion between its `config.json` and our config, and between its weights and ours."""

    model_type: ClassVar[str]
    configs: ClassVar[tuple[type[Config], ...]]
    """Our config classes."""
    architectures: ClassVar[tuple[str, ...]]
    """The architectures that can be loaded; the first one is the default."""
    prefix: ClassVar[str]
    """The prefix of everything except the head. Models without a head, and some old ones, are saved without it."""
    former: ClassVar[tuple[Rule, ...]] = ()
    """Rules from former names to the current ones."""
    unsupported: ClassVar[tuple[tuple[str, Any, str], ...]] = ()
    """Options, their only supported value, and what another value would mean."""

    @abstractmethod
    def config_from(self, settings: Settings, architecture: str) -> Any:
        """Our config; raises `ConfigError` for settings that our models do not have."""

    @abstractmethod
    def settings_of(self, config: Any) -> dict[str, Any]:
        """The inverse; raises `ConfigError` for settings that the models of `transformers` do not have."""

    @abstractmethod
    def adapter(self, config: Any, prefix: str) -> Adapter:
        """From their names and layouts to ours. Their names below the head have `prefix`, unless it is ""."""

    @abstractmethod
    def n_layers(self, config: Any) -> int:
        """The number of layers of the model."""

    def saved_prefix(self, config: Any) -> str:
        """The prefix of a model with this config in current files."""
        return self.prefix

    def ignored(self, config: Any) -> tuple[str, ...]:
        """Patterns of entries that are not weights, or not weights of this model."""
        return ()

    def ties(self, config: Any, prefix: str) -> tuple[tuple[str, str], ...]:
        """Duplicate entries that files may contain: their names, and the names of the same tensors."""
        return ()

    def fitted(self, config: Any, paths: Iterable[str]) -> Any:
        """The config, corrected by what only the file of weights says."""
        return config

    def architecture_of(self, settings: Settings) -> str:
        """The architecture in the settings, or the first; `ConfigError` for one that cannot be loaded."""
        names: Any = settings.get("architectures", None) or [self.architectures[0]]
        name: Any = cast("list[Any]", names)[0] if isinstance(names, list) else names
        if name not in self.architectures:
            raise ConfigError(
                f"{settings.place}: the architecture {str(name)[:100]} is not supported; the supported "
                f"{self.model_type} models are: {', '.join(self.architectures)}"
            )
        return name

    def check(self, settings: Settings) -> None:
        """`ConfigError` for the first option that is not supported."""
        for key, allowed, why in (*_NEVER, *self.unsupported):
            settings.only(key, allowed, why)


_NEVER: tuple[tuple[str, Any, str], ...] = (
    ("quantization_config", {}, "quantized weights cannot be loaded; save the model without quantization"),
    ("auto_map", {}, "the model contains its own code, and code from files is never run"),
    ("pruned_heads", {}, "layers would have different numbers of heads; save the model without pruning"),
    ("is_encoder_decoder", False, "the model would be an encoder-decoder"),
    ("add_cross_attention", False, "the model would attend to the output of another model"),
)
