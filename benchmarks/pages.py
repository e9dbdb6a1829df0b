"""The pages that show the figures of recorded runs: each figure is in one file of `recorded/`, and made from there.

`docs/benchmarks.md` and its plots are made as a whole. Of other pages, what stands between markers is:
`<!-- benchmarks: NAME -->...<!-- /benchmarks -->`, with a name of `arena/figures.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.arena import plot, report
from benchmarks.arena.figures import Recorded, fill
from benchmarks.arena.run import Run, load

ROOT = Path(__file__).parents[1]
CPU, GPU, OPERATIONS = "cpu.json", "gpu.json", "operations.json"


def record(run: Run, root: Path | None = None) -> None:
    """Put the run in place of the one before: of a CPU or of a GPU, and that of single operations if it has some."""
    folder = (root or ROOT) / "benchmarks" / "recorded"
    name = GPU if run.machine is not None and run.machine.accelerator else CPU
    replace(run, details=()).save(folder / name)
    if run.details:
        replace(run, works=(), rows=()).save(folder / OPERATIONS)


def rendered(root: Path | None = None) -> dict[Path, str]:
    """The files that show figures of the recorded runs, and what they should contain."""
    root = root or ROOT
    folder = root / "benchmarks" / "recorded"
    cpu, operations = load(folder / CPU), load(folder / OPERATIONS)
    gpu = load(folder / GPU) if (folder / GPU).is_file() else None
    recorded = Recorded(cpu, operations)
    files = _own(root / "docs", cpu, operations, gpu)
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if page not in files and "<!-- benchmarks:" in (text := page.read_text(encoding="utf-8")):
            files[page] = fill(text, recorded)
    return files


def render(root: Path | None = None) -> list[Path]:
    """Write the files that are not as they should be, and return them."""
    return list(_written(rendered(root)))


def write(run: Run, folder: Path) -> None:
    """Write the figures of a run, the page and its plots into a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    run.save(folder / "benchmarks.json")
    list(_written(_own(folder, run, run, None)))


def _own(folder: Path, run: Run, operations: Run, gpu: Run | None) -> dict[Path, str]:
    files = {folder / "benchmarks.md": report.page(run, operations, gpu)}
    if run.headlines:
        files[folder / "benchmarks.svg"] = plot.svg(run)
        files[folder / "benchmarks-dark.svg"] = plot.svg(run, dark=True)
    return files


def _written(files: dict[Path, str]) -> Iterable[Path]:
    for file, text in files.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            yield file
