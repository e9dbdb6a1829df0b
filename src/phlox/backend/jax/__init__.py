"""The JAX backend: XLA, eagerly or as one compiled program. Importing it imports JAX."""

from __future__ import annotations

from phlox.errors import EngineNotInstalledError

try:
    import jax as _jax
except ImportError as error:
    raise EngineNotInstalledError(
        "the backend Jax needs JAX, which is not installed; install Phlox with the extra 'jax'"
    ) from error
else:
    del _jax

from phlox.backend.jax import keys as keys
from phlox.backend.jax import pytree as pytree
from phlox.backend.jax.backend import Jax
from phlox.backend.jax.compat import accept_tensors as _accept_tensors
from phlox.backend.jax.program_cache import keep_programs as _keep_programs

_accept_tensors()
_keep_programs()

__all__ = ["Jax"]
