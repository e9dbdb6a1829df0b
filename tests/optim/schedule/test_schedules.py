"""What holds for all schedules alike: ends, records, composition, groups, and what they refuse.

Serves: phlox/optim/schedule/
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phlox as px
from phlox import nn, optim
from phlox.backend import NumPy
from phlox.errors import OptimizerError, RecordError
from phlox.optim.schedule.base import COUNT
from phlox.record import JsonRecorder, Record, SafetensorsRecorder, gather, restore


class CountingLr(optim.LrSchedule):
    """A user's own, with a state of its own: halved with every report."""

    saved: ClassVar = {"heard": COUNT}

    def __init__(self) -> None:
        self.heard = 0

    def rate(self, step: int) -> float:
        return 0.5**self.heard

    def hear(self, metric: float) -> None:
        self.heard += 1


def plateau() -> optim.ReduceOnPlateauLr:
    return optim.ReduceOnPlateauLr(0.4, factor=0.5, patience=1, cooldown=1)


def shared() -> optim.GroupedLr:
    waits = plateau()
    return optim.GroupedLr({"body.0": waits, "head%": 2.0 * waits, "*": optim.StepLr(0.1, step_size=3)})


MADE: dict[str, Callable[[], optim.LrSchedule[Any]]] = {
    "constant": lambda: optim.ConstantLr(0.1),
    "function": lambda: optim.FunctionLr(lambda step: 1.0 / (1.0 + step)),
    "linear": lambda: optim.LinearLr(1.0, 0.1, num_iters=20),
    "cosine": lambda: optim.CosineAnnealingLr(1.0, num_iters=20, min_lr=0.1),
    "restarts": lambda: optim.CosineRestartsLr(1.0, num_iters=4, multiplier=2),
    "exponential": lambda: optim.ExponentialLr(1.0, gamma=0.9),
    "step": lambda: optim.StepLr(1.0, step_size=5),
    "multi-step": lambda: optim.MultiStepLr(1.0, milestones=(3, 20), gamma=0.3),
    "polynomial": lambda: optim.PolynomialLr(1.0, num_iters=20, power=2.0),
    "noam": lambda: optim.NoamLr(model_size=16, warm_up=10),
    "inverse square root": lambda: optim.InverseSqrtLr(1.0, timescale=10),
    "cyclic": lambda: optim.CyclicLr(0.1, 1.0, step_size_up=4, mode="exp_range", gamma=0.95),
    "one cycle": lambda: optim.OneCycleLr(1.0, num_iters=30),
    "plateau": plateau,
    "user's own": CountingLr,
    "warm-up": lambda: optim.WarmUpLr(optim.CosineAnnealingLr(1.0, num_iters=20), num_iters=9),
    "warm-up, plateau": lambda: optim.WarmUpLr(plateau(), num_iters=9),
    "sequence": lambda: optim.SequenceLr([0.3, plateau(), optim.WarmUpLr(plateau(), num_iters=5)], milestones=[5, 21]),
    "product": lambda: optim.ExponentialLr(1.0, gamma=0.9) * plateau(),
    "sum": lambda: 0.1 + optim.CyclicLr(0.0, 1.0, step_size_up=3) + plateau() * plateau(),
    "groups": shared,
}
ENDS = {"linear": 20, "cosine": 20, "multi-step": 20, "polynomial": 20, "one cycle": 29, "warm-up": 29}


def go_on(schedule: optim.LrSchedule[Any], start: int, stop: int) -> list[Any]:
    rates: list[Any] = []
    for step in range(start, stop):
        rates.append(schedule.step())
        if step % 2:
            schedule.report(abs(math.sin(step)))
    return rates


@pytest.mark.parametrize("name", ENDS)
def test_past_its_end_a_schedule_stays(name: str) -> None:
    schedule, end = MADE[name](), ENDS[name]
    assert schedule.rate(end - 1) != schedule.rate(end) == schedule.rate(end + 1) == schedule.rate(10**12)


@pytest.mark.parametrize("recorder", [SafetensorsRecorder(), JsonRecorder()], ids=["safetensors", "json"])
@pytest.mark.parametrize("name", MADE)
def test_a_schedule_goes_on_from_its_record_exactly(name: str, recorder: Any) -> None:
    whole = go_on(MADE[name](), 0, 40)
    for stop in (0, 1, 7, 14, 25):
        schedule = MADE[name]()
        assert go_on(schedule, 0, stop) == whole[:stop]
        record = recorder.from_bytes(recorder.to_bytes(schedule.into_record()))
        again, later = MADE[name](), MADE[name]()
        go_on(later, 0, 3)
        again.load_record(record)
        load = later.prepare_load(record)
        assert later.taken == 3
        load()
        for resumed in (schedule, again, later):
            assert resumed.taken == stop and go_on(resumed, stop, 40) == whole[stop:]


def schedules() -> st.SearchStrategy[Callable[[], optim.LrSchedule]]:
    """Schedules of schedules, as functions that make them anew."""
    simple = st.sampled_from([make for name, make in MADE.items() if name != "groups"])
    counts = st.integers(1, 12)

    def composed(inner: Any) -> Any:
        return st.one_of(
            st.builds(lambda a, b: lambda: a() * b(), inner, inner),
            st.builds(lambda a, b: lambda: a() + b(), inner, inner),
            st.builds(lambda a, n: lambda: optim.WarmUpLr(a(), num_iters=n), inner, counts),
            st.builds(lambda a, b, n: lambda: optim.SequenceLr([a(), b()], milestones=[n]), inner, inner, counts),
        )

    return st.recursive(simple, composed, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 30))
def test_compositions_nest_and_go_on_from_their_records(make: Callable[[], optim.LrSchedule], stop: int) -> None:
    whole, schedule, again = go_on(make(), 0, 40), make(), make()
    go_on(schedule, 0, stop)
    again.load_record(schedule.into_record())
    assert go_on(again, stop, 40) == whole[stop:]
    assert repr(again.into_record()) == repr(go_on(schedule, stop, 40) and schedule.into_record())


def test_a_schedule_is_part_of_the_state_of_a_run() -> None:
    schedule, other = MADE["warm-up, plateau"](), MADE["warm-up, plateau"]()
    rates = go_on(schedule, 0, 30)
    record = gather(train={"schedule": schedule, "plain": MADE["cosine"]()})
    assert (
        record["train.schedule.taken"] == 30
        and record["train.schedule.parts.schedule.lr"] == schedule.rate(30) < rates[-1]
    )
    restore(record, train={"schedule": other, "plain": MADE["cosine"]()})
    assert go_on(schedule, 30, 50) == go_on(other, 30, 50)


def test_records_of_before_there_were_parts_are_read() -> None:
    schedule = optim.CosineAnnealingLr(1.0, num_iters=10)
    schedule.load_record(Record({"taken": 5}, {"schedule": "CosineAnnealingLr"}))
    assert schedule.step() == pytest.approx(0.5)
    schedule.load_record(Record({"taken": 10}))
    assert schedule.step() == 0.0


def test_the_settings_are_those_of_the_schedule_that_loads() -> None:
    schedule = optim.StepLr(1.0, step_size=2)
    schedule.load_record(MADE["step"]().into_record())
    assert schedule.rate(2) == 0.1
    schedule.taken = 2  # and any step can be gone to
    assert schedule.step() == 0.1 and schedule.taken == 3


def test_a_metric_reaches_whose_turn_it_is_and_once() -> None:
    one, two, both, last = CountingLr(), CountingLr(), CountingLr(), CountingLr()
    schedule = optim.SequenceLr([one * both + both, optim.WarmUpLr(two * both, num_iters=3), last], milestones=[2, 6])
    heard = []
    for _ in range(8):
        schedule.step()
        schedule.report(1.0)
        heard.append((one.heard, two.heard, both.heard, last.heard))
    # Its last step was one of the first part's twice, of the warm-up's thrice, of the second's once, of the last's.
    assert heard == [(1, 0, 1, 0), (2, 0, 2, 0), *[(2, 0, 2, 0)] * 3, (2, 1, 3, 0), (2, 1, 3, 1), (2, 1, 3, 2)]
    optim.ConstantLr(0.1).report(math.nan)  # nobody heeds it


def test_a_part_counts_from_its_own_first_step() -> None:
    first, second = CountingLr(), CountingLr()
    schedule = optim.WarmUpLr(optim.SequenceLr([first, second], milestones=[2]), num_iters=3)
    for _ in range(7):
        schedule.step()
        schedule.report(1.0)
    assert (first.heard, second.heard) == (2, 2)  # its steps 0 and 1 are numbers 3 and 4 of the whole


def test_names_of_groups_do_not_collide_in_the_record() -> None:
    names = ["a", "a.b", "a%2Eb", "a%252Eb", "*"]
    one, other = ({name: CountingLr() for name in names} for _ in range(2))
    for number, part in enumerate(one.values()):
        part.heard = number
    again = optim.GroupedLr(other)
    again.load_record(optim.GroupedLr(one).into_record())
    assert [part.heard for part in other.values()] == [0, 1, 2, 3, 4] and list(again.step()) == names


def test_groups_have_rates_of_their_own() -> None:
    model = nn.Sequential(body=nn.Linear(2, 3), head=nn.Linear(3, 1)).init(seed=0, device=NumPy(float="f64"))
    optimizer = optim.SgdConfig().init(groups=[optim.Group("layers.head.**", name="head", lr_factor=3.0)])
    schedule = optim.GroupedLr({"head": optim.LinearLr(0.1, 0.0, num_iters=2), "*": 0.01})
    ones = optim.GradientsParams({param.id: px.ones(param.shape, device=param.device) for param in model.params()})
    for head in (0.3, 0.15, 0.0):
        moved = optimizer.step(schedule.step(), model, ones)
        for (path, before), (_, after) in zip(model.named_params(), moved.named_params(), strict=True):
            drop = head if "head" in path else 0.01
            np.testing.assert_allclose(after.val().numpy(), before.val().numpy() - drop, rtol=0, atol=1e-15)


def test_groups_may_share_a_schedule() -> None:
    schedule = shared()
    for _ in range(3):
        schedule.report(1.0)  # one good, two bad: more than its patience
    assert schedule.step() == {"body.0": 0.2, "head%": 0.4, "*": 0.1}


@pytest.mark.parametrize("name", MADE)
def test_a_schedule_shows_its_settings(name: str) -> None:
    fresh = MADE[name]()
    shown = repr(fresh)
    assert shown.startswith(type(fresh).__name__ + "(") and "taken" not in shown
    if name not in ("function", "user's own"):
        go_on(fresh, 0, 9)
        assert repr(fresh) == shown


def test_the_repr() -> None:
    assert repr(0.5 * optim.StepLr(1, step_size=3)) == (
        "ProductLr(factors=(ConstantLr(lr=0.5), StepLr(initial_lr=1.0, step_size=3, gamma=0.1)))"
    )


def test_the_sketch() -> None:
    schedule = optim.LinearLr(0.0, 0.7, num_iters=7)
    assert schedule.sketch(8) == "▁▂▃▄▅▆▇█  0 to 0.7 in 8 steps"
    assert schedule.sketch(8, width=4) == "▂▄▆█  0 to 0.7 in 8 steps"
    assert schedule.sketch(1) == "▁  0 to 0 in 1 step" and schedule.taken == 0
    groups = optim.GroupedLr({"head": schedule, "*": 0.01})
    assert groups.sketch(4) == "head  ▁▃▆█  0 to 0.3 in 4 steps\n*     ████  0.01 to 0.01 in 4 steps"
    many = optim.LinearLr(0.0, 1.0, num_iters=80_000).sketch(100_000, width=10)
    assert many == "▁▂▃▄▅▆▇███  0 to 1 in 100000 steps"


NAN, INF = math.nan, math.inf
o: Any = optim  # to a type checker, much of what follows is wrong too
CONSTANT: Any = o.ConstantLr(0.1)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "negative rate": (lambda: o.ConstantLr(-0.1), "ConstantLr: lr must be a finite number of at least zero, got -0.1"),
    "NaN rate": (lambda: o.CosineAnnealingLr(NAN, num_iters=3), "initial_lr must be a finite .* got nan"),
    "infinite rate": (lambda: o.LinearLr(0.1, INF, num_iters=3), "LinearLr: final_lr must be a finite"),
    "a text": (lambda: o.ConstantLr("0.1"), "lr must be a finite number of at least zero, got '0.1'"),
    "a truth": (lambda: o.ConstantLr(True), "lr must be a finite number of at least zero, got True"),
    "zero steps": (lambda: o.LinearLr(0.1, 0.0, num_iters=0), "num_iters must be a whole number .* one, got 0"),
    "half a step": (lambda: o.StepLr(0.1, step_size=1.5), "step_size must be a whole number .* got 1.5"),
    "true steps": (lambda: o.NoamLr(model_size=True, warm_up=1), "NoamLr: model_size must be a whole number"),
    "no warm-up": (lambda: o.NoamLr(model_size=1, warm_up=0), "warm_up must be a whole number"),
    "zero timescale": (lambda: o.InverseSqrtLr(0.1, timescale=0), "timescale must be a whole number"),
    "zero multiplier": (lambda: o.CosineRestartsLr(0.1, num_iters=3, multiplier=0), "multiplier must be a whole"),
    "min above initial": (
        lambda: o.CosineAnnealingLr(0.1, num_iters=3, min_lr=0.2),
        "min_lr must be at most initial_lr, got 0.2 and 0.1",
    ),
    "min above initial, restarts": (lambda: o.CosineRestartsLr(0.1, num_iters=3, min_lr=0.2), "at most initial_lr"),
    "max below base": (
        lambda: o.CyclicLr(0.2, 0.1, step_size_up=3),
        "base_lr must be at most max_lr, got 0.2 and 0.1; ex",
    ),
    "negative gamma": (lambda: o.ExponentialLr(0.1, gamma=-0.5), "gamma must be a finite number greater than zero"),
    "zero gamma": (lambda: o.StepLr(0.1, step_size=3, gamma=0.0), "gamma must be a finite number greater than zero"),
    "zero power": (lambda: o.PolynomialLr(0.1, num_iters=3, power=0.0), "power must be a finite number greater"),
    "gamma without a use": (lambda: o.CyclicLr(0.1, 0.2, step_size_up=3, gamma=0.9), 'for mode="exp_range" alone'),
    "unknown mode": (
        lambda: o.CyclicLr(0.1, 0.2, step_size_up=3, mode="square"),
        "mode must be one of 'triangular', 'triangular2', 'exp_range', got 'square'",
    ),
    "no milestones": (lambda: o.MultiStepLr(0.1, milestones=[]), "milestones must be one step or more, .* ConstantLr"),
    "one milestone": (lambda: o.MultiStepLr(0.1, milestones=5), "several steps, such as"),
    "decreasing milestones": (
        lambda: o.MultiStepLr(0.1, milestones=[3, 9, 6]),
        r"must increase, but milestones\[2\] is 6, after 9; give",
    ),
    "equal milestones": (lambda: o.SequenceLr([0.1, 0.2, 0.3], milestones=[4, 4]), "SequenceLr: milestones must inc"),
    "milestone zero": (lambda: o.SequenceLr([0.1, 0.2], milestones=[0]), r"milestones\[0\] must be a whole number"),
    "too few milestones": (lambda: o.SequenceLr([0.1] * 3, milestones=[2]), "3 schedules need 2 milestones, .* got 1"),
    "pct_start": (lambda: o.OneCycleLr(0.1, num_iters=9, pct_start=30), "pct_start must be at most 1.0: a part of"),
    "pct_start, three phases": (
        lambda: o.OneCycleLr(0.1, num_iters=9, pct_start=0.6, three_phase=True),
        "at most 0.5, for three_phase goes",
    ),
    "anneal": (lambda: o.OneCycleLr(0.1, num_iters=9, anneal="cosine"), "anneal must be one of 'cos', 'linear', got"),
    "div_factor": (lambda: o.OneCycleLr(0.1, num_iters=9, div_factor=0.0), "div_factor must be a finite number gr"),
    "factor of one": (lambda: o.ReduceOnPlateauLr(0.1, factor=1.0), "factor must be less than one, so"),
    "negative patience": (
        lambda: o.ReduceOnPlateauLr(0.1, patience=-1),
        "patience must be a whole number .* zero, got -1",
    ),
    "negative cooldown": (lambda: o.ReduceOnPlateauLr(0.1, cooldown=-1), "cooldown must be a whole number"),
    "negative threshold": (lambda: o.ReduceOnPlateauLr(0.1, threshold=-1.0), "threshold must be a finite number"),
    "threshold mode": (lambda: o.ReduceOnPlateauLr(0.1, threshold_mode="relative"), "threshold_mode must be one of"),
    "plateau's mode": (lambda: o.ReduceOnPlateauLr(0.1, mode="less"), "mode must be one of 'min', 'max', got 'less'"),
    "min above initial, plateau": (lambda: o.ReduceOnPlateauLr(0.1, min_lr=1.0), "min_lr must be at most initial_lr"),
    "NaN metric": (lambda: plateau().report(NAN), "ReduceOnPlateauLr: the metric is NaN, .* leave this report out"),
    "NaN metric, nested": (lambda: (0.5 * plateau()).report(NAN), "ReduceOnPlateauLr: the metric is NaN"),
    "no metric": (lambda: o.ReduceOnPlateauLr(0.1).report(None), "the metric must be a number, got None"),
    "no function": (lambda: o.FunctionLr(0.1), "expected a function of the step, got 0.1; .* ConstantLr"),
    "a function's rate": (
        lambda: o.FunctionLr(lambda step: 1.0 - step).rate(1) or o.FunctionLr(lambda step: -1.0).step(),
        "FunctionLr: the rate at step 0 must be a finite number of at least zero, got -1.0",
    ),
    "no rate": (lambda: o.FunctionLr(lambda step: None).step(), "the rate at step 0 .* got None"),
    "a group's rate": (
        lambda: o.GroupedLr({"*": 0.1, "head": o.FunctionLr(lambda step: NAN)}).step(),
        "GroupedLr: the rate of the group 'head' at step 0 must be a finite",
    ),
    "growth without end": (
        lambda: o.ExponentialLr(0.1, gamma=2.0).sketch(2000),
        "the rate at step 10.. must be .* got inf",
    ),
    "warm-up of none": (lambda: o.WarmUpLr(None, num_iters=3), "schedule must be a schedule, or .* got None"),
    "warm-up of no steps": (lambda: o.WarmUpLr(CONSTANT, num_iters=0), "WarmUpLr: num_iters must be a whole number"),
    "warm-up from below": (lambda: o.WarmUpLr(CONSTANT, num_iters=3, start_lr=-1.0), "start_lr must be a finite"),
    "times a text": (lambda: CONSTANT * "2", r"ProductLr: factors\[1\] must be a schedule"),
    "minus": (
        lambda: CONSTANT + -0.1,
        r"SumLr: terms\[1\] must be a schedule, or a finite number of at least zero, got -0.1",
    ),
    "product of none": (o.ProductLr, "factors must be one schedule or more"),
    "sum of none": (o.SumLr, "terms must be one schedule or more"),
    "groups within": (
        lambda: shared() * CONSTANT,
        r"factors\[0\] is a GroupedLr, .* create a GroupedLr from the results",
    ),
    "warm-up of groups": (lambda: o.WarmUpLr(shared(), num_iters=3), "schedule is a GroupedLr"),
    "groups in groups": (lambda: o.GroupedLr({"*": shared()}), "'\\*' is a GroupedLr"),
    "groups without the rest": (lambda: o.GroupedLr({"head": 0.1}), r"under '\*' .* got 'head'"),
    "a group without a name": (lambda: o.GroupedLr({"": 0.1, "*": 0.1}), "the name of a group is a str, and not empty"),
    "a group by number": (lambda: o.GroupedLr({0: 0.1, "*": 0.1}), "the name of a group is a str.* got 0, '\\*'"),
    "groups of none": (lambda: o.GroupedLr({}), "got none"),
    "a sketch of nothing": (
        lambda: CONSTANT.sketch(0),
        "steps must be a whole number of at least one, got 0; there is",
    ),
    "a sketch without width": (lambda: CONSTANT.sketch(9, width=0), "width must be at least one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(OptimizerError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_step_without_a_rate_is_not_taken() -> None:
    schedule = optim.FunctionLr([0.1, -1.0].__getitem__)
    schedule.step()
    for _ in range(2):
        with pytest.raises(OptimizerError, match="the rate at step 1 must"):
            schedule.step()
    assert schedule.taken == 1


def test_a_refused_metric_changes_nothing() -> None:
    schedule: Any = plateau()
    schedule.report(1.0)
    before = repr(schedule.into_record())
    for metric in (math.nan, "low"):
        with pytest.raises(OptimizerError, match="the metric"):
            schedule.report(metric)
    assert repr(schedule.into_record()) == before


def changed(record: Record, **values: Any) -> Record:
    names = {name.replace("__", "."): value for name, value in values.items()}
    entries = {path: record[path] for path in record} | names
    return Record({path: value for path, value in entries.items() if value is not ...}, record.metadata)


SEQUENCE = MADE["sequence"]
MISFITS: dict[str, tuple[Callable[[], optim.LrSchedule[Any]], Callable[[], Record], str]] = {
    "a module's": (
        plateau,
        lambda: nn.Linear(1, 1).init(seed=0).into_record(),
        "taken: the record is not of a schedule",
    ),
    "another schedule's": (
        MADE["cosine"],
        lambda: MADE["step"]().into_record(),
        "is of a StepLr, and this is a CosineAnnealingLr; create .* set its `taken`",
    ),
    "another part's": (
        MADE["warm-up"],
        lambda: MADE["warm-up, plateau"]().into_record(),
        "parts.schedule: the record is of a ReduceOnPlateauLr, and this is a CosineAnnealingLr",
    ),
    "negative": (MADE["step"], lambda: Record({"taken": -1}), "taken: the record is not of a schedule"),
    "true": (MADE["step"], lambda: Record({"taken": True}), "taken: the record is not of a schedule"),
    "positional": (MADE["step"], lambda: Record({"0": 3}, positional=True), "taken: the record is not of a schedule"),
    "one part more": (
        lambda: optim.SequenceLr([0.3, plateau()], milestones=[5]),
        lambda: SEQUENCE().into_record(),
        "parts.2: the record has this part, but this SequenceLr does not; create",
    ),
    "one part less": (
        SEQUENCE,
        lambda: optim.SequenceLr([0.3, plateau()], milestones=[5]).into_record(),
        "parts.2: taken: the record",
    ),
    "a part damaged": (
        SEQUENCE,
        lambda: changed(SEQUENCE().into_record(), parts__1__best=math.nan),
        "parts.1: best: expected a number, found nan; the record is damaged",
    ),
    "two parts damaged": (
        SEQUENCE,
        lambda: changed(SEQUENCE().into_record(), parts__1__bad=-1, parts__2__parts__schedule__lr=..., taken=5),
        r"(?s)parts.1: bad: expected a whole .*\nparts.2: parts.schedule: lr: expected a finite number .* found None",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_record_that_does_not_fit(name: str) -> None:
    make, record, message = MISFITS[name]
    schedule = make()
    rates = go_on(schedule, 0, 8)
    before = repr(schedule.into_record())
    for load in (schedule.load_record, schedule.prepare_load):
        with pytest.raises(RecordError, match=message):
            load(record())
        assert repr(schedule.into_record()) == before
    assert len(rates) == 8 == schedule.taken


class RenamedLr(optim.StepLr):
    """A schedule that has had another name."""


def test_a_subclass_reads_its_parents_records_but_not_the_other_way_round() -> None:
    RenamedLr(1.0, step_size=3).load_record(optim.StepLr(1.0, step_size=3).into_record())
    with pytest.raises(RecordError, match="is of a RenamedLr, and this is a StepLr"):
        optim.StepLr(1.0, step_size=3).load_record(RenamedLr(1.0, step_size=3).into_record())
