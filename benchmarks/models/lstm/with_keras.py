# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The language model of LSTMs in Keras; its gates have our order, and it calls the third one c."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from benchmarks.models import lstm


def model(sizes: lstm.Sizes, weights: dict[str, Any]) -> keras.Model:
    """The model with these weights."""
    net = keras.Sequential(
        [
            keras.Input((sizes.steps,), dtype="int32"),
            layers.Embedding(sizes.vocabulary, sizes.embedding),
            *[layers.LSTM(sizes.width, return_sequences=True) for _ in range(sizes.layers)],
            layers.Dense(sizes.vocabulary),
        ]
    )
    net.set_weights(list(weights.values()))
    return net
