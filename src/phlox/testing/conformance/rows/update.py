# pyright: standard
"""Optimizer updates."""

from __future__ import annotations

from typing import Any

import numpy as np

import phlox as px
from phlox.backend.contract.update import AdamScalars
from phlox.testing.conformance.row import Row, exact, normal, other, positive

_WAYS = {
    "Adam": AdamScalars(0.1, 0.9, 0.999, 1e-8, 0.0, False, 0.271, 0.003),
    "Adam with decay": AdamScalars(0.1, 0.9, 0.99, 1e-8, 0.05, False, 0.271, 0.03),
    "AdamW": AdamScalars(0.1, 0.8, 0.99, 1e-6, 0.05, True, 0.36, 0.02),
}


def _adam(x: Any, g: Any, m: Any, v: Any, n: AdamScalars) -> list[Any]:
    if n.decoupled:
        x = x - n.lr * n.weight_decay * x
    else:
        g = g + n.weight_decay * x
    m = n.beta_1 * m + (1 - n.beta_1) * g
    v = n.beta_2 * v + (1 - n.beta_2) * g**2
    return [x - n.lr * (m / n.correction_1) / (np.sqrt(v / n.correction_2) + n.epsilon), m, v]


_SAMPLES = (
    (normal(3, 4), other(3, 4), exact(normal(3, 4) * 0.5), positive(3, 4)),
    (normal(), other(), other(), positive()),
    (normal(0, 2), normal(0, 2), normal(0, 2), normal(0, 2)),
    (normal(1 << 10, 3), other(1 << 10, 3), normal(1 << 10, 3), positive(1 << 10, 3)),
)

ROWS: list[Row] = [
    Row(
        f"adam_update: {title} of {name}",
        lambda x, g, m, v, n=numbers, part=part: px.functional.adam_update(x, g, m, v, n)[part],
        lambda x, g, m, v, n=numbers, part=part: _adam(x, g, m, v, n)[part],
        _SAMPLES,
        gradient=False,
        factor=4,
    )
    for name, numbers in _WAYS.items()
    for part, title in enumerate(("the value", "the first moment", "the second moment"))
]
