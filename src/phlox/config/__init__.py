"""Floor 5: configs, which hold hyper-parameters and are checked, compared, nested and stored as JSON."""

from __future__ import annotations

from phlox.config.base import BaseConfig, Config
from phlox.config.frozen import FrozenDict, FrozenList
from phlox.config.layer import LayerConfig, config_of
from phlox.lazy import lazily

__all__ = ["BaseConfig", "Config", "FrozenDict", "FrozenList", "LayerConfig", "config_of"]

__getattr__, __dir__ = lazily(__name__, {})
