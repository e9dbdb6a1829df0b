"""The curves over sizes: cells in processes of their own, exponents, and the page.

Serves: benchmarks/{growth,growth_page}.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import growth, growth_page
from benchmarks.contestants import CONTESTANTS
from benchmarks.growth import AXES, Axis, Cell

NUMPY, TORCH, JAX = "Phlox on NumPy", "PyTorch", "Phlox on JAX"


def cells(ours: float, peer: float, *, wall: float | None = None) -> list[Cell]:
    """Three cells of each of two contestants, whose figures grow with these exponents."""
    powers = {NUMPY: (ours if wall is None else wall, ours), TORCH: (peer, peer)}
    return [
        Cell("layers", name, size, {"saving": [0.01 * size**power for power in each], "memory of a step": [1e6 * size]})
        for name, each in powers.items()
        for size in (1, 4, 16)
    ]


def test_names_are_those_of_contestants() -> None:
    names = {contestant.name for contestant in CONTESTANTS}
    assert names >= {name for axis in AXES for name in axis.contestants} | {*growth.PEER, *growth.PEER.values()}
    for axis in AXES:
        assert list(axis.sizes) == sorted(axis.sizes)
        (contestant, sizes), *_ = axis.chains(quick=True)
        assert contestant.name == NUMPY and sizes == list(axis.sizes[:2])


@pytest.mark.parametrize(
    ("ours", "peer", "wall", "bends"),
    [
        (1.0, 1.0, None, False), (1.29, 1.0, None, False), (1.31, 1.0, None, True), (2.0, 1.0, 1.0, False),
        (1.0, 2.0, None, False),
    ],
)  # fmt: skip
def test_a_curve_bends_by_both_clocks(ours: float, peer: float, wall: float | None, bends: bool) -> None:
    found = cells(ours, peer, wall=wall)
    text = growth_page.table(found)
    assert f"| layers | saving | {f'**{ours:.2f}**' if bends else f'{ours:.2f}'} |  | {peer:.2f} |" in text
    assert "| layers | memory of a step | 1.00 |  | 1.00 |" in text
    assert len(growth_page.bent(found)) == bends


def test_curves_of_other_lengths_are_compared_where_both_end() -> None:
    ours, peer = {1: [1.0], 10: [10.0], 100: [1e4]}, {1: [1.0], 10: [10.0]}
    assert growth_page.exponents(ours) == [pytest.approx(3.0)] and not growth_page.bends(ours, peer)
    assert growth_page.exponents({1: [1.0]}) == [] and growth_page.exponents({1: [0.0], 10: [0.0]}) == [0.0]


def test_a_cell_that_hangs_or_fails_keeps_what_it_has_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "growth.py").write_text(
        """
import json, os, sys, time
print("a library prints this")
print(json.dumps(["saving", [1.0, 2.0]]), flush=True)
sys.stderr.write("first\\nMadeUpError: that is wrong\\n")
size = int(sys.argv[3])
if size == 1: time.sleep(60)
if size == 2: sys.exit(3)
""",
        encoding="utf-8",
    )
    monkeypatch.setattr(growth, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (contestant,) = (each for each in CONTESTANTS if each.name == NUMPY)
    axis = Axis("made up", (1, 2, 3), growth.of_rows)
    monkeypatch.setattr(growth.subprocess, "run", _hasty(growth.subprocess.run))
    found = [growth._cell(axis, contestant, size, 20) for size in axis.sizes]
    assert [cell.missing for cell in found] == ["more than 200 s", "status 3: MadeUpError: that is wrong", None]
    assert all(cell.figures == {"saving": [1.0, 2.0]} for cell in found)
    chain = growth._measured(axis, contestant, axis.sizes, quick=False)
    assert len(chain) == 1  # what is larger takes longer


def _hasty(run: Any) -> Any:
    return lambda *arguments, **options: run(*arguments, **{**options, "timeout": 2.0})


def test_a_quick_run_measures_ours_beside_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Axis("rows", (100, 200, 300), growth.of_rows, (NUMPY, TORCH))
    monkeypatch.setattr(growth, "AXES", (kept,))
    monkeypatch.setattr(growth_page, "AXES", (kept,))
    monkeypatch.setattr(growth_page, "bent", lambda cells: [])  # no time is asserted
    monkeypatch.setattr(sys, "argv", ["benchmarks", "growth", "--quick", "--out", str(tmp_path)])
    assert command.main() == 0
    date, found = growth.load(tmp_path / "growth.json")
    assert date.startswith("20") and [(cell.contestant, cell.size) for cell in found] == [
        (NUMPY, 100), (NUMPY, 200), (TORCH, 100), (TORCH, 200),
    ]  # fmt: skip
    assert all(set(cell.figures) == {"first batch", "batch", "memory of a loader"} for cell in found)
    assert "| rows | first batch |" in capsys.readouterr().out
    assert "Phlox on NumPy" in (tmp_path / "growth.svg").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_each_axis(axis: Axis) -> None:
    limit = growth.QUICK_LIMIT
    for contestant, sizes in axis.chains(quick=True):
        cell = growth._cell(axis, contestant, sizes[0], limit)
        assert cell.missing is None and len(cell.figures) >= 3
        assert all(len(figures) in (1, 2) for figures in cell.figures.values())


def test_it_takes_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "growth", "eager"])
    with pytest.raises(SystemExit):
        command.main()
    assert "growth takes a run of its own" in capsys.readouterr().err


def test_the_recorded_run_has_every_axis() -> None:
    _, found = growth.load()
    assert {cell.axis for cell in found} == {axis.name for axis in AXES}
    assert {cell.contestant for cell in found} >= {NUMPY, TORCH, JAX}
