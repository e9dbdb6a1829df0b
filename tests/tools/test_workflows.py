"""The files for GitHub and pre-commit: valid, and of one mind with pyproject.toml, the Makefile and the tools.

Serves: .github/
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tools.environments import ROOT, supported
from tools.versions import AT_EACH_CHANGE, ENVIRONMENTS

yaml: Any = pytest.importorskip("yaml")  # which the tests' transformers bring

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILES = [".pre-commit-config.yaml", *(str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml"))]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_it_is_yaml(name: str) -> None:
    assert isinstance(read(name), dict)


def test_pre_commit_has_the_ruff_that_lints() -> None:
    [pinned] = [one for one in PROJECT["optional-dependencies"]["lint"] if one.startswith("ruff")]
    [rev] = [repo["rev"] for repo in read(".pre-commit-config.yaml")["repos"] if "ruff" in repo["repo"]]
    assert f"ruff=={rev.removeprefix('v')}" == pinned


def test_every_part_of_the_check_is_run_on_github() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    parts = re.search(r"set -- (.*)", script)
    assert parts is not None
    jobs = read(".github/workflows/check.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for part in parts[1].split():
        assert any(re.match(rf"(\.ci/run|make) {part}\b", command) for command in commands), part
    rows = jobs["versions"]["strategy"]["matrix"]["include"]
    lowest, newest = supported()["python"]
    pythons = [newest if name.endswith("newest") else lowest for name in AT_EACH_CHANGE]
    assert [(row["environment"], row["python"]) for row in rows] == list(zip(AT_EACH_CHANGE, pythons, strict=True))


def test_prereleases_are_tried_once_a_week_alone() -> None:
    check = read(".github/workflows/check.yml")
    job = check["jobs"]["prereleases"]
    assert job["if"] == "github.event_name != 'push' && github.event_name != 'pull_request'"
    assert sorted(job["strategy"]["matrix"]["environment"]) == sorted(set(ENVIRONMENTS) - set(AT_EACH_CHANGE))
    [schedule] = check[True]["schedule"]
    assert schedule["cron"].split()[2:] == ["*", "*", "1"]


def test_actions_are_pinned_by_their_commit_with_the_tag_beside_it() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    used = re.findall(r"uses: (.*)", text)
    pins = [re.fullmatch(r"([\w/-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in used]
    assert used and all(pins), used
    actions = {pin.groups() for pin in pins if pin}
    assert len(actions) == len({name for name, _, _ in actions}), "one action has two pins"


def test_a_tag_is_checked_before_it_is_published() -> None:
    release = read(".github/workflows/release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # `on`, which is a truth value in YAML 1.1
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert any(step.get("run", "").startswith("make release") for step in build["steps"])
    [setup] = [step["with"] for step in build["steps"] if "setup-python" in step.get("uses", "")]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert sorted(re.findall(r"3\.\d+", setup["python-version"])) == promised
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    assert release["permissions"] == {"contents": "read"}


def test_the_pythons_are_those_that_are_promised() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    jobs = read(".github/workflows/check.yml")["jobs"]
    for job in ("test", "systems"):
        assert jobs[job]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"
    assert supported()["python"] == (promised[0], promised[-1])
