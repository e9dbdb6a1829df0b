"""Generating with the cache of a model against generating without, and how tokens are drawn.

Serves: phlox/models/generation/
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.models import Gpt, GptConfig
from phlox.models.generation import decoding

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

SMALL: dict[str, Any] = {"vocabulary": 11, "context": 8, "n_layers": 2, "d_model": 16, "n_heads": 4}

SHALLOW: dict[str, Any] = SMALL | {"n_layers": 1}  # where a compiler takes its time

CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "tied": {"tied": True, "bias": False, "d_hidden": 24}, "rotary": {"rotary": True, "n_kv_heads": 2},
}  # fmt: skip


def lively(config: GptConfig, device: Any) -> Gpt:
    """A model whose parameters are far enough from where they begin to tell a mistake."""
    rng = np.random.default_rng(1)

    def drawn(path: str, param: px.Param) -> px.Param:
        value = rng.normal(size=param.shape, scale=0.3) + (1.0 if path.endswith("gamma") else 0.0)
        return param.holding(px.tensor(value, device=param.device, kind=px.Float))

    return config.init(device).map(drawn)


compiled = px.compile(Gpt.__call__)


def without_a_cache(model: Gpt, prompt: list[int], length: int) -> list[int]:
    """The likeliest token each time, all before it computed anew; beyond the context from its last half on."""
    context, device = model.config.context, model.tokens.weight.device
    forward = compiled if isinstance(device.backend, Jax) else Gpt.__call__
    text, start = list(prompt), max(0, len(prompt) - model.config.context)
    for _ in range(length):
        if len(text) - start > context:
            start = len(text) - context // 2
        window = text[start:]
        padded = px.tensor([window + [0] * (context - len(window))], device=device)
        text.append(int(forward(model, padded).numpy()[0, len(window) - 1].argmax()))
    return text


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("case", ["plain", "rotary"])
def test_greedy_with_the_cache_as_without(case: str, backend: Backend) -> None:
    on_jax = isinstance(backend, Jax)
    model = lively(GptConfig(**(SHALLOW if on_jax else SMALL), **CASES[case], dropout=0.5), Autodiff(backend))
    for prompt in ([3], [1, 2, 3, 4, 5], list(range(8))):
        tokens = px.tensor(prompt, device=backend)
        found = model.generate(tokens, 14, temperature=0.0, compile=on_jax)
        assert found.backend == backend and found.kind is px.Int
        assert found.tolist() == without_a_cache(model.valid(), prompt, 14)
    assert len(set(found.tolist())) > 3  # it does not repeat itself, which would hide a mistake


@pytest.mark.full
def test_a_seed_gives_the_same_text_everywhere() -> None:
    found = []
    for backend in PLAIN:
        model = lively(GptConfig(**SHALLOW), backend)
        prompt = px.tensor([[1, 2, 3], [4, 5, 6]], device=backend)
        with px.random.stream(7):
            text = model.generate(prompt, 12, temperature=1.3, top_k=6, top_p=0.9, compile=True)
            assert text.shape == (2, 15) and text[:, :3].tolist() == prompt.tolist()
            again = model.generate(prompt, 12, temperature=1.3, top_k=6, top_p=0.9, compile=True)
        assert again.tolist() != text.tolist()  # the stream has gone on
        found.append(text.tolist())
        if isinstance(backend, Torch):
            with px.random.stream(7):
                eager = model.generate(prompt, 12, temperature=1.3, top_k=6, top_p=0.9, compile=False)
            assert eager.tolist() == text.tolist()
    assert found[0] == found[1] == found[2]


@pytest.mark.full
def test_one_program_for_all_places_lengths_and_temperatures() -> None:
    programs = decoding._compiled_decode, decoding._compiled_prefill
    model = lively(GptConfig(**SHALLOW).replace(vocabulary=12), Jax())
    before = [program.programs for program in programs]
    for prompt, temperature, k in (([1], 1.0, 3), ([1, 2, 3], 0.5, 7), (list(range(8)), 2.0, 1)):
        model.generate(px.tensor(prompt, device="jax"), 10, temperature=temperature, top_k=k)
    assert [program.programs for program in programs] == [count + 1 for count in before]


def test_temperature_and_top_k() -> None:
    model = lively(GptConfig(**SMALL), "numpy")
    prompt = px.tensor(np.full((2000, 1), 3), device="numpy")
    logits = model(prompt[:1]).numpy()[0, 0].astype(np.float64)
    ranked = np.argsort(-logits)
    with px.random.stream(0):
        for temperature, k in ((1.0, None), (0.5, 4), (2.0, 1), (1.0, 50)):
            scaled = np.exp((logits - logits.max()) / temperature)
            scaled[ranked[k:] if k else []] = 0.0
            drawn = model.generate(prompt, 1, temperature=temperature, top_k=k).numpy()[:, 1]
            counts = np.bincount(drawn, minlength=11) / 2000
            np.testing.assert_allclose(counts, scaled / scaled.sum(), atol=0.05)
            assert (counts[scaled == 0] == 0).all()
    assert (model.generate(prompt[:4], 1, temperature=0.0).numpy()[:, 1] == ranked[0]).all()
    assert model.generate(prompt[0], 0).tolist() == [3]


UNEQUAL = [[1, 2, 3, 4], [5], [6, 7]]


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("case", ["plain", "rotary"])
def test_prompts_of_different_lengths_as_each_alone(case: str, backend: Backend) -> None:
    model = lively(GptConfig(**SMALL, **CASES[case]).replace(context=12), backend)
    on_jax = isinstance(backend, Jax)
    alone = [without_a_cache(model, prompt, 6) for prompt in UNEQUAL]
    found = model.generate(UNEQUAL, 6, temperature=0.0, compile=on_jax)
    assert [text.tolist() for text in found] == alone
    as_tensors = [px.tensor(prompt, device=backend) for prompt in UNEQUAL]
    steps = list(model.stream(as_tensors, 6, temperature=0.0, compile=on_jax))
    assert [list(row) for row in zip(*steps, strict=True)] == [text[-6:] for text in alone]


def test_beyond_the_context_the_longest_row_decides() -> None:
    model = lively(GptConfig(**SMALL, rotary=True), "numpy")  # context 8
    long, short = model.generate([[1, 2, 3, 4, 5], [6]], 8, temperature=0.0)
    assert long.tolist() == without_a_cache(model, [1, 2, 3, 4, 5], 8)
    text = without_a_cache(model, [6], 4)  # until the longer one has 9 tokens; then four columns stay
    text = text[:1] + without_a_cache(model, text[-4:], 4)[-8:]
    assert short.tolist() == text


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_stop_tokens(backend: Backend) -> None:
    model, on_jax = lively(GptConfig(**SMALL).replace(context=16), backend), isinstance(backend, Jax)
    how: dict[str, Any] = {"temperature": 0.0, "compile": on_jax}
    whole = [text.tolist() for text in model.generate(UNEQUAL, 8, **how)]
    new = [text[len(prompt) :] for text, prompt in zip(whole, UNEQUAL, strict=True)]
    stop = [new[0][3], new[1][5]]
    ends = [min([row.index(one) for one in stop if one in row], default=8) for row in new]
    assert len(set(ends)) > 1 and min(ends) < 8  # rows end at different places
    cut = model.generate(UNEQUAL, 8, stop=stop, **how)
    assert [text.tolist() for text in cut] == [p + row[:end] for p, row, end in zip(UNEQUAL, new, ends, strict=True)]
    steps = [*model.stream(UNEQUAL, 8, stop=stop, **how)]
    assert len(steps) == max(ends)
    for row, tokens, end in zip(zip(*steps, strict=True), new, ends, strict=True):
        assert list(row) == tokens[:end] + [None] * (max(ends) - end)
    prompt = px.tensor(UNEQUAL[0], device=backend)
    assert model.generate(prompt, 8, stop=stop[0], **how).tolist() == UNEQUAL[0] + new[0][: new[0].index(stop[0])]
    assert [*model.stream(prompt, 8, stop=stop[0], **how)] == new[0][: new[0].index(stop[0])]
    both = px.tensor([UNEQUAL[0], [5, 5, 5, 5]], device=backend)
    filled = model.generate(both, 8, stop=stop[0], **how).tolist()
    rest = len(filled[0]) - 4 - new[0].index(stop[0])
    assert filled[0] == UNEQUAL[0] + new[0][: new[0].index(stop[0])] + [stop[0]] * rest


def test_a_stream_draws_what_generate_draws() -> None:
    model = lively(GptConfig(**SMALL), "numpy")
    prompt = px.tensor([1, 2, 3], device="numpy")
    how: dict[str, Any] = {"temperature": 1.2, "top_p": 0.8}
    with px.random.stream(3):
        text = model.generate(prompt, 12, **how).tolist()
    with px.random.stream(3):
        steps = model.stream(prompt, 12, **how)
        assert [next(steps), next(steps), *steps] == text[3:]
    assert [*model.stream(prompt, 0)] == [] and [*model.stream([[1]], 0)] == []


def test_top_p() -> None:
    model = lively(GptConfig(**SMALL), "numpy")
    prompt = px.tensor(np.full((2000, 1), 3), device="numpy")
    logits = model(prompt[:1]).numpy()[0, 0].astype(np.float64)
    for temperature, k, p in ((1.0, None, 0.5), (2.0, 6, 0.7), (1.0, None, 1e-6), (1.5, None, 1.0)):
        scaled = np.exp((logits - logits.max()) / temperature)
        ranked = np.argsort(-scaled)
        scaled[ranked[k:] if k else []] = 0.0
        scaled /= scaled.sum()
        count = int(np.searchsorted(np.cumsum(scaled[ranked]), p)) + 1  # the fewest that together reach p
        scaled[ranked[count:]] = 0.0
        with px.random.stream(0):
            drawn = model.generate(prompt, 1, temperature=temperature, top_k=k, top_p=p).numpy()[:, 1]
        counts = np.bincount(drawn, minlength=11) / 2000
        np.testing.assert_allclose(counts, scaled / scaled.sum(), atol=0.05)
        assert (counts[scaled == 0] == 0).all()


@pytest.mark.every(3)
@pytest.mark.parametrize("backend", [NumPy(), Jax(float="f16"), Torch(float="f16")], ids=repr)
def test_at_a_tiny_temperature_the_likeliest_token_is_drawn(backend: Backend) -> None:
    """Also where logits divided by it are infinite, and where it is zero at half precision."""
    model: Any = lively(GptConfig(**SHALLOW), backend)  # of which the numbers are not NumPy's for a type checker
    prompt = px.tensor([3, 4], device=backend)
    greedy = model.generate(prompt, np.int64(3), temperature=0.0).tolist()
    for temperature in (1e-3, np.float32(1e-5), 1e-9, 1e-39):
        assert model.generate(prompt, 3, temperature=temperature, top_k=2**40, stop=[np.int64(0)]).tolist() == greedy
    assert model.generate(prompt, 3, temperature=1e-9, top_k=2, top_p=0.9, stop=np.int64(0)).tolist() == greedy


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(float="f16")], ids=repr)
def test_seeds_and_logprobs_of_rows(backend: Backend) -> None:
    """Each row as alone with its seed, and with the log-probabilities of the model itself."""
    model: Any = lively(GptConfig(**SHALLOW).replace(context=16), backend)
    how: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9}
    alone: list[list[int]] = []
    for seed, prompt in zip((5, 2**40, -1), UNEQUAL, strict=True):
        with px.random.stream(seed):
            alone.append(model.generate([prompt], 8, **how)[0].tolist())
    with px.random.stream(0):
        texts, logprobs = model.generate(UNEQUAL, 8, seeds=[5, 2**40, -1], logprobs=True, **how)
        assert px.random.state()["position"] == 0
    assert [text.tolist() for text in texts] == alone
    for text, prompt, found in zip(texts, UNEQUAL, logprobs, strict=True):
        every = model.valid()(text[None]).log_softmax(-1).numpy()[0]
        expected = [every[place - 1, token] for place, token in enumerate(text.tolist()) if place >= len(prompt)]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4 if backend.float_element == "f32" else 3e-2)
    stop = alone[0][7]
    _, rated = model.generate(
        px.tensor([UNEQUAL[0]] * 2, device=backend), 8, seeds=[5, 9], stop=stop, logprobs=True, **how
    )
    end = alone[0][4:].index(stop)
    assert rated[0].tolist()[end:] == [0.0] * (rated.shape[1] - end)
    np.testing.assert_array_equal(rated[0, :end].numpy(), logprobs[0][:end].numpy())
    assert model.generate(UNEQUAL, 0, logprobs=True).logprobs[0].shape == (0,)


def test_short_texts_are_eager_on_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def noted(name: str, fn: Any) -> Any:
        return lambda *args: called.append(name) or fn(*args)

    for name in ("_prefill", "_decode"):
        monkeypatch.setattr(decoding, f"_compiled{name}", noted(name, getattr(decoding, name)))
    monkeypatch.setattr(decoding, "_compiled_forms", set())
    model: Any = lively(GptConfig(**SHALLOW), "torch")
    model.generate([[1, 2]], 3)
    assert not called
    model.generate([[1, 2]], 3, compile=True)
    assert called == ["_prefill", "_decode", "_decode"]
    model.generate([[3, 4, 5]], 4)  # the same program
    assert len(called) == 7
    for options in ({"min_p": 0.1}, {"processors": [lambda tokens, logits: logits]}, {"compile": False}):
        model.generate([[1, 2]], 3, **options)
    assert len(called) == 7
    next(model.stream(px.tensor([1, 2], device="torch"), decoding.MANY, banned=3))
    assert len(called) == 8


def test_parameters_are_created_once() -> None:
    model: Any = GptConfig(vocabulary=7, context=16, n_layers=1, d_model=8, n_heads=2).init("numpy")
    model.generate(px.tensor([1, 2, 3]), 2)
    assert not any(param.is_deferred for param in model.params())
