"""Records in shards: what several processes save is one record again, wherever it is loaded; what fails is told to all.

Serves: phlox/distributed/checkpoints/{committing,part_files,savers,saving}.py
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from phlox.distributed import latest, load, save
from phlox.distributed.checkpoints import committing, part_files, saving
from phlox.distributed.checkpoints.savers import Group
from phlox.errors import DistributedError
from phlox.record import BFLOAT16, HALF, LazyTensor, PrecisionSettings, Record, RecordError, RecordWarning, TensorEntry
from phlox.record import load as load_any
from phlox.record.formats.parts import INDEX
from tests.distributed.saving_support import (
    ARRAYS,
    Board,
    groups,
    in_rows,
    record_of_rank,
    sharded,
    together,
    whole_record,
)
from tests.record.support import assert_same_elements, assert_same_record


def saved(folder: Path, size: int = 4, **options: Any) -> list[Any]:
    return together(groups(size), lambda group: save(record_of_rank(group.rank, size), folder, group=group, **options))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_several_processes_save_is_one_record(tmp_path: Path, size: int, asynchronous: bool) -> None:
    folder = tmp_path / "new" / "checkpoint"
    paths = [handle.wait() for handle in saved(folder, size, asynchronous=asynchronous)]
    assert paths == [str(folder)] * size
    for record in (load(folder), load_any(folder), load_any(folder / INDEX)):
        assert_same_record(record, whole_record(None if size == 1 else ""))
    names = {path.name for path in folder.iterdir()}
    assert len(names) == size + 1 and INDEX in names  # nothing else is left


def test_the_store_forgets_what_was_told(tmp_path: Path) -> None:
    members = groups(3)
    together(members, lambda group: save(record_of_rank(group.rank, 3), tmp_path, group=group))
    assert isinstance(members[0].store, Board) and members[0].store.is_empty
    assert latest(tmp_path) is None and (tmp_path / INDEX).exists()


def test_any_reader_of_safetensors_opens_the_files(tmp_path: Path) -> None:
    saved(tmp_path)
    found: dict[str, np.ndarray] = {}
    for path in tmp_path.glob("*.safetensors"):
        found |= safetensors.numpy.load_file(path)
    assert found["layers.0.weight@0:4,6:12"].tolist() == ARRAYS["layers.0.weight"][:4, 6:].tolist()
    assert found["embedding@9:10,0:3,0:2"].tolist() == ARRAYS["embedding"][9:].tolist()
    assert found["count@"] == 7
    assert len(found) == 4 + 4 + 4  # tiles, rows, and those that are whole, which are written once


def test_whole_tensors_are_shared_out_by_size(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full((100 + i,), i, np.float32) for i in range(8)}
    together(groups(4), lambda group: save(Record(arrays), tmp_path, group=group))
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) == 4 and max(sizes) < 1.2 * min(sizes)
    assert_same_record(load(tmp_path), Record(arrays))


@pytest.mark.parametrize("index", [(slice(2, 7), slice(3, 9)), (slice(0, 4), slice(0, 6)), (slice(5, 5), slice(0, 12))])
def test_a_part_of_another_layout(tmp_path: Path, index: tuple[slice, ...]) -> None:
    saved(tmp_path)
    part = load(tmp_path)["layers.0.weight"].tensor.read_part(index)
    assert_same_elements(part, np.ascontiguousarray(ARRAYS["layers.0.weight"][index]))


def test_precision_applies_to_what_is_written(tmp_path: Path) -> None:
    moments = "optimizer.states.1.state.moment_2"
    array = np.arange(32, dtype=np.float32).reshape(4, 8)

    def work(group: Group) -> Any:
        entries = {path: sharded(array, group.rank, in_rows(array, 2), path) for path in ("weight", moments)}
        entries["running"] = TensorEntry(LazyTensor.from_array(array), None, True)
        return save(
            Record({**entries, "n": np.arange(3)}), tmp_path, group=group, precision=PrecisionSettings("bf16", "i32")
        )

    together(groups(2), work)
    record = load(tmp_path)
    kept = {path: entry.tensor.dtype.name for path, entry in record.tensors.items()}
    assert kept == {"weight": "bfloat16", moments: "float32", "running": "float32", "n": "int32"}
    assert_same_elements(record["weight"].tensor.read(), array.astype(BFLOAT16.stored("", np.dtype(np.float32))))
    assert record.header is not None and record.header.precision == "float=bf16, int=i32"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_precision_loses_is_told(tmp_path: Path, asynchronous: bool) -> None:
    record = Record({"w": np.array([1.0, 1e-9], np.float32)})
    with pytest.warns(RecordWarning, match="1 values that are not zero became zero at float16.* in w"):
        save(record, tmp_path, precision=HALF, asynchronous=asynchronous).wait()
    with pytest.raises(RecordError, match="w: the value 70000.0 does not fit float16"):
        save(Record({"w": np.array([7e4])}), tmp_path, precision=HALF, asynchronous=asynchronous).wait()
    assert load(tmp_path)["w"].tensor.read().tolist() == [1.0, 0.0]


def test_steps(tmp_path: Path) -> None:
    assert latest(tmp_path) is None and latest(tmp_path / "nowhere") is None
    for step in (9, 10, 100):
        save(Record({"step": step}), tmp_path, step=step)
    assert latest(tmp_path) == 100
    assert load(tmp_path)["step"] == load_any(tmp_path)["step"] == load_any(tmp_path / "step-00000100")["step"] == 100
    assert load(tmp_path, step=9)["step"] == 9
    with pytest.raises(RecordError, match=r"no complete checkpoint of step 11; it has 9, 10, 100"):
        load(tmp_path, step=11)


def test_only_the_newest_steps_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        saved(tmp_path, 2, step=step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    saved(tmp_path, 2, step=1, keep=1)  # a training that was set back: what it has just saved stays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000004"]


@pytest.mark.parametrize("step", [None, 5])
def test_a_save_replaces_the_one_before(tmp_path: Path, step: int | None) -> None:
    saved(tmp_path, 4, step=step)
    former = load(tmp_path)
    kept = former["layers.0.weight"].tensor.read_part((slice(0, 4), slice(0, 6)))  # a view of a file that goes
    save(Record({"w": np.ones(3)}), tmp_path, step=step)
    assert_same_record(load(tmp_path), Record({"w": np.ones(3)}))
    assert_same_elements(kept, np.ascontiguousarray(ARRAYS["layers.0.weight"][:4, :6]))
    folder = tmp_path if step is None else tmp_path / "step-00000005"
    assert len(list(folder.iterdir())) == 2


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    save(Record({"w": np.ones(3)}), tmp_path, step=1)
    for path in (tmp_path / "notes.txt", tmp_path / "step-00000001" / "loss.csv"):
        path.write_text("mine")
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "mine").write_text("mine")
    save(Record({"w": np.ones(3)}), tmp_path, step=2, keep=1)
    assert (
        len(list(tmp_path.rglob("*mine*"))) + len(list(tmp_path.rglob("*.csv"))) + len(list(tmp_path.rglob("*.txt")))
        == 3
    )
    assert latest(tmp_path) == 2


def test_large_pieces_go_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "LARGEST", 300)
    saved(tmp_path, 2)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_same_record(load(tmp_path), whole_record())


def test_tensors_of_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (part_files, committing):
        monkeypatch.setattr(module, "BLOCK", 64)
    saved(tmp_path, 2, precision=HALF)
    record = load(tmp_path)
    for path in ("layers.0.weight", "layers.1.weight"):
        assert_same_elements(record[path].tensor.read(), ARRAYS[path].astype(np.float16))
        part = record[path].tensor.read_part((slice(1, 3), slice(5, 11)))
        assert_same_elements(part, np.ascontiguousarray(ARRAYS[path][1:3, 5:11].astype(np.float16)))


# --- asynchronous


def test_values_are_copied_before_an_asynchronous_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, released = np.arange(64.0).reshape(8, 8), threading.Event()
    original = saving.run

    def slow(job: Any, group: Group) -> str:
        assert released.wait(20.0)
        return original(job, group)

    monkeypatch.setattr(saving, "run", slow)
    entry = sharded(array, 0, in_rows(array, 1), "w")
    record = Record({"w": entry, "v": array, "half": TensorEntry(LazyTensor.from_array(array).astype(np.float32))})
    try:
        handle = save(record, tmp_path, asynchronous=True)
        expected = array.copy()
        array[:] = -1.0  # as a donated buffer
        assert not handle.is_done and "under way" in repr(handle)
    finally:
        released.set()
    assert handle.wait() == str(tmp_path)
    loaded = load(tmp_path)
    for path in ("w", "v"):
        assert_same_elements(loaded[path].tensor.read(), expected)
    assert_same_elements(loaded["half"].tensor.read(), expected.astype(np.float32))


def test_an_error_of_an_asynchronous_save_is_raised_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (group,) = groups(1)
    record = Record({"w": np.ones(3)})
    handle = save(record, tmp_path / "file", asynchronous=True, group=group)
    with pytest.raises(RecordError, match="it is a file; give a folder"):
        handle.wait()
    save(record, tmp_path / "a", asynchronous=True, group=group).wait()
    save(record, tmp_path / "file", asynchronous=True, group=group)
    with pytest.raises(RecordError, match="it is a file; give a folder"):
        save(record, tmp_path / "b", group=group)
    assert not (tmp_path / "b").exists()
    save(record, tmp_path / "b", group=group)


# --- what goes wrong


def test_an_error_in_one_process_is_raised_in_all(tmp_path: Path) -> None:
    saved(tmp_path, 4, step=1)
    array = np.full((8, 4), 7e4, np.float32)

    for bad in (0, 2):

        def work(group: Group, bad: int = bad) -> Any:
            mine = array if group.rank == bad else np.zeros_like(array)
            record = Record({"deep.w": sharded(mine, group.rank, in_rows(array, 4), "deep.w")})
            return save(record, tmp_path, step=2, group=group, precision=HALF)

        errors = together(groups(4), work)
        assert all(isinstance(error, (RecordError, DistributedError)) for error in errors)
        assert all("deep.w: the value 70000.0 does not fit float16" in str(error) for error in errors)
        others = [str(error) for rank, error in enumerate(errors) if rank != bad]
        assert all(f"process {bad} could not save" in text for text in others)
        assert latest(tmp_path) == 1
        assert not list(tmp_path.rglob("part-*")) or not list((tmp_path / ".phlox-step-00000002.unfinished").glob("*"))
    assert_same_record(load(tmp_path), whole_record())
    saved(tmp_path, 2, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize(
    "cuts, message",
    [
        ({0: [(slice(0, 4), slice(0, 4))]}, r"w: 1 parts have 16 of its 32 elements; .*wrote parts of it: 0"),
        (
            {0: [(slice(0, 5), slice(0, 4))], 1: [(slice(4, 8), slice(0, 4))]},
            r"w: \[0:5,0:4\] and \[4:8,0:4\] overlap; .*: 0, 1",
        ),
        ({}, r"w: 0 parts have 0 of its 32 elements; processes that wrote parts of it: none"),
    ],
)  # fmt: skip
def test_parts_must_make_up_each_tensor_once(tmp_path: Path, cuts: Any, message: str) -> None:
    array = np.zeros((8, 4))
    errors = together(
        groups(2), lambda group: save(Record({"w": sharded(array, group.rank, cuts, "w")}), tmp_path, group=group)
    )
    for error in errors:
        with pytest.raises(committing.RecordMismatchError, match=message):
            raise error  # pyright: ignore[reportGeneralTypeIssues]
    with pytest.raises(RecordError, match="no complete checkpoint"):
        load(tmp_path)


def test_processes_must_save_the_same_record(tmp_path: Path) -> None:
    errors = together(groups(3), lambda group: save(Record({f"w{group.rank // 2}": np.ones(3)}), tmp_path, group=group))
    for error in errors:
        assert isinstance(error, committing.RecordMismatchError)
        assert "process 2 saves other paths, dtypes or shapes than process 0" in str(error)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 2, step=1)

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(committing, "write_file", full)
    first, second = saved(tmp_path, 2, step=2)
    assert str(first) == f"cannot save {tmp_path / 'step-00000002'}: No space left on device"
    assert isinstance(second, (RecordError, DistributedError)) and "No space left on device" in str(second)
    assert latest(tmp_path) == 1


def test_a_process_that_never_comes(tmp_path: Path) -> None:
    members = groups(2, timeout=0.2)
    with pytest.raises(
        DistributedError, match=r"process 1 has not done its part of the save: nothing came from process 1 in 0.2 s"
    ):
        save(record_of_rank(0, 2), tmp_path, group=members[0])
    with pytest.raises(RecordError, match="no complete checkpoint"):
        load(tmp_path)


def test_a_folder_that_the_hosts_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "APPEARS", 0.3)
    errors = together(
        groups(2), lambda group: save(record_of_rank(group.rank, 2), tmp_path / f"host-{group.rank}", group=group)
    )
    for error in errors:
        with pytest.raises(DistributedError, match="processes 0 and 1 do not see each other's files there"):
            raise error  # pyright: ignore[reportGeneralTypeIssues]
    assert not (tmp_path / "host-1").exists()


@pytest.mark.parametrize(
    "record, options, message",
    [
        ({"w": 1}, {}, "expected a Record, got dict; a module gives one by model.into_record()"),
        (Record(), {"step": -1}, "step=-1; give a whole number of at least 0"),
        (Record(), {"step": True}, "step=True"),
        (Record(), {"step": 1, "keep": 0}, "keep=0; give a whole number of at least 1"),
        (Record(), {"keep": 2}, "keep= counts steps; give step= too"),
        (Record(unreadable={"z": "it is complex"}), {}, "z: it is complex"),
        (Record(), {"precision": "half"}, "precision='half'"),
        (Record(), {"storage_options": {"key": 1}}, "storage_options=.* are for a URL"),
    ],
)
def test_invalid_arguments(tmp_path: Path, record: Any, options: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        save(record, tmp_path, **options)
    assert not list(tmp_path.iterdir())
