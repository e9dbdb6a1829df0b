"""`make release`: what makes a version, an archive or metadata wrong, and which environments there are.

Serves: tools/release.py, tools/release_smoke.py
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tools import release
from tools.environments import Environment, Skipped, name_of, project
from tools.release import Release, Wrong
from tools.release_smoke import CHECKS

LOG = "# Changelog\n\n## [Unreleased]\n{new}\n## [{version}]{date}\n\n- x\n\n## [0.1.0]\n\n- y\n"


def log(version: str = "0.2.0", date: str = " - 2026-11-26", new: str = "") -> str:
    return LOG.format(version=version, date=date, new=new)


def test_a_version_that_can_be_released() -> None:
    assert release.check_version("0.2.0", log(), ["v0.1.0"]) == "2026-11-26"
    assert release.check_version("0.10.0", log("0.10.0"), []) == "2026-11-26"
    assert release.check_version("0.2.0", log(), ["v0.2.0"], "v0.2.0") == "2026-11-26"
    with pytest.raises(Wrong, match=r"the tag v0\.3\.0 is not that of 0\.2\.0, which is v0\.2\.0"):
        release.check_version("0.2.0", log(), [], "v0.3.0")


@pytest.mark.parametrize(
    "version, changelog, tags, says",
    [
        ("0.2.0", log(), ["v0.2.0"], "0.2.0 has a tag"),
        ("0.2.0", log(new="\n- more\n"), [], "entries under [Unreleased]: move them to [0.2.0]"),
        ("0.3.0", log(), [], "does not have [0.3.0] after [Unreleased]"),
        ("0.1.0", log("0.1.0"), [], "0.1.0 is not above 0.1.0"),
        ("0.0.9", log("0.0.9"), [], "0.0.9 is not above 0.1.0"),
        ("0.2.0", log(date=""), [], "no date for [0.2.0]"),
        ("0.2.0", log(date=" - soon"), [], "no date for [0.2.0]"),
        ("0.2.0.dev1", log("0.2.0.dev1"), [], "no version of a release"),
        ("0.2.0", "# Changelog\n\n## [0.2.0] - 2026-11-26\n", [], "does not begin with [Unreleased]"),
        ("0.2.0", "", [], "does not begin with [Unreleased]"),
    ],
)
def test_a_version_that_cannot(version: str, changelog: str, tags: list[str], says: str) -> None:
    with pytest.raises(Wrong, match=re.escape(says)):
        release.check_version(version, changelog, tags)


def test_what_an_archive_lacks_or_has_too_much_is_named() -> None:
    tracked = ["src/phlox/a.py", "src/phlox/k.cpp", "docs/a.md"]
    whole = release.of_wheel(tracked, "phlox-1.dist-info")
    assert {"phlox/a.py", "phlox/k.cpp", "phlox-1.dist-info/licenses/LICENSE"} < whole and "docs/a.md" not in whole
    assert release.differences("the wheel", whole, whole) == []
    found = release.differences("the wheel", whole - {"phlox/k.cpp"} | {"phlox/b.py"}, whole)
    assert found == ["the wheel lacks phlox/k.cpp", "the wheel has phlox/b.py, which git does not track"]


def metadata(**changed: str) -> Message:
    here, made = project(), Message()
    values = {
        "Name": "phlox", "Version": "1.0", "Requires-Python": here["requires-python"],
        "Description-Content-Type": "text/markdown", "License-Expression": here["license"],
    } | {key.replace("_", "-"): value for key, value in changed.items()}  # fmt: skip
    for key, value in values.items():
        made[key] = value
    for extra in here["optional-dependencies"]:
        made["Provides-Extra"] = extra
    for name, extras, versions, marker in release.asked_for():
        made["Requires-Dist"] = f"{name}{f'[{extras}]' if extras else ''}{versions}; {marker.replace('and', ' and ')}"
    return made


def test_metadata_say_what_pyproject_says() -> None:
    release.check_metadata(metadata(), "1.0")
    with pytest.raises(Wrong, match=r"have Version '1\.0', not '2\.0'"):
        release.check_metadata(metadata(), "2.0")
    with pytest.raises(Wrong, match="have Requires-Python '>=3.6'"):
        release.check_metadata(metadata(Requires_Python=">=3.6"), "1.0")
    more = metadata()
    more["Requires-Dist"] = "surprise>=1"
    with pytest.raises(Wrong, match="do not ask for the same: .*surprise"):
        release.check_metadata(more, "1.0")
    more = metadata()
    more["Provides-Extra"] = "surprise"
    with pytest.raises(Wrong, match="have the extras .*surprise"):
        release.check_metadata(more, "1.0")


def archives_of(folder: Path, mode: int = 0o644, owner: str = "", second: int = 30) -> tuple[Path, Path]:
    """An sdist and a wheel with one file each, of a year that zip files can have."""
    folder.mkdir()
    time = datetime.datetime(2026, 11, 26, 1, 2, second, tzinfo=datetime.UTC)
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("phlox-1/a.py")
        entry.mode, entry.uname, entry.mtime = mode, owner, int(time.timestamp())
        archive.addfile(entry)
    with zipfile.ZipFile(folder / "a.whl", "w") as archive:
        info = zipfile.ZipInfo("phlox/a.py", time.timetuple()[:6])
        info.external_attr = (0o100000 | mode) << 16
        archive.writestr(info, "")
    return folder / "a.tar.gz", folder / "a.whl"


def test_archives_do_not_say_who_built_them_and_when(tmp_path: Path) -> None:
    epoch = int(datetime.datetime(2026, 11, 26, 1, 2, 30, tzinfo=datetime.UTC).timestamp())
    plain = archives_of(tmp_path / "plain")
    assert release.entry_problems(*plain, epoch) == []
    assert release.entry_problems(*archives_of(tmp_path / "odd", second=31), epoch + 1) == []  # as a zip file rounds
    private = release.entry_problems(*archives_of(tmp_path / "private", mode=0o600), epoch)
    assert [line.split(" has ")[0] for line in private] == ["phlox-1/a.py", "phlox/a.py"]
    assert private[0].startswith("phlox-1/a.py has the mode 600,")
    assert len(release.entry_problems(*archives_of(tmp_path / "owned", owner="ann"), epoch)) == 1
    assert len(release.entry_problems(*plain, epoch + 4)) == 2


def test_what_a_bill_of_materials_lacks_is_named() -> None:
    parts = [{"name": "numpy", "version": "2.4.6", "purl": "pkg:pypi/numpy@2.4.6"}, {"name": "jax", "version": "0.10"}]
    root = {"component": {"name": "phlox", "version": "1.0"}}
    bill = {"bomFormat": "CycloneDX", "metadata": root, "components": parts}
    assert release.sbom_problems(bill, "1.0", ["numpy==2.4.6"]) == []
    found = release.sbom_problems(bill, "1.1", ["numpy==2.4.6", "numpy==2.4.7", "jax==0.10"])
    assert found == ["it is of phlox 1.0", "it lacks jax==0.10", "it lacks numpy==2.4.7"]
    assert release.sbom_problems({}, "1.0", []) == ["it is not of CycloneDX", "it is of None None"]


def test_a_bill_of_materials_is_that_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = {"component": {"name": "phlox", "version": "1.0"}}
    part = {"name": "numpy", "version": "2.4.6", "purl": "pkg:pypi/numpy@2.4.6"}
    bill = json.dumps({"bomFormat": "CycloneDX", "metadata": root, "components": [part]})

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "cyclonedx_py" not in command:
            return subprocess.CompletedProcess(command, 0, "numpy==2.4.6\n", "")
        page = Path(command[command.index("--pyproject") + 1]).read_text(encoding="utf-8")
        assert tomllib.loads(page)["project"]["version"] == "1.0" and options["env"]["SOURCE_DATE_EPOCH"] == "7"
        return subprocess.CompletedProcess(command, 0, bill, "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(release, "epoch", lambda: 7)
    monkeypatch.setattr(release, "SBOMS", tmp_path / "build")
    with pytest.raises(Skipped, match="there is no environment x"):
        release.sbom("1.0", Environment("x", ("numpy",)))
    monkeypatch.setattr(Environment, "is_there", True)
    assert release.sbom("1.0", Environment("x", ("numpy",))).endswith("phlox-1.0.cdx.json, 1 packages")


def test_the_builders_are_pinned() -> None:
    assert all(re.fullmatch(r"[\w\[\]-]+==[\d.]+", one) for one in (*release.BUILDERS, release.SBOM_TOOL))


def test_environments_hold_one_cpu_build_of_torch() -> None:
    for extra in release.extras():
        torch = [pin for pin in release.pins_of(extra) if name_of(pin) == "torch"]
        assert torch == ([release.TORCH] if extra in ("torch", "all") else [])
    assert len(release.pins_of("bare")) == len(project()["dependencies"])
    assert release.extras() == [*dict.fromkeys(release.extras())] and set(release.extras()) == set(CHECKS)


def test_this_python_is_found_and_one_that_is_not_here_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert release.python_for("{}.{}".format(*sys.version_info)) == sys.executable
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    with pytest.raises(Skipped, match=r"there is no Python 3\.2 here"):
        release.python_for("3.2")


def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        works = "3.99.10" in command[0]
        return subprocess.CompletedProcess(command, not works, "3.99\n" if works else "", "pyenv: not found")

    for name in ("3.99.9", "3.99.10", "3.98.1"):
        (tmp_path / "versions" / name).mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/shims/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    assert release.python_for("3.99") == str(tmp_path / "versions" / "3.99.10" / "bin" / "python")


def test_links_that_lead_nowhere_on_the_index() -> None:
    page = "[a](docs/a.md#b) [b](https://b.org) ![c](c.svg)\n```sh\n[x](y)\n```\n[m](mailto:a@b.org) [d](#d)"
    page += '<img width="8" src="e.svg">'
    assert release.relative_links(page) == ["c.svg", "docs/a.md", "e.svg"]


def test_what_failed_and_what_was_skipped_is_in_the_table() -> None:
    def skipped() -> str:
        raise Skipped("there is no Python 3.14 here")

    def failed() -> str:
        raise Wrong("the wheel lacks a\nthe wheel lacks b")

    checked = Release()
    assert checked.check("one", lambda: "fine") and checked.check("two", skipped) and not checked.failed
    assert not checked.check("three", failed) and checked.failed
    lines = release.table(checked.rows).splitlines()
    assert [line.split()[:2] for line in lines] == [["one", "ok"], ["two", "skipped"], ["three", "FAILED"]]
    assert lines[1].endswith("there is no Python 3.14 here") and lines[2].endswith("the wheel lacks a")


def test_what_is_left_to_a_person() -> None:
    text = release.left_to_do("9.8.7", ["docs/a.md"], ["3.13 torch"])
    for part in ("3.13 torch", "git tag -a v9.8.7", "git push", "twine upload dist/phlox-9.8.7*", "announce"):
        assert part in text
    assert "1 relative links" in text and "relative links" not in release.left_to_do("9.8.7", [], [])


def test_an_environment_of_another_python_is_known_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.environments.version_of", lambda base: f"version of {base}")
    one, other = (Environment("x", ("numpy",), base=base) for base in ("a", "b"))
    assert one._holds() != other._holds()
