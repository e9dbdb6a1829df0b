"""The benchmark of first and second processes: one process of it, and its pairs of contestants.

Serves: benchmarks/starting.py
"""

from __future__ import annotations

import json

import pytest

from benchmarks import starting
from benchmarks.harness import SIZES


def test_a_process_prints_what_its_first_step_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SIZES, "quick")
    starting.main("gpt-4x256", "with_phlox", "numpy eager")
    assert json.loads(capsys.readouterr().out) > 0.0


def test_a_pair_has_one_folder_and_each_figure_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[tuple[str, str]] = []

    def started(contestant: starting.Contestant, workload: object, folder: str) -> tuple[float, float]:
        folders.append((contestant.name, folder))
        return len(folders) / 4.0, 2.0 if contestant.ours else 4.0

    monkeypatch.setattr(starting, "_started", started)
    monkeypatch.setattr(starting, "output_of", lambda *_: "")
    rows = starting.run()
    pairs = list(zip(folders[::2], folders[1::2], strict=True))
    assert len(pairs) == len({folder for (_, folder), _ in pairs}) == 8 and all(a == b for a, b in pairs)
    assert [(row.subject, row.peer, row.ratio) for row in rows[:4]] == [
        (ours, starting.PEER[ours], 0.5) for ours in starting.PEER
    ] * 2
    assert [row.target for row in rows] == [1.0, 1.0, None, None, 0.15, 0.15, 1.7]
