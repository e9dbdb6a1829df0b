"""`phlox backends`: the matrix of operations and backends, on the terminal and in the documentation.

Serves: phlox/backend/contract/{support_table,catalogue}.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phlox.backend import register_backend, registry
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, composite_of, families, provision
from phlox.cli import main
from phlox.cli.backends import MARK

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


@pytest.fixture
def plain() -> Iterator[None]:
    before = dict(registry._BACKENDS)
    register_backend("plain", "tests.backend.plain:Plain")
    yield
    registry._BACKENDS.clear()
    registry._BACKENDS.update(before)


def rows(text: str) -> dict[str, list[str]]:
    cells = [line.split() for line in text.splitlines() if re.match("  [a-z]", line)]
    return {name: how for name, *how in cells}


def test_every_operation_and_backend_is_there(capsys: Any) -> None:
    assert main(["backends"]) == 0
    text = capsys.readouterr().out
    assert text.split()[:3] == ["jax", "numpy", "torch"]
    found = rows(text)
    assert set(found) == {name for name in OPERATIONS if composite_of(name) == name} - {"detach"}
    assert found["float_add"] == ["native"] * 3 and found["squeeze"] == ["derived"] * 3
    assert "\nlinalg\n" in text and "\nrequired: float\n" in text
    assert "NumPy(): " in text.splitlines()[-2] and " native, " in text.splitlines()[-2]


def test_a_family_shows_no_parts_of_composites() -> None:
    listed = [name for names in families().values() for name in names]
    assert len(listed) == len(set(listed)) and "softmax" in listed and "float_take_adjoint" in listed
    assert not {"softmax_forward", "softmax_backward", "float_tanh_backward", "conv_dx"} & set(listed)
    assert composite_of("softmax_backward") == "softmax" and composite_of("float_take_adjoint") == "float_take_adjoint"


@pytest.mark.usefixtures("plain")
def test_a_strangers_backend_stands_there_too(capsys: Any) -> None:
    assert main(["backends", "--backend", "plain", "--float", "f64"]) == 0
    text = capsys.readouterr().out
    found = rows(text)
    assert found["float_add"] == ["native"] and {*DERIVED} >= {
        name for name, how in found.items() if how == ["derived"]
    }
    assert all(how == ["native"] for name, how in found.items() if name not in DERIVED)
    assert "Plain(float='f64')" in text.splitlines()[-1] and "jax" not in text


def test_what_is_computed_in_single_precision_is_marked(capsys: Any) -> None:
    assert main(["backends", "--float", "bf16", "--backend", "numpy", "--backend", "torch"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["float_add"] == ["native,", "f32", "native"] and found["reshape"] == ["native", "native"]
    assert found["svd"] == ["native,", "f32"] * 2 or "f32" in found["svd"]


def test_a_lacking_operation_and_a_lacking_engine(capsys: Any) -> None:
    from phlox.backend import EngineBackend

    class Poor(EngineBackend):
        name = "poor"

    assert provision(Poor(), "float_exp") == "unsupported" and provision(Poor(), "float_square") == "derived"
    program = "import sys; sys.modules['torch'] = None; from phlox.cli import main; sys.exit(main(['backends']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout)["float_add"] == ["native", "native", "not", "installed"]
    assert "torch: its engine is not installed" in done.stdout and "the extra 'torch'" in done.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--backend", "nump"], "did you mean 'numpy'"),
        (["--float", "f8"], "no float element 'f8'"),
        (["--into", "README.nowhere"], "README.nowhere"),
    ],
)
def test_wrong_options_are_one_sentence(arguments: list[str], says: str, capsys: Any) -> None:
    assert main(["backends", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    before = PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "backends.md"
    copy.write_text(before, encoding="utf-8")
    assert main(["backends", "--into", str(copy)]) == 0
    assert MARK in before
    assert copy.read_text(encoding="utf-8") == before, (
        "docs/backends.md is out of date; run: python -m phlox backends --into docs/backends.md"
    )
