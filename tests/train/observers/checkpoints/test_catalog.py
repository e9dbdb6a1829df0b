"""The best weights: which ones are kept, their names, and the list, also after a resume with other settings."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from phlox.errors import RunError
from phlox.train import Checkpoints
from phlox.train.observers.checkpoints import catalog as module
from phlox.train.observers.checkpoints.catalog import Catalog, Ranking, read_list
from phlox.train.observers.checkpoints.files import newest_first
from phlox.train.observers.folder.run_folder import RunFolder, claim
from tests.train.fake_learner import FakeLearner, at_once, listed, names, steps, steps_in

NAN = float("nan")


def fit(folder: Path, scores: list[float], *, resume: bool = False, **options: Any) -> FakeLearner:
    """An epoch, of three steps, for each score."""
    learner = FakeLearner(folder, at_once(best="validation/f1", **options))
    learner.scores = dict(enumerate(scores, start=1))
    if resume:
        learner.load_state(Checkpoints.load(folder))
    return learner.fit(len(scores))


def kept(folder: Path) -> list[int]:
    """The epochs of the best weights, by the list, by the files, and by their names."""
    held = listed(folder)
    assert held["best"] == (held["bests"][0] if held["bests"] else None)
    for rank, line in enumerate(held["bests"], start=1):
        assert steps_in(Checkpoints.best_in(folder, rank)) == line["step"]
        name = "best.safetensors" if rank == 1 else f"best-{line['step']:08d}.safetensors"
        assert line["file"] == name and line["size"] == (folder / "checkpoints" / name).stat().st_size
    with pytest.raises(RunError, match="is missing|of the best; Checkpoints"):
        Checkpoints.best_in(folder, len(held["bests"]) + 1)
    found = [name for name in names(folder / "checkpoints") if name.startswith("best")]
    assert sorted(found) == sorted(line["file"] for line in held["bests"])
    return [line["step"] // 3 for line in held["bests"]]


CASES: list[tuple[dict[str, Any], list[float], list[int]]] = [
    ({}, [0.1, 0.5, 0.5, 0.2], [2]),
    ({"ties": "last"}, [0.1, 0.5, 0.5, 0.2], [3]),
    ({"keep_best": 2}, [0.1, 0.5, 0.5, 0.2], [2, 3]),
    ({"keep_best": 2, "ties": "last"}, [0.5, 0.1, 0.5, 0.5], [4, 3]),
    ({"keep_best": 3}, [0.1, 0.2, 0.3, 0.4, 0.5], [5, 4, 3]),
    ({"keep_best": 3}, [0.5, 0.4, 0.3, 0.2, 0.1], [1, 2, 3]),
    ({"keep_best": 3, "mode": "min"}, [0.5, 0.4, 0.3, NAN, 0.1], [5, 3, 2]),
    ({"keep_best": 5}, [0.2, NAN, 0.3], [3, 1]),
    ({"keep_best": 2}, [NAN, NAN], []),
    ({"keep_best": 2, "mode": "max"}, [float("-inf"), 0.0, float("inf"), NAN], [3, 2]),
]


@pytest.mark.parametrize(("options", "scores", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_which_are_kept(tmp_path: Path, options: dict[str, Any], scores: list[float], expected: list[int]) -> None:
    learner = fit(tmp_path, scores, keep=1, **options)
    assert kept(tmp_path) == expected and not learner.events
    assert steps(tmp_path) == sorted({3 * epoch for epoch in (*expected, len(scores))})  # with the states at them
    flagged = [line["step"] // 3 for line in listed(tmp_path)["checkpoints"] if "best" in line]
    assert sorted(flagged) == sorted(expected)


@pytest.mark.every(3)
@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("keep_best", [1, 2, 4])
def test_resumed_at_any_epoch_it_ends_the_same(tmp_path: Path, keep_best: int, ties: str) -> None:
    chance = random.Random(keep_best)
    scores = [chance.choice([0.1, 0.2, 0.3, 0.4, NAN]) for _ in range(8)]
    ranked = [(-score, epoch if ties == "first" else -epoch) for epoch, score in enumerate(scores, 1) if score == score]
    expected = [abs(epoch) for _, epoch in sorted(ranked)][:keep_best]
    for at in range(1, 8):
        folder = tmp_path / str(at)
        fit(folder, scores[:at], keep_best=keep_best, ties=ties)
        learner = fit(folder, scores, resume=True, keep_best=keep_best, ties=ties)
        assert kept(folder) == expected and not learner.events


def test_another_number_at_a_resume(tmp_path: Path) -> None:
    scores = [0.5, 0.4, 0.3, 0.2]
    fit(tmp_path, scores[:2])
    fit(tmp_path, scores[:3], resume=True, keep_best=3)
    assert kept(tmp_path) == [1, 3]  # there are weights of no other
    learner = fit(tmp_path, [*scores, 0.6], resume=True, keep_best=1)
    assert kept(tmp_path) == [5]
    assert [text for _, text in learner.events] == []


def test_of_a_list_of_a_former_version(tmp_path: Path) -> None:
    fit(tmp_path, [0.5, 0.4])
    path = tmp_path / "checkpoints" / "checkpoints.json"
    held = json.loads(path.read_text())
    del held["bests"]
    path.write_text(json.dumps(held))
    learner = FakeLearner(tmp_path, at_once(best="validation/f1", keep_best=2))
    learner.callbacks[0].restore({"best": {"name": "validation/f1", "value": 0.5, "step": 3}})
    learner.is_resumed, learner.step, learner.epoch, learner.scores = True, 6, 2, {3: 0.45}
    learner.fit(3)
    assert [one["value"] for one in listed(tmp_path)["bests"]] == [0.5, 0.45] and not learner.events


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_that_is_lost_is_said_and_the_others_stay(tmp_path: Path, number: int) -> None:
    scores = [0.5, 0.4, 0.3]
    fit(tmp_path, scores, keep_best=3)
    lost = tmp_path / "checkpoints" / listed(tmp_path)["bests"][number]["file"]
    lost.unlink()
    left = [epoch for epoch in (1, 2, 3) if epoch != number + 1]
    assert steps_in(Checkpoints.best_in(tmp_path)) == 3 * left[0]
    learner = fit(tmp_path, [*scores, 0.1], resume=True, keep_best=3)
    assert len(learner.events) == 1 and f"validation/f1 was {scores[number]} at step" in learner.events[0][1]
    assert kept(tmp_path) == [*left, 4]


def test_without_a_list_the_files_say_it(tmp_path: Path) -> None:
    fit(tmp_path, [0.1, 0.5, 0.3], keep_best=2, ties="last")
    (tmp_path / "checkpoints" / "checkpoints.json").unlink()
    assert [steps_in(Checkpoints.best_in(tmp_path, rank)) for rank in (1, 2)] == [6, 9]


def test_arguments() -> None:
    saver = Checkpoints(best="validation/f1", keep_best=3, ties="last")
    assert "keep_best=3, ties='last'" in repr(saver)
    for options, message in (
        ({"keep_best": 0}, "keep_best=0; give a whole number"), ({"keep_best": None}, "keep_best=None; give"),
        ({"ties": "later"}, "ties='later'; give \"first\" or \"last\""),
    ):  # fmt: skip
        with pytest.raises(RunError, match=message):
            Checkpoints(best="validation/f1", **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RunError, match="keep_best and ties are about best="):
        Checkpoints(keep_best=2)
    with pytest.raises(TypeError, match="keep_best"):
        Checkpoints(save_top_k=3)  # pyright: ignore[reportCallIssue]


def test_each_of_several_is_written_in_the_background_too(tmp_path: Path) -> None:
    learner = FakeLearner(tmp_path, Checkpoints(best="validation/f1", keep_best=20, keep=1))
    learner.scores = {epoch: epoch * 0.01 for epoch in range(1, 21)}
    learner.fit(20)
    assert kept(tmp_path) == [*range(20, 0, -1)]


def line_of(folder: Path, step: int, **values: Any) -> dict[str, Any]:
    """A file of a step, or of best weights, and its line."""
    name = f"best-{step:08d}.safetensors" if values else f"step-{step:08d}.safetensors"
    (folder / name).write_bytes(b"weights")
    return {"file": name, "step": step, **values}


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def with_many(folder: Path, count: int = 200) -> Catalog:
    """A list of so many checkpoints, some of them with the best value, as a killed process leaves it."""
    catalog = Catalog(folder)
    for step in range(1, count + 1):
        for line in (line_of(folder, step), *([line_of(folder, step, value=float(step))] if step % 7 == 0 else [])):
            catalog.announce(line["file"])
            if "value" in line:
                catalog.add_best(line, Ranking("max", keep=2))
            else:
                catalog.add(line, None)
    return catalog


@pytest.mark.usefixtures("unsynced")
def test_a_long_list_is_read_as_it_was_at_any_moment(tmp_path: Path) -> None:
    catalog = with_many(tmp_path)
    assert (tmp_path / "checkpoints-added.jsonl").exists()
    killed = read_list(tmp_path)
    assert killed is not None and [path.name for path in newest_first(tmp_path)][:2] == [
        "step-00000200.safetensors", "step-00000199.safetensors",
    ]  # fmt: skip
    assert [line["step"] for line in killed["checkpoints"]] == [*range(1, 201)]
    assert [line["step"] for line in killed["checkpoints"] if "best" in line] == [189, 196]
    assert [best["step"] for best in killed["bests"]] == [196, 189] and killed["best"]["file"] == "best.safetensors"
    assert len([*tmp_path.glob("best*")]) == 2
    catalog.complete()
    assert not (tmp_path / "checkpoints-added.jsonl").exists()
    whole = read_list(tmp_path)
    assert whole is not None and {**whole, "files": []} == {**killed, "files": []}
    assert {*whole["files"]} == {path.name for path in tmp_path.iterdir()} - {module.LIST} <= {*killed["files"]}


@pytest.mark.usefixtures("unsynced")
def test_a_killed_one_goes_on_and_deletes_what_it_has_listed(tmp_path: Path) -> None:
    with_many(tmp_path)
    catalog = Catalog(tmp_path)
    line = line_of(tmp_path, 300)
    catalog.announce(line["file"])
    catalog.add(line, 2)
    assert [line["step"] for line in listed_in(tmp_path)] == [189, 196, 200, 300]  # the newest two, and the best
    assert len([*tmp_path.glob("step*")]) == 4 and not (tmp_path / "checkpoints-added.jsonl").exists()


def listed_in(folder: Path) -> list[dict[str, Any]]:
    found = read_list(folder)
    assert found is not None
    return found["checkpoints"]


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("change", [{"checkpoint": {"file": "x"}}, {"checkpoint": 3}, {"bests": 3}, {"file": "../x"}])
def test_changes_that_no_catalog_writes_are_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    catalog = with_many(tmp_path, 50)
    catalog.complete()
    before = read_list(tmp_path)
    assert catalog._list.append(change)
    assert read_list(tmp_path) == before


@pytest.mark.usefixtures("unsynced")
def test_a_run_folder_knows_the_changes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    folder = claim(run.path, "checkpoints/")
    with_many(folder)
    assert (folder / "checkpoints-added.jsonl").exists()
    run.complete()
    RunFolder(tmp_path / "run", overwrite=True).complete()  # it would refuse to delete what no run has written


@pytest.mark.usefixtures("unsynced")
def test_the_cost_of_a_checkpoint_does_not_grow_with_those_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value, **options: sizes.append(len(t := dumps(value, **options))) or t)
    checked: list[Any] = []
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **options: checked.append(path) or exists(path, **options))
    costs: list[int] = []
    for count in (100, 400):
        sizes.clear()
        checked.clear()
        (tmp_path / str(count)).mkdir()
        with_many(tmp_path / str(count), count)
        costs += [sum(sizes) + 100 * len(checked)]
    assert costs[1] <= 5 * costs[0]  # 13 times if each of them writes the whole list
