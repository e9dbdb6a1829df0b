"""The server: OpenAI's protocol for a language model, or predictions of another model, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from phlox.errors import ConfigError, ExtraNotInstalledError
from phlox.models import CausalModel, Encoder, LanguageModel, SentenceEncoder
from phlox.models.language_model import tokenizer_for
from phlox.serve.batcher import Batcher, BatcherLimits
from phlox.serve.embedding import BATCH_TOKENS, Embedder, batches_of
from phlox.serve.errors import ApiError
from phlox.serve.exchange import ClientGone, Exchange, Finish, Format, Piece
from phlox.serve.fields import Fields
from phlox.serve.metrics import Metrics
from phlox.serve.predictor import Predictor, predictor_of_classifier
from phlox.serve.protocol import Job, Protocol
from phlox.serve.request import QueueFullError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    from phlox.serve.connections import Program
except ImportError as error:
    raise ExtraNotInstalledError(
        f"a server needs starlette and uvicorn: install Phlox with the extra 'serve' ({error})"
    ) from None

__all__ = ["Server", "ServerOptions"]

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is reached, and its limits."""

    name: str = "model"
    """The name of the model in the protocol."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    api_key: str | None = field(default=None, repr=False)
    """Clients must send it as `Authorization: Bearer KEY`."""
    batch: BatcherLimits = field(default_factory=BatcherLimits)
    """See `BatcherLimits`."""
    most_tokens: int = 1 << 20
    """The largest number of new tokens of an answer."""
    body_bytes: int = 4 << 20
    """The largest body of a request."""
    timeout: float | None = None
    """The longest time in seconds that an answer may take; by default any."""
    compile: bool | Literal["auto"] = "auto"
    """See `Batcher`."""
    patience: float = 60.0
    """The longest time in seconds to wait for a client: for a whole request, and for it to read what was sent."""


class Server:
    """Serves a model over HTTP; `app` is an application of Starlette, and `run` serves it until it is stopped.

    Args:
        model: a `LanguageModel` with a tokenizer, as `phlox.models.load` returns it: of a decoder, an encoder, or a
            classifier of texts or images; or a `Predictor`.
        options: see `ServerOptions`.

    Raises `ConfigError` for a model without a tokenizer, or of another kind. Without the extra 'serve', importing this
    class raises `ExtraNotInstalledError`.

    >>> from phlox.models import GptConfig, LanguageModel
    >>> from phlox.text import BytePairTokenizer
    >>> model = LanguageModel(GptConfig(n_layers=1, d_model=8, n_heads=2).init("numpy"), BytePairTokenizer())
    >>> server = Server(model)
    >>> server.close()
    True
    """

    def __init__(self, model: LanguageModel | Predictor, options: ServerOptions = ServerOptions()) -> None:
        self.options = options
        self._created = int(time.time())
        self._statuses: Counter[int] = Counter()
        self._metrics = Metrics()
        self._predictor: Predictor | None = None
        self._batcher: Batcher | None = None
        self._embedder: Embedder | None = None
        self._running_calls = asyncio.Semaphore(1)
        self._program: Any = None
        kind = cast("type[Any]", type(None if isinstance(model, Predictor) else model.model))
        if isinstance(model, Predictor):
            self._predictor = model
        elif issubclass(kind, (CausalModel, Encoder, SentenceEncoder)):
            self._protocol = self._language_model(model, issubclass(kind, CausalModel))
        elif hasattr(model.model, "generate"):
            raise ConfigError(
                f"{options.name}: the protocol continues texts, which needs a decoder, and the model is "
                f"{kind.__name__}, which answers single texts: use generate in Python"
            )
        else:
            self._predictor = predictor_of_classifier(model, options.name)
        self.app: Starlette = self._application()

    def _language_model(self, model: LanguageModel, is_causal: bool) -> Protocol:
        """Reads requests to a model of texts; a batcher runs it if it continues texts."""
        self._embedder = Embedder(model.model)
        vocabulary, context = self._embedder.config.vocabulary, self._embedder.config.context
        tokenizer = tokenizer_for(model, vocabulary, self.options.name)
        if is_causal:
            self._batcher = Batcher(model.model, self.options.batch, compile=self.options.compile)
            self._bytes, context = tokenizer.token_bytes(), self._batcher.context
        return Protocol(
            tokenizer,
            vocabulary=vocabulary,
            context=context,
            stops=frozenset(token for token in model.stops if token < vocabulary),
            defaults=model.options,
            most_tokens=self.options.most_tokens,
            timeout=self.options.timeout,
        )

    # --- life

    def run(self, ready: Callable[[str], object] = print) -> None:
        """Serve until SIGTERM or SIGINT. Then take no new requests, finish those that were taken, and return.

        `ready` is called with the address when the server can be reached. A second SIGINT ends the answers at once,
        and raises `KeyboardInterrupt`.
        """
        options = self.options
        config = uvicorn.Config(
            self.app, host=options.host, port=options.port, access_log=False, server_header=False, log_config=None,
            timeout_graceful_shutdown=None,
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        try:
            sock = socket.create_server((options.host, options.port), family=family)
        except OSError as error:
            reason = str(error.strerror).partition(" (while")[0]
            raise ConfigError(
                f"the server cannot listen at {options.host}, port {options.port} ({reason}); give another port or host"
            ) from None
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{sock.getsockname()[1]}"
        is_main = threading.current_thread() is threading.main_thread()
        # When all is done, uvicorn sends itself the signals again: the exit status is to be that of a success.
        ignored = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        previous = {sig: signal.signal(sig, signal.SIG_IGN) for sig in ignored}
        self._program = program = Program(config, options.patience, partial(ready, address), self._end_answers)
        try:
            program.run(sockets=[sock])
        finally:
            self._program = None
            for sig, handler in previous.items():
                signal.signal(sig, handler)
            sock.close()
            self.close()
        if program.is_ending:
            raise KeyboardInterrupt

    def _end_answers(self) -> None:
        if self._batcher is not None:
            self._batcher.close(finish=False, timeout=0.0)

    def stop(self) -> None:
        """Let `run` finish the requests that were taken, and return, as SIGTERM does. Any thread may call this."""
        if self._program is not None:
            self._program.should_exit = True

    def close(self, *, finish: bool = False) -> bool:
        """End the thread of the model, after the running answers if `finish`; returns whether it ended."""
        return self._batcher is None or self._batcher.close(finish=finish, timeout=None if finish else 30.0)

    def _application(self) -> Starlette:
        async def refused(_: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            paths = ", ".join(route.path for route in routes)
            return self._error(ApiError(error.status_code, f"{error.detail}; this server has {paths}"))

        def guarded(handler: Handler) -> Handler:
            async def handle(request: Request) -> Response:
                try:
                    self._check_access(request)
                    response = await handler(request)
                except ApiError as error:
                    return self._error(error)
                except QueueFullError as error:
                    status = 503 if self._batcher is None or not self._batcher.is_alive else 429
                    return self._error(ApiError(status, str(error), code="queue_full", headers={"Retry-After": "1"}))
                except ClientGone:
                    response = Response(status_code=499)
                except Exception as error:
                    logging.getLogger("phlox.serve").exception("a request failed")
                    return self._error(ApiError(500, f"the server failed: {type(error).__name__}; see its log"))
                self._statuses[response.status_code] += 1
                return response

            return handle

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[None]:
            yield
            await asyncio.to_thread(self.close, finish=True)

        async def health(_: Request) -> Response:
            is_alive = self._batcher is None or self._batcher.is_alive
            return JSONResponse({"status": "ok" if is_alive else "closing"}, 200 if is_alive else 503)

        routes = [
            Route("/health", health),
            Route("/metrics", guarded(self._get_metrics)),
            Route("/v1/models", guarded(self._get_models)),
            Route("/v1/models/{name:path}", guarded(self._get_model)),
        ]
        if self._predictor is not None:
            routes.append(Route("/predict", guarded(self._predict), methods=["POST"]))
        else:
            routes.append(Route("/v1/embeddings", guarded(self._embed), methods=["POST"]))
        if self._batcher is not None:
            routes += [
                Route("/", self._page),
                Route("/v1/chat/completions", guarded(partial(self._answer, self._protocol.chat)), methods=["POST"]),
                Route("/v1/completions", guarded(partial(self._answer, self._protocol.completion)), methods=["POST"]),
            ]
        return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refused})

    def _error(self, error: ApiError) -> Response:
        self._statuses[error.status] += 1
        return JSONResponse(error.content, error.status, error.headers)

    # --- who may ask, and what

    def _check_access(self, request: Request) -> None:
        key = self.options.api_key
        if key is None:
            # A page of another site, whose name leads to this machine, must not reach a server that asks for no key.
            host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
            if self.options.host in LOOPBACK and host.strip("[]") not in (*LOOPBACK, "testserver"):
                raise ApiError(403, f"the server answers only to the host {LOOPBACK[0]}; give it an API key otherwise")
            return
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), key.encode()):
            headers = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, "the API key is wrong or missing", code="invalid_api_key", headers=headers)

    async def _body(self, request: Request) -> Any:
        """The JSON of a request."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the body must be JSON, with the header Content-Type: application/json")
        most, body = self.options.body_bytes, bytearray()
        try:
            async with asyncio.timeout(self.options.patience):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise ApiError(413, f"the body is larger than {most} bytes", code="request_too_large")
        except ClientDisconnect:
            raise ClientGone from None
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", headers={"Connection": "close"}) from None
        try:
            content = json.loads(body)
            if b"\\ud" in body.lower():  # half of a pair, which is no text
                json.dumps(content, ensure_ascii=False).encode()
            return content
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None

    async def _fields(self, request: Request) -> Fields:
        """The fields of a request to the model that it names."""
        fields = Fields(await self._body(request))
        self._check_name(fields.take("model", str))
        return fields

    def _check_name(self, name: str | None) -> None:
        own = self.options.name
        if name not in (None, "", own):
            message = f"there is no model {name!r}; this server has {own!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    # --- endpoints

    async def _page(self, _: Request) -> Response:
        headers = {
            "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(files("phlox.serve").joinpath("page.html").read_text(encoding="utf-8"), headers=headers)

    async def _get_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def _get_model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        card: dict[str, Any] = {
            "id": self.options.name, "object": "model", "created": self._created, "owned_by": "phlox",
        }  # fmt: skip
        if self._embedder is not None:
            card["max_model_len"] = self._protocol.context
        if self._batcher is not None:
            card["has_chat_template"] = self._protocol.tokenizer.chat_template is not None
        if self._predictor is not None:
            card["inputs"] = [
                {"name": each.name, "shape": each.shape, "type": each.dtype.name} for each in self._predictor.inputs
            ]
        return card

    async def _get_metrics(self, _: Request) -> Response:
        text = self._metrics.text(self._batcher, self._statuses)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _predict(self, request: Request) -> Response:
        assert self._predictor is not None
        body = await self._body(request)
        return JSONResponse(await self._call(partial(self._predictor, body)))

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread of the model or, without one, when no other call runs."""
        if self._batcher is not None:
            return await asyncio.wrap_future(self._batcher.call(function))
        async with self._running_calls:
            return await asyncio.to_thread(function)

    async def _answer(self, read: Callable[[Fields], Job], request: Request) -> Response:
        assert self._batcher is not None
        job = await asyncio.to_thread(read, await self._fields(request))
        exchange = Exchange(job, self._batcher, self._protocol.tokenizer, request, self._metrics)
        head = {
            "id": f"{'chatcmpl' if job.is_chat else 'cmpl'}-{id(exchange):x}{time.time_ns():x}",
            "created": int(time.time()),
            "model": self.options.name,
        }
        answer = Format(job, self._protocol.tokenizer, self._bytes, head)
        if job.streams:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            pieces = _stream(job, exchange.events(), answer)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)
        return JSONResponse(answer.whole([event async for event in exchange.events()]))

    async def _embed(self, request: Request) -> Response:
        embedder = self._embedder
        assert embedder is not None
        fields = await self._fields(request)
        texts: Any = fields.required("input", (str, list))
        form = fields.take("encoding_format", str, "float")
        fields.only(encoding_format=("float", "base64"))
        size = fields.whole("dimensions", None, 1)
        fields.ignore("user")
        fields.finish()
        if isinstance(texts, str) or all(isinstance(token, int) for token in texts):
            texts = [texts]
        if len(texts) > 2048:
            raise ApiError(400, f"input has {len(texts)} texts, more than 2048", param="input")
        rows = await asyncio.to_thread(lambda: [self._protocol.tokens(text, "input") for text in texts])
        longest, context = max(map(len, rows)), self._protocol.context
        if longest > context:
            raise ApiError(400, f"a text of {longest} tokens is longer than the context of {context}",
                           param="input", code="context_length_exceeded")  # fmt: skip
        vectors: dict[int, np.ndarray[Any, Any]] = {}
        # Between the batches, the running answers go on.
        for numbers in batches_of(rows, BATCH_TOKENS if self._batcher is None else self.options.batch.chunk):
            if await request.is_disconnected():
                raise ClientGone
            batch = await self._call(partial(embedder, [rows[number] for number in numbers], size))
            vectors.update(zip(numbers, batch, strict=True))
        if size is not None and len(vectors[0]) < size:
            raise ApiError(400, f"dimensions must be at most {len(vectors[0])}, got {size}", param="dimensions")
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vectors[index], form)}
            for index in range(len(rows))
        ]
        total = sum(map(len, rows))
        usage = {"prompt_tokens": total, "total_tokens": total}
        return JSONResponse({"object": "list", "data": data, "model": self.options.name, "usage": usage})


async def _stream(job: Job, events: AsyncIterator[Piece | Finish], answer: Format) -> AsyncIterator[str]:
    """Events as server-sent events."""
    begun: set[int] = set()
    try:
        async for event in events:
            if event.number not in begun:
                begun.add(event.number)
                if (chunk := answer.beginning(event.number)) is not None:
                    yield _sent(chunk)
            for chunk in answer.chunks(event):
                yield _sent(chunk)
        if job.streams_usage:
            yield _sent(answer.usage_chunk())
        yield "data: [DONE]\n\n"
    except ApiError as error:  # the status is sent already
        yield _sent(error.content)
    except ClientGone:
        pass


def _sent(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _encoded(vector: np.ndarray[Any, Any], form: str) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
