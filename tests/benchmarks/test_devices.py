"""Training on eight devices that one processor plays: the losses are those of one device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import faulthandler
faulthandler.dump_traceback_later(240, exit=True)
import jax, numpy as np
from benchmarks.devices import DEVICES, EVERYWHERE, IN_SHARDS, SUBJECT, check, phlox_and_jax
from benchmarks.libraries import with_phlox
from benchmarks.workloads import Workload

assert len(jax.devices()) == DEVICES
workload = Workload("mlp", "MLP", "mlp", {"widths": (16, 512, 8), "batch": 16})
expected = with_phlox.Contestant(workload, "jax").losses(5)
for parameters, cut in ((EVERYWHERE, 0), (IN_SHARDS, 2)):
    made = phlox_and_jax(workload, parameters)
    check(made)
    ours = phlox_and_jax(workload, parameters)[SUBJECT]
    placed = [leaf.sharding for leaf in jax.tree.leaves(ours.model)]
    assert sum(not one.is_fully_replicated for one in placed) == cut, (parameters, placed)
    np.testing.assert_allclose(ours.losses(5), expected, rtol=1e-4)
    assert all(len(leaf.sharding.device_set) == DEVICES for leaf in jax.tree.leaves(ours.model))
"""


def test_a_step_on_eight_devices_is_that_on_one() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "32", "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=root,
        env={**os.environ, **flags, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
