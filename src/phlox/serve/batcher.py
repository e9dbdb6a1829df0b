"""Continuous batching: requests join and leave a running batch between two tokens."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from phlox.backend.contract.backend import engine_of
from phlox.errors import RangeError
from phlox.models.generation.decoding import BLOCK, Drawn, Rule, choose, round_up
from phlox.models.generation.prefix_cache import PrefixCache
from phlox.random import stream as random_stream
from phlox.serve import steps
from phlox.serve.pool import Pool
from phlox.serve.request import End, QueueFullError, Reason, Report, Request, Ticket, Token
from phlox.serve.steps import Columns, cache_of, columns_of, rule_of
from phlox.tensor import tensor

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel

__all__ = ["Batcher", "BatcherLimits"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """How much a batcher does at once."""

    slots: int = 32
    """The largest number of texts that are continued at the same time."""
    queue: int = 256
    """The largest number of requests that wait for a row."""
    context: int | None = None
    """The largest number of tokens of a text, prompt included; by default what the model can see."""
    chunk: int = 256
    """So many tokens of prompts, or of texts to embed, are processed between two tokens of the running texts."""
    prefix_tokens: int = 16384
    """The largest number of tokens of earlier texts whose keys and values are kept, for requests that begin alike."""


@dataclass(slots=True)
class _Prompt:
    """A prompt of which a part is in its cache."""

    ticket: Ticket
    columns: Columns
    n: int
    """The number of tokens in the cache."""


class Batcher:
    """Answers requests with a causal model, many at the same time, in a thread of its own.

    Each answer is the text that `model.generate(prompt, max_tokens, seeds=[seed], ...)` gives alone, unless rounding
    decides between two tokens: the sums in matrix products may be rounded differently in batches of other sizes.

    Prompts are processed in pieces between the steps of the running texts, so a long prompt does not stop them. A row
    is free for the next request as soon as its text has ended, or nobody waits for it.

    Args:
        model: a `CausalModel`.
        limits: see `BatcherLimits`.
        compile: whether to use the backend's compiler; "auto" does where it is fast, on JAX.

    >>> import phlox as px
    >>> model = px.models.GptConfig(vocabulary=10, context=16, n_layers=1, d_model=4, n_heads=2).init("numpy")
    >>> with Batcher(model) as batcher:
    ...     tokens, end = batcher.answer(Request([1, 2, 3], 4, temperature=0.0))
    >>> tokens == model.generate(px.tensor([1, 2, 3]), 4, temperature=0.0)[3:].tolist(), end.reason
    (True, 'length')
    """

    def __init__(
        self,
        model: CausalModel[Any, Any],
        limits: BatcherLimits = BatcherLimits(),
        *,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        for name in ("slots", "queue", "chunk"):
            if getattr(limits, name) < 1:
                raise RangeError(f"Batcher: {name} must be at least 1, got {getattr(limits, name)}")
        model = model.valid()
        self.limits, self.vocabulary = limits, model.config.vocabulary
        self.context = min(limits.context or model.config.context, model.config.context)
        self.counts: Counter[str] = Counter()
        """What has happened so far: requests, tokens, steps, and answers by the reason of their end."""
        self._model, self._device = model, model.tokens.weight.device
        backend = self._device.backend
        self._compile = backend.compiles and (engine_of(backend).prefers_compiled if compile == "auto" else compile)
        self._extend = steps.compiled_extend if self._compile else steps.extend
        self._advance = steps.compiled_advance if self._compile else steps.advance
        self._choose: Any = steps.compiled_choose if self._compile else choose
        # Frequencies of rotary positions that depend on the length of a text: it is processed as a whole.
        scaling = getattr(model.config, "rotary_scaling", None)
        self._is_by_length = scaling is not None and scaling.is_by_length
        self._pool = Pool(model, limits.slots, self.context, self._compile)
        self._prefixes: PrefixCache | None = None
        if limits.prefix_tokens and not self._is_by_length:
            size = sum(x.nbytes for layer in model.init_cache(1, 1) for x in (layer.key, layer.value))
            # In programs, few sizes.
            block = BLOCK if self._compile else 16
            self._prefixes = PrefixCache(model, max_bytes=limits.prefix_tokens * size, block=block)
        self._waiting: deque[Ticket] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._prompt: _Prompt | None = None
        self._running: list[Ticket] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="phlox-batcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- any thread

    @property
    def n_running(self) -> int:
        """The number of texts that are being continued, or whose prompt is being processed."""
        return len(self._running) + (self._prompt is not None)

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait for a row."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Does its thread run, and take requests?"""
        return self._thread.is_alive() and not self._is_closing

    def submit(self, request: Request, report: Report) -> Ticket:
        """Answer a request; `report` is told each token and the end, in the thread of the model.

        Raises `RangeError` if the text would not fit, and `QueueFullError` if too many requests wait.
        """
        n = len(request.prompt)
        if not n or request.max_tokens < 1 or n + request.max_tokens > self.context:
            raise RangeError(
                f"a prompt of {n} tokens and {request.max_tokens} new ones do not fit the context of {self.context}"
            )
        ticket = Ticket(request, report)
        with random_stream(secrets.randbits(31) if request.seed is None else request.seed) as stream:
            ticket.stream = stream
        with self._changed:
            n_waiting = sum(ticket.is_over is None for ticket in self._waiting)
            if self._is_closing or n_waiting >= self.limits.queue:
                self.counts["rejected"] += 1
                reason = "the server is closing" if self._is_closing else f"{n_waiting} requests wait already"
                raise QueueFullError(f"{reason}; try again later")
            self._waiting.append(ticket)
            self.counts["requests"] += 1
            self._changed.notify_all()
        return ticket

    def answer(self, request: Request) -> tuple[list[int], End]:
        """The new tokens, and the end, of a request: waits for them."""
        tokens: list[int] = []
        ends: list[End] = []
        is_done = threading.Event()

        def report(event: Token | End) -> None:
            if isinstance(event, Token):
                tokens.append(event.token)
            else:
                ends.append(event)
                is_done.set()

        self.submit(request, report)
        is_done.wait()
        return tokens, ends[0]

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Call a function in the thread of the model, between two tokens of the running texts."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closing or len(self._calls) >= self.limits.queue:
                raise QueueFullError("the server is closing, or too many calls wait; try again later")
            self._calls.append((future, function))
            self._changed.notify_all()
        return future

    def cancel(self, ticket: Ticket) -> None:
        """End an answer before its next token, for nobody waits for it."""
        ticket.cancel()
        with self._changed:
            self._changed.notify_all()

    def close(self, *, finish: bool = True, timeout: float | None = None) -> bool:
        """Take no more requests, and finish those that were taken, or end them; returns whether all have ended."""
        with self._changed:
            self._is_closing = True
            if not finish:
                for ticket in (*self._waiting, *self._running, *([self._prompt.ticket] if self._prompt else [])):
                    ticket.cancel()
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread of the model

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._prompt or self._running or self._calls):
                    self._pool.clear()
                    if self._is_closing:
                        if self._prefixes is not None:
                            self._prefixes.clear()
                        return
                    self._changed.wait()
            try:
                self._end_those_that_are_over()
                if self._calls:
                    self._call_next()
                self._process_prompts()
                if self._running:
                    self._advance_rows()
            except Exception as error:  # of the engine, such as exhausted memory: these answers fail, the next may not
                self._fail(error)

    def _call_next(self) -> None:
        future, function = self._calls.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def _end_those_that_are_over(self) -> None:
        with self._changed:
            over = [ticket for ticket in self._waiting if ticket.is_over]
            for ticket in over:
                self._waiting.remove(ticket)
        for ticket in over:
            self._report_end(ticket, ticket.is_over or "cancelled")
        if self._prompt is not None and (reason := self._prompt.ticket.is_over):
            ticket, self._prompt = self._prompt.ticket, None
            self._report_end(ticket, reason)
        for ticket in [ticket for ticket in self._running if ticket.is_over]:
            self._leave(ticket, ticket.is_over or "cancelled")

    def _process_prompts(self) -> None:
        """Process at most a chunk of prompts; those that are complete join the batch."""
        budget = self.context if self._is_by_length else self.limits.chunk
        while budget > 0:
            if self._prompt is None and not self._begin_prompt():
                return
            prompt = self._prompt
            assert prompt is not None
            tokens = prompt.ticket.request.prompt
            count, capacity = min(budget, len(tokens) - prompt.n), prompt.columns[0][0].shape[2]
            width = min(round_up(count, capacity), capacity - prompt.n) if self._compile else count
            piece = np.zeros((1, width), np.int32)
            piece[0, :count] = tokens[prompt.n : prompt.n + count]
            start = tensor(prompt.n, device=self._device)
            columns = self._pool.in_use(prompt.columns, 1, prompt.n + count)
            logits, columns = self._extend(self._model, tensor(piece, device=self._device), count, columns, start)
            prompt.columns = self._pool.kept(prompt.columns, columns)
            prompt.n += count
            budget -= count
            self.counts["prompt_tokens"] += count
            if prompt.n == len(tokens):
                self._join(prompt, logits)

    def _begin_prompt(self) -> bool:
        """Take the next request that waits, if there is one and a row for it."""
        with self._changed:
            if not self._waiting or len(self._running) >= self.limits.slots:
                return False
            ticket = self._waiting.popleft()
            self._prompt = _Prompt(ticket, (), 0)
        prompt = ticket.request.prompt
        columns = self._pool.fresh(1, round_up(len(prompt), self.context))
        if self._prefixes is not None:
            cache = cache_of(columns, tensor(0, device=self._device))
            cache, ticket.n_reused = self._prefixes.restore(cache, np.asarray([prompt]))
            columns = columns_of(cache)
        self._prompt.columns, self._prompt.n = columns, ticket.n_reused
        self.counts["reused_tokens"] += ticket.n_reused
        return True

    def _join(self, prompt: _Prompt, logits: Any) -> None:
        """A prompt is complete: its text gets a row, and its first token."""
        ticket, row = prompt.ticket, len(self._running)
        self._pool.fit(row + 1, max(map(len, (text.tokens for text in (*self._running, ticket)))) + 1)
        self._pool.insert(row, prompt.columns)
        self._keep_prefix(prompt.columns, 0, ticket.request.prompt)
        self._prompt = None
        self._running.append(ticket)
        self._accept([ticket], self._choose(logits, self._rule([ticket], 1)))

    def _keep_prefix(self, columns: Columns, row: int, tokens: list[int]) -> None:
        """Keep the keys and values of a text for others that begin alike."""
        if self._prefixes is not None:
            self._prefixes.add(cache_of(columns, tensor(0, device=self._device)), row, tokens)

    def _advance_rows(self) -> None:
        """One step of the model: a token for each running text."""
        tickets = list(self._running)
        longest = max(len(ticket.tokens) for ticket in tickets)
        self._pool.fit(len(tickets), longest)
        columns = self._pool.in_use(self._pool.columns, len(tickets), longest)
        rows = columns[0][0].shape[0]
        tokens, positions = np.zeros((rows, 1), np.int32), np.zeros(rows, np.int32)
        tokens[: len(tickets), 0] = [ticket.tokens[-1] for ticket in tickets]
        positions[: len(tickets)] = [len(ticket.tokens) - 1 for ticket in tickets]
        logits, columns = self._advance(
            self._model, tensor(tokens, device=self._device), columns, tensor(positions, device=self._device)
        )
        self._pool.columns = self._pool.kept(self._pool.columns, columns)
        self.counts["steps"] += 1
        self._accept(tickets, self._choose(logits, self._rule(tickets, rows)))

    def _rule(self, tickets: list[Ticket], rows: int) -> Rule:
        length = max(len(ticket.tokens) for ticket in tickets)
        length = round_up(length, self.context) if self._compile else length
        return rule_of(tickets, rows, self.vocabulary, length, self._device, few_programs=self._compile)

    def _accept(self, tickets: list[Ticket], drawn: Drawn) -> None:
        """Report the next token of each of these texts; those that end with it leave."""
        tokens: list[int] = drawn.token[:, 0].tolist()
        logprobs = alternatives = None
        if drawn.logprob is not None and drawn.alternatives is not None:
            logprobs = drawn.logprob[:, 0].tolist()
            alternatives = [x.tolist() for x in drawn.alternatives]
        for row, ticket in enumerate(tickets):
            token, request = tokens[row], ticket.request
            if token in request.stop:
                self._leave(ticket, "stop")
                continue
            ticket.tokens.append(token)
            self.counts["tokens"] += 1
            event = Token(token, None, ())
            if request.logprobs is not None and logprobs is not None and alternatives is not None:
                ids, values = (part[row][: request.logprobs] for part in alternatives)
                event = Token(token, logprobs[row], tuple(zip(ids, values, strict=True)))
            try:
                if request.grammar is not None:
                    request.grammar.add(token)
                is_complete = bool(ticket.report(event)) or (
                    request.grammar is not None and request.grammar.is_complete
                )
            except Exception as error:  # of this request alone
                self._leave(ticket, "error", str(error) or type(error).__name__)
                continue
            if is_complete:
                self._leave(ticket, "stop")
            elif ticket.n_new >= request.max_tokens:
                self._leave(ticket, "length")

    def _leave(self, ticket: Ticket, reason: Reason, message: str = "") -> None:
        """A text has ended: the last row takes its place."""
        row, last = self._running.index(ticket), len(self._running) - 1
        if reason in ("stop", "length"):  # the last token was drawn, and not yet processed
            self._keep_prefix(self._pool.columns, row, ticket.tokens[:-1])
        self._pool.move(last, row)
        self._running[row] = self._running[last]
        self._running.pop()
        self._report_end(ticket, reason, message)

    def _fail(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        failed = [*self._running, *([self._prompt.ticket] if self._prompt else [])]
        self._running, self._prompt = [], None
        self._pool.clear()
        for ticket in failed:
            self._report_end(ticket, "error", message)

    def _report_end(self, ticket: Ticket, reason: Reason, message: str = "") -> None:
        self.counts[f"ended_{reason}"] += 1
        with contextlib.suppress(Exception):  # nobody may be there any more
            ticket.report(End(reason, ticket.n_new, ticket.n_reused, message))
