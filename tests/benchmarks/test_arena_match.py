"""A comparison of contestants whose processes only pretend to work: who is wrong, missing, or leaves is found.

Serves: benchmarks/arena/{match,child,headlines}.py
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arena import child, headlines, match
from benchmarks.arena.match import Plan, Result, play
from benchmarks.contestants import Contestant
from benchmarks.workloads import Workload

PRETENDER = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    do = request.pop("do")
    if do == "enter":
        made, workload = json.loads(request["variant"]), request["workload"]
        done, turns = 0, {"run": iter(made.get("training", [])), "predict": iter(made.get("inference", []))}
    if made.get("dies") == do:
        sys.exit("killed by a made-up signal")
    if made.get("hangs") == do:
        sys.stdin.readline()
    if made.get("fails") == do:
        answer = {"error": "RuntimeError: no such kernel"}
    elif do == "enter":
        answer = {"versions": {"made_up": "1.0", os.environ.get("KEPT", "not"): "2.0"}}
    elif do == "build":
        answer = {"averaged": made.get("averaged", False), "steps": made.get("steps", 1)}
    elif do in ("losses", "compared"):
        n = request.get("n", 1)
        steps = range(done, done + n)
        done += n
        losses = [made.get("losses", {}).get(str(step), 2.0 - 0.01 * step) for step in steps]
        if made.get("averaged"):
            losses = [made.get("mean", sum(2.0 - 0.01 * step for step in range(32)) / 32)]
        seconds = 0.5 if do == "losses" else next(turns["run"])
        answer = {"losses": losses, "seconds": seconds, "each": made.get("each", 0.01), "mib": 100.0 + done}
    elif do == "outputs":
        answer = {"outputs": made.get("outputs", [1.0, -2.0, 0.5]), "shape": [3], "seconds": 0.1}
    elif do == "pace":
        answer = {"n": 3, "seconds": made.get("pace", 0.02)}
    else:
        answer = {"seconds": next(turns[request["what"]])}
    print(json.dumps(answer), flush=True)
"""

WORKLOAD = Workload("made-up", "a made-up model", "mlp", {})
PLAN = Plan(rounds=5, predictions=5, training=0.1, inference=0.1)
ALIKE = {"training": [0.02] * 5, "inference": [0.002] * 5}


def contestant(name: str, library: str = "with_jax", like: str = "", kept: str = "", **made: Any) -> Contestant:
    environment = {"KEPT": kept} if kept else {}
    return Contestant(name, library, json.dumps(ALIKE | made), environment, like=like)


def played(*contestants: Contestant, workload: Workload = WORKLOAD) -> Result:
    return play(workload, PLAN, contestants, fresh=workload.starts > 1)


@pytest.fixture(autouse=True)
def pretenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pretender.py"
    file.write_text(PRETENDER, encoding="utf-8")
    command: Sequence[str] = (sys.executable, "-S", str(file))
    monkeypatch.setattr(child.Child, "command", command)
    monkeypatch.setattr(match, "PAUSE", 0.0)


def test_all_are_asked_the_same_and_nobody_is_wrong() -> None:
    result = played(contestant("Phlox", "with_phlox"), contestant("JAX"), contestant("PyTorch", kept="kept"))
    assert result.wrong == []
    assert [entry.missing for entry in result.entries] == [None] * 3
    assert [entry.training for entry in result.entries] == [[0.02] * 5] * 3
    assert [entry.inference for entry in result.entries] == [[0.002] * 5] * 3
    assert [entry.mib for entry in result.entries] == [110.0] * 3  # after ten steps
    assert result.versions == {"made_up": "1.0", "not": "2.0", "kept": "2.0"}  # each in its own environment
    assert result.seconds > 0


def test_ratios_are_of_the_turns_that_were_taken() -> None:
    result = played(
        contestant("Phlox", "with_phlox", training=[0.010, 0.012, 0.010, 0.012, 0.020]),
        contestant("JAX", training=[0.020, 0.020, 0.020, 0.020, 0.020]),
    )
    training, inference = headlines.of_result(result)
    assert training.ratio == pytest.approx(0.6)  # of 0.5, 0.6, 0.5, 0.6, 1
    assert (training.low, training.high) == pytest.approx((0.5, 0.8))
    assert (inference.ratio, inference.workload) == (1.0, "a made-up model: inference")


def test_a_wrong_loss_names_who_and_where() -> None:
    result = played(
        contestant("Phlox", "with_phlox"), contestant("JAX"), contestant("PyTorch"),
        contestant("odd", losses={"7": 1.9}), contestant("not a number", losses={"3": float("nan")}),
    )  # fmt: skip
    odd, nan = result.wrong
    assert odd == "a made-up model: odd: its loss of step 8 is 1.9, that of the others 1.93"
    assert nan == "a made-up model: not a number: its loss of step 4 is nan, that of the others 1.97"
    assert all(not entry.training and not entry.inference for entry in result.entries if entry.wrong)
    assert [len(entry.training) for entry in result.entries] == [5, 5, 5, 0, 0]


def test_a_loss_within_the_tolerance_is_not_wrong() -> None:
    ours = contestant("Phlox", "with_phlox", losses={"7": 1.93 * (1 + 9e-4)})
    assert played(ours, contestant("JAX"), contestant("PyTorch")).wrong == []


def test_a_wrong_mean_of_many_losses_is_found() -> None:
    result = played(
        contestant("Phlox", "with_phlox", steps=32), contestant("JAX", steps=32),
        contestant("Keras", averaged=True, steps=32), contestant("Keras, odd", averaged=True, mean=1.8),
    )  # fmt: skip
    (only,) = result.wrong
    assert only.endswith("Keras, odd: the mean of its first 32 losses is 1.8, that of the others 1.845")


def test_wrong_logits_name_which() -> None:
    result = played(
        contestant("Phlox", "with_phlox"), contestant("JAX"), contestant("PyTorch"),
        contestant("odd", outputs=[1.0, -2.001, 0.5]), contestant("short", outputs=[1.0]),
    )  # fmt: skip
    assert result.wrong == [
        "a made-up model: odd: its logit 1 is -2.001, that of the others -2",
        "a made-up model: short: it gives 1 logits, the others 3",
    ]


def test_those_who_die_or_fail_are_missing_and_say_why() -> None:
    result = played(
        contestant("Phlox", "with_phlox"), contestant("JAX"),
        contestant("dies", dies="losses"), contestant("is not installed", fails="enter"),
        contestant("cannot predict", fails="outputs"), contestant("dies in a turn", dies="turn"),
    )  # fmt: skip
    missing = {entry.contestant.name: entry.missing for entry in result.entries}
    assert missing == {
        "Phlox": None,
        "JAX": None,
        "dies": "ended with status 1: killed by a made-up signal",
        "is not installed": "RuntimeError: no such kernel",
        "cannot predict": "RuntimeError: no such kernel",
        "dies in a turn": "ended with status 1: killed by a made-up signal",
    }
    assert [len(entry.training) for entry in result.entries] == [5, 5, 0, 0, 0, 0]
    assert {row.peer for row in headlines.of_result(result)} == {"JAX"}


def test_one_that_does_not_answer_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE", 0.5)
    result = played(contestant("hangs", hangs="build"))
    assert result.entries[0].missing == "no answer in 0 s"


def test_an_unknown_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.Child, "command", (sys.executable, "-m", "benchmarks.arena.worker"))
    (entry,) = played(Contestant("nobody", "with_nothing")).entries
    assert entry.missing == "ModuleNotFoundError: No module named 'benchmarks.libraries.with_nothing'"


def test_the_slow_leave_early_and_each_side_for_itself() -> None:
    result = played(
        contestant("Phlox", "with_phlox", training=[0.1] * 5),
        contestant("Phlox, slow", "with_phlox", training=[0.3], pace=0.3),
        contestant("JAX", training=[0.01] * 5),
        contestant("hopeless", training=[0.0165], pace=0.03),
        contestant("a hiccup", training=[0.5, 0.01, 0.01, 0.01, 0.01], pace=0.01),
        contestant("slower", training=[0.0121] * 3),
        contestant("close", training=[0.0119] * 5),
    )
    assert [entry.missing for entry in result.entries] == [None] * 7
    assert [len(entry.training) for entry in result.entries] == [5, 1, 5, 1, 5, 3, 5]
    assert [len(entry.inference) for entry in result.entries] == [5] * 7


def test_predictions_that_were_disturbed_once_go_on() -> None:
    late = contestant("late", inference=[0.02, 0.002, 0.002, 0.002, 0.002])
    slow = contestant("slow", inference=[0.003, 0.0029])  # a pretender that is asked for a third turn dies here
    slower = contestant("slower", inference=[0.0026, 0.0027, 0.0026, 0.0027])
    entries = played(contestant("Phlox", "with_phlox"), contestant("JAX"), late, slow, slower).entries
    assert [len(entry.inference) for entry in entries] == [5, 5, 5, 2, 4]
    assert [entry.missing for entry in entries] == [None] * 5


def test_where_steps_are_long_those_that_are_compared_are_the_turns() -> None:
    # A pretender that is asked for its pace fails here, and one that is asked for an eighth turn dies.
    ours = contestant("Phlox", "with_phlox", each=0.3, fails="pace", training=[0.3] * 7)
    fast = contestant("JAX", each=0.2, training=[0.1] * 3 + [0.2] * 4)
    slow = contestant("slow", each=0.5, training=[0.5] * 7)
    kept = contestant("JAX, kept", like="JAX", training=[0.23] * 7)
    result = played(ours, fast, slow, kept, workload=_not_predicting())
    assert result.wrong == [] and [entry.missing for entry in result.entries] == [None] * 4
    assert [e.training for e in result.entries] == [[0.3] * 7, [0.1] * 3 + [0.2] * 4, [0.5] * 7, [0.23] * 7]
    assert [len(entry.losses) for entry in result.entries] == [10, 10, 10, 9]
    assert [entry.mib for entry in result.entries] == [110.0, 110.0, 110.0, 109.0]
    (headline,) = headlines.of_result(result)
    assert (headline.ratio, headline.low, headline.high) == pytest.approx((1.5, 1.5, 3.0))


def test_who_is_wrong_in_a_turn_has_no_part_in_the_headlines() -> None:
    result = played(
        contestant("Phlox", "with_phlox", each=0.3, training=[0.3] * 7),
        contestant("JAX", each=0.3, training=[0.3] * 7), contestant("PyTorch", each=0.4, training=[0.4] * 7),
        contestant("odd", each=0.1, training=[0.1] * 7, losses={"9": 1.7}),
        workload=_not_predicting(),
    )  # fmt: skip
    assert result.wrong == ["a made-up model: odd: its loss of step 10 is 1.7, that of the others 1.91"]
    assert [len(entry.training) for entry in result.entries] == [7, 7, 7, 0]
    assert {row.peer for row in headlines.of_result(result)} == {"JAX"}


def test_with_dropout_one_whose_compared_steps_are_long_and_slow_takes_no_turn() -> None:
    workload = Workload("made-up", "a made-up model", "mlp", {"dropout": 0.1}, predicts=False)
    ours = contestant("Phlox", "with_phlox", each=0.5, fails="pace", training=[0.5] * 5)
    fast = contestant("JAX", each=0.2, training=[0.2] * 5)
    slow = contestant("slow", each=0.31, training=[])  # a pretender that is asked for a turn dies here
    kept = contestant("JAX, kept", like="JAX", training=[0.23] * 5)  # one of its steps tells too little
    entries = played(ours, fast, slow, kept, workload=workload).entries
    assert [entry.training for entry in entries] == [[0.5] * 5, [0.2] * 5, [0.31], [0.23] * 5]


def test_long_turns_stop_after_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, training, inference = Plan(rounds=7), [0.02] * 7, [0.002] * 7
    made = [contestant(name, name, training=training, inference=inference) for name in ("with_phlox", "with_jax")]
    assert [len(entry.training) for entry in play(WORKLOAD, plan, made).entries] == [7, 7]
    monkeypatch.setattr(match, "PATIENCE", -1.0)
    assert [len(entry.training) for entry in play(WORKLOAD, plan, made).entries] == [5, 5]


def test_one_that_is_like_another_only_trains_and_is_compared_for_two_steps() -> None:
    result = played(
        contestant("Phlox", "with_phlox"), contestant("JAX"), contestant("JAX, kept", like="JAX"),
        contestant("odd, kept", like="JAX", losses={"1": 1.8}),
    )  # fmt: skip
    kept = result.entries[2]
    assert (len(kept.losses), len(kept.training), kept.outputs, kept.inference) == (2, 5, [], [])
    assert result.wrong == ["a made-up model: odd, kept: its loss of step 2 is 1.8, that of the others 1.99"]


def test_settings_are_tried_with_those_who_come_close_to_the_fastest_of_their_side() -> None:
    result = played(
        contestant("Phlox", "with_phlox", each=0.09), contestant("Phlox, kept", "with_phlox", like="Phlox"),
        contestant("JAX", each=0.0235), contestant("JAX, kept", like="JAX"),
        contestant("PyTorch", each=0.02), contestant("PyTorch, kept", like="PyTorch"),
        contestant("slow", each=0.0245), contestant("slow, kept", like="slow"),
        contestant("dies", dies="losses"), contestant("dies, kept", like="dies"),
    )  # fmt: skip
    names = [entry.contestant.name for entry in result.entries]
    assert [name for name in names if name.endswith("kept")] == ["Phlox, kept", "JAX, kept", "PyTorch, kept"]
    assert names[:3] == ["Phlox", "Phlox, kept", "JAX"]


def test_the_first_step_is_asked_where_fresh_processes_start_and_not_of_those_alike() -> None:
    workload = Workload("made-up", "a made-up model", "mlp", {}, starts=3)
    result = played(
        contestant("Phlox", "with_phlox"), contestant("JAX"), contestant("JAX, kept", like="JAX"),
        workload=workload,
    )  # fmt: skip
    assert [entry.first for entry in result.entries] == [[0.5] * 3, [0.5] * 3, []]
    assert headlines.of_result(result)[-1].workload == "a made-up model: time to the first step"
    assert all(entry.first == [] for entry in played(contestant("JAX")).entries)


def test_starts_are_measured_in_one_order_and_then_in_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = child.Child.ask

    def watched(self: child.Child, do: str, **given: Any) -> dict[str, Any]:
        if do == "build":
            asked.append(self.name)
        return ask(self, do, **given)

    monkeypatch.setattr(child.Child, "ask", watched)
    workload = Workload("made-up", "a made-up model", "mlp", {}, starts=4)
    played(contestant("Phlox", "with_phlox"), contestant("JAX"), workload=workload)
    assert asked == ["Phlox", "JAX", "JAX", "Phlox", "Phlox", "JAX", "JAX", "Phlox"]


def test_with_dropout_only_the_first_loss_is_compared_and_roughly() -> None:
    workload = Workload("made-up", "a made-up model", "mlp", {"dropout": 0.1}, predicts=False)
    result = played(
        contestant("Phlox", "with_phlox", losses={"0": 2.08}), contestant("JAX"), contestant("PyTorch"),
        contestant("odd", losses={"0": 2.2}), workload=workload,
    )  # fmt: skip
    assert [entry.contestant.name for entry in result.entries if entry.wrong] == ["odd"]
    assert [len(entry.losses) for entry in result.entries] == [1] * 4


def test_what_contestants_differ_in_is_not_taken_from_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "DECIDED", (*child.DECIDED, "KEPT"))
    monkeypatch.setitem(os.environ, "KEPT", "by the shell")
    assert {"GLIBC_TUNABLES", "PHLOX_ALLOCATOR"} < set(child.DECIDED)
    result = played(contestant("JAX"), contestant("PyTorch", kept="kept"))
    assert result.versions == {"made_up": "1.0", "not": "2.0", "kept": "2.0"}


def test_who_was_far_behind_is_left_out_of_the_workload_after() -> None:
    result = played(
        contestant("Phlox", "with_phlox", training=[0.5] * 5),
        contestant("Phlox, slow", "with_phlox", training=[0.71] * 5),
        contestant("JAX", training=[0.2] * 5), contestant("close", training=[0.2, 0.2, 0.28, 0.28, 0.28], pace=0.2),
        contestant("slow", training=[0.27, 0.27, 0.29, 0.29, 0.29], pace=0.27),
        contestant("dies", dies="losses"),
    )  # fmt: skip
    result.entries[3].training = [0.27] * 5
    result.entries[4].training = [0.29] * 5
    everybody = [entry.contestant for entry in result.entries]
    everybody += [contestant("close, kept", like="close"), contestant("slow, kept", like="slow"), contestant("new")]
    left = [one.name for one in match.competitive(result, everybody)]
    assert left == ["Phlox", "JAX", "close", "dies", "close, kept", "new"]


def _not_predicting() -> Workload:
    return Workload("made-up", "a made-up model", "mlp", {}, predicts=False)
