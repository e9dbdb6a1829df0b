"""The group of processes that this one is part of.

Serves: phlox/backend/contract/processes.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phlox.backend import Autodiff, Jax, NumPy, Torch, processes
from phlox.backend.processes import Processes
from phlox.backend.store import OwnStore
from phlox.errors import EngineNotInstalledError, ExtraNotInstalledError


@pytest.fixture
def two() -> Iterator[None]:
    processes.set_processes(Processes(rank=1, size=2, address="[fe80::1]:80"), OwnStore())
    yield
    processes.set_processes(Processes())


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Torch())])
def test_alone_nothing_is_joined(backend: NumPy) -> None:
    backend.join_processes()
    assert backend.local_device_count() >= 1
    assert backend.joins_at_start is ("NumPy" not in repr(backend))


@pytest.mark.usefixtures("two")
def test_the_host_of_process_0() -> None:
    assert processes.processes().host == "fe80::1"


@pytest.mark.usefixtures("two")
def test_numpy_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise EngineNotInstalledError(name)

    monkeypatch.setattr("phlox.backend.registry.load_backend", absent)
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'torch'"):
        NumPy().join_processes()


def test_what_leaves_leaves_once_and_in_turn() -> None:
    left: list[str] = []
    processes.at_leaving(lambda: left.append("a"))
    processes.at_leaving(lambda: left.append("b"))
    processes.leave()
    processes.leave()
    assert left == ["b", "a"]


def test_progress_is_a_file_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress"
    monkeypatch.setattr(processes, "_progress", file)
    monkeypatch.setattr(processes, "_reported", -10.0)
    processes.report_progress()
    assert file.exists()
    file.unlink()
    processes.report_progress()  # not twice within a second
    assert not file.exists()
    monkeypatch.setattr(processes, "_progress", tmp_path / "gone" / "progress")
    monkeypatch.setattr(processes, "_reported", -10.0)
    processes.report_progress()
