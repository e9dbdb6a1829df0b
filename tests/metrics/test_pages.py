"""Values of metrics in notebooks.

Serves: phlox/metrics/pages.py
"""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from phlox import metrics
from phlox.metrics import Results
from tests.markup import read


def test_results_of_a_collection() -> None:
    every = metrics.Collection({
        "accuracy": metrics.Accuracy(num_classes=3), "f1": metrics.F1(num_classes=3, average=None),
        "confusion": metrics.ConfusionMatrix(num_classes=3),
    })  # fmt: skip
    found = every([0, 1, 2, 2], [0, 1, 1, 2])
    assert type(found) is Results
    shown = read(found)
    assert ["accuracy", "0.75"] in shown.rows and "3 values" in shown.text
    assert ["1", "0", "1", "1"] in shown.rows, "a row of the confusion matrix with its number"


def test_results_are_a_dict() -> None:
    found = Results(a=1.0)
    assert found == {"a": 1.0} and repr(found) == "{'a': 1.0}" and dict(found) == found
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):  # noqa: S301
        assert type(twin) is Results and twin == found


@pytest.mark.parametrize("values", [
    {}, {"<script>\u202e": 1.0}, {"a": math.nan, "b": math.inf, "c": np.float32(2.0), "d": np.int64(3), "e": True},
    {"nested": {"more": {"loss": 0.5}}}, {"ragged": [[1.0], [1.0, 2.0]]}, {"words": ["<b>", "c"]}, {"none": None},
    {"large": np.zeros((100, 100))}, {"cube": np.zeros((2, 2, 2))}, {"empty": []}, {"nan": [math.nan, 1.0]},
    {"matrix": [[0.0, 0.0], [-1.0, math.inf]]}, {str(n): 1.0 for n in range(1000)},
], ids=range(13))  # fmt: skip
def test_any_values(values: dict[str, Any]) -> None:
    assert len(Results(values)._repr_html_()) < 30_000
    read(Results(values))
