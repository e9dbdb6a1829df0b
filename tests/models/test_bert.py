"""The BERT: against one in plain PyTorch with the same weights; `tests/interop` compares it with a reference of old."""

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
from phlox.errors import ConfigError, KindError, ShapeError
from phlox.models import Bert, BertClassifierConfig, BertConfig, BertMaskedLm, BertMaskedLmConfig

SMALL: dict[str, Any] = {
    "vocabulary": 11, "context": 8, "n_layers": 2, "d_model": 12, "n_heads": 3, "segments": 3, "d_hidden": 20,
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(1, 11, (3, 6)).astype(np.int32)
MASK = np.arange(6) < np.array([[6], [3], [4]])
SEGMENTS = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 2]], np.int32)
TARGETS = np.where(np.random.default_rng(1).random((3, 6)) < 0.5, TOKENS, -100).astype(np.int32)


def lively(module: Any) -> Any:
    """The module with parameters far enough from where they begin to tell a mistake."""
    rng = np.random.default_rng(1)

    def drawn(path: str, param: px.Param) -> px.Param:
        value = rng.normal(size=param.shape, scale=0.4) + (1.0 if path.endswith("gamma") else 0.0)
        return param.holding(px.tensor(value, device=param.device, kind=px.Float))

    return module.map(drawn)


def torch_hidden(p: dict[str, torch.Tensor], config: BertConfig, start: str = "") -> torch.Tensor:
    (batch, n), d, heads = TOKENS.shape, config.d_model, config.n_heads
    tokens, segments = (torch.tensor(one.astype(np.int64)) for one in (TOKENS, SEGMENTS))

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"{start}{name}.weight"].T, p[f"{start}{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (d,), p[f"{start}{name}.gamma"], p[f"{start}{name}.beta"], config.epsilon)

    x = F.embedding(tokens, p[f"{start}tokens.weight"], padding_idx=config.padding_index)
    x = norm("norm", x + p[f"{start}positions"][:n] + p[f"{start}segments.weight"][segments])
    for i in range(config.n_layers):
        block = f"blocks.{i}"
        q, k, v = (
            dense(f"{block}.attention.{name}", x).view(batch, n, heads, d // heads).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(MASK)[:, None, None])
        x = norm(f"{block}.norm_1", x + dense(f"{block}.attention.out", y.transpose(1, 2).reshape(batch, n, d)))
        x = norm(f"{block}.norm_2", x + dense(f"{block}.down", F.gelu(dense(f"{block}.up", x))))
    return x


def leaves(model: Any) -> dict[str, torch.Tensor]:
    return {
        path: torch.tensor(param.val().numpy().astype(np.float64)).requires_grad_()
        for path, param in model.named_params()
    }


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64"), Jax()], ids=repr)
def test_gradients_against_pytorch(backend: Backend) -> None:
    config = BertMaskedLmConfig(BertConfig(**SMALL, pooler=False, dropout=0.0, epsilon=0.01))
    model: BertMaskedLm = lively(config.init(Autodiff(backend)))
    tokens, mask, segments, targets = (px.tensor(a, device=backend) for a in (TOKENS, MASK, SEGMENTS, TARGETS))

    def both(model: BertMaskedLm, tokens: Any, targets: Any, mask: Any, segments: Any) -> Any:
        loss = model.loss(tokens, targets, mask=mask, segments=segments)
        return loss, px.GradientsParams.from_grads(loss.backward(), model)

    run = px.compile(both) if isinstance(backend, Jax) else both
    loss, grads = run(model, tokens, targets, mask, segments)
    p = leaves(model)
    x = F.gelu(torch_hidden(p, config.bert, "bert.") @ p["transform.weight"] + p["transform.bias"])
    x = F.layer_norm(x, (12,), p["norm.gamma"], p["norm.beta"], 0.01)
    logits = x @ p["bert.tokens.weight"].T + p["bias"]
    expected = F.cross_entropy(logits.reshape(-1, 11), torch.tensor(TARGETS.astype(np.int64)).reshape(-1))
    expected.backward()
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if isinstance(backend, Jax) else {"rtol": 1e-8, "atol": 1e-9}
    np.testing.assert_allclose(loss.item(), expected.item(), **close)
    for path, param in model.named_params():
        found, wanted = grads.get(param.id), p[path].grad
        assert found is not None and wanted is not None, path
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), err_msg=path, **close)


@pytest.mark.parametrize("by_token", [False, True], ids=["texts", "tokens"])
def test_classes_against_pytorch(by_token: bool) -> None:
    config = BertClassifierConfig(BertConfig(**SMALL), classes=4, by_token=by_token)
    model = lively(config.init(NumPy(float="f64")))
    p = leaves(model)
    x = torch_hidden(p, config.bert, "bert.")
    if not by_token:
        x = torch.tanh(x[:, 0] @ p["bert.pooler.weight"] + p["bert.pooler.bias"])
    expected = (x @ p["head.weight"] + p["head.bias"]).detach().numpy()
    inputs = (px.tensor(one, device=NumPy(float="f64")) for one in (TOKENS, MASK, SEGMENTS))
    tokens, mask, segments = inputs
    np.testing.assert_allclose(model(tokens, mask=mask, segments=segments).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_what_is_masked_changes_nothing_of_the_rest() -> None:
    model: Bert = lively(BertConfig(**SMALL).init("numpy"))
    other = np.where(MASK, TOKENS, 11 - TOKENS)
    mask = px.tensor(MASK.astype(np.int32), device="numpy")
    found = [model(px.tensor(one, device="numpy"), mask=mask).numpy() for one in (TOKENS, other)]
    np.testing.assert_allclose(found[0][MASK], found[1][MASK], rtol=1e-5, atol=1e-5)
    assert np.abs(model(px.tensor(other, device="numpy")).numpy()[MASK] - found[0][MASK]).max() > 0.1
    first = px.tensor(np.zeros_like(TOKENS), device="numpy")  # the segment unless given
    np.testing.assert_array_equal(model(px.tensor(TOKENS, device="numpy"), mask=mask, segments=first).numpy(), found[0])


def test_it_learns_what_was_masked() -> None:
    config = BertMaskedLmConfig(BertConfig(**SMALL, dropout=0.1, pooler=False))
    model = config.init(Autodiff(NumPy())).init(0)
    assert (model.bert.tokens.weight.val().numpy()[0] == 0).all()
    text = np.tile(np.arange(8) % 4 + 2, (4, 1))
    hidden = np.eye(8, dtype=bool)[[1, 3, 4, 6]]
    tokens, targets = np.where(hidden, 1, text), np.where(hidden, text, -100)
    batch = [px.tensor(one.astype(np.int32), device="numpy") for one in (tokens, targets)]
    optimizer = optim.AdamWConfig(weight_decay=0.0).init()
    losses = []
    with px.random.stream(0):
        for _ in range(60):
            loss = model.loss(*batch)
            model = optimizer.step(1e-2, model, px.GradientsParams.from_grads(loss.backward(), model))
            losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(11), abs=0.3) and losses[-1] < 0.5
    logits = model.valid()(batch[0]).numpy()
    assert (logits.argmax(-1)[hidden] == text[hidden]).all()


def test_configs_there_and_back() -> None:
    config = BertClassifierConfig(BertConfig(**SMALL, padding_index=None), classes=4, dropout=0.3)
    assert BertClassifierConfig.from_json(config.to_json()) == config
    count = (11 + 8 + 3 + 2) * 12 + 2 * (4 * 12 * 13 + 12 * 20 + 20 + 20 * 12 + 12 + 4 * 12) + 12 * 13 + 12 * 4 + 4
    assert config.init().num_params() == count


# --- bad input


@pytest.mark.parametrize(
    "wrong",
    [{"segments": 0}, {"n_heads": 5}, {"dropout": 1.0}, {"attention_dropout": -0.1}, {"epsilon": 0.0}, {"d_hidden": 0}],
    ids=str,
)
def test_config_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BertConfig(**(SMALL | wrong))


def test_texts_are_classified_by_the_pooler() -> None:
    bert = BertConfig(**SMALL, pooler=False)
    with pytest.raises(ConfigError, match="set pooler=True in bert, or by_token=True"):
        BertClassifierConfig(bert)
    with pytest.raises(ConfigError, match="classes must be at least one, got 0"):
        BertClassifierConfig(bert, classes=0, by_token=True)
    with pytest.raises(ConfigError, match=r"create it with BertConfig\(pooler=True\)"):
        bert.init("numpy").pooled(px.ones((1, 2, 12)))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "too many": (lambda m, x: m(px.tensor([[0] * 9])), ShapeError, r"context of 8, got shape \(1, 9\)"),
    "rank": (lambda m, x: m(px.tensor([1, 2])), ShapeError, r"\[batch, n\].* got shape \(2,\)"),
    "no tensor": (lambda m, x: m([[1, 2]]), KindError, "tokens must be a.? Int tensor, got list"),
    "float mask": (
        lambda m, x: m(x, mask=px.ones((1, 3))),
        KindError,
        "mask must be a Bool or Int tensor, .* got Float",
    ),
    "list mask": (lambda m, x: m(x, mask=[[1, 1, 1]]), KindError, "mask must be a Bool or Int tensor, .* got list"),
    "mask": (lambda m, x: m(x, mask=x[:, :2]), ShapeError, r"mask must have the shape of the tokens, \(1, 3\), got"),
    "segments": (lambda m, x: m(x, segments=x[0]), ShapeError, r"segments must have the shape of .*, got \(3,\)"),
    "float segments": (lambda m, x: m(x, segments=px.ones((1, 3))), KindError, "segments must be a.? Int tensor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message) as caught:
        call(BertConfig(**SMALL).init("numpy"), px.tensor([[1, 2, 3]]))
    assert "\n" not in str(caught.value)
