"""A server of models: language models over OpenAI's protocol with continuous batching, and predictions of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.serve.batcher import *
    from phlox.serve.request import *
    from phlox.serve.server import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "batcher": "Batcher BatcherLimits",
        "request": "End QueueFullError Request Ticket Token",
        "server": "Server ServerOptions",
    },
)
