"""Choosing parameters by pattern and predicate, and freezing them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, NumPy
from phlox.errors import ModuleError
from phlox.module.select import select
from phlox.record import patterns


class Block(px.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(2)
        self.up = nn.Linear(2, 2)


class Net(px.Module):
    def __init__(self) -> None:
        self.encoder = [Block(), Block()]
        self.head = nn.Linear(2, 1)
        self.again = {"first": self.encoder[0].up}
        self.scale = px.Param(px.ones(()))
        self.mean = px.Param(px.ones((2,)), trained=False)


ALL = [
    "encoder.0.norm.gamma", "encoder.0.norm.beta", "encoder.0.up.weight", "encoder.0.up.bias",
    "encoder.1.norm.gamma", "encoder.1.norm.beta", "encoder.1.up.weight", "encoder.1.up.bias",
    "head.weight", "head.bias", "scale", "mean",
]  # fmt: skip


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        ((), ALL),
        (("**",), ALL),
        (("encoder",), ALL[:8]),
        (("encoder.**",), ALL[:8]),
        (("encoder.*",), ALL[:8]),  # modules: everything below
        (("*.bias",), ["head.bias"]),
        (("**.bias",), ["encoder.0.up.bias", "encoder.1.up.bias", "head.bias"]),
        (("encoder.*.norm",), [ALL[0], ALL[1], ALL[4], ALL[5]]),
        (("encoder.1.*.b*",), ["encoder.1.norm.beta", "encoder.1.up.bias"]),
        (("*a*",), ["encoder.0.up.weight", "encoder.0.up.bias", "head.weight", "head.bias", "scale", "mean"]),
        (("again.first.weight",), ["encoder.0.up.weight"]),  # by any of its paths
        (("scale",), ["scale"]),
        (("head", "scale"), ["head.weight", "head.bias", "scale"]),
        (("!encoder",), ALL[8:]),
        (("encoder", "!**.norm", "!encoder.0"), ["encoder.1.up.weight", "encoder.1.up.bias"]),
        (("encoder.0", "!encoder", "scale"), ["scale"]),
        ((lambda path, param: param.shape == (),), ["scale"]),
        ((lambda path, param: np.prod(param.shape) > 3,), ["encoder.0.up.weight", "encoder.1.up.weight"]),
        ((["head", "!**.bias"], "scale"), ["head.weight", "scale"]),
        ((lambda path, param: False,), []),
    ],
)
def test_what_is_chosen(which: tuple[Any, ...], chosen: list[str]) -> None:
    model = Net()
    assert list(select(model, *which)) == chosen
    assert [path for path, p in model.freeze(*which).named_params() if not p.trained and path != "mean"] == [
        path for path in chosen if path != "mean"
    ]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("encoder.0.nrom.gamma", "did you mean `encoder.0.norm.gamma`"),
        ("encodr", "did you mean `encoder`"),
        ("encodr.**", r"did you mean `encoder.**`"),
        ("gamma", r"did you mean `**.gamma`"),
        ("*.wieght", r"did you mean `*.weight`"),
        ("up.wieght", r"did you mean `**.up.weight`"),
        ("zzz", "the parameters are encoder.0.norm.gamma, "),
        ("encoder.2", "no parameter matches"),
        ("", "no parameter matches"),
        ("!zzz", "no parameter matches `zzz`"),
    ],
)
def test_a_pattern_without_a_match(pattern: str, said: str) -> None:
    for name in ("freeze", "unfreeze"):
        with pytest.raises(ModuleError, match=re.escape(said)):
            getattr(Net(), name)(pattern)


def test_what_is_no_pattern() -> None:
    model: Any = Net()
    for wrong in (False, 3, None, model.head.weight, model.head, nn.LayerNorm):
        with pytest.raises(ModuleError, match=r"does not select parameters; give a pattern"):
            model.freeze(wrong)
    with pytest.raises(ModuleError, match=r"True or False for the parameter `encoder.0.norm.gamma`, got None"):
        model.freeze(lambda path, param: None)
    with pytest.raises(ZeroDivisionError) as caught:
        model.freeze(lambda path, param: 1 / 0 if path == "head.weight" else False)
    assert "`head.weight`" in caught.value.__notes__[0]


def trained(model: px.Module) -> list[str]:
    return [path for path, param in model.named_params() if param.trained]


def test_freezing_is_a_view_that_adds_up() -> None:
    model = Net().to_device(Autodiff(NumPy()))
    part = model.freeze("encoder")
    assert trained(model) == ALL[:-1] and trained(part) == ["head.weight", "head.bias", "scale"]
    both = part.freeze("**.bias")
    assert trained(both) == ["head.weight", "scale"]
    assert trained(both.unfreeze("encoder.1")) == [*ALL[4:8], "head.weight", "scale"]
    assert trained(both.unfreeze()) == ALL[:-1]
    assert both.again["first"] is both.encoder[0].up
    assert not part.encoder[0].up.weight.val().is_require_grad() and part.head.weight.val().is_require_grad()
    with pytest.raises(ModuleError, match="`mean` is not declared as trained"):
        model.unfreeze("mean")


def test_frozen_parameters_get_no_gradient_and_stay_in_jax() -> None:
    import jax

    model = nn.Sequential([nn.Linear(2, 3), nn.Linear(3, 1)]).init(0).train().freeze("layers.0")
    loss = model(px.Tensor.from_inner(px.ones((4, 2)))).sum()
    assert len(px.GradientsParams.from_grads(loss.backward(), model)) == 2
    moved = jax.tree.map(lambda x: x, model.to_device("jax"))
    assert trained(moved) == ["layers.1.weight", "layers.1.bias"]
    assert trained(moved.unfreeze()) == [path for path, _ in model.named_params()]


names = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b"])


@given(st.lists(names, min_size=1, max_size=4), st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4))
def test_patterns_against_a_plain_matcher(pattern: list[str], path: list[str]) -> None:
    from fnmatch import fnmatchcase

    def matches(pattern: list[str], path: list[str]) -> bool:
        if not pattern:
            return True  # what is below
        if pattern[0] == "**":
            return any(matches(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
        return bool(path) and fnmatchcase(path[0], pattern[0]) and matches(pattern[1:], path[1:])

    assert patterns.matches(".".join(pattern), ".".join(path)) == matches(pattern, path)
