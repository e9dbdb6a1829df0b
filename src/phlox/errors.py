"""The exceptions of Phlox. All derive from `PhloxError`, so one `except` catches them all.

Each also derives from the matching built-in exception (`TypeError`, `ValueError`, ...), so generic code catches it too.
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
    "DistributedError",
    "DonatedError",
    "EngineNotInstalledError",
    "ExportError",
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
    "RunWarning",
    "ShapeError",
    "ShardingError",
    "ShardingWarning",
    "UnsupportedError",
]


class PhloxError(Exception):
    """The base of all errors of Phlox."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of Python's traceback: the user's lines, and ours folded to their number."""
        import traceback  # only after an error
        from itertools import groupby
        from pathlib import Path

        own = str(Path(__file__).parent)
        lines = ["Traceback (most recent call last):"]
        frames = [frame for frame in traceback.extract_tb(self.__traceback__) if "IPython" not in frame.filename]
        for is_own, group in groupby(frames, key=lambda frame: frame.filename.startswith(own)):
            calls = list(group)
            lines += [f"  ... {len(calls)} calls in phlox"] if is_own else traceback.format_list(calls)
        lines += traceback.format_exception_only(type(self), self)
        return [line.rstrip("\n") for line in lines]


class KindError(PhloxError, TypeError):
    """An operation got tensors of different kinds (Float, Int, Bool), or of a kind that it does not support."""


class ShapeError(PhloxError, ValueError):
    """Shapes do not fit the operation."""


class RangeError(PhloxError, ValueError):
    """A value is out of the range of an option or of a dtype."""


class IndexRangeError(PhloxError, IndexError):
    """An index lies outside its axis."""


class LinalgError(PhloxError, ValueError):
    """A matrix is singular or not positive definite, and the operation is undefined for it; names its batch index."""


class BackendError(PhloxError, ValueError):
    """An operation got tensors of different backends, or a backend lacks a feature."""


class UnsupportedError(BackendError, AttributeError):
    """A backend lacks an operation. It is an `AttributeError`, so that `hasattr` works."""


class OutOfMemoryError(PhloxError, MemoryError):
    """The host or a device is out of memory; names the operation and its arguments on every engine."""


class DeviceError(PhloxError, ValueError):
    """A device is unknown or unavailable, or an operation got tensors of different devices."""


class EngineNotInstalledError(PhloxError, ImportError):
    """The engine of a backend (JAX, PyTorch) is not installed."""


class ExtraNotInstalledError(PhloxError, ImportError):
    """An optional dependency (rich, matplotlib) is not installed; names the extra to install."""


class AutodiffError(PhloxError, RuntimeError):
    """A gradient cannot be computed: no autodiff, no dependence on a leaf, a freed graph, ..."""


class RandomnessError(PhloxError, RuntimeError):
    """A random draw would become a constant of a compiled program, or a random stream cannot be used."""


class ConfigError(PhloxError, ValueError):
    """A config has unknown, missing or invalid values; lists all of them with their paths."""


class RecordError(PhloxError, ValueError):
    """A record is missing, damaged, or does not fit the module that it is loaded into."""


class RecordWarning(UserWarning):
    """Nonzero values became zero when a record was saved or read at another precision."""


class ModuleError(PhloxError, TypeError):
    """A module is built or used in an invalid way; names the path of the field and the remedy."""


class OptimizerError(PhloxError, ValueError):
    """An optimizer got an invalid gradient, learning rate or state; names the parameter."""


class CompileError(PhloxError, RuntimeError):
    """A function cannot be compiled as written; names the argument or output, and the remedy."""


class ExportError(PhloxError, ValueError):
    """A model cannot be exported, or an exported file differs from it; names the layer and the line."""


class DonatedError(CompileError):
    """A tensor, parameter or module is used after it was donated to a compiled function or an optimizer step."""


class DataError(PhloxError, ValueError):
    """Input data (a file of images, a table) is missing, unreadable or has the wrong size."""


class DataWarning(UserWarning):
    """A row was left out, or a worker of a loader was replaced; the batches of the loader are correct."""


class RunError(PhloxError, ValueError):
    """A run folder exists already, is missing, or is incomplete."""


class RunWarning(UserWarning):
    """A part of a run is damaged, and the rest is used; or a training is not what its arguments let one expect."""


class DistributedError(PhloxError, RuntimeError):
    """Processes differ, one of them is gone, or a value is only partly in this process; names the rank."""


class ShardingError(DistributedError, ValueError):
    """A mesh, a layout or a batch does not fit the devices, the model or the processes; names the path or the axis."""


class ShardingWarning(UserWarning):
    """An array in shards was gathered on one device."""


def __dir__() -> list[str]:
    return sorted(__all__)
