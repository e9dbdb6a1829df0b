"""Two processes of four devices each save one model, load it on other layouts, and learn what goes wrong in the other.

Serves: phlox/distributed/checkpoints/savers.py, phlox/distributed/checkpoints/committing.py
"""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from phlox.distributed import latest, load
from phlox.models import GptConfig
from tests.distributed.group import run_group

pytest.importorskip("jax")

PROGRAM = """
import os, sys
rank, count, _, port, folder = sys.argv[1:]
del sys.argv[1]  # the command line is to be the same in all processes
os.environ |= {
    "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4",
    "NPROC": "32", "PHLOX_COORDINATOR": f"127.0.0.1:{port}",
    "PHLOX_PROCESS_ID": rank, "PHLOX_NUM_PROCESSES": count, "PHLOX_LOCAL_PROCESS_ID": rank,
    "PHLOX_LOCAL_NUM_PROCESSES": count, "PHLOX_RUN": "a-test",
}
rank = int(rank)
import numpy as np
import phlox as px
from phlox.backend import Jax
from phlox.distributed import Layout, Mesh, latest, load, save
from phlox.errors import DistributedError, RecordError
from phlox.models import GptConfig
from phlox.record import HALF, Record

px.distributed.initialize(seed=0, device="jax", timeout=60.0)
config = GptConfig(vocabulary=32, context=8, n_layers=1, d_model=16, n_heads=2)
tensor = {"blocks.*.up.weight": (None, "model"), "blocks.*.down.weight": ("model", None)}

def fresh(rest, seed, **sizes):
    layout = Layout(tensor if "model" in sizes else {}, rest=rest)
    return config.init(Jax().device()).shard(layout, Mesh(device="jax", **sizes)).init(seed=seed)

def shards(model):
    return {path: [(str(s.index), np.asarray(s.data).tobytes()) for s in param.leaf.addressable_shards]
            for path, param in model.named_params()}

model = fresh("data", 1, data=8)
save(model.into_record(), folder, step=1)
pending = save(model.into_record(), folder, step=2, asynchronous=True)
px.distributed.barrier("the main thread goes on")
pending.wait()
assert latest(folder) == 2 and len(os.listdir(f"{folder}/step-00000002")) == 3

# On another layout, and back: each process has the same bytes again.
other = fresh("data", 2, data=2, model=4)
other.load_record(load(folder))
save(other.into_record(), folder, step=3, keep=2)
again = fresh("data", 3, data=8)
again.load_record(load(folder))
assert shards(again) == shards(model)
assert latest(folder) == 3

# What goes wrong in process 1 is told to process 0, without a collective.
too_large = np.full(4, 7e4 if rank == 1 else 0.0)
bad = {"a": np.zeros(8), "b": too_large}  # each process writes one of them
try:
    save(Record(bad), folder, step=4, precision=HALF)
except (DistributedError, RecordError) as error:
    assert "b: the value 70000.0 does not fit float16" in str(error), error
    assert rank == 1 or "process 1 could not save" in str(error), error
else:
    raise AssertionError("it was saved")
assert latest(folder) == 3
print("done")
"""


@pytest.mark.full
def test_two_processes(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folder = tmp_path / "run"
    assert run_group(2, tmp_path, PROGRAM, str(port), str(folder), limit=200.0) == ["done\n", "done\n"]
    assert latest(folder) == 3
    model = GptConfig(vocabulary=32, context=8, n_layers=1, d_model=16, n_heads=2).init("numpy")
    for step in (2, 3):
        model.load_record(load(folder, step=step))
        values = {path: param.val().numpy() for path, param in model.named_params()}
        assert all(np.isfinite(value).all() for value in values.values())
