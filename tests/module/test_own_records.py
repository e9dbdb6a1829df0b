"""Children that are saved and loaded by methods of their own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError, RecordError
from phlox.record import HALF, BinaryRecorder, Record, gather, load, restore, save

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy())]


class Vocab(px.Module):
    """A table of vectors, and the words that they are of."""

    def __init__(self, device: Any = None) -> None:
        self.table = nn.Embedding(3, 2, device=device)
        self.words: list[str] = []

    def into_record(self) -> Record:
        own = super().into_record()
        return Record({**{path: own[path] for path in own}, "words": list(self.words)})

    def load_record(self, record: Record, **options: Any) -> Any:
        words = record["words"]
        super().load_record(Record({path: record[path] for path in record if path != "words"}), **options)
        self.words = words
        return self


class Counter:
    """An object that is no module."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def into_record(self) -> Record:
        return Record({"count": self.count, "squares": np.arange(self.count, dtype=np.float32) ** 2})

    def load_record(self, record: Record) -> None:
        count = record["count"]
        if record["squares"].tensor.shape != (count,):
            raise RecordError("as many squares as there are counts")
        self.count = count


class Model(px.Module):
    def __init__(self, device: Any = None) -> None:
        self.first = nn.Linear(2, 2, device=device)
        self.parts = {"vocab": Vocab(device), "more": [Counter(), nn.Linear(2, 1, device=device)]}

    @property
    def vocab(self) -> Vocab:
        return cast("Any", self.parts["vocab"])

    @property
    def counter(self) -> Counter:
        return cast("Any", self.parts)["more"][0]


def filled(device: Any = None) -> Model:
    model = Model(device).init(0)
    model.vocab.words = ["a", "b", "c"]
    model.counter.count = 4
    return model


PATHS = [
    "first.weight", "first.bias", "parts.vocab.table.weight", "parts.vocab.words", "parts.more.0.count",
    "parts.more.0.squares", "parts.more.1.weight", "parts.more.1.bias",
]  # fmt: skip


def equal(one: px.Module, other: px.Module) -> None:
    for (path, a), (name, b) in zip(one.named_params(), other.named_params(), strict=True):
        assert path == name and a.id == b.id
        np.testing.assert_array_equal(a.val().numpy(), b.val().numpy())


@pytest.mark.parametrize("suffix", ["safetensors", "msgpack", "phlox", "npz", "json.gz"])
@pytest.mark.parametrize("backend", BACKENDS[:3], ids=repr)
def test_they_are_heard_wherever_they_stand(backend: Backend, suffix: str, tmp_path: Path) -> None:
    model = filled(backend.device())
    assert model.into_record().paths() == PATHS
    path = model.save(tmp_path / f"model.{suffix}")
    again = Model(backend.device())
    with px.module.no_initializers():
        report = again.load(path)
    assert again.vocab.words == ["a", "b", "c"] and again.counter.count == 4
    equal(again, model)
    assert "by themselves: parts.vocab, parts.more.0" in str(report) and report.ok and report.done
    assert report.matches["parts.vocab.table.weight"] == "parts.vocab.table.weight"


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_copies_and_views_are_heard(backend: Backend, tmp_path: Path) -> None:
    for model in (
        filled().to_device(backend),
        filled(backend.device()).train().valid(),
        filled(backend.device()).map(lambda path, param: param),
        pickle.loads(pickle.dumps(filled(backend.device()))),  # noqa: S301
    ):
        record = model.into_record()
        assert record.paths() == PATHS and record["parts.vocab.words"] == ["a", "b", "c"]
        other = Model().load_record(record)
        assert other.vocab.words == ["a", "b", "c"] and other.counter.count == 4


def test_at_half_precision_and_in_a_whole_training_state(tmp_path: Path) -> None:
    model = filled()
    half = load(model.save(tmp_path / "half", precision=HALF))
    assert str(half["parts.vocab.table.weight"].tensor.dtype) == "float16"
    assert str(half["parts.more.0.squares"].tensor.dtype) == "float16"
    run: dict[str, Any] = {"model": model, "optimizer": optim.AdamConfig().init(), "step": 3}
    save(gather(run), tmp_path / "run")
    again: dict[str, Any] = {"model": Model(), "optimizer": optim.AdamConfig().init(), "step": 0}
    assert restore(load(tmp_path / "run"), again)["step"] == 3
    assert again["model"].vocab.words == ["a", "b", "c"] and again["model"].counter.count == 4
    equal(again["model"], model)


def changed(record: Record, new: dict[str, Any] | None = None, drop: str = "") -> Record:
    kept = {path: record[path] for path in record if not drop or not path.startswith(drop)}
    return Record({**kept, **(new or {})})


def test_what_does_not_fit_is_told_with_whole_paths_and_changes_nothing() -> None:
    record, model = filled().into_record(), Model().init(1)
    before = {path: param.val() for path, param in model.named_params()}
    cases: dict[str, Record] = {
        "parts.vocab.words: missing from the record": changed(record, drop="parts.vocab.words"),
        "parts.vocab.table.weight: missing from the record": changed(record, drop="parts.vocab"),
        "parts.vocab.extra: in the record, but not in the module": changed(record, {"parts.vocab.extra": np.ones(2)}),
        r"parts.vocab.table.weight: the record has shape \(2, 2\)": changed(
            record, {"parts.vocab.table.weight": np.ones((2, 2), np.float32)}
        ),
        "parts.more.0: as many squares": changed(record, {"parts.more.0.count": 7}),
        "parts.more.0.count: missing from the record": changed(record, drop="parts.more.0"),
        "parts.more.0.squares: missing from the record": changed(record, drop="parts.more.0.squares"),
        "parts.other.x: in the record": changed(record, {"parts.other.x": np.ones(2)}),
        "first.bias: missing from the record": changed(record, drop="first.bias"),
        "parts.vocab: the record has 3 there": changed(changed(record, drop="parts.vocab"), {"parts.vocab": 3}),
    }
    for said, unfit in cases.items():
        assert not model.load_report(unfit).ok
        with pytest.raises(RecordError, match=f"cannot load the record into Model(.|\n)*{said}"):
            model.load_record(unfit)
        assert model.vocab.words == [] and model.counter.count == 0
        assert all(param.val() is before[path] for path, param in model.named_params())
    every = changed(changed(record, {"parts.more.0.count": 7}, "parts.vocab.words"), drop="first.bias")
    report = model.load_report(every)
    assert report.missing == ["first.bias", "parts.vocab.words"] and list(report.refused) == ["parts.more.0"]
    with pytest.raises(RecordError) as raised:
        model.load_record(every)
    error = pickle.loads(pickle.dumps(raised.value))  # noqa: S301
    assert error.report.missing == report.missing


def test_without_strict_what_is_lacking_is_kept() -> None:
    record, model = filled().into_record(), Model().init(1)
    report = model.load(changed(record, {"parts.vocab.extra": np.ones(2)}, "parts.more.0"), strict=False)
    assert model.vocab.words == ["a", "b", "c"] and model.counter.count == 0
    assert report.kept.keys() == {"parts.more.0.count", "parts.more.0.squares"}


def test_parts_and_other_names() -> None:
    record, model = filled().into_record(), Model()
    report = model.load(record, exclude="parts.vocab")
    assert model.vocab.words == [] and model.counter.count == 4 and model.vocab.table.weight.is_deferred
    assert report.kept == {"parts.vocab": "not meant"}
    model = Model()
    model.load(record, include=["parts.vocab", "first.bias"])
    assert model.vocab.words == ["a", "b", "c"] and model.counter.count == 0 and model.first.weight.is_deferred
    with pytest.raises(RecordError, match=r"parts\.vocab: it loads itself .*as a whole or not at all"):
        model.load(record, exclude="parts.vocab.table")
    with pytest.raises(RecordError, match="no path matches `parts.vokab`; did you mean `parts.vocab`"):
        model.load(record, include="parts.vokab")
    theirs = Record({f"net.{path}": record[path] for path in record})
    report = (other := Model()).load(theirs, remap={r"^net\.": ""})
    assert other.vocab.words == ["a", "b", "c"] and other.counter.count == 4
    assert report.matches["parts.vocab.table.weight"] == "net.parts.vocab.table.weight"


class Tied(px.Module):
    def __init__(self) -> None:
        self.vocab = Vocab()
        self.head = self.vocab.table.weight
        self.again = self.vocab


def test_what_a_child_shares_with_the_rest_stays_shared() -> None:
    model = Tied().init(0)
    model.vocab.words = ["x"]
    record = model.into_record()
    assert record.paths() == ["vocab.table.weight", "vocab.words", "head"] and not record.aliases
    other = Tied().load_record(record)
    assert other.again.words == ["x"] and other.head is other.vocab.table.weight
    equal(other, model)
    with pytest.raises(RecordError, match="again.words: in the record, but not in the module"):
        Tied().load_record(changed(record, {"again.words": ["y"]}))


class Outer(px.Module):
    def __init__(self) -> None:
        self.inner = Vocab()
        self.note = ""

    def into_record(self) -> Record:
        own = super().into_record()
        return Record({**{path: own[path] for path in own}, "note": self.note})

    def load_record(self, record: Record, **options: Any) -> Any:
        self.note = record["note"]
        return super().load_record(Record({path: record[path] for path in record if path != "note"}), **options)


def test_one_within_another_is_the_others_to_save() -> None:
    model: Any = nn.Sequential([Outer().init(0)])
    model.layers[0].note, model.layers[0].inner.words = "n", ["w"]
    record = model.into_record()
    assert record.paths() == ["layers.0.inner.table.weight", "layers.0.inner.words", "layers.0.note"]
    other: Any = nn.Sequential([Outer()]).load_record(record)
    assert (other.layers[0].note, other.layers[0].inner.words) == ("n", ["w"])
    with pytest.raises(RecordError, match=r"layers\.0\.inner\.words: missing"):
        nn.Sequential([Outer()]).load_record(changed(record, drop="layers.0.inner.words"))


def test_an_optimizer_in_a_field_is_saved() -> None:
    class Agent(px.Module):
        def __init__(self) -> None:
            self.net = nn.Linear(2, 1).init(0)
            self.optimizer = optim.AdamConfig().init()

        def learn(self) -> None:
            _, grads = px.value_and_grad(lambda net: net(px.ones((1, 2))).sum())(self.net.train())
            self.net = self.optimizer.step(0.1, self.net, grads)

    agent, other = Agent(), Agent()
    agent.learn()
    other.load_record(agent.into_record())
    agent.learn()
    other.learn()
    np.testing.assert_array_equal(agent.net.weight.val().numpy(), other.net.weight.val().numpy())
    assert other.optimizer.states.keys() == {param.id for param in agent.params()}


def test_what_cannot_be_saved_so() -> None:
    class Wrong(px.Module):
        def into_record(self) -> Any:
            return {}

    with pytest.raises(ModuleError, match=r"layers\.0: Wrong.into_record must give a Record, got a dict"):
        nn.Sequential([Wrong()]).into_record()
    bare = BinaryRecorder(names=False)
    plain = bare.from_bytes(bare.to_bytes(nn.Linear(2, 2).init(0).into_record()))
    with pytest.raises(RecordError, match=r"positional record has no names, but `parts\.vocab`"):
        Model().load_record(plain)
