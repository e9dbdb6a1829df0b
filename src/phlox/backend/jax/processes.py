"""JAX as part of a group of processes: `jax.distributed`."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import jax

from phlox.backend.addresses import is_loopback, join_address, reserve
from phlox.backend.contract.processes import ProcessOps
from phlox.backend.jax import compat
from phlox.backend.processes import at_leaving, processes, store
from phlox.errors import DistributedError

_PORT = "jax/port"


class ProcessesOfJax(ProcessOps):
    """See `phlox.backend.contract.processes`."""

    joins_at_start = True

    def join_processes(self) -> None:
        group = processes()
        if group.size == 1:
            return
        if jax.distributed.is_initialized():
            if (jax.process_count(), jax.process_index()) != (group.size, group.rank):
                raise DistributedError(
                    f"this is process {group.rank} of {group.size}, but JAX was made process {jax.process_index()} of "
                    f"{jax.process_count()}; leave jax.distributed.initialize() to px.distributed.initialize()"
                )
            return
        if compat.has_started():
            raise DistributedError(
                f"process {group.rank} has used JAX before it joined the others; call "
                'px.distributed.initialize(device="jax") first, before any tensor, device or model is made on JAX'
            )
        port = reserve(group.host) if group.rank == 0 else None
        try:
            if port is not None:
                store().set(_PORT, str(port.getsockname()[1]).encode())
            address = join_address(group.host, int(store().get(_PORT, rank=0)))
            if is_loopback(group.host):
                compat.let_gloo_listen_on(group.host)
            jax.distributed.initialize(
                address,
                group.size,
                group.rank,
                cluster_detection_method="deactivate",
                initialization_timeout=max(int(group.timeout), 1),
                shutdown_timeout_seconds=max(int(group.timeout), 1),
                coordinator_bind_address=address,  # its default is all interfaces
            )
        except (RuntimeError, ValueError) as error:
            raise DistributedError(
                f"process {group.rank} of {group.size}: JAX does not reach the others: {error}"
            ) from error
        finally:
            if port is not None:
                port.close()
        at_leaving(jax.distributed.shutdown)

    def local_device_count(self) -> int:
        return jax.local_device_count()
