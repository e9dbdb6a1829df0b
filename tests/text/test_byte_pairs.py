"""Our own byte pair encoding: exact round trips, and the same results in the `tokenizers` package."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import IndexRangeError, RangeError
from phlox.text import BytePairTokenizer, load_tokenizer

TEXT = Path(__file__).read_text(encoding="utf-8") + "naïve café 你好 🙂\n" * 10
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TOKENIZER = BytePairTokenizer.train(TEXT, 420, special=SPECIAL, end="<|im_end|>")


def naive(words: list[bytes], number: int) -> list[tuple[int, int]]:
    """The merges, with all pairs counted anew each time."""
    rows, merges = [list(word) for word in words], list[tuple[int, int]]()
    while len(merges) < number:
        counts = Counter(pair for row in rows for pair in pairwise(row))
        pair = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if pair is None or counts[pair] < 2:
            break
        for row in rows:
            i = 0
            while i < len(row) - 1:
                if (row[i], row[i + 1]) == pair:
                    row[i : i + 2] = [256 + len(merges)]
                i += 1
        merges.append(pair)
    return merges


def test_merges_are_those_of_counting_anew() -> None:
    draws = random.Random(0)
    for _ in range(20):
        words = ["".join(draws.choices("abc", k=draws.randrange(1, 9))) for _ in range(40)]
        trained = BytePairTokenizer.train(" ".join(words), 280)
        expected = naive([f" {word}".encode() if i else word.encode() for i, word in enumerate(words)], 24)
        if len({trained.decode([256 + i]) for i in range(len(expected))}) == len(expected):  # no two ways to a token
            assert trained.merges[: len(expected)] == expected


def test_the_package_reads_it_with_the_same_result(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    theirs, again = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), load_tokenizer(tmp_path)
    assert type(again) is BytePairTokenizer and again.merges == TOKENIZER.merges
    assert (again.size, again.special, again.stops) == (420, {418, 419}, {419})
    assert theirs.get_vocab_size() == 420

    @given(st.text() | st.text("ab <|im_end|>'st1 \n\t\x85\xa0é🙂"))
    def check(text: str) -> None:
        tokens = TOKENIZER.encode(text)
        assert tokens == theirs.encode(text).ids == again.encode(text)
        assert TOKENIZER.decode(tokens, special=True) == text == theirs.decode(tokens, skip_special_tokens=False)
        decoder = TOKENIZER.decoder()
        assert "".join([*map(decoder.add, tokens), decoder.end()]) == TOKENIZER.decode(tokens)
        tokens, offsets = TOKENIZER.encode_with_offsets(text)
        assert offsets == theirs.encode(text).offsets

    check()
    sample = TEXT + "<|im_start|>user\n你好<|im_end|> it's  I'LL\r\n\r\n\tend  \x00\x85 Ωmega 12³ _a_\u2028"
    assert TOKENIZER.encode(sample) == theirs.encode(sample).ids


@given(st.binary())
def test_any_bytes_come_back(data: bytes) -> None:
    tokens = TOKENIZER.encode_bytes(data)
    assert TOKENIZER.decode_bytes(tokens) == data
    assert b"".join(TOKENIZER.token_bytes()[token] for token in tokens) == data
    decoder = TOKENIZER.decoder()
    assert "".join([*map(decoder.add, tokens), decoder.end()]) == data.decode(errors="replace")


def test_plain_bytes_and_texts_that_are_odd() -> None:
    plain = BytePairTokenizer()
    assert plain.size == 256 and plain.encode("né") == list("né".encode()) and plain.stops == frozenset()
    assert plain.decode(plain.encode("\ud800")) == "?"
    assert BytePairTokenizer.train("ab", 1000).size == 256  # no pair occurs twice
    assert BytePairTokenizer.train("", 300).encode("") == []
    assert len(TOKENIZER.encode(" the" * 20000)) < 40000


def test_errors() -> None:
    with pytest.raises(IndexRangeError, match=r"there is no token 420; the tokens are 0 to 419"):
        TOKENIZER.decode([420])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"merges": [(0, 256)]}, r"merge 0 joins \(0, 256\), but has only 256 tokens"),
        ({"merges": [(1, 2), (1, 2)]}, "two merges make the same token"),
        ({"special": ["a"], "end": "b"}, r"end='b' must be one of special=\['a'\]"),
        ({"special": ["a", "a"]}, "must be different, not empty, and no other tokens"),
        ({"special": ["a"]}, "must be different, not empty, and no other tokens"),
    ]
    for arguments, sentence in cases:
        with pytest.raises(RangeError, match=sentence):
            BytePairTokenizer(**arguments)
    with pytest.raises(RangeError, match="size must be at least 258"):
        BytePairTokenizer.train("", 257, special=SPECIAL)
