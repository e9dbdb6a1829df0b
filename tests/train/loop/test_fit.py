"""The loop: its limits, its events, what ends it.

Serves: phlox/train/loop/fit.py, phlox/train/loop/limits.py, phlox/train/loop/interrupts.py
Serves: phlox/train/observers/callback.py, phlox/train/events.py
"""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from phlox import metrics, nn, optim
from phlox.backend import Autodiff, NumPy
from phlox.data import Loader
from phlox.errors import KindError, RunError
from phlox.train import Callback, EpochReport, LambdaCallback, Learner, Plan
from phlox.train.events import flattened, plain
from tests.calls import calls_of

X = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]]).astype(np.float32)


def learner(**options: Any) -> Learner[Any]:
    return Learner(nn.Linear(3, 1).init(1), optim.SgdConfig(), 0.05, nn.mse_loss, **options)


def loader(size: int = 12) -> Loader:
    return Loader((X, Y), size)


class Seen(Callback):
    """Notes every event."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.events: list[Any] = SEEN

    def on_fit_start(self, learner: Any) -> None:
        self.events.append((self.name, "start", learner.is_resumed))

    def on_epoch_start(self, learner: Any) -> None:
        self.events.append((self.name, "epoch start", learner.epoch))

    def on_step_end(self, learner: Any) -> None:
        self.events.append((self.name, "step", learner.step))

    def on_validation_start(self, learner: Any) -> None:
        self.events.append((self.name, "validation start", learner.step))

    def on_validation_end(self, learner: Any) -> None:
        self.events.append((self.name, "validation end", sorted(learner.validation)))

    def on_epoch_end(self, learner: Any) -> None:
        self.events.append((self.name, "epoch end", learner.epoch, learner.history[-1].epoch))

    def on_exception(self, learner: Any, error: BaseException) -> None:
        self.events.append((self.name, "exception", type(error).__name__))

    def on_fit_end(self, learner: Any) -> None:
        self.events.append((self.name, "end", learner.stopped))


SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Last(Seen):
    last = True


def test_every_event_in_its_order() -> None:
    learner().fit(
        loader(24), epochs=1, validation=loader(), callbacks=[Last("c"), Seen("a"), Seen("b")], progress=False
    )
    expected: list[Any] = []
    for event in (
        ("start", False), ("epoch start", 0), ("step", 1), ("step", 2), ("validation start", 2),
        ("validation end", ["loss"]), ("epoch end", 1, 1),
    ):  # fmt: skip
        expected += [(name, *event) for name in "abc"]  # what is last comes last, wherever it was given
    assert SEEN[: len(expected)] == expected
    assert SEEN[len(expected) :] == [(name, "end", "1 epoch is over") for name in "cba"]


def test_a_second_fit_goes_on() -> None:
    trained, first = learner(), learner()
    trained.fit(loader(), epochs=2, progress=False)
    trained.fit(loader(), epochs=3, progress=False)
    first.fit(loader(), epochs=5, progress=False)
    assert [one.train for one in trained.history] == [one.train for one in first.history]
    assert [one.epoch for one in trained.history] == [1, 2, 3, 4, 5]
    assert (trained.epoch, trained.step) == (5, 20)


LIMITS: list[tuple[dict[str, Any], int, int, bool]] = [
    ({"steps": 4}, 4, 1, True),
    ({"steps": 6}, 6, 2, False),
    ({"epochs": 2, "steps": 6}, 6, 2, False),
    ({"epochs": 1, "steps": 6}, 4, 1, True),
    ({"epochs": 3, "time": 1e-9}, 0, 0, True),
    ({"epochs": 1, "time": timedelta(hours=1)}, 4, 1, True),
]


@pytest.mark.parametrize(("limits", "steps", "epochs", "complete"), LIMITS, ids=[str(one[0]) for one in LIMITS])
def test_limits(limits: dict[str, Any], steps: int, epochs: int, complete: bool) -> None:
    trained = learner()
    history = trained.fit(loader(), **limits, validation=loader(), progress=False)
    assert (trained.step, len(history)) == (steps, epochs)
    if history:
        assert history[-1].complete == complete
        assert "loss" in history[-1].validation
        assert history[-1].rows == 12 * (steps - 4 * (epochs - 1))


def test_an_epoch_that_a_limit_has_cut_off_is_over_where_another_fit_begins() -> None:
    trained = learner()
    trained.fit(loader(), steps=6, progress=False)
    trained.fit(loader(), epochs=1, progress=False)
    assert [(one.epoch, one.step, one.complete) for one in trained.history] == [
        (1, 4, True),
        (2, 6, True),
        (3, 10, True),
    ]


def test_gradients_of_an_epoch_that_was_cut_off_are_dropped() -> None:
    """Beside a regression by hand: the third batch has no partner, and counts for nothing in the next epoch."""

    def weights_of(model: Any) -> Any:
        return np.concatenate([model.weight.val().numpy(), model.bias.val().numpy()[None]]).astype(np.float64)

    start = nn.Linear(3, 1).init(1)
    trained = Learner(start, optim.SgdConfig(), 0.05, nn.mse_loss, accumulate=2)
    trained.fit(loader(), steps=3, progress=False)
    trained.fit(loader(), epochs=1, progress=False)
    assert (trained.step, trained.updates) == (7, 3)
    weights = weights_of(start)
    for first in (0, 0, 24):
        rows = np.append(X[first : first + 24], np.ones((24, 1)), axis=1)
        weights -= 0.05 * 2.0 * rows.T @ (rows @ weights - Y[first : first + 24]) / 24
    np.testing.assert_allclose(weights_of(trained.model), weights, rtol=1e-5, atol=1e-6)


def test_validation_every_so_often() -> None:
    trained = learner()
    seen = Seen()
    trained.fit(loader(), epochs=4, validation=loader(), validate_every=2, callbacks=[seen], progress=False)
    assert [event[2] for event in SEEN if event[1] == "validation start"] == [8, 16]
    assert [bool(one.validation) for one in trained.history] == [False, True, False, True]
    SEEN.clear()
    learner().fit(loader(), epochs=2, validation=loader(), validate_every_steps=3, callbacks=[seen], progress=False)
    assert [event[2] for event in SEEN if event[1] == "validation start"] == [3, 4, 6, 8]


def test_what_stops_a_training_names_its_reason() -> None:
    def stop(learner: Any) -> None:
        if learner.step == 3:
            learner.stop("enough")
            learner.stop("too late to say")

    trained = learner()
    trained.fit(loader(), epochs=9, callbacks=[LambdaCallback(on_step_end=stop)], progress=False)
    assert (trained.step, trained.stopped) == (3, "enough")


def test_an_exception_ends_the_training_and_everybody_hears_of_it() -> None:
    def fail(learner: Any) -> None:
        if learner.step == 2:
            raise ValueError("no")

    class FailsAtTheEnd(Seen):
        def on_fit_end(self, learner: Any) -> None:
            super().on_fit_end(learner)
            raise OSError("neither")

    trained = learner()
    callbacks = [Seen("a"), FailsAtTheEnd("b"), LambdaCallback(on_step_end=fail), Seen("c")]
    with pytest.raises(ValueError, match="no") as error:
        trained.fit(loader(), epochs=9, callbacks=callbacks, progress=False)
    assert error.value.__notes__ == ["then FailsAtTheEnd failed too: OSError: neither"]
    assert [event for event in SEEN if event[1] in ("exception", "end")] == [
        *[(name, "exception", "ValueError") for name in "abc"], *[(name, "end", None) for name in "cba"],
    ]  # fmt: skip
    trained.fit(loader(), epochs=1, progress=False)  # and it can go on


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("on_train_batch_end", r"Mine\.on_train_batch_end: .* never be called; in Phlox: on_step_end"),
        ("on_epoch_begin", "in Phlox: on_epoch_start"),
        ("on_step_ended", r"did you mean 'on_step_end'\?"),
    ],
)
def test_an_event_that_nobody_calls_is_refused(name: str, message: str) -> None:
    with pytest.raises(KindError, match=message):
        type("Mine", (Callback,), {name: lambda self, learner: None})
    with pytest.raises(RunError, match=f"no event '{name}'"):
        LambdaCallback(**{name: lambda learner: None})
    type("Mine", (Callback,), {"on_improvement": lambda self: None})  # its own business


def test_of_callbacks_that_cannot_start_only_those_before_are_ended() -> None:
    class Fails(Callback):
        def on_fit_start(self, learner: Any) -> None:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        learner().fit(loader(), epochs=1, callbacks=[Seen("a"), Fails(), Seen("b")], progress=False)
    assert [event[:2] for event in SEEN] == [("a", "start"), ("a", "exception"), ("a", "end")]


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step(number: int, capsys: Any) -> None:
    def interrupt(learner: Any) -> None:
        if learner.step == 6:
            signal.raise_signal(number)

    trained, before = learner(), signal.getsignal(number)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as error:
        trained.fit(loader(), epochs=9, callbacks=[Seen(), LambdaCallback(on_step_end=interrupt)], progress=False)
    assert trained.step == 6 and trained.stopped == "interrupted"
    assert SEEN[-1] == ("", "end", "interrupted")
    assert signal.getsignal(number) is before
    if number == signal.SIGINT:
        assert "stopped after step 6 (epoch 2); nothing was saved" in str(error.value)
    else:
        assert error.value.args == (128 + signal.SIGTERM,)
    assert "ending after this step" in capsys.readouterr().err


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_after_the_last_step_is_not_lost(number: int, kind: type[BaseException]) -> None:
    trained = learner()
    end = LambdaCallback(on_fit_end=lambda it: signal.raise_signal(number))
    with pytest.raises(kind, match="ended, after step 4" if kind is KeyboardInterrupt else "143"):
        trained.fit(loader(), epochs=1, callbacks=[end], progress=False)
    assert trained.epoch == 1 and trained.stopped == "1 epoch is over"


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_second_ctrl_c_ends_at_once(capsys: Any) -> None:
    def interrupt(learner: Any) -> None:
        if learner.step == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        learner().fit(loader(), epochs=9, callbacks=[LambdaCallback(on_step_end=interrupt)], progress=False)


def test_the_plan_says_how_long_it_will_be() -> None:
    plans: list[Plan] = []
    note = LambdaCallback(on_fit_start=lambda learner: plans.append(learner.plan))
    trained = learner()
    trained.fit(loader(), epochs=2, callbacks=[note], progress=False)
    trained.fit(loader(), epochs=1, steps=3, callbacks=[note], progress=False)
    trained.fit(lambda: iter([(X, Y)]), epochs=2, callbacks=[note], progress=False)
    assert plans == [Plan(2, 8, 4, 12), Plan(3, 11, 4, 12, 2, 8), Plan(5, None, None, None, 3, 11)]


def test_values_by_name() -> None:
    trained = learner(metrics={"mae": metrics.MeanAbsoluteError()})
    trained.fit(loader(), epochs=1, validation=loader(), progress=False)
    assert set(trained.values()) == {"train/loss", "train/mae", "validation/loss", "validation/mae"}
    assert trained.value("validation/mae") == trained.history[-1].validation["mae"]
    with pytest.raises(RunError, match=r"no value 'val_loss'; there are: train/loss"):
        trained.value("val_loss")


def test_rates_are_scaled_by_what_a_callback_says() -> None:
    trained = learner()

    def halve(learner: Any) -> None:
        learner.lr_scale *= 0.5

    trained.fit(loader(), epochs=3, callbacks=[LambdaCallback(on_epoch_end=halve)], progress=False)
    assert [one.lr for one in trained.history] == [0.05, 0.025, 0.0125]


def test_data_without_a_batch_is_said() -> None:
    with pytest.raises(RunError, match="epoch 1 has no batch"):
        learner().fit(list, epochs=1, progress=False)


def test_lambda_callback_knows_its_events() -> None:
    with pytest.raises(RunError, match="no event 'on_batch'"):
        LambdaCallback(on_batch=print)
    with pytest.raises(RunError, match="on_step_end is 3"):
        LambdaCallback(on_step_end=3)  # type: ignore[arg-type]


def test_reports_as_plain_values() -> None:
    report = EpochReport(2, 8, {"head": 0.1, "*": 0.01}, plain({"recall": np.array([0.5, 1.0])}), {"loss": 1}, 2.0, 96)
    assert EpochReport.from_plain(report.to_plain()) == report
    assert report.rate == 48.0
    assert report.flat() == {
        "epoch": 2, "step": 8, "lr/head": 0.1, "lr/*": 0.01, "train/recall/0": 0.5, "train/recall/1": 1.0,
        "validation/loss": 1, "seconds": 2.0, "rows_per_second": 48.0,
    }  # fmt: skip
    assert flattened("a", {"b": {"c": 1}, "d": "text"}) == {"a/b/c": 1}


@pytest.mark.parametrize(("measured", "most"), [({}, 365), ({"accuracy": metrics.Accuracy()}, 610)])
def test_a_step_makes_few_calls(measured: dict[str, Any], most: int) -> None:
    """Counted between two trainings, so that what happens once does not count; some ask an engine, once it is there."""
    rows, labels = X[:4], np.array([0, 2, 1, 1], np.int32)
    model = nn.Linear(3, 3, device=Autodiff(NumPy()).device()).init(0)
    trained = Learner(model, optim.SgdConfig(), 0.05, nn.cross_entropy_loss, metrics=measured)
    counts: list[int] = []
    for steps in (4, 4, 20):
        calls, _ = calls_of(lambda steps=steps: trained.fit(lambda: [(rows, labels)] * 24, steps=steps, progress=False))
        counts.append(calls)
    assert (counts[2] - counts[1]) / 16 <= most
