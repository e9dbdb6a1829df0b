"""Killed at any moment, a training leaves no half-written file under a final name, and no old run harmed.

Serves: phlox/train/observers/folder/run_folder.py
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from phlox.cli import main
from tests.cli.support import SMALL, run

KILL = """
import atexit, os, pathlib, signal
count = 0
atexit.register(lambda: print(f"calls: {{count}}"))
def dying(fn):
    def call(*args, **options):
        global count
        count += 1
        if count == {at} and not {late}:
            os.kill(os.getpid(), signal.SIGKILL)
        result = fn(*args, **options)
        if count == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
os.fsync = dying(os.fsync)
pathlib.Path.replace = dying(pathlib.Path.replace)
pathlib.Path.rename = dying(pathlib.Path.rename)
pathlib.Path.unlink = dying(pathlib.Path.unlink)
"""


def check_whole(folder: Path) -> None:
    listed = set(json.loads((folder / "run.json").read_text())["files"]) if (folder / "run.json").exists() else set()
    for path in folder.iterdir():
        if re.fullmatch(r"\.phlox-[0-9a-f-]+\.tmp", path.name):
            continue
        assert path.name == "run.json" or path.name in listed or f"{path.name}/" in listed
        if path.is_dir():
            for file in path.glob("*.safetensors"):
                assert load_file(file)
            continue
        match path.suffix:
            case ".json":
                assert isinstance(json.loads(path.read_text()), dict)
            case ".jsonl":
                text = path.read_text()  # empty before the first epoch
                assert not text or (text.endswith("}\n") and [json.loads(line) for line in text.splitlines()])
            case ".safetensors":
                assert len(load_file(path)) == 6
            case ".html":
                assert path.read_text().rstrip().endswith("</html>")
            case ".npz":
                with np.load(path) as arrays:
                    outputs = arrays["probabilities"] if path.name == "predictions.npz" else arrays["output0"]
                    assert outputs.shape == (len(outputs), 10)
            case ".png":
                with Image.open(path) as picture:
                    picture.load()
            case _:
                raise AssertionError(path)


@pytest.fixture(scope="module")
def calls(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often a training calls what can be killed."""
    base = tmp_path_factory.mktemp("calls")
    shutil.copytree(small_run, base / "run")
    (base / "small.json").write_text(SMALL)
    command = ["demo", "--config", base / "small.json", "--out", base / "run", "--overwrite"]
    done = run(*command, before=KILL.format(at=0, late=0))
    return int(done.stdout.split("calls: ")[1])


# From the first call on, or from the last: the old run gives way to the new one in the last eight.
@pytest.mark.full
@pytest.mark.parametrize(("at", "late"), [
    (8, False), (-8, True), (1, False), (3, True), (14, True), (21, False), (28, True), (42, True),
    (-9, True), (-8, False), (-7, True), (-6, True), (-3, False), (-1, True),
])  # fmt: skip
def test_killed(at: int, late: bool, own_run: Path, calls: int) -> None:
    base = own_run.parent
    (base / "small.json").write_text(SMALL)
    command = ["demo", "--config", str(base / "small.json"), "--seed", "5", "--out", str(own_run), "--overwrite"]
    old = (own_run / "model.safetensors").read_bytes()
    done = run(*command, before=KILL.format(at=at if at > 0 else calls + 1 + at, late=late))
    assert done.returncode == -signal.SIGKILL, (at, done.stdout, done.stderr)

    folders = {path.name: path for path in base.iterdir() if path.is_dir()}
    for folder in folders.values():
        check_whole(folder)
    kept = [path for path in folders.values() if (path / "model.safetensors").exists()]
    assert kept, "the old run is there, or the new one"
    if not any((path / "model.safetensors").read_bytes() == old for path in kept):
        assert json.loads((own_run / "run.json").read_text())["status"] == "finished"

    assert main(command) == 0
    assert sorted(path.name for path in base.iterdir()) == ["run", "small.json"]
    check_whole(own_run)
    assert len([*own_run.iterdir()]) == 11 and (own_run / "model.safetensors").read_bytes() != old
