"""The residual network in plain JAX: functions of dictionaries of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import cnn

Arrays = dict[str, Any]


def parameters(sizes: cnn.Sizes, weights: Arrays) -> tuple[Arrays, Arrays]:
    """The trained parameters, and the running statistics."""
    stats = {conv.name: (jnp.zeros(conv.outputs), jnp.ones(conv.outputs)) for conv in cnn.convolutions(sizes)}
    return {name: jnp.asarray(array) for name, array in weights.items()}, stats


def forward(sizes: cnn.Sizes, params: Arrays, stats: Arrays, x: Any, key: Any, train: bool) -> tuple[jax.Array, Arrays]:
    """Images [batch, height, width, channels] to logits [batch, classes], and the statistics after it."""
    later = dict(stats)

    def layer(conv: cnn.Conv, x: jax.Array) -> jax.Array:
        pad, strides = conv.kernel // 2, (conv.stride, conv.stride)
        y = jax.lax.conv_general_dilated(
            x, params[conv.name], strides, [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = stats[conv.name]
        if train:
            batch_mean = y.mean((0, 1, 2))
            batch_variance = jnp.square(y - batch_mean).mean((0, 1, 2))
            n = y.size // y.shape[-1]
            later[conv.name] = (
                mean + cnn.MOMENTUM * (batch_mean - mean),
                variance + cnn.MOMENTUM * (batch_variance * (n / (n - 1)) - variance),
            )
            mean, variance = batch_mean, batch_variance
        scale = jax.lax.rsqrt(variance + cnn.EPSILON) * params[f"{conv.name}.norm"]
        return (y - mean) * scale + params[f"{conv.name}.norm_bias"]

    x = jax.nn.relu(layer(cnn.stem(sizes), x))
    for block in cnn.blocks(sizes):
        y = layer(block.second, jax.nn.relu(layer(block.first, x)))
        x = jax.nn.relu(y + (x if block.shortcut is None else layer(block.shortcut, x)))
    return x.mean((1, 2)) @ params["head"] + params["head_bias"], later
