"""Modules of one architecture as one, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError


class Block(px.Module):
    def __init__(self, rate: float = 0.5, device: Any = None) -> None:
        self.linear = nn.Linear(3, 3, device=device)
        self.parts = [nn.Dropout(rate), {"tied": self.linear.weight}]
        self.count = px.Param(px.arange(2, device=device))
        self.mean = px.Param(px.ones((), device=device), trained=False)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)
def test_there_and_back(backend: Backend) -> None:
    blocks = [Block(device=backend).init(seed) for seed in range(3)]
    stacked = px.stack_modules(blocks)
    assert stacked.linear.weight.shape == (3, 3, 3) and stacked.mean.shape == (3,)
    assert stacked.parts[1]["tied"] is stacked.linear.weight
    assert [(p.kind, p.trained) for p in stacked.params()] == [(p.kind, p.trained) for p in blocks[0].params()]
    assert not {p.id for p in stacked.params()} & {p.id for block in blocks for p in block.params()}
    again = px.unstack_modules(stacked)
    assert len(again) == 3 and len({p.id for block in again for p in block.params()}) == 12
    for block, other in zip(blocks, again, strict=True):
        assert [path for path, _ in other.named_params()] == [path for path, _ in block.named_params()]
        for mine, its in zip(block.params(), other.params(), strict=True):
            np.testing.assert_array_equal(mine.val().numpy(), its.val().numpy())
            assert mine.trained == its.trained and its.val().is_require_grad() == mine.val().is_require_grad()


def test_marks_survive() -> None:
    frozen = [Block().freeze("linear") for _ in range(2)]
    stacked = px.stack_modules(frozen)
    assert [p.trained for p in stacked.params()] == [False] * 4
    assert [p.trained for p in stacked.unfreeze().params()] == [True, True, False, False]
    assert [p.trainable for p in px.unstack_modules(stacked)[1].params()] == [True, True, False, False]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([Block(0.25)], r"`parts\.0\.rate` is 0\.5 in the first module, and 0\.25 in module 1"),
        ([Block(), nn.Linear(2, 2)], "the module itself is a Block in the first module, and a Linear in module 2"),
        ([Block().freeze("linear.bias")], r"`linear\.bias` is Param\(.* and Param\(.*not trained\) in module 1"),
        ([Block().valid(tape=True)], "`training` is missing in the first module, and False in module 1"),
        ([Block(device="jax")], r"`linear\.weight` is Param.*numpy.*jax"),
        ([3], "a sequence of modules is expected, got an int in it"),
    ],
)
def test_modules_that_are_not_alike(others: Any, said: str) -> None:
    with pytest.raises(ModuleError, match=f"^stack_modules: .*({said})"):
        px.stack_modules([Block(), *others])


def test_ties_and_extra_parameters_are_differences() -> None:
    def pair(tied: bool) -> px.Module:
        box = Block()
        box.parts = [box.linear.weight if tied else px.Param(px.ones((3, 3)))]
        return box

    with pytest.raises(ModuleError, match=r"`parts\.0` is parameter 0 .* parameter 2 in module 1"):
        px.stack_modules([pair(True), pair(False)])
    more = Block()
    more.parts.append(px.Param(px.ones((1,))))
    with pytest.raises(ModuleError, match=r"`parts\.2` is missing in the first module, and parameter 2 in module 1"):
        px.stack_modules([Block(), more])
    with pytest.raises(ModuleError, match="there are no modules"):
        px.stack_modules([])


def test_what_cannot_be_taken_apart() -> None:
    with pytest.raises(ModuleError, match=r"no first axis in common \(`linear\.weight` of \(3, 3\), .*`mean` of \(\)"):
        px.unstack_modules(Block())
    with pytest.raises(ModuleError, match="there are none"):
        px.unstack_modules(nn.Dropout(0.5))


def test_fields_that_cannot_be_compared_are_alike_if_they_are_one() -> None:
    table = np.zeros(10_000)
    blocks: list[Any] = [Block() for _ in range(2)]
    for block in blocks:
        block.table = table
    assert px.stack_modules(blocks).table is table
    blocks[0].table, blocks[1].table = np.arange(3), np.arange(3)  # small ones are compared
    assert px.stack_modules(blocks).table.tolist() == [0, 1, 2]
    blocks[1].table = np.zeros(10_000)
    with pytest.raises(ModuleError, match="`table` is array"):
        px.stack_modules(blocks)
