"""The processes that save together, and how they tell each other what they have done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from phlox.backend import processes as known
from phlox.errors import DistributedError


class Store(Protocol):
    """Bytes by key, which all processes reach. Neither call is a collective of an engine."""

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        ...

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        """The value of a key, once process `rank` has set it; an error when the time, in seconds, is over."""
        ...


@dataclass
class Group:
    """The processes that save together.

    Args:
        rank: the number of this process.
        size: how many there are.
        run: the name of the launch, or "".
        store: through which they find each other; not needed for a process alone.
        timeout: seconds to wait for another process to write its files.
    """

    rank: int = 0
    size: int = 1
    run: str = ""
    store: Store | None = None
    timeout: float = 3600.0
    saves: int = field(default=0, init=False)
    """How many saves there were: all processes count the same ones, so the number names one of them."""

    def tell(self, key: str, message: dict[str, Any]) -> None:
        """Tell all processes something, once for each key."""
        if self.store is not None and self.size > 1:
            self.store.set(key, json.dumps(message).encode())

    def ask(self, key: str, rank: int) -> dict[str, Any]:
        """What process `rank` tells. Raises DistributedError, with the rank, if it tells nothing in time."""
        assert self.store is not None
        try:
            return json.loads(self.store.get(key, self.timeout, rank))
        except DistributedError:
            raise
        except Exception as error:
            raise DistributedError(
                f"rank {self.rank}: process {rank} has not done its part of the save in {self.timeout:g} seconds: "
                f"{error}"
            ) from error


_group: Group | None = None


def own_group() -> Group:
    """The group that this process is in: that of `phlox.distributed.initialize`, or one of its own."""
    global _group
    found = known.processes()
    if _group is None or (_group.rank, _group.size, _group.run) != (found.rank, found.size, found.run):
        _group = Group(found.rank, found.size, found.run, known.store() if found.size > 1 else None)
    return _group
