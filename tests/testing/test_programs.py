"""Random programs are the same on every engine, and what differs is shrunk to what is at fault.

Serves: phlox/testing/programs/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.testing.programs import WAYS, Program, differences, least_margin, merged, random_program, shrunk

EVERY = list(WAYS)
CASES: list[tuple[Backend, list[str], range, int]] = [
    (NumPy(), EVERY, range(96), 10),
    (NumPy(float="f16"), ["gradient"], range(98, 108), 5),
    (Jax(), [way for way in EVERY if way != "vmap outside"], range(110, 138), 8),
    (Jax(float="bf16"), ["gradient"], range(150, 160), 5),
    (Torch(), ["again", "vmap"], range(210, 214), 7),
    (Torch(float="bf16"), ["gradient"], range(230, 233), 5),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize(
    "backend, ways, seeds, length",
    [
        pytest.param(*case, id=repr(case[0]), marks=[] if isinstance(case[0], NumPy) else pytest.mark.full)
        for case in CASES
    ],
)
def test_engines_agree(
    backend: Backend, ways: Sequence[str], seeds: range, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeds are dealt over the ways in which a program is called."""
    monkeypatch.setenv(VARIABLE, "inductor")
    some = len(seeds) // len(ways)
    for way, first in zip(ways, seeds[::some], strict=True):
        programs = [random_program(seed, length, least_margin(backend)) for seed in range(first, first + some)]
        assert differences(merged(programs), backend, way) == [], way


class _Wrong(NumPy):
    """NumPy, but for the last cosine of an array."""

    def float_cos(self, x: Any) -> Any:
        y = super().float_cos(x)
        return y.copy() if not y.size else (y * 1.0 + (y == y.reshape(-1)[-1]) * 0.5)


def test_a_fault_is_found_and_shrunk() -> None:
    def fails(program: Program) -> bool:
        return bool(differences(program, _Wrong(), compiled=False))

    wrong = [program for program in map(random_program, range(60)) if fails(program)]
    assert wrong
    for program in wrong[:3]:
        smallest = shrunk(merged([program, random_program(99)]), fails)
        assert len(smallest.lines) <= 2 and fails(smallest)
        assert any(call in smallest.source() for call in (".cos()", ".sin()"))  # it is the other's derivative
        assert str(smallest).startswith("def program(") and "px.tensor(" in str(smallest)


def test_a_seed_gives_one_program() -> None:
    assert random_program(7).source() == random_program(7).source() != random_program(8).source()
