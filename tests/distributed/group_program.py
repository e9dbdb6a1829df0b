"""What two processes find when they are one group, on the engine that the first argument names."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import backend_by_name
from phlox.errors import DistributedError, ShardingError
from tests.distributed.support import LOOPBACKS, listening


def main() -> None:
    d = px.distributed
    engine = sys.argv[1]
    d.initialize(device=engine, timeout=60.0)
    rank = d.rank()
    assert d.size() == 2 and d.is_main() is (rank == 0) and d.attempt() == 0

    # objects
    x: Any = d.broadcast_object(("a", {"rank": rank}, np.arange(3) + rank), root=1)
    assert x[:2] == ("a", {"rank": 1}) and x[2].tolist() == [1, 2, 3]
    assert d.gather_objects([rank]) == [[0], [1]]
    many = [d.gather_objects(i * 2 + rank) for i in range(50)]
    assert many == [[2 * i, 2 * i + 1] for i in range(50)]

    # one random stream
    draws = d.gather_objects(px.random.uniform((4,)).tolist())
    assert draws[0] == draws[1]

    # the engine has joined
    backend = backend_by_name(engine)
    if engine == "jax":
        import jax
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(rank)
        assert (jax.process_count(), jax.process_index()) == (2, rank)
        if rank == 0:
            print(len(jax.local_devices()))
    else:
        import torch
        import torch.distributed

        total = torch.tensor([rank + 1.0])
        torch.distributed.all_reduce(total)
        assert total.item() == 3.0
    backend.join_processes()  # a second time is none
    assert listening() <= LOOPBACKS, listening()  # the store, that of the engine, and its collectives
    assert "PHLOX_SECRET" not in os.environ

    # agreement
    model = px.nn.Linear(3, 2).init(0)
    d.check_agreement(model=model, lr=0.1, text="a", nested={"a": [1, (2, np.ones(3))]})

    def refused(sentence: str, **values: Any) -> None:
        try:
            d.check_agreement(**values)
        except DistributedError as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(sentence)

    refused("lr is 0.5 in process 0; 1.5 in process 1", model=model, lr=rank + 0.5)
    other = px.nn.Linear(3, 2).init(rank)
    refused("model.weight is 'float32[3, 2] with digest", model=other)
    refused("nested['a'][1] is 0 in process 0; 1 in process 1", nested={"a": [5, rank]})
    refused("x is 0.0 in process 0; 1.0 in process 1", x=px.tensor(float(rank)))
    with px.debug.checks():
        d.barrier("both are here")
    if rank == 1:
        px.random.uniform((1,))
    refused("the random stream (its key and position) is", lr=0.1)
    with px.debug.checks():
        try:
            d.barrier("streams")
        except DistributedError as error:
            assert "'position': " in str(error)
        else:
            raise AssertionError("a barrier within checks compares streams")
    d.barrier("streams are not compared")

    # what a compiled function on a mesh is given
    px.random.seed(3)
    mesh = d.Mesh(data=-1, device=engine)
    x = mesh.batch(np.ones((2, 3), np.float32))
    scaled = px.compile(lambda x, lr, more: (x * lr).sum())
    with mesh, px.debug.checks():
        for _ in range(2):
            scaled(x, 0.5, {"a": 1})
            try:
                scaled(x, 0.5, {"a": rank})
            except DistributedError as error:
                assert "more['a'] is 0 in process 0; 1 in process 1" in str(error), error
            else:
                raise AssertionError("other scalars")

    # a model that the others do not have
    for sizes, sentence in (((3, 2 + rank), "`weight` is 'Float of shape (3, 2)' in process 0; "), ((3, 2), "")):
        try:
            px.nn.Linear(*sizes, bias=bool(sentence) or rank == 0, device=engine).shard(d.Layout(), mesh)
        except ShardingError as error:
            assert (sentence or "`bias` is 'Float of shape (2,)' in process 0; absent in process 1") in str(error), (
                error
            )
        else:
            raise AssertionError("different models")

    # a second initialize
    d.initialize(device=engine, timeout=60.0)
    try:
        d.initialize(device=engine, seed=3)
    except DistributedError as error:
        assert "call it once" in str(error)
    else:
        raise AssertionError("initialized twice")
    if len(sys.argv) > 2:
        d.shutdown()
        assert d.size() == 1
    print("all is well")


if __name__ == "__main__":
    main()
