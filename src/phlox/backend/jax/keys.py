"""JAX's random keys as keys of Phlox's streams, and JAX's initializers, which are functions of a key."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from phlox.backend.contract.backend import engine_of
from phlox.backend.device import Device
from phlox.backend.jax.random import state_of_seed
from phlox.backend.jax.trees import scope
from phlox.backend.kind import Float
from phlox.backend.threefry.foreign_keys import register_reader
from phlox.errors import ShapeError


def read(source: Any) -> Any:
    """The two words of a key, typed (`jax.random.key`) or raw (`PRNGKey`); in a trace, key and position 0 as an array.

    A traced integer is a seed. None if `source` is no key. A key of another generator than Threefry draws two words.
    """
    if not isinstance(source, jax.Array):
        return None
    if jnp.issubdtype(source.dtype, jax.dtypes.prng_key):
        if source.shape:
            raise ShapeError(
                f"a random stream opens on one key, got an array of keys of shape {source.shape}; index it, or map "
                "over it with vmap"
            )
        data = jax.random.key_data(source)
        data = data if data.shape == (2,) else jax.random.bits(source, (2,), "uint32")
    elif source.dtype == np.uint32 and source.shape == (2,):
        data = source
    elif isinstance(source, Tracer) and not source.shape and jnp.issubdtype(source.dtype, jnp.integer):
        return state_of_seed(source)
    else:
        return None
    if isinstance(data, Tracer):
        return jnp.concatenate([data, np.zeros(1, np.uint32)])
    high, low = np.asarray(data).tolist()
    return high, low


register_reader(read)


def initialized(initializer: Callable[..., Any], words: Any, shape: tuple[int, ...], device: Device) -> Any:
    """`initializer(key, shape, dtype)` for the key of two words, or of a traced state, as an array of the device."""
    backend = device.backend
    engine = engine_of(backend)
    dtype = np.dtype(np.float64 if engine.float_element == "f64" else np.float32)  # half precision is rounded once
    with scope(backend):
        key = jax.random.wrap_key_data(jnp.asarray(words, np.uint32)[:2], impl="threefry2x32")
        values = jnp.asarray(initializer(key, shape, dtype))
        if isinstance(values, Tracer):
            return values.astype(engine.host_dtype(Float))
    return engine.from_host(np.asarray(values), Float, device)
