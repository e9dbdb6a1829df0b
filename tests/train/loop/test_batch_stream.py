from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from phlox import nn, optim
from phlox.backend import NumPy
from phlox.data import Loader
from phlox.data.loader import placed
from phlox.errors import DataError, DataWarning, RunWarning
from phlox.record import PrecisionSettings, SafetensorsRecorder
from phlox.tensor import Tensor
from phlox.train import LambdaCallback, Learner
from phlox.train.loop.batch_stream import BatchStream, as_batch, decoded, encoded
from phlox.train.step.batch import count

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = X.sum(axis=1, keepdims=True)


def batches(size: int = 3) -> Iterator[Any]:
    for start in range(0, 12, size):
        yield X[start : start + size], Y[start : start + size]


class Stateful:
    """Batches in an order that goes on from epoch to epoch, as a sampler with a state has it."""

    def __init__(self) -> None:
        self.position = self.epoch = 0
        self.blob = b"\x00\xff"

    def __iter__(self) -> Iterator[Any]:
        while self.position < 4:
            rows = np.random.default_rng(self.epoch).permutation(12)[3 * self.position :][:3]
            self.position += 1
            yield X[rows], Y[rows]
        self.position, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epoch": self.epoch, "blob": self.blob, "rng": np.arange(3, dtype=np.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["blob"] == self.blob and state["rng"].dtype == np.uint8
        self.position, self.epoch = state["position"], state["epoch"]


class OfIterators:
    """A data set whose iterator has the state, as those of grain have."""

    def __iter__(self) -> OfIterators.Iterator:
        return self.Iterator()

    class Iterator:
        def __init__(self) -> None:
            self.position = 0

        def __iter__(self) -> OfIterators.Iterator:
            return self

        def __next__(self) -> Any:
            if self.position == 4:
                raise StopIteration
            start = 3 * self.position
            self.position += 1
            return X[start : start + 3], Y[start : start + 3]

        def get_state(self) -> dict[str, int]:
            return {"position": self.position}

        def set_state(self, state: dict[str, int]) -> None:
            self.position = state["position"]


class OfEpochs:
    """A data set that is told the epoch, and begins at what was loaded in that epoch alone, as those of datasets do."""

    def __init__(self) -> None:
        self.epoch = self.position = 0
        self.start: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        first = self.start["position"] if self.start is not None and self.start["epoch"] == self.epoch else 0
        order = np.random.default_rng(self.epoch).permutation(12)
        for self.position in range(first + 1, 5):
            rows = order[3 * (self.position - 1) :][:3]
            yield X[rows], Y[rows]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state


def learner() -> Learner[Any]:
    return Learner(nn.Linear(2, 1).init(1), optim.SgdConfig(), 1e-4, nn.mse_loss)


def losses(data: Any, stop: int | None = None) -> tuple[list[float], Any]:
    """The loss of every step of two epochs; with `stop`, of a training that is cut off there and resumed."""
    seen: list[float] = []
    saved: list[Any] = []

    def note(learner: Any) -> None:
        seen.append(learner.loss)
        if learner.step == stop and not saved:
            saved.append(learner.snapshot())
            learner.stop("cut off")

    trained = learner()
    trained.fit(data(), epochs=2, callbacks=[LambdaCallback(on_step_end=note)], progress=False)
    return seen, saved


def resumed(data: Any, stop: int, path: Any, then: Any = None) -> list[float]:
    seen, saved = losses(data, stop)
    file = SafetensorsRecorder(precision=PrecisionSettings()).save(saved[0], path / "state")

    def note(learner: Any) -> None:
        seen.append(learner.loss)

    again = learner()
    again.fit((then or data)(), epochs=2, callbacks=[LambdaCallback(on_step_end=note)], progress=False, resume=file)
    return seen


SOURCES: dict[str, Any] = {
    "loader": lambda: Loader((X, Y), 3, shuffle=True),
    "shards": lambda: Loader((X, Y), 4, shuffle=True).shard(0, 2),
    "state_dict": Stateful,
    "set_state": OfIterators,
    "set_epoch": OfEpochs,
    "a function that makes what has a state": lambda: lambda: OfEpochs(),
}


@pytest.mark.parametrize("stop", [2, 4, 5])
@pytest.mark.parametrize("source", SOURCES)
def test_what_knows_where_it_stands_is_resumed_exactly(source: str, stop: int, tmp_path: Any) -> None:
    whole, _ = losses(SOURCES[source])
    assert resumed(SOURCES[source], stop, tmp_path) == whole


@pytest.mark.parametrize("limits", [{"steps": 4}, {"epochs": 1}], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_between_epochs_it_goes_on_with_the_next_one(source: str, limits: Any, tmp_path: Any) -> None:
    """The last batch of an epoch may have been given without a look at what comes after it."""
    whole, _ = losses(SOURCES[source])
    first, seen = learner(), list[float]()
    note = LambdaCallback(on_step_end=lambda learner: seen.append(learner.loss))
    first.fit(SOURCES[source](), **limits, callbacks=[note], progress=False)
    again = learner()
    file = first.save(tmp_path / "state")
    again.fit(SOURCES[source](), epochs=2, callbacks=[note], progress=False, resume=file)
    assert seen == whole


def test_the_state_of_a_loader_says_nothing_to_other_data(tmp_path: Any) -> None:
    whole, _ = losses(lambda: Loader((X, Y), 3))
    with pytest.warns(DataWarning, match="the first 2 batches of this epoch are skipped"):
        assert resumed(lambda: Loader((X, Y), 3), 2, tmp_path, then=lambda: batches) == whole


def test_what_does_not_passes_over_batches_and_says_so(tmp_path: Any) -> None:
    whole, _ = losses(lambda: batches)
    with pytest.warns(DataWarning, match="the first 2 batches of this epoch are skipped"):
        assert resumed(lambda: batches, 2, tmp_path) == whole


OTHER_LOADERS: list[tuple[Any, str]] = [
    (lambda: Loader((X, Y), 4, shuffle=True), "batch_size 3, this one has 4"),
    (lambda: Loader((X, Y), 3, shuffle=True, seed=1), "seed 0, this one has 1"),
    (lambda: Loader((X, Y), 3), "order 'Shuffled', this one has 'InOrder'"),
    (lambda: Loader((X[:9], Y[:9]), 3, shuffle=True), "rows 12, this one has 9"),
]


@pytest.mark.parametrize(("other", "message"), OTHER_LOADERS, ids=[message for _, message in OTHER_LOADERS])
def test_in_the_middle_of_an_epoch_another_loader_is_refused(other: Any, message: str, tmp_path: Any) -> None:
    _, saved = losses(lambda: Loader((X, Y), 3, shuffle=True), 2)
    file = SafetensorsRecorder(precision=PrecisionSettings()).save(saved[0], tmp_path / "state")
    with pytest.raises(DataError, match=f"an epoch .batch 2.: the checkpoint's loader had {message}"):
        learner().fit(other(), epochs=2, progress=False, resume=file)


def test_with_a_new_epoch_another_loader_may_begin(tmp_path: Any) -> None:
    first = learner()
    first.fit(Loader((X, Y), 3, shuffle=True), epochs=1, progress=False)
    again = learner()
    with pytest.warns(RunWarning, match=r"another data\.(seed|batch_size|order): it was"):
        again.fit(Loader((X, Y), 4, seed=1), epochs=2, progress=False, resume=first.save(tmp_path / "state"))
    assert (again.epoch, again.step) == (2, 7)


def halves() -> Any:
    return ((torch.tensor(x, requires_grad=True), torch.tensor(y).to(torch.bfloat16)) for x, y in batches())


ITERABLES: list[tuple[str, Any, int | None]] = [
    ("list", lambda: list(batches()), 4),
    ("function", lambda: batches, None),
    ("torch", lambda: DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=3), 4),
    ("half precision, with a gradient", lambda: halves, None),
    ("lists of tensors", lambda: [[torch.from_numpy(x), torch.from_numpy(y)] for x, y in batches()], 4),
]


@pytest.mark.parametrize(("name", "make", "length"), ITERABLES[1:], ids=[one[0] for one in ITERABLES[1:]])
def test_iterables_of_batches(name: str, make: Any, length: int | None) -> None:
    data = make() if name != "lists of tensors" else iter(make())
    stream = BatchStream(data)
    assert stream.batches == (None if name == "lists of tensors" else length)
    for epoch in range(1 if name == "lists of tensors" else 2):
        found = list(stream.epoch(epoch))
        assert len(found) == 4
        for (x, y), (a, b) in zip(found, batches(), strict=True):
            assert type(x) is np.ndarray
            np.testing.assert_array_equal(x, a)
            np.testing.assert_array_equal(y, b)


def test_a_generator_gives_one_epoch() -> None:
    stream = BatchStream(batches())
    assert len(list(stream.epoch(0))) == 4
    with pytest.raises(DataError, match=r"gives its batches only once, so there is no epoch 2; give a function"):
        next(stream.epoch(1))


@pytest.mark.parametrize("data", [X, (X, Y), {"x": X}, "file.csv", 3, None])
def test_what_is_no_iterable_of_batches(data: Any) -> None:
    with pytest.raises(DataError, match=r"validation: .* is not an iterable of batches; give Loader"):
        BatchStream(data, "validation")


CHANGES: list[tuple[Any, Any, str]] = [
    ((X, Y), (X, Y.astype(np.int64)), r"data\[1\]: batch 1 has integers where the first batch had floats"),
    ((X, Y), (X,), "batch 1 is a tuple of .*, and the first batch had another structure"),
    ({"x": X}, {"y": X}, "another structure"),
    ((X, Y), X, "another structure"),
]


@pytest.mark.parametrize(("first", "second", "message"), CHANGES, ids=[message for _, _, message in CHANGES])
def test_batches_must_be_alike(first: Any, second: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(BatchStream(lambda: iter([first, second])).epoch(0))


def test_a_batch_without_arrays_is_refused() -> None:
    with pytest.raises(DataError, match="batch 0 has no array in it"):
        list(BatchStream(lambda: iter([("a", "b")])).epoch(0))


def test_texts_go_to_an_eager_step_and_not_into_a_compiled_one() -> None:
    data = Loader({"x": X, "text": np.array([str(i) for i in range(12)], dtype=object)}, 3)
    seen: list[str] = []

    def step(model: Any, batch: Any) -> Any:
        seen.extend(batch["text"])
        return model(batch["x"]).mean()

    Learner(nn.Linear(2, 1), optim.SgdConfig(), 0.1, step=step).fit(data, epochs=1, progress=False)
    assert seen == [str(i) for i in range(12)]
    compiled = Learner(nn.Linear(2, 1), optim.SgdConfig(), 0.1, step=step, compile=True)
    with pytest.raises(DataError, match=r"data\['text'\] is a .*; a compiled step takes arrays and numbers"):
        compiled.fit(data, epochs=1, progress=False)


def test_rows_of_a_batch_are_those_of_the_loader() -> None:
    loader = Loader((X, Y), 5, shuffle=True, seed=2)
    np.testing.assert_array_equal(BatchStream(loader).rows(3, 1), loader.rows(3, 1))
    assert BatchStream(lambda: batches()).rows(0, 0) is None
    assert count({"n": 3, "x": X}) == 12 and count((np.float32(1),)) == 1


def test_batches_become_tensors_where_they_are_needed() -> None:
    batch = placed({"x": X, "name": "a"}, NumPy().device())
    assert isinstance(batch["x"], Tensor) and batch["name"] == "a"
    assert as_batch("text") == "text" and as_batch(X) is X


STATES: list[Any] = [
    {"a": 1, "b": [1.5, None, True, "text"], "c": {"d": (1, (2,))}},
    {1: "integer key", "$tuple": 3},
    {"big": 2**77, "bytes": b"\x00\x01", "array": np.arange(6, dtype=np.int16).reshape(2, 3)},
    {"torch": torch.arange(4, dtype=torch.uint8)},
]


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_states_as_plain_values(state: Any) -> None:
    import json

    found = decoded(json.loads(json.dumps(encoded(state))))
    assert repr(found) == repr(state)
    assert [type(one) for one in found.values()] == [type(one) for one in state.values()]


def test_a_state_of_objects_is_refused() -> None:
    with pytest.raises(DataError, match="has a object in it, which a checkpoint cannot hold"):
        encoded({"a": object()})


def test_epochs_of_a_loader_are_those_of_the_training() -> None:
    loader = Loader((X, Y), 3, shuffle=True)
    stream = BatchStream(loader)
    for epoch, start in itertools.product((0, 1), (0, 2)):
        for (x, _), (a, _) in zip(stream.epoch(epoch, start), loader.epoch(epoch, start=start), strict=True):
            np.testing.assert_array_equal(x, a)
