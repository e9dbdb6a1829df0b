"""Forgetting the reproducible mode after a test: all later operations would ask which mode is on."""

from __future__ import annotations

from phlox.backend import reproducible as mode
from phlox.backend.contract import EngineBackend
from phlox.backend.contract.reproducible import remove_from


def forget() -> None:
    """Give the operations of engines, and what is built of them, the state of a process that never used the mode."""
    with mode._lock:
        for backend in EngineBackend._instances.values():
            remove_from(backend)
        mode.is_installed = False
        for listener in mode._listeners:
            if not isinstance(getattr(listener, "__self__", None), EngineBackend):
                listener()
