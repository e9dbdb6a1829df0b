"""The program that serves: uvicorn, with an end for connections on which nothing happens."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Collection
from typing import Any

import uvicorn


class Program(uvicorn.Server):
    """Runs an application until a signal: then it finishes the requests that were taken.

    Args:
        config: uvicorn's.
        patience: see `ServerOptions.patience`.
        ready: is called when clients can connect.
        end_answers: ends the running answers; for the second SIGINT.
    """

    def __init__(
        self, config: uvicorn.Config, patience: float, ready: Callable[[], object], end_answers: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._patience, self._ready, self._end_answers = patience, ready, end_answers
        self.is_ending = False  # the answers are ended, not finished

    async def startup(self, sockets: Any = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._watch = asyncio.create_task(end_stalled(self.server_state.connections, self._patience))
        self._ready()

    async def shutdown(self, sockets: Any = None) -> None:
        """See `uvicorn.Server`."""
        if n := len(self.server_state.tasks):
            logging.getLogger("phlox.serve").warning("finishing %d requests; Ctrl-C ends them at once", n)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """See `uvicorn.Server`. A second SIGINT ends the answers and the connections, a third one the program."""
        if self.started and self.should_exit and sig == signal.SIGINT and not self.is_ending:
            self.is_ending = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        else:
            super().handle_exit(sig, frame)

    async def _end(self) -> None:
        self._end_answers()
        await asyncio.sleep(0.5)  # clients are told
        for connection in list(self.server_state.connections):
            connection.transport.abort()


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
