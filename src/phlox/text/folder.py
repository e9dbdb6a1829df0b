"""`load_tokenizer`: the tokenizer of a folder with a model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from phlox.errors import ConfigError
from phlox.text.byte_pairs import BytePairTokenizer
from phlox.text.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]

TOKENIZER, SETTINGS, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
_OTHERS = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")
"""Files of tokenizers that have no `tokenizer.json`; `transformers` writes one from each."""


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a folder: one that Phlox saved, or one of Hugging Face.

    It reads `tokenizer.json`, special tokens from `tokenizer_config.json` and `special_tokens_map.json`, the chat
    template from `chat_template.jinja` and further ones from `additional_chat_templates`, and the tokens that end a
    text from `generation_config.json` or `config.json`. No code from a folder is ever run.

    Tokenizers that Phlox trained are loaded as a `BytePairTokenizer`. All others are a `TokenizerFile`, which needs the
    `tokenizers` package (the extra 'text').

    Raises `ConfigError` for files that are missing or damaged.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = BytePairTokenizer.train("to be or not to be", size=258).save(folder)
    >>> load_tokenizer(folder).size
    258
    """
    path = Path(folder)
    content = read_json(path / TOKENIZER)
    if content is None:
        other = next((name for name in _OTHERS if (path / name).exists()), None)
        if other is None:
            raise ConfigError(f"{path}: has no {TOKENIZER}, so no tokenizer; give its tokens to the model yourself")
        raise ConfigError(
            f"{path}: has {other}, but no {TOKENIZER}; write one with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    settings = {**(read_json(path / SPECIAL) or {}), **(read_json(path / SETTINGS) or {})}
    templates = _templates(path, settings)
    end = settings.get("eos_token")
    try:
        own = BytePairTokenizer.from_content(content, end=end if isinstance(end, str) else None)
    except ConfigError as error:
        raise ConfigError(f"{path / TOKENIZER}: {error}") from error
    if own is not None:
        own.templates = templates
        tokenizer: Tokenizer = own
    else:
        from phlox.text.tokenizer_file import TokenizerFile

        tokenizer = TokenizerFile(path / TOKENIZER, settings=settings, templates=templates)
    tokenizer.stops |= frozenset(token for token in stops_of(path) if token < tokenizer.size)
    return tokenizer


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file with an object; None if there is no file. Raises `ConfigError` for a damaged one."""
    if not path.is_file():
        return None
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is damaged ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must contain an object, got a {type(content).__name__}")
    return cast("dict[str, Any]", content)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer in some file."""
    return any((folder / name).exists() for name in (TOKENIZER, *_OTHERS))


def _templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The chat templates by name; files go before settings, as in `transformers`."""
    value = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        entries: list[dict[str, Any]] = [entry for entry in cast("list[Any]", value) if isinstance(entry, dict)]
        templates |= {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    elif isinstance(value, dict):
        templates |= {str(name): text for name, text in cast("dict[Any, Any]", value).items() if isinstance(text, str)}
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if any(path.is_file() for path in files.values()):
        templates = {}
    try:
        return templates | {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: a chat template cannot be read ({error})") from error


def stops_of(folder: Path) -> frozenset[int]:
    """The tokens that end a text, by the settings of the model in a folder."""
    for name in ("generation_config.json", "config.json"):
        tokens = (read_json(folder / name) or {}).get("eos_token_id")
        if tokens is not None:
            values = cast("list[Any]", tokens if isinstance(tokens, list) else [tokens])
            return frozenset(token for token in values if isinstance(token, int) and token >= 0)
    return frozenset()
