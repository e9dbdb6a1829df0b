"""Orbax checkpoints: those that Orbax writes, those that it reads, and shards on both sides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from phlox import nn
from phlox.errors import ExtraNotInstalledError
from phlox.interop import orbax
from phlox.interop.orbax import bridge
from phlox.record import LazyTensor, Record, RecordError, TensorEntry
from tests.record.support import assert_same_elements, assert_same_record
from tests.simulated_devices import check_on_devices

ocp: Any = pytest.importorskip("orbax.checkpoint")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

RECORD = Record(
    {
        "layers.0.weight": TensorEntry(LazyTensor.from_array(np.arange(12, dtype=np.float32).reshape(3, 4)), "id-of-w"),
        "layers.0.bias": np.array([1.0, -0.0, np.inf], np.float16),
        "step": 7,
        "layers.1.weight": np.array([1.5, np.nan], ml_dtypes.bfloat16),
        "settings": {"lr": [0.1, float("inf")], "name": "é"},
        "count": np.array(3, np.int64),
        "big": np.array([2**63], np.uint64),
        "mask": np.array([[True, False]]),
        "empty": np.zeros((0, 3), np.float32),
    },
    {"module": "Model"},
    aliases={"tied": "layers.0.weight"},
)


def test_a_record_comes_back(tmp_path: Path) -> None:
    orbax.save(RECORD, tmp_path / "a")
    assert_same_record(orbax.load(tmp_path / "a"), RECORD)
    part = orbax.load(tmp_path / "a")["layers.0.weight"].tensor.read_part((slice(1, 3), slice(2, 4)))
    assert part.tolist() == [[6.0, 7.0], [10.0, 11.0]]


def test_orbax_restores_a_nested_tree(tmp_path: Path) -> None:
    orbax.save(RECORD, tmp_path / "3")
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(tmp_path / "3" / "default")
    assert tree["layers"]["0"]["weight"].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert tree["count"] == 3 and tree["layers"]["0"]["bias"].dtype == np.float16
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 3
        restored = manager.restore(3, args=ocp.args.PyTreeRestore())
    assert restored["mask"].tolist() == [[True, False]]


TREE: dict[str, Any] = {
    "params": {"dense": [{"kernel": np.arange(6.0).reshape(2, 3)}, {"kernel": np.ones(2, np.int8)}]},
    "g.h": np.ones(2, np.float32),
    "step": 5,
    "lr": 0.5,
    "name": "text",
    "nothing": None,
    "wave": np.ones(2, np.complex64),
}


@pytest.mark.parametrize("ocdbt", [True, False])
def test_what_others_have_written(tmp_path: Path, ocdbt: bool) -> None:
    tree = {key: value for key, value in TREE.items() if key != "wave"}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "a", tree)
    record = orbax.load(tmp_path / "a")
    assert {path: record[path] for path in record.values} == {"step": 5, "lr": 0.5, "name": "text", "nothing": None}
    assert_same_elements(record["params.dense.0.kernel"].tensor.read(), TREE["params"]["dense"][0]["kernel"])
    assert_same_elements(record["params.dense.1.kernel"].tensor.read(), TREE["params"]["dense"][1]["kernel"])
    assert record["g.h"].tensor.dtype == np.float32


def test_managers_and_what_a_record_cannot_hold(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (9, 10):
            manager.save(step, args=ocp.args.StandardSave({"w": np.full(3, step), "wave": TREE["wave"]}))
        manager.wait_until_finished()
    record = orbax.load(tmp_path)
    assert record["w"].tensor.read().tolist() == [10] * 3
    with pytest.raises(RecordError, match="wave: a record cannot hold a leaf of Orbax of complex64"):
        record["wave"]
    assert orbax.load(tmp_path / "9")["w"].tensor.read().tolist() == [9] * 3


@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
def test_a_module(tmp_path: Path, device: str) -> None:
    model = nn.Sequential([nn.Linear(3, 4), nn.Linear(4, 2)]).init(seed=0, device=device)
    orbax.save(model, tmp_path / "model")
    other = nn.Sequential([nn.Linear(3, 4), nn.Linear(4, 2)]).init(seed=1, device="numpy")
    other.load_record(orbax.load(tmp_path / "model"))
    assert_same_record(other.into_record(), model.into_record())


def test_bad_input(tmp_path: Path) -> None:
    orbax.save(Record({"w": np.ones(2)}), tmp_path / "a")
    with pytest.raises(RecordError, match="Orbax could not save: .*already exists"):
        orbax.save(Record({"w": np.ones(2)}), tmp_path / "a")
    orbax.save(Record({"w": np.zeros(2), "n": 1}), tmp_path / "a", overwrite=True)
    assert orbax.load(tmp_path / "a")["w"].tensor.read().tolist() == [0.0, 0.0]
    for paths in (["a", "a.b"], ["a.b", "a"], ["a.b", "a.b.c.d"]):
        with pytest.raises(RecordError, match="a tree of Orbax cannot hold both"):
            orbax.save(Record({path: np.ones(1) for path in paths}), tmp_path / "b")
    with pytest.raises(RecordError, match="expected a Record or a Module, got dict"):
        orbax.save({}, tmp_path / "b")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecordError, match="there is no such folder"):
        orbax.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="not a complete Orbax checkpoint"):
        orbax.load(tmp_path / "empty")


def test_damage_is_told(tmp_path: Path) -> None:
    orbax.save(Record({"w": np.arange(1000.0)}), tmp_path / "a")
    for path in (tmp_path / "a" / "default").rglob("d/*"):
        path.write_bytes(b"")
    with pytest.raises(RecordError, match=str(tmp_path)):
        orbax.load(tmp_path / "a")["w"].tensor.read()
    orbax.save(Record({"w": np.ones(1)}), tmp_path / "b")
    (tmp_path / "b" / "phlox" / "metadata").write_text("{}")
    with pytest.raises(RecordError, match="phlox: it does not fit the arrays beside it"):
        orbax.load(tmp_path / "b")


def test_several_trees(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        items = {name: ocp.args.PyTreeSave({"w": np.ones(1)}) for name in ("model", "optimizer")}
        checkpointer.save(tmp_path / "a", args=ocp.args.Composite(**items))
    with pytest.raises(RecordError, match="which of the items model, optimizer is meant"):
        orbax.load(tmp_path / "a")
    assert orbax.load(tmp_path / "a" / "model").paths() == ["w"]


def test_without_orbax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bridge._orbax.cache_clear()
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ExtraNotInstalledError, match="pip install orbax-checkpoint"):
        orbax.load(tmp_path)
    bridge._orbax.cache_clear()


SHARDED = """
import sys, warnings
import numpy as np, orbax.checkpoint as ocp, phlox as px
from phlox import nn
from phlox.distributed import Layout, Mesh
from phlox.interop import orbax

folder = sys.argv[1]
def fresh(device="jax"):
    with px.default_device(device):
        return nn.Sequential([nn.Linear(16, 32), nn.Linear(32, 8)])
model = fresh().shard(Layout({}, rest="data"), Mesh(data=8, device="jax")).init(seed=0)
orbax.save(model, folder)
tree = ocp.PyTreeCheckpointer().metadata(folder + "/default").item_metadata.tree
assert tree["layers"]["0"]["weight"].storage.chunk_shape in ((2, 32), (16, 4)), tree  # written in shards
other = fresh().shard(Layout({"**.weight": (None, "model")}, rest=None), Mesh(data=2, model=4, device="jax"))
other.load_record(orbax.load(folder))
plain = fresh("numpy")
plain.load_record(orbax.load(folder))
for i in (0, 1):
    want = model.layers[i].weight.val().numpy()
    assert len(other.layers[i].weight.leaf.sharding.device_set) == 8
    assert np.array_equal(other.layers[i].weight.val().numpy(), want)
    assert np.array_equal(plain.layers[i].weight.val().numpy(), want)
"""


@pytest.mark.full
def test_shards(tmp_path: Path) -> None:
    check_on_devices(8, SHARDED, str(tmp_path / "sharded"))
