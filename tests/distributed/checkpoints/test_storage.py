"""Remote file systems through fsspec: what is committed, what is fetched, what is told.

fsspec's own file systems in memory and of local files stand for object stores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.distributed import latest, load, save
from phlox.distributed.checkpoints import committing, part_files
from phlox.distributed.checkpoints.owner import OWNER
from phlox.distributed.checkpoints.storage import LocalFolder, storage_of
from phlox.errors import DistributedError, ExtraNotInstalledError
from phlox.record import Record, RecordError
from phlox.record.formats.parts import INDEX
from tests.distributed.saving_support import ARRAYS, groups, record_of_rank, together, whole_record
from tests.record.support import assert_same_elements, assert_same_record

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/run"
        return
    system: Any = fsspec.filesystem("memory")
    yield "memory://bucket/run"
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def names(url: str) -> list[str]:
    system, root = fsspec.core.url_to_fs(url)
    return sorted(path.removeprefix(root).strip("/") for path in system.find(root))


def saved(url: str, size: int = 4, **options: Any) -> list[Any]:
    return together(groups(size), lambda group: save(record_of_rank(group.rank, size), url, group=group, **options))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_record_comes_back(url: str, size: int, asynchronous: bool) -> None:
    handles = saved(url, size, step=3, asynchronous=asynchronous)
    assert [handle.wait() for handle in handles] == [f"{url}/step-00000003"] * size
    for record in (load(url), load(url, step=3), load(f"{url}/step-00000003")):
        assert_same_record(record, whole_record(None if size == 1 else ""))
    assert len(names(url)) == size + 1
    assert latest(url) == 3


def test_without_a_step(url: str) -> None:
    saved(url, 4)
    saved(url, 2)
    assert_same_record(load(url), whole_record())
    assert len(names(url)) == 3 and INDEX in names(url)


def test_only_what_a_part_needs_is_fetched(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (part_files, committing):
        monkeypatch.setattr(module, "BLOCK", 48)
    saved(url)
    record = load(url)
    fetched: list[int] = []
    system = type(storage_of(url)._system)  # pyright: ignore[reportAttributeAccessIssue]
    plain = system.cat_file

    def cat_file(self: Any, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        data = plain(self, path, start=start, end=end, **more)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(system, "cat_file", cat_file)
    array = ARRAYS["layers.0.weight"]
    part = record["layers.0.weight"].tensor.read_part((slice(1, 2), slice(0, 6)))
    assert_same_elements(part, np.ascontiguousarray(array[1:2, :6]))
    assert fetched == [48]  # one row of a tile of four, in blocks of two rows
    fetched.clear()
    assert_same_elements(record["layers.0.weight"].tensor.read(), array)
    assert sorted(fetched) == [96] * 4


def test_the_index_commits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(url, 2, step=1)
    real = committing.encoded

    def killed(*arguments: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(committing, "encoded", killed)
    monkeypatch.setattr(committing, "_remove_own", lambda *arguments: None)  # as after SIGKILL
    errors = saved(url, 2, step=2)
    assert isinstance(errors[0], KeyboardInterrupt) and isinstance(errors[1], DistributedError)
    assert latest(url) == 1 and any(name.startswith("step-00000002/part-") for name in names(url))
    with pytest.raises(RecordError, match="no complete checkpoint of step 2; it has 1"):
        load(url, step=2)
    assert_same_record(load(url), whole_record())
    monkeypatch.setattr(committing, "encoded", real)
    saved(url, 2, step=3, keep=1)
    assert {name.partition("/")[0] for name in names(url)} == {"step-00000003"}


def test_a_save_that_did_not_end(url: str) -> None:
    with pytest.raises(RecordError, match="no complete checkpoint, none in it"):
        load(url)
    storage = storage_of(url)
    storage.prepare("")
    storage.write("part-0123abcd-00000.safetensors", b"")
    with pytest.raises(RecordError, match="no complete checkpoint, only what a save has left that did not end"):
        load(url)


def test_half_a_checkpoint(url: str) -> None:
    saved(url)
    storage = storage_of(url)
    name = next(name for name in storage.listing("") if name.endswith("-00001.safetensors"))
    storage.remove(name)
    with pytest.raises(RecordError, match=f"{name} is missing: .*'layers.0.weight'"):
        load(url)


def test_damage_is_told(url: str) -> None:
    saved(url, 1)
    storage = storage_of(url)
    (name,) = [name for name in storage.listing("") if name.endswith(".safetensors")]
    data = bytearray(storage.read(name))
    data[-1] ^= 1
    record = load(url)
    storage.write(name, bytes(data))
    with pytest.raises(RecordError, match=f"{name}: its checksum does not match"):
        read_all(record)
    storage.write(name, bytes(data[:-1]))
    with pytest.raises(RecordError, match=f"{name}: it ends at byte"):  # it was opened before its file lost its end
        read_all(record)


def read_all(record: Record) -> None:
    for entry in record.tensors.values():
        entry.tensor.read()


def test_one_writer_at_a_time(url: str) -> None:
    storage = storage_of(url)
    assert storage.create(OWNER, b"first") and not storage.create(OWNER, b"second")
    assert storage.read(OWNER) == b"first"
    storage.remove(OWNER)
    storage.remove(OWNER)
    assert OWNER not in storage.listing("")


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for call in (lambda: save(Record(), "s3://bucket/run"), lambda: load("s3://bucket/run")):
        with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'distributed'"):
            call()


def test_unknown_protocols_and_options() -> None:
    with pytest.raises(RecordError, match="floppy://disk: .*floppy"):
        load("floppy://disk")
    assert isinstance(storage_of("C:/windows"), LocalFolder) and isinstance(storage_of("a/b"), LocalFolder)
