"""Models in shards on several devices: saved, and loaded on other layouts, on one device, and whole on NumPy.

Serves: phlox/distributed/checkpoints/saving.py, phlox/record/formats/assembled.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated_devices import check_on_devices

pytest.importorskip("jax")

PROGRAM = """
import sys
import numpy as np
import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.distributed import Layout, Mesh, latest, load, save
from phlox.models import GptConfig
from phlox.record import gather

folder = sys.argv[1]
config = GptConfig(vocabulary=32, context=16, n_layers=1, d_model=32, n_heads=4, dropout=0.0)
tensor = {"blocks.*.up.weight": (None, "model"), "blocks.*.down.weight": ("model", None)}
LAYOUTS = {
    "fsdp": (Layout({}, rest="data"), dict(data=8)),
    "both": (Layout(tensor, rest="data"), dict(data=2, model=4)),
    "tensor": (Layout(tensor, rest=None), dict(model=2, data=4)),
}
autodiff = Autodiff(Jax()).device()

def fresh(name, seed):
    layout, sizes = LAYOUTS[name]
    return config.init(autodiff).shard(layout, Mesh(device="jax", **sizes)).init(seed=seed).train()

def same(first, second):
    a, b = first.into_record(), second.into_record()
    assert a.paths() == b.paths()
    for path in a.tensors:
        left, right = a[path].tensor.read(), b[path].tensor.read()
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), path

def step(model, optimizer, lr, tokens, targets):
    loss = model.loss(tokens, targets)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss

window = np.random.default_rng(0).integers(0, 32, (8, 17)).astype(np.int32)
mesh = Mesh(data=2, model=4, device="jax")
tokens, targets = mesh.batch(window[:, :-1], window[:, 1:])
model, optimizer = fresh("both", 0), optim.AdamWConfig().init()
compiled = px.compile(step, donate=("model", "optimizer"))
model, _ = compiled(model, optimizer, 1e-2, tokens, targets)

# Asynchronous, and the arrays are donated while it is written.
whole = {path: entry.tensor.read().copy() for path, entry in gather(model=model, optimizer=optimizer).tensors.items()}
pending = save(gather(model=model, optimizer=optimizer), folder, step=1, asynchronous=True)
model, _ = compiled(model, optimizer, 1e-2, tokens, targets)
pending.wait()
found = load(folder)
assert found.paths() == gather(model=model, optimizer=optimizer).paths()
for path, array in whole.items():
    assert found[path].tensor.read().tobytes() == array.tobytes(), path
assert any("moment" in path for path in whole)

# Saved in every layout, loaded in every other, on one device, and on NumPy.
for name in LAYOUTS:
    source = fresh(name, 1)
    save(source.into_record(), f"{folder}/{name}")
    record = load(f"{folder}/{name}")
    for other in LAYOUTS:
        target = fresh(other, 2)
        cut = target.blocks[0].up.weight.leaf.sharding
        target.load_record(record)
        assert target.blocks[0].up.weight.leaf.sharding == cut
        same(target, source)
    for device in (Jax().device(), "numpy"):
        same(config.init(device).load_record(record), source)
assert latest(folder) == 1

# Where the layout is that of the files, their pages are the model's arrays: nothing is copied. A step that may write to
# these arrays changes neither the record nor the files.
source = fresh("both", 1)
record = load(f"{folder}/both")
before = {path: entry.tensor.read().tobytes() for path, entry in record.tensors.items()}
target = fresh("both", 2)
target.load_record(record)
addresses = [shard.data.unsafe_buffer_pointer() for shard in target.blocks[0].up.weight.leaf.addressable_shards]
lines = open("/proc/self/maps").read().splitlines() if sys.platform == "linux" else []
mapped = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines if f"{folder}/both/" in line]
assert not lines or all(any(start <= at < end for start, end in mapped) for at in addresses), (addresses, mapped)
same(target, source)
for _ in range(2):
    target, _ = compiled(target, optimizer, 1e-2, tokens, targets)
for found in (record, load(f"{folder}/both")):
    assert {path: entry.tensor.read().tobytes() for path, entry in found.tensors.items()} == before

# Several parts of the one record, at another precision.
save(source.into_record(), f"{folder}/half", precision=px.record.BFLOAT16)
half = load(f"{folder}/half")["blocks.0.up.weight"].tensor
want = source.blocks[0].up.weight.val().numpy()
assert half.dtype.name == "bfloat16" and half.read().tobytes() == want.astype(half.dtype).tobytes()
"""


@pytest.mark.full
def test_what_is_saved_in_one_layout_is_loaded_in_any(tmp_path: Path) -> None:
    check_on_devices(8, PROGRAM, str(tmp_path))
