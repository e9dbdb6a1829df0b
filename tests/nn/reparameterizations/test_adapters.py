# What stands in the place of a parameter is not of its type, and PyTorch's annotations leave much unsaid.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
"""Adapters by name: which of them are used, one by one, weighted, and by the rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]


class Net(px.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(5, 4)
        self.conv = nn.Conv1d(4, 6, 3, padding=1, groups=2)
        self.out = nn.Linear(6, 4)

    def __call__(self, tokens: Any) -> Any:
        x = self.conv(self.table(tokens).permute_dims((0, 2, 1))).permute_dims((0, 2, 1))
        return self.table.logits(self.out(x))


def with_adapters(backend: Backend = NumPy()) -> Any:  # noqa: B008
    """LoRA, DoRA and IA3, at different layers; one weight has adapters of two kinds."""
    with px.random.stream(3):
        model = px.lora(Net().init(0), ["table.weight", "conv.weight", "out.weight"], rank=2, name="a", alpha=3)
        model = px.dora(model, ["conv.weight", "table.weight"], rank=1, name="c")
        for path, param in model.named_params():
            if "lora" in path:
                param.set(param.val() + px.random.normal(param.shape))
        model = px.ia3(model, None, "out.weight", name="b")
        model.out.weight.ia3["b"].set(px.random.normal((6,)))
    return model.to_device(backend).valid()


TOKENS = np.random.default_rng(0).integers(0, 5, (3, 4)).astype(np.int32)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_rows_of_a_batch_have_adapters_of_their_own(backend: Backend) -> None:
    """With LoRA, DoRA and IA3 in one model, also compiled; another list of names is another argument."""
    model = with_adapters(backend)
    tokens = px.tensor(TOKENS, device=backend)
    alone = {name: px.use_adapters(model, name)(tokens).numpy() for name in ("a", "b", "c")}
    alone["base"] = px.use_adapters(model, None)(tokens).numpy()
    assert len({value.tobytes() for value in alone.values()}) == 4
    run = px.compile(lambda model, tokens: model(tokens))
    for names in (["a", "base", "c"], ["c", "b", "a"], ["base", "a", "b"]):
        expected = np.stack([alone[name][row] for row, name in enumerate(names)])
        view = px.use_adapters(model, names)
        np.testing.assert_allclose(view(tokens).numpy(), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(run(view, tokens).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_all_kinds_at_one_weight_are_found() -> None:
    model = with_adapters()
    assert px.adapter_names(model) == ["a", "c", "b"]
    tokens = px.tensor(TOKENS)
    plain = px.without_adapters(model)
    assert [path for path, _ in plain.named_params()] == [path for path, _ in Net().named_params()]
    np.testing.assert_allclose(px.use_adapters(model, None)(tokens).numpy(), plain(tokens).numpy(), atol=1e-6)
    only = px.without_adapters(model, "b", "c")
    assert px.adapter_names(only) == ["a"]
    np.testing.assert_allclose(
        px.use_adapters(only, "a")(tokens).numpy(), px.use_adapters(model, "a")(tokens).numpy(), atol=1e-6
    )
    for which in ("a", "b", {"a": 0.5, "b": 0.25}, {"a": 1.0, "c": -0.5}, None):
        view = px.use_adapters(model, which)
        np.testing.assert_allclose(px.merge(view)(tokens).numpy(), view(tokens).numpy(), rtol=1e-4, atol=1e-4)


def test_a_weight_of_ia3_counts_from_one() -> None:
    model = px.ia3(nn.Linear(3, 2).init(0), "weight", name="b")
    x = px.random.normal((4, 3))
    base = model(x).numpy()
    model.weight.ia3["b"].set(px.tensor([3.0, 0.0]))
    assert model.bias.ia3["b"] is model.weight.ia3["b"]  # one vector for the result and its bias
    np.testing.assert_allclose(model(x).numpy(), base * [3.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(px.use_adapters(model, {"b": 0.5})(x).numpy(), base * [2.0, 0.5], atol=1e-6)


def test_only_the_newest_is_used_and_trained() -> None:
    model = px.lora(Net().init(0), "out.weight", rank=1, name="a")
    model = px.lora(model, "table.weight", rank=1, name="b")
    assert model.out.weight.active == () and model.table.weight.active == (("b", 1.0),)
    assert [path for path, p in model.named_params() if p.trained] == [f"table.weight.lora.b.{end}" for end in "AB"]
    more = px.lora(model, "conv.weight", rank=1, name="b")  # the same one at a further layer
    assert [path.split(".")[0] for path, p in more.named_params() if p.trained] == ["table"] * 2 + ["conv"] * 2


@pytest.mark.parametrize("kind", [px.lora, px.dora])
def test_dropout_is_of_the_adapter_alone(kind: Any) -> None:
    """Inputs of adapters are dropped in training, at every kind of layer but embeddings, which have none."""
    base = Net().init(0)
    model = kind(base, ["conv.weight", "out.weight"], rank=2, dropout=0.5)
    for path, param in model.named_params():
        if path.endswith("B"):
            param.set(px.ones(param.shape))
    x, z = px.random.normal((2, 4, 5)), px.random.normal((2, 6))
    for layer, value in ((model.conv, x), (model.out, z)):
        still = layer.valid()(value).numpy()
        np.testing.assert_array_equal(layer.valid()(value).numpy(), still)
        training = layer.train(tape=False)
        draws = np.stack([training(value).numpy() for _ in range(400)])
        assert draws.std(0).max() > 0.01
        np.testing.assert_allclose(draws.mean(0), still, atol=8 * draws.std(0).max() / 20)
    np.testing.assert_array_equal(base.conv(x).numpy(), px.use_adapters(model, None).conv.train(tape=False)(x).numpy())


def test_gradients_of_rows_go_to_their_adapters() -> None:
    model = with_adapters(Autodiff(NumPy())).valid(tape=True)
    view = px.use_adapters(model, ["a", "a", "base"]).unfreeze("out.weight")
    out = view(px.tensor(TOKENS, device=Autodiff(NumPy())))
    grads = px.GradientsParams.from_grads((out * out).sum().backward(), view)
    sizes = {
        path: float(np.abs(gradient.numpy()).max()) if (gradient := grads.get(param.id)) is not None else 0.0
        for path, param in view.named_params()
        if param.trained and path.startswith("out.weight")
    }
    assert sizes["out.weight.base.lora.a.A"] > 0 and sizes["out.weight.ia3.b"] == 0
