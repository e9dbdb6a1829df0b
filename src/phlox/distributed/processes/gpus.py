"""Each process of a host computes on its own GPUs."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"


def narrow_gpus(rank: int, size: int, environment: MutableMapping[str, str]) -> None:
    """Restrict process `rank` of the `size` on this host to its share of the GPUs; engines then see only these.

    With fewer GPUs than processes, for instance if a launcher has already divided them, nothing changes.

    >>> environment = {VISIBLE: "0,1,2,3"}
    >>> narrow_gpus(1, 2, environment); environment[VISIBLE]
    '2,3'
    """
    if VISIBLE in environment:
        gpus = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    else:
        gpus = [str(number) for number in range(_count())]
    share = len(gpus) // size
    if size > 1 and share:
        environment[VISIBLE] = ",".join(gpus[rank * share : (rank + 1) * share])


def _count() -> int:
    devices = Path("/dev")
    if not devices.is_dir():
        return 0
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.iterdir())
