"""Random programs are the same on every engine, and what differs is shrunk to what is at fault."""

from __future__ import annotations

from typing import Any

import pytest

from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.testing.programs import Program, differences, merged, random_program, shrunk


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize("backend, seeds, length", [
    (NumPy(), range(80), 10), (Jax(), range(100, 160), 8), (Torch(), range(210, 220), 7),
], ids=str)  # fmt: skip
def test_engines_agree(backend: Backend, seeds: range, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    some = 20
    for at in range(0, len(seeds), some):
        assert differences(merged([random_program(seed, length) for seed in seeds[at : at + some]]), backend) == []


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
