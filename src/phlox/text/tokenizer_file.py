"""`TokenizerFile`: a `tokenizer.json` of Hugging Face, by the `tokenizers` package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from phlox.config.storage import format_json
from phlox.errors import ConfigError, ExtraNotInstalledError, IndexRangeError
from phlox.text.chat_template import Span
from phlox.text.tokenizer import Tokenizer

__all__ = ["TokenizerFile"]

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FURTHER = ("additional_special_tokens", "extra_special_tokens")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenizerFile(Tokenizer):
    """The tokenizer in a `tokenizer.json`, with the same results as `AutoTokenizer` of `transformers`.

    `load_tokenizer` makes it from a folder, with everything that other files of the folder say.

    Args:
        file: the path of a `tokenizer.json`, or its content.
        settings: the content of `tokenizer_config.json`: special tokens, and which of them are added to a text.
        templates: the chat templates by name.

    Raises `ExtraNotInstalledError` without the `tokenizers` package, `ConfigError` for a file that it cannot read.

    Attributes:
        backend: the `tokenizers.Tokenizer`.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | Mapping[str, Any],
        *,
        settings: Mapping[str, Any] | None = None,
        templates: Mapping[str, str] | None = None,
    ) -> None:
        location = "the tokenizer" if isinstance(file, Mapping) else file
        try:
            import tokenizers
        except ImportError as error:
            raise ExtraNotInstalledError(
                f"{location}: needs the tokenizers package: install Phlox with the extra 'text' ({error})"
            ) from None
        text = json.dumps(file) if isinstance(file, Mapping) else Path(file).read_text(encoding="utf-8")
        try:
            self.backend: Any = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises Exception itself
            raise ConfigError(f"{location}: the tokenizers package cannot read it ({str(error)[:300]})") from error
        content: dict[str, Any] = json.loads(text)
        settings = {} if settings is None else settings
        self._settings = {key: value for key, value in settings.items() if key != "chat_template"}
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        self.special_names = {role: name for role in _ROLES if (name := _content(settings.get(role))) is not None}
        self._add_missing(tokenizers, settings)
        added: dict[int, Any] = self.backend.get_added_tokens_decoder()
        vocabulary: dict[str, int] = self.backend.get_vocab()
        self.size = max(vocabulary.values(), default=-1) + 1
        self.special = frozenset(token for token, entry in added.items() if entry.special)
        self._added = {token: str(entry.content) for token, entry in added.items()}
        self._names = dict(sorted((token, name) for name, token in vocabulary.items()))
        if "eos_token" in self.special_names:
            self.stops = frozenset([self.backend.token_to_id(self.special_names["eos_token"])])
        self.templates = dict(templates or {})
        if "add_bos_token" in settings or "add_eos_token" in settings:
            self._set_ends(tokenizers, settings)
        self._decoders = _parts(content.get("decoder"))
        self._kinds = {str(part.get("type")) for part in self._decoders}
        if "ByteFallback" in self._kinds:
            self.fragments = frozenset(token for token, name in self._names.items() if _BYTE.fullmatch(name))
        kind = cast("dict[str, Any]", content.get("model", {})).get("type", "BPE")
        self._cleans = bool(settings.get("clean_up_tokenization_spaces", False)) and kind != "BPE"
        self.is_local = not self._cleans

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        return self.backend.encode(text, add_special_tokens=special).ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """See `Tokenizer.encode_with_offsets`."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """See `Tokenizer.decode`. A number that is no token is left out, up to the largest of 32 bits."""
        try:
            text: str = self.backend.decode([int(token) for token in tokens], skip_special_tokens=not special)
        except OverflowError as error:
            raise IndexRangeError(f"decode: the tokens are 0 to {self.size - 1}, got others ({error})") from None
        return _cleaned(text) if self._cleans else text

    def files(self) -> dict[str, str]:
        """See `Tokenizer.files`."""
        settings = format_json(self._settings) + "\n"
        return {"tokenizer.json": self.backend.to_str(), "tokenizer_config.json": settings, **super().files()}

    def token_bytes(self) -> list[bytes]:
        """See `Tokenizer.token_bytes`. Numbers without a token have no bytes either."""
        from phlox.text.byte_pairs import byte_of_character

        bytes_of, result = byte_of_character(), [b""] * self.size
        replaced = [
            (str(part["pattern"]["String"]), str(part["content"]))
            for part in self._decoders
            if part.get("type") == "Replace" and "String" in part.get("pattern", {})
        ]
        replaced += [(str(part.get("replacement", "▁")), " ") for part in self._decoders if part["type"] == "Metaspace"]
        replaced += [(str(part.get("suffix", "</w>")), " ") for part in self._decoders if part["type"] == "BPEDecoder"]
        prefixes = [str(part.get("prefix", "##")) for part in self._decoders if part["type"] == "WordPiece"]
        for token, name in self._names.items():
            if token in self.special:
                continue
            if token in self._added:
                result[token] = name.encode()
            elif "ByteLevel" in self._kinds and all(character in bytes_of for character in name):
                result[token] = bytes([bytes_of[character] for character in name])
            elif token in self.fragments:
                result[token] = bytes.fromhex(name[3:5])
            else:
                for prefix in prefixes:
                    name = name.removeprefix(prefix) if name.startswith(prefix) else f" {name}"
                for old, new in replaced:
                    name = name.replace(old, new)
                result[token] = name.encode()
        return result

    def _add_missing(self, tokenizers: Any, settings: Mapping[str, Any]) -> None:
        """Add the special tokens that settings name and the file lacks."""
        known = {str(entry.content) for entry in self.backend.get_added_tokens_decoder().values()}
        entries: list[Any] = []
        listed: Any = settings.get("added_tokens_decoder", {})
        if isinstance(listed, dict):
            numbered = cast("dict[str, Any]", listed)
            entries += [entry for _, entry in sorted(numbered.items(), key=lambda item: int(item[0]))]
        named: list[Any] = [settings.get(role) for role in _ROLES]
        for key in _FURTHER:
            value: Any = settings.get(key) or []
            named += list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else list(value)
        entries += [{"special": True, **entry} if isinstance(entry, dict) else entry for entry in named]
        for entry in entries:
            name = _content(entry)
            if name is None or name in known:
                continue
            given = cast("dict[str, Any]", entry if isinstance(entry, dict) else {})
            flags = {flag: bool(given[flag]) for flag in _FLAGS if flag in given}
            self.backend.add_tokens([tokenizers.AddedToken(name, **{"special": True, **flags})])
            known.add(name)

    def _set_ends(self, tokenizers: Any, settings: Mapping[str, Any]) -> None:
        """Which special tokens begin and end a text, by the settings `add_bos_token` and `add_eos_token`."""
        names = [
            self.special_names.get(role) if settings.get(f"add_{role}", False) else None
            for role in ("bos_token", "eos_token")
        ]
        begin, end = ([] if name is None else [name] for name in names)
        self.backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*begin, "$A:0", *end],
            pair=[*begin, "$A:0", *end, *[f"{name}:1" for name in begin], "$B:1", *[f"{name}:1" for name in end]],
            special_tokens=[(name, self.backend.token_to_id(name)) for name in names if name is not None],
        )


def _content(entry: Any) -> str | None:
    """The text of a special token, which settings have as text or as an object."""
    if isinstance(entry, dict):
        entry = cast("dict[str, Any]", entry).get("content")
    return entry if isinstance(entry, str) else None


def _parts(decoder: Any) -> list[dict[str, Any]]:
    """The decoders in the settings of one, which may be a sequence."""
    if not isinstance(decoder, dict):
        return []
    settings = cast("dict[str, Any]", decoder)
    return [part for each in settings["decoders"] for part in _parts(each)] if "decoders" in settings else [settings]


_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def _cleaned(text: str) -> str:
    """A text without the spaces that some tokenizers write before punctuation."""
    for spaced in _CLEANED:
        text = text.replace(spaced, spaced.strip())
    return text
