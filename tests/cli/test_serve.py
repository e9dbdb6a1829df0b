"""`phlox serve`: the command line, what it prints, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import phlox as px
from phlox.cli import main
from phlox.interop import huggingface
from phlox.models import LlamaConfig
from phlox.text import BytePairTokenizer
from tests.cli.support import ENVIRONMENT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    config = LlamaConfig(vocabulary=258, context=2000, n_layers=1, d_model=8, n_heads=2)
    huggingface.save(config.init("numpy").init(0), path)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    BytePairTokenizer(special=["<s>", "</s>"], end="</s>", chat_template=template).save(path)
    return path


@contextmanager
def serving(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[tuple[Any, str]]:
    """The process of `phlox serve ARGUMENTS`, and its address."""
    command = [sys.executable, "-m", "phlox", "serve", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, env=ENVIRONMENT | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"serving \S+ at (http://127\.0\.0\.1:\d+)\n", line)
        assert match is not None, (line, process.stderr and process.stderr.read())
        yield process, match[1]
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_sigterm_finishes_what_was_taken(folder: Path) -> None:
    with serving(folder, "--slots", 2, "--name", "tiny") as (process, address):
        body = {"prompt": "ab", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        lengths: list[int] = []

        def ask() -> None:
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()
            lengths.append(answer["usage"]["completion_tokens"])

        threads = [threading.Thread(target=ask) for _ in range(5)]  # two run, the others wait
        with httpx.Client(timeout=120) as client:
            streamed = {**body, "stream": True}
            with client.stream("POST", f"{address}/v1/completions", json=streamed) as answer:
                lines = answer.iter_lines()
                next(lines)
                for thread in threads:
                    thread.start()
                while "phlox_requests_total 6" not in httpx.get(f"{address}/metrics").text:
                    pass
                process.send_signal(signal.SIGTERM)
                assert list(filter(None, lines))[-1] == "data: [DONE]"
        for thread in threads:
            thread.join(120)
        assert lengths == [200] * 5  # nothing is lost
        assert process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")


def test_a_second_ctrl_c_ends_the_answers(folder: Path) -> None:
    body = {"prompt": "ab", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with serving(folder) as (process, address), socket.create_connection(("127.0.0.1", int(address[17:]))) as silent:
        silent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        silent.sendall(b"Content-Length: 100\r\n\r\n")  # and no body
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "finishing 2 requests; Ctrl-C ends them at once\n"
            process.send_signal(signal.SIGINT)
            assert '"code":"closing"' in list(filter(None, lines))[-1]
        assert process.wait(60) == 130
        assert process.stderr.read() == "phlox: interrupted\n"


@pytest.mark.full
def test_a_key_in_a_file_or_the_environment(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    for arguments, environment in (
        (["--api-key-file", tmp_path / "key"], None),
        ([], {"PHLOX_API_KEY": "secret"}),
    ):
        with serving(folder, *arguments, environment=environment) as (process, address):
            assert httpx.get(f"{address}/v1/models").status_code == 401
            headers = {"Authorization": "Bearer secret"}
            assert httpx.get(f"{address}/v1/models", headers=headers).json()["data"][0]["id"] == "tiny"
            if (shown := Path(f"/proc/{process.pid}/cmdline")).exists():
                assert b"secret" not in shown.read_bytes()


def test_what_cannot_be_served(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("two words")
    for arguments, message in (
        ([tmp_path / "nothing"], "there is no such folder"),
        ([tmp_path / "nothing.onnx"], "there is no such file"),
        ([folder, "--api-key-file", tmp_path / "key"], "must be one word"),
        ([folder, "--api-key-file", tmp_path / "none"], "there is no such file"),
    ):
        assert main(["serve", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as used:
        assert main(["serve", str(folder), "--port", str(used.getsockname()[1])]) == 2
        assert "cannot listen at 127.0.0.1" in capsys.readouterr().err
    assert main(["serve", str(folder), "--host", "no.such.name.invalid"]) == 2
    refused = capsys.readouterr().err
    assert "cannot listen at no.such.name.invalid, port 8000 (" in refused and "Unknown error" not in refused
    for wrong, message in ((["--port", "70000"], "not a port"), (["--slots", "0"], "not an integer of 1 or more")):
        with pytest.raises(SystemExit, match="2"):
            main(["serve", str(folder), *wrong])
        assert message in capsys.readouterr().err


@pytest.mark.full
def test_an_onnx_file_is_served(tmp_path: Path) -> None:
    layer = px.nn.Linear(2, 1, device="numpy").init(0)
    px.export.onnx(layer, px.ones((1, 2), device="numpy"), tmp_path / "line.onnx")
    with serving(tmp_path / "line.onnx") as (_, address):
        (card,) = httpx.get(f"{address}/v1/models").json()["data"]
        answer = httpx.post(f"{address}/predict", json={"inputs": [[1.0, 2.0]]}).json()
    assert card["id"] == "line"
    (output,) = answer["outputs"].values()
    np.testing.assert_allclose(output, layer(px.tensor([[1.0, 2.0]], device="numpy")).numpy(), rtol=1e-5)
