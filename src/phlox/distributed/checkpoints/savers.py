"""The processes that save together, and the messages between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from phlox.backend import processes as membership
from phlox.backend.store import OwnStore, Store
from phlox.errors import DistributedError


@dataclass(eq=False)
class Group:
    """The processes that save together.

    Args:
        rank: the rank of this process.
        size: the number of processes.
        run: the name of the launch and its attempt, or "".
        seed: the seed that they have agreed on; equal runs have equal seeds, and write equal files.
        store: the store for their messages.
        timeout: seconds to wait for another process to write its files.
    """

    rank: int = 0
    size: int = 1
    run: str = ""
    store: Store = field(default_factory=OwnStore)
    timeout: float = 3600.0
    seed: int | None = None
    saves: int = field(default=0, init=False)
    """The number of saves so far; all processes count the same ones, so it identifies a save."""

    def tell(self, key: str, message: dict[str, Any], readers: int) -> None:
        """Send a message to `readers` other processes, once for each key."""
        if readers:
            self.store.set(key, json.dumps(message).encode(), readers)

    def ask(self, key: str, rank: int) -> dict[str, Any]:
        """Receive the message of process `rank`. Raises DistributedError, with the rank, if none arrives in time."""
        try:
            return json.loads(self.store.get(key, self.timeout, rank))
        except DistributedError as error:
            raise DistributedError(f"process {rank} has not done its part of the save: {error}") from error


_group: Group | None = None


def own_group() -> Group:
    """The group of this process: the group of `phlox.distributed.initialize`, or one with only this process."""
    global _group
    joined = membership.processes()
    if _group is None or (_group.rank, _group.size, _group.run) != (joined.rank, joined.size, joined.run):
        _group = Group(joined.rank, joined.size, joined.run, membership.store(), seed=joined.seed)
    return _group
