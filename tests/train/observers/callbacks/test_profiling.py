"""The speed of a training by a clock of ours, and profiles that the tools of the engines open.

Serves: src/phlox/train/observers/callbacks/profiling.py, src/phlox/backend/contract/profiling.py
Serves: src/phlox/backend/jax/profiling.py
Serves: src/phlox/backend/torch/backend.py
"""

from __future__ import annotations

import gzip
import json
import pstats
from pathlib import Path
from typing import Any

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import RunError
from phlox.train.observers.callback import Callback
from phlox.train.observers.callbacks import profiling
from phlox.train.observers.callbacks.profiling import Profile, Throughput
from tests.train.fakes import FakeLearner


class Clock(Callback):
    """A clock that steps, validations and the time between epochs move, each of it in its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
        self.now, self.seconds = 100.0, seconds
        monkeypatch.setattr(profiling, "perf_counter", lambda: self.now)

    def step(self, step: int) -> dict[str, float]:
        self.now += self.seconds[step - 1]
        return {"loss": 0.0}

    def validate(self, step: int) -> dict[str, float]:
        self.now += 500.0
        return {"loss": 0.0}

    def on_epoch_end(self, learner: Any) -> None:
        self.now += 1000.0


def test_the_median_of_windows_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [50.0, 1.0, 2.0, 2.0, 1.0, 1.0, 4.0, 4.0])  # windows of two: 51, then 4, 2, 8
    speed = Throughput(2, flops_per_row=10.0, tokens_per_row=3.0, peak_flops=100.0)
    learner = FakeLearner(train=clock.step, rows_per_step=4).fit([clock, speed], epochs=1, steps_per_epoch=8)
    assert speed.values == {
        "steps_per_second": 0.5, "rows_per_second": 2.0, "tokens_per_second": 6.0, "flops_per_second": 20.0,
        "utilization": 0.2,
    }  # fmt: skip
    assert learner.extra == {f"throughput/{name}": value for name, value in speed.values.items()}


@pytest.mark.parametrize("validates", [True, False])
def test_windows_go_over_epochs_and_leave_out_what_is_between(validates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [9.0] * 3 + [2.0] * 7)
    speed = Throughput(3)
    learner = FakeLearner(train=clock.step, validation=clock.validate if validates else None)
    learner.fit([speed, clock], epochs=5, steps_per_epoch=2, validate_at=[3, 5])
    assert speed.values == {"steps_per_second": 0.5, "rows_per_second": 2.0}


def test_no_values_before_the_second_window() -> None:
    speed = Throughput(4)
    learner = FakeLearner().fit([speed], epochs=1, steps_per_epoch=7)
    assert speed.values == {} and learner.extra == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every_steps": 0}, "every_steps must be"),
        ({"flops_per_row": -1.0}, "flops_per_row must be"),
        ({"tokens_per_row": float("nan")}, "tokens_per_row must be"),
        ({"peak_flops": 1e12}, "give flops_per_row="),
    ],
)
def test_wrong_arguments_of_throughput(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        Throughput(**options)


class Work(Callback):
    """Each step computes something on the device, under a name that a profile shows."""

    def on_step_end(self, learner: Any) -> None:
        computed_in_a_step(learner.device)


def computed_in_a_step(device: Any) -> float:
    x = px.ones((16, 16), device=device)
    return float((x @ x).sum().item())


def trained(profile: Profile, backend: Any, steps: int = 6) -> FakeLearner:
    learner = FakeLearner()
    learner.device = backend.device()
    return learner.fit([profile, Work()], epochs=1, steps_per_epoch=steps)


def test_a_profile_of_python_where_the_engine_has_none(tmp_path: Path) -> None:
    profile = Profile((3, 4), tmp_path / "profiles")
    learner = trained(profile, Autodiff(NumPy()))
    assert profile.path == tmp_path / "profiles" / "profile.prof"
    calls: Any = pstats.Stats(str(profile.path)).stats  # pyright: ignore[reportAttributeAccessIssue]
    assert {key[2]: found[0] for key, found in calls.items()}["computed_in_a_step"] == 2  # of steps 2 and 3
    [(step, text)] = learner.events
    assert step == 4 and f"steps 3 to 4 is in {profile.path}; open it with python -m pstats" in text


def test_a_trace_by_torch(tmp_path: Path) -> None:
    profile = Profile((2, 4), tmp_path)
    trained(profile, Torch())
    assert profile.path is not None
    events = json.loads(profile.path.read_text())["traceEvents"]
    assert any(event.get("name") in ("aten::mm", "aten::matmul") for event in events)


def test_a_trace_by_jax(tmp_path: Path) -> None:
    profile = Profile((2, 4), tmp_path)
    trained(profile, Jax())
    assert profile.path is not None and list(profile.path.parent.glob("*.xplane.pb"))
    assert json.loads(gzip.decompress(profile.path.read_bytes()))["traceEvents"]


def test_the_folder_is_that_of_the_run(tmp_path: Path) -> None:
    profile = Profile((1, 1))
    learner = FakeLearner()
    learner.device, learner.folder = NumPy().device(), tmp_path / "run"
    learner.fit([profile], epochs=1, steps_per_epoch=2)
    assert profile.path == tmp_path / "run" / "profile" / "profile.prof"
    assert (tmp_path / "run" / "profile" / "profile.prof").is_file()


def test_a_training_that_ends_early_is_profiled_up_to_there(tmp_path: Path) -> None:
    profile = Profile((2, 100), tmp_path)
    learner = trained(profile, NumPy(), steps=3)
    assert profile.path is not None and profile.path.is_file() and "steps 2 to 3" in learner.events[0][1]
    never = Profile((50, 100), tmp_path / "never")
    assert trained(never, NumPy()).events == [] and never.path is None and not (tmp_path / "never").exists()


def test_what_cannot_be_written_is_said_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    learner = trained(Profile((2, 3), tmp_path / "file" / "below"), NumPy())
    assert learner.step == 6 and len(learner.events) == 1
    assert "the profiler cannot be started" in learner.events[0][1]


def test_a_resumed_training_past_the_steps_is_not_profiled(tmp_path: Path) -> None:
    profile = Profile((2, 3), tmp_path / "none")
    learner = FakeLearner()
    learner.device = NumPy().device()
    learner.step, learner.epoch = 8, 1
    learner.fit([profile], epochs=2, resumed=True)
    assert profile.path is None and learner.events == []


@pytest.mark.parametrize("steps", [(0, 3), (5, 4), (3,), 3, ("a", "b")])
def test_steps_that_are_none(steps: Any) -> None:
    with pytest.raises(RunError, match="Profile: "):
        Profile(steps)
