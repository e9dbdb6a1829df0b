"""`phlox serve`: a server of a model, with OpenAI's protocol."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from phlox.cli.command import DONE, Command, count, seconds, whole
from phlox.errors import ConfigError

KEY = "PHLOX_API_KEY"
"""The environment variable with the API key."""


def _port(text: str) -> int:
    if whole(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, from 0 to 65535")
    return int(text)


OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": "the folder of a model or of a run, a name on the Hub, or an ONNX file"},
    "--name": {"metavar": "NAME", "help": "the name of the model for clients (default: that of the folder)"},
    "--device": {"metavar": "NAME", "help": "numpy (default), jax, torch, torch:gpu:0, ..."},
    "--host": {
        "metavar": "HOST", "default": "127.0.0.1", "help": "the address to listen at (default: 127.0.0.1)",
    },
    "--port": {"metavar": "P", "type": _port, "default": 8000, "help": "the port (default: 8000); 0: a free one"},
    "--api-key-file": {
        "metavar": "FILE", "help": f"a file with the key that clients must send (default: {KEY} in the environment)",
    },
    "--slots": {"metavar": "N", "type": count, "default": 32, "help": "continue N texts at a time (default: 32)"},
    "--queue": {"metavar": "N", "type": count, "default": 256, "help": "let N requests wait at most (default: 256)"},
    "--context": {
        "metavar": "N", "type": count, "help": "the largest number of tokens of a text (default: that of the model)",
    },
    "--chunk": {
        "metavar": "N", "type": count, "default": 256,
        "help": "process N tokens of prompts between two steps of other texts (default: 256)",
    },
    "--prefix-tokens": {
        "metavar": "N", "type": whole, "default": 16384,
        "help": "keep keys and values of N tokens of earlier texts; 0: none (default: 16384)",
    },
    "--max-tokens": {
        "metavar": "N", "type": count, "default": 1 << 20, "help": "new tokens of an answer (default: the context)",
    },
    "--max-body": {"metavar": "BYTES", "type": count, "default": 4 << 20, "help": "largest request (default: 4 MiB)"},
    "--timeout": {"metavar": "S", "type": seconds, "help": "end an answer after S seconds (default: never)"},
    "--compile": {
        "choices": ("auto", "yes", "no"), "default": "auto", "help": "use the engine's compiler (default: on JAX)",
    },
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    for name, options in OPTIONS.items():
        parser.add_argument(name, **options)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.serve import BatcherLimits, Server, ServerOptions

    key = _api_key(options.api_key_file)
    if key is None and options.host not in ("127.0.0.1", "localhost", "::1"):
        print(
            f"phlox: warning: {options.host} may be reached by others, and there is no API key; give --api-key-file "
            f"or set {KEY}",
            file=sys.stderr,
        )
    name = options.name or Path(options.model).resolve().name.removesuffix(".onnx")
    choices: Any = {"auto": "auto", "yes": True, "no": False}
    limits = BatcherLimits(options.slots, options.queue, options.context, options.chunk, options.prefix_tokens)
    server = Server(
        _model(options.model, options.device),
        ServerOptions(
            name, options.host, options.port, key, limits, options.max_tokens, options.max_body, options.timeout,
            choices[options.compile],
        ),
    )  # fmt: skip
    server.run(lambda address: print(f"serving {name} at {address}", flush=True))
    return DONE


def _model(path: str, device: str | None) -> Any:
    from phlox.serve.predictor import is_predictor, predictor_of

    if is_predictor(path):
        return predictor_of(path, device or "numpy")
    from phlox.models import load

    return load(path, device=device)


def _api_key(path: str | None) -> str | None:
    key = os.environ.get(KEY) if path is None else Path(path).read_text(encoding="utf-8").strip()
    if key is None:
        return None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{path or KEY}: the API key must be one word of ASCII characters")
    return key


COMMAND = Command(
    description="Serve a language model with OpenAI's protocol, and a page to chat with it; or the predictions of an "
    "ONNX file or a run. Many requests are answered at the same time. Ctrl-C or SIGTERM ends it when the requests that "
    "it has taken are answered.",
    arguments=arguments,
    run=run,
)
