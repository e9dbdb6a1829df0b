"""Joining an engine to a group of processes."""

from __future__ import annotations

from phlox.backend import processes
from phlox.errors import EngineNotInstalledError, ExtraNotInstalledError

GLOO = "torch"
"""The backend whose collectives are used for engines without collectives."""


class ProcessOps:
    """The defaults are those of an engine without collectives of its own, which takes PyTorch's."""

    name: str

    joins_at_start: bool = False
    """Must this engine join before it computes? If not, it joins when a mesh or a collective needs it."""

    def join_processes(self) -> None:
        """Join the engine to the group of processes, if it has not joined yet; all processes do so at the same point.

        In a single process it does nothing. Raises `DistributedError` if the engine has already computed but must join
        first, or if other processes do not arrive; `ExtraNotInstalledError` if the engine needs PyTorch, which is
        missing.
        """
        if processes.processes().size == 1:
            return
        from phlox.backend.registry import backend_by_name

        try:
            gloo = backend_by_name(GLOO)
        except EngineNotInstalledError as error:
            raise ExtraNotInstalledError(
                f"collectives of {self.name} go through gloo, which comes with PyTorch, and that is not installed; "
                "install Phlox with the extra 'torch', or compute on JAX"
            ) from error
        gloo.join_processes()

    def local_device_count(self) -> int:
        """The number of devices that this process computes on."""
        return 1
