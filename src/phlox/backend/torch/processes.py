"""PyTorch as part of a group of processes: `torch.distributed`, by gloo on processors and NCCL on GPUs."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from phlox.backend.addresses import listen
from phlox.backend.contract.processes import ProcessOps
from phlox.backend.processes import at_leaving, processes, store
from phlox.errors import DistributedError

_PORT = "torch/port"


class ProcessesOfTorch(ProcessOps):
    """See `phlox.backend.contract.processes`."""

    joins_at_start = True

    def join_processes(self) -> None:
        group = processes()
        if group.size == 1:
            return
        if not dist.is_available():
            raise DistributedError("this build of PyTorch has no torch.distributed; install one that has")
        if dist.is_initialized():
            if (dist.get_world_size(), dist.get_rank()) != (group.size, group.rank):
                raise DistributedError(
                    f"this is process {group.rank} of {group.size}, but torch.distributed was made process "
                    f"{dist.get_rank()} of {dist.get_world_size()}; leave init_process_group() to "
                    "px.distributed.initialize()"
                )
            return
        limit = timedelta(seconds=group.timeout)
        try:
            if group.rank == 0:  # torch's own listener would accept on all interfaces
                listener = listen(group.host, 0, max(group.size, 128), "PyTorch's store")
                port = listener.getsockname()[1]
                shared = TCPStore(
                    group.host, port, group.size, is_master=True, timeout=limit, wait_for_workers=False,
                    master_listen_fd=listener.detach(),
                )  # fmt: skip
                store().set(_PORT, str(port).encode())
            else:
                port = int(store().get(_PORT, rank=0))
                shared = TCPStore(group.host, port, group.size, is_master=False, timeout=limit)
            engines = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
            dist.init_process_group(engines, store=shared, rank=group.rank, world_size=group.size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, DistributedError):
                raise
            raise DistributedError(
                f"process {group.rank} of {group.size}: PyTorch does not reach the others: {error}"
            ) from error
        at_leaving(dist.destroy_process_group)

    def local_device_count(self) -> int:
        return max(torch.cuda.device_count(), 1)


def exchange(key: str, value: str | None, environment: Mapping[str, str], timeout: float) -> str | None:
    """Send a text to the other processes, or (None) receive it, through an existing store of `torch.distributed`.

    The store is torchrun's, which listens on MASTER_PORT, or an existing group's, such as Ray Train's. Returns None if
    there is no store.
    """
    limit = timedelta(seconds=timeout)
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        address = (environment["MASTER_ADDR"].strip(" []"), int(environment["MASTER_PORT"]))
        try:
            shared = TCPStore(*address, is_master=False, timeout=limit)
        except RuntimeError as error:
            raise DistributedError(
                f"process {environment['RANK']} does not reach the store of torchrun at MASTER_ADDR={address[0]}, "
                f"MASTER_PORT={address[1]} ({error})"
            ) from error
    elif dist.is_available() and dist.is_initialized():
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]
    else:
        return None
    if value is not None:
        shared.set(f"phlox/{key}", value)
        return value
    try:
        return shared.get(f"phlox/{key}").decode()  # waits for it
    except RuntimeError as error:
        raise DistributedError(
            f"process {environment['RANK']} has waited {timeout:g} s for process 0 to tell its address ({error})"
        ) from error
