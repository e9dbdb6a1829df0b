"""The processor as JAX's device: is it one, or do several share it?"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import jax


def is_shared() -> bool:
    """Does the processor play several devices, as where a step for many is tried out on one machine?

    They also share its threads. XLA's loops for a product whose left side is turned wait for these; of the other
    products, which have better code, it pays then to turn an operand by itself, however small it is.
    """
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1
