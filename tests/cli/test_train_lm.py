"""From a text file to a model to talk to, with NumPy alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from phlox.cli import main
from phlox.models import load
from tests.cli.support import run

TEXT = "The cat sat on the mat, and the dog sat on the log.\n" * 200


@pytest.mark.full
def test_from_a_text_to_a_chat(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    missing = "; ".join(f"sys.modules[{name!r}] = None" for name in ("jax", "torch", "tokenizers", "jinja2"))
    arguments = ("train-lm", "text.txt", "--size", "35000", "--steps", "20", "--out", "run")
    done = run(*arguments, before=missing, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Text: 10,400 bytes, ") and "parameters, context 64, on numpy:cpu, seed 0" in lines[2]
    assert lines[4].startswith("step 20  loss ") and " bits per byte  " in lines[4] and lines[5].startswith("  | ")
    assert lines[-2].startswith("Saved in run. Talk to it: ") and lines[-2].endswith(" chat run")


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"text\0" * 9)
    (tmp_path / "latin.txt").write_bytes("The cat.\nDas Mädchen.\n".encode("latin-1"))
    long = tmp_path / "long.txt"
    long.write_text(TEXT)
    out = ["--out", str(tmp_path / "run")]
    for arguments, sentence in (
        ([str(text), *out], "the text is too short: 5 bytes"),
        ([str(text), *out, "--size", "huge"], "size must be tiny, small, medium, or a number of parameters"),
        ([str(text), *out, "--minutes", "0"], "--minutes must be more than 0"),
        ([str(tmp_path / "none.txt"), *out], "there is no such file"),
        ([str(tmp_path), *out], "is a folder; give text files"),
        ([str(tmp_path / "empty.txt"), *out], "is empty; give a file with text"),
        ([str(tmp_path / "binary"), *out], "is not a text; give a text file"),
        ([str(tmp_path / "latin.txt"), *out], "latin.txt: is not UTF-8: byte 14, in line 2, is 0xe4; convert it"),
        ([str(long), *out, "--resume"], "there is no such folder, so no run to resume"),
        ([str(long), "--out", str(text)], "is not the folder of a run, so nothing is written there"),
        ([str(long), "--out", str(text / "run")], "cannot be created"),
    ):
        assert main(["train-lm", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_text_does_not_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", str(tmp_path / "run")
    text.write_text(TEXT)
    arguments = ["train-lm", str(text), "--out", out]
    assert main([*arguments, "--size", "35000", "--steps", "2"]) == 0
    assert load(out, device="numpy").generate("The", 3, temperature=0.0)
    assert main([*arguments, "--resume", "--steps", "4"]) == 0
    assert "step 4 " in capsys.readouterr().out
    assert main([*arguments, "--resume", "--size", "tiny"]) == 2
    assert "leave out --size" in capsys.readouterr().err
    text.write_text(TEXT.replace("cat", "owl"))
    assert main([*arguments, "--resume"]) == 2
    assert "the recipe is for another text" in capsys.readouterr().err
