"""Floor 1: engines behind one contract. `NumPy`, `Jax` and `Torch` are imported when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend.settings import apply as _apply

_apply()  # before anything is imported that reads how many threads there are to be

from phlox.backend.contract import Backend, Decorator, EngineBackend  # noqa: E402
from phlox.backend.device import Device, DeviceLike, as_device, default_device  # noqa: E402
from phlox.backend.kind import Bool, Float, Int, Kind  # noqa: E402
from phlox.backend.registry import (  # noqa: E402
    EXPORTS,
    backend_by_name,
    backend_names,
    load,
    load_backend,
    register_backend,
    register_decorator,
)
from phlox.other_names import missing  # noqa: E402

if TYPE_CHECKING:
    from phlox.autodiff import Autodiff
    from phlox.backend.contract.catalogue import OPERATIONS
    from phlox.backend.jax import Jax
    from phlox.backend.numpy import NumPy
    from phlox.backend.torch import Torch
    from phlox.batching import Batched

__all__ = [
    "OPERATIONS", "Autodiff", "Backend", "Batched", "Bool", "Decorator", "Device", "DeviceLike", "EngineBackend",
    "Float", "Int", "Jax", "Kind", "NumPy", "Torch", "as_device", "backend_by_name", "backend_names", "default_device",
    "load_backend", "register_backend", "register_decorator",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # By location: this floor imports an engine only when it is needed, and never imports the floor above.
    if name in EXPORTS:
        return load(EXPORTS[name])
    raise missing(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
