"""Ids of parameters: from seeds, equal in equal runs, and never the same for two parameters of one program."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import phlox as px
from phlox import nn, optim
from phlox.module import identity

PROGRAM = """
import sys, time
from pathlib import Path

time.perf_counter = time.monotonic = time.time = lambda: 0.0  # files hold what a run took
import numpy as np
import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.record import gather, save
from phlox.train import Checkpoints, Learner

class Net(px.Module):
    def __init__(self):
        self.layers = [nn.Linear(4, 8), nn.BatchNorm(8), nn.Dropout(0.5), nn.Linear(8, 2)]
        self.scale = px.Param(px.ones((2,)))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale.val()

folder = Path(sys.argv[1])
x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
one, two = Net().init(seed=0).train(), Net().init(seed=0)
optimizer = optim.AdamConfig().init()
px.random.seed(7)  # dropout
for _ in range(2):
    loss = one(px.tensor(x, device=one.scale.device)).square().mean()
    one = optimizer.step(0.1, one, px.GradientsParams.from_grads(loss.backward(), one))
for suffix in ("safetensors", "json", "npz"):
    save(gather(one=one, two=two, optimizer=optimizer), folder / f"both.{suffix}")
px.random.seed(3)
learner = Learner(Net(), optim.AdamWConfig(), 0.01, nn.cross_entropy_loss)
rows = Loader((x, (x[:, 0] > 0).astype(np.int32)), batch_size=8, shuffle=True, seed=0)
learner.fit(rows, epochs=2, progress=False, callbacks=[Checkpoints(folder / "run")])
"""


@pytest.mark.full
def test_two_runs_of_a_program_write_the_same_bytes(tmp_path: Path) -> None:
    found: list[dict[str, bytes]] = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], check=True)
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "checkpoints.json"]
        found.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert len(found[0]) == 6 and found[0].keys() == found[1].keys()
    assert [name for name, text in found[0].items() if found[1][name] != text] == []


class Net(px.Module):
    def __init__(self, device: str = "numpy") -> None:
        self.one, self.two = nn.Linear(3, 3, device=device), nn.Linear(3, 3, device=device)
        self.scale = px.Param(px.ones((3,), device=device))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.two(self.one(x)) * self.scale.val()


class Other(Net):
    pass


def ids(*modules: Any) -> list[str]:
    return [param.id for module in modules for param in module.params()]


def seeded() -> Any:
    px.random.seed(5)
    return Net()


def partly() -> Any:
    model = Net()
    model.one.init(seed=0)
    return model.init(seed=0)


MAKERS: dict[str, Any] = {
    "one seed": lambda: Net().init(seed=0),
    "another class": lambda: Other().init(seed=0),
    "a part before": partly,
    "the process seeded": seeded,
    "and made": lambda: seeded().init(),
    "and made from a seed": lambda: seeded().init(seed=0),
    "no seed": lambda: Net().init(),
    "a key": lambda: Net().init(seed=jax.random.key(0)),
    "traced": lambda: jax.vmap(lambda seed: Net("jax").init(seed=seed))(jnp.arange(2)),
    "in a program": lambda: jax.jit(lambda: Net("jax").init(seed=0))(),
    "px.vmap": lambda: px.vmap(lambda seed: Net("jax").init(seed))(px.arange(2, device="jax")),
    "px.compile": lambda: px.compile(lambda seed: Net("jax").init(seed))(px.tensor(0, device="jax")),
    "stacked": lambda: px.stack_modules([Net().init(seed=0), Net().init(seed=0)]),
}


def test_ids_are_never_those_of_another_parameter() -> None:
    with px.random.stream(0):
        models = [make() for make in MAKERS.values() for _ in range(3)]
    found = ids(*models)
    assert len(set(found)) == len(found) == 15 * len(MAKERS) and all(len(id) == 32 for id in found)
    assert px.module.ParamId is identity.ParamId


def of_new_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_numbers", identity._OccurrenceCounter())


@pytest.mark.parametrize("how", [name for name in MAKERS if name != "no seed"])
def test_ids_are_those_of_an_equal_run(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []
    for _ in range(2):
        of_new_program(monkeypatch)
        with px.random.stream(0):
            found.append(ids(MAKERS[how](), MAKERS[how]()))
    assert found[0] == found[1]


def test_without_a_seed_they_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    for _ in range(2):
        of_new_program(monkeypatch)
        with px.random.stream(1) as stream:
            stream.seeded = False
            found += ids(Net(), Net().init())
    assert len(set(found)) == 20


def test_ids_depend_on_seed_class_and_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    of_new_program(monkeypatch)
    first, other, longer = ids(Net().init(seed=0)), ids(Net().init(seed=1)), ids(Other().init(seed=0))
    of_new_program(monkeypatch)
    px.random.normal((3,))
    assert (ids(Net().init(seed=1)), ids(Net("torch").init(seed=0))) == (other, first)
    assert len({*first, *other, *longer}) == 15


def test_a_parameter_that_has_been_used_keeps_its_id() -> None:
    model = Net().init(seed=0)
    before = ids(model)
    assert ids(model.init(seed=1)) == ids(copy.deepcopy(model)) == ids(model.valid()) == before
    model.two = nn.Linear(3, 3)
    after = ids(model.init(seed=1))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, False, True]
    loaded = Net()
    loaded.load(model.into_record())
    assert ids(loaded) == after == ids(loaded.init(seed=1))
    optimizer = optim.SgdConfig(momentum=0.9).init()
    grads = px.GradientsParams.from_grads(model.train()(px.ones((1, 3))).sum().backward(), model)
    assert optimizer.step(0.1, model.train(), grads).init(seed=3).params()[0].id == after[0]


def test_threads_get_ids_of_their_own() -> None:
    together = threading.Barrier(8)

    def work(number: int) -> list[str]:
        if number < 8:
            together.wait()
        return ids(Net().init(seed=0))

    with ThreadPoolExecutor(8) as pool:
        found = [id for some in pool.map(work, range(100)) for id in some]
    assert len(set(found)) == len(found) == 500
    shared = Net()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: shared.init(seed=0), range(8)))
    assert len(set(ids(shared))) == 5


def test_the_table_stays_small_and_ids_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    of_new_program(monkeypatch)
    monkeypatch.setattr(identity, "_LIMIT", 4)
    found = [id for seed in (*range(8), *range(8)) for id in ids(Net().init(seed=seed))]
    assert len(set(found)) == 5 * 16
    numbers: Any = identity._numbers
    assert len(numbers._next) == 4


def test_each_call_of_a_program_makes_networks_of_its_own() -> None:
    """A trace is made once, and called many times: with the ids of the trace, an optimizer would mix their states."""

    def copies(seed: Any) -> tuple[Any, ...]:
        made = Net("jax").init(seed=seed)
        return made, made, jax.tree.map(lambda leaf: leaf * 2, made)

    def scanned(seeds: Any) -> Any:
        return jax.lax.scan(lambda count, seed: (count, Net("jax").init(seed=seed)), 0, seeds)[1]

    stacked = jax.vmap(lambda seed: Net("jax").init(seed=seed))(jnp.arange(2))
    born: dict[str, tuple[Any, Any]] = {
        "made": (lambda seed: Net("jax").init(seed=seed), 0),
        "with copies": (copies, 0),
        "by scan": (scanned, jnp.arange(2)),
        "cut": (
            lambda all: (jax.tree.map(lambda leaf: leaf[0], all), jax.tree.map(lambda leaf: leaf[1], all)),
            stacked,
        ),
    }
    found: list[str] = []
    for name, (call, given) in born.items():
        program = jax.jit(call)
        for _ in range(3):
            results = program(given)
            models: tuple[Any, ...] = results if isinstance(results, tuple) else (results,)
            if name == "with copies":
                assert ids(models[0]) == ids(models[1]) == ids(models[2])
                models = models[:1]
            found += ids(*models)
    assert len(set(found)) == len(found) == 5 * 3 * (1 + 1 + 1 + 2)
