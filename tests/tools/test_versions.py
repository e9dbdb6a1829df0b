"""`make versions` and `make floors`: which versions are tried, and what a failure or a missing package index means.

Serves: tools/versions.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import environments, versions
from tools.environments import EXTRAS, Environment, Skipped, lowest, name_of, project, supported, within


def test_the_lowest_versions_are_those_of_pyproject() -> None:
    pins = {name_of(pin): pin for pin in lowest(*EXTRAS)}
    text = (environments.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package in ("numpy", "msgspec", "jax", "rich"):
        found = re.search(rf'"{package}>=([\d.]+)"', text)
        assert found is not None
        assert pins[package] == f"{package}=={found[1]}"
    assert {"pytest", "hypothesis"} <= set(pins)


def test_the_table_of_versions_is_that_of_the_project() -> None:
    table, pins = supported(), {name_of(pin): pin for pin in lowest("jax", "torch")}
    assert list(table) == ["python", "numpy", "jax", "torch"]
    for package in ("numpy", "jax", "torch"):
        assert pins[package] == f"{package}=={table[package][0]}"
        assert within(table[package][0], table[package][1])
    [tested] = [one for one in project()["optional-dependencies"]["test"] if name_of(one) == "torch"]
    assert within(tested.removeprefix("torch=="), table["torch"][1])


def test_the_pages_show_the_table_and_name_the_lowest_python() -> None:
    pages = [environments.ROOT / "CONTRIBUTING.md", *(environments.ROOT / "docs").rglob("*.md")]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    assert "<!-- versions -->" in texts["quickstart.md"]
    rows = environments.supported_table().splitlines()
    assert len(rows) == 6 and rows[2].startswith("| Python | 3.11 | ")
    named = {name: re.findall(r"(?:Python |`python3` \()(3\.\d+) or newer", text) for name, text in texts.items()}
    assert named["quickstart.md"] and named["CONTRIBUTING.md"]
    assert {version for versions in named.values() for version in versions} == {supported()["python"][0]}


def test_the_newest_are_those_of_the_table_and_before_a_release_there_is_no_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        listed = "99.1rc1, 2.14.0.dev1+cpu, 0.9" if "--pre" in command else "99.0, 2.13.1+cpu, 0.12.7, 0.9"
        return subprocess.CompletedProcess(command, 0, f"Available versions: {listed}", "")

    monkeypatch.setattr(environments.subprocess, "run", run)
    made = {name: {name_of(pin): pin for pin in make(False).pins} for name, make in versions.ENVIRONMENTS.items()}
    assert made["newest"]["jax"] == "jax==0.12.7" and made["newest"]["msgspec"] == "msgspec==99.0"
    assert made["torch-newest"]["torch"].startswith("torch==2.13.1")
    assert made["prerelease"]["jax"] == "jax==99.1rc1" and made["prerelease"]["numpy"] == "numpy==99.1rc1"
    assert made["torch-prerelease"]["torch"] == "torch==2.14.0.dev1+cpu"


class Fake(Environment):
    """An environment that is made and run without a process."""

    def make(self) -> None:
        if self.name == "torch-lowest":
            raise Skipped("no CPU build of torch can be had here")
        if self.name == "newest":
            raise SystemExit("newest: these versions do not go together")

    def run(self, *command: str, **variables: str) -> bool:
        assert command[-1] == "tests/smoke"
        return self.name != "torch-newest"


@pytest.mark.parametrize(
    "names, code, says",
    [
        (["lowest"], 0, "lowest: passed"),
        (["torch-lowest"], 0, "torch-lowest: skipped: no CPU build of torch can be had here"),
        (["newest"], 1, "these versions do not go together"),
        (["torch-newest", "lowest"], 1, "torch-newest: FAILED"),
        ([], 1, "lowest: passed"),
        (["prerelease"], 0, "prerelease: passed"),
    ],
)
def test_a_failure_fails_and_what_cannot_be_had_does_not(
    names: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in versions.ENVIRONMENTS:
        monkeypatch.setitem(versions.ENVIRONMENTS, name, lambda cuda, name=name: Fake(name, ("numpy==2.0",)))
    assert versions.main(names) == code
    assert says in capsys.readouterr().out


def test_a_name_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        versions.main(["oldest"])
    assert "there is no environment 'oldest'; there are lowest, newest" in capsys.readouterr().err


def test_without_an_index_an_environment_is_skipped_or_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_index(*_: Any, **__: Any) -> None:
        return None

    for module in (environments, versions):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
        monkeypatch.setattr(module, "newest", without_index)
    monkeypatch.setattr(versions, "newest_python", lambda: sys.executable)
    with pytest.raises(Skipped, match="no package index"):
        versions.ENVIRONMENTS["newest"](False)
    made = Environment("newest", ("numpy==2.4.6",))
    made.folder.mkdir()
    (made.folder / "holds.json").write_text(made._holds(), encoding="utf-8")
    assert versions.ENVIRONMENTS["newest"](False) == made
    assert made.is_there
    assert not Environment("newest", ("numpy==2.4.7",)).is_there
    made.make()  # installs nothing


def test_the_newest_python_is_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(environments, "supported", lambda: {"python": ("3.11", f"3.{sys.version_info.minor + 2}")})
    assert environments.newest_python() == sys.executable
    for added, runs in ((2, False), (1, True)):
        program = tmp_path / "versions" / f"3.{sys.version_info.minor + added}.4" / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nexit {int(not runs)}\n", encoding="utf-8")
        program.chmod(0o755)
    assert environments.newest_python() == str(program)


@pytest.mark.parametrize(
    "pin, stderr, index, python, error, says",
    [
        ("numpy==2.0", "ERROR: ResolutionImpossible: for help visit", True, (3, 11), SystemExit, "do not go together"),
        ("numpy==9.0", "ERROR: No matching distribution found for numpy", True, (3, 11), SystemExit, "numpy==9.0"),
        ("numpy==2.0", "ERROR: No matching distribution found for numpy", True, (3, 13), Skipped, "for this Python"),
        ("numpy==2.0", "ERROR: No matching distribution found for numpy", False, (3, 11), Skipped, "no package index"),
        (
            "numpy==2.0",
            "WARNING: x\nERROR: [Errno 28] No space left on device",
            True,
            (3, 11),
            Skipped,
            "No space left",
        ),
        ("torch==2.11.0+cpu", "ERROR: No matching distribution found", True, (3, 11), Skipped, "no CPU build of torch"),
        ("torch==2.11.0+cpu", "ERROR: ResolutionImpossible", True, (3, 11), Skipped, "no CPU build of torch"),
    ],
)
def test_why_an_environment_cannot_be_made(
    pin: str,
    stderr: str,
    index: bool,
    python: tuple[int, int],
    error: type[BaseException],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "venv" in command:
            (tmp_path / "one").mkdir()
            return subprocess.CompletedProcess(command, 0)
        if "index" in command:
            return subprocess.CompletedProcess(command, not index, "Available versions: 4.16.0, 4.15.0", "")
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", run)
    monkeypatch.setattr(environments.sys, "version_info", python)
    with pytest.raises(error, match=re.escape(says)):
        Environment("one", (pin,)).make()
    assert not (tmp_path / "one").exists()
