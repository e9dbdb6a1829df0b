"""Settings of the process: what they may be, where they come from, and that they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import phlox
import phlox as px
from phlox.backend import as_device, settings
from phlox.backend.settings import Settings, read_environment, read_file
from phlox.errors import ConfigError
from phlox.host.threads import VARIABLES

OWN = {*settings.VARIABLES.values(), settings.FILE, *VARIABLES, "XLA_FLAGS"}

CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}


def run(program: str, *warnings: str, **variables: str) -> str:
    """What the program prints in a process of its own with these variables."""
    environment = {**CLEAN, "PYTHONPATH": str(Path(phlox.__path__[0]).parent), **variables}
    flags = warnings or ("-W", "error")
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


def test_nothing_is_set_unless_it_is() -> None:
    assert read_environment({}) == Settings() == read_environment({"PHLOX_THREADS": "", "PHLOX_SETTINGS": ""})


def test_variables_say_what_settings_are() -> None:
    every = Settings("torch:gpu:0", "keep", 3, "--xla_a=1 --xla_b", "none", "-winograd", "1", "1")
    assert read_environment(every.variables()) == every
    assert set(every.variables()) == set(settings.VARIABLES.values())
    assert Settings(threads=1).over(Settings(threads=2, device="jax")) == Settings("jax", threads=1)


WRONG = {
    "allocator": ({"PHLOX_ALLOCATOR": "kep"}, "PHLOX_ALLOCATOR is `keep` or `system`, got 'kep'"),
    "threads": ({"PHLOX_THREADS": "0"}, "PHLOX_THREADS is a whole number of at least 1, got 0"),
    "words": ({"PHLOX_THREADS": "two"}, "PHLOX_THREADS is a whole number of at least 1, got 'two'"),
    "flags": ({"PHLOX_XLA_FLAGS": "--xla_a -b"}, "PHLOX_XLA_FLAGS holds flags of XLA, which begin with `--xla_`"),
    "codegen": ({"PHLOX_TORCH_CODEGEN": "gcc"}, "PHLOX_TORCH_CODEGEN is `inductor` or `none`, got 'gcc'"),
    "device": ({"PHLOX_DEVICE": " "}, "PHLOX_DEVICE is a text"),
    "file": ({"PHLOX_SETTINGS": "missing.json"}, "missing.json: cannot be read as a file of settings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_variable_is_one_sentence(case: str) -> None:
    variables, says = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        read_environment(variables)
    assert says in str(caught.value) and "\n" not in str(caught.value)


SPOILT = {
    "no JSON": ("{", "is no file of settings: it is not valid JSON"),
    "no object": ("[1]", "a file of settings is a JSON object, got list"),
    "unknown key": ('{"thread": 1}', "thread: unknown key; did you mean `threads`?"),
    "another type": ('{"threads": "2"}', "threads is a whole number of at least 1, got '2'"),
    "a flag": ('{"threads": true}', "threads is a whole number of at least 1, got True"),
    "another value": ('{"allocator": null}', "allocator is `keep` or `system`, got None"),
    "a number": ('{"device": 3}', "device is a text, got 3"),
    "no letters": ('"\\ud800', "not valid JSON"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_wrong_file_is_one_sentence(case: str, tmp_path: Path) -> None:
    text, says = SPOILT[case]
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_and_variables_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(settings.as_file(Settings("jax", "keep", 2), {"ms_a_step": 1.5}))
    assert json.loads(path.read_text()) == {
        "device": "jax", "allocator": "keep", "threads": 2, "measured": {"ms_a_step": 1.5},
    }  # fmt: skip
    assert read_file(path) == Settings("jax", "keep", 2)
    variables = {"PHLOX_SETTINGS": str(path), "PHLOX_THREADS": "1", "PHLOX_ALLOCATOR": ""}
    assert read_environment(variables) == Settings("jax", "keep", 1)


def test_a_wrong_value_is_refused_at_the_import() -> None:
    program = """
try:
    import phlox
except ValueError as error:
    print(type(error).__name__, error)
"""
    assert "ConfigError the environment variable PHLOX_ALLOCATOR is" in run(program, PHLOX_ALLOCATOR="all")


@pytest.mark.full
def test_the_default_device(tmp_path: Path) -> None:
    program = """
import phlox as px
print(px.ones((2,)).device, px.nn.Linear(2, 2).weight.device)
with px.default_device("numpy"):
    print(px.ones((2,)).device)
"""
    path = tmp_path / "tuned.json"
    path.write_text('{"device": "jax"}')
    assert run(program, PHLOX_DEVICE="jax") == "jax:cpu jax:cpu\nnumpy:cpu"
    assert run(program, PHLOX_SETTINGS=str(path)) == "jax:cpu jax:cpu\nnumpy:cpu"
    assert run(program).startswith("numpy:cpu")


def test_a_default_device_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_applied", Settings(device="jaxx"))
    with pytest.raises(px.errors.DeviceError, match="PHLOX_DEVICE=jaxx, the default device: .*did you mean 'jax'"):
        px.ones((2,))
    assert str(as_device("numpy")) == "numpy:cpu"


def test_flags_of_xla_beside_those_that_are_there() -> None:
    program = "import os, phlox; print(os.environ['XLA_FLAGS'], os.environ['NPROC'])"
    flags = "--xla_cpu_max_isa=AVX --xla_cpu_prefer_vector_width=256"
    there = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "NPROC": "7"}
    assert run(program, PHLOX_XLA_FLAGS=flags, PHLOX_THREADS="2", **there) == (
        "--xla_cpu_max_isa=AVX2 --xla_cpu_prefer_vector_width=256 7"
    )


@pytest.mark.full
def test_what_comes_too_late_for_xla_is_said() -> None:
    program = "import jax; jax.devices(); import phlox"
    said = run(program, "-W", "default", PHLOX_XLA_FLAGS="--xla_cpu_max_isa=AVX2", PHLOX_THREADS="1")
    assert "RuntimeWarning: PHLOX_THREADS and PHLOX_XLA_FLAGS came too late for XLA" in said
    assert run("import jax; import phlox", PHLOX_XLA_FLAGS="--xla_cpu_max_isa=AVX2") == ""
