"""Generating with the cache of a model against generating without, and how tokens are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.models import Gpt, GptConfig, generation

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
    for prompt in ([3], [1, 2, 3, 4, 5], list(range(8)), list(range(11))):
        tokens = px.tensor(prompt, device=backend)
        found = model.generate(tokens, 14, temperature=0.0, compile=on_jax)
        assert found.backend == backend and found.kind is px.Int
        assert found.tolist() == without_a_cache(model.valid(), prompt, 14)
    assert len(set(found.tolist())) > 3  # it does not repeat itself, which would hide a mistake


@pytest.mark.slow
def test_a_seed_gives_the_same_text_everywhere() -> None:
    found = []
    for backend in PLAIN:
        model = lively(GptConfig(**SHALLOW), backend)
        prompt = px.tensor([[1, 2, 3], [4, 5, 6]], device=backend)
        with px.random.stream(7):
            text = model.generate(prompt, 12, temperature=1.3, top_k=4)
            assert text.shape == (2, 15) and text[:, :3].tolist() == prompt.tolist()
            again = model.generate(prompt, 12, temperature=1.3, top_k=4)
        assert again.tolist() != text.tolist()  # the stream has gone on
        found.append(text.tolist())
        if isinstance(backend, Torch):
            with px.random.stream(7):
                eager = model.generate(prompt, 12, temperature=1.3, top_k=4, compile=False)
            assert eager.tolist() == text.tolist()
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_one_program_for_all_places_lengths_and_temperatures() -> None:
    programs = generation._step, generation._fill
    model = lively(GptConfig(**SHALLOW).replace(vocabulary=12), Jax())
    before = [program.programs for program in programs]
    for prompt, temperature, k in (([1], 1.0, 3), ([1, 2, 3], 0.5, 7), (list(range(9)), 2.0, 1)):
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
