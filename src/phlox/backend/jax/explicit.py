"""JAX's explicit mode (the default of `jax.make_mesh`), in which the type of an array says how it is sharded.

There JAX asks for the sharding of a result that it does not find by itself: of a reshape that merges axes, of a gather,
of a choice or a product whose operands are sharded unlike. These functions find it, always so that nothing is sent that
need not be. Arrays whose types say nothing, as on one device or on a mesh of Phlox, pass as they are.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend.contract.types import Array, Shape
from phlox.backend.jax.sharding import parts
from phlox.backend.sharding import AxisNames

Spec = tuple[AxisNames, ...]
"""For each axis of an array the mesh axes that it is cut over."""


def spec_of(x: Any) -> Spec | None:
    """How the type of x says that it is sharded; None where it says nothing."""
    sharding = x.sharding if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x).sharding
    return tuple(sharding.spec) if sharding is not None and any(sharding.spec) else None


def _mesh_of(x: Any) -> Any:
    return jax.typeof(x).sharding.mesh


def constrained(x: Array, spec: Spec) -> Array:
    """x with this sharding."""
    return x if (spec_of(x) or (None,) * len(spec)) == spec else jax.sharding.reshard(x, PartitionSpec(*spec))


def typed(shape: Shape, dtype: Any, like: Array, axes: dict[int, int]) -> Any:
    """The type of an array whose axes are sharded as those of `like`: to each place in it the place in `like`."""
    spec = spec_of(like)
    if spec is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    taken = [spec[axes[axis]] if axis in axes else None for axis in range(len(shape))]
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(_mesh_of(like), PartitionSpec(*taken)))


def zeros(shape: Shape, dtype: Any, like: Array, axes: dict[int, int]) -> Array:
    """Zeros of the type that `typed` gives."""
    return lax.full(shape, 0, dtype, sharding=typed(shape, dtype, like, axes).sharding)


# --- operands


def joint(specs: Sequence[Spec | None]) -> Spec | None:
    """The sharding of operands that broadcast: for each axis, counted from the last, the first that cuts it."""
    known = [spec for spec in specs if spec is not None]
    rank = max(map(len, known), default=0)
    padded = [(None,) * (rank - len(spec)) + spec for spec in known]
    return tuple(next(filter(None, names), None) for names in zip(*padded, strict=True)) if known else None


def _is_possible(spec: Spec) -> bool:
    """Is no axis of the mesh named twice? JAX says it best if one is."""
    names = [name for axes in spec if axes for name in ((axes,) if isinstance(axes, str) else axes)]
    return len(set(names)) == len(names)


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """Arrays that broadcast, sharded alike: what one of them has whole, and another cut, is cut."""
    found = joint([spec_of(x) for x in arrays])
    return arrays if found is None or not _is_possible(found) else tuple(_cut(x, found) for x in arrays)


def aligned_to(x: Array, other: Any) -> Array:
    """x, sharded as another of its shape is, or the type of one, where x itself is whole."""
    found = joint([spec_of(x), spec_of(other)])
    return x if found is None else _cut(x, found)


def _cut(x: Any, spec: Spec) -> Any:
    """x with the sharding of what it broadcasts to."""
    shape = jnp.shape(x)
    spec = (None,) * (len(shape) - len(spec)) + spec[max(len(spec) - len(shape), 0) :]
    return constrained(x, tuple(None if size == 1 else names for size, names in zip(shape, spec, strict=True)))


def is_sharded(*arrays: Array) -> bool:
    """Does the type of one of these arrays say that it is sharded?"""
    return any(spec_of(x) is not None for x in arrays)


def _specs(*arrays: Array) -> list[Spec]:
    return [spec_of(x) or (None,) * x.ndim for x in arrays]


def aligned_rows(x: Array, y: Array, count: int) -> tuple[Array, Array]:
    """Two arrays whose first `count` axes, those of one batch, are sharded alike."""
    if not is_sharded(x, y):
        return x, y
    left, right = _specs(x, y)
    rows = tuple(first or second for first, second in zip(left[:count], right[:count], strict=True))
    return constrained(x, (*rows, *left[count:])), constrained(y, (*rows, *right[count:]))


# --- products


def matmul(x: Array, y: Array) -> Array:
    """The product of matrices: their leading axes are sharded alike, and so is the axis that they are summed over."""
    if not is_sharded(x, y) or x.ndim < 2 or y.ndim < 2:
        return jnp.matmul(x, y)
    left, right = _specs(x, y)
    batch, summed = joint([left[:-2], right[:-2]]) or (), left[-1] or right[-2]
    first, second, third = (*batch, left[-2], summed), (*batch, summed, right[-1]), (*batch, left[-2], right[-1])
    if not all(map(_is_possible, (first, second, third))):
        return jnp.matmul(x, y)
    x, y = _cut(x, first), _cut(y, second)
    stack = tuple(range(x.ndim - 2)) if x.shape[:-2] == y.shape[:-2] else ()
    if not summed or (y.ndim > 2 and not stack):
        return jnp.matmul(x, y)
    # The devices add up their parts.
    axes = ((x.ndim - 1,), (y.ndim - 2,)), (stack, stack)
    return lax.dot_general(x, y, axes, out_sharding=PartitionSpec(*third))


def product_of_rows(x: Array, y: Array) -> Array:
    """x' y, [a, b], for the rows x [..., a] and y [..., b], whose axes are not merged."""
    x, y = aligned_rows(x, y, x.ndim - 1)
    left, right = _specs(x, y)
    found = left[-1], right[-1]
    if not _is_possible(found):  # of a weight, the columns are cut
        x, found = constrained(x, (*left[:-1], None)), (None, right[-1])
    rows = tuple(range(x.ndim - 1))
    return lax.dot_general(x, y, ((rows, rows), ((), ())), out_sharding=PartitionSpec(*found))


# --- shapes


def reshape(x: Array, shape: Shape) -> Array:
    """x in another shape. Of axes that become others, what was cut along the first is cut along their first."""
    spec = spec_of(x)
    if spec is None:
        return lax.reshape(x, shape) if -1 not in shape else jnp.reshape(x, shape)
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        shape = tuple(x.size // known if size == -1 else size for size in shape)
    found = _reshaped(x.shape, spec, shape, _mesh_of(x))
    if found is None:  # JAX finds it, or says what is missing
        return lax.reshape(x, shape)
    return lax.reshape(x, shape, out_sharding=NamedSharding(_mesh_of(x), PartitionSpec(*found)))


def _reshaped(have: Shape, spec: Spec, want: Shape, mesh: Any) -> Spec | None:
    """The sharding of the other shape; None where it has none that moves nothing."""
    found: list[AxisNames] = [None] * len(want)
    at = to = 0
    while at < len(have) and to < len(want):
        first, second = at, to
        left, right = have[at], want[to]
        at, to = at + 1, to + 1
        while left != right and at <= len(have) and to <= len(want):
            if left < right and at < len(have):
                left, at = left * have[at], at + 1
            elif right < left and to < len(want):
                right, to = right * want[to], to + 1
            else:
                return None
        wide = [axis for axis in range(first, at) if have[axis] != 1]
        cut = [axis for axis in range(first, at) if spec[axis]]
        if not cut:
            continue
        goal = next((axis for axis in range(second, to) if want[axis] != 1), None)
        if goal is None or cut != wide[:1] or want[goal] % parts(mesh, spec[cut[0]]):
            return None
        found[goal] = spec[cut[0]]
    return None if any(spec[at:]) else tuple(found)


# --- loops


def settled(step: Callable[[Any, Any], tuple[Any, Any]], start: Any, xs: Any) -> Any:
    """The start of a loop, sharded as the state after a step: JAX asks for one type from the first step to the last."""
    if all(spec_of(x) is None for x in jax.tree.leaves((start, xs))):
        return start
    one = jax.tree.map(lambda x: lax.index_in_dim(x, 0, keepdims=False), xs)
    for _ in range(len(jax.tree.leaves(start)) + 1):  # what one state says of another takes as many steps to arrive
        after = jax.eval_shape(step, start, one)[0]
        known = start
        start = jax.tree.map(aligned_to, known, after)
        if all(map(operator.is_, jax.tree.leaves(start), jax.tree.leaves(known))):
            break
    return start


# --- places given by integers


def taken(x: Array, indices: Array, axis: int) -> Spec | None:
    """The sharding of what is taken along an axis, which itself is whole; None where nothing is sharded."""
    mine, theirs = spec_of(x), spec_of(indices)
    if mine is None and theirs is None:
        return None
    mine, theirs = mine or (None,) * x.ndim, theirs or (None,) * indices.ndim
    spec = (*mine[:axis], *theirs, *mine[axis + 1 :])
    return spec if _is_possible(spec) else None


def transposed(fn: Callable[[Array], Array], shape: Shape, g: Array, axes: dict[int, int]) -> Array:
    """The transpose, at g, of a linear function of an array of this shape, sharded as `typed` has it."""
    operand = typed(shape, g.dtype, g, axes)
    return jax.linear_transpose(fn, operand)(aligned_to(g, jax.eval_shape(fn, operand)))[0]
