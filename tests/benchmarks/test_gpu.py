"""The command for machines with a GPU: its table of parts is complete, and a part that fails is reported.

Serves: benchmarks/gpu/{command,part,checks,speed}.py
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import checks, command, speed
from benchmarks.gpu.command import FIGURES, LOG, PARTS, TOTAL, Part, Task, is_good, peak_of, run_all, table
from phlox.testing.suite import Case

WRITES = """
import os, pathlib, sys, time
file = pathlib.Path(sys.argv[1])
file.write_text('{"lines": ["so far"], "is_good": true, "figures": {"n": 1}}')
"""
ENDS = {
    "good": "",
    "crashes": "print('a kernel failed'); sys.stdout.flush(); os.abort()",
    "hangs": "import subprocess; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
    "last": "",
}


def pretended(part: Part, file: Path, seconds: float) -> Sequence[str]:
    return [sys.executable, "-c", WRITES + ENDS[part.name], str(file)]


def test_every_part_is_in_the_table_and_there_is_time_for_all() -> None:
    functions = {
        f"{module.__name__.rpartition('.')[2]}:{name}"
        for module in (checks, speed)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and [*inspect.signature(function).parameters] == ["task"]
    }
    assert functions == {part.function for part in PARTS}
    assert len({part.name for part in PARTS}) == len(PARTS)
    alone = sum(part.limit for part in PARTS if part.is_timed and part.name not in ("machine", "generation"))
    together = max(part.limit for part in PARTS if not part.is_timed)
    assert alone + together < TOTAL <= 480.0


def test_a_part_that_crashes_or_hangs_is_reported_and_leaves_the_others(tmp_path: Path) -> None:
    parts = [Part(name, "it", "none", 60.0, is_timed=name == "last") for name in ENDS]
    parts[2] = parts[2]._replace(limit=5.0)
    outcomes = run_all(parts, tmp_path, pretended, 400.0, 2)
    assert [*outcomes] == [*ENDS]
    assert {name: is_good(outcome) for name, outcome in outcomes.items()} == {
        "good": True, "crashes": False, "hangs": False, "last": True,
    }  # fmt: skip
    assert outcomes["crashes"]["outcome"] == "ended with status -6: a kernel failed"
    assert outcomes["hangs"]["outcome"] == "ended after 5 s"
    assert all(outcome["figures"] == {"n": 1} for outcome in outcomes.values()), "what a part has written is kept"
    text = table(outcomes)
    assert "FAILED: crashes (it): ended with status -6: a kernel failed" in text and text.count("  so far") == 4
    assert json.loads((tmp_path / FIGURES).read_text("utf-8")) == outcomes
    assert "===== crashes: ended with status -6" in (tmp_path / LOG).read_text("utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([FIGURES, LOG])


def test_a_part_for_which_no_time_is_left_says_so(tmp_path: Path) -> None:
    outcomes = run_all([Part("good", "it", "none", 60.0)], tmp_path, pretended, 1.0, 1)
    assert outcomes["good"]["outcome"] == "no time was left" and "no time was left" in table(outcomes)


def test_a_task_replaces_what_it_has_written(tmp_path: Path) -> None:
    task = Task(tmp_path / "x.json", 100.0, dry=True, peak=None, options=())
    assert 99.0 < task.left <= 100.0
    task.write(["first"])
    task.write(["second"], is_good=False, figure=2.0)
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {
        "lines": ["second"], "is_good": False, "figures": {"figure": 2.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA L4", 121e12), ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12), ("NVIDIA GeForce GTX 1080", None),
    ],
)  # fmt: skip
def test_the_peak_rate_is_that_of_the_card(card: str, peak: float | None) -> None:
    assert peak_of(card) == peak


def test_the_suite_is_spread_over_operations() -> None:
    cases = [Case("values", name, lambda: None) for name in [*["add"] * 3, *["mul"] * 2, "exp"]]
    names = [case.operation for case in checks.spread(cases)]
    assert sorted(names[:3]) == ["add", "exp", "mul"] and sorted(names) == sorted(case.operation for case in cases)


def test_a_failure_has_the_difference_of_its_numbers() -> None:
    text = (
        "exp(Float (3,)): 1 of 3 elements are off; worst at (1,): got 2.5, expected -1.0 (tolerance rtol=1e-05, atol=0)"
    )
    assert checks.difference(text) == 3.5
    assert checks.difference("RuntimeError: no kernel") == float("inf")
    assert checks.difference(text.replace("2.5", "nan")) == float("inf")


def test_an_unknown_part_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "made-up"])
    assert "there is no part 'made-up'" in capsys.readouterr().err
