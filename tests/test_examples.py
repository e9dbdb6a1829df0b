"""The programs under examples/ run, and say in one sentence what is wrong with their arguments.

Serves: examples/
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from phlox.models import GptConfig

GPT = Path(__file__).parents[1] / "examples" / "gpt.py"


@pytest.fixture
def gpt() -> Any:
    """The program's names, for a model that takes no time."""
    names = runpy.run_path(str(GPT))
    tiny = GptConfig(context=8, n_layers=1, d_model=8, n_heads=2)
    names["main"].__globals__.update(SIZES=dict.fromkeys(names["SIZES"], tiny), BATCH=2)
    return names["main"]


@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_gpt_trains_saves_and_writes(gpt: Any, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "small")
    gpt(
        [
            "--device",
            device,
            "--steps",
            "2",
            "--length",
            "12" if device == "numpy" else "1",
            "--prompt",
            "import",
            "--out",
            out,
        ]
    )
    printed = capsys.readouterr().out
    assert "validation" in printed and "step     2" in printed and "\nimport" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"small.json", "small.safetensors"}
    gpt(["--device", "numpy", "--steps", "0", "--length", "3", "--prompt", "x", "--resume", out])
    assert capsys.readouterr().out.startswith("x")  # whatever trained it


WRONG = {
    "--device": (["--device", "tpu"], "invalid choice"),
    "--steps": (["--steps", "-1"], "at least 0"),
    "--minutes": (["--minutes", "0"], "more than 0"),
    "--prompt": (["--prompt", ""], "at least one character"),
    "long --prompt": (["--prompt", "from os import"], "14 bytes, more than the context of 8"),
    "--resume": (["--resume", "missing"], "missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_gpt_says_what_is_wrong(
    gpt: Any, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = WRONG[case]
    with pytest.raises(SystemExit) as caught:
        gpt(["--device", "numpy", *arguments])
    said = f"{caught.value} {capsys.readouterr().err}"
    assert message in said and "Traceback" not in said
