"""`LanguageModel`: a model with its tokenizer, which generates text from text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, overload

from phlox.config.storage import format_json, write_text
from phlox.errors import ConfigError, DataError, ModuleError
from phlox.models.generation import Completion, Generated, Step
from phlox.models.generation.prompts import Prompts, Tokens
from phlox.module import Module
from phlox.tensor import Tensor
from phlox.text import Tokenizer

__all__ = ["LanguageModel"]

Texts: TypeAlias = list[str] | tuple[str, ...]

_NEW_TOKENS = 256


class LanguageModel:
    """A model with its tokenizer. `phlox.models.load` makes it from a folder.

    Args:
        model: any module; one that generates, such as a `CausalModel`, for the methods of this class.
        tokenizer: its tokenizer, or None if the folder has none. Then prompts are tokens.
        stops: the tokens that end a text; by default those of the tokenizer.
        options: options of `generate` that its methods use unless they are given others, such as `{"top_p": 0.8}`.

    Calling it calls the model.

    >>> from phlox.models import GptConfig
    >>> from phlox.text import BytePairTokenizer
    >>> config = GptConfig(context=32, n_layers=1, d_model=8, n_heads=2)
    >>> model = LanguageModel(config.init("numpy"), BytePairTokenizer())
    >>> type(model.generate("Once upon", 5, temperature=0.8)).__name__
    'str'
    >>> pieces = list(model.stream("Once upon", 5))
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        *,
        stops: frozenset[int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        own = frozenset[int]() if tokenizer is None else tokenizer.stops
        self.stops = own if stops is None else stops
        self.options = dict(options or {})

    @property
    def config(self) -> Any:
        """The config of the model."""
        return self.model.config

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the model."""
        return self.model(*arguments, **keywords)

    def __repr__(self) -> str:
        tokenizer = "no tokenizer" if self.tokenizer is None else f"{self.tokenizer.size:,} tokens"
        size = f"{self.model.num_params():,} parameters" if isinstance(self.model, Module) else "unknown size"
        return f"LanguageModel({type(self.model).__name__}, {size}, {tokenizer})"

    @overload
    def generate(
        self, prompt: str, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False,
        samples: Literal[1] = 1, n_best: Literal[1] = 1, **options: Any,
    ) -> str: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: str, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[True],
        samples: Literal[1] = 1, n_best: Literal[1] = 1, **options: Any,
    ) -> Completion: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: str, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False, **options: Any
    ) -> str | list[str]: ...
    @overload
    def generate(
        self, prompt: Texts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False, **options: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: Texts | Tokens | Prompts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[True],
        **options: Any,
    ) -> list[Completion]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Tokens | Prompts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False,
        logprobs: Literal[True], **options: Any,
    ) -> Generated: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Tokens, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False,
        logprobs: Literal[False] = False, **options: Any,
    ) -> Tokens: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False,
        logprobs: Literal[False] = False, **options: Any,
    ) -> list[Tokens]: ...  # fmt: skip
    def generate(self, prompt: Any, max_new_tokens: int = _NEW_TOKENS, **options: Any) -> Any:
        """Continue a text; returns only the new text. See `phlox.models.generation.generate` for the options.

        Args:
            prompt: a text, or a list of texts; or tokens, as `model.generate` takes them.
            max_new_tokens: the largest number of tokens to add.
            options: those of `generate`. `stop` gives tokens and strings that end a text besides the model's own tokens
                (`stops`); with `stop=None` no token ends it.

        Returns the new text for a text, and a list of new texts for a list, or for several samples or beams. With
        `details=True`, a `Completion` in place of each text, with its tokens, log-probabilities, and why it ended. For
        tokens, the result is that of `model.generate`: prompt and continuation, as tokens.

        Raises `ModuleError` for a model that does not generate text, `DataError` for a text without a tokenizer or
        without tokens, and the errors of `generate`.
        """
        texts = _texts_of(prompt)
        if texts is None:
            return self._generator.generate(prompt, max_new_tokens, **self._options(options))
        written: Any = self._written([self._tokens(text) for text in texts], max_new_tokens, options)
        return written[0] if isinstance(prompt, str) and len(written) == 1 else written

    @overload
    def stream(
        self, prompt: str, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False, **options: Any
    ) -> Iterator[str]: ...
    @overload
    def stream(
        self, prompt: str | Tokens, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[True], **options: Any
    ) -> Iterator[Step]: ...
    @overload
    def stream(
        self, prompt: Prompts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[True], **options: Any
    ) -> Iterator[list[Step | None]]: ...
    @overload
    def stream(
        self, prompt: Tokens, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False, **options: Any
    ) -> Iterator[int]: ...
    @overload
    def stream(
        self, prompt: Prompts, max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False, **options: Any
    ) -> Iterator[list[int | None]]: ...
    def stream(self, prompt: Any, max_new_tokens: int = _NEW_TOKENS, **options: Any) -> Iterator[Any]:
        """The new text of `generate` in pieces, each as soon as it is known; no piece ends within a character.

        For tokens, the iterator of `model.stream`.
        """
        if isinstance(prompt, str):
            return self._pieces(self._tokens(prompt), max_new_tokens, options)
        if _texts_of(prompt) is not None:
            raise DataError("stream: give one text, not a list; generate takes a list")
        return self._generator.stream(prompt, max_new_tokens, **self._options(options))

    @overload
    def chat(
        self, messages: Any, max_new_tokens: int | None = None, *, details: Literal[False] = False, **options: Any
    ) -> str: ...
    @overload
    def chat(
        self, messages: Any, max_new_tokens: int | None = None, *, details: Literal[True], **options: Any
    ) -> Completion: ...
    def chat(self, messages: Any, max_new_tokens: int | None = None, **options: Any) -> Any:
        """The reply to a chat.

        Args:
            messages: dicts with "role" and "content", as `Tokenizer.render_chat` takes them; or one text of the user.
            max_new_tokens: the largest number of tokens; by default as many as the context has left.
            options: those of `generate`, and `tools`, `documents` and `template`; `variables={...}` are further
                variables of the chat template.

        Returns the text, or what `generate` returns for one text with these options.

        Raises `ConfigError` if the tokenizer has no chat template, and `DataError` if the chat does not fit the
        context.
        """
        tokens, limit = self._chat_prompt(messages, max_new_tokens, options)
        written: Any = self._written([tokens], limit, options)
        return written[0] if len(written) == 1 else written

    @overload
    def stream_chat(
        self, messages: Any, max_new_tokens: int | None = None, *, details: Literal[False] = False, **options: Any
    ) -> Iterator[str]: ...
    @overload
    def stream_chat(
        self, messages: Any, max_new_tokens: int | None = None, *, details: Literal[True], **options: Any
    ) -> Iterator[Step]: ...
    def stream_chat(self, messages: Any, max_new_tokens: int | None = None, **options: Any) -> Iterator[Any]:
        """The reply to a chat in pieces, each as soon as it is known; the arguments are those of `chat`."""
        tokens, limit = self._chat_prompt(messages, max_new_tokens, options)
        return self._pieces(tokens, limit, options)

    @overload
    def stream_tokens(
        self, tokens: Sequence[int], max_new_tokens: int = _NEW_TOKENS, *, details: Literal[False] = False,
        **options: Any,
    ) -> Iterator[str]: ...  # fmt: skip
    @overload
    def stream_tokens(
        self, tokens: Sequence[int], max_new_tokens: int = _NEW_TOKENS, *, details: Literal[True], **options: Any
    ) -> Iterator[Step]: ...
    def stream_tokens(self, tokens: Sequence[int], max_new_tokens: int = _NEW_TOKENS, **options: Any) -> Iterator[Any]:
        """The new text after a prompt of tokens in pieces, such as one that `Tokenizer.chat` has made."""
        return self._pieces(tokens, max_new_tokens, options)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save model and tokenizer in a folder that `load` and `transformers` read.

        Raises `ConfigError` for a model that has no counterpart in `transformers`. `model.model.save` saves the weights
        of any model.
        """
        stops = {"eos_token_id": sorted(self.stops) or None, "bos_token_id": None}
        # By location: that package imports the models of this one.
        import_module("phlox.interop.huggingface").save(self.model, folder, config=stops)
        settings = {**stops, **({"do_sample": True, **self.options} if self.options else {})}
        write_text(Path(folder) / "generation_config.json", format_json(settings) + "\n")
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    @property
    def _generator(self) -> Any:
        if not hasattr(self.model, "generate"):
            raise ModuleError(f"{type(self.model).__name__} does not generate text; call the model itself")
        return self.model

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise DataError("there is no tokenizer, so give tokens: an Int tensor, or a list of lists of integers")
        return self.tokenizer

    def _written(self, prompts: list[list[int]], max_new_tokens: int, options: dict[str, Any]) -> list[Any]:
        """The new texts after prompts of tokens, or their `Completion`s."""
        options = self._options(options)
        is_detailed = bool(options.pop("details", False))
        completions: list[Completion] = self._generator.generate(prompts, max_new_tokens, details=True, **options)
        return completions if is_detailed else [completion.text for completion in completions]

    def _pieces(self, tokens: Sequence[int], max_new_tokens: int, options: dict[str, Any]) -> Iterator[Any]:
        """The new text after a prompt of tokens, as it is known, or its `Step`s."""
        options = self._options(options)
        if options.get("samples", 1) != 1:
            raise DataError(f"a stream is of one text, got samples={options['samples']}; use generate, or chat")
        is_detailed = bool(options.pop("details", False))
        steps: Iterator[list[Step]] = self._generator.stream([tokens], max_new_tokens, details=True, **options)
        return (step if is_detailed else step.text for (step,) in steps if is_detailed or step.text)

    def _chat_prompt(self, messages: Any, max_new_tokens: int | None, options: dict[str, Any]) -> tuple[list[int], int]:
        """The tokens of a chat, and how many a reply may have; takes the options of the template."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        parts = {name: options.pop(name) for name in ("tools", "documents", "template") if name in options}
        tokens = self._tokenizer.chat(messages, **parts, **options.pop("variables", {}))
        room = self.config.context - len(tokens)
        if room < 1:
            raise DataError(
                f"chat: the messages have {len(tokens)} tokens, which leaves no room for a reply in the context of "
                f"{self.config.context}; leave out earlier messages"
            )
        return tokens, room if max_new_tokens is None else max_new_tokens

    def _tokens(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        tokens = self._tokenizer.encode(text)
        if not tokens:
            raise DataError("the prompt is empty, and the tokenizer begins no text with a token; give some text")
        return tokens

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `generate`: those given, then those of the model, and the tokens that end a text."""
        merged = {**self.options, **options}
        if self.tokenizer is not None:
            merged.setdefault("tokenizer", self.tokenizer)
        stop = merged.pop("stop", ())
        if stop is None:
            return merged
        is_several = isinstance(stop, (list, tuple, set, frozenset))
        further: list[Any] = list(cast("Iterable[Any]", stop)) if is_several else [stop]
        if strings := [value for value in further if isinstance(value, str)]:
            merged["stop_text"] = strings
        vocabulary = getattr(getattr(self.model, "config", None), "vocabulary", 0)
        own = [token for token in sorted(self.stops) if token < vocabulary]
        tokens = [*own, *(value for value in further if not isinstance(value, str) and value not in own)]
        return {**merged, "stop": tokens or None}


def _texts_of(prompt: Any) -> list[str] | None:
    """The texts of a prompt; None if it is tokens."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, Tensor)):
        prompts = cast("Sequence[Any]", prompt)
        return list(prompts) if prompts and all(isinstance(text, str) for text in prompts) else None
    return None


def tokenizer_for(model: LanguageModel, vocabulary: int, name: str) -> Tokenizer:
    """The tokenizer of a model of texts with so many tokens; `name` is that of the model in errors.

    Raises `ConfigError` if there is none, or if it writes tokens that the model does not know.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ConfigError(f"{name}: has no tokenizer, and texts need one; add tokenizer.json")
    # Special tokens beyond the vocabulary are no reason: some models never see those of their tokenizer.
    if any(token not in tokenizer.special for token in range(vocabulary, tokenizer.size)):
        raise ConfigError(
            f"{name}: the tokenizer has {tokenizer.size:,} tokens, but the model only {vocabulary:,}; it is the "
            "tokenizer of another model, so give the folder the right tokenizer.json"
        )
    return tokenizer
