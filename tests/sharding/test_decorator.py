"""What a process holds of an array in slices is its own part, and no more.

Serves: phlox/sharding/decorator.py, phlox/sharding/slices.py, phlox/backend/grid.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from phlox.backend import Float, NumPy, Torch
from phlox.backend.contract import Backend
from phlox.backend.grid import Grid
from phlox.sharding import Sharded, Slice
from phlox.sharding.slices import Cut

WHOLE = np.arange(48.0, dtype=np.float32).reshape(4, 12)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("engine", [NumPy(), Torch()], ids=repr)
def test_a_slice_has_memory_of_its_own(engine: Backend, axis: int) -> None:
    """A view would keep the whole array in memory."""
    cut = Cut(Grid(("data",), (4,), rank=1), ("data",), axis)
    x = Sharded(engine).sliced(engine.from_host(WHOLE.copy(), Float, engine.device()), cut)
    assert type(x) is Slice and x.shape == (4, 12)
    np.testing.assert_array_equal(engine.to_host(x.value), np.split(WHOLE, 4, axis)[1])
    array = x.value
    if engine == Torch():
        held = array.untyped_storage().nbytes()
    else:
        held = (array if array.base is None else array.base).nbytes
    assert held == WHOLE.nbytes // 4


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("engine", [NumPy(), Torch()], ids=repr)
def test_a_whole_stays_below_stage_three(engine: Backend, stage: int) -> None:
    """It is sent once, and the slice is a part of its memory; at stage 3 it is dropped again."""
    cut = Cut(Grid(("data",), (4,), rank=1, stage=stage), ("data",), 0)
    backend = Sharded(engine)
    x = backend.sliced(engine.from_host(WHOLE.copy(), Float, engine.device()), cut)
    sent: list[object] = []

    def gather(value: Any, ranks: Any) -> Any:
        sent.append(value)
        return engine.reshape(engine.from_host(WHOLE.copy(), Float, engine.device()), (4, 1, 12))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engine), "gather_slices", lambda self, value, ranks: gather(value, ranks))
        patch.setattr(type(engine), "gathering_slices", lambda self, value, ranks: partial(gather, value, ranks))
        backend.make_ready(x)
        for _ in range(2):
            np.testing.assert_array_equal(engine.to_host(backend.whole(x)), WHOLE)
    assert len(sent) == (1 if stage < 3 else 2)
    assert (x.whole is not None) == x.is_whole == (stage < 3)
    np.testing.assert_array_equal(engine.to_host(x.value), WHOLE[1:2])
    if stage < 3:
        half = backend.with_float("bf16" if engine == Torch() else "f16")
        made = backend.detach(x), backend.cast(x, half, backend.device_of(x).on(half))
        assert all(type(one) is Slice and one.whole is not None for one in made) and len(sent) == 1
        np.testing.assert_array_equal(engine.to_host(made[0].value), WHOLE[1:2])
        assert np.shares_memory(engine.to_host(x.value), engine.to_host(x.whole))


def test_stages_are_told_apart() -> None:
    grid = Grid(("data",), (4,), rank=1)
    assert grid.at(3) is grid and grid.at(1) != grid and Cut(grid.at(1), ("data",), 0) != Cut(grid, ("data",), 0)
