"""JAX's collectives for arrays of single processes, in host memory; on a mesh, XLA's partitioner adds them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (annotations of JAX are incomplete)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.collectives import Presence, Reduction, buckets, check_presence
from phlox.backend.processes import processes
from phlox.errors import DistributedError

HostArray = np.ndarray[Any, Any]


class Collectives(EngineBackend):
    """See `phlox.backend.contract.collectives`."""

    def reduce_on_host(
        self, arrays: Sequence[HostArray], op: Reduction, presence: Presence | None = None
    ) -> list[HostArray]:
        size = processes().size
        if size == 1:
            return list(arrays)
        if presence is not None:
            reduced = self.reduce_on_host([np.asarray(presence.owned, np.float32), *arrays], "sum")
            check_presence(presence, reduced.pop(0).tolist())
            return [total / np.asarray(size, total.dtype) for total in reduced] if op == "mean" else reduced
        reduced = list(arrays)
        for numbers in buckets([array.nbytes for array in arrays]):
            gathered = self.gather_on_host(
                np.concatenate([arrays[number].reshape(-1).view(np.uint8) for number in numbers])
            )
            start = 0
            for number in numbers:
                like = arrays[number]
                parts = gathered[:, start : start + like.nbytes].copy().view(like.dtype)
                total = parts.sum(0, dtype=like.dtype).reshape(like.shape)
                reduced[number] = total / np.asarray(size, like.dtype) if op == "mean" else total
                start += like.nbytes
        return reduced

    def gather_on_host(self, array: HostArray) -> HostArray:
        from jax.experimental import multihost_utils  # only for several processes

        if processes().size == 1:
            return array[None]
        self.join_processes()
        # As bytes: JAX would narrow 64-bit elements.
        sent = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        try:
            gathered = np.asarray(multihost_utils.process_allgather(sent, tiled=False))
        except RuntimeError as error:
            group = processes()
            raise DistributedError(
                f"process {group.rank} of {group.size}: a collective has failed, as it does if another process has "
                f"ended, hangs, or passes arrays of other shapes ({str(error).strip().splitlines()[0]})"
            ) from error
        return gathered.copy().view(array.dtype).reshape((processes().size, *array.shape))

    def broadcast_on_host(self, array: HostArray, root: int) -> HostArray:
        return array if processes().size == 1 else self.gather_on_host(array)[root]
