"""What processes of a loader import in tests: little, for each of them starts with it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phlox.data import Draws


def noisy(batch: Any, draws: Draws) -> Any:
    return {"x": batch["x"] + draws.uniform("noise", size=2), "y": batch["y"], "row": draws.rows}


def negated(batch: Any) -> Any:
    return {**batch, "x": -batch["x"]}


def failing(batch: Any) -> Any:
    if batch["y"][0] == 20:
        raise ZeroDivisionError("in a transform")
    return batch


@dataclass
class Once:
    """At one batch ends its process, or hangs; the first time only."""

    flag: Path
    hangs: bool

    def __call__(self, batch: Any) -> Any:
        if batch["y"][0] == 20 and not self.flag.exists():
            self.flag.touch()
            if not self.hangs:
                os._exit(3)
            time.sleep(600)
        return batch


def dying(batch: Any) -> Any:
    if batch["y"][0] == 20:
        os._exit(3)
    return batch
