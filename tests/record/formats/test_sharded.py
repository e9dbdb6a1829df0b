"""Indexes of shards: what transformers writes, what must be refused, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from phlox.record import Record, RecordError, SafetensorsRecorder, ShardedReader, load

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ARRAYS = {"a.weight": np.arange(6.0).reshape(2, 3), "b.weight": np.arange(4, dtype=np.int32), "c": np.array([True])}
SHARDS = {FIRST: ["a.weight", "c"], SECOND: ["b.weight"]}


def written(
    folder: Path, shards: dict[str, list[str]] = SHARDS, index: Any = None, arrays: dict[str, Any] = ARRAYS
) -> Path:
    """A folder of shards, written by the safetensors library, and its index."""
    for name, paths in shards.items():
        safetensors.numpy.save_file({path: arrays[path] for path in paths}, folder / name, {"format": "pt"})
    weight_map = {path: name for name, paths in shards.items() for path in sorted(paths)}
    if index is None:
        index = {"metadata": {"total_size": 65, "by": "hand"}, "weight_map": dict(sorted(weight_map.items()))}
    path = folder / INDEX
    path.write_text(index if isinstance(index, str) else json.dumps(index, indent=2))
    return path


def same(record: Record, arrays: dict[str, Any]) -> bool:
    return set(record) == set(arrays) and all(
        record[path].tensor.dtype == array.dtype and np.array_equal(record[path].tensor.read(), array)
        for path, array in arrays.items()
    )


@pytest.mark.parametrize("how", ["reader", "load", "folder"])
def test_one_record_of_all_shards(tmp_path: Path, how: str) -> None:
    path = written(tmp_path)
    record = {
        "reader": lambda: ShardedReader().load(path),
        "load": lambda: load(path),
        "folder": lambda: load(tmp_path),
    }[how]()
    assert same(record, ARRAYS)
    assert record.paths() == ["a.weight", "b.weight", "c"]  # as the index says
    assert record.metadata == {"format": "pt", "total_size": "65", "by": "hand"}


def test_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=8)
    )
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    record = load(tmp_path)
    state = {path: tensor.numpy() for path, tensor in model.state_dict().items() if path != "lm_head.weight"}
    assert same(record, state)


def test_shards_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight_map = {}
    for name, paths in {"pytorch_model-1.bin": ["a.weight", "c"], "pytorch_model-2.bin": ["b.weight"]}.items():
        torch.save({path: torch.from_numpy(ARRAYS[path]) for path in paths}, tmp_path / name)
        weight_map |= dict.fromkeys(paths, name)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert same(load(tmp_path), ARRAYS)


def test_each_shard_is_opened_once_and_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import phlox.record.formats.sharded as module

    opened: list[str] = []
    open_source = module.open_source
    monkeypatch.setattr(module, "open_source", lambda path, *args: opened.append(path.name) or open_source(path, *args))
    record = load(written(tmp_path))
    assert sorted(opened) == [FIRST, SECOND]
    array = record["a.weight"].tensor.read()
    assert not array.flags.writeable and array.base is not None  # a view of the mapped file


def test_shards_of_our_own_keep_ids_and_aliases(tmp_path: Path) -> None:
    from phlox.record import LazyTensor, TensorEntry

    entry = TensorEntry(LazyTensor.from_array(np.ones(3)), "an-id")
    SafetensorsRecorder().save(Record({"w": entry, "step": 3}, aliases={"v": "w"}), tmp_path / "s.safetensors")
    (tmp_path / INDEX).write_text('{"weight_map": {"v": "s.safetensors"}}')
    record = load(tmp_path / INDEX)
    assert (record.paths(), dict(record.aliases), record["step"], record["v"].id) == (
        ["w", "step"],
        {"v": "w"},
        3,
        "an-id",
    )


def test_a_compressed_index(tmp_path: Path) -> None:
    import gzip

    path = written(tmp_path)
    (tmp_path / f"{INDEX}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert same(load(tmp_path / f"{INDEX}.gz"), ARRAYS)


def test_what_the_index_does_not_know_is_there_for_the_report(tmp_path: Path) -> None:
    path = written(tmp_path, index={"weight_map": {"b.weight": SECOND, "a.weight": FIRST}})
    record = load(path)
    assert record.paths() == ["b.weight", "a.weight", "c"]


BAD: dict[str, tuple[Any, str]] = {
    "out of the folder": (
        {"weight_map": {"a.weight": "../x.safetensors"}},
        r"'a.weight'.*'../x.safetensors'.*no folder",
    ),
    "absolute": ({"weight_map": {"a.weight": "/etc/passwd"}}, "no folder"),
    "a separator of Windows": ({"weight_map": {"a.weight": "a\\b.safetensors"}}, "no folder"),
    "a drive": ({"weight_map": {"a.weight": "c:x.safetensors"}}, "no folder"),
    "the folder": ({"weight_map": {"a.weight": "."}}, "no folder"),
    "the folder above": ({"weight_map": {"a.weight": ".."}}, "no folder"),
    "no name": ({"weight_map": {"a.weight": ""}}, "no folder"),
    "a NUL": ({"weight_map": {"a.weight": "a\0b"}}, "no folder"),
    "a long name": ({"weight_map": {"a.weight": "x" * 5000}}, "no folder"),
    "a number for a name": ({"weight_map": {"a.weight": 3}}, "Expected `str`, got `int`"),
    "no map": ({"metadata": {}}, "missing required field `weight_map`"),
    "a list for a map": ({"weight_map": []}, "Expected `object`, got `array`"),
    "a list": ([1], "Expected `object`, got `array`"),
    "metadata that is text": ({"weight_map": {}, "metadata": "x"}, "Expected `object`, got `str`"),
    "a missing shard": (
        {"weight_map": {"x": "no.safetensors", "y": "no.safetensors"}},
        r"a shard is missing from .*: no.safetensors with 'x', 'y'$",
    ),
    "itself": ({"weight_map": {"a.weight": INDEX}}, f"shard {INDEX} is an index itself"),
    "what a shard lacks": (
        {"weight_map": {"a.weight": SECOND, "b.weight": SECOND}},
        f"shard {SECOND} lacks 'a.weight', which the index says is in it",
    ),
    "a name twice, escaped": (
        r'{"weight_map": {"a\\\u0062": "x", "q\"\"": "y", "\u0061\\b": "z"}}',
        r"names 'a\\\\b' twice",
    ),
    "a name twice": ('{"weight_map": {"a.weight": "x", "a.weight": "y"}}', "names 'a.weight' twice"),
    "two maps": ('{"weight_map": {}, "weight_map": {}}', 'has "weight_map" twice'),
    "no JSON": ('{"weight_map": {', "not a valid sharded record"),
    "not UTF-8 in a name": ('{"weight_map": {"\\ud800": "x"}}', "malformed"),
    "deep": ('{"metadata": ' + "[" * 100_000 + "]" * 100_000 + ', "weight_map": {}}', "nests too deep"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_indexes(tmp_path: Path, case: str) -> None:
    index, message = BAD[case]
    path = written(tmp_path, index=index)
    with pytest.raises(RecordError, match=message) as error:
        load(path)
    assert INDEX in str(error.value) and len(str(error.value)) < 2000


def test_names_with_escapes_and_no_metadata(tmp_path: Path) -> None:
    names = ['q"', "back\\", '\\"\\', "new\nline", "é", "weight_map"]
    safetensors.numpy.save_file({name: np.ones(1) for name in names}, tmp_path / FIRST)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": None, "weight_map": dict.fromkeys(names, FIRST)}))
    assert load(tmp_path / INDEX).paths() == names


def test_an_index_that_is_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("phlox.record.formats.sharded._MAX_INDEX", 100)
    with pytest.raises(RecordError, match="an index of more than 100 is not read"):
        load(written(tmp_path))


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    path = written(tmp_path, {FIRST: ["a.weight", "c"], SECOND: ["b.weight", "c"]})
    with pytest.raises(RecordError, match=f"'c' is in two shards, {FIRST} and {SECOND}"):
        load(path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / SECOND).write_bytes((tmp_path / SECOND).read_bytes()[:-1])
    with pytest.raises(RecordError, match=SECOND):
        load(path)


def test_a_positional_shard(tmp_path: Path) -> None:
    from phlox.record import BinaryRecorder

    BinaryRecorder(names=False).save(Record({"w": np.ones(2)}), tmp_path / "s.phlox")
    (tmp_path / INDEX).write_text('{"weight_map": {"0": "s.phlox"}}')
    with pytest.raises(RecordError, match=r"s.phlox is a positional record"):
        load(tmp_path / INDEX)


def test_many_missing_shards_are_told_shortly(tmp_path: Path) -> None:
    weight_map = {f"layers.{i}.weight": f"shard-{i % 1000}.safetensors" for i in range(100_000)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(RecordError, match="1000 of 1000 shards are missing.* and 95 more.* and 995 more") as error:
        load(tmp_path / INDEX)
    assert len(str(error.value)) < 2000


def test_in_memory_there_are_no_shards(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    with pytest.raises(RecordError, match="it was given as bytes; load it from its file"):
        ShardedReader().from_bytes(data)


def test_it_takes_no_record_of_ours() -> None:
    from phlox.record import JsonRecorder

    assert not ShardedReader.recognises(JsonRecorder().to_bytes(Record({"weight_map": "x"}))[:512])
    assert ShardedReader.recognises(b'{"weight_map": {}}')
    assert ShardedReader.recognises(b' {\n "metadata": {"total_size": 1},\n  "weight_map": {')


def test_a_record_of_ours_may_have_the_name_of_an_index(tmp_path: Path) -> None:
    from phlox.record import JsonRecorder

    JsonRecorder().save(Record({"step": 3}), tmp_path / "x.index.json")
    assert load(tmp_path / "x.index.json")["step"] == 3


def test_an_index_whose_beginning_says_nothing_is_known_by_its_name(tmp_path: Path) -> None:
    index = {"metadata": {f"key {i}": "x" for i in range(1000)}, "weight_map": {"a.weight": FIRST}}
    assert load(written(tmp_path, index=index)).metadata["key 7"] == "x"


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RecordError, match=r"none of model.safetensors, model.safetensors.index.json, pytorch_model.bin"
    ):
        load(tmp_path)
    written(tmp_path)
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors")
    with pytest.raises(RecordError, match=r"which of model.safetensors, model.safetensors.index.json is meant\?"):
        load(tmp_path)
    (tmp_path / INDEX).unlink()
    assert same(load(tmp_path), ARRAYS)
    monkeypatch.chdir(tmp_path)
    assert same(load("."), ARRAYS)


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200))
def test_any_damage_is_a_record_error(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, to: int) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = written(folder)
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[to:])
    try:
        record = ShardedReader().load(path)
    except RecordError as error:
        assert str(path) in str(error)
    else:
        assert set(record) >= {"a.weight", "c"} or set(record) >= {"b.weight"} or not len(record)
