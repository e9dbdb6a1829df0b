from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phlox.cli import main
from tests.cli.support import SMALL


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder; read only."""
    base = tmp_path_factory.mktemp("small")
    (base / "small.json").write_text(SMALL)
    assert main(["demo", "--config", str(base / "small.json"), "--out", str(base / "run")]) == 0
    return base / "run"


@pytest.fixture
def own_run(small_run: Path, tmp_path: Path) -> Path:
    """A run folder to be spoilt."""
    return Path(shutil.copytree(small_run, tmp_path / "run"))
