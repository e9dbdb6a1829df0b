"""A server in a thread, for tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from phlox.models import DecoderConfig, LanguageModel
from phlox.serve import Server, ServerOptions
from phlox.text import BytePairTokenizer

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def language_model(backend: Any = "numpy", context: int = 512, **options: Any) -> LanguageModel:
    """A small random model of bytes, with sharp distributions."""
    tokenizer = BytePairTokenizer(special=["<|begin|>", "<|end|>"], end="<|end|>", chat_template=TEMPLATE)
    settings: dict[str, Any] = {
        "vocabulary": 260, "context": context, "n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2,
        "init_std": 0.6, **options,
    }  # fmt: skip
    return LanguageModel(DecoderConfig(**settings).init(backend).init(3), tokenizer)


@contextmanager
def running(server: Server) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    server.options = replace(server.options, port=0)
    addresses: queue.Queue[str] = queue.Queue()
    thread = threading.Thread(target=server.run, args=(addresses.put,), name="test-server")
    thread.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


__all__ = ["Server", "ServerOptions", "language_model", "running"]
