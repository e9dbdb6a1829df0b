"""Callbacks that steer a training: when they act, what they leave behind, and how they are resumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from phlox import nn, optim
from phlox.errors import ModuleError, RunError
from phlox.record import load, restore, save
from phlox.record.gather import gather
from phlox.train.observers.callback import Callback
from phlox.train.observers.callbacks.control import EarlyStopping, ReduceOnPlateau, StopAfter, Unfreeze
from tests.train.fakes import FakeLearner


def by_epoch(values: list[float], name: str = "loss", every: int = 4) -> Callable[[int], Mapping[str, float]]:
    """The values of the validations, one after each epoch."""
    return lambda step: {name: values[(step - 1) // every]}


# --- EarlyStopping


@pytest.mark.parametrize(
    ("patience", "values", "epochs"),
    [
        (2, [3.0, 2.0, 2.5, 2.0, 1.0], 4),  # equal is no better
        (3, [3.0, 2.0, 2.5, 2.0, 1.0], 5),
        (1, [3.0, math.nan, 1.0], 2),
        (2, [math.nan, math.nan, 1.0], 2),
        (9, [3.0, 4.0, 5.0], 3),
    ],
)
def test_it_stops_after_so_many_looks_without_improvement(patience: int, values: list[float], epochs: int) -> None:
    learner = FakeLearner(validation=by_epoch(values))
    learner.fit([EarlyStopping(patience=patience)], epochs=len(values))
    assert learner.epoch == epochs
    assert (learner.stopped is None) == (epochs == len(values))


def test_it_says_why() -> None:
    learner = FakeLearner(validation=by_epoch([0.5, 0.75, 0.7, 0.75], "accuracy"))
    learner.fit([EarlyStopping("validation/accuracy", patience=2)], epochs=9)
    assert learner.stopped == "validation/accuracy has not got better than 0.75 (epoch 2, step 8) for 2 validations"
    learner = FakeLearner(train=lambda step: {"loss": math.nan})
    learner.fit([EarlyStopping("train/loss", patience=1)], epochs=9)
    assert learner.stopped == "train/loss has been no number for 1 epoch"


def test_a_threshold_ends_it_at_once() -> None:
    learner = FakeLearner(validation=by_epoch([0.5, 0.95, 1.0], "accuracy"))
    learner.fit([EarlyStopping("validation/accuracy", threshold=0.9)], epochs=3)
    assert learner.epoch == 2
    assert learner.stopped == "validation/accuracy is 0.95, as good as the threshold 0.9"
    learner = FakeLearner(validation=by_epoch([0.5, 0.1, 0.0]))
    assert learner.fit([EarlyStopping(threshold=0.1)], epochs=3).epoch == 2


def test_it_stops_in_the_middle_of_an_epoch() -> None:
    learner = FakeLearner(validation=lambda step: {"loss": float(step)})
    learner.fit([EarlyStopping(patience=2)], epochs=3, steps_per_epoch=10, validate_at=[2, 4, 6, 8])
    assert (learner.step, learner.epoch) == (6, 0)


class Descends(Callback):
    """The weights of each step are its number."""

    def on_step_end(self, learner: Any) -> None:
        learner.model.weight.set(learner.model.weight.val() * 0.0 + float(learner.step))


def weight(learner: FakeLearner) -> float:
    return float(learner.model.weight.val().mean().item())


def learner_with_model(values: list[float], backend: str = "numpy") -> FakeLearner:
    model = nn.Linear(2, 3, bias=False, device=backend).init()
    return FakeLearner(validation=by_epoch(values), model=model)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_the_best_weights_come_back(backend: str) -> None:
    learner = learner_with_model([3.0, 1.0, 2.0, 2.0, 2.0], backend)
    model = learner.model
    learner.fit([Descends(), EarlyStopping(patience=2, restore_best=True)], epochs=5)
    assert learner.step == 16 and weight(learner) == 8.0 and learner.model is model
    assert learner.events == [(16, "the model has the weights of epoch 2, step 8 again: validation/loss was best, 1")]
    without = learner_with_model([3.0, 1.0, 2.0, 2.0, 2.0]).fit([Descends(), EarlyStopping(patience=2)], epochs=5)
    assert weight(without) == 16.0 and without.events == []


def test_the_last_weights_stay_where_they_are_the_best() -> None:
    learner = learner_with_model([3.0, 2.0, 1.0]).fit([Descends(), EarlyStopping(restore_best=True)], epochs=3)
    assert weight(learner) == 12.0 and learner.events == []


def test_the_best_weights_of_several_models() -> None:
    learner = learner_with_model([1.0, 2.0, 3.0])
    one, two = learner.model, nn.Linear(2, 2, bias=False).init()
    learner.model = {"one": one, "two": two}

    class DescendBoth(Callback):
        def on_step_end(self, learner: Any) -> None:
            for number, module in enumerate(learner.model.values()):
                module.weight.set(module.weight.val() * 0.0 + float(learner.step + 100 * number))

    learner.fit([DescendBoth(), EarlyStopping(restore_best=True)], epochs=3)
    assert [float(module.weight.val().mean().item()) for module in (one, two)] == [4.0, 104.0]


def test_after_an_exception_the_model_is_what_the_last_step_made_of_it() -> None:
    class Fails(Callback):
        def on_epoch_end(self, learner: Any) -> None:
            if learner.epoch == 2:
                raise KeyboardInterrupt

    stopping = EarlyStopping(restore_best=True)
    learner = learner_with_model([1.0, 2.0, 3.0])
    with pytest.raises(KeyboardInterrupt):
        learner.fit([Descends(), stopping, Fails()], epochs=3)
    assert weight(learner) == 8.0 and stopping.best_weights is not None
    learner.model.load_record(stopping.best_weights)
    assert weight(learner) == 4.0


def test_another_training_knows_nothing_of_the_one_before() -> None:
    stopping = EarlyStopping(patience=2, restore_best=True)
    learner_with_model([0.1, 0.2, 0.3]).fit([stopping], epochs=3)
    second = learner_with_model([5.0, 4.0, 4.5, 4.5])
    second.fit([Descends(), stopping], epochs=4)
    assert second.stopped is not None and second.epoch == 4 and weight(second) == 8.0


def test_resumed_it_is_as_if_it_had_not_ended(tmp_path: Path) -> None:
    values = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    first = EarlyStopping(patience=3, restore_best=True)
    learner = learner_with_model(values)
    learner.fit([Descends(), first], epochs=3, to_end=False)
    path = save(gather(stopping=first), tmp_path / "checkpoint.safetensors")
    second = EarlyStopping(patience=3, restore_best=True)
    restore(load(path), stopping=second)
    path.unlink()
    assert second.state() == first.state()
    learner.fit([Descends(), second], epochs=6, resumed=True)
    assert learner.epoch == 5 and weight(learner) == 8.0


def test_resumed_of_its_state_alone_it_says_that_it_has_no_weights() -> None:
    first = EarlyStopping(patience=3, restore_best=True)
    learner = learner_with_model([3.0, 1.0, 2.0, 2.0, 2.0]).fit([first], epochs=3, to_end=False)
    second = EarlyStopping(patience=3, restore_best=True)
    second.restore(first.state())
    learner.fit([Descends(), second], epochs=6, resumed=True)
    assert weight(learner) == 20.0 and "are not in the checkpoint" in learner.events[-1][1]


def test_another_fit_begins_with_full_patience() -> None:
    stopping = EarlyStopping(patience=2)
    learner = FakeLearner(validation=by_epoch([1.0, 2.0, 2.0, 2.0, 2.0, 2.0]))
    assert learner.fit([stopping], epochs=9).epoch == 3
    assert learner.fit([stopping], epochs=9).epoch == 5
    assert stopping.best == 1.0


@pytest.mark.parametrize("options", [{"patience": 0}, {"patience": 1.5}, {"threshold": "x"}, {"threshold": math.nan}])
def test_wrong_arguments_of_early_stopping(options: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=f"EarlyStopping: {next(iter(options))} must be"):
        EarlyStopping(**options)


# --- ReduceOnPlateau


def plateau(**options: Any) -> optim.ReduceOnPlateauLr:
    return optim.ReduceOnPlateauLr(0.1, factor=0.5, patience=0, **options)


def test_the_schedule_hears_of_the_value_and_the_events_of_the_rate() -> None:
    learner = FakeLearner(validation=by_epoch([3.0, 2.0, 2.5, math.nan, 1.0]))
    learner.schedule = plateau()
    learner.fit([ReduceOnPlateau()], epochs=5)
    assert learner.schedule.step() == 0.025
    assert learner.events == [
        (12, "validation/loss (2.5) gets no better: the learning rate is 0.05, it was 0.1"),
        (16, "validation/loss (nan) gets no better: the learning rate is 0.025, it was 0.05"),
    ]


def test_parts_of_schedules_and_dicts_of_them() -> None:
    learner = FakeLearner(validation=by_epoch([0.5, 0.4], "accuracy"))
    learner.schedule = {
        "one": optim.ConstantLr(1.0) * plateau(mode="max"),
        "two": optim.ConstantLr(0.3),
        "three": optim.GroupedLr({"head": plateau(mode="max"), "*": 0.7}),
    }
    learner.fit([ReduceOnPlateau("validation/accuracy")], epochs=2)
    assert learner.schedule["one"].step() == 0.05 and learner.schedule["two"].step() == 0.3
    assert learner.schedule["three"].step() == {"head": 0.05, "*": 0.7}
    assert [text.partition(": ")[2] for _, text in learner.events] == [
        "the learning rate of one is 0.05, it was 0.1",
        "the learning rate of three of head is 0.05, it was 0.1",
    ]


def test_a_nan_is_the_worst_where_more_is_better() -> None:
    learner = FakeLearner(validation=by_epoch([0.5, math.nan], "accuracy"))
    learner.schedule = plateau(mode="max")
    learner.fit([ReduceOnPlateau("validation/accuracy")], epochs=2)
    assert learner.schedule.step() == 0.05


@pytest.mark.parametrize("schedule", [None, optim.ConstantLr(0.1), {"a": optim.ConstantLr(0.1)}])
def test_a_schedule_that_does_not_listen(schedule: Any) -> None:
    learner = FakeLearner(validation=by_epoch([1.0]))
    learner.schedule = schedule
    with pytest.raises(RunError, match=r"no part of the learner's schedule listens.*ReduceOnPlateauLr"):
        learner.fit([ReduceOnPlateau()])


def test_a_schedule_that_takes_worse_for_better() -> None:
    learner = FakeLearner(validation=by_epoch([1.0], "accuracy"))
    learner.schedule = plateau()
    with pytest.raises(RunError, match=r"more of 'validation/accuracy' is better.*mode=\"max\""):
        learner.fit([ReduceOnPlateau("validation/accuracy")])
    learner = FakeLearner(validation=by_epoch([1.0], "heat"))
    learner.schedule = plateau()
    assert learner.fit([ReduceOnPlateau("validation/heat")]).epoch == 1


# --- Unfreeze


def frozen() -> Any:
    return nn.Sequential([nn.Linear(2, 2), nn.Linear(2, 1)]).init().freeze("layers.0.**")


def trained(model: Any) -> list[str]:
    return [path for path, param in model.named_params() if param.trained]


class Looks(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, bool, float]] = []

    def on_step_end(self, learner: Any) -> None:
        self.seen.append((learner.step, "layers.0.weight" in trained(learner.model), learner.lr_scale))


def test_it_unfreezes_before_the_epoch_begins() -> None:
    learner, looks = FakeLearner(model=frozen()), Looks()
    learner.fit([Unfreeze("layers.0.weight", epoch=3, lr_scale=0.5), looks], epochs=4, steps_per_epoch=1)
    assert looks.seen == [(1, False, 1.0), (2, False, 1.0), (3, True, 0.5), (4, True, 0.5)]
    assert trained(learner.model) == ["layers.0.weight", "layers.1.weight", "layers.1.bias"]
    assert learner.events == []
    learner = FakeLearner(model=frozen())
    learner.fit([Unfreeze(["layers.0.weight", "layers.0.bias"], epoch=1), looks], epochs=1, steps_per_epoch=1)
    assert looks.seen[-1] == (1, True, 1.0) and len(trained(learner.model)) == 4


def test_resumed_it_unfreezes_again_and_scales_once() -> None:
    first, second = Unfreeze("layers.0.**", epoch=2, lr_scale=0.5), Unfreeze("layers.0.**", epoch=2, lr_scale=0.5)
    learner = FakeLearner(model=frozen()).fit([first], epochs=2)
    second.restore(first.state())
    learner.model, looks = frozen(), Looks()  # as the program makes it; lr_scale is saved by the learner
    learner.fit([second, looks], epochs=3, steps_per_epoch=1, resumed=True)
    assert looks.seen == [(9, True, 0.5)]


def test_a_callback_is_used_for_another_training() -> None:
    callback = Unfreeze("layers.0.**", epoch=2)
    FakeLearner(model=frozen()).fit([callback], epochs=2)
    looks = Looks()
    FakeLearner(model=frozen()).fit([callback, looks], epochs=2, steps_per_epoch=1)
    assert [at for _, at, _ in looks.seen] == [False, True]


def test_one_of_several_models() -> None:
    learner = FakeLearner(model={"a": frozen(), "b": frozen()})
    learner.fit([Unfreeze(lambda path, param: path.endswith("bias"), epoch=1, model="b")])
    assert "layers.0.bias" in trained(learner.model["b"]) and "layers.0.bias" not in trained(learner.model["a"])
    with pytest.raises(RunError, match="the learner has the models a, b; give model="):
        learner.fit([Unfreeze("**", epoch=1)])
    with pytest.raises(RunError, match="without a name, got model='a'; leave out model="):
        FakeLearner(model=frozen()).fit([Unfreeze("**", epoch=1, model="a")])


def test_wrong_patterns_and_epochs_show_at_once() -> None:
    with pytest.raises(ModuleError, match="Unfreeze: "):
        FakeLearner(model=frozen()).fit([Unfreeze("layers.7.**", epoch=9)])
    with pytest.raises(RunError, match="epoch must be a whole number, the first being 1"):
        Unfreeze("**", epoch=0)
    with pytest.raises(RunError, match="lr_scale must be"):
        Unfreeze("**", epoch=1, lr_scale=-1.0)
    learner = FakeLearner(model=nn.Linear(2, 2).init()).fit([Unfreeze("weight", epoch=9)])
    assert "none of these parameters is frozen" in learner.events[0][1]


# --- StopAfter


@pytest.mark.parametrize(
    ("options", "step", "reason"),
    [
        ({"epochs": 2}, 8, "2 epochs have ended"),
        ({"steps": 7}, 7, "7 steps were taken"),
        ({"seconds": 4.5}, 5, "5 seconds have passed"),
        ({"epochs": 3, "steps": 5, "seconds": 100.0}, 5, "5 steps"),
        ({"value": ("validation/accuracy", 0.75)}, 12, "validation/accuracy is 0.9, as good as 0.75"),
        ({"value": ("validation/accuracy", 0.6, "min")}, 4, "validation/accuracy is 0.5, as good as 0.6"),
        ({"value": ("train/loss", 0.15)}, 8, "train/loss is 0.1"),
    ],
)
def test_it_ends_after_the_first_of_these(options: dict[str, Any], step: int, reason: str) -> None:
    learner = FakeLearner(
        train=lambda step: {"loss": 0.2 if step <= 4 else 0.1}, validation=by_epoch([0.5, 0.7, 0.9, 0.95], "accuracy")
    )
    learner.fit([StopAfter(**options)], epochs=4)
    assert learner.step == step and learner.stopped is not None and learner.stopped.startswith(reason)


@pytest.mark.parametrize(
    "options",
    [{}, {"epochs": 0}, {"steps": 1.5}, {"seconds": 0.0}, {"value": ("validation/heat", 1.0)}, {"value": "loss"},
     {"value": ("validation/loss", "low")}, {"value": ("validation/loss", 1.0, "down")}],
)  # fmt: skip
def test_wrong_arguments_of_stop_after(options: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="StopAfter: "):
        StopAfter(**options)
