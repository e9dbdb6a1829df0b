"""What a batcher is asked for, and what it reports: requests, tokens, and how an answer ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from phlox.errors import PhloxError
from phlox.models.generation.grammar import GrammarMatcher

__all__ = ["End", "QueueFullError", "Request", "Ticket", "Token"]

Reason: TypeAlias = Literal["stop", "length", "cancelled", "timeout", "error"]


class QueueFullError(PhloxError, RuntimeError):
    """Too many requests wait already, or the batcher is closing."""


@dataclass(frozen=True, slots=True)
class Request:
    """A text to continue, and how. The options are those of `CausalModel.generate`.

    >>> Request([1, 2, 3], 4, temperature=0.0).max_tokens
    4
    """

    prompt: list[int]
    max_tokens: int
    """The largest number of new tokens."""
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    """The seed of its random stream; by default a random one."""
    stop: frozenset[int] = frozenset()
    """Tokens that end the text; they are not part of it."""
    logprobs: int | None = None
    """The number of alternatives to report with each token: 0 for the token's own log-probability alone."""
    grammar: GrammarMatcher | None = None
    """What its text must follow; of this request alone."""
    timeout: float | None = None
    """After so many seconds the answer ends, wherever it is."""


class Token(NamedTuple):
    """A new token of an answer."""

    token: int
    logprob: float | None
    """The log-probability that the model itself gives it, before any option; None if it was not asked for."""
    alternatives: tuple[tuple[int, float], ...]
    """The most likely tokens with their log-probabilities."""


class End(NamedTuple):
    """The end of an answer."""

    reason: Reason
    n_tokens: int
    """The number of its tokens."""
    n_reused: int
    """The number of tokens of the prompt whose keys and values another request had computed."""
    message: str = ""
    """What went wrong, if the reason is "error"."""


Report: TypeAlias = Callable[[Token | End], bool | None]
"""Is told each token and the end, in the thread of the model. If it returns True for a token, the answer ends there."""


class Ticket:
    """A request on its way through a batcher."""

    def __init__(self, request: Request, report: Report) -> None:
        self.request, self.report = request, report
        self.tokens = list(request.prompt)
        """The text so far."""
        self.n_reused = 0
        self.stream: Any = None
        """Its random stream."""
        self.deadline = None if request.timeout is None else time.monotonic() + request.timeout
        self._is_cancelled = False

    @property
    def n_new(self) -> int:
        """The number of new tokens."""
        return len(self.tokens) - len(self.request.prompt)

    def cancel(self) -> None:
        """Nobody waits for the answer any more: its row is free before the next token. Any thread may call this."""
        self._is_cancelled = True

    @property
    def is_over(self) -> Reason | None:
        """Why it must end now, if it must."""
        if self._is_cancelled:
            return "cancelled"
        return "timeout" if self.deadline is not None and time.monotonic() > self.deadline else None
