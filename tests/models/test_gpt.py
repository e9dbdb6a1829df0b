"""The GPT against one in plain PyTorch with the same weights; generating with its cache against generating without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, IndexRangeError, KindError, RangeError, ShapeError
from phlox.models import Gpt, GptConfig
from phlox.record import BinaryRecorder

BACKENDS: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), NumPy(), Jax(), Torch()]

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

SMALL: dict[str, Any] = {"vocabulary": 11, "context": 8, "n_layers": 2, "d_model": 16, "n_heads": 4}

SHALLOW: dict[str, Any] = SMALL | {"n_layers": 1}  # where a compiler takes its time

CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "tied": {"tied": True, "bias": False, "d_hidden": 24}, "rotary": {"rotary": True, "n_kv_heads": 2},
}  # fmt: skip

TOKENS = np.random.default_rng(0).integers(0, 11, (3, 8)).astype(np.int32)


def lively(config: GptConfig, device: Any) -> Gpt:
    """A model whose parameters are far enough from where they begin to tell a mistake."""
    rng = np.random.default_rng(1)

    def drawn(path: str, param: px.Param) -> px.Param:
        value = rng.normal(size=param.shape, scale=0.3) + (1.0 if path.endswith("gamma") else 0.0)
        return param.holding(px.tensor(value, device=param.device, kind=px.Float))

    return config.init(device).map(drawn)


def torch_logits(p: dict[str, torch.Tensor], config: GptConfig, tokens: torch.Tensor) -> torch.Tensor:
    (batch, n), d, heads = tokens.shape, config.d_model, config.n_heads
    groups, width = config.n_kv_heads or heads, d // heads

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"{name}.weight"].T, p.get(f"{name}.bias"))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (d,), p[f"{name}.gamma"], p.get(f"{name}.beta"))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(n), 10000.0 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width))
        z = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag], -1)

    x = p["tokens.weight"][tokens]
    x = x if config.rotary else x + p["positions"][:n]
    for block in (f"blocks.{i}" for i in range(config.n_layers)):
        h = norm(f"{block}.norm_1", x)
        q, k, v = (
            dense(f"{block}.attention.{name}", h).view(batch, n, count, width).transpose(1, 2)
            for name, count in (("query", heads), ("key", groups), ("value", groups))
        )
        q, k = (rotated(q), rotated(k)) if config.rotary else (q, k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + dense(f"{block}.attention.out", y.transpose(1, 2).reshape(batch, n, d))
        h = F.gelu(dense(f"{block}.up", norm(f"{block}.norm_2", x)), approximate="tanh")
        x = x + dense(f"{block}.down", h)
    x = norm("norm", x)
    return x @ p["tokens.weight"].T if config.tied else dense("head", x)


def both(model: Gpt, tokens: Any, targets: Any) -> Any:
    loss = model.loss(tokens, targets)
    return model(tokens), px.GradientsParams.from_grads(loss.backward(), model)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_against_pytorch(case: str, backend: Backend) -> None:
    config = GptConfig(**(SHALLOW if isinstance(backend, Jax) else SMALL), **CASES[case])
    model = lively(config, Autodiff(backend))
    tokens, targets = (px.tensor(part, device=backend) for part in (TOKENS[:, :-1], TOKENS[:, 1:]))
    run = px.compile(both) if isinstance(backend, Jax) else both  # eagerly it takes its time to start
    logits, grads = run(model, tokens, targets)
    p = {
        path: torch.tensor(param.val().numpy().astype(np.float64)).requires_grad_()
        for path, param in model.named_params()
    }
    expected = torch_logits(p, config, torch.tensor(TOKENS[:, :-1].astype(np.int64)))
    exact = "f64" in repr(backend)
    close: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-9} if exact else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(logits.numpy(), expected.detach().numpy(), **close)
    F.cross_entropy(expected.reshape(-1, 11), torch.tensor(TOKENS[:, 1:].astype(np.int64)).reshape(-1)).backward()
    for path, param in model.named_params():
        found, wanted = grads.get(param.id), p[path].grad
        assert found is not None and wanted is not None, path
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), err_msg=path, **close)


def test_how_it_begins() -> None:
    model = GptConfig(vocabulary=300, context=64, n_layers=3, d_model=64, n_heads=4).init("numpy").init(0)
    for path, param in model.named_params():
        value = param.val().numpy()
        if path.endswith(("bias", "beta")):
            assert (value == 0).all(), path
        elif path.endswith("gamma"):
            assert (value == 1).all(), path
        else:
            std = 0.02 / math.sqrt(6) if path.endswith(("out.weight", "down.weight")) else 0.02
            assert value.std() == pytest.approx(std, rel=0.05), path
            assert abs(value.mean()) < 5 * std / math.sqrt(value.size), path
    tokens = px.tensor(np.arange(128).reshape(2, 64), device="numpy")
    assert model.loss(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(math.log(300), abs=0.1)
    config = GptConfig(**SMALL)
    count = 11 * 16 * 2 + 8 * 16 + 2 * (4 * 16 * 17 + 2 * 16 * 64 + 64 + 16 + 4 * 16) + 2 * 16
    assert config.init().num_params() == count
    assert config.replace(tied=True).init().num_params() == count - 11 * 16


@pytest.mark.full
def test_the_steps_of_all_engines_are_one_with_their_dropout() -> None:
    def step(model: Gpt, optimizer: optim.Optimizer, lr: float, tokens: Any, targets: Any) -> Any:
        loss = model.loss(tokens, targets)
        return optimizer.step(lr, model, px.GradientsParams.from_grads(loss.backward(), model)), loss

    losses = []
    for backend in PLAIN:
        model = GptConfig(**SHALLOW, dropout=0.2).init(Autodiff(backend)).init(3)
        optimizer = optim.AdamWConfig().init()
        tokens, targets = (px.tensor(part, device=backend) for part in (TOKENS[:, :-1], TOKENS[:, 1:]))
        run = px.compile(step, donate=("model", "optimizer")) if isinstance(backend, Jax) else step
        found = []
        with px.random.stream(5):
            for _ in range(3):
                model, loss = run(model, optimizer, 1e-2, tokens, targets)
                found.append(loss.item())
        losses.append(found)
        if not isinstance(backend, Jax):
            with px.random.stream(5) as stream:
                quiet = [model.valid().loss(tokens, targets).item() for _ in range(2)]
                assert stream.position == 0 and quiet[0] == quiet[1]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_a_record_moves_it() -> None:
    config = GptConfig(**SMALL, tied=True)
    model, recorder = lively(config, "numpy"), BinaryRecorder()
    other = GptConfig.from_json(config.to_json()).init("torch")
    other.load_record(recorder.from_bytes(recorder.to_bytes(model.into_record())))
    found = [m(px.tensor(TOKENS, device=m.tokens.weight.device)).numpy() for m in (model, other)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_what_former_versions_saved_still_fits() -> None:
    former = {
        "vocabulary": 11, "context": 8, "n_layers": 1, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_hidden": None,
        "dropout": 0.5, "bias": True, "tied": False, "rotary": False,
    }  # fmt: skip
    config = GptConfig.from_dict(former)
    assert config == GptConfig(*former.values()) and former.items() <= config.to_dict().items()
    block = [
        "norm_1.gamma", "norm_1.beta", "attention.query.weight", "attention.query.bias", "attention.key.weight",
        "attention.key.bias", "attention.value.weight", "attention.value.bias", "attention.out.weight",
        "attention.out.bias", "norm_2.gamma", "norm_2.beta", "up.weight", "up.bias", "down.weight", "down.bias",
    ]  # fmt: skip
    paths = ["tokens.weight", "positions", *(f"blocks.0.{name}" for name in block), "norm.gamma", "norm.beta"]
    assert [path for path, _ in config.init().named_params()] == [*paths, "head.weight"]  # records without names


@pytest.mark.parametrize("wrong", [
    {"vocabulary": 0}, {"context": 0}, {"n_layers": -1}, {"n_heads": 3}, {"n_kv_heads": 3}, {"d_hidden": 0},
    {"dropout": 1.0}, {"rotary": True, "n_heads": 16},
])  # fmt: skip
def test_config_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GptConfig(**(SMALL | wrong))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "too many": (lambda m: m(px.tensor([[0] * 9])), ShapeError, r"context of 8, got shape \(1, 9\)"),
    "rank": (lambda m: m(px.tensor([1, 2])), ShapeError, r"\[batch, n\].* got shape \(2,\)"),
    "no tensor": (lambda m: m([[1, 2]]), KindError, "must be an Int tensor, got list"),
    "floats": (lambda m: m(px.ones((1, 2))), KindError, "Int"),
    "cache full": (lambda m: m(px.tensor([[1, 2, 3]]), cache=m.init_cache(1, 2)), RangeError, "capacity of 2"),
    "kind": (lambda m: m.generate(px.ones((3,)), 1), KindError, "an Int tensor of tokens, got a Float tensor"),
    "text": (lambda m: m.generate("def", 1), KindError, "an Int tensor of tokens, got a str"),
    "empty": (lambda m: m.generate(px.zeros((0,)).int(), 1), ShapeError, r"at least one token, got shape \(0,\)"),
    "range": (lambda m: m.generate(px.tensor([3, 11]), 1), IndexRangeError, "from 3 to 11; .* 0 to 10"),
    "length": (lambda m: m.generate(px.tensor([3]), -1), RangeError, "max_new_tokens must be at least zero, got -1"),
    "cold": (lambda m: m.generate(px.tensor([3]), 1, temperature=-1.0), RangeError, "temperature .* got -1.0"),
    "nan": (lambda m: m.generate(px.tensor([3]), 1, temperature=math.nan), RangeError, "temperature .* got nan"),
    "half": (lambda m: m.generate(px.tensor([3]), 2.0), KindError, "max_new_tokens must be a whole number, got 2.0"),
    "no temperature": (
        lambda m: m.generate(px.tensor([3]), 1, temperature=None),
        KindError,
        "temperature must be a number, got",
    ),
    "part": (lambda m: m.generate(px.tensor([3]), 1, top_k=2.5), KindError, "top_k must be a whole number, got 2.5"),
    "word": (lambda m: m.generate(px.tensor([3]), 1, top_p="all"), KindError, "top_p must be a number, got 'all'"),
    "part of a stop": (
        lambda m: m.generate(px.tensor([3]), 1, stop=2.5),
        KindError,
        "stop must be token ids, one or several",
    ),
    "none": (lambda m: m.generate(px.tensor([3]), 1, top_k=0), RangeError, "top_k must be at least one, got 0"),
    "nucleus": (lambda m: m.generate(px.tensor([3]), 1, top_p=0.0), RangeError, "top_p .* above 0 .* got 0.0"),
    "percent": (lambda m: m.generate(px.tensor([3]), 1, top_p=90), RangeError, "top_p .* got 90"),
    "long": (lambda m: m.generate(px.zeros((2, 9)).int(), 1), ShapeError, r"9 tokens, .* prompt\[\.\.\., -8:\]"),
    "stop": (lambda m: m.generate(px.tensor([3]), 1, stop=[2, 11]), RangeError, "stop token 11 .*0 to 10"),
    "stop word": (lambda m: m.generate(px.tensor([3]), 1, stop="."), KindError, "stop must be token ids"),
    "no prompts": (lambda m: m.generate([], 1), ShapeError, "the list of prompts is empty"),
    "empty one": (lambda m: m.generate([[1], []], 1), ShapeError, r"prompts\[1\] must be .* got shape \(0,\)"),
    "long one": (lambda m: m.generate([[1], [2] * 9], 1), ShapeError, r"prompts\[1\] has 9 tokens"),
    "range of one": (lambda m: m.generate([[1], [11]], 1), IndexRangeError, r"prompts\[1\] has tokens from 11 to 11"),
    "numbers": (lambda m: m.generate([1, 2], 1), KindError, r"prompts\[0\] is a number"),
    "floats in one": (lambda m: m.generate([[1], [2.5]], 1), KindError, r"prompts\[1\] must be .* got float64"),
    "rank of one": (lambda m: m.generate([px.tensor([[1]])], 1), ShapeError, r"prompts\[0\] must be \[n\]"),
    "penalty": (lambda m: m.generate([[3]], 1, repetition_penalty=0), RangeError, "repetition_penalty .* above zero"),
    "presence": (lambda m: m.generate([[3]], 1, presence_penalty=math.inf), RangeError, "presence_penalty .* finite"),
    "frequency": (lambda m: m.generate([[3]], 1, frequency_penalty="no"), KindError, "frequency_penalty must be a num"),
    "least": (lambda m: m.generate([[3]], 1, min_p=1.5), RangeError, "min_p .* from 0 to 1, got 1.5"),
    "typical": (lambda m: m.generate([[3]], 1, typical_p=0), RangeError, "typical_p is a probability, .* got 0"),
    "bias of none": (lambda m: m.generate([[3]], 1, logit_bias={11: 1.0}), RangeError, "logit_bias token 11 .*0 to 10"),
    "bias": (lambda m: m.generate([[3]], 1, logit_bias={1: math.nan}), RangeError, "logit_bias must be finite"),
    "biases": (lambda m: m.generate([[3]], 1, logit_bias=[1.0]), KindError, "logit_bias must be a dict"),
    "banned": (lambda m: m.generate([[3]], 1, banned=[1, 2.5]), KindError, "banned must be token ids"),
    "all banned": (lambda m: m.generate([[3]], 1, banned=range(11)), RangeError, "all tokens .* are banned"),
    "n-gram": (lambda m: m.generate([[3]], 1, no_repeat_ngram=0), RangeError, "no_repeat_ngram must be at least one"),
    "function": (lambda m: m.generate([[3]], 1, processors=len), KindError, "processors must be a list of functions"),
    "functions": (lambda m: m.generate([[3]], 1, processors=[3]), KindError, "processor must be a function .* got 3"),
    "no logits": (
        lambda m: m.generate([[3]], 1, processors=[lambda tokens, logits: tokens]),
        KindError,
        "must return logits, a Float tensor",
    ),
    "other logits": (
        lambda m: m.generate([[3]], 1, processors=[lambda tokens, logits: logits[0]]),
        ShapeError,
        r"must return logits of shape \(1, 11\), got shape \(11,\)",
    ),
    "seeds": (lambda m: m.generate([[3]], 1, seeds=[1, 2]), ShapeError, "one integer for each prompt, got 2 for 1"),
    "a seed": (lambda m: m.generate([[3]], 1, seeds=5), KindError, "seeds must be a list of integers"),
    "part of seeds": (lambda m: m.generate([[3]], 1, seeds=[0.5]), KindError, r"seeds\[0\] must be a whole number"),
    "compile": (lambda m: m.generate([[3]], 1, compile="always"), KindError, "compile must be True, False or 'auto'"),
    "streamed batch": (lambda m: m.stream(px.tensor([[1]]), 1), ShapeError, r"stream: .* list\(prompt\)"),
    "streamed": (lambda m: m.stream(px.tensor([1]), 1, top_p=2.0), RangeError, "stream: top_p"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message) as caught:
        call(GptConfig(**SMALL).init("numpy"))
    assert "\n" not in str(caught.value)
