"""Flattening JAX's PyTrees, for libraries for JAX such as Optax, whose state is a PyTree."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.device import Device
from phlox.backend.jax import sharding


def flatten(tree: Any) -> tuple[list[tuple[tuple[str, ...], Any]], Any]:
    """The leaves with their paths, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(map(_name, path)), leaf) for path, leaf in leaves], structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The inverse of `flatten`."""
    return jax.tree_util.tree_unflatten(structure, leaves)


def _name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def scope(backend: Backend) -> AbstractContextManager[Any]:
    """A scope in which JAX's own functions have the backend's element types."""
    engine = engine_of(backend)
    wide = engine.float_element == "f64" or engine.int_element == "i64"
    return jax.enable_x64(True) if wide else nullcontext()


def typed(leaf: Any) -> Any:
    """An array unchanged; a scalar as an array."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def zeros(shape: tuple[int, ...], element: Any) -> Any:
    """An array of zeros."""
    return jnp.zeros(shape, element)


def element_of(leaf: Any) -> Any:
    """The element type of an array; of random keys, the name of their generator."""
    return str(jax.random.key_impl(leaf)) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype


def as_signed(leaf: Any) -> Any:
    """Keys and unsigned integers as signed integers of the same bits, a type that other engines have too."""
    array = jax.random.key_data(leaf) if isinstance(element_of(leaf), str) else leaf
    return array.view(f"int{array.dtype.itemsize * 8}") if array.dtype.kind == "u" else array


def from_signed(array: Any, element: Any) -> Any:
    """The inverse of `as_signed`, given the `element_of` before; other dtypes are cast."""
    if isinstance(element, str):
        return jax.random.wrap_key_data(array.astype("int32").view("uint32"), impl=element)
    if element.kind == "u":
        return array.astype(f"int{element.itemsize * 8}").view(element)
    return array.astype(element)


def from_host(array: np.ndarray[Any, Any], device: Device) -> Any:
    """A NumPy array on a device, with its own dtype."""
    if device.sharding is not None:
        target = sharding.fitted(device.sharding, array.shape)
        return sharding.from_parts(array.shape, target, lambda index: array[index].copy(), array.dtype)
    engine: Any = engine_of(device.backend)
    return jax.device_put(array, engine.native_device(device) if device.committed else None)
