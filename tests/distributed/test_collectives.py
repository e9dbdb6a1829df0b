"""Several processes compute on the rows of one batch, and come to what one process comes to on all of it.

Serves: phlox/autodiff/collectives.py, phlox/backend/contract/collectives.py, phlox/backend/torch/collectives.py
Serves: phlox/module/averaging.py, phlox/backend/jax/collectives.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend.contract.collectives import buckets
from phlox.distributed import broadcast, gather, mean
from phlox.distributed import sum as total
from phlox.errors import RangeError
from tests.distributed.group import run_group

SCRIPT = "tests/distributed/in_group_of_jax.py"
PROGRAM = "import sys; from tests.distributed.in_group import main; main(sys.argv[4:])"


@pytest.mark.full
@pytest.mark.parametrize("codegen", ["inductor", "none"])
def test_two_processes(codegen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", codegen)
    names = [] if codegen == "inductor" else ["programs_wait", "in_place_is_refused", "derivatives", "training"]
    first, second = run_group(2, tmp_path, PROGRAM, *names)
    assert first == second and len(first.split()) == (len(names) or 14)


@pytest.mark.full
def test_four_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")
    run_group(4, tmp_path, PROGRAM, "values", "training", "batch_norm")


LEAVES = """
import sys, torch.distributed as dist, phlox as px
from phlox.backend.processes import Processes, set_processes
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
set_processes(Processes(rank, 2))
assert px.distributed.sum(1) == 2
if rank == 0:
    try:
        px.distributed.mean(px.ones((100_000,), device="torch"))
    except px.errors.DistributedError as error:
        print(error)
dist.destroy_process_group()  # as at the end of a program that has called initialize; else PyTorch may abort
"""


@pytest.mark.full
def test_a_process_that_has_ended_is_an_error_in_the_others(tmp_path: Path) -> None:
    assert (
        "process 0 of 2: a collective has failed, as it does if another process has ended"
        in (run_group(2, tmp_path, LEAVES, limit=100.0)[0])
    )


@pytest.mark.full
def test_two_processes_on_jax() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "phlox", "launch", "-n", "2", "--timeout", "120", str(root / SCRIPT)]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "NPROC": "32"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("all") == 2


def test_a_process_alone_gets_back_what_it_gives() -> None:
    model = nn.Linear(2, 3)
    for x in (px.ones((2,)), px.tensor(1), [1, 2.5], np.ones(3), model, {"a": True, "b": None}):
        assert mean(x) is x and total(x) is x and broadcast(x) is x
    assert gather(px.ones((2, 3))).shape == (2, 3) and gather(px.tensor(1.0)).shape == (1,)
    assert gather(2).tolist() == [2] and gather(np.ones((2, 3))).shape == (2, 3)
    with pytest.raises(RangeError, match="0 to 0, not 1"):
        broadcast(1, root=1)


def test_buckets() -> None:
    assert buckets([]) == [] and buckets([0, 0]) == [[0, 1]]
    assert buckets([10, 10, 10], 20) == [[0, 1], [2]]
    assert buckets([30, 1, 1, 40, 1], 20) == [[0], [1, 2], [3], [4]]
