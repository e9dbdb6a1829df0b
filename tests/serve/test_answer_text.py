"""The text of answers: stop strings over the borders of tokens, and markers of calls that are special tokens."""

from __future__ import annotations

import pytest

from phlox.serve.answer_text import AnswerText
from phlox.text import BytePairTokenizer

TOKENIZER = BytePairTokenizer(special=["<s>", "[TOOL_CALLS]"])


@pytest.mark.parametrize(("text", "stops", "expected"), [
    ("one END two", ["END"], "one "),
    ("one EN two", ["END"], "one EN two"),
    ("aab aaab", ["aaab"], "aab "),
    ("nothing EN", ["END"], "nothing EN"),
    ("späté", ["ä"], "sp"),
    ("first of both", ["both", "of"], "first "),
])  # fmt: skip
def test_stop_strings(text: str, stops: list[str], expected: str) -> None:
    answer, pieces = AnswerText(TOKENIZER, stops), []
    for token in text.encode():
        pieces.append(answer.add(token))
        assert expected.startswith("".join(pieces))  # never a part of a stop string
        if answer.is_stopped:
            break
    assert "".join(pieces) + answer.end() == expected
    assert answer.is_stopped == (expected != text)


def test_special_tokens() -> None:
    tokens = [256, *b"ab", 257, *b"[]", 999]
    for shows, expected in ((False, "ab[]"), (True, "ab[TOOL_CALLS][]")):
        answer = AnswerText(TOKENIZER, shows_markers=shows)
        assert "".join(map(answer.add, tokens)) + answer.end() == expected


def test_an_incomplete_character() -> None:
    answer = AnswerText(TOKENIZER, ["x"])
    assert answer.add("é".encode()[0]) == "" and answer.end() == "\ufffd"
