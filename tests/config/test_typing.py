"""The static side: a type checker knows constructors and results, and refuses wrong calls."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("typing_config.py")


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_agrees() -> None:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(EXAMPLES)]
    root = EXAMPLES.parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [f"{d['range']['start']['line'] + 1}: {d['message']}" for d in report["generalDiagnostics"]] == []
