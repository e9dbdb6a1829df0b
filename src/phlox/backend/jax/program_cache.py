"""XLA's programs on disk: JAX's own cache, in a bounded folder of Phlox unless the user has chosen one."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from typing import Any

import jax

from phlox.host.cache_folder import private_folder, processor, prune

LIMIT = 1 << 31
"""The number of bytes from which on the programs that were not used for the longest time are deleted."""

_LEAST_SECONDS = 0.2
"""Programs that compile faster are compiled again: eager operations are many, and each is quick."""


def keep_programs() -> None:
    """Have JAX keep its programs on disk. JAX's own settings of its cache stay as the user has made them."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    # XLA's programs for a CPU use the instructions that it has, and a home may be shared by machines.
    folder = private_folder(f"jax-{processor()}")
    if folder is None:
        return
    prune(folder, LIMIT)
    config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
