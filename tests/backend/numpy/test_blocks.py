"""NumPy's composites on arrays of many blocks: right at every block's edge, and the same however many threads work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from phlox.backend import NumPy
from phlox.backend.numpy import blocks
from tests.backend.plain import Plain

SHAPES = [(137, 1000), (1200, 1001), (3, 400_001), (2_000_000, 1)]
"""Some blocks on one thread; blocks on several; rows longer than a block; rows of one."""


def _arrays(shape: tuple[int, int]) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    gamma, beta = (rng.normal(size=shape[1]).astype(np.float32) for _ in range(2))
    return x, g, gamma, beta


def _run(backend: Any, x: Any, g: Any, gamma: Any, beta: Any) -> dict[str, Any]:
    """Results and gradients."""
    found: dict[str, Any] = {}
    calls: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
        "softmax": ((x,), (1,)),
        "log_softmax": ((x,), (1,)),
        "gelu": ((x,), (False,)),
        "layer_norm": ((x, gamma, beta), (1e-5,)),
        "rms_norm": ((x, gamma), (1e-6,)),
    }
    for name, (operands, options) in calls.items():
        y, saved = getattr(backend, f"{name}_forward")(*operands, *options)
        needed = tuple(True for _ in operands)
        found[name] = y
        for place, d in enumerate(getattr(backend, f"{name}_backward")(saved, g, needed, *options)):
            found[f"{name}, gradient {place}"] = d
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_blocks_give_what_the_definition_gives(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = _arrays(shape)
    found, wanted = _run(NumPy(), *arrays), _run(Plain(), *arrays)
    with ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(blocks, "_pool", lambda process: (pool, 0))
        alone = _run(NumPy(), *arrays)
        monkeypatch.setattr(blocks, "_pool", lambda process: (pool, 3))
        many = _run(NumPy(), *arrays)
    for name, y in found.items():
        size = max(1.0, float(np.abs(wanted[name]).max()))
        np.testing.assert_allclose(y, wanted[name], rtol=1e-4, atol=2e-5 * size, err_msg=name)
        np.testing.assert_array_equal(y, alone[name], err_msg=name)
        np.testing.assert_array_equal(y, many[name], err_msg=name)


def test_what_a_helper_raises_arrives() -> None:
    def work(start: int, stop: int) -> None:
        if start > 0:
            raise RuntimeError("no such block")

    with pytest.raises(RuntimeError, match="no such block"):
        blocks.in_blocks(work, 4 * blocks.SPREAD, 1)


@pytest.mark.parametrize("items", [0, 1, 1000, 5 * blocks.SPREAD // 2 + 7])
def test_every_item_is_worked_on_once(items: int) -> None:
    seen = np.zeros(items, np.int32)

    def work(start: int, stop: int) -> None:
        seen[start:stop] += 1

    blocks.in_blocks(work, items, 1)
    assert (seen == 1).all()


def test_infinities_and_nans_are_no_warnings_on_any_thread() -> None:
    x = np.full((40, blocks.LARGE), np.inf, np.float32)
    function: Callable[..., Any] = NumPy().softmax
    assert np.isnan(function(x, 1)).all()
