"""`python -m benchmarks [NAME ...]`: compares Phlox with its peers, prints the tables, and records them for the docs.

Without names, it measures all workloads, and the cost of starting, saving, loading and several devices. `python -m
benchmarks gpu` is a command of its own, for a machine with a GPU: see `python -m benchmarks gpu --help`.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages
from benchmarks.harness import SIZES, Ratio, failure
from benchmarks.rows import rows_of
from benchmarks.workloads import ACCELERATED, QUICK, WORKLOADS, Workload

ROOT = Path(__file__).parents[1]

COMPARED = ("first_prediction", "records", "devices")
"""Benchmarks with their own comparisons that are among the headlines."""

DETAILED = (
    "eager",
    "tiny_gpt",
    "starting",
    "reproducible",
    "composites",
    "operations",
    "jitted_call",
    "demo_step",
    "record_memory",
    "optimizer_update",
    "passes",
    "sharding",
    "sharded_records",
    "stages",
    "training",
    "generation",
    "serving",
    "lora",
    "packed",
)
"""Benchmarks of single operations and calls: run by name, or with `--all`."""

ON_ONE_THREAD = {"eager", "tiny_gpt", "reproducible"}
"""Benchmarks whose arrays are too small for threads, for Phlox and for the peers, or whose ratios depend on threads."""

GROWTH = "growth"
"""The curves over sizes, which have a page of their own."""

SMALL = {"records"}
"""These use their small sizes in a full run, and their large ones if they are named."""


def main() -> int:
    """Run the benchmarks; 0 unless Phlox failed, contestants computed different results, or `--check` found something.

    A peer that cannot be imported or measured is a line that says so.
    """
    if sys.argv[1:2] == ["gpu"]:
        from benchmarks.gpu import command

        return command.main(sys.argv[2:])
    names = dict.fromkeys([w.name for table in (WORKLOADS, ACCELERATED) for w in table] + [*COMPARED, *DETAILED])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join([*names, GROWTH])}")
    parser.add_argument("--all", action="store_true", help="the detailed benchmarks too")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds, only to check that everything works"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the figures, the page, its plots there")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing; write the pages from the figures of the recorded runs"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the counts of the key paths with the recorded ones"
    )
    parser.add_argument("--record", action="store_true", help="record these counts again")
    options = parser.parse_args()
    for name in options.names:
        if name not in (*names, GROWTH):
            parser.error(f"there is no benchmark {name!r}; choose from {', '.join([*names, GROWTH])}")
    if GROWTH in options.names:
        if options.names != [GROWTH]:
            parser.error(f"{GROWTH} takes a run of its own")
        return grow(quick=options.quick, out=options.out)
    if options.check or options.record:
        from benchmarks import guard

        return guard.check() if options.check else guard.record()
    if options.render:
        for file in pages.render():
            print(f"written: {file.relative_to(ROOT)}")
        return 0
    return compare(options.names, everything=options.all, quick=options.quick, out=options.out)


def grow(*, quick: bool, out: Path | None) -> int:
    """Measure how costs grow, and record it, unless the run is quick; 1 if a cell of Phlox failed, or a curve bends."""
    from benchmarks import growth, growth_page

    cells = growth.run(quick=quick)
    print(growth_page.table(cells))
    for line in (bent := growth_page.bent(cells)):
        print(f"bends: {line}", file=sys.stderr)
    if out is not None or not quick:
        folder = out or growth.RECORDED.parent
        folder.mkdir(parents=True, exist_ok=True)
        growth.save(cells, folder / growth.RECORDED.name)
        growth_page.plot(cells, (out or ROOT / "docs") / "growth.svg")
        print(f"written: {folder / growth.RECORDED.name}, growth.svg", file=sys.stderr)
    failed = [cell for cell in cells if cell.contestant in growth.PHLOX and (cell.missing or "").startswith("status")]
    for cell in failed:
        print(f"failed: {cell.axis} {cell.size}, {cell.contestant}: {cell.missing}", file=sys.stderr)
    return 1 if failed or bent else 0


def compare(names: Sequence[str], *, everything: bool, quick: bool, out: Path | None) -> int:
    """Measure the named benchmarks, or all."""
    from benchmarks.arena.entry import Result
    from benchmarks.arena.machine import better, in_a_process_of_its_own
    from benchmarks.arena.match import QUICK_PLAN, Plan, competitive, play
    from benchmarks.arena.report import text
    from benchmarks.arena.run import run_of
    from benchmarks.contestants import CONTESTANTS

    asked = names or [*(w.name for w in (*WORKLOADS, *ACCELERATED)), *COMPARED]
    machine, workloads = None, list[Workload]()
    if not set(asked) <= {*COMPARED, *DETAILED}:
        _say("the machine's peaks")
        machine = in_a_process_of_its_own(quick=quick)
        table = QUICK if quick else ACCELERATED if machine.accelerator else WORKLOADS
        workloads = [workload for workload in table if workload.name in asked]
    plan = QUICK_PLAN if quick else Plan()
    # A quick run omits contestants that differ from another one only in their environment.
    playing = [contestant for contestant in CONTESTANTS if not (quick and contestant.like)]
    results: list[Result] = []
    for workload in workloads:
        before = [result for result in results if result.workload.name == workload.after]
        here = competitive(before[0], playing) if before else playing
        results.append(play(workload, plan, here, fresh=workload.starts > 1 and not quick))
    size = "quick" if quick else "all"
    small = dict.fromkeys(SMALL, "small") if not (names or quick) else {}
    rows = [row for name in COMPARED if name in asked for row in _rows(name, small.get(name, size))]
    details = [row for name in DETAILED if name in asked or everything for row in _rows(name, size)]
    if machine is not None and not quick:
        _say("the machine's peaks again")
        machine = better(machine, in_a_process_of_its_own(quick=True))
    today = datetime.date.today().isoformat()
    run = run_of(machine, results, rows, details, python=platform.python_version(), date=today)
    print("\n" + text(run))
    failed = {
        f"{result.workload.title}: {entry.contestant.name}: failed: {entry.missing}": entry.contestant.ours
        for result in results
        for entry in result.entries
        if entry.missing
    }
    for row in (*rows, *details):
        if row.failed:
            failed[f"{row.workload}: {failure(row)}"] = row.failed == row.subject or row.failed.startswith("Phlox")
    for line in failed:
        print(line, file=sys.stderr)
    if out is not None:
        pages.write(run, out)
        print(f"written: {out}/benchmarks.json, benchmarks.md, benchmarks.svg", file=sys.stderr)
    elif names or quick:
        pass
    elif failed:
        print("nothing is recorded, because contestants failed", file=sys.stderr)
    else:
        pages.record(run)
        for file in pages.render():
            print(f"written: {file.relative_to(ROOT)}", file=sys.stderr)
    wrong = [problem for result in results for problem in result.wrong]
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if wrong or any(failed.values()) else 0


def _rows(name: str, sizes: str) -> list[Ratio]:
    """The rows of one benchmark, run in a new process."""
    _say(name)
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name in ON_ONE_THREAD else ()
    return rows_of(f"benchmarks.{name}", environment={**dict.fromkeys(threads, "1"), SIZES: sizes})


def _say(text: str) -> None:
    print(f"measuring {text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
