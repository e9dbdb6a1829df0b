"""Rows from a process of their own, in which a library may be broken.

Serves: benchmarks/{rows,first_prediction}.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import first_prediction, harness
from benchmarks.rows import rows_of

BENCHMARK = """
import os
from benchmarks.harness import Ratio

def run():
    return [Ratio("work", "Phlox", "peer", 1.0, 2.0, 0.5, 0.4, 0.6)]

def with_peer():
    import made_up_library.part

def wrong():
    raise AssertionError("the losses differ")

def killed():
    os._exit(3)
"""


@pytest.mark.parametrize(
    "function, subject, peer, failed, reason",
    [
        ("run", "Phlox", "peer", None, None),
        ("with_peer", "Phlox", "made_up_library", "made_up_library", "ModuleNotFoundError: No module named 'made_up_"),
        ("wrong", "Phlox", "", "Phlox", "AssertionError: the losses differ"),
        ("killed", "Phlox", "", "Phlox", "it ended with status 3"),
    ],
)
def test_a_benchmark_that_fails_is_one_row(
    function: str, subject: str, peer: str, failed: str | None, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "made_up_benchmark.py").write_text(BENCHMARK, encoding="utf-8")
    (row,) = rows_of("made_up_benchmark", function, {"PYTHONPATH": str(tmp_path)})
    assert (row.subject, row.peer, row.failed) == (subject, peer, failed)
    assert (row.reason or "").startswith(reason or "")


def test_a_peer_that_does_not_import_is_a_line_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libmadeup.so: cannot open')", encoding="utf-8")
    source = Path(first_prediction.__file__).parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{source}")
    monkeypatch.setenv(harness.SIZES, "quick")
    monkeypatch.setattr(harness, "FAILED", {})
    monkeypatch.setattr(first_prediction, "PEERS", ("onnxruntime", "numpy"))
    broken, measured, *memory = first_prediction.run()
    assert (broken.failed, broken.reason) == ("onnxruntime", "RuntimeError: ImportError: libmadeup.so: cannot open")
    assert measured.peer == "numpy" and measured.peer_us > 0.0 and not measured.failed
    assert [(row.peer, row.failed) for row in memory] == [("onnxruntime", "onnxruntime"), ("numpy", None)]
