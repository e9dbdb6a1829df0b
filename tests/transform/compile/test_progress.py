"""Saying which function is being compiled, if that takes long."""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest

import phlox as px
from phlox.backend import Backend
from phlox.transform.compile import progress
from phlox.transform.compile.progress import Progress


class Terminal:
    """A terminal that notes what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def isatty(self) -> bool:
        return True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.05)


def compile_slowly(B: Backend) -> None:
    def slow(x: px.Tensor) -> px.Tensor:
        time.sleep(0.3)
        return x * 2.0

    run = px.compile(slow)
    assert run(px.ones((2,), device=B.device())).tolist() == [2.0, 2.0]
    assert run(px.ones((2,), device=B.device())).tolist() == [2.0, 2.0]


def check(lines: list[str]) -> None:
    assert len(lines) == 2
    assert lines[0].endswith("compile_slowly.<locals>.slow is being compiled, for 0 s so far")
    assert "the first call of compile_slowly.<locals>.slow took 0." in lines[1]


def test_the_logger(impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    jax = pytest.importorskip("phlox.backend.jax")
    with caplog.at_level(logging.INFO, "phlox.compile"):
        compile_slowly(jax.Jax())
    check([record.getMessage() for record in caplog.records])


def test_a_terminal(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("phlox.backend.jax")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    compile_slowly(jax.Jax())
    check(terminal.text.splitlines())


def test_nobody_listens(impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = Progress("f")
    time.sleep(0.1)
    found.end()
    assert capsys.readouterr().err == ""


def test_a_quick_compilation_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "phlox.compile"):
        Progress("f").end()
    assert not caplog.records


def test_a_function_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("phlox.backend.jax")

    def broken(x: px.Tensor) -> px.Tensor:
        raise ArithmeticError

    before = threading.active_count()
    with pytest.raises(ArithmeticError):
        px.compile(broken)(px.ones((2,), device=jax.Jax().device()))
    time.sleep(0.1)
    assert threading.active_count() <= before
