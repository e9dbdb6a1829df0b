"""`Limits`: how long a training goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from phlox.errors import RunError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a training; None means no limit."""

    epochs: int | None
    steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, epochs: Any, steps: Any, time: Any) -> Limits:
        """Make the limits; `RunError` for an invalid limit, or if none is given."""
        for name, value in (("epochs", epochs), ("steps", steps)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
                raise RunError(f"fit: {name} must be a whole number of 1 or more, got {value!r}")
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.0 < seconds < math.inf
        ):
            raise RunError(f"fit: time must be a number of seconds above 0, or a timedelta, got {time!r}")
        if epochs is None and steps is None and seconds is None:
            raise RunError("fit: give a limit: epochs=, steps= or time=")
        return cls(epochs, steps, seconds)
