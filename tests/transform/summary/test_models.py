"""Every layer and model: the shapes that a summary finds are those of a call, and the gradients trace.

Serves: phlox/transform/summary/evaluate.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import NumPy
from phlox.models import BertClassifierConfig, BertConfig, BertMaskedLmConfig, DigitsConfig, GptConfig, LlamaConfig
from phlox.transform.summary.evaluate import specs_of
from tests.nn.test_layers import CASES, Case

TOKENS = np.array([[1, 2, 3, 4, 5], [3, 2, 1, 4, 2]])
BERT = BertConfig(vocabulary=10, context=8, n_layers=2, d_model=8, n_heads=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layers(case: Case) -> None:
    layer = case.make()
    x = px.random.normal(case.shape)
    whole = nn.Sequential([layer])
    found = whole.summary(px.TensorSpec(case.shape), training=True)
    outputs = whole.valid()(x)
    assert found.rows[0].outputs == specs_of(outputs)
    assert sum(row.flops for row in found.rows[1:2]) == found.flops


MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "gpt": (lambda: GptConfig(vocabulary=10, context=8, n_layers=2, d_model=8, n_heads=2).init(), (TOKENS,)),
    "llama": (
        lambda: LlamaConfig(vocabulary=10, context=8, n_layers=2, d_model=8, n_heads=4, n_kv_heads=2).init(),
        (TOKENS,),
    ),
    "bert": (lambda: BERT.init(), (TOKENS,)),
    "masked lm": (lambda: BertMaskedLmConfig(bert=BERT).init(), (TOKENS,)),
    "classifier": (lambda: BertClassifierConfig(bert=BERT).init(), (TOKENS,)),
    "digits": (lambda: DigitsConfig().init(), (np.zeros((2, 1, 8, 8), np.float32),)),
    "lstm": (lambda: nn.Lstm(4, 6), (np.zeros((2, 5, 4)),)),
    "gru": (lambda: nn.Gru(4, 6, n_layers=2, bidirectional=True), (np.zeros((2, 5, 4)),)),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), (np.zeros((2, 5, 8)),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, inputs = MODELS[name]
    model = make()
    found = model.summary(*inputs, training=True)
    assert found.flops is not None and found.products and found.products > 0
    assert all(param.is_deferred for param in model.params())
    given = [px.tensor(x, device=NumPy()) for x in inputs]
    assert repr(found.rows[0].outputs) == repr(specs_of(model.valid()(*given)))
    assert found.parameters == model.num_params()
