"""Attention on JAX: as one program, the queries in chunks whose scores stay in a processor's cache."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.attention import AttentionOps, Mask, Weighting
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.contract.widening import composed
from phlox.backend.jax.fused import fused
from phlox.backend.jax.sharding import is_shared
from phlox.backend.jax.sizes import is_symbolic
from phlox.backend.sharding import SEQUENCE

_CHUNK = 64
_WHOLE = 128  # for at most so many queries, chunks save less time than they take to compile
_MOST = 16  # the most chunks, each of which is a part of the program


def _spans(n: int, m: int, causal: bool) -> list[tuple[slice, int]]:
    """Chunks of queries, and the number of keys that they see."""
    if is_symbolic(n):
        return [(slice(0, n), m)]
    step = max(_CHUNK, -(-n // _MOST)) if n > _WHOLE and jax.default_backend() == "cpu" else max(n, 1)
    rows = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    return [(span, min(span.stop, m) if causal else m) for span in rows]


def _mask_part(mask: Array | None, rows: slice, keys: int) -> Array | None:
    """The part of a mask for these queries and keys."""
    if mask is None or is_symbolic(rows.stop):  # a symbolic number of queries is one chunk
        return mask
    part: Array = mask if mask.shape[2] == 1 else mask[:, :, rows]
    return part if part.shape[3] == 1 else part[..., :keys]


def _forward(
    self: Any, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
) -> tuple[Array, Any]:
    causal, scale, dropout = weighting
    n, m = query.shape[2], key.shape[2]
    parts: list[Array] = []
    saved: list[Any] = []
    for rows, keys in _spans(n, m, causal):
        seen = _mask_part(allowed, rows, keys)
        if causal:
            earlier = jnp.arange(keys) <= jnp.arange(rows.start, rows.stop)[:, None]
            seen = earlier[None, None] if seen is None else seen & earlier
        masks = _mask_part(bias, rows, keys), seen, _mask_part(kept, rows, keys)
        y, state = AttentionOps.attention_forward(
            self, query[:, :, rows], key[:, :, :keys], value[:, :, :keys], *masks, (False, scale, dropout)
        )
        parts.append(y)
        # Without y: the next layer keeps it in another memory order, and the sum over P is as cheap.
        saved.append((*state[4:6], None))
    return jnp.concatenate(parts, 2), (query, key, value, bias, tuple(saved))


def _backward(self: Any, saved: Any, g: Array, needed: Needed, weighting: Weighting) -> Gradients:
    query, key, value, bias, states = saved
    causal, scale, dropout = weighting
    m = key.shape[2]
    dqs: list[Array] = []
    dk: Any = None
    dv: Any = None
    dbias = None
    whole_bias = needed[3] and bias.shape[2] == 1
    biases: list[Array] = []
    for (rows, keys), state in zip(_spans(query.shape[2], m, causal), states, strict=True):
        part = query[:, :, rows], key[:, :, :keys], value[:, :, :keys], _mask_part(bias, rows, keys), *state
        gradients: Any = AttentionOps.attention_backward(self, part, g[:, :, rows], needed, (False, scale, dropout))
        dq, dkey, dvalue, db, *_ = gradients
        if needed[0]:
            dqs.append(dq)
        short = ((0, 0), (0, 0), (0, m - keys), (0, 0))
        if needed[1]:
            dk = jnp.pad(dkey, short) if dk is None else dk.at[:, :, :keys].add(dkey)
        if needed[2]:
            dv = jnp.pad(dvalue, short) if dv is None else dv.at[:, :, :keys].add(dvalue)
        if needed[3]:
            db = db if db.shape[3] == bias.shape[3] else jnp.pad(db, ((0, 0), (0, 0), (0, 0), (0, m - keys)))
            biases.append(db)
    if biases:
        dbias = sum(biases[1:], biases[0]) if whole_bias else jnp.concatenate(biases, 2)
    return jnp.concatenate(dqs, 2) if dqs else None, dk, dv, dbias, None, None


# --- over devices that shard the sequences
#
# Each device has the queries of its part of a sequence, and gathers the keys and values of the whole sequence; their
# gradients are summed over the devices; each keeps the sums of its part. Positions count in the whole sequence.


def _reshard(x: Array, mesh: Any, cut: bool) -> Array:
    """x [batch, heads, n, width], with n sharded over the mesh axis of sequences if `cut`, else not sharded."""
    if cut and x.shape[2] % mesh.shape[SEQUENCE]:
        return x
    free = PartitionSpec.UNCONSTRAINED
    return lax.with_sharding_constraint(
        x, NamedSharding(mesh, PartitionSpec(free, free, SEQUENCE if cut else None, free))
    )


def _of_each_head(x: Array, heads: int) -> Array:
    """Keys or values, repeated for the heads of each group: [batch, heads, m, width]."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def _forward_apart(
    self: Any,
    mesh: Any,
    query: Array,
    key: Array,
    value: Array,
    bias: Mask,
    allowed: Mask,
    kept: Mask,
    weighting: Weighting,
) -> tuple[Array, Any]:
    query = _reshard(query, mesh, cut=True)
    heads = query.shape[1]
    keys, values = [_of_each_head(_reshard(x, mesh, cut=False), heads) for x in (key, value)]
    y, state = AttentionOps.attention_forward(self, query, keys, values, bias, allowed, kept, weighting)
    return _reshard(y, mesh, cut=True), (query, key, value, bias, (*state[4:6], None))


def _backward_apart(self: Any, mesh: Any, saved: Any, g: Array, needed: Needed, weighting: Weighting) -> Gradients:
    query, key, value, bias, state = saved
    heads, groups = query.shape[1], key.shape[1]
    keys, values = [_of_each_head(_reshard(x, mesh, cut=False), heads) for x in (key, value)]
    part = query, keys, values, bias, *state
    dq, dk, dv, dbias, *_ = AttentionOps.attention_backward(self, part, _reshard(g, mesh, cut=True), needed, weighting)

    def per_group(x: Array | None) -> Array | None:
        if x is not None and heads != groups:
            x = x.reshape(x.shape[0], groups, heads // groups, *x.shape[2:]).sum(2)
        return None if x is None else _reshard(x, mesh, cut=True)

    return None if dq is None else _reshard(dq, mesh, cut=True), per_group(dk), per_group(dv), dbias, None, None


_MERGED, _APART = fused(_forward, 6), fused(_forward_apart, 0, 7)
_BACKWARD_MERGED, _BACKWARD_APART = fused(_backward, 2, 3), fused(_backward_apart, 0, 3, 4)


@composed
def _either(self: Any, query: Array, *others: Any) -> tuple[Array, Any]:
    if self.cuts_sequences(query):
        return _APART(self, self.mesh_of(query), query, *others)
    return _MERGED(self, query, *others)


@composed
def _either_backward(self: Any, saved: Any, g: Array, *others: Any) -> Gradients:
    if self.cuts_sequences(g):
        return _BACKWARD_APART(self, self.mesh_of(g), saved, g, *others)
    return _BACKWARD_MERGED(self, saved, g, *others)


class Attention(Backend):
    """See `phlox.backend.contract.nn.attention`."""

    def _transposed(self, x: Array) -> Array:
        turned = lax.transpose(x, (0, 1, 3, 2))
        return lax.optimization_barrier(turned) if is_shared() else turned

    attention_forward = _either
    attention_backward = _either_backward
