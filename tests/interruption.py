"""Ctrl-C at any moment: Python looks for signals where a function begins and where one of C's returns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_LOOKS = ("call", "c_return")


def moments(action: Callable[[], object]) -> int:
    """At how many moments of an action Python looks for signals."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in _LOOKS

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def interrupt(action: Callable[[], Any], moment: int) -> Any:
    """What an action gives that Ctrl-C comes into at this moment; `KeyboardInterrupt` or what else the handler does."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in _LOOKS:
            count += 1
            if count == moment:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    recorded = torch.is_grad_enabled()  # a scope of PyTorch's own that is left half-way stays as it is
    sys.setprofile(note)
    try:
        return action()
    finally:
        sys.setprofile(None)
        torch.set_grad_enabled(recorded)
