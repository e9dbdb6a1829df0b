"""`Sequential`: layers in a row, by place and by name."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import phlox as px
from phlox import nn


def test_sequential() -> None:
    layers: list[Any] = [nn.Linear(2, 3), nn.Relu(), lambda x: x * 2.0, nn.Linear(3, 1)]
    model = nn.Sequential(layers)
    assert len(model) == 4 and model[1] is layers[1] and list(model) == layers
    x = px.ones((5, 2))
    np.testing.assert_array_equal(model(x).numpy(), layers[3](layers[0](x).relu() * 2.0).numpy())
    layers.append(nn.Relu())
    assert len(model) == 4
    assert list(nn.Sequential(*layers[:4])) == list(model) and len(nn.Sequential()) == 0
    assert list(model[1:]) == layers[1:4] and model[2:].params() == layers[3].params()
    model.layers.append(nn.Tanh())
    assert len(model) == 5 and [path for path, _ in model.named_params()][-1] == "layers.3.bias"


def test_sequential_by_name() -> None:
    first, act, head = nn.Linear(2, 3), nn.Relu(), nn.Linear(3, 1)
    model = nn.Sequential(first=first, head=head)
    assert list(nn.Sequential({"first": first, "head": head})) == list(model) == [first, head]
    assert model["head"] is model[-1] is head and list(model[:1]) == [first]
    # An activation put in between changes no name: what was saved still fits.
    changed = nn.Sequential(first=nn.Linear(2, 3), act=act, head=nn.Linear(3, 1)).load_record(model.into_record())
    x = px.random.normal((4, 2))
    np.testing.assert_array_equal(changed(x).numpy(), head(first(x).relu()).numpy())
    assert list(dict(changed[1:].named_params())) == ["layers.head.weight", "layers.head.bias"]
    assert jax.tree.map(lambda leaf: leaf, changed)["act"] is not None
