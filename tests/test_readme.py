"""The Python of the README runs as it stands there, top to bottom, in one namespace."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("readme")  # classes that are defined in it look their module up by name
    monkeypatch.setitem(sys.modules, "readme", module)
    assert len(BLOCKS) >= 4
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), module.__dict__)
    assert float(capsys.readouterr().out.rsplit("loss ", 1)[1]) < 1.0
    assert (tmp_path / "mlp.safetensors").is_file()
