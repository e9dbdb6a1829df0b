"""Continuous batching: every answer is the one that the model gives alone, whatever else is in the batch.

Serves: src/phlox/serve/{batcher,steps,pool,prefixes,request}.py
"""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models import CausalModel, DecoderConfig
from phlox.serve import Batcher, BatcherLimits, End, Request, Token

VOCABULARY, CONTEXT = 50, 160


def model_on(backend: Any, **options: Any) -> CausalModel[Any, Any]:
    """A small model of sharp distributions, so that rounding rarely decides between two tokens."""
    settings: dict[str, Any] = {
        "vocabulary": VOCABULARY, "context": CONTEXT, "n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2,
        "init_std": 0.6, "window": 24, "window_layers": (1,), **options,
    }  # fmt: skip
    return DecoderConfig(**settings).init(backend).init(3)


def alone(model: Any, request: Request) -> list[int]:
    """The answer of the model itself."""
    text = model.generate(
        [request.prompt], request.max_tokens, temperature=request.temperature, top_k=request.top_k,
        top_p=request.top_p, min_p=request.min_p, repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty, frequency_penalty=request.frequency_penalty,
        logit_bias=dict(request.logit_bias), seeds=[request.seed or 0], stop=sorted(request.stop), compile=False,
    )[0].tolist()  # fmt: skip
    return text[len(request.prompt) :]


def mixed_requests(count: int, seed: int, longest: int = 40) -> list[Request]:
    """Requests of mixed lengths and options."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for number in range(count):
        options: dict[str, Any] = {"temperature": rng.choice([0.0, 0.0, 0.7, 1.0, 1.3])}
        if rng.random() < 0.3:
            options["top_k"] = rng.randint(1, 20)
        if rng.random() < 0.3:
            options["top_p"] = rng.choice([0.3, 0.8, 0.95])
        if rng.random() < 0.2:
            options["min_p"] = 0.1
        if rng.random() < 0.3:
            options |= {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
        if rng.random() < 0.2:
            options["logit_bias"] = {rng.randrange(VOCABULARY): 5.0, rng.randrange(VOCABULARY): -100.0}
        if rng.random() < 0.3:
            options["stop"] = frozenset(rng.sample(range(VOCABULARY), 2))
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))]
        requests.append(Request(prompt, rng.randint(1, longest), seed=number, **options))
    return requests


def answers_of(batcher: Batcher, requests: list[Request]) -> list[tuple[list[int], End]]:
    """The answers of requests that are all submitted at once."""
    tokens: list[list[int]] = [[] for _ in requests]
    ends: list[End | None] = [None] * len(requests)
    is_done = threading.Semaphore(0)

    def report_to(number: int) -> Any:
        def report(event: Token | End) -> None:
            if isinstance(event, Token):
                tokens[number].append(event.token)
            else:
                ends[number] = event
                is_done.release()

        return report

    for number, request in enumerate(requests):
        batcher.submit(request, report_to(number))
    for _ in requests:
        assert is_done.acquire(timeout=120)
    return [(row, end) for row, end in zip(tokens, ends, strict=True) if end is not None]


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64"), Jax(float="f64")], ids=repr)
def test_every_answer_is_as_alone(backend: Backend) -> None:
    model = model_on(backend)
    requests = mixed_requests(8 if isinstance(backend, Jax) else 24, 1)
    with Batcher(model, BatcherLimits(slots=4 if isinstance(backend, Jax) else 6, chunk=16)) as batcher:
        answers = answers_of(batcher, requests)
    assert batcher.n_running == batcher.n_waiting == 0
    for request, (tokens, end) in zip(requests, answers, strict=True):
        assert tokens == alone(model, request), request
        assert end.n_tokens == len(tokens)
        assert end.reason == ("length" if len(tokens) == request.max_tokens else "stop")
    assert batcher.counts["steps"] < sum(len(tokens) for tokens, _ in answers) / 1.5
