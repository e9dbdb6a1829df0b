"""Which tests are in `make test`, and what they cost.

Serves: tests/selection.py, tests/costs.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest

from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.testing.conformance.rows import ROWS
from tests import costs
from tests.selection import covered, factors_of

ROOT = Path(__file__).parent.parent
PROBE = """
import pytest

@pytest.mark.full
def test_whole():
    pass

@pytest.mark.covering(2)
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", "xyz")
@pytest.mark.parametrize("c", [pytest.param(True, marks=pytest.mark.full), False, None])
def test_table(a, b, c):
    pass

@pytest.mark.covering(1, "a")
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", "xyz")
def test_one_factor(a, b):
    pass

@pytest.mark.every(3)
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_alike(a):
    pass

def test_small():
    pass
"""


@pytest.mark.parametrize("sizes, strength", [((4, 3, 3, 2), 2), ((7, 5), 1), ((3, 3, 2), 3), ((4,), 2)])
def test_a_covering_holds_every_combination_and_little_else(sizes: tuple[int, ...], strength: int) -> None:
    cells = list(product(*map(range, sizes)))
    kept = [cell for cell, is_kept in zip(cells, covered(cells, strength), strict=True) if is_kept]
    for places in combinations(range(len(sizes)), min(strength, len(sizes))):
        assert {tuple(cell[i] for i in places) for cell in kept} == set(product(*(range(sizes[i]) for i in places)))
    fewest = 1
    for size in sorted(sizes)[-strength:]:
        fewest *= size
    assert len(kept) <= 2 * fewest


def test_what_a_parameter_says() -> None:
    assert factors_of(Autodiff(NumPy(float="bf16"))) == ("NumPy", "bf16", ("Autodiff", False))
    assert factors_of(Autodiff(Autodiff(Jax()), recompute=True)) == ("Jax", "f32", ("Autodiff", "Autodiff", True))
    assert factors_of(Torch(int="i64")) == ("Torch", "f32", (False,))
    assert factors_of([Jax(), Jax(float="f64")]) == ("Jax",)
    assert factors_of(SimpleNamespace(name="conv, with holes")) == ("conv",)
    assert factors_of(ROWS[0]) == (str(ROWS[0]).split()[0],)


def chosen(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.full
def test_the_marks_choose(tmp_path: Path) -> None:
    """In a folder of its own; what is chosen by name besides does not change which cells are in the small run."""
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    full: all\n    covering(strength, *names): some\n    every(n): some\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom tests import selection\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n    selection.mark_cells(items)\n"
    )
    small = chosen(tmp_path, "-m", "not full")
    tables = [name for name in small if name.startswith("test_table")]
    assert "test_whole" not in small and "test_small" in small
    assert len([name for name in small if name.startswith("test_one_factor")]) == 3
    assert [name for name in small if name.startswith("test_alike")] == ["test_alike[1]", "test_alike[4]"]
    cells = [name.partition("[")[2].rstrip("]").split("-") for name in tables]
    assert {c for c, _, _ in cells} == {"False", "None"}
    assert {(b, a) for _, b, a in cells} == set(product("xyz", "123"))
    assert len(cells) < 18
    assert set(chosen(tmp_path, "-m", "not full", "-k", "x")) == {name for name in small if "x" in name}
    assert len(chosen(tmp_path)) == 1 + 27 + 9 + 4 + 1


def test_the_page_shows_what_is_noted() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = page.partition(costs.BEGIN)[2].partition(costs.END)[0]
    assert shown == costs.table(costs.read())


def test_a_folder_of_which_a_part_was_run_is_not_compared() -> None:
    noted = {"a": (10.0, 5), "b": (20.0, 5), "c": (30.0, 5), "d": (1.0, 5), "e": (9.0, 2)}
    now = {"a": (10.0, 5), "b": (20.0, 5), "c": (90.0, 4), "d": (5.0, 5), "e": (9.0, 2), "new": (100.0, 1)}
    assert costs.too_dear(now, noted) == []
    assert len(costs.too_dear({**now, "c": (90.0, 5)}, noted)) == 1
