from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phlox.distributed.processes.fingerprint import compare, fingerprint
from phlox.errors import DistributedError


def test_a_script_counts_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, object]] = []
    for folder, text in (("a", "print(1)"), ("b", "print(1)"), ("c", "print(2)")):
        (tmp_path / folder).mkdir()
        script = tmp_path / folder / "train.py"
        script.write_text(text)
        monkeypatch.setattr(sys, "argv", [str(script), "--lr", "1"])
        found.append(fingerprint("torch", seed=0))
    assert {"version of Python", "version of torch", "version of NumPy", "command line", "seed"} <= found[0].keys()
    compare(found[:2], "they differ")
    with pytest.raises(DistributedError, match=r"they differ: content of train.py is '.*' in processes 0, 1; '.*' in"):
        compare(found, "they differ")


def test_a_worker_of_ray_is_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "default_worker.py"), "--startup-token=3"])
    assert "command line" not in fingerprint(None)


def test_all_differences_are_told() -> None:
    with pytest.raises(DistributedError) as caught:
        compare([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3}], "they differ")
    assert (
        str(caught.value)
        == "they differ: b is 2 in process 0; 3 in process 1. c is 3 in process 0; absent in process 1"
    )
