# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""In Keras."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.models.mlp import Sizes


def model(sizes: Sizes, weights: dict[str, Any]) -> keras.Model:
    """The model with these weights."""
    *hidden, out = sizes.widths[1:]
    layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
    found = keras.Sequential([keras.Input(sizes.widths[:1]), *layers, keras.layers.Dense(out)])
    found.set_weights(list(weights.values()))
    return found
