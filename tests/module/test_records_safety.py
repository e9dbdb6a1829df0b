"""Loading is all or nothing, takes little memory, makes nothing twice, maps what it can; and saves parameters only."""

from __future__ import annotations

import mmap
import sqlite3
import threading
import tracemalloc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.backend.contract.backend import engine_of
from phlox.errors import RecordError
from phlox.module import records as module_records
from phlox.module.deferred import no_initializers
from phlox.record import HALF, LazyTensor, PrecisionSettings, Record, SafetensorsRecorder, TensorEntry, load

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]
on_all_backends = pytest.mark.parametrize("backend", BACKENDS, ids=repr)
in_one_and_two_passes = pytest.mark.parametrize("at_once", [1 << 26, 0], ids=["at-once", "two-passes"])


class Counted:
    """An initializer that counts its calls."""

    calls = 0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Any) -> Any:
        Counted.calls += 1
        return px.ones(shape, device=device)


class Net(px.Module):
    def __init__(self, backend: Backend | None = None, count: int = 4, size: int = 3) -> None:
        device, counted = (backend or NumPy()).device(), cast("Any", Counted())
        self.layers = [nn.Linear(size, size, initializer=counted, device=device) for _ in range(count)]
        self.steps = px.Param(px.arange(2, device=device))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def record_of(model: px.Module, **others: Any) -> Record:
    """Its record at float64, so that every backend has to cast it, with other entries in place of some."""
    record = model.into_record().with_precision(PrecisionSettings(float="f64"))
    return Record({**{path: record[path] for path in record}, **others})


def state_of(model: px.Module) -> dict[str, Any]:
    return {
        path: (param.id, param.is_deferred, param.is_deferred or param.val()) for path, param in model.named_params()
    }


def assert_unchanged(model: px.Module, before: dict[str, Any]) -> None:
    after = state_of(model)
    assert list(after) == list(before)
    for path, (id, deferred, value) in before.items():
        assert after[path][:2] == (id, deferred) and after[path][2] is value, path


def fail() -> Any:
    raise RecordError("layers.3.bias: the checksum of its bytes is wrong")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unreadable": ({"layers.3.bias": LazyTensor.from_function((3,), np.float32, fail)}, "checksum"),
    "too-large": ({"layers.3.bias": np.array([0, 1e300, 0])}, r"^layers\.3\.bias: 1e\+300 does not fit .*floats"),
    "int": ({"steps": np.array([0, 2**40])}, r"^steps: 1099511627776 does not fit .*; use a backend of wider ones"),
    "misshapen": ({"layers.3.bias": np.zeros(4)}, r"layers\.3\.bias: the record has shape \(4,\)"),
    "other-shape": (
        {"layers.3.bias": LazyTensor.from_function((3,), np.float32, lambda: np.zeros(4, np.float32), "layers.3.bias")},
        r"^layers\.3\.bias: its source gave float32 of shape \(4,\)",
    ),
}


@on_all_backends
@in_one_and_two_passes
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("initialized", [True, False], ids=["with-values", "deferred"])
def test_on_an_error_everything_is_as_it_was(
    backend: Backend, bad: str, initialized: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_records, "AT_ONCE", at_once)
    entries, said = BAD[bad]
    record = record_of(Net().init(1), **entries)
    model = Net(backend)
    if initialized:
        model.init(2)
    before = state_of(model)
    with pytest.raises(RecordError, match=said):
        model.load_record(record)
    assert_unchanged(model, before)
    model.load_record(record_of(Net().init(1)))
    assert model.layers[3](px.ones((1, 3), device=backend.device())).shape == (1, 3)


@on_all_backends
def test_nothing_is_initialised_and_nothing_made_twice(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Net().init(1).save(tmp_path / "model")
    engine, made = engine_of(backend), Counter[tuple[int, ...]]()
    plain = type(engine).from_host

    def counting(self: Any, array: Any, kind: Any, device: Any) -> Any:
        made[np.shape(array)] += 1
        return plain(self, array, kind, device)

    model = Net(backend)  # its Int parameter is made here
    Counted.calls = 0
    monkeypatch.setattr(type(engine), "from_host", counting)
    with no_initializers():
        report = model.load(path)
    assert report.ok and Counted.calls == 0
    assert made == {(3, 3): 4, (3,): 4, (2,): 1}
    with no_initializers():
        model(px.ones((1, 3), device=backend.device()))
    assert Counted.calls == 0


def reads(model: px.Module) -> tuple[Record, Counter[str]]:
    """A record that counts how often each of its tensors is read."""
    record, count = model.into_record(), Counter[str]()

    def counted(path: str, tensor: LazyTensor) -> LazyTensor:
        def read() -> Any:
            count[path] += 1
            return tensor.read().copy()

        return LazyTensor.from_function(tensor.shape, tensor.dtype, read, path)

    return Record({path: TensorEntry(counted(path, entry.tensor)) for path, entry in record.tensors.items()}), count


@on_all_backends
@in_one_and_two_passes
def test_how_often_a_tensor_is_read(backend: Backend, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_records, "AT_ONCE", at_once)
    record, count = reads(Net().init(1))
    model = Net(backend)
    model.load_record(record)
    assert {path: n for path, n in count.items() if path != "steps"} == dict.fromkeys(list(record)[:-1], 1)
    count.clear()
    model.load_record(record)  # now that it has values: large modules read twice, to be all or nothing and small
    assert count == dict.fromkeys(record, 1 if at_once else 2)


@pytest.mark.parametrize("backend", [NumPy(), Autodiff(NumPy())], ids=repr)
@pytest.mark.parametrize("precision", [HALF, PrecisionSettings(float="f64"), PrecisionSettings()], ids=str)
def test_replacing_a_large_module_takes_one_tensor_more(
    backend: Backend, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_records, "AT_ONCE", 1 << 20)
    size, largest = 512, 512 * 512 * 4
    path = Net(size=size, count=8).init(1).save(tmp_path / "model", precision=precision)
    model = Net(backend, size=size, count=8).init(2)
    model.load(path)  # whatever is made once, and for good
    tracemalloc.start()
    try:
        model = Net(backend, size=size, count=8).init(2)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        model.load(path)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Casting takes a mask of a byte an element besides.
    assert before > 8 * largest
    assert peak - max(before, after) < 1.6 * largest


@on_all_backends
def test_a_record_that_changes_while_it_is_loaded_is_told(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_records, "AT_ONCE", 0)
    source, count = Net().init(1), Counter[str]()
    record = record_of(source)

    def read() -> Any:
        count["read"] += 1
        return np.full(3, 7.0) if count["read"] == 1 else fail()

    changing = record_of(source, **{"layers.3.bias": LazyTensor.from_function((3,), np.float64, read)})
    model = Net(backend).init(2)
    before = state_of(model)
    with pytest.raises(RecordError, match=r"has changed since it was checked.*checksum.*The first 7 of 9 parameters"):
        model.load_record(changing)
    after = state_of(model)
    assert [path for path in before if after[path][2] is before[path][2]] == ["layers.3.bias", "steps"]
    np.testing.assert_array_equal(model.layers[0].weight.val().numpy(), record["layers.0.weight"].tensor.read())


@in_one_and_two_passes
def test_an_interruption_leaves_a_small_module_as_it_was(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net().init(2)
    before, calls, plain = state_of(model), Counter[str](), px.Param.set_id

    def interrupted(self: Any, id: Any) -> None:
        calls["set_id"] += 1
        if calls["set_id"] == 5:
            raise KeyboardInterrupt
        plain(self, id)

    monkeypatch.setattr(px.Param, "set_id", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.load_record(Net().init(1).into_record())
    assert_unchanged(model, before)


# --- mapped files


def base_of(array: Any) -> Any:
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


@pytest.mark.parametrize("backend", [NumPy(), Autodiff(NumPy()), NumPy(float="f64")], ids=repr)
@pytest.mark.parametrize("initialized", [True, False], ids=["with-values", "deferred"])
@in_one_and_two_passes
def test_numpy_maps_a_file_at_its_precision(
    backend: Backend, initialized: bool, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_records, "AT_ONCE", at_once)
    path = Net(backend, size=32).init(1).save(tmp_path / "model", precision=PrecisionSettings())
    bytes_before = path.read_bytes()
    model = Net(backend, size=32)
    if initialized:
        model.init(2)
    record = load(path)
    model.load_record(record)
    for name, param in model.named_params():
        array = param.leaf
        assert isinstance(base_of(array), mmap.mmap), name
        assert not array.flags.writeable
        assert np.shares_memory(array, record[name].tensor.read())
    # Training makes new arrays: neither the file nor the map changes.
    model, optimizer = model.train(), optim.AdamWConfig().init()
    mapped = {name: param.leaf for name, param in model.named_params()}
    x = px.ones((2, 32), device=model.layers[0].weight.device)
    for _ in range(2):
        grads = optim.GradientsParams.from_grads((model(x) ** 2).sum().backward(), model)
        model = optimizer.step(0.1, model, grads)
    for name, param in model.named_params():
        if param.trained:
            assert not np.shares_memory(param.leaf, mapped[name]) and param.leaf.flags.writeable
            assert not np.array_equal(param.leaf, mapped[name])
    assert path.read_bytes() == bytes_before
    again = Net(backend, size=32).load_record(record)
    np.testing.assert_array_equal(again.layers[0].weight.val().numpy(), mapped["layers.0.weight"])


def test_a_large_map_is_updated_in_blocks_without_being_written(tmp_path: Path) -> None:
    class Wide(px.Module):
        def __init__(self) -> None:
            self.weight = px.Param.deferred((1 << 21,), nn.initializer.Ones())  # more than one block, several threads

    path = Wide().init(0).save(tmp_path / "wide")
    before = path.read_bytes()
    for config in (optim.AdamConfig(), optim.AdamWConfig(weight_decay=0.1), optim.SgdConfig(momentum=0.9)):
        model, optimizer = Wide(), config.init()
        model.load(path)
        assert not model.weight.leaf.flags.writeable
        model = model.train()
        for _ in range(2):
            grads = optim.GradientsParams.from_grads((model.weight.val() * 2.0).sum().backward(), model)
            model = optimizer.step(0.1, model, grads)
        assert model.weight.leaf.max() < 1.0
    assert path.read_bytes() == before


def test_a_saved_model_may_be_saved_onto_its_own_file(tmp_path: Path) -> None:
    path = Net().init(1).save(tmp_path / "model")
    model = Net()
    model.load(path)
    expected = model.layers[0].weight.val().numpy().copy()
    assert model.save(path) == path
    np.testing.assert_array_equal(model.layers[0].weight.val().numpy(), expected)
    np.testing.assert_array_equal(load(path)["layers.0.weight"].tensor.read(), expected)


def test_arrays_of_others_are_not_taken_over() -> None:
    mine = {"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
    layer = nn.Linear(2, 2).load_record(Record(mine))
    mine["weight"][:] = 7
    assert layer.weight.val().numpy().max() == 1
    with pytest.raises(ValueError, match="read-only"):
        layer.into_record()["weight"].tensor.read()[:] = 3
    shared = nn.Linear(2, 2).load_record(layer.into_record())  # tensors never change: nothing is copied
    assert np.shares_memory(shared.weight.leaf, layer.weight.leaf)


# --- what is not a parameter


def unsaved(folder: Path) -> dict[str, Any]:
    return {
        "database": sqlite3.connect(":memory:", check_same_thread=False),
        "lock": threading.Lock(),
        "function": fail,
        "unnamed": lambda x: x + 1,
        "file": (folder / "log.txt").open("w"),
        "reference": weakref.ref(nn.Linear),
        "generator": (i for i in range(3)),
        "nothing": None,
        "object": object(),
    }


class Busy(px.Module):
    def __init__(self, others: dict[str, Any]) -> None:
        vars(self).update(others)
        self.layer = nn.Linear(2, 2)
        self.mixed = [nn.Linear(2, 1), *others.values()]
        self.others = others


@pytest.mark.parametrize("name", ["m.safetensors", "m.msgpack", "m.phlox", "m.json.gz"])
def test_only_parameters_are_saved(name: str, tmp_path: Path) -> None:
    others = unsaved(tmp_path)
    others["database"].execute("create table t (x)")
    other = nn.Linear(3, 3)
    model: Any = Busy(others).init(1)
    model.friend = weakref.ref(other)
    held = [*model.mixed[1:], model.friend, *(getattr(model, name) for name in others)]
    record = model.into_record()
    assert record.paths() == ["layer.weight", "layer.bias", "mixed.0.weight", "mixed.0.bias"]
    path = model.save(tmp_path / name)
    more = unsaved(tmp_path)
    fresh = Busy(more)
    for target in (model, fresh):
        report = target.load(path)
        assert str(report) == "all 4 parameters loaded"
        target.load_record(record, include="layer")
    now = [*model.mixed[1:], model.friend, *(getattr(model, name) for name in others)]
    assert all(one is two for one, two in zip(held, now, strict=True))
    assert model.database.execute("select count(*) from t").fetchone() == (0,) and model.unnamed(1) == 2
    assert model.lock.acquire(blocking=False) and not model.file.closed and next(model.generator) == 0
    assert all(getattr(fresh, name) is more[name] for name in more)
    assert model.friend() is other and other.weight.is_deferred
    for each in (others, more):
        each["file"].close()
        each["database"].close()


def test_a_reader_that_maps_gives_views() -> None:
    """The oracle of the tests above: a file of the format, and nothing of ours in between."""
    record = SafetensorsRecorder().from_bytes(SafetensorsRecorder().to_bytes(Record({"a": np.ones(4, np.float32)})))
    assert not record["a"].tensor.read().flags.writeable


@pytest.mark.parametrize("name", ["m.safetensors", "m.msgpack", "m.phlox", "m.json", "m.safetensors.gz"])
@pytest.mark.parametrize("initialized", [True, False], ids=["with-values", "deferred"])
def test_damage_anywhere_in_a_file_leaves_the_module_whole(name: str, initialized: bool, tmp_path: Path) -> None:
    path = Net(count=1).init(1).save(tmp_path / name)
    good, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in range(0, len(good), max(1, len(good) // 40)):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(random.integers(8))
        for data in (bytes(flipped), good[:place], good[:place] + good[place + 1 :]):
            path.write_bytes(data)
            model = Net(count=1)
            if initialized:
                model.init(2)
            before = state_of(model)
            try:
                model.load(path)
            except RecordError as error:
                assert str(path) in str(error)
                assert_unchanged(model, before)
                refused += 1
    assert refused > 70
