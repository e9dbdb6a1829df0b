"""The pages show what the files of recorded runs say; a run is recorded, and the pages follow.

Serves: benchmarks/{pages,__main__}.py, benchmarks/arena/figures.py
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import pages
from benchmarks.arena import machine, match
from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.figures import FIGURES, Recorded, fill
from benchmarks.arena.machine import Machine
from benchmarks.arena.run import Run, load
from benchmarks.contestants import Contestant
from benchmarks.harness import Ratio
from benchmarks.workloads import Workload

FOLDER = pages.ROOT / "benchmarks" / "recorded"


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(load(FOLDER / pages.CPU), load(FOLDER / pages.OPERATIONS))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The recorded runs in a folder of their own, with pages that have markers."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks" / "recorded").mkdir(parents=True)
    for name in (pages.CPU, pages.OPERATIONS):
        (tmp_path / "benchmarks" / "recorded" / name).write_bytes((FOLDER / name).read_bytes())
    (tmp_path / "README.md").write_text("<!-- benchmarks: headline --><!-- /benchmarks -->\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text(
        "In <!-- benchmarks: rows ahead -->99<!-- /benchmarks --> rows.\n", encoding="utf-8"
    )
    (tmp_path / "docs" / "other.md").write_text("No figures here.\n", encoding="utf-8")
    return tmp_path


def test_the_pages_are_what_the_recorded_runs_give() -> None:
    stale = [file.name for file, text in pages.rendered().items() if file.read_text(encoding="utf-8") != text]
    assert not stale, f"write {', '.join(stale)} again: python -m benchmarks --render"
    names = {file.name for file in pages.rendered()}
    assert names >= {"benchmarks.md", "benchmarks.svg", "benchmarks-dark.svg", "performance.md"}


def test_the_first_figures_of_performance_come_from_the_run() -> None:
    text = (pages.ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    recipes = text.split("```")[0]
    assert re.findall(r"<!-- benchmarks: (.+?) -->", recipes) == [
        "compile", "steps", "engine", "keep", "first prediction",
    ]  # fmt: skip
    assert not re.search(r"\d (us|ms|s|MB)\b", re.sub(r"<!-- benchmarks: .+? -->.*?<!-- /benchmarks -->", "", recipes))


@pytest.mark.parametrize("name", FIGURES)
def test_each_name_gives_text(name: str, recorded: Recorded) -> None:
    text = FIGURES[name](recorded)
    assert text
    assert text == text.strip()
    lines = text.splitlines()
    if len(lines) > 1:
        assert len({line.count(" | ") for line in lines if "---" not in line}) == 1  # a table


def test_markers_are_filled_and_what_is_outside_of_them_stays(recorded: Recorded) -> None:
    page = "a <!-- benchmarks: date -->x<!-- /benchmarks --> b\n\n<!-- benchmarks: peak --><!-- /benchmarks -->\n\nc\n"
    filled = fill(page, recorded)
    assert filled.startswith(f"a <!-- benchmarks: date -->{recorded.cpu.date}<!-- /benchmarks --> b\n\n")
    assert "<!-- benchmarks: peak -->\n\n| workload |" in filled
    assert filled.endswith("|\n\n<!-- /benchmarks -->\n\nc\n")
    assert fill(filled, recorded) == filled
    with pytest.raises(KeyError, match="no such name"):
        fill("<!-- benchmarks: no such name --><!-- /benchmarks -->", recorded)


def test_a_figure_follows_the_data(copy: Path) -> None:
    pages.render(copy)
    assert pages.render(copy) == []
    file = copy / "benchmarks" / "recorded" / pages.CPU
    run = load(file)
    slower = [dataclasses.replace(row, ratio=1.5) if row.workload.startswith("save, 0.13") else row for row in run.rows]
    dataclasses.replace(run, rows=slower).save(file)
    written = {path.name for path in pages.render(copy)}
    assert written == {"README.md", "index.md", "benchmarks.md", "benchmarks.svg", "benchmarks-dark.svg"}
    assert "| save 0.13 GB, durably |" in (copy / "README.md").read_text(encoding="utf-8")
    assert "| 1.50 |" in (copy / "README.md").read_text(encoding="utf-8")
    assert "-->32 of 34<!--" in (copy / "docs" / "index.md").read_text(encoding="utf-8")


def test_a_run_replaces_only_what_it_has_measured(copy: Path) -> None:
    before = (copy / "benchmarks" / "recorded" / pages.OPERATIONS).read_bytes()
    run = load(copy / "benchmarks" / "recorded" / pages.CPU)
    pages.record(dataclasses.replace(run, date="2027-01-01"), copy)
    assert load(copy / "benchmarks" / "recorded" / pages.CPU).date == "2027-01-01"
    assert (copy / "benchmarks" / "recorded" / pages.OPERATIONS).read_bytes() == before
    details = [Ratio("a + b", "Phlox", "numpy", 0.6, 0.3, 2.0, 1.9, 2.1)]
    pages.record(dataclasses.replace(run, date="2027-01-02", details=details), copy)
    operations = load(copy / "benchmarks" / "recorded" / pages.OPERATIONS)
    assert (operations.date, operations.works, operations.details) == ("2027-01-02", [], details)
    assert load(copy / "benchmarks" / "recorded" / pages.CPU).details == []


def test_a_run_on_a_gpu_is_kept_beside_that_of_the_processor(copy: Path) -> None:
    before = (copy / "benchmarks" / "recorded" / pages.CPU).read_bytes()
    pages.record(Run("2027-01-01", "3.11", Machine("made up", 16, 4e14, "product", 2e12, 2e12, "GPU made up")), copy)
    assert (copy / "benchmarks" / "recorded" / pages.CPU).read_bytes() == before
    pages.render(copy)
    assert "GPU made up" in (copy / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as it is, but for what takes time."""

    def play(workload: Workload, plan: object, contestants: object, *, fresh: bool) -> Result:
        ours, torch, steps = (
            next(one for one in match.CONTESTANTS if one.name == name)
            for name in ("Phlox on JAX", "PyTorch", "Phlox on JAX, 32 steps a call")
        )
        entries = [
            Entry(ours, training=[0.010, 0.012], inference=[0.001, 0.002], mib=300.0),
            Entry(torch, training=[0.020, 0.024], inference=[0.004, 0.008], mib=200.0),
            Entry(steps, training=[0.009, 0.009]),
        ]
        return Result(workload, entries, {"made_up": "1.0"}, seconds=2.0)

    def peaks(*, quick: bool) -> Machine:
        return Machine("made up", 2, 100e9, "product", 10e9, 9e9, seen={"product": 100e9})

    def rows(name: str, sizes: str) -> list[Ratio]:
        return [Ratio(f"{name}, a row", "Phlox", "peer", 10.0, 20.0, 0.5, 0.4, 0.6, target=1.0)]

    monkeypatch.setattr(match, "play", play)
    monkeypatch.setattr(machine, "in_a_process_of_its_own", peaks)
    monkeypatch.setattr(command, "_rows", rows)


@pytest.mark.usefixtures("measuring")
def test_a_run_by_name_is_written_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "mlp-small", "records", "eager", "--out", str(out)])
    assert command.main() == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "benchmarks-dark.svg", "benchmarks.json", "benchmarks.md", "benchmarks.svg",
    ]  # fmt: skip
    page = (out / "benchmarks.md").read_text(encoding="utf-8")
    assert "| MLP 64-128-10, batch 64: training | Phlox on JAX, 32 steps a call | PyTorch | 0.41 |" in page
    assert "| records, a row | Phlox | peer | 0.50 | 0.40 to 0.60 |" in page
    assert "eager, a row" in page.split("## Details")[1]
    plain = json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))
    assert plain["works"][0]["best"]["training"] == ["Phlox on JAX, 32 steps a call", "PyTorch"]
    assert plain["versions"] == {"made_up": "1.0"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", plain["date"])


@pytest.mark.usefixtures("measuring")
@pytest.mark.parametrize("failed, code", [("peer", 0), ("Phlox", 1)])
def test_one_that_fails_is_a_line_and_only_phlox_changes_the_status(
    failed: str, code: int, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(name: str, sizes: str) -> list[Ratio]:
        reason = "ImportError: libmadeup.so"
        return [Ratio.without_figures(f"{name}, a row", "Phlox", "peer", failed, reason)] * (name == "devices")

    monkeypatch.setattr(command, "_rows", rows)
    monkeypatch.setattr(command, "ROOT", copy)
    monkeypatch.setattr(pages, "ROOT", copy)
    before = (copy / "benchmarks" / "recorded" / pages.CPU).read_bytes()
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert command.main() == code
    said = capsys.readouterr()
    assert f"| devices, a row | Phlox | peer | | | failed: {failed}: ImportError: libmadeup.so | | |" in said.out
    assert f"devices, a row: failed: {failed}: ImportError: libmadeup.so\nnothing is recorded" in said.err
    assert (copy / "benchmarks" / "recorded" / pages.CPU).read_bytes() == before


@pytest.mark.usefixtures("measuring")
@pytest.mark.parametrize("library, code", [("with_keras", 0), ("with_phlox", 1)])
def test_a_contestant_that_is_missing_changes_the_status_if_it_is_phlox(
    library: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = match.play

    def play(*arguments: Any, **options: Any) -> Result:
        result = played(*arguments, **options)
        result.entries.append(Entry(Contestant("made up", library), missing="ModuleNotFoundError: made_up"))
        return result

    monkeypatch.setattr(match, "play", play)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "mlp-small"])
    assert command.main() == code
    assert "| failed: ModuleNotFoundError: made_up |" in capsys.readouterr().out


@pytest.mark.usefixtures("measuring")
def test_a_full_run_is_recorded_and_the_pages_follow(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ROOT", copy)
    monkeypatch.setattr(pages, "ROOT", copy)
    (copy / "README.md").write_text("<!-- benchmarks: rows ahead --><!-- /benchmarks -->\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert command.main() == 0
    run = load(copy / "benchmarks" / "recorded" / pages.CPU)
    assert [work.name for work in run.works][:2] == ["mlp-small", "mlp-large"]
    assert (copy / "README.md").read_text(
        encoding="utf-8"
    ) == "<!-- benchmarks: rows ahead -->17 of 17<!-- /benchmarks -->\n"
    assert "made up" in (copy / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    before = (copy / "docs" / "benchmarks.md").read_bytes()
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick"])
    assert command.main() == 0
    assert (copy / "docs" / "benchmarks.md").read_bytes() == before  # nothing is written by a quick run
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--render"])
    assert command.main() == 0
