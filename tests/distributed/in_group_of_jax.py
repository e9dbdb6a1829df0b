"""Collectives of JAX, of arrays of one process and of those on a mesh: `phlox launch -n 2` of this file."""

from __future__ import annotations

from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Jax
from phlox.distributed import broadcast, gather, mean
from phlox.distributed import sum as total
from phlox.errors import DistributedError, UnsupportedError
from tests.distributed.raising import raised

px.distributed.initialize(seed=0, device="jax")
RANK, SIZE = px.distributed.rank(), px.distributed.size()
assert SIZE == 2

for backend in (Jax(), Jax(float="bf16")):
    x = px.full((2, 3), RANK + 1.0, device=backend)
    assert mean(x).tolist() == [[1.5] * 3] * 2 and mean(x).backend is backend
    assert total([x, px.full((), RANK, device=backend)])[1].item() == 1
    assert gather(px.full((RANK + 1, 2), RANK, device=backend)).tolist() == [[0, 0], [1, 1], [1, 1]]
    assert broadcast(px.full((2,), RANK == 1, device=backend), 1).tolist() == [True, True]
with px.default_device("jax"):
    assert mean(0.1 + RANK) == (0.1 + 1.1) / 2  # in 64 bits, which JAX's own arrays have not
    assert total({"a": np.full(2, 2**40 + RANK)})["a"].tolist() == [2**41 + 1] * 2
    many = [np.full(3 * n, float(RANK + n)) for n in range(5)]
    assert [one.tolist() for one in mean(many)] == [[n + 0.5] * 3 * n for n in range(5)]
with raised(DistributedError, "has shape"):
    gather(px.zeros((2, RANK + 1), device=Jax()))

mesh = px.distributed.Mesh(data=-1, device="jax")
rows = mesh.batch(np.full((4, 3), RANK, np.float32))
assert mean(rows) is rows and total(rows) is rows and broadcast(rows) is rows
whole: Any = gather({"rows": rows})["rows"]
np.testing.assert_array_equal(whole.numpy(), np.repeat([0.0, 1.0], 4)[:, None] * np.ones(3))
alone = whole.to_device("jax")  # what is replicated is all here
assert alone.device.sharding is None and alone.shape == (8, 3) and alone.sum().item() == 12.0
loss = px.compile(lambda x: x.mean())(rows)
assert mean(loss).item() == gather(loss).item() == 0.5
same, everywhere = px.compile(lambda x: (mean(x.mean()), gather(x)))(rows)  # on a mesh an array is one in programs too
assert same.item() == 0.5 and everywhere.numpy().shape == (8, 3)
with raised(UnsupportedError, "inside a function that is being traced"):
    px.compile(lambda x: mean(x))(px.ones((2,), device=Jax()))
print("all")
