"""The tokenizer in a GGUF file: its metadata as the content of a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phlox.errors import ConfigError
from phlox.text.byte_pairs import byte_of_character
from phlox.text.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2, _DIGITS = "", r"\p{N}"
"""Patterns that go before GPT-2's own split: none, and one that makes each digit a word."""
SPLITS: dict[str, str] = {
    **dict.fromkeys(("gpt-2", "default", "olmo", "mpt"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx", "lfm2", "pixtral"), _LLAMA),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")),
    "tekken": _TEKKEN,
}
"""By the name in `tokenizer.ggml.pre`, the pattern by which a text is split into words."""

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens that are found whole in a text."""
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_SPACE = "▁"


def tokenizer_from_gguf(metadata: Mapping[str, Any], location: str) -> Tokenizer | None:
    """The tokenizer that the metadata of a GGUF file describe; None if they have none.

    Its vocabulary is of byte pairs ("gpt2") or of SentencePiece ("llama"). It needs the `tokenizers` package.

    Raises `ConfigError` for a tokenizer of another kind, or whose split into words is not known.
    """
    from phlox.text.tokenizer_file import TokenizerFile

    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or "tokenizer.ggml.tokens" not in metadata:
        return None
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f"{location}: its tokenizer is of the kind {str(kind)[:100]!r}; supported are gpt2 and llama. "
            "phlox.interop.gguf.load loads the model alone"
        )
    tokens = [str(token) for token in metadata["tokenizer.ggml.tokens"]]
    try:
        content = _byte_level(metadata, tokens, location) if kind == "gpt2" else _pieces(metadata, tokens)
        settings: dict[str, Any] = {
            f"{role}_token": tokens[int(metadata[key])]
            for role, name in _ROLES.items()
            if (key := f"tokenizer.ggml.{name}_token_id") in metadata
        }
    except (IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{location}: its tokenizer is damaged ({error!r})") from error
    for flag in ("add_bos_token", "add_eos_token"):
        if f"tokenizer.ggml.{flag}" in metadata:
            settings[flag] = bool(metadata[f"tokenizer.ggml.{flag}"])
    if kind == "llama":
        settings.setdefault("add_bos_token", True)
    start = "tokenizer.chat_template"
    templates = {
        key.removeprefix(start).removeprefix(".") or "default": str(value)
        for key, value in metadata.items()
        if key == start or key.startswith(f"{start}.")
    }
    tokenizer = TokenizerFile(content, settings=settings, templates=templates)
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
    tokenizer.stops |= frozenset(int(token) for token in ends if token is not None)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], location: str) -> dict[str, Any]:
    """Byte pairs, as GPT-2, Llama 3 and Qwen."""
    name = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
    if name not in SPLITS:
        raise ConfigError(
            f"{location}: its tokenizer splits words in the way {name[:100]!r}, which is not known; known are: "
            f"{', '.join(SPLITS)}. phlox.interop.gguf.load loads the model alone"
        )
    split = SPLITS[name]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts: list[dict[str, Any]] = [{**byte_level, "use_regex": split in (_GPT2, _DIGITS)}]
    if split:
        parts.insert(0, {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False})
    whole = set(_whole(metadata, tokens))
    bytes_of = byte_of_character()
    characters = {byte: character for character, byte in bytes_of.items()}
    vocabulary = {  # some files have a normal token as plain text
        token
        if number in whole or all(character in bytes_of for character in token)
        else "".join([characters[byte] for byte in token.encode()]): number
        for number, token in enumerate(tokens)
    }
    return {
        "added_tokens": _added(metadata, tokens),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "decoder": {**byte_level, "use_regex": True},
        "model": _model(vocabulary, _merges(metadata, tokens)),
    }


def _pieces(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Pieces of SentencePiece, as Llama 2 and Mistral: a space is part of the next word, bytes are the last resort."""
    prepends = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prepends:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "added_tokens": _added(metadata, tokens),
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "first" if prepends else "never",
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            **_model({token: number for number, token in enumerate(tokens)}, _merges(metadata, tokens)),
            "unk_token": None if unknown is None else tokens[int(unknown)],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _model(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocabulary, "merges": merges}


def _merges(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[list[str]]:
    """The merges of the file; SentencePiece has none, but the scores of the results: the best is merged first."""
    if "tokenizer.ggml.merges" in metadata:
        return [str(merge).split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    scores = [float(score) for score in metadata["tokenizer.ggml.scores"]]
    known = set(tokens)
    merges = [
        (score, token[:i], token[i:])
        for token, score in zip(tokens, scores, strict=True)
        for i in range(1, len(token))
        if token[:i] in known and token[i:] in known
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [[left, right] for _, left, right in merges]


def _whole(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Iterator[int]:
    """The tokens that are found whole in a text."""
    types: Sequence[Any] = metadata.get("tokenizer.ggml.token_type", ())
    return (number for number in range(min(len(types), len(tokens))) if int(types[number]) in (_CONTROL, _USER_DEFINED))


def _added(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[dict[str, Any]]:
    types = metadata.get("tokenizer.ggml.token_type", ())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": tokens[number], **plain, "special": int(types[number]) == _CONTROL}
        for number in _whole(metadata, tokens)
    ]
