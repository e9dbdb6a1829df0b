"""JAX's explicit mode (the default of `jax.make_mesh`), in which the type of an array says how it is sharded.

In this mode JAX asks for the sharding of a result that it cannot infer: of a reshape that merges axes, of a gather, of
a `where` or a product whose operands are sharded differently. These functions find a sharding that needs no more
communication than necessary. Arrays whose types have no sharding, as on one device or Phlox's meshes, stay unchanged.
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
"""For each axis of an array, the mesh axes that it is sharded over."""


def spec_of(x: Any) -> Spec | None:
    """The sharding that the type of x states; None if it states none."""
    sharding = x.sharding if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x).sharding
    return tuple(sharding.spec) if sharding is not None and any(sharding.spec) else None


def _mesh_of(x: Any) -> Any:
    return jax.typeof(x).sharding.mesh


def constrained(x: Array, spec: Spec) -> Array:
    """x with this sharding."""
    return x if (spec_of(x) or (None,) * len(spec)) == spec else jax.sharding.reshard(x, PartitionSpec(*spec))


def typed(shape: Shape, dtype: Any, like: Array, axes: dict[int, int]) -> Any:
    """The type of an array that is sharded like `like`: `axes` maps its axes to the axes of `like`."""
    spec = spec_of(like)
    if spec is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    axis_names = [spec[axes[axis]] if axis in axes else None for axis in range(len(shape))]
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(_mesh_of(like), PartitionSpec(*axis_names)))


def zeros(shape: Shape, dtype: Any, like: Array, axes: dict[int, int]) -> Array:
    """Zeros of the type that `typed` gives."""
    return lax.full(shape, 0, dtype, sharding=typed(shape, dtype, like, axes).sharding)


# --- operands


def joint(specs: Sequence[Spec | None]) -> Spec | None:
    """The sharding of operands that broadcast: for each axis, counted from the last, the first that an operand has."""
    stated = [spec for spec in specs if spec is not None]
    rank = max(map(len, stated), default=0)
    padded = [(None,) * (rank - len(spec)) + spec for spec in stated]
    return tuple(next(filter(None, names), None) for names in zip(*padded, strict=True)) if stated else None


def _is_possible(spec: Spec) -> bool:
    """Is no axis of the mesh named twice? If one is, JAX has the better error message."""
    names = [name for axes in spec if axes for name in ((axes,) if isinstance(axes, str) else axes)]
    return len(set(names)) == len(names)


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """Arrays that broadcast, sharded alike: an axis that one array has sharded becomes sharded in all."""
    spec = joint([spec_of(x) for x in arrays])
    return arrays if spec is None or not _is_possible(spec) else tuple(_cut(x, spec) for x in arrays)


def aligned_to(x: Array, other: Any) -> Array:
    """x, its unsharded axes sharded like the axes of `other`, an array or a type of the same shape."""
    spec = joint([spec_of(x), spec_of(other)])
    return x if spec is None else _cut(x, spec)


def _cut(x: Any, spec: Spec) -> Any:
    """x with the sharding of the array that it broadcasts to."""
    shape = jnp.shape(x)
    spec = (None,) * (len(shape) - len(spec)) + spec[max(len(spec) - len(shape), 0) :]
    return constrained(x, tuple(None if size == 1 else names for size, names in zip(shape, spec, strict=True)))


def is_sharded(*arrays: Array) -> bool:
    """Does the type of one of these arrays say that it is sharded?"""
    return any(spec_of(x) is not None for x in arrays)


def _specs(*arrays: Array) -> list[Spec]:
    return [spec_of(x) or (None,) * x.ndim for x in arrays]


def aligned_rows(x: Array, y: Array, count: int) -> tuple[Array, Array]:
    """Two arrays, their first `count` axes (the batch axes) sharded alike."""
    if not is_sharded(x, y):
        return x, y
    x_spec, y_spec = _specs(x, y)
    rows = tuple(first or second for first, second in zip(x_spec[:count], y_spec[:count], strict=True))
    return constrained(x, (*rows, *x_spec[count:])), constrained(y, (*rows, *y_spec[count:]))


# --- products


def matmul(x: Array, y: Array) -> Array:
    """The product of matrices; their leading axes become sharded alike, and so does the axis that is summed over."""
    if not is_sharded(x, y) or x.ndim < 2 or y.ndim < 2:
        return jnp.matmul(x, y)
    x_spec, y_spec = _specs(x, y)
    batch, summed = joint([x_spec[:-2], y_spec[:-2]]) or (), x_spec[-1] or y_spec[-2]
    first, second, third = (*batch, x_spec[-2], summed), (*batch, summed, y_spec[-1]), (*batch, x_spec[-2], y_spec[-1])
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
    """x' y, [a, b], for the rows x [..., a] and y [..., b], without merging axes."""
    x, y = aligned_rows(x, y, x.ndim - 1)
    x_spec, y_spec = _specs(x, y)
    spec = x_spec[-1], y_spec[-1]
    if not _is_possible(spec):  # the product is a weight: shard its columns
        x, spec = constrained(x, (*x_spec[:-1], None)), (None, y_spec[-1])
    rows = tuple(range(x.ndim - 1))
    return lax.dot_general(x, y, ((rows, rows), ((), ())), out_sharding=PartitionSpec(*spec))


# --- shapes


def reshape(x: Array, shape: Shape) -> Array:
    """x in another shape. A group of axes that is sharded along its first axis stays so in the new shape."""
    spec = spec_of(x)
    if spec is None:
        return lax.reshape(x, shape) if -1 not in shape else jnp.reshape(x, shape)
    if -1 in shape:
        other_sizes = math.prod(size for size in shape if size != -1)
        shape = tuple(x.size // other_sizes if size == -1 else size for size in shape)
    target = _reshaped(x.shape, spec, shape, _mesh_of(x))
    if target is None:  # JAX infers it, or says what is missing
        return lax.reshape(x, shape)
    return lax.reshape(x, shape, out_sharding=NamedSharding(_mesh_of(x), PartitionSpec(*target)))


def _reshaped(shape: Shape, spec: Spec, shape_out: Shape, mesh: Any) -> Spec | None:
    """The sharding of the new shape; None if every sharding would move data."""
    spec_out: list[AxisNames] = [None] * len(shape_out)
    i = j = 0
    while i < len(shape) and j < len(shape_out):
        first, second = i, j
        size, target = shape[i], shape_out[j]
        i, j = i + 1, j + 1
        while size != target and i <= len(shape) and j <= len(shape_out):
            if size < target and i < len(shape):
                size, i = size * shape[i], i + 1
            elif target < size and j < len(shape_out):
                target, j = target * shape_out[j], j + 1
            else:
                return None
        wide = [axis for axis in range(first, i) if shape[axis] != 1]
        cut = [axis for axis in range(first, i) if spec[axis]]
        if not cut:
            continue
        goal = next((axis for axis in range(second, j) if shape_out[axis] != 1), None)
        if goal is None or cut != wide[:1] or shape_out[goal] % parts(mesh, spec[cut[0]]):
            return None
        spec_out[goal] = spec[cut[0]]
    return None if any(spec[i:]) else tuple(spec_out)


# --- loops


def settled(step: Callable[[Any, Any], tuple[Any, Any]], start: Any, xs: Any) -> Any:
    """The start of a loop, sharded as the state after a step: JAX wants one type for the state before all steps."""
    if all(spec_of(x) is None for x in jax.tree.leaves((start, xs))):
        return start
    first_x = jax.tree.map(lambda x: lax.index_in_dim(x, 0, keepdims=False), xs)
    for _ in range(len(jax.tree.leaves(start)) + 1):  # a sharding may pass from state to state, one step at a time
        after = jax.eval_shape(step, start, first_x)[0]
        former = start
        start = jax.tree.map(aligned_to, former, after)
        if all(map(operator.is_, jax.tree.leaves(start), jax.tree.leaves(former))):
            break
    return start


# --- integer indices


def take_spec(x: Array, indices: Array, axis: int) -> Spec | None:
    """The sharding of a `take` along an axis that is not sharded itself; None if nothing is sharded."""
    x_spec, index_spec = spec_of(x), spec_of(indices)
    if x_spec is None and index_spec is None:
        return None
    x_spec, index_spec = x_spec or (None,) * x.ndim, index_spec or (None,) * indices.ndim
    spec = (*x_spec[:axis], *index_spec, *x_spec[axis + 1 :])
    return spec if _is_possible(spec) else None


def transposed(fn: Callable[[Array], Array], shape: Shape, g: Array, axes: dict[int, int]) -> Array:
    """The transpose, at g, of a linear function of an array of this shape, which is sharded as in `typed`."""
    operand = typed(shape, g.dtype, g, axes)
    return jax.linear_transpose(fn, operand)(aligned_to(g, jax.eval_shape(fn, operand)))[0]
