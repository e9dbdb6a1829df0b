"""The newest whole checkpoint is found, whatever has become of the others and of the list.

Serves: phlox/train/observers/checkpoints/files.py, phlox/train/observers/checkpoints/checkpoints.py
Serves: phlox/train/observers/checkpoints/catalog.py
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.distributed import save
from phlox.errors import RecordError, RunError, RunWarning
from phlox.record import Record, SafetensorsRecorder
from phlox.train.observers.checkpoints.catalog import Catalog
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.checkpoints.files import first_whole, whole
from tests.distributed import saving_support as support
from tests.distributed.saving_support import groups, together
from tests.train.fake_learner import FakeLearner, steps_in


def at_once(*arguments: Any, **options: Any) -> Checkpoints:
    return Checkpoints(*arguments, background=False, **options)


def steps(folder: Path) -> list[int]:
    return [int(path.stem[5:]) for path in sorted((folder / "checkpoints").glob("step-*"))]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A run with the checkpoints 3, 6, 9, and a best."""
    learner = FakeLearner(tmp_path / "run", at_once(best="validation/f1"))
    learner.scores = {1: 0.1, 2: 0.2, 3: 0.3}
    learner.fit(3)
    return tmp_path / "run"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_one_is_passed_over(three: Path, damage: Callable[[Path], None]) -> None:
    folder = three / "checkpoints"
    damage(folder / "step-00000009.safetensors")
    for path in (three, str(folder)):
        with pytest.warns(RunWarning, match=r"step-00000006\.safetensors is used.*step-00000009\.safetensors"):
            assert steps_in(Checkpoints.load(path)) == 6
    with pytest.warns(RunWarning) as found:
        assert Checkpoints.latest_in(three) == folder / "step-00000006.safetensors"
    assert found[0].filename == __file__
    with pytest.raises(RecordError, match="step-00000009"):
        Checkpoints.load(folder / "step-00000009.safetensors")
    for step in (3, 6):
        damage(folder / f"step-{step:08d}.safetensors")
    with pytest.raises(RunError, match=r"(?s)no undamaged checkpoint:.*step-00000009.*step-00000006.*step-00000003"):
        Checkpoints.load(three)
    damage(folder / "best.safetensors")
    with pytest.raises(RunError, match=r"best\.safetensors.*may be whole"):
        Checkpoints.best_in(three)


def sharded(folder: Path, processes: int) -> list[Path]:
    """Checkpoints of the steps 3 and 6, of two tensors, one of which is cut over the processes."""
    array = np.arange(24.0).reshape(4, 6)
    cuts = {rank: [(slice(rank, rank + 1), slice(0, 6))] for rank in range(4)}
    for step in (3, 6):
        members = groups(processes)
        together(members, lambda one, step=step: save(
            Record({"cut": support.sharded(array, one.rank, cuts), "all": array + step}), folder, step=step, group=one
        ).wait())  # fmt: skip
    return sorted(folder.glob("step-*"))


def test_a_damaged_part_is_passed_over(tmp_path: Path) -> None:
    first, second = sharded(tmp_path, 4)
    for part in sorted(second.glob("*.safetensors")):
        data = part.read_bytes()
        for damage, message in ((flip, "checksum does not match"), (truncate, "bytes, not"), (Path.unlink, "missing")):
            damage(part)
            with pytest.warns(RunWarning, match=f"(?s)step-00000003 is used.*{message}"):
                found = Checkpoints.load(tmp_path)
            assert found["all"].tensor.read()[0, 0] == 3.0
            part.write_bytes(data)
    flip(next(first.glob("*.safetensors")))
    flip(next(second.glob("*.safetensors")))
    with pytest.raises(RunError, match=r"(?s)no undamaged checkpoint:.*step-00000006.*step-00000003"):
        Checkpoints.load(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_share_what_is_to_be_verified_and_agree(tmp_path: Path, size: int) -> None:
    first, second = sharded(tmp_path, 4)
    flip(max(second.glob("*.safetensors"), key=lambda path: path.stat().st_size))

    def notices(rank: int) -> bool:
        try:
            whole(second, rank, size)
        except RecordError:
            return True
        return False

    assert [notices(rank) for rank in range(size)].count(True) == 1
    barrier, problems = threading.Barrier(size), dict[int, Any]()

    def of(rank: int) -> Path:
        def agreed(problem: str | None) -> str | None:
            problems[rank] = problem
            barrier.wait(20)
            found = next((one for one in problems.values() if one is not None), None)
            barrier.wait(20)
            return found

        return first_whole([second, first], rank, size, agreed)[0]

    with pytest.warns(RunWarning, match="step-00000003 is used") as warned, ThreadPoolExecutor(size) as pool:
        assert list(pool.map(of, range(size))) == [first] * size
    assert len(warned) == 1


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"checkpoints": 3}', '{"files": [], "best": null}'])
def test_without_a_list_the_names_are_enough(three: Path, text: str | None) -> None:
    path = three / "checkpoints" / "checkpoints.json"
    path.unlink() if text is None else path.write_text(text)
    assert steps_in(Checkpoints.load(three)) == 9 and steps_in(Checkpoints.best_in(three)) == 9
    (three / "checkpoints" / "step-00000009.safetensors").unlink()
    assert Checkpoints.latest_in(three).name == "step-00000006.safetensors"
    learner = FakeLearner(three, at_once(keep=1))
    learner.load_state(Checkpoints.load(three))
    learner.fit(3)
    assert steps(three) == [3, 6, 9], "what may be somebody else's is not deleted"


def test_listed_files_may_be_gone(three: Path) -> None:
    (three / "checkpoints" / "step-00000009.safetensors").unlink()
    assert Checkpoints.latest_in(three).name == "step-00000006.safetensors"


def test_after_going_back_the_newer_branch_counts(three: Path) -> None:
    learner = FakeLearner(three, at_once(every_steps=1, keep=3))
    learner.load_state(Checkpoints.load(three / "checkpoints" / "step-00000006.safetensors"))
    learner.call("on_fit_start")
    learner.train()
    learner.call("on_step_end")
    assert steps(three) == [6, 7, 9]
    assert Checkpoints.latest_in(three).name == "step-00000007.safetensors"
    learner.call("on_fit_end")


def test_of_a_newer_version(three: Path) -> None:
    folder = three / "checkpoints"
    listing = (folder / "checkpoints.json").read_text()
    (folder / "checkpoints.json").write_text(listing.replace('"format": 1', '"format": 2'))
    resumed = FakeLearner(three, at_once())
    resumed.is_resumed = True
    for call in (lambda: Checkpoints.load(three), lambda: resumed.fit(4)):
        with pytest.raises(RunError, match=r"checkpoints\.json: has version 2 .* install a newer one"):
            call()
    (folder / "checkpoints.json").write_text(listing)
    path = folder / "step-00000012.safetensors"
    record = Record({"x": 1}, {"checkpoint": '{"format": 2, "step": 12}'})
    SafetensorsRecorder().save(record, path)
    with pytest.raises(RunError, match="step-00000012.* has version 2 "):
        Checkpoints.load(three)
    data = (folder / "step-00000009.safetensors").read_bytes()
    path.write_bytes(data.replace(b'\\"schema\\":2', b'\\"schema\\":3'))
    assert path.read_bytes() != data
    with pytest.raises(RunError, match="step-00000012.*schema version 3.*install a newer one"):
        Checkpoints.load(three)


def test_nothing_to_load(tmp_path: Path, three: Path) -> None:
    with pytest.raises(RunError, match=r"runn: there is no such run; did you mean .*/run\?"):
        Checkpoints.load(tmp_path / "runn")
    (tmp_path / "bare").mkdir()
    with pytest.raises(RunError, match="bare: has no checkpoints"):
        Checkpoints.latest_in(tmp_path / "bare")
    assert not Checkpoints.exist_in(tmp_path / "bare") and not Checkpoints.exist_in(tmp_path / "runn")
    assert Checkpoints.exist_in(three) and Checkpoints.exist_in(three / "checkpoints")
    path = three / "checkpoints" / "step-00000003.safetensors"
    assert Checkpoints.latest_in(path) == path


def test_checkpoints_of_another_training_are_not_mixed(three: Path) -> None:
    before = {path.name: path.read_bytes() for path in (three / "checkpoints").iterdir()}
    with pytest.raises(RunError, match=r"another training \(step-00000009\.safetensors\); give resume=True"):
        FakeLearner(three, at_once()).fit(1)
    assert {path.name: path.read_bytes() for path in (three / "checkpoints").iterdir()} == before


def test_the_list_deletes_only_what_it_lists(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.json").write_text(json.dumps({
        "format": 1, "best": None, "checkpoints": [], "files": ["../outside.txt"],
    }))  # fmt: skip
    assert Catalog(tmp_path).files == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Checkpoints.exist_in(tmp_path)
