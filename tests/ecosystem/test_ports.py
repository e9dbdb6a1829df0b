"""Published small programs of Equinox and Flax NNX, ported: only their modules change, the rest stays raw JAX.

Serves: phlox/module/array_calls.py

Four of Equinox's examples (a convolutional classifier, a recurrent network over `jax.lax.scan`, a neural differential
equation, a score-based model) and four of NNX's (an MLP, a convolutional classifier, a transformer block, an
autoencoder). Each trains for some steps with `jax.jit`, `jax.value_and_grad` and Optax. No `px.tensor`, and nothing of
Phlox besides modules, is in them. The last test says so, and counts.
"""

# ruff: noqa: F722 - jaxtyping's shapes are texts in annotations

# Arrays are given where types speak of tensors.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false, reportIncompatibleMethodOverride=false, reportIndexIssue=false

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float, Int

import phlox as px
from phlox import nn

# --- Equinox


class CNN(px.Module):
    """The classifier of "Convolutional networks on MNIST": one picture at a time, batched by `jax.vmap`."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 3, 4)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(3 * 2 * 2, 16)
        self.out = nn.Linear(16, 10)

    def __call__(self, x: Float[Array, "1 8 8"]) -> Float[Array, " 10"]:
        x = self.pool(jax.nn.relu(self.conv(x[None])))
        x = jax.nn.sigmoid(self.hidden(jnp.ravel(x)))
        return jax.nn.log_softmax(jax.nn.relu(self.out(x)))


def cnn() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    x = jax.random.normal(jax.random.key(0), (12, 1, 8, 8))
    y = jnp.arange(12) % 10

    def cross_entropy(y: Int[Array, " b"], pred: Float[Array, "b 10"]) -> Float[Array, ""]:
        return -jnp.mean(jnp.take_along_axis(pred, jnp.expand_dims(y, 1), axis=1))

    def loss(model: CNN, x: Any, y: Any) -> Any:
        return cross_entropy(y, jax.vmap(model)(x))

    return CNN(), loss, (x, y)


class RNN(px.Module):
    """The classifier of "Train RNN": spirals, which a cell reads in a scan."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden
        self.cell_x, self.cell_h = nn.Linear(2, 3 * hidden), nn.Linear(hidden, 3 * hidden, bias=False)
        self.linear = nn.Linear(hidden, 1)

    def __call__(self, input: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            reset, update, new = jnp.split(self.cell_x(x), 3)
            r, u, n = jnp.split(self.cell_h(h), 3)
            gate = jax.nn.sigmoid(update + u)
            return gate * h + (1 - gate) * jnp.tanh(new + jax.nn.sigmoid(reset + r) * n), None

        out, _ = jax.lax.scan(step, jnp.zeros(self.hidden), input)
        return jax.nn.sigmoid(self.linear(out))


def rnn() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    t = jnp.linspace(0, 2 * jnp.pi, 8)
    sign = jnp.where(jnp.arange(8) % 2 == 0, 1.0, -1.0)
    x = jnp.stack([t * jnp.cos(t), t * jnp.sin(t)], axis=-1) * sign[:, None, None]
    y = (sign + 1) / 2

    def loss(model: RNN, x: Any, y: Any) -> Any:
        pred = jax.vmap(model)(x)[:, 0]
        return -jnp.mean(y * jnp.log(pred) + (1 - y) * jnp.log(1 - pred))

    return RNN(4), loss, (x, y)


class Field(px.Module):
    """The vector field of "Neural ODE", in Phlox's own style: `t` and `y` come from JAX."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 16), nn.Linear(16, 2)]
        self.scale = px.Param(px.ones(()))

    def __call__(self, t: Any, y: Any) -> Any:
        return self.scale.val() * self.layers[1](self.layers[0](y).softplus()).tanh() + 0.0 * t


class NeuralODE(px.Module):
    def __init__(self) -> None:
        self.func = Field()

    def __call__(self, ts: Float[Array, " t"], y0: Float[Array, " 2"]) -> Float[Array, "t 2"]:
        def step(y: Any, times: Any) -> Any:  # the midpoint rule
            t, dt = times
            y = y + dt * self.func(t + dt / 2, y + dt / 2 * self.func(t, y))
            return y, y

        _, ys = jax.lax.scan(step, y0, (ts[:-1], jnp.diff(ts)))
        return jnp.concatenate([y0[None], ys])


def neural_ode() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    ts = jnp.linspace(0.0, 1.0, 6)
    y0 = jax.random.normal(jax.random.key(1), (5, 2))
    turn = jnp.stack([jnp.stack([jnp.cos(ts), jnp.sin(ts)]), jnp.stack([-jnp.sin(ts), jnp.cos(ts)])])
    ys = jnp.einsum("bi,ijt->btj", y0, turn)

    def loss(model: NeuralODE, ts: Any, ys: Any) -> Any:
        return jnp.mean((ys - jax.vmap(model, in_axes=(None, 0))(ts, ys[:, 0])) ** 2)

    return NeuralODE(), loss, (ts, ys)


class Mixer(px.Module):
    """The network of "Score-based diffusion": an MLP-mixer of patches, with einops."""

    def __init__(self) -> None:
        self.embed = nn.Linear(5, 8)
        self.patches, self.hidden = nn.Linear(16, 16), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 4)

    def __call__(self, t: Any, y: Any) -> Any:
        y = einops.rearrange(y, "(h p) (w q) -> (h w) (p q)", p=2, q=2)
        y = self.embed(jnp.concatenate([y, jnp.broadcast_to(t, (16, 1))], axis=-1))
        y = y + einops.rearrange(self.patches(einops.rearrange(y, "p c -> c p")), "c p -> p c")
        y = y + jax.nn.gelu(self.hidden(self.norm(y)))
        return einops.rearrange(self.out(y), "(h w) (p q) -> (h p) (w q)", h=4, p=2)


def score() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    def single_loss(model: Mixer, data: Any, t: Any, key: Any) -> Any:
        std = jnp.sqrt(jnp.maximum(1 - jnp.exp(-t), 1e-5))
        noise = jax.random.normal(key, data.shape)
        pred = model(t, data * jnp.exp(-0.5 * t) + std * noise)
        return (1 - jnp.exp(-t)) * jnp.mean((pred + noise / std) ** 2)

    def loss(model: Mixer, data: Any, keys: Any) -> Any:
        t = (jnp.arange(6) + 0.5) / 6
        return jnp.mean(jax.vmap(single_loss, in_axes=(None, 0, 0, 0))(model, data, t, keys))

    data = jax.random.normal(jax.random.key(2), (6, 8, 8))
    return Mixer(), loss, (data, jax.random.split(jax.random.key(3), 6))


# --- Flax NNX


class MLP(px.Module):
    """The network of "NNX basics"."""

    def __init__(self, din: int, dmid: int, dout: int) -> None:
        self.linear1 = nn.Linear(din, dmid)
        self.norm = nn.LayerNorm(dmid)
        self.linear2 = nn.Linear(dmid, dout)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear2(jax.nn.gelu(self.norm(self.linear1(x))))


def mlp() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    x = jnp.linspace(0, 1, 16)[:, None]
    return MLP(1, 16, 1), lambda model, x, y: jnp.mean((y - model(x)) ** 2), (x, 0.8 * x**2 + 0.1)


class Classifier(px.Module):
    """The network of "MNIST tutorial", with its pictures' channels on axis 1."""

    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding="same"), nn.Conv2d(4, 8, 3, padding="same")
        self.pool = nn.AvgPool2d(2)
        self.linear1, self.linear2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def __call__(self, x):
        x = self.pool(jax.nn.relu(self.conv1(x)))
        x = self.pool(jax.nn.relu(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)  # flatten
        return self.linear2(jax.nn.relu(self.linear1(x)))


def classifier() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    batch = {"image": jax.random.normal(jax.random.key(4), (10, 1, 8, 8)), "label": jnp.arange(10)}

    def loss(model: Classifier, batch: dict[str, Any]) -> Any:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=batch["label"]).mean()

    return Classifier(), loss, (batch,)


class Block(px.Module):
    """The block of "miniGPT", whose attention is written out."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.table = nn.Embedding(11, width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 11)

    def __call__(self, tokens):
        x = self.table(tokens)
        x = x + self.attention(self.norm1(x))
        x = x + self.down(jax.nn.relu(self.up(self.norm2(x))))
        return self.head(x)

    def attention(self, x):
        q, k, v = (y.reshape(*y.shape[:-1], self.heads, -1) for y in jnp.split(self.qkv(x), 3, axis=-1))
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        y = jax.nn.dot_product_attention(q, k, v, mask=mask)
        return self.proj(y.reshape(x.shape))


def transformer() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    tokens = (jnp.arange(8)[None] * 3 + jnp.arange(4)[:, None]) % 11

    def loss(model: Block, tokens: Any) -> Any:
        logits = model(tokens[:, :-1])
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return Block(8, 2), loss, (tokens,)


class VAE(px.Module):
    """The model of "Variational autoencoder": encoder and decoder in Phlox's style, its noise in JAX's."""

    def __init__(self) -> None:
        self.encoder = nn.Sequential([nn.Linear(16, 12), nn.Relu(), nn.Linear(12, 8)])
        self.decoder = nn.Sequential([nn.Linear(4, 12), nn.Relu(), nn.Linear(12, 16)])

    def __call__(self, x, key):
        mean, log_std = jnp.split(self.encoder(x), 2, axis=-1)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return self.decoder(z), mean, jnp.exp(log_std)


def autoencoder() -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    def loss(model: VAE, x: Any, key: Any) -> Any:
        logits, mean, std = model(x, key)
        kl = jnp.mean(0.5 * jnp.mean(-jnp.log(std**2) - 1.0 + std**2 + mean**2, axis=-1))
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, x)) + 0.1 * kl

    x = (jax.random.uniform(jax.random.key(5), (12, 16)) > 0.5).astype(jnp.float32)
    return VAE(), loss, (x, jax.random.key(6))


PORTS = [cnn, rnn, neural_ode, score, mlp, classifier, transformer, autoencoder]


@pytest.mark.full
@pytest.mark.parametrize("port", PORTS, ids=[port.__name__ for port in PORTS])
def test_a_port_trains(port: Any) -> None:
    with px.default_device("jax"):
        model, loss, batch = port()
        model = model.init(seed=0)
    optimizer = optax.adamw(1e-2)
    state = optimizer.init(model)

    @jax.jit
    def step(model: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(model, *batch)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state, value

    values = []
    before = loss(model, *batch)
    for _ in range(30):
        model, state, value = step(model, state, *batch)
        assert isinstance(value, jax.Array)
        values.append(float(value))
    np.testing.assert_allclose(values[0], before, rtol=1e-4)
    assert np.isfinite(values).all() and values[-1] < 0.95 * values[0]


FOUGHT_FOR = {"primitive", "tensor", "from_primitive", "lift", "numpy", "from_inner", "inner", "detach"}


def test_no_line_of_the_ports_is_fought_for() -> None:
    names = [node.attr for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Attribute)]
    assert "value_and_grad" in names and FOUGHT_FOR.isdisjoint(names)
