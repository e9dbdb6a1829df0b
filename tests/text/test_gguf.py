"""Tokenizers in GGUF files, against those that `transformers` makes of the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.errors import ConfigError
from phlox.interop import gguf
from phlox.models import LlamaConfig, load
from phlox.text.gguf import SPLITS, tokenizer_from_gguf
from tests.text.test_tokenizer_file import SAMPLES, byte_fallback, byte_level

GGML = "tokenizer.ggml."


def metadata_of(kind: str, make: Callable[[], Any], **further: Any) -> dict[str, Any]:
    """The keys of a GGUF file with this tokenizer."""
    content = json.loads(make().to_str())
    vocabulary = content["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in content["added_tokens"]}
    keys: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "token_type": [3 if token in special else 6 if token.startswith("<0x") else 1 for token in tokens],
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    merges = ["".join(merge) for merge in content["model"]["merges"]]
    if kind == "gpt2":
        keys["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    else:
        ranks = {merge: -float(rank) for rank, merge in reversed(list(enumerate(merges)))}
        keys["scores"] = [ranks.get(token, -1e6) for token in tokens]
        keys["unknown_token_id"] = 0
    keys |= further
    for key, dtype in (("token_type", np.int32), ("scores", np.float32)):
        if key in keys:
            keys[key] = np.asarray(keys[key], dtype)
    return {GGML + key: np.uint32(value) if type(value) is int else value for key, value in keys.items()}


KINDS: dict[str, dict[str, Any]] = {
    "gpt2": metadata_of("gpt2", byte_level),
    "llama 3": metadata_of("gpt2", byte_level, pre="llama-bpe", add_bos_token=True),
    "qwen": metadata_of("gpt2", byte_level, pre="qwen2", add_bos_token=False),
    "tekken": metadata_of("gpt2", byte_level, pre="tekken"),
    "llama": metadata_of("llama", byte_fallback),
    "llama with an end": metadata_of("llama", byte_fallback, add_bos_token=False, add_eos_token=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_as_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    metadata = KINDS[kind]
    size = len(metadata[GGML + "tokens"])
    model = LlamaConfig(vocabulary=size, context=8, n_layers=1, d_model=32, n_heads=1, d_hidden=32).init("numpy")
    template = {"tokenizer.chat_template": "{{ messages[0].content }}", "tokenizer.chat_template.tool_use": "x"}
    file = gguf.save(model, tmp_path / "model.gguf", type="F16", metadata={**metadata, **template})
    loaded = load(file, device="numpy")
    ours, theirs = loaded.tokenizer, AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert (
        ours is not None and ours.size == size and ours.templates == {"default": theirs.chat_template, "tool_use": "x"}
    )
    for text in [*SAMPLES, "I'LL take 12345 of ITs, mañana\n\n \t x"]:
        for special in (True, False):
            tokens = ours.encode(text, special=special)
            assert tokens == theirs.encode(text, add_special_tokens=special), text
            assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True), text
    assert ours.stops == {theirs.eos_token_id} and isinstance(loaded.generate("the", 3), str)


def test_what_ends_a_text_and_what_is_plain_text() -> None:
    further = {"eot_token_id": 0, "token_type": [3, 3, 3, *[1] * 300, 4]}
    tokens = ["<｜a｜>", "<b>", "<c>", *metadata_of("gpt2", byte_level)[GGML + "tokens"][3:303], "<think>"]
    metadata = metadata_of("gpt2", byte_level, **further) | {GGML + "tokens": tokens, GGML + "merges": []}
    tokenizer = tokenizer_from_gguf(metadata, "file")
    assert tokenizer is not None and tokenizer.stops == {0, 2} and tokenizer.special == {0, 1, 2}
    assert tokenizer.encode("<｜a｜><think>") == [0, 303] and tokenizer.decode([0, 303]) == "<think>"
    assert tokenizer_from_gguf({}, "file") is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "t5"}, r"its tokenizer is of the kind 't5'; supported are gpt2 and llama"),
        ({"pre": "new"}, "splits words in the way 'new', which is not known; known are: gpt-2"),
        ({"eos_token_id": 10**6}, "its tokenizer is damaged"),
    ],
)
def test_errors(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tokenizer_from_gguf(metadata_of("gpt2", byte_level, **changes), "file.gguf")


def test_every_split_is_one_that_the_package_knows() -> None:
    for name in SPLITS:
        tokenizer = tokenizer_from_gguf(metadata_of("gpt2", byte_level, pre=name), "file")
        assert tokenizer is not None and tokenizer.decode(tokenizer.encode("It's 12 o'clock")) == "It's 12 o'clock"
