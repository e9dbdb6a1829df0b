"""Continuous batching: every answer is the one that the model gives alone, whatever else is in the batch.

Serves: src/phlox/serve/{batcher,steps,pool,prefixes,request}.py
"""

from __future__ import annotations

import gc
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models import CausalModel, DecoderConfig, DynamicScaling, ExpertsConfig, LatentConfig
from phlox.serve import Batcher, BatcherLimits, End, QueueFullError, Request, Token
from phlox.serve.pool import Pool
from phlox.serve.prefixes import Prefixes

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


def check_answers(model: Any, requests: list[Request], answers: list[tuple[list[int], End]]) -> None:
    for request, (tokens, end) in zip(requests, answers, strict=True):
        assert tokens == alone(model, request), request
        assert end.n_tokens == len(tokens)
        assert end.reason == ("length" if len(tokens) == request.max_tokens else "stop")


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64")], ids=repr)
def test_every_answer_is_as_alone(backend: Backend) -> None:
    model, requests = model_on(backend), mixed_requests(14, 1, longest=30)
    with Batcher(model, BatcherLimits(slots=6, chunk=16)) as batcher:
        answers = answers_of(batcher, requests)
    assert batcher.n_running == batcher.n_waiting == 0
    check_answers(model, requests, answers)
    assert batcher.counts["steps"] < sum(len(tokens) for tokens, _ in answers) / 2


@pytest.mark.parametrize("backend", [
    Jax(float="f64"), pytest.param(Torch(float="f64"), marks=pytest.mark.full)
], ids=repr)  # fmt: skip
def test_compiled_answers_are_as_alone(backend: Backend) -> None:
    requests = mixed_requests(6, 1, longest=20)  # one capacity, and few rows: few programs
    with Batcher(model_on(backend), BatcherLimits(slots=2, chunk=64), compile=True) as batcher:
        answers = answers_of(batcher, requests)
    check_answers(model_on(NumPy(float="f64")), requests, answers)


@pytest.mark.full
def test_a_compiled_batch_grows_and_shrinks() -> None:
    requests = mixed_requests(30, 2)
    with Batcher(model_on(Jax(float="f64")), BatcherLimits(slots=8, chunk=32)) as batcher:
        answers = answers_of(batcher, requests)
    check_answers(model_on(NumPy(float="f64")), requests, answers)


OPTIONS: dict[str, dict[str, Any]] = {
    "learned positions": {"positions": "learned"},
    "positions by length": {"rotary_scaling": DynamicScaling(factor=2.0, context=20)},
    "scores": {"attention_cap": 5.0, "sinks": True},
    "latents": {
        "latent": LatentConfig(kv_rank=8, d_content=4, d_rotary=4, d_value=4), "n_kv_heads": None, "window": None,
        "window_layers": None,
    },
    "experts": {"experts": ExpertsConfig(n_experts=4, top_k=2)},
    "tied": {"tied": True, "norm": "layer", "parallel": True},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_every_kind_of_decoder(options: dict[str, Any]) -> None:
    model, requests = model_on(NumPy(float="f64"), **options), mixed_requests(5, 3)
    with Batcher(model, BatcherLimits(slots=4, chunk=16)) as batcher:
        check_answers(model, requests, answers_of(batcher, requests))


def test_single_precision_decides_the_same() -> None:
    model, requests = model_on("numpy"), mixed_requests(8, 4)
    with Batcher(model, BatcherLimits(slots=8)) as batcher:
        check_answers(model, requests, answers_of(batcher, requests))


def test_logprobs_are_those_of_the_model() -> None:
    model = model_on(NumPy(float="f64"))
    request = Request([1, 2, 3], 6, temperature=0.8, seed=5, logprobs=3, frequency_penalty=1.0)
    events: list[Any] = []
    with Batcher(model) as batcher:
        batcher.submit(request, events.append)
        batcher.answer(Request([4], 20))
    text, logprobs = model.generate(
        [request.prompt], 6, temperature=0.8, seeds=[5], frequency_penalty=1.0, logprobs=True, compile=False
    )
    np.testing.assert_allclose([event.logprob for event in events[:-1]], logprobs[0].numpy(), rtol=1e-6)
    likely = model(px.tensor([text[0].tolist()[:-1]], device=NumPy(float="f64"))).log_softmax(-1).numpy()[0, 2:]
    for event, row in zip(events, likely, strict=False):
        assert [token for token, _ in event.alternatives] == np.argsort(-row)[:3].tolist()
        np.testing.assert_allclose([value for _, value in event.alternatives], np.sort(-row)[:3] * -1, rtol=1e-6)


def test_a_shared_beginning_is_computed_once() -> None:
    model = model_on(NumPy(float="f64"))
    first = Request(list(range(30)), 8, temperature=0.0)
    with Batcher(model) as batcher:
        tokens, _ = batcher.answer(first)
        longer = Request([*first.prompt, *tokens, 3, 4], 8, temperature=0.0)  # as the next message of a chat
        again, end = batcher.answer(longer)
        _, same = batcher.answer(first)
    assert again == alone(model, longer)
    assert end.n_reused == len(first.prompt) + len(tokens) - 1 and same.n_reused == len(first.prompt) - 1
    with Batcher(model, BatcherLimits(slots=2)) as batcher:  # the second begins before the first has ended
        answers = answers_of(batcher, [first, longer, Request([0, 1, 2, 49], 3, temperature=0.0)])
    assert [end.n_reused for _, end in answers] == [0, 30, 3] and answers[1][0] == again
    with Batcher(model, BatcherLimits(prefix_tokens=0)) as batcher:
        batcher.answer(first)
        assert batcher.answer(first)[1].n_reused == 0


def test_a_long_prompt_does_not_stop_the_others() -> None:
    model = model_on("numpy")
    order: list[str] = []
    with Batcher(model, BatcherLimits(chunk=10, prefix_tokens=0)) as batcher:
        is_running = threading.Event()

        def short(event: Token | End) -> None:
            order.append("short")
            is_running.set()

        batcher.submit(Request([1], 60, temperature=0.0), short)
        assert is_running.wait(60)
        begin = len(order)
        batcher.submit(Request([1] * 100, 1), lambda event: order.append("long"))
    assert order.index("long") - begin >= 9  # at least one token between two pieces of ten


def test_who_goes_frees_a_row_at_once() -> None:
    model = model_on("numpy")
    with Batcher(model, BatcherLimits(slots=1)) as batcher:
        is_running, ends = threading.Event(), []

        def endless(event: Token | End) -> None:
            is_running.set()
            if isinstance(event, End):
                ends.append(event)

        ticket = batcher.submit(Request([1], 150), endless)
        waiting = batcher.submit(Request([1], 150), endless)
        assert is_running.wait(60)
        batcher.cancel(waiting)
        batcher.cancel(ticket)
        tokens, _ = batcher.answer(Request([2], 3))
        assert len(tokens) == 3 and [end.reason for end in ends] == ["cancelled", "cancelled"]
        assert sum(end.n_tokens for end in ends) < 150


def test_limits() -> None:
    model = model_on("numpy")
    with pytest.raises(px.errors.RangeError, match="slots must be at least 1"):
        Batcher(model, BatcherLimits(slots=0))
    with Batcher(model, BatcherLimits(slots=1, queue=2, context=100)) as batcher:
        with pytest.raises(px.errors.RangeError, match="do not fit the context of 100"):
            batcher.submit(Request([1] * 90, 11), print)
        is_running, may_go_on = threading.Event(), threading.Event()

        def hold(event: Token | End) -> None:
            is_running.set()
            may_go_on.wait(60)

        batcher.submit(Request([1], 2), hold)
        assert is_running.wait(60)
        for _ in range(2):
            batcher.submit(Request([1], 2), lambda event: None)
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            batcher.submit(Request([1], 2), lambda event: None)
        may_go_on.set()
    with pytest.raises(QueueFullError, match="closing"):
        batcher.submit(Request([1], 2), print)


def test_an_answer_may_take_too_long() -> None:
    with Batcher(model_on("numpy")) as batcher:
        tokens, end = batcher.answer(Request([1], 150, timeout=0.05))
        assert end.reason == "timeout" and len(tokens) < 150


def test_an_error_ends_one_answer_and_a_failing_engine_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with Batcher(model_on("numpy")) as batcher:
        ends: list[Any] = []

        def fails(event: Token | End) -> None:
            if isinstance(event, Token):
                raise ValueError("no letter")
            ends.append(event)

        batcher.submit(Request([1], 5), fails)
        assert len(batcher.answer(Request([2], 5))[0]) == 5
        assert ends == [End("error", 1, 0, "no letter")]

        def exhausted(*_: Any) -> Any:
            raise MemoryError("no memory left")

        monkeypatch.setattr(batcher, "_advance", exhausted)
        assert batcher.answer(Request([2], 5))[1].message == "MemoryError: no memory left"
        monkeypatch.undo()
        monkeypatch.setattr(batcher, "_choose", exhausted)
        assert batcher.answer(Request([2], 5))[1].reason == "error"
        monkeypatch.undo()
        assert batcher.answer(Request([2], 5))[1].reason == "length"


def test_calls_run_between_the_tokens() -> None:
    with Batcher(model_on("numpy")) as batcher:
        batcher.submit(Request([1], 50), lambda event: None)
        assert batcher.call(lambda: threading.current_thread().name).result(60) == "phlox-batcher"
        with pytest.raises(ZeroDivisionError):
            batcher.call(lambda: 1 / 0).result(60)


def test_closing_finishes_what_was_taken_or_ends_it() -> None:
    for finish, reasons in ((True, {"length"}), (False, {"cancelled"})):
        batcher, ends = Batcher(model_on("numpy"), BatcherLimits(slots=2)), []
        for _ in range(4):
            batcher.submit(Request([1], 150), lambda event, ends=ends: ends.append(event))
        assert batcher.close(finish=finish, timeout=60)
        assert {end.reason for end in ends if isinstance(end, End)} == reasons
        assert sum(isinstance(end, End) for end in ends) == 4


def test_what_was_not_used_for_the_longest_is_forgotten() -> None:
    prefixes = Prefixes(10)
    columns = [((px.ones((1,), device="numpy"), px.ones((1,), device="numpy")),) for _ in range(3)]
    prefixes.store([1, 2, 3], columns[0])
    prefixes.store([1, 2, 3, 4], columns[1])
    prefixes.store([1, 2], columns[2])
    assert prefixes.lookup([1, 2, 3, 5]) == (3, columns[1]) and prefixes.n_tokens == 4
    prefixes.store([7, 8, 9], columns[0])
    assert prefixes.lookup([1, 9]) == (1, columns[1])
    prefixes.store([6] * 5, columns[2])
    assert prefixes.lookup([7, 8, 9]) == (0, ()) and prefixes.n_tokens == 9
    prefixes.store([5] * 11, columns[2])
    assert prefixes.lookup([5]) == (0, ()) == prefixes.lookup([])
    prefixes.clear()
    assert prefixes.lookup([6]) == (0, ()) and prefixes.n_tokens == 0


@pytest.mark.parametrize("backend", [NumPy(), Torch(), Jax()], ids=repr)
def test_a_row_holds_nothing_of_an_earlier_text(backend: Backend) -> None:
    pool = Pool(model_on(backend), 4, CONTEXT, False)
    pool.fit(2, 64)
    pool.columns = tuple((key + np.nan, value + np.nan) for key, value in pool.columns)
    text = tuple((key + 1.0, value + 2.0) for key, value in pool.fresh(1, 10))
    pool.insert(1, text)
    pool.move(1, 0)
    pool.fit(4, 128)  # it grows
    for key, value in pool.columns:
        for x, number in ((key, 1.0), (value, 2.0)):
            assert x.shape[0] == 4 and x.shape[2] == 128
            assert (x.numpy()[:2, :, :10] == number).all() and (x.numpy()[:2, :, 10:] == 0.0).all()


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.full)])
def test_nothing_is_left_over(count: int) -> None:
    model = model_on("numpy", n_layers=1, window=None, window_layers=None)
    n_threads = threading.active_count()
    with Batcher(model, BatcherLimits(slots=8, queue=2000, prefix_tokens=200)) as batcher:
        answers_of(batcher, mixed_requests(count, 5, longest=12))
        gc.collect()
        before = len(gc.get_objects())
        answers_of(batcher, mixed_requests(count, 6, longest=12))
        time.sleep(0.1)
        gc.collect()
        assert len(gc.get_objects()) - before < 500  # the texts of the prefixes differ
        assert batcher.n_running == batcher.n_waiting == 0
        assert batcher.counts["requests"] == 2 * count == batcher.counts["ended_stop"] + batcher.counts["ended_length"]
    assert threading.active_count() == n_threads
