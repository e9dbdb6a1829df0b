"""Clients that connect and then do nothing: their connections end, so they hold neither sockets nor a shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any


async def end_stalled(connections: Collection[Any], patience: float) -> None:
    """End each of uvicorn's connections whose client owes something for more than `patience` seconds; never returns.

    Uvicorn itself waits without end for a client that sends no request, or half of its headers, or that does not read
    its answer. A client that waits for an answer owes nothing.
    """
    owed: dict[Any, tuple[Any, float]] = {}
    while True:
        now = time.monotonic()
        former, owed = owed, {}
        for connection in list(connections):
            if (state := _owed_by(connection)) is not None:
                last, since = former.get(connection, (None, now))
                owed[connection] = state, since if state == last else now
                if now - owed[connection][1] > patience:
                    connection.transport.abort()
        await asyncio.sleep(min(patience / 10, 1.0))


def _owed_by(connection: Any) -> Any:
    """What the server waits for: changed by any progress, and None if it waits for nothing."""
    cycle, n_unsent = connection.cycle, connection.transport.get_write_buffer_size()
    if n_unsent or cycle is None or cycle.response_complete:
        return cycle, n_unsent
    return None
