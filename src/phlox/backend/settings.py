"""Settings of the process, from environment variables or a file that `phlox tune` has written.

They are read once, when Phlox is imported; none of them changes a program's results beyond rounding.
An engine reads some of them only when it starts: so import Phlox before the engine is used.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from phlox.errors import ConfigError
from phlox.host import allocator
from phlox.host.threads import set_threads

FILE = "PHLOX_SETTINGS"
"""The environment variable that names a file of settings. Other variables override the file."""

VARIABLES: dict[str, str] = {
    "device": "PHLOX_DEVICE",
    "allocator": "PHLOX_ALLOCATOR",
    "threads": "PHLOX_THREADS",
    "xla_flags": "PHLOX_XLA_FLAGS",
    "torch_codegen": "PHLOX_TORCH_CODEGEN",
    "torch_passes": "PHLOX_TORCH_PASSES",
    "verify": "PHLOX_VERIFY",
    "reproducible": "PHLOX_REPRODUCIBLE",
}
"""Each setting, which is its key in a file, and its environment variable."""

_CHOICES = {
    "allocator": (allocator.KEEP, allocator.SYSTEM),
    "torch_codegen": ("inductor", "none"),
    "verify": ("1", "0"),
    "reproducible": ("1", "0"),
}
_NOTES = "measured"
"""A key of a file for remarks, which are not read."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; None leaves the default.

    Attributes:
        device: the default device of tensors and modules that are made without one, as `"jax"` or `"torch:gpu:0"`.
        allocator: `keep` lets the C library (glibc) keep freed memory for the next arrays, `system` leaves it alone.
        threads: the number of threads that engines compute with.
        xla_flags: flags of XLA, separated by spaces; those in XLA_FLAGS override them.
        torch_codegen: the code generator for compiled functions on PyTorch: `inductor`, or `none`.
        torch_passes: the passes of PyTorch's compiler to switch off, as `-winograd,-attention`.
        verify: `1` compares the first call of each compiled function with an eager one; see `phlox.compile`.
        reproducible: `1` switches `phlox.reproducible` on for the whole process.

    >>> Settings(allocator="keep", threads=2).variables()
    {'PHLOX_ALLOCATOR': 'keep', 'PHLOX_THREADS': '2'}
    """

    device: str | None = None
    allocator: str | None = None
    threads: int | None = None
    xla_flags: str | None = None
    torch_codegen: str | None = None
    torch_passes: str | None = None
    verify: str | None = None
    reproducible: str | None = None

    def given(self) -> dict[str, Any]:
        """The settings that are not None, by key."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        return {VARIABLES[key]: str(value) for key, value in self.given().items()}

    def over(self, others: Settings) -> Settings:
        """These settings, with values of `others` where these are None."""
        return Settings(**{**others.given(), **self.given()})


def read_environment(environment: Mapping[str, str]) -> Settings:
    """The settings of environment variables, which override the settings in the file that PHLOX_SETTINGS names.

    Raises `ConfigError` for an invalid value; it names the variable, or the file and the key.

    >>> read_environment({"PHLOX_THREADS": "many"})
    Traceback (most recent call last):
    phlox.errors.ConfigError: the environment variable PHLOX_THREADS is a whole number of at least 1, got 'many'
    """
    values: dict[str, Any] = {}
    for key, variable in VARIABLES.items():
        text = environment.get(variable, "")
        if text:  # an empty value counts as not set
            value: object = int(text) if key == "threads" and text.isdecimal() else text
            values[key] = checked(key, value, f"the environment variable {variable}")
    path = environment.get(FILE)
    return Settings(**values).over(read_file(path)) if path else Settings(**values)


def read_file(path: str | os.PathLike[str]) -> Settings:
    """The settings of a file: a JSON object with the keys of `Settings`, and `measured` for remarks.

    Raises `ConfigError`, which names the file, if it does not exist, or has an invalid key or value.
    """
    import json
    from pathlib import Path

    try:
        content: object = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as a file of settings ({error.strerror}); see {FILE}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no file of settings: it is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a file of settings is a JSON object, got {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in cast("dict[str, object]", content).items():
        if key in VARIABLES:
            values[key] = checked(key, value, f"{path}: {key}")
        elif key != _NOTES:
            raise ConfigError(f"{path}: {key}: unknown key{_hint(key)} (known: {', '.join([*VARIABLES, _NOTES])})")
    return Settings(**values)


def as_file(settings: Settings, measured: Mapping[str, object]) -> str:
    """The text of a file with these settings and remarks."""
    import json

    return json.dumps({**settings.given(), _NOTES: dict(measured)}, indent=2) + "\n"


def _hint(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, VARIABLES, 1)
    return f"; did you mean `{close[0]}`?" if close else ""


def checked(key: str, value: object, subject: str) -> Any:
    """The value, if it is valid for the setting `key`; else `ConfigError`, whose message begins with `subject`."""
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise ConfigError(f"{subject} is {' or '.join(f'`{x}`' for x in _CHOICES[key])}, got {value!r}")
    elif key == "threads":
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{subject} is a whole number of at least 1, got {value!r}")
    elif not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{subject} is a text, got {value!r}")
    elif key == "xla_flags":
        invalid = [word for word in value.split() if not word.startswith("--xla_")]
        if invalid:
            raise ConfigError(f"{subject} holds flags of XLA, which begin with `--xla_`, got {invalid[0]!r}")
    return value


def with_flags(present: str, flags: str) -> str:
    """The flags of `present`, and the flags of `flags` whose names `present` does not have.

    >>> with_flags("--xla_cpu_max_isa=AVX2", "--xla_cpu_max_isa=AVX --xla_cpu_use_onednn=true")
    '--xla_cpu_max_isa=AVX2 --xla_cpu_use_onednn=true'
    """
    names = {word.partition("=")[0] for word in present.split()}
    return " ".join([*present.split(), *[word for word in flags.split() if word.partition("=")[0] not in names]])


_applied = Settings()
_before: dict[str, str] = {}


def applied() -> Settings:
    """The settings that hold in this process.

    >>> import phlox.backend.settings
    >>> phlox.backend.settings.applied().allocator in ("keep", "system", None)
    True
    """
    return _applied


def environment_before() -> dict[str, str]:
    """The environment variables from before the settings were applied, for a process with other settings."""
    return dict(_before)


def default_device_name() -> str:
    """The name of the default device outside of any scope."""
    return _applied.device or "numpy"


def verifies() -> bool:
    """Are compiled functions compared with eager ones by default?"""
    return _applied.verify == "1"


def apply(environment: MutableMapping[str, str] | None = None) -> None:
    """Read the settings of this process (`os.environ`) and apply them, as far as possible before an engine starts.

    Raises `ConfigError` as `read_environment`; `RuntimeWarning` if an engine has already started without them.
    """
    global _applied, _before
    environment = os.environ if environment is None else environment
    _before = dict(environment)
    settings = _applied = read_environment(environment)
    if (settings.allocator or allocator.DEFAULT) == allocator.KEEP:
        allocator.keep_memory()
    for key, value in (("torch_codegen", settings.torch_codegen), ("torch_passes", settings.torch_passes)):
        if value is not None:
            environment.setdefault(VARIABLES[key], value)
    if (settings.threads is not None or settings.xla_flags is not None) and _xla_has_started():
        late = " and ".join(VARIABLES[key] for key in ("threads", "xla_flags") if key in settings.given())
        message = f"{late} came too late for XLA, which JAX started before; import phlox before JAX is used"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    if settings.threads is not None:
        set_threads(settings.threads, environment)
    if settings.xla_flags is not None:
        environment["XLA_FLAGS"] = with_flags(environment.get("XLA_FLAGS", ""), settings.xla_flags)


def _xla_has_started() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(getattr(bridge, "backends_are_initialized", bool)())


assert {field.name for field in fields(Settings)} == VARIABLES.keys()
