"""What an engine has to do with other processes: it joins their group."""

from __future__ import annotations

from phlox.backend import processes
from phlox.errors import EngineNotInstalledError, ExtraNotInstalledError

GLOO = "torch"
"""The backend whose collectives serve the engines that have none."""


class ProcessOps:
    """The defaults are those of an engine without collectives of its own, which takes PyTorch's."""

    name: str

    joins_at_start: bool = False
    """Must this engine join before it computes, or does it join when something names it that needs it?"""

    def join_processes(self) -> None:
        """Make the engine part of the group of processes, if it is not yet; all processes do so at the same point.

        Alone, it does nothing. Raises `DistributedError` where the engine has computed before, though it must not have,
        or where other processes do not come; `ExtraNotInstalledError` without PyTorch, for an engine that needs it.
        """
        if processes.processes().size == 1:
            return
        from phlox.backend.registry import backend_by_name

        try:
            gloo = backend_by_name(GLOO)
        except EngineNotInstalledError as error:
            raise ExtraNotInstalledError(
                f"collectives of {self.name} go through gloo, which comes with PyTorch, and that is not installed; "
                "install it with: pip install 'phlox[torch]', or compute on JAX"
            ) from error
        gloo.join_processes()

    def local_device_count(self) -> int:
        """The number of devices that this process computes on."""
        return 1
