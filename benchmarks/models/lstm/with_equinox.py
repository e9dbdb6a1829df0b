# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The language model of LSTMs in Equinox: its cell in `lax.scan`, of one text, mapped over the batch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.models import lstm


class Language(eqx.Module):
    """Tokens [n] to logits [n, vocabulary]."""

    embedding: eqx.nn.Embedding
    cells: list[eqx.nn.LSTMCell]
    head: eqx.nn.Linear

    def __init__(self, sizes: lstm.Sizes, key: Any) -> None:
        self.embedding = eqx.nn.Embedding(sizes.vocabulary, sizes.embedding, key=key)
        self.cells = [eqx.nn.LSTMCell(inputs, sizes.width, key=key) for inputs in sizes.inputs]
        self.head = eqx.nn.Linear(sizes.width, sizes.vocabulary, key=key)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = jax.vmap(self.embedding)(tokens)
        for cell in self.cells:

            def step(carry: Any, x: jax.Array, cell: Any = cell) -> Any:
                carry = cell(x, carry)
                return carry, carry[0]

            zero = jnp.zeros(cell.hidden_size)
            x = jax.lax.scan(step, (zero, zero), x)[1]
        return jax.vmap(self.head)(x)


def model(sizes: lstm.Sizes, weights: dict[str, Any]) -> tuple[Language, None]:
    """The model with these weights; it has no state."""

    def found(net: Language) -> list[Any]:
        cells = [array for cell in net.cells for array in (cell.weight_ih, cell.weight_hh, cell.bias)]
        return [net.embedding.weight, *cells, net.head.weight, net.head.bias]

    new = [weights["embedding"]]
    for i in range(sizes.layers):
        new += [weights[f"{i}.input"].T, weights[f"{i}.hidden"].T, weights[f"{i}.bias"]]
    new += [weights["head"].T, weights["head_bias"]]
    net = Language(sizes, jax.random.key(0))
    return eqx.tree_at(found, net, [jnp.asarray(array) for array in new]), None


def forward(module: Language, state: None, x: Any, key: Any, train: bool) -> tuple[jax.Array, None]:
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""
    return jax.vmap(module)(x), state
