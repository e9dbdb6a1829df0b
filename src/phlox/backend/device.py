"""`Device`: a backend together with one of its devices; and the ambient default."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ForwardRef, TypeAlias

from phlox.backend import settings
from phlox.backend.registry import backend_by_name, backend_names
from phlox.backend.sharding import Sharding
from phlox.errors import DeviceError, EngineNotInstalledError
from phlox.host.signal_guard import scope

if TYPE_CHECKING:
    from phlox.backend.contract import Backend


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a backend, on which tensors are stored and computed, such as `"cpu"` or `"gpu:0"`.

    Get one from a backend, `Jax().device("gpu:0")`, rather than by calling the class.

    >>> as_device("numpy").name
    'cpu'
    """

    backend: Backend
    name: str
    sharding: Sharding | None = field(default=None, compare=False, repr=False)
    """How arrays are sharded over several devices; `name` is the first of them."""
    committed: bool = field(default=True, compare=False, repr=False)
    """Are arrays committed to this device? If not, they are on the default device because none was chosen, and an
    engine may move them to the device of arrays that they are combined with, as JAX does with uncommitted arrays."""

    def __str__(self) -> str:
        others = "" if self.sharding is None else self.backend.other_device_names(self)
        return f"{self.backend.name}:{self.name}{others}"

    def on(self, backend: Backend) -> Device:
        """The same device, of another backend of its engine."""
        return replace(self, backend=backend)

    def holds(self, other: Device) -> bool:
        """Are arrays on `other` already on this device, sharded alike, and committed to it if `committed`?"""
        return self == other and self.sharding == other.sharding and (other.committed or not self.committed)

    def meets(self, other: Device) -> bool:
        """Can one program compute with arrays here and arrays on `other`, since both share one mesh?"""
        lhs, rhs = self.sharding, other.sharding
        return self == other and (lhs is None or (rhs is not None and lhs.mesh == rhs.mesh))

    def __repr__(self) -> str:
        return f"{self.backend!r}.device({self.name!r})"


if TYPE_CHECKING:
    DeviceLike: TypeAlias = Device | Backend | str
else:  # a type at run time too, since annotations may be evaluated
    DeviceLike = Device | ForwardRef("Backend", module="phlox.backend.contract.backend") | str
"""A device, a backend (its default device) or a name (`"jax"`, `"torch:gpu:0"`)."""

_default: ContextVar[Device | None] = ContextVar("phlox_default_device", default=None)


def as_device(device: DeviceLike | None) -> Device:
    """Resolve a device, backend or name to a device; None is the ambient default.

    `default_device` sets the default; else the environment variable PHLOX_DEVICE names it; else it is
    `"numpy"`. Raises `DeviceError` for an unknown name and `EngineNotInstalledError` if the engine is missing.

    >>> as_device("numpy")
    NumPy().device('cpu')
    """
    if isinstance(device, Device):
        return device
    if device is None:
        ambient = _default.get()
        return _outside_of_scopes() if ambient is None else ambient
    if isinstance(device, str):
        name, _, device_name = device.partition(":")
        return backend_by_name(name).device(device_name or None)
    if not callable(getattr(device, "device", None)):
        raise DeviceError(
            f"a device is a Device, a backend or a name ({', '.join(backend_names())}; 'torch:gpu:0'), got {device!r}"
        )
    return device.device()


def _outside_of_scopes() -> Device:
    name = settings.default_device_name()
    try:
        return as_device(name)
    except (DeviceError, EngineNotInstalledError) as error:
        raise type(error)(f"{settings.VARIABLES['device']}={name}, the default device: {error}") from error


def backend_of(device: DeviceLike | None) -> Backend:
    """The backend of a device, without initializing the engine's devices; None is the default device.

    An engine that has initialized its devices may be unable to join other processes.

    >>> backend_of("numpy:cpu"), backend_of(None)
    (NumPy(), NumPy())
    """
    if device is None:
        ambient = _default.get()
        device = settings.default_device_name() if ambient is None else ambient
    if isinstance(device, str):
        return backend_by_name(device.partition(":")[0])
    return device.backend if isinstance(device, Device) else device


@contextmanager
def default_device(device: DeviceLike) -> Generator[Device]:
    """A scope in which tensors and modules made without a device are on this one, in this thread or task.

    Args:
        device: a device, a backend or a name such as `"torch:gpu:0"`.

    >>> import phlox as px
    >>> with px.default_device("numpy"):
    ...     px.ones((2,)).device
    NumPy().device('cpu')
    """
    resolved = as_device(device)
    with scope(_default, resolved):
        yield resolved
