"""What `make test` costs: seconds of a processor for each folder, printed at its end, compared with tests/costs.json.

`--costs=check` compares, and fails if a folder takes more than twice what the file says, and what a slower processor
explains; `--costs=note` writes the file, and the table in CONTRIBUTING.md from it. Folders of which only a part was run
are not compared.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).parent / "costs.json"
START = "start and collection"
"""The row of what each process does before its first test."""
BEGIN, END = "<!-- costs -->\n", "<!-- /costs -->"
SMALL = 5.0
"""Seconds by which any folder may become dearer: a process may have to compile what another one did before."""

Costs = dict[str, tuple[float, int]]
"""Folder -> seconds and number of tests."""


def used() -> float:
    """Seconds of a processor that this process and those that it has waited for have used."""
    return sum(os.times()[:4])


def folder_of(nodeid: str) -> str:
    """The first two names of a path, or the first.

    >>> folder_of("tests/nn/loss/test_losses.py::test_a[1]"), folder_of("tests/test_readme.py::test_a")
    ('tests/nn', 'tests')
    >>> folder_of("src/phlox/nn/linear.py::phlox.nn.linear.Linear")
    'src/phlox'
    """
    return "/".join(nodeid.partition("::")[0].split("/")[:-1][:2])


def too_dear(now: Mapping[str, tuple[float, int]], noted: Mapping[str, tuple[float, int]]) -> list[str]:
    """A sentence for each folder that was run whole and takes more than twice its seconds.

    >>> noted = {"a": (10.0, 5), "b": (20.0, 5), "c": (30.0, 5)}
    >>> too_dear({"a": (20.0, 5), "b": (40.0, 5), "c": (60.0, 5)}, noted)  # a slower processor
    []
    >>> too_dear({"a": (10.0, 5), "b": (20.0, 5), "c": (75.0, 6)}, noted)
    ['c: 75 s of a processor, but 30 s are noted']
    """
    whole = {folder: now[folder][0] for folder in noted if folder in now and now[folder][1] >= noted[folder][1]}
    if len(whole) < 3:
        return []
    speed = max(1.0, median(seconds / max(noted[folder][0], 0.1) for folder, seconds in whole.items()))
    return [
        f"{folder}: {seconds:.0f} s of a processor, but {noted[folder][0]:.0f} s are noted"
        for folder, seconds in whole.items()
        if seconds > speed * (2 * noted[folder][0] + SMALL)
    ]


def read() -> Costs:
    return {folder: (seconds, tests) for folder, (seconds, tests) in json.loads(FILE.read_text()).items()}


def table(costs: Mapping[str, tuple[float, int]]) -> str:
    """The table of CONTRIBUTING.md."""
    rows = sorted(costs.items(), key=lambda row: -row[1][0])
    total = sum(seconds for seconds, _ in costs.values()), sum(tests for _, tests in costs.values())
    lines = [
        f"| {f'`{folder}`' if '/' in folder else folder} | {seconds:.0f} | {tests} |"
        for folder, (seconds, tests) in rows
    ]
    head = ["| folder | seconds of a processor | tests |", "|---|---:|---:|"]
    return "\n".join([*head, *lines, f"| all | {total[0]:.0f} | {total[1]} |"]) + "\n"


class Watch:
    """A plugin for pytest: in each process it measures, and in the first one it adds up and tells."""

    def __init__(self, note: bool) -> None:
        self.note = note
        self.costs: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self.wrong: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        output: Any = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["start"] = used()
        elif not session.config.getoption("numprocesses", None):
            self.costs[START] = [used(), 0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.before = used()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append(("cpu", used() - self.before))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "cpu":
                row = self.costs[folder_of(report.nodeid)]
                row[0] += float(str(value))
                row[1] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.costs[START][0] += getattr(node, "workeroutput", {}).get("start", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ or exitstatus != 0:
            return
        costs: Costs = {
            folder: (round(seconds, 1), int(tests)) for folder, (seconds, tests) in sorted(self.costs.items())
        }
        if self.note:
            FILE.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")
            page = ROOT / "CONTRIBUTING.md"
            text = page.read_text(encoding="utf-8")
            before, after = text.partition(BEGIN)[0], text.partition(END)[2]
            page.write_text(f"{before}{BEGIN}{table(costs)}{END}{after}", encoding="utf-8")
        else:
            self.wrong = too_dear(costs, read())
            if self.wrong:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("seconds of a processor")
        for folder, (seconds, tests) in sorted(self.costs.items(), key=lambda row: -row[1][0]):
            terminalreporter.write_line(f"{seconds:8.1f}  {folder}, {tests} tests")
        total = sum(seconds for seconds, _ in self.costs.values())
        terminalreporter.write_line(f"{total:8.1f}  all")
        for line in self.wrong:
            terminalreporter.write_line(f"TOO DEAR {line}; if it must be, `make test ARGS=--costs=note`", red=True)
