"""Chat templates: messages as one text, by a Jinja template that comes with the tokenizer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.errors import ConfigError, DataError, ExtraNotInstalledError
from phlox.text.sandbox import LONGEST, MARK, environment

__all__ = ["ChatTemplate"]

Message: TypeAlias = Mapping[str, Any]
Span: TypeAlias = tuple[int, int]
"""Where a part of a text begins and ends, in characters."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names of a message's reasoning; templates read the first one, some the second."""
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message; the text is cut there."""


class ChatTemplate:
    """A Jinja template that writes a chat as text, in a sandbox: files bring templates, and are not trusted.

    The template sees plain data alone (text, numbers, lists, dicts), and no attribute of an object. What it writes is
    limited to 32 million characters, and `range` to 100,000 numbers. Its time is not limited, and neither is the memory
    of one call such as `"x".center(n)`: render a template that you do not trust in a process of its own.

    >>> template = ChatTemplate.of("{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hi"}])[0]
    'user: Hi\\n'
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.marks_replies = _GENERATION.search(source) is not None
        """Whether the template says which text is the assistant's, by `{% generation %}`."""
        try:
            self._template = environment().from_string(source)
        except Exception as error:
            raise _wrong(error, "the chat template is wrong", ConfigError) from None

    @staticmethod
    @lru_cache(32)
    def of(source: str) -> ChatTemplate:
        """The template with this source, which is compiled once."""
        return ChatTemplate(source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        reply: bool = False,
        continue_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[Span]]:
        """The text, and the spans that `{% generation %}` marks. See `Tokenizer.render_chat` for the arguments."""
        chat = _chat_of(messages)
        if any(not isinstance(tool, Mapping) for tool in tools or ()):
            raise DataError("chat: tools must be dicts, the JSON schemas of functions")
        final = _open_last(chat) if continue_message else ""
        spans: list[Span] = []
        pieces: list[str] = []
        length = 0

        def mark(text: str) -> None:
            spans.append((length, length + len(text)))

        try:
            values = cast("dict[str, Any]", _plain(variables or {}))
            values |= {"messages": chat, "tools": _plain(tools), "documents": _plain(documents)}
            for piece in self._template.generate({**values, "add_generation_prompt": reply, MARK: mark}):
                pieces.append(piece)
                length += len(piece)
                if length > LONGEST:
                    raise DataError(f"chat: the template writes more than {LONGEST:,} characters")
        except DataError:
            raise
        except Exception as error:
            raise _wrong(error, "the chat template refuses these messages", DataError) from None
        text = "".join(pieces)
        return (_cut(text, final) if continue_message else text), spans

    def reply_spans(
        self, messages: Sequence[Message], text: str, *, tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> list[Span]:
        """The spans of the assistant's messages in the text of a chat: what each adds to the text before it."""
        spans: list[Span] = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            begun = self.render(messages[:i], tools=tools, reply=True, variables=variables)[0] if i else ""
            ended, _ = self.render(messages[: i + 1], tools=tools, variables=variables)
            if not ended.startswith(begun) or not text.startswith(ended):
                raise DataError(
                    f"chat: the template writes message {i} of the assistant differently when more messages follow, so "
                    "its text cannot be found; mark it with {% generation %} in the template"
                )
            spans.append((len(begun), len(ended)))
        return spans


def _wrong(error: Exception, sentence: str, kind: type[ConfigError | DataError]) -> Exception:
    """The error to raise for an error of Jinja or of the template."""
    if isinstance(error, ExtraNotInstalledError):
        return error
    line = getattr(error, "lineno", None)
    return kind(f"chat: {sentence}{'' if line is None else f' (line {line})'}: {str(error)[:500]}")


def _chat_of(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain data, without entries that are None."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise DataError(f"chat: messages must be a list of dicts, got a {type(cast('Any', messages)).__name__}")
    chat: list[dict[str, Any]] = []
    for number, message in enumerate(cast("Sequence[Any]", messages)):
        plain = _plain(message)
        if not isinstance(plain, dict):
            raise DataError(f"chat: messages[{number}] must be a dict with 'role' and 'content', got {message!r:.100}")
        entries = {key: value for key, value in cast("dict[str, Any]", plain).items() if value is not None}
        reasoning = next((entries[key] for key in _REASONING if key in entries), None)
        if reasoning is not None:
            entries = {"thinking": reasoning, **entries, "reasoning_content": reasoning}
        chat.append(entries)
    if not chat:
        raise DataError("chat: there are no messages; give at least one")
    return chat


def _plain(value: Any) -> Any:
    """A value as plain data: objects have methods that a template must not call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, str):  # subclasses may have further methods
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in cast("Sequence[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):  # a Pydantic model
        return _plain(dump())
    return f"<{type(value).__name__}>"


def _open_last(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message, and return its text."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _TAG
        return content
    for block in reversed(cast("list[Any]", content or [])):
        entry = cast("dict[str, Any]", block if isinstance(block, dict) else {})
        if isinstance(text := entry.get("text"), str):
            entry["text"] = text + _TAG
            return text
    raise DataError("chat: continue_message needs a last message whose content is text")


def _cut(text: str, final: str) -> str:
    """The text up to the end of the last message."""
    at = text.rfind(_TAG.strip())
    if at < 0 or final.strip() not in text:
        raise DataError("chat: continue_message: the template leaves out a part of the last message")
    is_whole = text[at : at + len(_TAG)] == _TAG
    return text[:at] if is_whole else text[:at].rstrip()  # a template that strips has stripped before the mark, too
