"""Forgetting the reproducible mode after a test: all later operations would ask which mode is on."""

from __future__ import annotations

from phlox.backend import reproducible as mode
from phlox.backend.contract import EngineBackend
from phlox.backend.contract import reproducible as contract


def forget() -> None:
    """Give the operations of engines, and what is built of them, the state of a process that never used the mode."""
    with mode._lock:
        for backend in EngineBackend._instances.values():
            if not isinstance(backend, contract.ReproducibleOps):
                _take_switches(backend)
        mode.is_installed = False
        for listener in mode._listeners:
            if not isinstance(getattr(listener, "__self__", None), EngineBackend):
                listener()


def _take_switches(backend: EngineBackend) -> None:
    for name, operation in list(vars(backend).items()):
        code = getattr(operation, "__code__", None)
        if code is None or code.co_filename != contract.__file__ or not hasattr(operation, "__wrapped__"):
            continue
        before = operation.__wrapped__
        delattr(backend, name)
        if getattr(backend, name, None) != before:  # it was the instance's own
            setattr(backend, name, before)
