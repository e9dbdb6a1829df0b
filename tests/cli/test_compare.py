"""`phlox compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phlox.cli import main


def test_engines_agree_and_half_precision_does_not(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(small_run), "--on", "numpy:f64,jax,torch", "--images", "4"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "jax:f32 against numpy:f64" in out and "torch:f32 against numpy:f64" in out
    assert "conv_1.weight" in out and out.count("all within 0.001") == 2
    assert main(["compare", str(small_run), "--on", "numpy,numpy:bf16", "--tolerance", "1e-4", "--no-gradients"]) == 1
    out, _ = capsys.readouterr()
    assert "first beyond 0.0001: the value of `conv_1`, Conv2d, on numpy:bf16" in out and "weight" not in out


def test_as_json_and_as_a_page(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    options = ["--on", "numpy, numpy:f64", "--json", "--html", str(page)]
    assert main(["compare", str(small_run), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agree"] and found["first_beyond"] is None and found["reference"] == "numpy:f32"
    assert {row["path"] for row in found["rows"]} >= {"conv_1", "head", "head.weight"}
    assert "numpy:f64 against numpy:f32" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "on, message",
    [
        ("numpy", "give two backends or more"),
        ("numpy,nunpy", "unknown device 'nunpy'"),
        ("numpy,numpy:cuda", "cuda"),
        ("numpy,gone.onnx", "gone.onnx: there is no such file"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    on: str, message: str, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(small_run), "--on", on]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err
