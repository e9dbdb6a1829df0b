"""The answers to one request of a client: what the thread of the model reports, as events of asyncio and as JSON."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple

from phlox.models.generation.ends import StopText
from phlox.serve.answer_text import AnswerDecoder
from phlox.serve.errors import ApiError
from phlox.serve.request import End, QueueFullError, Token
from phlox.serve.tools import ToolCall, ToolText

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

    from phlox.serve.batcher import Batcher
    from phlox.serve.metrics import Metrics
    from phlox.serve.protocol import Job
    from phlox.serve.request import Report, Ticket
    from phlox.text import Tokenizer


class Piece(NamedTuple):
    """A new token of an answer, and the text that became certain by it."""

    number: int
    """The number of the answer."""
    text: str
    token: Token


class Finish(NamedTuple):
    """The end of an answer, and the rest of its text."""

    number: int
    text: str
    calls: list[ToolCall]
    end: End


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Exchange:
    """The answers to one request. When the client goes, they end, and their rows are free.

    Raises `QueueFullError` if too many requests wait.
    """

    def __init__(self, job: Job, batcher: Batcher, tokenizer: Tokenizer, http: HttpRequest, metrics: Metrics) -> None:
        self._job, self._batcher, self._tokenizer, self._metrics = job, batcher, tokenizer, metrics
        self._start = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Piece | Finish | None] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        try:
            for index, request in enumerate(job.requests):
                self._tickets.append(batcher.submit(request, self._reporter(index)))
        except QueueFullError:
            self.cancel()
            raise
        self._watch = asyncio.create_task(self._watch_client(http))

    async def events(self) -> AsyncIterator[Piece | Finish]:
        """What happens to the answers, until all have ended. Raises `ClientGone` if the client goes before."""
        left, is_first = len(self._tickets), True
        try:
            while left:
                event = await self._events.get()
                if event is None:
                    raise ClientGone
                seconds = time.monotonic() - self._start
                if is_first:
                    self._metrics.first_token.add(seconds)
                    is_first = False
                if isinstance(event, Finish):
                    self._metrics.answer.add(seconds)
                    left -= 1
                    _check(event.end)
                yield event
        finally:
            self._watch.cancel()
            self.cancel()

    def cancel(self) -> None:
        """End all answers."""
        for ticket in self._tickets:
            self._batcher.cancel(ticket)

    async def _watch_client(self, http: HttpRequest) -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        self.cancel()
        self._events.put_nowait(None)

    def _reporter(self, index: int) -> Report:
        """What the batcher calls, in the thread of the model."""
        decoder = AnswerDecoder(self._tokenizer, shows_markers=bool(self._job.tools))
        text = StopText(decoder, self._job.stops)
        tools = ToolText(self._job.tools)

        def report(event: Token | End) -> bool:
            if isinstance(event, Token):
                self._push(Piece(index, tools.add(text.add(event.token)), event))
                return text.is_complete
            piece = tools.add(text.end())
            rest, calls = tools.end()
            self._push(Finish(index, piece + rest, calls if self._job.calls_many else calls[:1], event))
            return True

        return report

    def _push(self, event: Piece | Finish) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def _check(end: End) -> None:
    if end.reason == "error":
        raise ApiError(500, f"the model failed: {end.message}")
    if end.reason == "timeout":
        raise ApiError(504, "the answer took too long; ask for fewer tokens, or give --timeout more", code="timeout")
    if end.reason == "cancelled":
        raise ApiError(503, "the server ended the answer because it is closing", code="closing")


class Format:
    """The answers of one request in OpenAI's form."""

    def __init__(self, job: Job, tokenizer: Tokenizer, token_bytes: list[bytes], head: dict[str, Any]) -> None:
        self._job, self._tokenizer, self._bytes, self._head = job, tokenizer, token_bytes, head
        self._offsets = [0] * len(job.requests)
        self._reused = 0
        self._n_tokens = 0

    def chunks(self, event: Piece | Finish) -> list[dict[str, Any]]:
        """An event as chunks of a stream."""
        chunks: list[dict[str, Any]] = []
        if isinstance(event, Piece):
            logprobs = self._logprobs(event.number, [event])
            if event.text or logprobs:
                chunks.append(self._chunk(event.number, {"content": event.text}, logprobs, None))
            return chunks
        self._count(event)
        if event.text:
            chunks.append(self._chunk(event.number, {"content": event.text}, None, None))
        if event.calls:
            calls = [{"index": index, **call.as_json()} for index, call in enumerate(event.calls)]
            chunks.append(self._chunk(event.number, {"tool_calls": calls}, None, None))
        return [*chunks, self._chunk(event.number, {}, None, _reason(event))]

    def beginning(self, index: int) -> dict[str, Any] | None:
        """The first chunk of an answer: its role or, in a completion, the prompt if that is asked for."""
        if self._job.is_chat:
            return self._chunk(index, {"role": "assistant", "content": ""}, None, None)
        return self._chunk(index, {"content": self._echo(index)}, None, None) if self._job.echoes else None

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, if usage is asked for."""
        return {**self._head, "object": self._object(True), "choices": [], "usage": self._usage()}

    def whole(self, events: list[Piece | Finish]) -> dict[str, Any]:
        """All answers at once."""
        choices: list[dict[str, Any]] = []
        for index in range(len(self._job.requests)):
            own = [event for event in events if event.number == index]
            finish = own[-1]
            assert isinstance(finish, Finish)
            self._count(finish)
            text = "".join(event.text for event in own)
            logprobs = self._logprobs(index, [event for event in own if isinstance(event, Piece)])
            choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": _reason(finish)}
            if self._job.is_chat:
                message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
                if finish.calls:
                    message["content"] = text.strip() or None
                    message["tool_calls"] = [call.as_json() for call in finish.calls]
                choices.append({**choice, "message": message})
            else:
                choices.append({**choice, "text": self._echo(index) + text})
        return {**self._head, "object": self._object(False), "choices": choices, "usage": self._usage()}

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": reason}
        choice |= {"delta": delta} if self._job.is_chat else {"text": delta.get("content", "")}
        usage = {"usage": None} if self._job.streams_usage else {}
        return {**self._head, "object": self._object(True), "choices": [choice], **usage}

    def _object(self, is_chunk: bool) -> str:
        if not self._job.is_chat:
            return "text_completion"
        return "chat.completion.chunk" if is_chunk else "chat.completion"

    def _echo(self, index: int) -> str:
        return self._job.echoes[index // self._job.n] if self._job.echoes else ""

    def _count(self, finish: Finish) -> None:
        self._n_tokens += finish.end.n_tokens
        self._reused += finish.end.n_reused if finish.number % self._job.n == 0 else 0

    def _usage(self) -> dict[str, Any]:
        n_prompt = sum(len(request.prompt) for request in self._job.requests[:: self._job.n])
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": self._n_tokens,
            "total_tokens": n_prompt + self._n_tokens,
            "prompt_tokens_details": {"cached_tokens": self._reused},
        }

    def _logprobs(self, index: int, pieces: list[Piece]) -> dict[str, Any] | None:
        if self._job.requests[index].logprobs is None or not pieces:
            return None
        if self._job.is_chat:
            content = [
                {
                    **self._rated(piece.token.token, piece.token.logprob),
                    "top_logprobs": [self._rated(*alternative) for alternative in piece.token.alternatives],
                }
                for piece in pieces
            ]
            return {"content": content, "refusal": None}
        tokens = [self._name(piece.token.token) for piece in pieces]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(piece.token.logprob) for piece in pieces],
            "top_logprobs": [
                {self._name(token): _finite(logprob) for token, logprob in piece.token.alternatives} for piece in pieces
            ],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self._tokenizer.decode([token], special=True) if token < self._tokenizer.size else f"<{token}>"

    def _rated(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._bytes[token] if token < len(self._bytes) else b""
        return {"token": self._name(token), "logprob": _finite(logprob), "bytes": list(text)}


def _finite(logprob: float | None) -> float:
    """JSON has no infinity: OpenAI writes -9999 for it."""
    return max(-9999.0, -math.inf if logprob is None else logprob)


def _reason(finish: Finish) -> str:
    return "tool_calls" if finish.calls else finish.end.reason
