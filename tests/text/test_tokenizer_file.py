"""Files of tokenizers, against `AutoTokenizer` of `transformers`: text to tokens, back, and token by token."""

from __future__ import annotations

import builtins
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from phlox.errors import ConfigError, ExtraNotInstalledError, IndexRangeError
from phlox.text import TokenizerFile, load_tokenizer

TEXT = [
    "the cat sat on the mat and the dog ran", "hello world, it's a test.", "naïve café 你好 🙂 ok", "numbers 123 456",
    "the quick brown fox",
] * 20  # fmt: skip
SAMPLES = [
    "the cat", "  two  spaces <tool>x</s> <|im_end|>\n", "naïve 你好 🙂🙂 ok 👨‍👩‍👧", "hello, it 's . a !",
    "", " ", "<s>the</s>", "\u0301abc\ufffd",
]  # fmt: skip


def byte_level() -> Any:
    """As GPT-2, Llama 3, Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback() -> Any:
    """As Llama 2, Gemma: pieces of SentencePiece, and bytes for characters that it does not have."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    tokenizer.train_from_iterator([text.replace("🙂", "").replace("你好", "") for text in TEXT], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are ordinary tokens
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram() -> Any:
    """As T5."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def word_piece() -> Any:
    """As BERT."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "byte level": (byte_level, {"eos_token": "<|im_end|>", "additional_special_tokens": ["<tool>"]}),
    "bos and eos": (byte_level, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": True,
                                 "add_eos_token": True, "clean_up_tokenization_spaces": True}),
    "bos alone": (byte_level, {"bos_token": "<|endoftext|>", "add_bos_token": True, "add_eos_token": False}),
    "byte fallback": (byte_fallback, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "unigram": (unigram, {"eos_token": "</s>", "pad_token": "<pad>", "clean_up_tokenization_spaces": True}),
    "word piece": (word_piece, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}),
}  # fmt: skip


@cache
def saved(kind: str, folder: Path) -> tuple[Any, Any]:
    """The tokenizer of `transformers` and ours, from the folder that `transformers` saved."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    make, settings = KINDS[kind]
    PreTrainedTokenizerFast(tokenizer_object=make(), **settings).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_as_transformers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs, ours = saved(kind, tmp_path_factory.mktemp("tokenizer"))
    assert ours.size == len(theirs) and isinstance(ours, TokenizerFile)
    for text in SAMPLES:
        for special in (True, False):
            tokens = ours.encode(text, special=special)
            assert tokens == theirs.encode(text, add_special_tokens=special), text
            assert ours.decode(tokens, special=special) == theirs.decode(tokens, skip_special_tokens=not special), text
    if (name := KINDS[kind][1].get("eos_token")) is not None:
        assert ours.stops == {theirs.eos_token_id} and ours.decode([theirs.eos_token_id], special=True) == name


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_joined_are_the_text(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    _, ours = saved(kind, tmp_path_factory.mktemp("tokenizer"))
    draws = random.Random(0)
    rows = [[draws.randrange(ours.size) for _ in range(draws.randrange(1, 30))] for _ in range(200)]
    for tokens in [*rows, *map(ours.encode, SAMPLES)]:
        decoder = ours.decoder()
        pieces = [*(decoder.add(token) for token in tokens), decoder.end()]
        assert "".join(pieces) == ours.decode(tokens)
    decoder = ours.decoder()
    pieces = [decoder.add(token) for token in ours.encode("🙂 naïve 你好 ok ok")]
    assert not any("\ufffd" in piece for piece in pieces)
    if ours.is_local:
        assert sum(map(bool, pieces)) >= 4


def test_bytes_of_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = "the cat sat, 你好"
    for kind, start in (("byte level", b""), ("byte fallback", b" "), ("unigram", b" ")):
        _, ours = saved(kind, tmp_path_factory.mktemp("tokenizer"))
        table = ours.token_bytes()
        assert len(table) == ours.size and all(table[token] == b"" for token in ours.special)
        text = "the cat sat, 你好" if kind != "unigram" else "the cat"
        assert b"".join(table[token] for token in ours.encode(text, special=False)) == start + text.encode()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    for kind in KINDS:
        _, ours = saved(kind, tmp_path / kind)
        ours.templates = {"default": "a", "tool_use": "b"}
        ours.save(tmp_path / f"{kind} again")
        again = load_tokenizer(tmp_path / f"{kind} again")
        for name in ("size", "special", "stops", "special_names", "templates", "is_local", "fragments"):
            assert getattr(again, name) == getattr(ours, name), name
        assert all(again.encode(text) == ours.encode(text) for text in SAMPLES)


FAMILIES: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("LlamaTokenizer", byte_fallback, {}),
    ("LlamaTokenizer", byte_fallback, {"add_bos_token": False, "add_eos_token": True}),
    ("GemmaTokenizer", byte_fallback, {}),
    ("Qwen2Tokenizer", byte_level, {}),
    ("GPT2Tokenizer", byte_level, {"add_bos_token": True}),
]


@pytest.mark.parametrize(("family", "make", "settings"), FAMILIES)
def test_the_classes_of_families(
    family: str, make: Callable[[], Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    model = json.loads(make().to_str())["model"]
    names = ["<bos>", "<eos>", "<pad>"] if family == "GemmaTokenizer" else []
    vocabulary = model["vocab"] | {name: len(model["vocab"]) + i for i, name in enumerate(names)}
    merges = [tuple(merge) for merge in model["merges"]]
    getattr(transformers, family)(vocab=vocabulary, merges=merges, **settings).save_pretrained(tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert type(theirs).__name__ == family
    for text in SAMPLES:
        for special in (True, False):
            tokens = ours.encode(text, special=special)
            assert tokens == theirs.encode(text, add_special_tokens=special), text
            assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True), text


def test_tokens_that_end_a_text(tmp_path: Path) -> None:
    saved("byte level", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert load_tokenizer(tmp_path).stops == {2, 5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7, 10**6]}))
    assert load_tokenizer(tmp_path).stops == {0, 2, 7}


def test_added_tokens_that_only_settings_name(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    settings = {
        "added_tokens_decoder": {"340": {"content": "<a>", "lstrip": False, "special": False}},
        "extra_special_tokens": {"image_token": "<b>"},
        "bos_token": {"content": "<c>"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    tokens = tokenizer.encode("<a><b><c>")
    assert tokens == [340, 342, 341] and tokenizer.special == {0, 1, 2, 341, 342}
    assert tokenizer.special_names == {"bos_token": "<c>"}


def test_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json, so no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"has tokenizer\.model, but no tokenizer\.json; write one with transformers"):
        load_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    for content, sentence in (("{", "is damaged"), ("[]", "must contain an object"), ("{}", "cannot read it")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=sentence):
            load_tokenizer(tmp_path)
    byte_level().save(str(file))
    with pytest.raises(IndexRangeError, match="the tokens are 0 to"):
        load_tokenizer(tmp_path).decode([-1])
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "tokenizers":
            raise ImportError("No module named 'tokenizers'")
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExtraNotInstalledError, match="install Phlox with the extra 'text'"):
        load_tokenizer(tmp_path)
