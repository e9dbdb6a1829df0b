"""Configs as JSON text and files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from phlox.errors import ConfigError
from phlox.record.io.files import atomic_write


def format_json(value: object) -> str:
    """Format `value` as indented JSON, in its own order. Equal values give equal text."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def parse_json(text: str, source: str) -> Any:
    """Parse JSON strictly; raises `ConfigError` naming `source`, with line and column for a syntax error.

    Input that the standard library would accept with a changed meaning is rejected: duplicate keys, bare NaN and
    Infinity, and numbers beyond the range of a float.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{source} is not valid JSON at {position}: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{source} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key `{key}` is given twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    text = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[name]
    raise ValueError(f'{name} is not JSON; write "{text}"')


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond the range of a float")
    return number


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raises `ConfigError` naming it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically; raises `ConfigError` naming it."""
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
