"""Is a state one of this optimizer, for a parameter of this shape?"""

from __future__ import annotations

from typing import Any, cast

from phlox.backend import Device
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state.tree import Mastered, State, mismatch, unmastered
from phlox.tensor import zeros


def begun(optimizer: SimpleOptimizer, shape: tuple[int, ...], place: Device | None = None) -> State:
    """The state that a parameter of this shape begins with; None if that is not known."""
    try:
        return optimizer.init(zeros(shape, device=place))
    except Exception:  # it takes no such parameter
        return None


def misfit(fresh: State, state: State, shape: tuple[int, ...]) -> str | None:
    """As `mismatch`, of a state that may have a master."""
    if isinstance(state, Mastered) and state.master.shape != shape:
        return f"master: expected shape {shape}, found {state.master.shape}"
    return mismatch(fresh, unmastered(state))


def other_entries(optimizer: SimpleOptimizer, shape: tuple[int, ...], state: State) -> str | None:
    """How the names in a state differ from those in a first state for this shape; None if they do not."""
    fresh = begun(optimizer, shape)
    return mismatch(dict.fromkeys(cast("Any", fresh)), state) if isinstance(fresh, dict) else None
