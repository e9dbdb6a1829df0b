# ruff: noqa: B023
"""`restore` and loading, interrupted or failing: every part is as it was, or every part is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.module import records as module_records
from phlox.record import Record, gather, restore
from tests.interruption import interrupt, moments

pytestmark = [
    pytest.mark.usefixtures("hears_ctrl_c"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Counter:
    """A part that somebody else has written, who knows of no preparation."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.twice = [count, count]

    def into_record(self) -> Record:
        return Record({"count": self.count, "twice": list(self.twice)})

    def load_record(self, record: Record) -> None:
        self.count = record["count"]
        self.twice[0] = record["twice"][0]
        self.twice[1] = record["twice"][1]


class Prepared:
    """One that does, and in its haste takes nothing back."""

    def __init__(self, count: int) -> None:
        self.a = self.b = count

    def into_record(self) -> Record:
        return Record({"a": self.a, "b": self.b})

    def load_record(self, record: Record) -> None:
        self.prepare_load(record)()

    def prepare_load(self, record: Record) -> Callable[[], None]:
        def load() -> None:
            self.a = record["a"]
            self.b = record["b"]

        return load


def parts(seed: int, place: str) -> dict[str, Any]:
    device = px.backend.as_device(place)
    model = nn.Sequential(nn.Linear(3, 4, device=device), nn.Linear(4, 2, device=device)).init(seed)
    optimizer = optim.AdamWConfig().init()
    grads = optim.GradientsParams({param.id: px.ones(param.shape, device=device) for param in model.params()})
    schedule = optim.WarmUpLr(optim.ReduceOnPlateauLr(0.1), num_iters=3)
    for _ in range(seed):
        model = optimizer.step(0.1, model, grads)
        schedule.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "random": px.random.Stream((0, seed), seed),
        "counter": Counter(seed),
        "prepared": Prepared(seed),
        "progress": {"epoch": seed},
    }


def state(found: dict[str, Any]) -> list[Any]:
    record = gather({name: part for name, part in found.items() if name != "progress"})
    return [
        (path, record[path].tensor.read().tolist() if path in record.tensors else record[path])
        for path in record
        if "skeleton" not in path
    ]


@pytest.mark.parametrize("place", ["numpy", pytest.param("torch", marks=pytest.mark.full)])
def test_an_interrupted_restore(place: str) -> None:
    saved = gather(parts(2, place))
    new = state(parts(2, place))
    before = parts(1, place)
    count = moments(lambda: restore(saved, before))
    ids = [path for path, _ in state(before)]
    for moment in [*range(1, count, 151), *range(max(1, count - 400), count + 1, 3)]:
        found = parts(1, place)
        old = state(found)
        try:
            got = interrupt(lambda: restore(saved, found), moment)
            assert got["progress"] == {"epoch": 2}
        except KeyboardInterrupt:
            assert state(found) == old, moment
        else:
            assert [path for path, _ in state(found)] == ids
            assert [value for _, value in state(found)] == [value for _, value in new]


@pytest.mark.parametrize("part", ["model", "optimizer", "schedule", "random", "counter", "prepared"])
def test_a_part_that_fails_half_way(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, found = gather(parts(2, "numpy")), parts(1, "numpy")
    old = state(found)
    places: dict[str, tuple[Any, str]] = {
        "model": (px.Param, "set_id"),
        "optimizer": (optim.OptimizerAdaptor, "_set_states"),
        "schedule": (optim.ReduceOnPlateauLr, "__setattr__"),
        "random": (px.random.Stream, "__setattr__"),
        "counter": (Counter, "__setattr__"),
        "prepared": (Prepared, "__setattr__"),
    }
    owner, name = places[part]
    whole, calls = getattr(owner, name), list[int]()

    def fail(self: Any, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == (3 if part == "counter" else 1 if part == "optimizer" else 2):
            raise OSError("half-way")
        whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(Exception, match="half-way"):
            restore(saved, found)
    assert state(found) == old
    restore(saved, found)
    assert found["random"].position == 2


@pytest.mark.parametrize("at_once", [0, 1 << 26], ids=["large", "small"])
def test_an_interrupted_load(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large module old values go as new ones come, so that Ctrl-C waits; a small one is as it was."""
    monkeypatch.setattr(module_records, "AT_ONCE", at_once)
    saved = nn.Linear(3, 4, device="torch").init(1).into_record()
    new = [saved[path].tensor.read() for path in ("weight", "bias")]

    def values(model: Any) -> list[Any]:
        return [param.val().numpy() for param in model.params()]

    count = moments(lambda: nn.Linear(3, 4, device="torch").init(2).load_record(saved))
    happened = 0
    for moment in range(1, count + 1, 5):
        model = nn.Linear(3, 4, device="torch").init(2)
        old = values(model)
        try:
            interrupt(lambda: model.load_record(saved), moment)
        except KeyboardInterrupt:
            pass
        which = [all(map(np.array_equal, values(model), them)) for them in (old, new)]
        assert any(which), moment
        happened += which[1]
    assert happened
