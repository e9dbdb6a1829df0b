from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import phlox as px
from phlox.train.observers.folder.environment import command_line, environment


def test_the_environment() -> None:
    found = environment()
    assert found["packages"]["numpy"] == metadata.version("numpy") and found["phlox"] == px.__version__
    assert all(metadata.version(name) == version for name, version in found["packages"].items())
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3]))) and found["processors"] >= 1
    assert json.loads(json.dumps(found)) == found and found["device"] is None and found["seeds"] == {}


@pytest.mark.full
def test_the_commit_of_the_program(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    def run() -> Any:
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        done = subprocess.run(
            [sys.executable, tmp_path / "train.py"], env=path, capture_output=True, text=True, check=True, cwd="/"
        )
        return json.loads(done.stdout)

    (tmp_path / "train.py").write_text(
        "import json\nfrom phlox.train.observers.folder.environment import environment\n"
        "print(json.dumps(environment()['git']))"
    )
    assert run() is None
    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("there is no git")
    assert run() is None  # no commit yet
    git("add", "train.py")
    git("commit", "-qm", "first")
    assert run() == {"commit": git("rev-parse", "HEAD"), "modified": False}
    with (tmp_path / "train.py").open("a") as file:
        file.write("\n")
    assert run() == {"commit": git("rev-parse", "HEAD"), "modified": True}


def test_a_password_is_not_written_down() -> None:
    given = [
        "/a/b.py",
        "--password",
        "x",
        "--token=y",
        "--tokenizer",
        "bpe",
        "--secret",
        "--lr",
        "3",
        "data token",
        "z",
    ]
    assert command_line(given) == [
        "b.py", "--password", "***", "--token=***", "--tokenizer", "bpe", "--secret", "--lr", "3", "data token", "z",
    ]  # fmt: skip
    assert command_line([]) == []
