"""`phlox chat`: talk to a language model in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phlox.cli.command import DONE, Command, count, sentence_of, whole
from phlox.errors import DataError, PhloxError
from phlox.host.text import printable

if TYPE_CHECKING:
    from phlox.models import LanguageModel

_HELP = """/system TEXT  begin with these instructions, from the next message on
/clear        forget the conversation
/save FILE    write the conversation to a file, as JSON
/load FILE    go on with a conversation from a file
/help         show this
/quit         end; so does Ctrl-D
Ctrl-C stops a reply."""

_TEMPERATURE = 0.8
"""The temperature where neither the command nor the model's folder says one."""
_BASE_TOKENS = 200
"""The length of a continuation by a base model, which does not know where a reply ends."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="FOLDER", help="a folder of Hugging Face or of `phlox train-lm`, a GGUF file, or owner/name")
    add("--system", metavar="TEXT", help="instructions for the model, before the first message")
    add("--temperature", type=float, metavar="T", help="0 for the likeliest text (default: the model's own, or 0.8)")
    add("--top-p", type=float, metavar="P", help="draw only among the likeliest tokens with this probability together")
    add("--max-tokens", type=count, metavar="N", help="the longest reply (default: what the context has left)")
    add("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, torch:gpu:0, ...")
    add("--seed", type=whole, metavar="N", help="seed of the random numbers, for the same replies again")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox import random
    from phlox.backend import as_device
    from phlox.models import CausalModel, load
    from phlox.models.generation.sampling import sampling_of
    from phlox.models.language_model import tokenizer_for

    sampling_of("chat", 1.0 if options.temperature is None else options.temperature, None, options.top_p)  # checked
    model = load(options.model, device=as_device(options.device))
    module: Any = model.model
    if not isinstance(module, CausalModel):
        does = "answers single texts: use generate in Python" if hasattr(module, "generate") else "generates no text"
        raise DataError(
            f"{options.model}: a chat needs a decoder, and the model is {type(module).__name__}, which {does}"
        )
    tokenizer_for(model, model.config.vocabulary, options.model)
    if options.seed is not None:
        random.seed(options.seed)
    conversation = Conversation(model, options)
    if not sys.stdin.isatty():
        for piece in conversation.reply(sys.stdin.read().rstrip("\n")):
            print(piece, end="", flush=True)
        print()
        conversation.note_end()
        return DONE
    with contextlib.suppress(ImportError):  # input() then has a history, and edits lines
        import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]
    print(f"{model}\n{conversation.headline}/help shows the commands, /quit ends.")
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return DONE
        except KeyboardInterrupt:
            print("\n(/quit or Ctrl-D ends)")
            continue
        if line.strip() == "/quit":
            return DONE
        try:
            answer(conversation, line)
        except (PhloxError, OSError) as error:  # which ends this line, and not the chat
            print(f"({printable(sentence_of(error))})", file=sys.stderr)


def answer(conversation: Conversation, line: str) -> None:
    """Do what a line of the user says: a command, or a message, to which the reply is printed."""
    command, _, argument = line.strip().partition(" ")
    if command in ("/help", "/clear", "/system", "/save", "/load"):
        conversation.command(command, argument.strip())
    elif command.startswith("/") and command[1:].isalpha():
        raise DataError(f"there is no command {command}; /help shows them")
    elif line.strip():
        try:
            for piece in conversation.reply(line):
                print(printable(piece, keep="\n\t"), end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        print()
        conversation.note_end()


class Conversation:
    """A conversation with a model: its messages, and how they become a prompt that fits the context.

    A model without a chat template continues the text of all messages, one after the other.
    """

    def __init__(self, model: LanguageModel, options: argparse.Namespace) -> None:
        from phlox.models import PrefixCache

        self._model = model
        assert model.tokenizer is not None
        self._tokenizer = model.tokenizer
        self._is_chat = model.tokenizer.chat_template is not None
        self._limit: int | None = options.max_tokens
        chosen: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
        self._options = {name: value for name, value in chosen.items() if value is not None}
        self._options["prefix_cache"] = PrefixCache(model.model)  # a turn processes only what is new
        if "temperature" not in model.options:
            self._options.setdefault("temperature", _TEMPERATURE)
        self._left_out, self._cut_off = 0, 0
        self.system: str | None = options.system
        self.messages: list[dict[str, str]] = []

    @property
    def headline(self) -> str:
        """What kind of conversation it is."""
        return "" if self._is_chat else "It has no chat template, so it continues your text. "

    def reply(self, text: str) -> Iterator[str]:
        """Add a message of the user, and give the reply in pieces. What was given of it is part of the conversation."""
        self.messages.append({"role": "user", "content": text})
        self._cut_off = 0
        written: list[str] = []
        try:
            for piece in self._pieces():
                written.append(piece)
                yield piece
        finally:
            if written:
                self.messages.append({"role": "assistant", "content": "".join(written)})
            else:
                self.messages.pop()

    def note_end(self) -> None:
        """Say so if the last reply was cut off."""
        if self._cut_off:
            remedy = "--max-tokens" if self._cut_off == self._limit else "/clear, or a shorter message,"
            self._note(f"the reply was cut off after {self._cut_off} tokens; {remedy} allows more")

    def command(self, command: str, argument: str) -> None:
        """Run a command of the user."""
        if command == "/help":
            print(_HELP)
        elif command == "/clear":
            print(f"(forgot {len(self.messages)} messages)")
            self.messages = []
        elif command == "/system":
            self.system = argument or None
            print("(no instructions)" if self.system is None else "(instructions from the next message on)")
        elif not argument:
            raise DataError(f"{command} needs the name of a file")
        elif command == "/save":
            Path(argument).write_text(json.dumps(self._all(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            print(f"(saved {len(self.messages)} messages in {argument})")
        else:
            self._load(Path(argument))
            print(f"(loaded {len(self.messages)} messages)")

    def _all(self, start: int = 0) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages[start:]]

    def _load(self, path: Path) -> None:
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            messages = [{"role": str(entry["role"]), "content": str(entry["content"])} for entry in content]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"{path}: is not a conversation, a JSON list of roles and contents ({error})") from error
        begins = [message["content"] for message in messages[:1] if message["role"] == "system"]
        self.system = begins[0] if begins else None
        self.messages = messages[len(begins) :]

    def _pieces(self) -> Iterator[str]:
        context = int(self._model.config.context)
        if not self._is_chat:
            tokens = self._tokenizer.encode("".join([message["content"] for message in self._all()]))
            if not tokens:
                raise DataError("the text is empty; give some")
            if len(tokens) > context // 2:
                self._note("only the end of the text is used: the context is full")
                tokens = tokens[-(context // 2) :]
            yield from self._model.stream_tokens(tokens, self._limit or _BASE_TOKENS, **self._options)
            return
        room = min(self._limit or context, max(context // 4, 1))
        tokens = self._tokenizer.chat(self._all())
        starts = [i for i, message in enumerate(self.messages) if i and message["role"] == "user"]
        left_out = 0
        while len(tokens) + room > context and starts:
            left_out = starts.pop(0)
            tokens = self._tokenizer.chat(self._all(left_out))
        if len(tokens) >= context:
            raise DataError(f"the message has {len(tokens)} tokens, too many for the context of {context}")
        if left_out > self._left_out:
            self._note(f"the oldest {left_out} messages are left out: the context is full")
        self._left_out = left_out
        limit = min(self._limit or context, context - len(tokens))
        for step in self._model.stream_tokens(tokens, limit, details=True, **self._options):
            if step.text:
                yield step.text
            if step.reason == "length":
                self._cut_off = limit

    def _note(self, sentence: str) -> None:
        print(f"({sentence})", file=sys.stderr)


COMMAND = Command(
    description="Talk to a language model: replies appear as they are written, and Ctrl-C stops one. A model without a "
    "chat template continues your text. From a pipe, the whole input is one message, and only the reply is printed.",
    arguments=arguments,
    run=run,
)
