"""The base of tokenizers: text to tokens and back, token by token, and chats."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phlox.config.storage import write_text
from phlox.errors import ConfigError
from phlox.text.chat_template import ChatTemplate, Message, Span

__all__ = ["TextDecoder", "Tokenizer"]

UNFINISHED = "\ufffd"
"""What a text ends with if its last character is incomplete."""


class Tokenizer:
    """Text as tokens, and tokens as text.

    Abstract: a subclass sets `size`, `special` and `stops`, and defines `encode`, `decode` and `token_bytes`.

    Attributes:
        size: the number of tokens; they are 0 to `size - 1`.
        special: the tokens that are not text, such as the beginning of a text.
        stops: the tokens that end a text, or a reply in a chat.
        special_names: the texts of special tokens by their role, such as `{"bos_token": "<s>"}`, for chat templates.
        templates: the chat templates by name; the usual one is "default".
    """

    size: int
    special: frozenset[int] = frozenset()
    stops: frozenset[int] = frozenset()
    special_names: Mapping[str, str] = {}
    templates: Mapping[str, str] = {}
    fragments: frozenset[int] = frozenset()
    """Tokens whose text depends on the next token, such as a byte that several tokens spell a character with."""
    is_local: bool = True
    """Whether the text of a token depends only on the tokens right before it."""

    @property
    def chat_template(self) -> str | None:
        """The usual chat template; None if there is none."""
        return self.templates.get("default")

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the tokenizer adds itself (such as "bos") unless `special=False`."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; with `special=True`, special tokens are written too."""
        raise NotImplementedError

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token within a text, by its number; those of special tokens are empty."""
        raise NotImplementedError

    def files(self) -> dict[str, str]:
        """The files that `load_tokenizer` reads, by name: those of the base class are the chat templates."""
        return {
            "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja": template
            for name, template in self.templates.items()
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the `files` into a folder, and return its path."""
        path = Path(folder)
        for name, text in self.files().items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(path / name, text)
        return path

    def decoder(self) -> TextDecoder:
        """A decoder that is given one token after the other, see `TextDecoder`."""
        return TextDecoder(self)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        reply: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The tokens of a chat, as `render_chat` writes it."""
        return self.encode(self.render_chat(messages, tools=tools, reply=reply, **variables), special=False)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        reply: bool = True,
        continue_message: bool = False,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """The text of a chat, by the chat template.

        Args:
            messages: dicts with "role" ("system", "user", "assistant", "tool") and "content", and whatever else the
                template knows, such as "tool_calls".
            tools: JSON schemas of functions, for templates that know tools.
            documents: dicts with "title" and "text", for templates that know documents.
            reply: whether the beginning of a reply follows, which the model continues.
            continue_message: whether the last message stays open, so that the model continues it; no reply is begun.
            template: the name of a template of this tokenizer, or a template.
            variables: further variables of the template, such as `enable_thinking=False`.

        Raises `ConfigError` without a template, or for a wrong one; `DataError` for messages that it refuses.
        """
        text, _ = self._template(template, tools).render(
            messages,
            tools=tools,
            documents=documents,
            reply=reply and not continue_message,
            continue_message=continue_message,
            variables={**self.special_names, **variables},
        )
        return text

    def chat_mask(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, **variables: Any
    ) -> tuple[list[int], list[bool]]:
        """The tokens of a chat, and for each whether the assistant wrote it: what a model is trained to write.

        A template with `{% generation %}` says where the assistant's text is. With any other template, it is what each
        message of the assistant adds to the text, with the token that ends the message.

        Raises `DataError` if a template without `{% generation %}` writes earlier messages differently in a longer
        chat.
        """
        template = self._template(None, tools)
        names = {**self.special_names, **variables}
        text, spans = template.render(messages, tools=tools, reply=False, variables=names)
        tokens, offsets = self.encode_with_offsets(text)
        if not template.marks_replies:
            spans = template.reply_spans(messages, text, tools=tools, variables=names)
        mask = [False] * len(tokens)
        for begin, end in spans:
            inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > begin]
            closing = [i for i in inside if tokens[i] in self.stops]
            if closing and not template.marks_replies:  # the line break after the end is not part of the message
                inside = [i for i in inside if i <= closing[-1]]
            for i in inside:
                mask[i] = True
        return tokens, mask

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """The tokens of a text, without any added ones, and where the text of each begins and ends."""
        raise NotImplementedError

    def _template(self, template: str | None, tools: Sequence[Any] | None) -> ChatTemplate:
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        source = self.templates.get(name if template is None else template, template)
        if source is None:
            names = f" with the name default, only {', '.join(self.templates)}" if self.templates else ""
            raise ConfigError(
                f"chat: this tokenizer has no chat template{names}; give template=NAME or template=SOURCE, or generate "
                "from a text, as base models do"
            )
        return ChatTemplate.of(source)


class TextDecoder:
    """Decodes tokens one by one; the pieces, joined, are the text that `decode` gives for all of them.

    >>> from phlox.text import BytePairTokenizer
    >>> decoder = BytePairTokenizer().decoder()
    >>> [decoder.add(token) for token in "né".encode()], decoder.end()
    (['n', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        """The tokens of the last piece: the text of the next tokens may depend on them."""
        self._tokens: list[int] = []
        """The tokens whose text is not decoded yet."""

    def add(self, token: int) -> str:
        """Add a token; returns the text that no later token can change, which is empty within a character."""
        if token in self._tokenizer.special:
            return ""
        self._tokens.append(token)
        if token in self._tokenizer.fragments or not self._tokenizer.is_local:
            return ""
        return self._piece(is_last=False)

    def end(self) -> str:
        """The rest of the text, after the last token. An incomplete character is written as U+FFFD."""
        return self._piece(is_last=True)

    def _piece(self, *, is_last: bool) -> str:
        decode = self._tokenizer.decode
        piece = decode([*self._before, *self._tokens])[len(decode(self._before)) :]
        if not piece or (not is_last and piece.endswith(UNFINISHED)):
            return ""
        self._before, self._tokens = self._tokens, []
        return piece
