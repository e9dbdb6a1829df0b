from __future__ import annotations

from pathlib import Path

import pytest

from phlox.backend.processes import PROGRESS
from phlox.distributed.processes.failures import Report, forget_reports, report_failure, report_of


def test_a_report_reaches_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS, str(tmp_path / "progress"))
    when = report_failure(3, None)
    assert report_of(tmp_path, 3) == Report(when, None, 1)
    assert report_failure(3, True, when, status=7) == when
    assert report_of(tmp_path, 3) == Report(when, True, 7)
    assert report_of(tmp_path, 4) is None
    (tmp_path / "failed-4").write_bytes(b"\xc1")
    assert report_of(tmp_path, 4) is None
    forget_reports(tmp_path)
    assert report_of(tmp_path, 3) is None


def test_without_a_launcher_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS, raising=False)
    report_failure(0, None)
    monkeypatch.setenv(PROGRESS, str(tmp_path / "gone" / "progress"))
    report_failure(0, None)
    assert not list(tmp_path.iterdir())
