"""`Family`: what there is to know of one kind of Hugging Face models to load and save them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule
from phlox.interop.huggingface.settings import Settings


class Family(ABC):
    """One `model_type`: between its `config.json` and our config, between its names and layouts and ours."""

    model_type: ClassVar[str]
    configs: ClassVar[tuple[type[Config], ...]]
    """Ours."""
    architectures: ClassVar[tuple[str, ...]]
    """Those that can be loaded; the first where none is named."""
    prefix: ClassVar[str]
    """Of what lies below the head. Models without a head are saved without it, and so are some old ones."""
    former: ClassVar[tuple[Rule, ...]] = ()
    """From names of earlier times to those of today."""
    unsupported: ClassVar[tuple[tuple[str, Any, str], ...]] = ()
    """Options with the only value that is supported, and what another would mean."""

    @abstractmethod
    def config_from(self, settings: Settings, architecture: str) -> Any:
        """Our config; raises `ConfigError` for what we do not have."""

    @abstractmethod
    def settings_of(self, config: Any) -> dict[str, Any]:
        """The inverse; raises `ConfigError` for what they do not have."""

    @abstractmethod
    def adapter(self, config: Any, prefix: str) -> Adapter:
        """From their names and layouts to ours, their names below the head beginning with `prefix`, unless it is ""."""

    @abstractmethod
    def n_layers(self, config: Any) -> int:
        """How many layers the model has."""

    def saved_prefix(self, config: Any) -> str:
        """The prefix of a model of this config in files of today."""
        return self.prefix

    def ignored(self, config: Any) -> tuple[str, ...]:
        """Patterns of entries that are no weights, or none that the model has a place for."""
        return ()

    def ties(self, config: Any, prefix: str) -> tuple[tuple[str, str], ...]:
        """Entries that files may have beside the same tensor: their names, and that tensor's."""
        return ()

    def fitted(self, config: Any, paths: Iterable[str]) -> Any:
        """The config, changed where what it describes is told only by what is in the file."""
        return config

    def architecture_of(self, settings: Settings) -> str:
        """The architecture that is named, or the first; `ConfigError` for one that cannot be loaded."""
        names: Any = settings.get("architectures", None) or [self.architectures[0]]
        name: Any = cast("list[Any]", names)[0] if isinstance(names, list) else names
        if name not in self.architectures:
            raise ConfigError(
                f"{settings.place}: the architecture {str(name)[:100]} is not supported; of {self.model_type} models "
                f"these are: {', '.join(self.architectures)}"
            )
        return name

    def check(self, settings: Settings) -> None:
        """`ConfigError` for the first option that is not supported."""
        for key, allowed, why in (*_NEVER, *self.unsupported):
            settings.only(key, allowed, why)


_NEVER: tuple[tuple[str, Any, str], ...] = (
    ("quantization_config", {}, "quantised weights are not loaded; save the model without quantisation"),
    ("auto_map", {}, "the model brings code of its own, and code from files is never run"),
    ("pruned_heads", {}, "heads of different layers would differ in number; save the model without pruning"),
    ("is_encoder_decoder", False, "the model would be one of two halves"),
    ("add_cross_attention", False, "the model would attend to what another one made"),
)
