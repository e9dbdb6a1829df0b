"""The page of results, made of results made up for it.

Serves: benchmarks/arena/{report,entry,machine}.py
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.machine import Machine, better
from benchmarks.arena.report import Report
from benchmarks.contestants import Contestant
from benchmarks.harness import Ratio
from benchmarks.workloads import Workload

WORKLOAD = Workload("mlp", "MLP 784-1024-1024-10, batch 256", "mlp", {"widths": (784, 1024, 1024, 10), "batch": 256})
OURS, SLOW, TORCH, JAX, EQUINOX = (
    Contestant("Phlox on JAX", "with_phlox", "jax"),
    Contestant("Phlox on NumPy", "with_phlox", "numpy eager"),
    Contestant("PyTorch", "with_torch", "eager"),
    Contestant("JAX and Optax", "with_jax"),
    Contestant("Equinox", "with_equinox"),
)


def result() -> Result:
    entries = [
        Entry(OURS, training=[0.006, 0.008, 0.010], inference=[1e-4, 1e-4, 1e-4], first=[1.0]),
        Entry(SLOW, training=[0.05, 0.05, 0.05]),
        Entry(TORCH, training=[0.012, 0.016, 0.020], inference=[5e-5, 5e-5, 5e-5]),
        Entry(EQUINOX, training=[0.030]),
        Entry(JAX, training=[0.001, 0.001, 0.001], wrong="losses differ"),
        Entry(Contestant("Keras on JAX", "with_keras"), missing="no module named keras"),
    ]
    return Result(WORKLOAD, entries, {"jax": "0.10.2", "torch": "2.13.0"}, seconds=93.4)


MACHINE = Machine(
    "AMD made up", 2, 200e9, "XLA, f32 product of 2048^3", 20e9, 15e9,
    seen={"NumPy, f32 product of 2048^3": 150e9, "XLA, f32 product of 2048^3": 200e9},
)  # fmt: skip


def report() -> Report:
    rows = [
        Ratio("save 1 GB", "Phlox", "torch.save", 3e5, 1.5e6, 0.2, 0.17, 0.5),
        Ratio("save 1 GB", "Phlox", "safetensors", 3e5, 2.5e5, 1.2, 1.1, 1.3),
        Ratio("first prediction", "phlox", "torch", 1e5, 8e5, 0.125, 0.12, 0.13),
        Ratio("first prediction", "phlox", "jax", 1e5, 5e5, 0.2, 0.19, 0.21, target=0.25),
        Ratio("first prediction", "phlox", "onnxruntime", 1e5, 1.1e5, 0.91, 0.9, 0.92),
        Ratio("first prediction", "phlox", "numpy", 1e5, 6e4, 1.67, 1.6, 1.7),
    ]
    details = [Ratio("a + b, 8x8", "Phlox", "numpy", 0.6, 0.3, 2.0, 1.9, 2.1)]
    return Report(MACHINE, [result()], rows, details, "3.11.7")


def test_a_headline_is_the_best_of_ours_over_the_best_peer() -> None:
    found = {row.workload: row for row in report().headlines}
    training = found[f"{WORKLOAD.title}: training"]
    # JAX is faster, and wrong: it does not count.
    assert (training.subject, training.peer, training.ratio) == ("Phlox on JAX", "PyTorch", pytest.approx(0.5))
    assert found[f"{WORKLOAD.title}: inference"].ratio == pytest.approx(2.0)
    assert (found["save 1 GB"].peer, found["save 1 GB"].ratio) == ("safetensors", 1.2)
    assert found["first prediction"].peer == "jax"  # numpy is faster, but is not what was asked
    assert len(found) == 4  # one start is too few for the time to the first step; details have no place


def test_ratios_and_quartiles_are_of_turns() -> None:
    mine, theirs = [1.0, 2.0, 3.0, 4.0, 50.0], [2.0, 2.0, 4.0, 4.0, 5.0]
    made_up = Result(WORKLOAD, [Entry(OURS, training=mine), Entry(TORCH, training=theirs)], {})
    (row,) = Report(None, [made_up], [], [], "3.11.7").headlines
    assert row.ratio == 1.0  # the middle of 0.5, 1, 0.75, 1, 10; of the medians it would be 0.75
    assert (row.low, row.high) == pytest.approx((0.625, 5.5))


def test_who_left_early_is_not_the_best_however_slow_the_machine_was_later() -> None:
    entries = [
        Entry(OURS, training=[3.0, 3.0, 3.0]),
        Entry(TORCH, training=[2.0, 4.0, 4.0]),
        Entry(EQUINOX, training=[3.5]),
    ]
    (row,) = Report(None, [Result(WORKLOAD, entries, {})], [], [], "3.11.7").headlines
    assert row.peer == "PyTorch"


def test_a_ratio_near_one_shows_on_which_side_it_is() -> None:
    found = [Ratio("work", "Phlox", "peer", 1.0, 1.0, ratio, 0.9, 1.1).figure for ratio in (1.003, 0.997, 1.01, 0.5)]
    assert found == ["1.003", "0.997", "1.01", "0.50"]


def test_the_page_says_everything() -> None:
    text = report().text()
    assert "- 2 cores of AMD made up\n- Python 3.11.7, jax 0.10.2, torch 2.13.0" in text
    assert (
        "200 GFLOP/s, by XLA, f32 product of 2048^3. All measured rates: XLA, f32 product of 2048^3 200, NumPy" in text
    )
    assert "| Phlox on JAX | PyTorch | 0.50 | 0.50 to 0.50 | yes |" in text
    assert "| Phlox on JAX | PyTorch | 2.00 | 2.00 to 2.00 | **no** |" in text
    assert "At most 1.0 in 2 of 4, at most 0.8 in 2 of 4." in text
    assert "**JAX and Optax is wrong: losses differ**" in text
    assert "- Keras on JAX is missing: no module named keras" in text
    assert "| Equinox | 30.00 ms | 2.50 |" in text  # of one turn, without quartiles
    assert "- It took 93 s to measure all this" in text
    assert "a + b, 8x8" in text.split("## In detail")[1]


def test_a_step_is_related_to_the_peak() -> None:
    work = 2 * 256 * (2 * 784 * 1024 + 3 * 1024 * 1024 + 3 * 1024 * 10)
    share = work / 0.008 / 200e9
    assert f"Phlox on JAX {work / 0.008 / 1e9:.0f} GFLOP/s, {share:.0%} of the peak" in report().text()


def test_peers_that_are_no_frameworks_stand_beside_the_headline_and_do_not_count() -> None:
    lines = report().text().split("##")[0].splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| first prediction | phlox | jax"))
    assert lines[at + 1] == "| first prediction | phlox | onnxruntime | 0.91 | 0.90 to 0.92 | *not counted* |"
    assert lines[at + 2] == "| first prediction | phlox | numpy | 1.67 | 1.60 to 1.70 | *not counted* |"
    assert any("less than a framework" in line for line in lines)
    assert "| first prediction | phlox | torch |" in report().text().split("## Starting")[1]


def test_the_page_and_the_picture_are_written(tmp_path: Path) -> None:
    report().write(tmp_path / "docs")
    page = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "](benchmarks.svg)" in page
    assert "save 1 GB" in page
    picture = (tmp_path / "docs" / "benchmarks.svg").read_bytes()
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    report().write(tmp_path / "again")
    assert (tmp_path / "again" / "benchmarks.svg").read_bytes() == picture
    assert (tmp_path / "again" / "benchmarks.md").read_text(encoding="utf-8") == page
    Report(None, [], [], [], "3.11.7").write(tmp_path / "empty")
    assert not (tmp_path / "empty" / "benchmarks.svg").exists()


def test_the_peak_is_the_best_of_two_measurements_of_everything() -> None:
    later = Machine("AMD made up", 2, 180e9, "NumPy", 10e9, 16e9, seen={"NumPy, f32 product of 2048^3": 300e9})
    found = better(MACHINE, later)
    assert (found.flops, found.fastest) == (300e9, "NumPy, f32 product of 2048^3")
    assert (found.copied, found.triad) == (20e9, 16e9)
    assert found.seen["XLA, f32 product of 2048^3"] == 200e9
