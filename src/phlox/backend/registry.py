"""Backends by name. Only this table knows the names; engines are imported when a backend is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phlox.errors import DeviceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from phlox.backend.contract import Backend

_BACKENDS: dict[str, str] = {
    "numpy": "phlox.backend.numpy:NumPy",
    "jax": "phlox.backend.jax:Jax",
    "torch": "phlox.backend.torch:Torch",
}

_DECORATORS: dict[str, str] = {"autodiff": "phlox.autodiff:Autodiff", "sharded": "phlox.sharding:Sharded"}

EXPORTS: dict[str, str] = {
    "NumPy": _BACKENDS["numpy"],
    "Jax": _BACKENDS["jax"],
    "Torch": _BACKENDS["torch"],
    "Autodiff": "phlox.autodiff:Autodiff",
    "Batched": "phlox.batching:Batched",
    "OPERATIONS": "phlox.backend.contract.catalogue:OPERATIONS",
}
"""The locations of the names that `phlox.backend` imports lazily."""


def load(location: str) -> Any:
    """Import the object at a location, `"package.module:Name"`."""
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


def register_backend(name: str, location: str) -> None:
    """Register a backend under a name; `location` is `"package.module:Class"`, imported on first use.

    An installed package can instead declare an entry point in the group `phlox.backends`.
    """
    _BACKENDS[name] = location


def register_decorator(name: str, location: str) -> None:
    """Register a decorator of backends under a name, for programs that are exported to a file; see `Decorator.spec`."""
    _DECORATORS[name] = location


def load_decorator(name: str) -> Any:
    """The decorator with this name; `DeviceError` if there is none."""
    if name not in _DECORATORS:
        raise DeviceError(f"there is no decorator {name!r}; phlox.backend.register_decorator makes one known")
    return load(_DECORATORS[name])


def backend_names() -> list[str]:
    """The names of all known backends, installed or not.

    >>> "numpy" in backend_names()
    True
    """
    return sorted({*_BACKENDS, *(point.name for point in _installed())})


def _installed() -> list[EntryPoint]:
    """The backends of other installed packages."""
    from importlib.metadata import entry_points  # it would take a fifth of the time of `import phlox`

    return list(entry_points(group="phlox.backends"))


def load_backend(name: str) -> type[Backend]:
    """Import the class of a backend by name.

    Raises `DeviceError` if there is no such backend, and `EngineNotInstalledError` if its engine is not installed.

    >>> load_backend("numpy")()
    NumPy()
    """
    location = _BACKENDS.get(name)
    if location is None:
        location = next((point.value for point in _installed() if point.name == name), None)
    if location is None:
        from phlox.other_names import remark

        names = backend_names()
        raise DeviceError(f"unknown device {name!r}{remark(name, 'device', names)} (known: {', '.join(names)})")
    return load(location)


def backend_by_name(name: str) -> Backend:
    """The backend with this name, at its default precision.

    >>> backend_by_name("numpy")
    NumPy()
    """
    return load_backend(name)()
