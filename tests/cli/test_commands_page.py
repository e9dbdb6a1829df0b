"""The page about the commands shows what they print: every example is run, and compared but for the numbers in it.

Serves: docs/commands.md
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from phlox.cli import main
from phlox.cli.main import COMMANDS
from tests.cli.support import run

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
_NUMBER = re.compile(r"[<>]?-?\b\d[\d,.]*(e[+-]\d+)?\b%?( (k?B|m?s)\b)?")
_ID = re.compile(r"\b[0-9a-f]{8}\b")


def examples() -> list[tuple[list[str], str]]:
    found: list[tuple[list[str], str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            found.append((shlex.split(command), output))
    return found


def skeleton(text: str) -> list[str]:
    """The lines without numbers, ids and alignment; sorted, for what differs most depends on the machine."""
    text = _NUMBER.sub("#", _ID.sub("#", text))
    return sorted(re.sub(r"  +", " ", line).strip() for line in text.splitlines() if line.strip())


def test_every_example(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, "runs/digits")  # a smaller network, trained for less long
    for (program, *arguments), expected in examples():
        assert program == "phlox"
        if arguments[0] in ("demo", "launch", "chat", "serve", "train-lm"):  # which have tests of their own
            continue
        main(arguments)
        out, err = capsys.readouterr()
        printed, shown = skeleton(out + err), skeleton(expected)
        if "..." in shown:
            shown = [line for line in shown if line != "..."]
            assert set(shown) - {"# # # # wrong"} <= set(printed), arguments
        else:
            assert printed == shown, arguments


@pytest.mark.full
def test_the_demo_prints_these_lines(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text('{"model": {"channels": [2, 3]}, "batch_size": 256}')
    ((_, *arguments), expected) = next(example for example in examples() if example[0][1] == "demo")
    done = run(*arguments, "--config", "small.json", cwd=tmp_path)
    printed = done.stdout.replace("python -m phlox", "phlox")
    assert [line for line in skeleton(printed) if "Try" not in line] == [
        line for line in skeleton(expected) if "Try" not in line
    ]
    assert done.returncode == 0


@pytest.mark.full
def test_the_launcher_prints_these_lines(tmp_path: Path) -> None:
    ((_, *arguments), expected) = next(example for example in examples() if example[0][1] == "launch")
    section = PAGE.partition("\n## launch\n")[2]
    (tmp_path / "train.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    done = run(*arguments, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == expected.splitlines(), done.stderr


def test_the_options_of_the_launcher_are_those_of_its_help() -> None:
    section = PAGE.partition("\n## launch\n")[2].partition("\n## ")[0]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
        main(["launch", "--help"])
    there = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "".join(re.findall(r"^\| `.*?\|", section, re.MULTILINE))))
    options = re.findall(r"^  (?:-n(?: N)?, )?(--?[a-z-]+)", printed.getvalue(), re.MULTILINE)
    assert there == {*options, "-n"} - {"-h"}


def test_every_command_has_an_example_and_a_line() -> None:
    shown = {arguments[1] for arguments, _ in examples()}
    for command in COMMANDS:
        assert command in shown and f"[`phlox {command}`](#{command})" in PAGE
