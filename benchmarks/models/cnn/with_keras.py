# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The residual network in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from benchmarks.models import cnn


def model(sizes: cnn.Sizes, weights: dict[str, Any]) -> keras.Model:
    """The model with these weights."""

    def conv_norm(conv: cnn.Conv, x: Any) -> Any:
        padding = "same"
        if conv.stride > 1:  # where "same" would pad on one side only
            padding = "valid"
            x = layers.ZeroPadding2D(conv.kernel // 2)(x) if conv.kernel > 1 else x
        x = layers.Conv2D(
            conv.outputs, conv.kernel, conv.stride, padding=padding, use_bias=False, name=_name(conv.name)
        )(x)
        norm = layers.BatchNormalization(
            momentum=1.0 - cnn.MOMENTUM, epsilon=cnn.EPSILON, name=_name(conv.name, "norm")
        )
        return norm(x)

    images = keras.Input((sizes.image, sizes.image, sizes.channels))
    x = layers.ReLU()(conv_norm(cnn.stem(sizes), images))
    for block in cnn.blocks(sizes):
        y = conv_norm(block.second, layers.ReLU()(conv_norm(block.first, x)))
        x = layers.ReLU()(layers.Add()([y, x if block.shortcut is None else conv_norm(block.shortcut, x)]))
    x = layers.GlobalAveragePooling2D()(x)
    net = keras.Model(images, layers.Dense(sizes.classes, name="head")(x))
    for conv in cnn.convolutions(sizes):
        net.get_layer(_name(conv.name)).set_weights([weights[conv.name]])
        norm = net.get_layer(_name(conv.name, "norm"))
        running = norm.get_weights()[2:]
        norm.set_weights([weights[f"{conv.name}.norm"], weights[f"{conv.name}.norm_bias"], *running])
    net.get_layer("head").set_weights([weights["head"], weights["head_bias"]])
    return net


def _name(*parts: str) -> str:
    return "_".join(parts).replace(".", "_")
