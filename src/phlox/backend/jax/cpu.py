"""Does the processor appear as one JAX device, or as several?"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import jax


def is_shared() -> bool:
    """Does the processor appear as several devices, as when code for many devices is tried out on one machine?

    They share its threads, for which XLA's loops for a product with a transposed left operand wait. Then it pays to
    transpose the operand first, however small it is, and use XLA's better kernels.
    """
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1
