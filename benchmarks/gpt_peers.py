# pyright: reportMissingImports=false
# The peers are installed beside Phlox only where benchmarks are run.
"""One training step of one GPT as the users of JAX, Flax NNX, Equinox and Keras write it.

All start from the same weights: pre-norm blocks, learned positions, biases everywhere but in the head, gelu by tanh,
AdamW. Each function returns a call that makes one step and gives its loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import numpy as np
import optax

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 4, 256, 4, 128, 16, 512
LR, DECAY, EPSILON = 1e-3, 0.01, 1e-5

Go = Callable[[], float]
Weights = dict[str, Any]


def weights() -> Weights:
    """The parameters by name; the columns of `qkv` are those of queries, keys and values, head by head."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return rng.normal(size=shape, scale=0.02).astype(np.float32)

    def norm(name: str) -> Weights:
        return {f"{name}": np.ones(WIDTH, np.float32), f"{name}_bias": np.zeros(WIDTH, np.float32)}

    found: Weights = {"tokens": matrix(VOCABULARY, WIDTH), "places": matrix(CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        shapes = {
            "qkv": (WIDTH, 3 * WIDTH),
            "out": (WIDTH, WIDTH),
            "up": (WIDTH, 4 * WIDTH),
            "down": (4 * WIDTH, WIDTH),
        }
        for name, shape in shapes.items():
            found |= {f"{layer}.{name}": matrix(*shape), f"{layer}.{name}_bias": matrix(shape[1])}
        found |= norm(f"{layer}.norm_1") | norm(f"{layer}.norm_2")
    return found | norm("norm") | {"head": matrix(WIDTH, VOCABULARY)}


def batch() -> tuple[Any, Any]:
    """Tokens, and those that follow them."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, CONTEXT + 1)).astype(np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def _loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


# --- JAX and Optax


def _norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * gamma + beta


def raw_jax() -> Go:
    """Plain functions of a dict of arrays."""

    def model(p: Weights, tokens: jax.Array) -> jax.Array:
        x = p["tokens"][tokens] + p["places"]
        for i in range(LAYERS):
            h = _norm(x, p[f"{i}.norm_1"], p[f"{i}.norm_1_bias"])
            qkv = (h @ p[f"{i}.qkv"] + p[f"{i}.qkv_bias"]).reshape(BATCH, CONTEXT, 3, HEADS, -1)
            h = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
            x = x + h.reshape(BATCH, CONTEXT, WIDTH) @ p[f"{i}.out"] + p[f"{i}.out_bias"]
            h = _norm(x, p[f"{i}.norm_2"], p[f"{i}.norm_2_bias"])
            h = jax.nn.gelu(h @ p[f"{i}.up"] + p[f"{i}.up_bias"])
            x = x + h @ p[f"{i}.down"] + p[f"{i}.down_bias"]
        return _norm(x, p["norm"], p["norm_bias"]) @ p["head"]

    optimizer = optax.adamw(LR, weight_decay=DECAY)

    def step(p: Weights, state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: _loss(model(p, tokens), targets))(p)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, loss

    return _donated(step, jax.tree.map(jnp.asarray, weights()), optimizer)


def _donated(step: Callable[..., Any], params: Any, optimizer: Any) -> Go:
    run = jax.jit(step, donate_argnums=(0, 1))
    held = [params, optimizer.init(params)]
    tokens, targets = (jnp.asarray(x) for x in batch())

    def go() -> float:
        held[0], held[1], loss = run(held[0], held[1], tokens, targets)
        return loss.item()

    return go


# --- Flax NNX


def flax_nnx() -> Go:
    """Layers of NNX; the state is split off once, as its guide to performance has it."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm_1 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
            self.norm_2 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
            self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm_1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm_2(x))))

    class Gpt(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
            self.places = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
            self.norm = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
            self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.tokens(tokens) + self.places(jnp.arange(CONTEXT))
            mask = nnx.make_causal_mask(tokens)
            for block in self.blocks:
                x = block(x, mask)
            return self.head(self.norm(x))

    model, w = Gpt(nnx.Rngs(0)), weights()
    model.tokens.embedding[...], model.places.embedding[...] = w["tokens"], w["places"]
    for i, block in enumerate(model.blocks):
        attention = block.attention
        parts = (attention.query, attention.key, attention.value)
        for part, matrix, bias in zip(parts, *_by_head(w, i), strict=True):
            part.kernel[...], part.bias[...] = matrix, bias
        attention.out.kernel[...] = w[f"{i}.out"].reshape(HEADS, -1, WIDTH)
        attention.out.bias[...] = w[f"{i}.out_bias"]
        for name in ("up", "down"):
            getattr(block, name).kernel[...], getattr(block, name).bias[...] = w[f"{i}.{name}"], w[f"{i}.{name}_bias"]
    model.head.kernel[...] = w["head"]
    optimizer = nnx.Optimizer(model, optax.adamw(LR, weight_decay=DECAY), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(lambda model: _loss(model(tokens), targets))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    run = jax.jit(step, donate_argnums=0)
    held = [state]
    tokens, targets = (jnp.asarray(x) for x in batch())

    def go() -> float:
        held[0], loss = run(held[0], tokens, targets)
        return loss.item()

    return go


def _by_head(w: Weights, layer: int) -> tuple[list[Any], list[Any]]:
    """The matrices [width, heads, size] and biases [heads, size] of queries, keys and values."""
    matrices, biases = (np.split(w[f"{layer}.{name}"], 3, -1) for name in ("qkv", "qkv_bias"))
    return [x.reshape(WIDTH, HEADS, -1) for x in matrices], [x.reshape(HEADS, -1) for x in biases]


# --- Equinox


def equinox() -> Go:
    """Layers of one example, mapped over the batch."""
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0), 8)

    class Block(eqx.Module):
        norm_1: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        norm_2: eqx.nn.LayerNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self) -> None:
            self.norm_1 = eqx.nn.LayerNorm(WIDTH, eps=EPSILON)
            biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
            self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, **biases, key=keys[0])
            self.norm_2 = eqx.nn.LayerNorm(WIDTH, eps=EPSILON)
            self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[1])
            self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=keys[2])

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            h = jax.vmap(self.norm_1)(x)
            x = x + self.attention(h, h, h, mask=mask)
            return x + jax.vmap(lambda row: self.down(jax.nn.gelu(self.up(self.norm_2(row)))))(x)

    class Gpt(eqx.Module):
        tokens: eqx.nn.Embedding
        places: eqx.nn.Embedding
        blocks: list[Block]
        norm: eqx.nn.LayerNorm
        head: eqx.nn.Linear

        def __init__(self) -> None:
            self.tokens = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[3])
            self.places = eqx.nn.Embedding(CONTEXT, WIDTH, key=keys[4])
            self.blocks = [Block() for _ in range(LAYERS)]
            self.norm = eqx.nn.LayerNorm(WIDTH, eps=EPSILON)
            self.head = eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=keys[5])

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = jax.vmap(self.tokens)(tokens) + jax.vmap(self.places)(jnp.arange(CONTEXT))
            mask = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
            for block in self.blocks:
                x = block(x, mask)
            return jax.vmap(lambda row: self.head(self.norm(row)))(x)

    def with_weights(model: Gpt) -> Gpt:
        w = weights()

        def found(m: Gpt) -> list[Any]:
            out = [m.tokens.weight, m.places.weight, m.head.weight]
            for block in m.blocks:
                a = block.attention
                parts = (a.query_proj, a.key_proj, a.value_proj, a.output_proj, block.up, block.down)
                out += [x for part in parts for x in (part.weight, part.bias)]
            return out

        new = [w["tokens"], w["places"], w["head"].T]
        for i in range(LAYERS):
            matrices, biases = (np.split(w[f"{i}.{name}"], 3, -1) for name in ("qkv", "qkv_bias"))
            pairs = [*zip(matrices, biases, strict=True)]
            pairs += [(w[f"{i}.{name}"], w[f"{i}.{name}_bias"]) for name in ("out", "up", "down")]
            new += [x for matrix, bias in pairs for x in (matrix.T, bias)]
        return eqx.tree_at(found, model, [jnp.asarray(x) for x in new])

    model = with_weights(Gpt())
    optimizer = optax.adamw(LR, weight_decay=DECAY)

    @eqx.filter_jit(donate="all-except-first")
    def step(data: Any, model: Gpt, state: Any) -> Any:
        tokens, targets = data
        loss, grads = eqx.filter_value_and_grad(lambda model: _loss(jax.vmap(model)(tokens), targets))(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    held = [model, optimizer.init(eqx.filter(model, eqx.is_array))]
    data = tuple(jnp.asarray(x) for x in batch())

    def go() -> float:
        held[0], held[1], loss = step(data, held[0], held[1])
        return loss.item()

    return go


# --- Keras


def keras_jax() -> Go:
    """Layers of Keras on JAX, compiled and trained by the batch."""
    import keras
    from keras import layers

    class Embedding(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = layers.Embedding(VOCABULARY, WIDTH), layers.Embedding(CONTEXT, WIDTH)

        def call(self, tokens: Any) -> Any:
            return self.tokens(tokens) + self.places(keras.ops.arange(CONTEXT))

    tokens = keras.Input((CONTEXT,), dtype="int32")
    embedding = Embedding()
    x = embedding(tokens)
    blocks: list[Any] = []
    for _ in range(LAYERS):
        h = layers.LayerNormalization(epsilon=EPSILON)(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x = x + attention(h, h, use_causal_mask=True)
        h = layers.LayerNormalization(epsilon=EPSILON)(x)
        up, down = layers.Dense(4 * WIDTH), layers.Dense(WIDTH)
        x = x + down(keras.activations.gelu(up(h), approximate=True))
        blocks.append((attention, up, down))
    head = layers.Dense(VOCABULARY, use_bias=False)
    model = keras.Model(tokens, head(layers.LayerNormalization(epsilon=EPSILON)(x)))
    w = weights()
    embedding.set_weights([w["tokens"], w["places"]])
    head.set_weights([w["head"]])
    for i, (attention, up, down) in enumerate(blocks):
        pairs = [x for pair in zip(*_by_head(w, i), strict=True) for x in pair]
        attention.set_weights([*pairs, w[f"{i}.out"].reshape(HEADS, -1, WIDTH), w[f"{i}.out_bias"]])
        up.set_weights([w[f"{i}.up"], w[f"{i}.up_bias"]])
        down.set_weights([w[f"{i}.down"], w[f"{i}.down_bias"]])
    optimizer = keras.optimizers.AdamW(LR, weight_decay=DECAY, epsilon=1e-8)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    inputs, targets = batch()

    def go() -> float:
        model.reset_metrics()
        return float(model.train_on_batch(inputs, targets))

    return go


PEERS: dict[str, Callable[[], Go]] = {
    "raw JAX and Optax": raw_jax,
    "Flax NNX": flax_nnx,
    "Equinox": equinox,
    "Keras on JAX": keras_jax,
}
