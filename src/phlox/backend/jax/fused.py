"""The contract's own definition of an operation as one compiled program: eagerly it is then one call, not ten."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from phlox.backend.contract.widening import composed


def fused(definition: Callable[..., Any], *static: int) -> Any:
    """A method of a backend whose arguments at these places (the backend itself not counted) are not arrays.

    What it returns holds arrays and None only. At half precision it would round at every step, or overflow.
    """
    run = jax.jit(definition, static_argnums=(0, *(place + 1 for place in static)), inline=True)

    def operation(self: Any, *arguments: Any) -> Any:
        return run(self, *arguments)

    return composed(operation)
