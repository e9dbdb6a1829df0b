"""What a learner does on trial: afterwards it is as it was.

Serves: phlox/train/trials/lr_find.py, phlox/train/trials/dry_run.py, phlox/train/trials/trial.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.backend import Jax, NumPy
from phlox.data import Loader
from phlox.errors import RunError
from phlox.record import Record
from phlox.train import Callback, Checkpoints, EarlyStopping, Learner, Unfreeze

pytestmark = pytest.mark.filterwarnings("ignore:.*batch norm takes:phlox.errors.RunWarning")
X = np.random.default_rng(0).normal(size=(96, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]]).astype(np.float32)
ENGINES = {"numpy": NumPy(), "jax": Jax()}


def learner(engine: str = "numpy", **options: Any) -> Learner[Any]:
    with px.random.stream(2):
        model = nn.Sequential([nn.Linear(3, 8), nn.BatchNorm(8), nn.Dropout(0.1), nn.Linear(8, 1)])
        model = model.init(device=ENGINES[engine].device())
        given: dict[str, Any] = {"lr": 0.01, "metrics": {"r2": metrics.R2()}, **options}
        return Learner(model, optim.AdamWConfig(), loss=nn.mse_loss, **given)


def data() -> Loader:
    return Loader((X, Y), 12, shuffle=True)


def same(one: Record, other: Record) -> bool:
    return (
        list(one) == list(other)
        and one.values == other.values
        and all((entry.tensor.read() == other.tensors[path].tensor.read()).all() for path, entry in one.tensors.items())
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"ema": 0.9}, {"accumulate": 3}], ids=str)
def test_nothing_changes(engine: str, options: dict[str, Any]) -> None:
    trained = learner(engine, **options)
    trained.model = trained.model.freeze("layers.0.**")
    trained.fit(data(), steps=3, progress=False)
    before, fields = trained.snapshot(), dict(vars(trained))
    for act in (
        lambda: trained.lr_find(data(), steps=20),
        lambda: trained.dry_run(data(), validation=data(), callbacks=[Unfreeze("layers.0.**", epoch=1)]),
    ):
        act()
        assert same(trained.snapshot(), before)
        assert {
            name: value for name, value in vars(trained).items() if name in ("folder", "plan", "stopped", "step")
        } == {name: value for name, value in fields.items() if name in ("folder", "plan", "stopped", "step")}
        assert [param.trained for param in trained.model.params()][:2] == [False, False]
    other = learner(engine, **options)
    other.model = other.model.freeze("layers.0.**")
    other.fit(data(), steps=3, progress=False)
    for one in (trained, other):
        one.fit(data(), epochs=1, progress=False)
    assert [one.train for one in trained.history] == [one.train for one in other.history]


def test_a_trial_that_fails_changes_nothing_either() -> None:
    trained = learner()
    before = trained.snapshot()

    class Fails(Callback):
        def on_epoch_end(self, learner: Any) -> None:
            raise OSError("in the evening")

    with pytest.raises(OSError, match="in the evening"):
        trained.dry_run(data(), callbacks=[Fails()])
    assert same(trained.snapshot(), before)


def test_lr_find_sees_where_the_loss_falls_and_where_it_diverges() -> None:
    model = nn.Linear(3, 1).init(0)
    trained = Learner(model, optim.SgdConfig(), 1.0, nn.mse_loss)
    curve = trained.lr_find(Loader((X, Y), 12), low=1e-5, high=10.0, steps=80)
    # Gradient descent diverges above 2 / (the greatest curvature), and is fastest well below.
    limit = 2.0 / np.linalg.eigvalsh(2.0 * np.cov(np.c_[X, np.ones(len(X))].T, bias=True)).max()
    assert limit / 100 < curve.suggestion < limit
    assert curve.rates[-1] < 10.0 and len(curve.rates) == len(curve.losses) < 80
    assert "it falls fastest at" in str(curve)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 0.0}, "rates above 0"),
        ({"low": 1.0, "high": 0.1}, "high the higher one"),
        ({"steps": 3}, "10 or more"),
    ],
    ids=str,
)
def test_wrong_rates_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        learner().lr_find(data(), **options)


def test_a_dry_run_says_what_it_has_found(tmp_path: Any, capsys: Any) -> None:
    callbacks = [EarlyStopping("validation/r2"), Checkpoints(tmp_path / "checkpoints")]
    trained = learner()
    found = trained.dry_run(data(), validation=data(), callbacks=callbacks)
    assert not (tmp_path / "checkpoints").exists() and found.left_out == ("Checkpoints",)
    assert found.model == 4 * sum(param.val().size for param in trained.model.params())
    assert found.optimizer >= 2 * 4 * sum(param.val().size for param in trained.model.params() if param.trained)
    assert found.step > 0.0 and found.first_step > 0.0 and found.checkpoint > found.model
    assert found.process is not None and found.process > 10_000_000
    assert found.device is None  # a processor has no memory of its own
    trained.fit(data(), epochs=3, validation=data(), callbacks=callbacks, dry_run=True)
    out = capsys.readouterr().out
    assert out.startswith("dry run: all went well") and "resumed bit for bit" in out
    assert trained.step == 0


def test_a_dry_run_finds_what_would_fail_late() -> None:
    with pytest.raises(RunError, match=r"no value 'validation/r3'"):
        learner().dry_run(data(), validation=data(), callbacks=[EarlyStopping("validation/r3", mode="max")])
    with pytest.raises(RunError, match="would be used up"):
        learner().dry_run(iter([(X, Y)]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dry_run_looks_at_labels_that_a_compiled_step_does_not(engine: str) -> None:
    model = nn.Linear(3, 2).init(0, ENGINES[engine].device())
    trained = Learner(model, optim.SgdConfig(), 0.1, nn.cross_entropy_loss)
    labels = np.zeros(len(X), np.int64)
    labels[5] = 2
    with pytest.raises(IndexError, match="2"):
        trained.dry_run(Loader((X, labels), 12))


def test_a_curve_that_does_not_fall_can_be_shown() -> None:
    curve = learner(lr=0.1).lr_find(Loader((X, Y), 16), low=1e-12, high=1e-11, steps=10)
    rising = type(curve)(curve.rates, sorted(curve.losses))
    assert "the loss does not fall at any of the rates" in str(rising)
    with pytest.raises(RunError, match="does not fall"):
        _ = rising.suggestion


def test_lr_find_needs_a_loss() -> None:
    def update(model: Any, optimizer: Any, lr: Any, batch: Any) -> Any:
        return model, {"cost": nn.mse_loss(model(batch[0]), batch[1])}

    one = Learner(nn.Linear(3, 1), optim.SgdConfig(), 0.1, update=update)
    with pytest.raises(RunError, match="put a 'loss' into its logs"):
        one.lr_find(Loader((X, Y), 16), steps=10)


@pytest.mark.parametrize("engine", ENGINES)
def test_data_made_by_a_function_and_a_carry_go_through_a_dry_run(engine: str) -> None:
    def step(model: Any, batch: Any, carry: Any) -> Any:
        output = model(batch[0]) + carry.mean()
        return nn.mse_loss(output, batch[1]), output

    model = nn.Linear(3, 1).init(0, ENGINES[engine].device())
    one = Learner(model, optim.SgdConfig(), 0.1, step=step, carry=np.zeros((16, 1), np.float32))
    assert "resumed bit for bit" in str(one.dry_run(lambda: iter(Loader((X, Y), 16))))
    with pytest.raises(RunError, match="give a function that makes them"):
        one.dry_run(iter(Loader((X, Y), 16)))
