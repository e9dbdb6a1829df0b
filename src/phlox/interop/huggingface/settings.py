"""The `config.json` of a Hugging Face model: typed entries, and errors for unsupported ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, cast

from phlox.config.storage import parse_json, read_text
from phlox.errors import ConfigError
from phlox.host.text import short
from phlox.nn.activation import ActivationName

_REQUIRED: Final[Any] = object()
_MOST_BYTES = 1 << 24  # real files have a few thousand bytes, or a million with names of many classes

ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Activations by the names of `transformers`; some names mean the same formula."""

ACTIVATION_NAMES: dict[ActivationName, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}


class Settings:
    """The entries of a `config.json`, or of an object in it; error messages begin with `location`.

    A null entry counts as missing. Every method raises `ConfigError` for an entry of another type, or for one that is
    missing and has no default.

    >>> Settings({"n_layer": 2, "n_inner": None}).whole("n_layer"), Settings({}).number("layer_norm_epsilon", 1e-5)
    (2, 1e-05)
    """

    def __init__(self, data: Mapping[str, Any], location: str = "config.json") -> None:
        self.data, self.location = data, location
        self._read = set[str]()
        self._tables: dict[str, Settings] = {}

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The entry, of any type."""
        self._read.add(key)
        value = self.data.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(f"{self.location}: {key} is missing")
        return default

    def whole(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer."""
        return self._typed(key, default, (int,), "an integer")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A number, as a float."""
        value = self._typed(key, default, (int, float), "a number")
        try:
            return value if value is None else float(value)
        except OverflowError:
            raise ConfigError(f"{self.location}: {key} is beyond the range of a float") from None

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """True or false; null is false, where there is a default, as in `transformers`."""
        if default is True and key in self.data and self.data[key] is None:
            default = False
        return self._typed(key, default, (bool,), "true or false")

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Text."""
        return self._typed(key, default, (str,), "text")

    def table(self, key: str) -> Settings | None:
        """An object, if there is one."""
        value = self._typed(key, None, (dict,), "an object")
        if value is None or key in self._tables:
            return self._tables.get(key)
        table = Settings(cast("dict[str, Any]", value), f"{self.location}: {key}")
        self._tables[key] = table
        return table

    def renamed(self, names: Mapping[str, str]) -> Settings:
        """The entries under their main names; `ConfigError` if two names of one setting have different values."""
        data = dict(self.data)
        for other, name in names.items():
            if data.get(other) is None:
                continue
            value = data.pop(other)
            if data.get(name, value) not in (None, value):
                raise ConfigError(
                    f"{self.location}: {other}={short(value)} and {name}={short(data[name])} are two names of one "
                    "setting; leave one of them"
                )
            data[name] = value
        return Settings(data, self.location)

    def check_all_read(self, harmless: Collection[str]) -> None:
        """`ConfigError` for entries that nothing has read and that are not known to be harmless."""
        unknown = {
            key: value
            for key, value in self.data.items()
            if value is not None and key not in self._read and key not in harmless and not key.startswith("_")
        }
        if unknown:
            shown = ", ".join(f"{key}={short(value)}" for key, value in list(unknown.items())[:5])
            raise ConfigError(
                f"{self.location}: {shown} {'is' if len(unknown) == 1 else 'are'} not known, and may change what the "
                "model computes; delete from the file what does not"
            )
        for key, table in self._tables.items():
            if key not in harmless:
                table.check_all_read(harmless)

    def activation(self, key: str, default: str) -> ActivationName:
        """The activation with this name."""
        name = self.text(key, default)
        if name not in ACTIVATIONS:
            raise ConfigError(
                f"{self.location}: the activation {key}={name!r} is not supported; these are: {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def only(self, key: str, allowed: Any, why: str) -> None:
        """`ConfigError` if the entry exists and is not `allowed`; `why` says what is not supported."""
        value = self.get(key, allowed)
        if value != allowed or type(value) is not type(allowed):
            raise ConfigError(f"{self.location}: {key}={short(value)} is not supported: {why}")

    def _typed(self, key: str, default: Any, types: tuple[type, ...], expected: str) -> Any:
        value = self.get(key, default)
        if self.data.get(key) is None:
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ConfigError(f"{self.location}: {key} must be {expected}, got {short(value)}")
        return value


def read_settings(folder: Path, name: str = "config.json") -> Settings:
    """The `config.json` in a folder; `ConfigError` if it is missing, too large, or not a JSON object."""
    path = folder / name
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes; the config of a model has at most {_MOST_BYTES}")
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} does not contain a JSON object")
    return Settings(cast("dict[str, Any]", data), str(path))
