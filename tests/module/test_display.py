"""The text of a printed module: parameters with shapes, constants, children below, and modes where they differ."""

from __future__ import annotations

import phlox as px
from phlox import nn


class Block(px.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 3), nn.Linear(3, 1, bias=False)]
        self.by_name = {"act": nn.Relu(), "inner": {"norm": nn.LayerNorm(3)}}
        self.size = 3
        self.note = "x" * 100


def lines(module: px.Module) -> list[str]:
    return repr(module).splitlines()


def test_a_tree_of_children() -> None:
    shown = lines(Block())
    assert shown[0].startswith("Block(size=3, note='xxx") and shown[0].endswith("xxx...)")
    assert len(shown[0]) < 100
    assert [line.split("(")[0] for line in shown[1:]] == [
        "  layers.0: Linear",
        "  layers.1: Linear",
        "  by_name.act: Relu",
        "  by_name.inner.norm: LayerNorm",
    ]


def test_parameters_have_their_shapes() -> None:
    (line,) = lines(nn.Linear(2, 3))
    assert "weight [2, 3]" in line and "bias [3]" in line
    (line,) = lines(nn.Linear(3, 1, bias=False))
    assert "weight [3, 1]" in line and "bias=None" in line


def test_what_is_frozen_says_so() -> None:
    assert repr(nn.Linear(2, 3).freeze()).count("not trained") == 2
    assert "not trained" not in repr(nn.Linear(2, 3))


def test_the_mode_stands_where_it_is_another() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert sum("training=" in line for line in lines(model.train())) <= 1
    model.train()
    mixed = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    mixed.layers[1].layers[0].training = True
    assert sum("training=True" in line for line in lines(mixed)) == 1


def test_what_holds_itself_is_shown_once() -> None:
    block = Block()
    block.layers.append(block)  # pyright: ignore[reportArgumentType]
    assert lines(block).count("  layers.2: Block(...)") == 1
