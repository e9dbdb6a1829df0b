"""Parts of transformers: activations by name against PyTorch's, dense layers, and checks of numbers."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import NumPy
from phlox.models.parts import check_counts, check_positive, check_rates, dense
from phlox.nn.activation import ACTIVATIONS, ActivationName

THEIRS: dict[str, Any] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", get_args(ActivationName))
def test_activations_by_name(name: ActivationName) -> None:
    x = np.linspace(-6.0, 6.0, 101)
    found = ACTIVATIONS[name](px.tensor(x, device=NumPy(float="f64"))).numpy()
    np.testing.assert_allclose(found, THEIRS[name](torch.tensor(x)).numpy(), rtol=1e-9, atol=1e-12)


def test_a_config_can_name_each() -> None:
    assert set(get_args(ActivationName)) == set(ACTIVATIONS) == set(THEIRS)


def test_dense_layers_begin_alike() -> None:
    layer = dense(300, 200, 0.05, bias=True, device="numpy").init(0)
    weight = layer.weight.val().numpy()
    assert weight.shape == (300, 200)
    assert abs(weight.mean()) < 5 * 0.05 / 60000**0.5 and abs(weight.std() / 0.05 - 1.0) < 5 / (2 * 60000) ** 0.5
    assert layer.bias is not None and not layer.bias.val().numpy().any()
    assert dense(3, 2, 0.1, bias=False, device=None).bias is None


@pytest.mark.parametrize(
    "check, right, wrong, message",
    [
        (check_counts, [1, 7, None], [0, -1], "n must be at least one, got "),
        (check_rates, [0.0, 0.99, None], [-0.1, 1.0, float("nan")], r"n must lie in \[0, 1\), got "),
        (check_positive, [1e-9, 3.0], [0.0, -1.0, float("nan")], "n must be positive, got "),
    ],
)
def test_numbers_are_checked_by_name(check: Any, right: list[Any], wrong: list[Any], message: str) -> None:
    for number in right:
        check(n=number)
    for number in wrong:
        with pytest.raises(ValueError, match=message):
            check(other=right[0], n=number)
