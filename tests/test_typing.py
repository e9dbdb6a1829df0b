"""The static side: a type checker infers kinds, constructors and results, and refuses wrong calls.

Serves: tests/tensor/typing_tensor.py, tests/config/typing_config.py, tests/models/typing_language_model.py

The examples say so line by line, the refusals by `pyright: ignore` comments, which are errors where nothing is refused.
`make lint` checks them with everything else; here they are checked where pyright happens to be installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
EXAMPLES = sorted(TESTS.glob("*/typing_*.py"))


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["typing_config.py", "typing_language_model.py", "typing_tensor.py"]


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda path: path.stem)
def test_pyright_agrees(examples: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(examples)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=300)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [f"{d['range']['start']['line'] + 1}: {d['message']}" for d in report["generalDiagnostics"]] == []
