"""The table of transitions: every row is reached, and whatever disturbs a run, it ends as the undisturbed one.

Serves: phlox/train/loop/transitions.py, phlox/train/loop/fit.py, phlox/train/run.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phlox.train.loop import fit as module
from phlox.train.loop import transitions
from phlox.train.loop.transitions import TRANSITIONS, Phase, Transition
from tests.train.loop import walks
from tests.train.loop.walks import OPERATIONS, SETTINGS, Walk, take, undisturbed

pytestmark = pytest.mark.filterwarnings("ignore:.*batch norm takes:phlox.errors.RunWarning")
WALKS = 500
"""`python -m tests.train.loop.walks 10000` takes more of them."""


def test_the_table_leads_from_each_state_to_the_end() -> None:
    assert {row.at for row in TRANSITIONS} == set(Phase) - {Phase.ENDED}
    for phase in set(Phase) - {Phase.ENDED}:
        rows = [row for row in TRANSITIONS if row.at is phase]
        assert [row.when == "" for row in rows].count(True) == 1 and rows[-1].when == "", phase
    reached = {Phase.ENDED}
    for _ in Phase:
        reached |= {row.at for row in TRANSITIONS if row.to in reached}
    assert reached == set(Phase)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_every_row_is_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: set[Transition] = set()

    def watched(fit: Any) -> Any:
        table = transitions.bound(fit)

        def noting(row: Transition, when: Any) -> Any:
            def ask() -> bool:
                yes = when is None or when()
                if yes:
                    seen.add(row)
                return yes

            return ask

        rows = {phase: [row for row in TRANSITIONS if row.at is phase] for phase in table}
        return {
            phase: tuple(
                (noting(row, when), do, name, to) for row, (when, do, name, to) in zip(rows[phase], bound, strict=True)
            )
            for phase, bound in table.items()
        }

    monkeypatch.setattr(module, "bound", watched)
    walk = Walk("within", tmp_path / "run")
    rng = walks.random.Random(0)
    walk.fit(steps=3)  # within an epoch, from a fresh start
    walk.fit(steps=3)  # and what is over, started again
    walk.signal(5, rng)
    walk.group(6, rng)
    walk.fit(steps=8)  # where an epoch ends
    walk.fit()
    assert seen == set(TRANSITIONS), set(TRANSITIONS) - seen


@pytest.fixture(scope="module")
def references() -> dict[str, dict[str, Any]]:
    return {setting: undisturbed(setting) for setting in SETTINGS}


@pytest.mark.full
@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("part", range(4))
def test_random_walks_end_as_the_undisturbed_training(part: int, references: dict[str, dict[str, Any]]) -> None:
    assert len(OPERATIONS) >= 10
    for seed in range(part * WALKS // 4, (part + 1) * WALKS // 4):
        take(seed, references)
