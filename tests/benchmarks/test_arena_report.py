"""The figures of a run as data, and the page and the plot that are made of them; the results are made up.

Serves: benchmarks/arena/{report,run,plot,entry,machine}.py
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.arena import plot, report
from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.machine import Machine, better
from benchmarks.arena.run import Run, load, run_of
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
        Entry(OURS, training=[0.006, 0.008, 0.010], inference=[1e-4, 1e-4, 1e-4], first=[1.0], mib=411.6),
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


def made_up(*results: Result, machine: Machine | None = MACHINE) -> Run:
    rows = [
        Ratio("save 1 GB", "Phlox", "torch.save", 3e5, 1.5e6, 0.2, 0.17, 0.5),
        Ratio("save 1 GB", "Phlox", "safetensors", 3e5, 2.5e5, 1.2, 1.1, 1.3),
        Ratio("first prediction", "phlox", "torch", 1e5, 8e5, 0.125, 0.12, 0.13),
        Ratio("first prediction", "phlox", "jax", 1e5, 5e5, 0.2, 0.19, 0.21, target=0.25),
        Ratio("first prediction", "phlox", "onnxruntime", 1e5, 1.1e5, 0.91, 0.9, 0.92),
        Ratio("first prediction", "phlox", "numpy", 1e5, 6e4, 1.67, 1.6, 1.7),
    ]
    details = [Ratio("a + b, 8x8", "Phlox", "numpy", 0.6, 0.3, 2.0, 1.9, 2.1)]
    return run_of(machine, results or [result()], rows, details, python="3.11.7", date="2026-01-31")


def only(made: Result) -> Run:
    return run_of(None, [made], [], [], python="3.11.7", date="2026-01-31")


def test_a_headline_is_the_best_of_ours_over_the_best_peer() -> None:
    found = {row.workload: row for row in made_up().headlines}
    training = found[f"{WORKLOAD.title}: training"]
    # JAX is faster, and wrong: it does not count.
    assert (training.subject, training.peer, training.ratio) == ("Phlox on JAX", "PyTorch", pytest.approx(0.5))
    assert (training.subject_us, training.peer_us) == pytest.approx((8e3, 16e3))
    assert found[f"{WORKLOAD.title}: inference"].ratio == pytest.approx(2.0)
    assert (found["save 1 GB"].peer, found["save 1 GB"].ratio) == ("safetensors", 1.2)
    assert found["first prediction"].peer == "jax"  # numpy is faster, but is not what was asked
    assert len(found) == 4  # one start is too few for the time to the first step; details have no place


def test_ratios_and_quartiles_are_of_turns() -> None:
    mine, theirs = [1.0, 2.0, 3.0, 4.0, 50.0], [2.0, 2.0, 4.0, 4.0, 5.0]
    (row,) = only(Result(WORKLOAD, [Entry(OURS, training=mine), Entry(TORCH, training=theirs)], {})).headlines
    assert row.ratio == 1.0  # the middle of 0.5, 1, 0.75, 1, 10; of the medians it would be 0.75
    assert (row.low, row.high) == pytest.approx((0.625, 5.5))


def test_who_left_early_is_not_the_best_however_slow_the_machine_was_later() -> None:
    entries = [
        Entry(OURS, training=[3.0, 3.0, 3.0]),
        Entry(TORCH, training=[2.0, 4.0, 4.0]),
        Entry(EQUINOX, training=[3.5]),
    ]
    (row,) = only(Result(WORKLOAD, entries, {})).headlines
    assert row.peer == "PyTorch"


def test_a_ratio_near_one_shows_on_which_side_it_is() -> None:
    found = [Ratio("work", "Phlox", "peer", 1.0, 1.0, ratio, 0.9, 1.1).figure for ratio in (1.003, 0.997, 1.01, 0.5)]
    assert found == ["1.003", "0.997", "1.01", "0.50"]


def test_what_is_saved_is_what_was_measured(tmp_path: Path) -> None:
    run = made_up()
    run.save(tmp_path / "deep" / "run.json")
    again = load(tmp_path / "deep" / "run.json")
    assert report.page(again, again) == report.page(run, run)
    assert [(row.subject, row.peer) for row in again.headlines] == [(row.subject, row.peer) for row in run.headlines]
    again.save(tmp_path / "again.json")
    text = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert text == (tmp_path / "deep" / "run.json").read_text(encoding="utf-8")
    assert '"subject": "Phlox", "peer": "torch.save"' in text  # a line for each row


def test_a_run_without_a_machine_is_saved_too(tmp_path: Path) -> None:
    run = run_of(None, [], [], [Ratio("a + b", "Phlox", "numpy", 0.6, 0.3, 2.0, 1.9, 2.1)], python="3.11.7", date="")
    run.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").details == run.details
    assert "a + b" in report.text(run)


def test_the_page_says_everything() -> None:
    text = report.page(made_up(), made_up())
    assert "| date | 2026-01-31 |\n| machine | 2 cores of AMD made up |" in text
    assert "| versions | Python 3.11.7, jax 0.10.2, torch 2.13.0 |" in text
    assert "| 200 GFLOP/s (XLA, f32 product of 2048^3) |" in text
    assert "| XLA, f32 product of 2048^3 | 200 |\n| NumPy, f32 product of 2048^3 | 150 |" in text
    assert "| Phlox on JAX | PyTorch | 0.50 | 0.50 to 0.50 |" in text
    assert "| Phlox on JAX | PyTorch | **2.00** | 2.00 to 2.00 |" in text
    assert "In 2 of 4 rows Phlox needs at most the time (or memory) of the best peer, in 2 at most 0.8 of it." in text
    assert "**JAX and Optax is wrong: losses differ**" in text
    assert "| Keras on JAX | failed: no module named keras |" in text
    assert "| Equinox | 30.00 ms | 2.50 |" in text  # of one turn, without quartiles
    assert (
        "| **Phlox on JAX** | 8.00 ms | 0.50 (0.50 to 0.50) | 100.0 us | 2.00 (2.00 to 2.00) | 1.00 s | 412 MiB |"
        in text
    )
    assert "- Duration: 93 s" in text
    assert "a + b, 8x8" in text.split(report.SINGLE)[1]
    assert "no figures of a GPU yet" in text


def test_columns_that_nobody_fills_are_left_out() -> None:
    text = report.page(
        only(Result(WORKLOAD, [Entry(OURS, training=[1.0, 1.0]), Entry(TORCH, training=[2.0, 2.0])], {}))
    )
    assert "| contestant | training step | to the best peer |\n|---|---:|---:|\n" in text


def test_every_fold_is_closed_and_its_tables_are_markdown() -> None:
    run = made_up()
    text = report.page(run, run)
    folds = re.findall(
        r"^<details>\n<summary>([^<\n]+)</summary>\n\n(.+?)\n\n</details>$", text, re.MULTILINE | re.DOTALL
    )
    assert [title for title, _ in folds] == [WORKLOAD.title, report.OTHERS, "Peak rates of this machine", report.SINGLE]
    assert text.count("<details>") == text.count("</details>") == len(folds)


def test_a_run_on_a_gpu_has_a_part_of_its_own() -> None:
    gpu = made_up(machine=Machine("AMD made up", 16, 400e12, "PyTorch", 2e12, 2e12, "GPU made up"))
    text = report.page(made_up(), made_up(), gpu)
    assert "## On a GPU" in text
    assert "| machine | 16 cores of AMD made up, GPU made up |" in text
    assert "no figures of a GPU yet" not in text
    assert "Model FLOP utilization" in text


def test_a_step_is_related_to_the_peak() -> None:
    work = 2 * 256 * (2 * 784 * 1024 + 3 * 1024 * 1024 + 3 * 1024 * 10)
    share = work / 0.008 / 200e9
    assert f"Phlox on JAX {work / 0.008 / 1e9:.0f} GFLOP/s, {share:.0%} of the peak" in report.text(made_up())


def test_peers_that_are_no_frameworks_stand_beside_the_headline_and_do_not_count() -> None:
    before, _, after = report.text(made_up()).partition("### Not counted")
    assert "| first prediction | Phlox on NumPy | ONNX Runtime | 0.91 | 0.90 to 0.92 |" in after
    assert "| first prediction | Phlox on NumPy | NumPy by hand | **1.67** | 1.60 to 1.70 |" in after
    assert "ONNX Runtime" not in before
    assert "less than a framework" in after
    assert "| first prediction | phlox | torch |" in after.split("## Starting")[1]


def test_the_plot_shows_each_row_once_with_its_peer_and_its_figure() -> None:
    run = made_up()
    for dark in (False, True):
        picture = plot.svg(run, dark=dark)
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        texts = ["".join(one.itertext()) for one in root.iter() if one.tag.endswith("}text")]
        for label, row in plot.plotted(run):
            assert sum(text == f"{label}vs {report.shown_name(row.peer)}" for text in texts) == 1
            assert row.figure in texts
        assert plot.TITLE in texts
        assert any("ratio, no unit" in text for text in texts)
        assert "2 cores of AMD made up, no GPU, f32, 2026-01-31" in texts
        assert picture == plot.svg(run, dark=dark)
    assert "prefers-color-scheme: dark" in plot.svg(run)
    assert "prefers-color-scheme" not in plot.svg(run, dark=True)


def test_the_plot_of_a_long_run_has_a_dozen_rows(recorded: Run) -> None:
    labels = [label for label, _ in plot.plotted(recorded)]
    assert labels == list(plot.ROWS.values())
    assert len(labels) == plot.MOST


@pytest.fixture
def recorded() -> Run:
    return load(Path(__file__).parents[2] / "benchmarks" / "recorded" / "cpu.json")


def test_the_peak_is_the_best_of_two_measurements_of_everything() -> None:
    later = Machine("AMD made up", 2, 180e9, "NumPy", 10e9, 16e9, seen={"NumPy, f32 product of 2048^3": 300e9})
    found = better(MACHINE, later)
    assert (found.flops, found.fastest) == (300e9, "NumPy, f32 product of 2048^3")
    assert (found.copied, found.triad) == (20e9, 16e9)
    assert found.seen["XLA, f32 product of 2048^3"] == 200e9
