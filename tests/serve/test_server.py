"""The server, asked by OpenAI's own client: answers are those of the model alone, errors say what is wrong.

Serves: src/phlox/serve/{server,exchange,protocol,fields,errors,embedding,metrics}.py
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.models import LanguageModel
from phlox.serve import BatcherLimits, Server, ServerOptions
from tests.serve.support import language_model, running

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model(NumPy(float="f64"))


@pytest.fixture(scope="module")
def server(model: LanguageModel) -> Iterator[Server]:
    options = ServerOptions(name="tiny", batch=BatcherLimits(slots=8, queue=2000, chunk=32), body_bytes=200_000)
    with contextlib.closing(Server(model, options)) as server:
        yield server


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with running(server) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def alone(model: LanguageModel, prompt: list[int], most: int, seed: int, **options: Any) -> str:
    """The answer of the model itself, up to its end."""
    assert model.tokenizer is not None
    stops = sorted(model.stops)
    tokens = model.model.generate([prompt], most, seeds=[seed], stop=stops, compile=False, **options)[0].tolist()
    decoder = model.tokenizer.decoder()
    new = [token for token in tokens[len(prompt) :] if token < model.tokenizer.size]
    return "".join(map(decoder.add, new)) + decoder.end()


def test_a_chat_is_what_the_model_says_alone(client: openai.OpenAI, model: LanguageModel) -> None:
    assert model.tokenizer is not None
    prompt = model.tokenizer.chat(HELLO)
    cases: list[tuple[int, Any]] = [(0, {"temperature": 0.0}), (7, {"temperature": 0.9, "top_p": 0.8})]
    for seed, options in cases:
        answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=30, seed=seed, **options)
        assert answer.choices[0].message.content == alone(model, prompt, 30, seed, **options)
        assert answer.choices[0].finish_reason in ("length", "stop") and answer.object == "chat.completion"
        assert answer.usage is not None and answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=HELLO, max_completion_tokens=30, seed=seed, stream=True,
                stream_options={"include_usage": True}, **options,
            )
        )  # fmt: skip
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
        assert "".join(pieces) == answer.choices[0].message.content and chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason
        assert not chunks[-1].choices and chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_completions_of_several_prompts_and_several_answers(client: openai.OpenAI, model: LanguageModel) -> None:
    answer = client.completions.create(model="tiny", prompt=["ab", "xyz"], n=2, max_tokens=8, seed=3, echo=True)
    for number, choice in enumerate(answer.choices):
        prompt = ["ab", "xyz"][number // 2]
        assert choice.index == number
        assert choice.text == prompt + alone(model, list(prompt.encode()), 8, 3 + number)
    tokens = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=8, seed=3, stream=True)
    pieces = [chunk.choices[0].text for chunk in tokens]
    assert "ab" + "".join(pieces) == answer.choices[0].text


def test_logprobs(client: openai.OpenAI, model: LanguageModel) -> None:
    assert model.tokenizer is not None
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    prompt = model.tokenizer.chat(HELLO)
    text, logprobs = model.model.generate([prompt], 5, temperature=0.0, logprobs=True, compile=False)
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    content = answer.choices[0].logprobs.content
    np.testing.assert_allclose([entry.logprob for entry in content], logprobs[0].numpy(), rtol=1e-9)
    assert [entry.bytes for entry in content] == [[token] for token in text[0].tolist()[len(prompt) :]]
    assert all(entry.top_logprobs[0].logprob == entry.logprob and len(entry.top_logprobs) == 3 for entry in content)
    old = client.completions.create(model="tiny", prompt=prompt, max_tokens=5, temperature=0, logprobs=2)
    assert old.choices[0].logprobs is not None
    np.testing.assert_allclose(old.choices[0].logprobs.token_logprobs, logprobs[0].numpy(), rtol=1e-9)  # type: ignore[arg-type]


def test_penalties_biases_and_stops(client: openai.OpenAI, model: LanguageModel) -> None:
    options: Any = {"frequency_penalty": 0.5, "presence_penalty": 0.2, "temperature": 0.7}
    extra = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=30, seed=1, logit_bias={"33": -100, "65": 2}, extra_body=extra, **options
    )
    whole = alone(model, list(b"abc"), 30, 1, logit_bias={33: -100.0, 65: 2.0}, **options, **extra)
    assert answer.choices[0].text == whole and "!" not in whole
    greedy = alone(model, list(b"abc"), 30, 0, temperature=0.0)
    stop = next(greedy[i : i + 3] for i in range(4, 25) if greedy[i : i + 3].isascii())  # over three tokens
    for stream in (False, True):
        stopped: Any = client.completions.create(
            model="tiny", prompt="abc", max_tokens=30, temperature=0, stop=["never", stop], stream=stream
        )
        choices = [chunk.choices[0] for chunk in stopped] if stream else stopped.choices
        assert "".join(choice.text for choice in choices) == greedy[: greedy.index(stop)]
        assert choices[-1].finish_reason == "stop"


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_forced_call_of_a_function(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=200, tools=[WEATHER], tool_choice=choice
        )
        assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        again: Any = [
            *HELLO,
            answer.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        assert client.chat.completions.create(model="tiny", messages=again, max_tokens=1, tools=[WEATHER]).choices
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, max_tokens=200, tools=[WEATHER], tool_choice="required"
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls and final.choices[0].finish_reason == "tool_calls"


def test_answers_that_follow_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    schema["additionalProperties"] = False
    form: Any = {"type": "json_schema", "json_schema": {"name": "switch", "schema": schema}}
    answers = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=60, response_format=form, n=3, temperature=1.5
    )
    assert {str(type(json.loads(c.message.content or "")["on"])) for c in answers.choices} == {"<class 'bool'>"}
    assert {choice.finish_reason for choice in answers.choices} == {"stop"}
    loose = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, response_format={"type": "json_object"}
    )
    assert (loose.choices[0].message.content or "").startswith("{")


def test_embeddings(client: openai.OpenAI, model: LanguageModel) -> None:
    answer = client.embeddings.create(model="tiny", input=["ab", "c"], encoding_format="float")
    rows = [entry.embedding for entry in answer.data]
    hidden = model.model.valid().hidden(px.tensor([list(b"ab")], device=NumPy(float="f64")))[0].numpy().mean(0)
    np.testing.assert_allclose(rows[0], hidden / np.linalg.norm(hidden), rtol=1e-5, atol=1e-6)
    encoded: Any = client.embeddings.create(model="tiny", input="ab", encoding_format="base64").data[0].embedding
    decoded = np.frombuffer(base64.b64decode(encoded), "<f4") if isinstance(encoded, str) else encoded
    np.testing.assert_allclose(decoded, rows[0], rtol=1e-6)
    assert answer.usage.prompt_tokens == 3


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "another model": ({"model": "gpt"}, 404, "there is no model 'gpt'; this server has 'tiny'"),
    "unknown field": ({"top_ks": 3}, 400, "there is no field 'top_ks'; did you mean 'top_k'?"),
    "type": ({"temperature": "hot"}, 400, "temperature must be a whole number or a number, got a text"),
    "range": ({"top_p": 1.5}, 400, "top_p must be from 1e-09 to 1, got 1.5"),
    "true is no number": ({"max_tokens": True}, 400, "max_tokens must be a whole number, got true or false"),
    "too long": ({"max_tokens": 600}, 400, "the context of this model is 512 tokens"),
    "no messages": ({"messages": []}, 400, "messages is empty"),
    "message": ({"messages": ["Hello"]}, 400, r"messages\[0\] must be an object with a role"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only parts of type text"),
    "bias": ({"logit_bias": {"999": 1}}, 400, "logit_bias must have tokens from 0 to 259"),
    "stop": ({"stop": [""]}, 400, "stop must be a text"),
    "top_logprobs": ({"top_logprobs": 3}, 400, "needs logprobs: true"),
    "stream_options": ({"stream_options": {"include_usage": True}}, 400, "needs stream: true"),
    "n": ({"n": 1000}, 400, "n must be from 1 to 128"),
    "tool": ({"tools": [{"type": "function"}]}, 400, r"tools\[0\] must be"),
    "tool_choice": ({"tool_choice": "required"}, 400, "tool_choice must be"),
    "format": ({"response_format": {"type": "xml"}}, 400, "response_format must be"),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "text"}}}}, 400, "be followed",
    ),
    "audio": ({"modalities": ["audio"]}, 400, "modalities=.* is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused(case: tuple[dict[str, Any], int, str], client: openai.OpenAI) -> None:
    fields, status, message = case
    body: Any = {"model": "tiny", "messages": HELLO, **fields}
    with pytest.raises(openai.APIStatusError, match=message) as raised:
        client.chat.completions.create(model=body["model"], messages=body["messages"], extra_body=fields)
    assert raised.value.status_code == status
    error: Any = raised.value.body
    assert set(error) == {"message", "type", "param", "code"} and error["type"] in (
        "invalid_request_error",
        "not_found_error",
    )
    if "max_tokens" in fields and fields["max_tokens"] == 600:
        assert error["code"] == "context_length_exceeded"


def test_bodies_that_are_no_requests(address: str) -> None:
    url, json_type = f"{address}/v1/chat/completions", {"Content-Type": "application/json"}
    assert httpx.post(url, content=b"{", headers=json_type).json()["error"]["code"] == "invalid_json"
    assert httpx.post(url, content=b"[" * 100_000, headers=json_type).status_code == 400
    assert httpx.post(url, content=b"[]", headers=json_type).status_code == 400
    assert httpx.post(url, content=b"{}").status_code == 415  # a page of another site may send this without asking
    assert httpx.post(url, content=b" " * 300_000, headers=json_type).status_code == 413
    assert httpx.get(url).json()["error"]["message"].startswith("Method Not Allowed")
    nothing = httpx.get(f"{address}/v1/nothing")
    assert nothing.status_code == 404 and "this server has /health, " in nothing.json()["error"]["message"]
    assert httpx.get(f"{address}/v1/models", headers={"Host": "evil.example"}).status_code == 403


def test_the_rest_of_the_pages(address: str, client: openai.OpenAI) -> None:
    assert [entry.id for entry in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("large")
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}
    page = httpx.get(address)
    assert (
        "http" not in page.text.replace(page.url.host, "")
        and "default-src 'none'" in page.headers["content-security-policy"]
    )
    metrics = httpx.get(f"{address}/metrics").text
    assert "phlox_running 0" in metrics and 'phlox_http_responses_total{status="404"}' in metrics
    prometheus = pytest.importorskip("prometheus_client.parser")
    assert {family.name for family in prometheus.text_string_to_metric_families(metrics)} >= {"phlox_tokens"}


def test_an_api_key(model: LanguageModel) -> None:
    with running(Server(model, ServerOptions(name="tiny", api_key="secret"))) as address:
        for key, status in (("secret", 200), ("secre", 401), ("", 401), ("s\xe9cret", 401)):
            headers: Any = {"Authorization": f"Bearer {key}".strip().encode("latin-1")}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status
        assert httpx.get(f"{address}/health").status_code == 200
    assert "secret" not in repr(ServerOptions(api_key="secret"))


def test_too_many_requests(model: LanguageModel) -> None:
    server = Server(model, ServerOptions(name="tiny", batch=BatcherLimits(slots=1, queue=1)))
    with running(server) as address, httpx.Client(timeout=60) as client:
        body = {"prompt": "ab", "max_tokens": 400, "n": 3, "ignore_eos": True}
        answer = client.post(f"{address}/v1/completions", json=body)
        assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert client.post(f"{address}/v1/completions", json={**body, "n": 1, "max_tokens": 1}).status_code == 200


def until(condition: Any) -> None:
    """Wait until something is true."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not become true")


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_free_their_row(stream: bool, address: str, server: Server) -> None:
    batcher: Any = server._batcher
    before = batcher.counts["ended_cancelled"]
    body = {"prompt": "ab", "max_tokens": 500, "ignore_eos": True, "stream": stream, "n": 4}
    with httpx.Client() as client:
        if stream:
            with client.stream("POST", f"{address}/v1/completions", json=body) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{address}/v1/completions", json=body, timeout=0.2)
    until(lambda: batcher.counts["ended_cancelled"] > before and batcher.n_running == 0)


def test_an_answer_that_takes_too_long_and_a_model_that_fails(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(model, ServerOptions(name="tiny", timeout=0.01))
    with running(server) as address, httpx.Client() as client:
        body = {"prompt": "ab", "max_tokens": 400, "ignore_eos": True}
        assert client.post(f"{address}/v1/completions", json=body).status_code == 504
        streamed = client.post(f"{address}/v1/completions", json={**body, "stream": True})
        assert '"code":"timeout"' in streamed.text and "[DONE]" not in streamed.text

        def exhausted(*_: Any) -> Any:
            raise MemoryError("no memory left")

        monkeypatch.setattr(server._batcher, "call", exhausted)
        broken = client.post(f"{address}/v1/embeddings", json={"input": "ab"})
        assert broken.status_code == 500 and broken.json()["error"]["type"] == "server_error"
        monkeypatch.setattr(server._batcher, "_extend", exhausted)
        failed = client.post(f"{address}/v1/completions", json={"prompt": "cd"})
        assert failed.status_code == 500 and "no memory left" in failed.json()["error"]["message"]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.full)])
def test_many_clients(count: int, address: str, server: Server, model: LanguageModel) -> None:
    """Requests of mixed lengths from 32 clients: every answer is the one alone, none is lost, and nothing is left."""
    rng = random.Random(count)
    requests: list[dict[str, Any]] = []
    for number in range(count):
        text = "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(1, 40)))
        temperature = rng.choice([0.0, 0.8])
        requests.append({"prompt": text, "max_tokens": rng.randint(1, 30), "seed": number, "temperature": temperature})

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as client:
            free = asyncio.Semaphore(32)

            async def ask(request: dict[str, Any], stream: bool) -> str:
                async with free:
                    if not stream:
                        return (await client.completions.create(model="tiny", **request)).choices[0].text
                    chunks: Any = await client.completions.create(model="tiny", stream=True, **request)
                    return "".join([chunk.choices[0].text async for chunk in chunks])

            return await asyncio.gather(*[ask(request, number % 2 == 0) for number, request in enumerate(requests)])

    asyncio.run(ask_all())  # what is made once is made
    batcher: Any = server._batcher
    gc.collect()
    n_threads, n_objects, n_before = threading.active_count(), len(gc.get_objects()), batcher.counts["requests"]
    answers = asyncio.run(ask_all())
    until(lambda: batcher.n_running == batcher.n_waiting == 0)
    gc.collect()
    assert batcher.counts["requests"] - n_before == count
    assert threading.active_count() <= n_threads and len(gc.get_objects()) - n_objects < 5000
    for request, answer in zip(requests, answers, strict=True):
        prompt, temperature = list(request["prompt"].encode()), request["temperature"]
        assert answer == alone(model, prompt, request["max_tokens"], request["seed"], temperature=temperature)
