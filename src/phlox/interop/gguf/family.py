"""`Architecture`: how models of one architecture of llama.cpp correspond to those of Hugging Face, and so to ours."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phlox.errors import ConfigError
from phlox.host.text import short
from phlox.interop.adapter import Adapter, Rule, rename
from phlox.interop.huggingface.family import CausalFamily
from phlox.interop.huggingface.settings import Settings
from phlox.record import Record
from phlox.record.dtypes import DTYPES
from phlox.record.formats.gguf.keys import KeyValue


class Key(NamedTuple):
    """A key of a file, below the name of the architecture, and the setting of Hugging Face that corresponds to it."""

    theirs: str
    setting: str
    type: str = "u32"
    is_required: bool = True


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Keys:
    """The keys of a file below the name of its architecture; `ConfigError` for those that nothing has read."""

    def __init__(self, values: Mapping[str, KeyValue], architecture: str, location: str) -> None:
        start = f"{architecture}."
        self.architecture, self.location = architecture, location
        self._values = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        self._read = set[str]()

    def get(self, key: str, default: Any = None, kind: type = str) -> Any:
        """The value, of the same type as `default` if that is given and otherwise of `kind`; None if there is none.

        It has Python's type. Of a number of float32 it is the shortest that gives it.
        """
        self._read.add(key)
        stored = self._values.get(key)
        if stored is None:
            return default
        value: Any = stored
        if isinstance(stored, np.generic):
            value = float(str(stored)) if stored.dtype == np.float32 else stored.item()
        kind = kind if default is None else type(default)
        is_number = kind is float and type(value) in (int, float) and math.isfinite(value)
        if not is_number and (type(value) is not kind or kind is float):
            raise self.error(key, f"expected {_KINDS[kind]} for the whole model, got {short(value)}")
        return value

    def ignore(self, key: str) -> None:
        """Allow any value."""
        self._read.add(key)

    def only(self, key: str, allowed: Any, why: str) -> None:
        """`ConfigError` if the key exists and is not `allowed`; `why` says what is not supported."""
        if (value := self.get(key, allowed)) != allowed:
            raise self.error(key, f"{short(value)} is not supported: {why}")

    def error(self, key: str, reason: str) -> ConfigError:
        """An error about a key."""
        return ConfigError(f"{self.location}: {self.architecture}.{key}: {reason}")

    def check_all_read(self) -> None:
        """`ConfigError` for keys that nothing has read."""
        if unknown := [key for key in self._values if key not in self._read]:
            raise self.error(unknown[0], "the key is not known, and may change what the model computes")


class Architecture(ABC):
    """One value of `general.architecture`."""

    name: ClassVar[str]
    family: ClassVar[CausalFamily]
    """Its models at Hugging Face."""
    keys: ClassVar[tuple[Key, ...]]
    """Keys that are settings."""
    assumed: ClassVar[dict[str, Any]] = {}
    """Settings that all models of the architecture have, and that have no key."""
    absent: ClassVar[dict[str, Any]] = {}
    """Settings that matter only in training, and so have no key: their values in a model that is loaded."""
    only: ClassVar[tuple[tuple[str, Any, str], ...]] = ()
    """Keys, their only supported values, and what another value would mean."""
    harmless: ClassVar[tuple[str, ...]] = ()
    """Keys that do not affect what our models compute."""
    names: ClassVar[tuple[tuple[str, str], ...]]
    """Tensors by their names in files and at Hugging Face, with the same layout, without the end `weight` or `bias`."""
    unpacked: ClassVar[tuple[str, ...]] = ()
    """Tensors of two axes that are not quantized."""

    def rules(self, config: Any) -> list[Rule]:
        """From the names and layouts of files to those of Hugging Face."""
        return [rename(f"{theirs}.*", f"{other}.*") for theirs, other in self.names]

    def adapter(self, config: Any) -> Adapter:
        """From the names and layouts of files to ours."""
        return Adapter(self.rules(config)) | self.family.adapter(config, self.family.saved_prefix(config))

    def settings_from(self, keys: Keys, record: Record) -> dict[str, Any]:
        """The settings of Hugging Face; `ConfigError` for a model that we do not have."""
        for key, allowed, why in self.only:
            keys.only(key, allowed, why)
        for key in self.harmless:
            keys.ignore(key)
        data: dict[str, Any] = {"model_type": self.family.model_type, **self.assumed, **self.absent}
        for key in self.keys:
            value = keys.get(key.theirs, kind=float if key.type == "f32" else int)
            if value is not None:
                data[key.setting] = value
            elif key.is_required:
                raise keys.error(key.theirs, "the key is missing")
        data.setdefault("vocab_size", record["token_embd.weight"].tensor.shape[0])
        data["tie_word_embeddings"] = "output.weight" not in record
        data |= self.further_settings(keys, record, data)
        keys.check_all_read()
        return data

    def keys_of(self, config: Any) -> dict[str, KeyValue]:
        """The keys of a file with such a model; `ConfigError` for one that llama.cpp does not have."""
        settings = Settings(self.family.settings_of(config)).data
        for setting, value in self.assumed.items():
            if settings.get(setting) != value:
                raise ConfigError(
                    f"save: a model with {setting}={short(settings.get(setting))} cannot be saved as {self.name} in "
                    f"GGUF, which has {short(value)}"
                )
        typed = {key.theirs: (key.type, settings.get(key.setting)) for key in self.keys}
        typed |= self.further_keys(config)
        return {
            f"{self.name}.{key}": value if name == "str" else DTYPES[name].type(value)
            for key, (name, value) in typed.items()
            if value is not None
        }

    def further_settings(self, keys: Keys, record: Record, data: dict[str, Any]) -> dict[str, Any]:
        """The settings that take more than one key."""
        return {}

    def further_keys(self, config: Any) -> dict[str, tuple[str, Any]]:
        """The inverse: types and values of such keys."""
        return {}
