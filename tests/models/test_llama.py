"""The Llama: its parts against NumPy in float64, its cache against none; `tests/interop` has the rest of the proof."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, ShapeError
from phlox.models import LinearScaling, Llama, Llama3Scaling, LlamaConfig
from phlox.models.rotary_scaling import ScaledRotaryEncoding
from phlox.record import BinaryRecorder

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]

SMALL: dict[str, Any] = {
    "vocabulary": 11, "context": 8, "n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_hidden": 24,
}  # fmt: skip

SCALINGS: dict[str, Any] = {"linear": LinearScaling(2.5), "llama 3": Llama3Scaling(4.0, 1.0, 3.0, 8)}

TOKENS = np.random.default_rng(0).integers(0, 11, (3, 8)).astype(np.int32)


def lively(config: LlamaConfig, device: Any) -> Llama:
    """A model whose parameters are far enough from where they begin to tell a mistake."""
    rng = np.random.default_rng(1)

    def drawn(path: str, param: px.Param) -> px.Param:
        value = rng.normal(size=param.shape, scale=0.4) + (1.0 if path.endswith("gamma") else 0.0)
        return param.holding(px.tensor(value, device=param.device, kind=px.Float))

    return config.init(device).map(drawn)


def numpy_logits(model: Llama, tokens: Any) -> Any:
    """The formulas of the papers, token by token and head by head."""
    p = {path: param.val().numpy().astype(np.float64) for path, param in model.named_params()}
    c, n = model.config, len(tokens)
    heads, groups, width = c.n_heads, c.n_kv_heads or c.n_heads, c.head_width

    def norm(name: str, x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.epsilon) * p[f"{name}.gamma"]

    def dense(name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"] + p.get(f"{name}.bias", 0.0)

    def turned(x: Any, place: int) -> Any:
        found = np.empty(width)
        for i in range(width // 2):
            turn = c.rotary_base ** (-2 * i / width)
            angle = place * (turn if c.rotary_scaling is None else c.rotary_scaling.scaled(turn))
            z = complex(x[i], x[i + width // 2]) * complex(math.cos(angle), math.sin(angle))
            found[i], found[i + width // 2] = z.real, z.imag
        return found

    x = p["tokens.weight"][tokens]
    for block in (f"blocks.{i}" for i in range(c.n_layers)):
        h = norm(f"{block}.norm_1", x)
        q, k, v = (dense(f"{block}.attention.{name}", h).reshape(n, -1, width) for name in ("query", "key", "value"))
        y = np.zeros((n, heads, width))
        for head in range(heads):
            group = head // (heads // groups)
            keys = [turned(k[j, group], j) for j in range(n)]
            for i in range(n):
                scores = np.array([turned(q[i, head], i) @ keys[j] / math.sqrt(width) for j in range(i + 1)])
                weights = np.exp(scores - scores.max())
                y[i, head] = (weights / weights.sum()) @ v[: i + 1, group]
        x = x + dense(f"{block}.attention.out", y.reshape(n, -1))
        h = norm(f"{block}.norm_2", x)
        gate = dense(f"{block}.gate", h)
        x = x + dense(f"{block}.down", gate / (1 + np.exp(-gate)) * dense(f"{block}.up", h))
    x = norm("norm", x)
    return x @ p["tokens.weight"].T if c.tied else dense("head", x)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tied": True, "n_kv_heads": None, "d_head": 6, "epsilon": 0.1, "rotary_base": 30.0},
    "biases": {"attention_bias": True, "hidden_bias": True, "n_kv_heads": 1},
    "linear": {"rotary_scaling": SCALINGS["linear"]},
    "llama 3": {"rotary_scaling": SCALINGS["llama 3"], "rotary_base": 30.0, "d_head": 8},
}  # fmt: skip


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64"), Jax()], ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_against_the_formulas(case: str, backend: Backend) -> None:
    model = lively(LlamaConfig(**SMALL | CASES[case]), backend)
    found = model(px.tensor(TOKENS, device=backend)).numpy()
    close = 1e-4 if isinstance(backend, Jax) else 1e-9
    for one, tokens in zip(found, TOKENS, strict=True):
        np.testing.assert_allclose(one, numpy_logits(model, tokens), rtol=close, atol=close)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_with_a_cache_as_without(backend: Backend) -> None:
    model = lively(LlamaConfig(**SMALL, rotary_scaling=SCALINGS["llama 3"]), backend)
    tokens = px.tensor(TOKENS, device=backend)
    expected = model(tokens).numpy()
    found, cache = model(tokens[:, :3], cache=model.init_cache(3))
    parts = [found]
    for i in range(3, 8):
        found, cache = model(tokens[:, i : i + 1], cache=cache)
        parts.append(found)
    np.testing.assert_allclose(px.concat(parts, 1).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert all(one.key.shape == (3, 2, 8, 4) for one in cache)


@pytest.mark.full
def test_the_seed_says_what_is_written() -> None:
    texts = []
    for backend in BACKENDS:
        model = lively(LlamaConfig(**SMALL).replace(n_layers=1), backend)
        with px.random.stream(7):
            texts.append(model.generate(px.tensor([1, 2], device=backend), 12, temperature=1.5, top_k=5).tolist())
    assert texts[0] == texts[1] == texts[2] and len(set(texts[0])) > 3


def test_it_learns() -> None:
    def step(model: Llama, optimizer: optim.Optimizer, tokens: Any, targets: Any) -> Any:
        loss = model.loss(tokens, targets)
        return optimizer.step(1e-2, model, px.GradientsParams.from_grads(loss.backward(), model)), loss

    config = LlamaConfig(**SMALL, padding_index=0, attention_dropout=0.1)
    model = config.init(Autodiff(NumPy())).init(3)
    padding = model.tokens.weight.val().numpy()[0]
    assert (padding == 0).all()
    optimizer = optim.AdamWConfig(weight_decay=0.0).init()
    tokens = px.tensor(np.tile(np.arange(9) % 3, (2, 1)), device="numpy")
    losses = []
    for _ in range(40):
        model, loss = step(model, optimizer, tokens[:, :-1], tokens[:, 1:])
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(11), abs=0.1) and losses[-1] < 0.5
    text = model.generate(px.tensor([0, 1, 2, 0], device="numpy"), 4, temperature=0.0)
    assert text.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_how_it_begins_and_is_saved() -> None:
    config = LlamaConfig(**SMALL)
    count = 11 * 16 * 2 + 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16) + 16
    assert config.init().num_params() == count
    assert config.replace(tied=True).init().num_params() == count - 11 * 16
    config = config.replace(rotary_scaling=SCALINGS["llama 3"])
    model, recorder = lively(config, "numpy"), BinaryRecorder()
    other = LlamaConfig.from_json(config.to_json()).init("torch")
    assert other.config == config
    other.load_record(recorder.from_bytes(recorder.to_bytes(model.into_record())))
    found = [m(px.tensor(TOKENS, device=m.tokens.weight.device)).numpy() for m in (model, other)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocabulary": 0}, {"n_heads": 3, "n_kv_heads": None}, {"n_kv_heads": 3}, {"d_head": 3}, {"d_head": 0},
        {"epsilon": 0.0}, {"rotary_base": -1.0}, {"attention_dropout": 1.0}, {"init_std": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_config_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LlamaConfig(**(SMALL | wrong))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(px.tensor([[0] * 9])), ShapeError, r"Llama: tokens .* context of 8, got shape \(1, 9\)"),
        (lambda m: m.hidden(px.tensor([1])), ShapeError, r"Llama: tokens must be \[batch, n\]"),
        (lambda m: m(px.ones((1, 2))), KindError, "Llama: tokens must be an Int tensor"),
        (
            lambda m: ScaledRotaryEncoding(4, scaling=LinearScaling(2.0))(px.ones((2, 6))), ShapeError,
            r"x must be \[..., n, 4\], got shape \(2, 6\)",
        ),
    ],
    ids=["too many", "rank", "floats", "width"],
)  # fmt: skip
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call(LlamaConfig(**SMALL).init("numpy"))
    assert "\n" not in str(caught.value)
