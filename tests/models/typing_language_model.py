# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker must infer of a `LanguageModel`; `test_typing.py` runs one on this file. Nothing is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import phlox as px
from phlox.models import Completion, LanguageModel, Step
from phlox.models.generation import Generated

IntTensor = px.Tensor[Any, Any, px.Int]


def texts(model: LanguageModel, several: list[str]) -> None:
    assert_type(model.generate("text"), str)
    assert_type(model.generate("text", 5, temperature=0.8, stop=["a", 3]), str)
    assert_type(model.generate(several, 5), list[str])
    assert_type(model.generate(("a", "b")), list[str])
    assert_type(model.generate("text", details=True), Completion)
    assert_type(model.generate(several, details=True), list[Completion])
    assert_type(model.generate("text", samples=3), str | list[str])
    assert_type(model.stream("text"), Iterator[str])
    assert_type(model.stream("text", 5, details=True), Iterator[Step])
    model.stream(several)  # pyright: ignore[reportCallIssue, reportArgumentType]
    model.generate(3)  # pyright: ignore[reportCallIssue, reportArgumentType]


def tokens(model: LanguageModel, row: IntTensor, rows: list[list[int]]) -> None:
    assert_type(model.generate(row, 5), IntTensor)
    assert_type(model.generate([[1, 2], [3]]), list[IntTensor])
    assert_type(model.generate([row, row], top_k=3), list[IntTensor])
    assert_type(model.generate(rows, logprobs=True), Generated)
    assert_type(model.generate(rows, details=True), list[Completion])
    assert_type(model.stream(row), Iterator[int])
    assert_type(model.stream(rows), Iterator[list[int | None]])
    assert_type(model.stream(row, details=True), Iterator[Step])
    assert_type(model.stream(rows, details=True), Iterator[list[Step | None]])
    assert_type(model.stream_tokens([1, 2]), Iterator[str])


def chats(model: LanguageModel) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert_type(model.chat(messages), str)
    assert_type(model.chat("Hi", details=True), Completion)
    assert_type(model.stream_chat(messages, 5), Iterator[str])
    assert_type(model.stream_chat("Hi", details=True), Iterator[Step])
    assert_type(px.models.load("folder").generate("text"), str)
