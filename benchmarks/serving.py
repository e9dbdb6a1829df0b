"""32 clients of `phlox serve` at the same time: all rows in one batch, beside the same texts generated one by one.

Each client sends a prompt of its own over HTTP, and reads the whole answer. One by one, there is no server: `generate`
makes each text, which is what the best server that answers one by one could do. The weights are random.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import uvicorn

from benchmarks.harness import Ratio, built, compare, in_turn, quick
from phlox import tensor
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models import Decoder, DecoderConfig, LanguageModel
from phlox.serve import BatcherLimits, Server, ServerOptions
from phlox.text import BytePairTokenizer

CLIENTS, PROMPT = 32, 32
SIZES: dict[str, Any] = {"vocabulary": 8192, "context": 512, "n_layers": 6, "d_model": 384, "n_heads": 6}
SMALL: dict[str, Any] = {"vocabulary": 260, "context": 512, "n_layers": 1, "d_model": 32, "n_heads": 2}


def model_of(backend: Backend) -> Decoder:
    return DecoderConfig(**(SMALL if quick() else SIZES)).init(backend).init(0).valid()


def one_by_one(backend: Backend) -> Callable[[], float]:
    """A function that generates the text of each client, and returns the seconds for all."""
    model = model_of(backend)

    def seconds() -> float:
        start = time.perf_counter()
        for number in range(CLIENTS):
            prompt = tensor([number + 1] * PROMPT, device=backend)
            model.generate(prompt, 4 if quick() else 64, temperature=0.0, compile=backend.compiles).numpy()
        return time.perf_counter() - start

    seconds()  # what is compiled is compiled
    return seconds


def together(backend: Backend) -> Callable[[], float]:
    """A running server; a function that asks it from all clients, and returns the seconds until all have an answer."""
    limits = BatcherLimits(slots=CLIENTS, prefix_tokens=0)
    server = Server(LanguageModel(model_of(backend), BytePairTokenizer()), ServerOptions(batch=limits))
    config = uvicorn.Config(server.app, log_level="warning", access_log=False, port=0)
    sock = config.bind_socket()
    threading.Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [sock]}, daemon=True).start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/completions"
    new = 4 if quick() else 64

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        body = {"prompt": [number + 1] * PROMPT, "max_tokens": new, "temperature": 0, "ignore_eos": True}
        answer = await client.post(url, json=body)
        assert answer.json()["usage"]["completion_tokens"] == new, answer.text

    async def ask_all() -> None:
        async with httpx.AsyncClient(timeout=600) as client:
            await asyncio.gather(*[ask(client, number) for number in range(CLIENTS)])

    def seconds() -> float:
        start = time.perf_counter()
        asyncio.run(ask_all())
        return time.perf_counter() - start

    seconds()  # what is compiled is compiled
    return seconds


def run() -> list[Ratio]:
    """All rows of the table."""
    rows: list[Ratio] = []
    backends: dict[str, Backend] = {"NumPy": NumPy(), "Torch": Torch(), "JAX": Jax()}
    for engine, backend in backends.items():
        ours, theirs = f"{CLIENTS} clients on {engine}", f"one by one on {engine}"
        contestants = built({theirs: partial(one_by_one, backend), ours: partial(together, backend)})
        times = in_turn(contestants, range(2))
        workload = (
            f"{CLIENTS} clients of a server, {'a small model' if quick() else 'a model of 17 million parameters'}"
        )
        rows.append(compare(workload, times, ours, theirs, target=0.25))
    return rows
