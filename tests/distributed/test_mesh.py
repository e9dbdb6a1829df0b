"""Meshes: sizes, batches, and the part of a process."""

from __future__ import annotations

from contextvars import copy_context

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.parallel import RowGroup, row_group, rows_of
from phlox.distributed import Mesh
from phlox.errors import ShardingError
from tests.simulated_devices import check_on_devices

PROGRAM = """
import jax, numpy as np, phlox as px, pytest
from phlox.backend import Jax
from phlox.distributed import Mesh
from phlox.errors import DeviceError, ShardingError

mesh = Mesh(data=-1, model=2, device="jax")
assert mesh.shape == {"data": 4, "model": 2} and mesh.axes == ("data", "model") and mesh.size == 8
assert mesh.part == (0, 1) and repr(mesh) == "Mesh(data=4, model=2, device=Jax().device('cpu:0'))"
assert mesh.device.sharding.is_replicated and str(mesh.device) == "jax:cpu:0,1,2,3,4,5,6,7"
assert Mesh(data=2, device="jax").size == 2, "some of the devices"

x, y = np.arange(24.0, dtype=np.float32).reshape(8, 3), np.arange(8)
a, b = mesh.batch(x, y)
np.testing.assert_array_equal(a.numpy(), x)
assert a.primitive.addressable_shards[0].data.shape == (2, 3) and b.kind is px.Int
x[:] = -1.0
assert a.numpy()[0, 1] == 1.0, "the caller may write to its array"
nested = mesh.batch({"x": px.ones((8, 2), device="jax"), "of": [np.ones((8,), bool), 3]}, )
assert nested["x"].device.sharding.spec == ("data",) and nested["of"][0].kind is px.Bool and nested["of"][1] == 3
assert mesh.batch(np.float32(2.0)).primitive.sharding.is_fully_replicated

with pytest.raises(ShardingError, match=r"a batch of 6 rows cannot be cut over 4 devices \\(axis 'data'"):
    mesh.batch(np.ones((6, 2)))
told = r"different numbers of rows: ndarray of shape \\(8, 2\\), ndarray of shape \\(4,\\)"
with pytest.raises(ShardingError, match=told):
    mesh.batch(np.ones((8, 2)), np.ones(4))
for axes, message in (
    (dict(data=3, model=-1), r"Mesh\\(data=3, model=-1\\): 8 devices do not divide by 3"),
    (dict(data=16), r"Mesh\\(data=16\\) has 16 devices, and there are 8"),
    (dict(data=-1, model=-1), "one of them may be -1"),
    (dict(data=0), "sizes are positive"),
    ({}, "at least one axis"),
):
    with pytest.raises(ShardingError, match=message):
        Mesh(device="jax", **axes)
with mesh:
    assert px.random.normal((2,), device="jax").shape == (2,)

# Devices are found by their ids.
assert Jax().device("cpu:5").name == "cpu:5"
assert px.ones((2,), device="jax:cpu:5").primitive.devices() == {jax.devices()[5]}
with pytest.raises(DeviceError, match="no device 'cpu:8' here"):
    Jax().device("cpu:8")
"""


def test_meshes_of_eight_devices() -> None:
    check_on_devices(8, PROGRAM)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Torch(float="bf16")], ids=repr)
def test_a_script_runs_alone_as_it_is(backend: px.backend.Backend) -> None:
    mesh = Mesh(data=-1, device=backend)
    assert mesh.shape == {"data": 1} and mesh.part == (0, 1)
    with mesh:
        x = mesh.batch(np.ones((3, 2), np.float32))
    assert x.shape == (3, 2) and x.backend is mesh.backend and not x.backend.differentiates
    source = np.zeros((3, 2), np.float32)
    batch = mesh.batch(source)
    source[:] = 1.0
    assert batch.sum().item() == 0.0


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
def test_engines_that_cut_nothing_have_one_axis(backend: px.backend.Backend) -> None:
    with pytest.raises(ShardingError, match="has 2 devices, and there are 1"):
        Mesh(data=1, model=2, device=backend)


def test_tasks_open_one_mesh_side_by_side() -> None:
    mesh, rows = Mesh(data=-1, device="numpy"), RowGroup(1, 2)
    inside, outside = copy_context(), copy_context()
    around = rows_of(rows)
    inside.run(around.__enter__)
    for task in (inside, outside):
        task.run(mesh.__enter__)
        assert task.run(row_group) is None
    for task, before in ((inside, rows), (outside, None)):
        task.run(mesh.__exit__, None, None, None)
        assert task.run(row_group) == before
    inside.run(around.__exit__, None, None, None)
