"""The exceptions that Phlox raises: each derives from `PhloxError`, so one `except` catches them all.

Where Python has a fitting built-in (`TypeError`, `ValueError`, ...) the class derives from that as well, and code that
knows nothing of Phlox still catches it.
"""

from __future__ import annotations

__all__ = [
    "AutodiffError",
    "BackendError",
    "CompileError",
    "ConfigError",
    "DataError",
    "DataWarning",
    "DeviceError",
    "DonatedError",
    "EngineNotInstalledError",
    "ExtraNotInstalledError",
    "IndexRangeError",
    "KindError",
    "LinalgError",
    "ModuleError",
    "OptimizerError",
    "OutOfMemoryError",
    "PhloxError",
    "RandomnessError",
    "RangeError",
    "RecordError",
    "RecordWarning",
    "RunError",
    "ShapeError",
    "UnsupportedError",
]


class PhloxError(Exception):
    """Base of every error that Phlox raises on purpose."""


class KindError(PhloxError, TypeError):
    """Tensors of different kinds (Float, Int, Bool) met in one operation, or a kind lacks the operation."""


class ShapeError(PhloxError, ValueError):
    """Shapes do not fit the operation."""


class RangeError(PhloxError, ValueError):
    """A value does not fit the element type it is to be stored in."""


class IndexRangeError(PhloxError, IndexError):
    """An index lies outside its axis."""


class LinalgError(PhloxError, ValueError):
    """A matrix lacks what an operation needs: it is singular, or not positive definite; names which of a stack."""


class BackendError(PhloxError, ValueError):
    """Tensors of different backends met in one operation, or a backend lacks what was asked of it."""


class UnsupportedError(BackendError, AttributeError):
    """A backend lacks an operation that was asked of it; an `AttributeError`, so that `hasattr` can ask first."""


class OutOfMemoryError(PhloxError, MemoryError):
    """There is no memory, of the host or of a device, for what was asked for; says what that was, on every engine."""


class DeviceError(PhloxError, ValueError):
    """A device is unknown or absent, or tensors of different devices met in one operation."""


class EngineNotInstalledError(PhloxError, ImportError):
    """The engine of a backend (JAX, PyTorch) is not installed."""


class ExtraNotInstalledError(PhloxError, ImportError):
    """An optional dependency (rich, matplotlib) is not installed; names the extra that brings it."""


class AutodiffError(PhloxError, RuntimeError):
    """A gradient was asked for where there is none to be had."""


class RandomnessError(PhloxError, RuntimeError):
    """A random draw would be baked into a compiled program."""


class ConfigError(PhloxError, ValueError):
    """A configuration has unknown, missing or ill-typed keys; lists all of them with their paths."""


class RecordError(PhloxError, ValueError):
    """A record is missing, damaged, or does not fit the module it is loaded into."""


class RecordWarning(UserWarning):
    """What is saved or read at another precision is not an error, but values have been lost: they became zero."""


class ModuleError(PhloxError, TypeError):
    """A module is built or used in a way that it cannot be: names the path of the field and the remedy."""


class OptimizerError(PhloxError, ValueError):
    """An optimizer was given a gradient, a rate or a state that does not fit; names the parameter."""


class CompileError(PhloxError, RuntimeError):
    """A function cannot be compiled as it stands; names the argument or output and the remedy."""


class DonatedError(CompileError):
    """A tensor, parameter or module is used after it was donated, to a compiled function or a step of an optimizer."""


class DataError(PhloxError, ValueError):
    """Input data (a file of images, a table) is missing, unreadable or of the wrong size."""


class DataWarning(UserWarning):
    """A row was left out, or a worker of a loader was replaced; the batches that are given out are right."""


class RunError(PhloxError, ValueError):
    """A run folder exists already, is missing, or is incomplete."""


def __dir__() -> list[str]:
    return sorted(__all__)
