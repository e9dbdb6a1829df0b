"""Records in parts: what lies in several files is one record, all that is missing or damaged is told, with the paths.

Serves: phlox/record/formats/{assembled,parts}.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from phlox.host.mmap import taken_over
from phlox.record import Header, LazyTensor, PartsReader, Record, RecordError, TensorEntry, load
from phlox.record.formats import assembled
from phlox.record.formats.assembled import Part, gap_in, overlap, text_of, within
from phlox.record.formats.parts import INDEX, encoded, find_index
from phlox.record.header import SCHEMA
from phlox.record.io.byte_ranges import MappedFiles
from phlox.record.io.crc32 import crc32
from tests.record.golden.make import golden
from tests.record.support import assert_same_elements, assert_same_record

W = np.arange(96, dtype=np.float32).reshape(8, 12)
Cuts = list[tuple[tuple[int, int], ...]]
GRID: Cuts = [((0, 4), (0, 6)), ((0, 4), (6, 12)), ((4, 8), (0, 6)), ((4, 8), (6, 12))]
BRICKS: Cuts = [((0, 8), (0, 2)), ((0, 3), (2, 12)), ((3, 8), (2, 5)), ((3, 8), (5, 12))]
"""Parts that are no grid."""


def written(folder: Path, cuts: Cuts = GRID, array: np.ndarray = W, block: int = 64) -> Record:
    """A folder with one file for each part, written by the safetensors library, and its index."""
    parts: list[Part] = []
    files: dict[str, int] = {}
    for number, cut in enumerate(cuts):
        index = tuple([slice(start, stop) for start, stop in cut])
        values = np.ascontiguousarray(array[index])
        name = f"part-{number}.safetensors"
        safetensors.numpy.save_file({f"w@{text_of(index)[1:-1]}": values}, folder / name)
        data = values.tobytes()
        files[name] = (folder / name).stat().st_size
        sums = tuple([crc32(data[at : at + block]) for at in range(0, len(data), block)])
        parts.append(Part(index, name, files[name] - len(data), sums))
    w = TensorEntry(LazyTensor.from_array(array), "id-of-w")
    record = Record({"w": w, "n": {"a": [1, float("inf")]}}, {"k": "é"}, aliases={"tied": "w"})
    (folder / INDEX).write_bytes(encoded(record, Header.of(record, "parts", "as is"), {"w": parts}, files, block, 7))
    return record


def changed(folder: Path, change: Callable[[Any], object], *, sealed: bool = True) -> None:
    """Change the index, and its checksum with it."""
    index = json.loads((folder / INDEX).read_text())
    del index["crc32"]
    change(index)
    text = json.dumps(index, separators=(",", ":"))[:-1]
    (folder / INDEX).write_text(text + f',"crc32":"{crc32(text.encode()) if sealed else 0:08x}"}}')


@pytest.mark.parametrize("cuts", [GRID, BRICKS, [((0, 8), (0, 12))]])
@pytest.mark.parametrize("how", ["folder", "index", "reader"])
def test_one_record_of_all_files(tmp_path: Path, cuts: Cuts, how: str) -> None:
    written(tmp_path, cuts)
    path = tmp_path if how == "folder" else tmp_path / INDEX
    record = PartsReader().load(path) if how == "reader" else load(path)
    assert record.paths() == ["w", "n"] and record["n"] == {"a": [1, float("inf")]}
    assert dict(record.metadata) == {"k": "é"} and dict(record.aliases) == {"tied": "w"}
    assert record["w"].id == "id-of-w" and record.header is not None and record.header.format == "parts"
    assert_same_elements(record["tied"].tensor.read(), W)


@st.composite
def index_of(draw: st.DrawFn) -> tuple[slice, ...]:
    index: list[slice] = []
    for size in W.shape:
        start = draw(st.integers(0, size))
        index.append(slice(start, draw(st.integers(start, size))))
    return tuple(index)


@given(
    index=index_of(),
    cuts=st.sampled_from([GRID, BRICKS]),
    block=st.sampled_from([4, 64, 1 << 22]),
    verify=st.booleans(),
)
def test_any_part_is_made_of_those_that_overlap_it(
    tmp_path_factory: pytest.TempPathFactory, index: Any, cuts: Cuts, block: int, verify: bool
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    written(folder, cuts, block=block)
    tensor = load(folder, verify=verify)["w"].tensor
    assert_same_elements(tensor.read_part(index), np.ascontiguousarray(W[index]))
    assert_same_elements(tensor.read(), W)


def test_one_part_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    written(tmp_path)
    tensor = load(tmp_path)["w"].tensor
    part = tensor.read_part((slice(4, 8), slice(6, 12)))
    assert not part.flags.writeable and taken_over(part) is not None
    assert np.shares_memory(part, tensor.read_part((slice(5, 7), slice(6, 12))))
    whole = load_of_one(tmp_path / "one")
    assert taken_over(whole["w"].tensor.read()) is not None


def load_of_one(folder: Path) -> Record:
    folder.mkdir()
    written(folder, [((0, 8), (0, 12))])
    return load(folder)


def test_no_engine_is_imported(tmp_path: Path) -> None:
    written(tmp_path)
    program = (
        "import sys; from phlox.record import load; "
        f"assert load({str(tmp_path)!r})['w'].tensor.read().sum() == {W.sum()}; "
        "assert not {'jax', 'torch', 'fsspec', 'phlox.distributed'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("array", [np.array(3.5), np.array([True, False]), np.arange(5, dtype=np.uint8)])
def test_tensors_without_axes_and_of_one_byte(tmp_path: Path, array: np.ndarray) -> None:
    written(tmp_path, [tuple([(0, size) for size in array.shape])], array)
    tensor = load(tmp_path)["w"].tensor
    assert_same_elements(tensor.read(), array)
    assert_same_elements(tensor.read_part(tuple([slice(0, size) for size in array.shape])), array)


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("schema", range(2, SCHEMA + 1))
def test_folders_of_every_schema_are_read_for_ever(schema: int) -> None:
    record = load(GOLDEN / f"schema{schema}" / "parts")
    assert record.header is not None and record.header.schema == schema
    assert_same_record(record, golden())


# --- half a checkpoint, and damage


def test_all_that_is_missing_is_told(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "part-1.safetensors").unlink()
    with (tmp_path / "part-2.safetensors").open("ab") as file:
        file.write(b"more")
    size = (tmp_path / "part-2.safetensors").stat().st_size
    with pytest.raises(RecordError) as caught:
        load(tmp_path)
    assert str(caught.value).splitlines()[0].endswith("2 of 4 files are not as the index says:")
    assert "part-1.safetensors is missing: 'w'" in str(caught.value)
    assert f"part-2.safetensors has {size} bytes, not {size - 4}: 'w'" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_damaged_block_is_told_where_it_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "part-3.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last of its two blocks
    path.write_bytes(data)
    tensor = load(tmp_path)["w"].tensor
    assert_same_elements(tensor.read_part((slice(0, 5), slice(0, 12))), W[:5])
    for _ in range(2):
        with pytest.raises(RecordError, match=rf"{re.escape(str(tmp_path))}: w: part-3.safetensors: its checksum"):
            tensor.read_part((slice(7, 8), slice(11, 12)))
        with pytest.raises(RecordError, match="w: part-3.safetensors: its checksum does not match"):
            tensor.read()
    assert load(tmp_path, verify=False)["w"].tensor.read()[0, 0] == 0.0


@pytest.mark.parametrize("mapped", [True, False])
def test_a_block_of_a_mapped_file_is_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """What is read anew may have been damaged since, and is verified each time."""
    written(tmp_path)
    tensor = load(tmp_path)["w"].tensor
    sizes: list[int] = []
    monkeypatch.setattr(assembled, "crc32", lambda data: (sizes.append(len(data)), crc32(data))[1])
    monkeypatch.setattr(MappedFiles, "is_mapped", mapped)
    counts: list[int] = []
    for part in ((slice(0, 2), slice(0, 6)), (slice(0, 4), slice(0, 6)), (slice(0, 8), slice(0, 12))):
        for _ in range(2):
            sizes.clear()
            assert_same_elements(tensor.read_part(part), np.ascontiguousarray(W[part]))
            counts.append(len(sizes))
    # Each of the four parts has 96 bytes: two blocks, the first of 64.
    assert counts == ([1, 0, 1, 0, 6, 0] if mapped else [1, 1, 2, 2, 8, 8])


def test_every_byte_of_the_index_is_verified(tmp_path: Path) -> None:
    written(tmp_path)
    data = (tmp_path / INDEX).read_bytes()
    for at in range(0, len(data) - 1, 7):
        wrong = bytearray(data)
        wrong[at] ^= 1
        with pytest.raises(RecordError):
            load(damaged(tmp_path, bytes(wrong)) / INDEX)["w"].tensor.read()
    for length in range(0, len(data) - 1, 97):
        with pytest.raises(RecordError):
            load(damaged(tmp_path, data[:length]) / INDEX)


def damaged(folder: Path, data: bytes) -> Path:
    (folder / INDEX).write_bytes(data)
    return folder


def test_an_index_that_was_edited_is_refused_unless_told(tmp_path: Path) -> None:
    written(tmp_path)
    changed(tmp_path, lambda index: index["metadata"].update(k="new"), sealed=False)
    with pytest.raises(RecordError, match="the checksum of the index does not match: .*verify=False"):
        load(tmp_path)
    assert load(tmp_path, verify=False).metadata["k"] == "new"


def entry(index: Any) -> Any:
    return index["entries"][0]


def first_part(field: int, value: Any) -> Callable[[Any], object]:
    return lambda index: entry(index)["parts"][0].__setitem__(field, value)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda index: index["parts"].update(schema=99), "it has schema version 99"),
        (lambda index: index["parts"].update(format="json"), "it claims the format 'json'"),
        (lambda index: index["parts"].update(block=0), "its blocks have 0 bytes"),
        (lambda index: index["files"].append(["../secret", 3]), "'../secret'; files lie beside the index"),
        (lambda index: index["files"].append(["", 3]), "files lie beside the index"),
        (lambda index: index["entries"].append(index["entries"][1]), "it has 'n' twice"),
        (lambda index: index["aliases"].update(x="nowhere"), "alias of 'nowhere'"),
        (lambda index: entry(index).update(dtype="f7"), "w: 'f7' is not an element type"),
        (lambda index: entry(index).update(shape=[-8, 12]), "w: a shape is a list of whole numbers"),
        (lambda index: entry(index).update(shape=[2**40, 2**40]), "w: shape .* overflows"),
        (lambda index: entry(index).update(shape=[8, 13]), r"w: 4 parts have 96 of its 104 elements"),
        (lambda index: entry(index).update(shape=[96]), "w: a part of 2 axes"),
        (lambda index: entry(index)["parts"].pop(), r"w: 3 parts have 72 of its 96 elements"),
        (lambda index: entry(index)["parts"].append(entry(index)["parts"][0]), r"w: \[0:4,0:6\] and \[0:4,0:6\] over"),
        (first_part(0, 9), "w: a part of 2 axes, or in file 9"),
        (first_part(0, -1), "w: a part of 2 axes, or in file -1"),
        (first_part(1, 10**9), "w: its part in part-0.safetensors does not fit"),
        (first_part(1, -1), "w: its part in part-0.safetensors does not fit"),
        (first_part(4, "00"), "w: its part in part-0.safetensors .* no checksums"),
        (first_part(4, "xy"), "not a valid parts record"),
        (first_part(3, [4, 99]), r"w: \[0:4,0:99\] is not within its shape"),
        (first_part(2, [4, 0]), r"w: \[4:4,0:6\] is not within its shape"),
        (lambda index: index["entries"][1].pop("value"), "not a valid parts record"),
        (lambda index: index.pop("files"), "not a valid parts record"),
    ],
)  # fmt: skip
def test_what_a_stranger_could_write_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    written(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(RecordError, match=message):
        load(tmp_path)


def test_other_bytes_than_booleans_are_refused(tmp_path: Path) -> None:
    written(tmp_path, [((0, 2),)], np.array([True, False]))
    path = tmp_path / "part-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x02")
    with pytest.raises(RecordError, match="w: it holds bytes other than 0 and 1 as booleans"):
        load(tmp_path, verify=False)["w"].tensor.read()


def test_in_memory_there_is_no_beside(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(RecordError, match="load it from its folder"):
        load((tmp_path / INDEX).read_bytes())


# --- folders


def test_the_newest_complete_step_of_a_folder_is_read(tmp_path: Path) -> None:
    for step in (2, 10):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        written(folder)
    (tmp_path / "step-00000011").mkdir()
    assert find_index(tmp_path) == tmp_path / "step-00000010" / INDEX
    assert_same_elements(load(tmp_path)["w"].tensor.read(), W)


@pytest.mark.parametrize("left", ["step-00000003", ".phlox-step-00000003.unfinished"])
def test_a_folder_with_nothing_but_a_save_that_did_not_end(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir()
    with pytest.raises(RecordError, match="no complete checkpoint, only files of a save that did not end"):
        load(tmp_path)


def test_a_folder_without_its_index(tmp_path: Path) -> None:
    (tmp_path / "part-0123abcd-00000.safetensors").write_bytes(b"")
    with pytest.raises(RecordError, match=f"it has no {INDEX}, which is written last: this save did not end"):
        load(tmp_path)


# --- parts of tensors


boxes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)), max_size=6)


@given(boxes)
def test_whether_parts_make_up_a_tensor(found: list[tuple[int, int, int, int]]) -> None:
    indexes = [(slice(a, b), slice(c, d)) for a, b, c, d in found if a < b and c < d]
    count = np.zeros((4, 4), int)
    for index in indexes:
        count[index] += 1
    assert (gap_in(indexes, (4, 4)) is None) == bool((count == 1).all())


@given(st.lists(st.integers(1, 5), max_size=4), st.lists(st.integers(1, 5), max_size=4), st.integers(0, 30))
def test_grids_and_what_is_nearly_one(rows: list[int], columns: list[int], missing: int) -> None:
    ends = [np.cumsum([0, *sizes, 2]).tolist() for sizes in (rows, columns)]
    grid = [
        (slice(a, b), slice(c, d))
        for a, b in zip(ends[0], ends[0][1:], strict=False)
        for c, d in zip(ends[1], ends[1][1:], strict=False)
    ]
    shape = ends[0][-1], ends[1][-1]
    assert gap_in(grid, shape) is None
    assert gap_in(grid[::-1], shape) is None
    assert gap_in([*grid, grid[missing % len(grid)]], shape) is not None
    assert gap_in([one for i, one in enumerate(grid) if i != missing % len(grid)], shape) is not None


def test_what_two_parts_share() -> None:
    a, b = (slice(0, 4), slice(2, 6)), (slice(3, 9), slice(0, 3))
    assert overlap(a, b) == overlap(b, a) == (slice(3, 4), slice(2, 3))
    assert overlap(a, (slice(4, 5), slice(2, 6))) is None
    assert within((slice(3, 4), slice(2, 3)), b) == (slice(0, 1), slice(2, 3))
