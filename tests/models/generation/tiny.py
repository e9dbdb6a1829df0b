"""A small GPT-2 with random weights, for us and for transformers, and a tokenizer of a few letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = ["", "a", "b", "c", "ab", "ba", "abc", " ", "ca", "cb ", "bb", " a", "c c"]
PROMPTS = [[3, 1, 4, 1, 5, 3], [2, 7], [6, 2, 6, 2]]


class Letters:
    """A tokenizer with these words; token 0 ends a text."""

    size, special, stops = len(WORDS), frozenset({0}), frozenset({0})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [WORDS.index(letter) for letter in text]

    def decode(self, tokens: Any, *, special: bool = False) -> str:
        return "".join(WORDS[token] for token in tokens)

    def token_bytes(self) -> list[bytes]:
        return [word.encode() for word in WORDS]

    def decoder(self) -> Any:
        return self

    def add(self, token: int) -> str:
        return WORDS[token]

    def end(self) -> str:
        return ""


def tiny_gpt2(folder: Path, **options: Any) -> Any:
    """A model of transformers, saved to a folder."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(options.pop("seed", 0))
    settings: dict[str, Any] = {
        "vocab_size": 13, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0,
        "eos_token_id": 0, "initializer_range": 0.4,
    }  # fmt: skip
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings | options)).eval()
    model.save_pretrained(folder)
    return model


def tokenizer_of_transformers() -> Any:
    """The same tokenizer for transformers."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    vocabulary = {word.replace(" ", "Ġ") or "<end>": number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
