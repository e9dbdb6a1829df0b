"""What may befall an engine's update of many tensors while it writes to them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

Update = Callable[[Any], object]


def press_ctrl_c(run: Update, pieces: Any) -> None:
    signal.raise_signal(signal.SIGINT)
    run(pieces)


def run_out_of_memory(run: Update, pieces: Any) -> None:
    run(pieces)
    raise MemoryError


@contextmanager
def updates_that(happen: Callable[[Update, Any], None], backend: type[Any]) -> Generator[None]:
    """Within this scope the kernels of a backend are run by `happen`."""
    whole = backend.kernel

    def kernel(self: Any, *arguments: Any) -> Update:
        run = whole(self, *arguments)
        return lambda pieces: happen(run, pieces)

    with patch.object(backend, "kernel", kernel):
        yield
