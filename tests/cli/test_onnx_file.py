"""`phlox predict` and `phlox inspect` of ONNX files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.cli import main
from phlox.data import load_digits

onnx = pytest.importorskip("onnx")

from tests.interop.onnx.support import INT64, mlp, mlp_by_hand, model, node, normal, value  # noqa: E402

DIGITS = load_digits()
X = normal(3, 2, 3, seed=2)


def classifier() -> Any:
    """x [batch, 1, 8, 8] -> scores [batch, 10]."""
    nodes = [node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "head.weight"], ["scores"])]
    inputs, outputs = [value("x", ["batch", 1, 8, 8])], [value("scores", ["batch", 10])]
    return model(nodes, inputs, outputs, {"head.weight": normal(64, 10)})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "mlp.onnx")
    onnx.save(classifier(), "digits.onnx")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    return err if status else out


@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
def test_images_of_digits(device: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("some.npz", images=DIGITS.images[:5], labels=DIGITS.labels[:5])
    lines = printed(capsys, "predict", "digits.onnx", "some.npz", "--device", device).splitlines()
    scores = DIGITS.images[:5].reshape(5, 64) / np.float32(16) @ normal(64, 10)
    for row, score, label in zip(lines[1:-1], scores, DIGITS.labels, strict=False):
        assert row.split()[1] == str(score.argmax())
        assert float(row.split()[2]) == pytest.approx(score.max(), rel=1e-3)
        assert row.split()[3:] == [str(label), *(["wrong"] if score.argmax() != label else [])]
    right = (scores.argmax(1) == DIGITS.labels[:5]).sum()
    assert lines[-1] == f"accuracy: {right / 5:.2%} ({right} of 5 rows)"
    np.savetxt("some.csv", DIGITS.images[:5].reshape(5, 64), fmt="%d", delimiter=",")
    assert "label" not in printed(capsys, "predict", "digits.onnx", "some.csv")


def test_arrays_by_name_and_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("in.npz", x=X)
    np.save("in.npy", X)
    wanted = mlp_by_hand(X)
    for file in ("in.npz", "in.npy"):
        lines = printed(capsys, "predict", "mlp.onnx", file).splitlines()
        assert [line.split()[1] for line in lines[1:]] == [str(number) for number in wanted.argmax(1)]
        assert printed(capsys, "predict", "mlp.onnx", file, "--out", "out.npz") == "out.npz: y\n"
        with np.load("out.npz") as out:
            np.testing.assert_allclose(out["y"], wanted, rtol=1e-5)


def test_other_outputs_are_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Shape", ["x"], ["size"]), node("Neg", ["x"], ["y"])]
    onnx.save(model(nodes, [value("x", [3])], [value("y", [3]), value("size", [1], INT64)]), "two.onnx")
    np.save("in.npy", np.array([1, 2, 3]))
    lines = [line.split() for line in printed(capsys, "predict", "two.onnx", "in.npy").splitlines()]
    assert lines[1:] == [["y", "float32", "(3,)", "-3", "-1", "-2"], ["size", "int32", "(1,)", "3", "3", "3"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "mlp.onnx", "none.npy"], "there is no such file"),
        (["predict", "mlp.onnx", "damaged.npy"], "cannot be read as an array"),
        (["predict", "mlp.onnx", "other.npz"], "holds z; the model takes x: float [batch, 2, 3]: name the arrays so"),
        (["predict", "mlp.onnx", "some.csv"], "the model takes x: float [batch, 2, 3]; give an .npz"),
        (["predict", "mlp.onnx", "wrong.npy"], "does not take a tensor of shape (4,)"),
        (["predict", "none.onnx", "wrong.npy"], "none.onnx"),
        (["predict", "no.onnx", "wrong.npy"], "is no ONNX model"),
        (["predict", "run", "wrong.npy", "--out", "o.npz"], "--out"),
        (["inspect", "no.onnx"], "is no ONNX model"),
        (["inspect", "mlp.onnx", "--verify"], "has no checksums"),
        (["inspect", "mlp.onnx", "upp"], "upp"),
    ],
)
def test_bad_input(arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "damaged.npy").write_bytes(b"nothing")
    (folder / "some.csv").write_text("1,2\n")
    (folder / "no.onnx").write_bytes(b"nothing")
    np.savez("other.npz", z=X)
    np.save("wrong.npy", np.zeros(4, np.float32))
    err = printed(capsys, *arguments, status=2)
    assert says in err and err.count("\n") == 1


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "inspect", "mlp.onnx")
    assert "Input          x: float [batch, 2, 3]" in out and "Operators      Shape 1, Gather 1" in out
    assert "up.weight" in out and "(5, 6)" in out and "120 B" in out and out.endswith("Total: 7 initializers, 248 B\n")
    only = printed(capsys, "inspect", "mlp.onnx", "up", "--sort", "size", "--limit", "1")
    assert "up.weight" in only and "up.bias" not in only and "... and 1 more" in only
    found = json.loads(printed(capsys, "inspect", "mlp.onnx", "--json"))
    assert found["operators"]["MatMul"] == 1 and found["opsets"] == {"ai.onnx": 18} and found["unknown"] == []


def test_inspect_of_unknown_operators(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = model([node("Odd", ["x"], ["y"], domain="my\x1b[2J")], [value("x", [3])], [value("y", [3])])
    onnx.save(proto, "odd.onnx")
    out = printed(capsys, "inspect", "odd.onnx")
    assert "Odd 1 (unknown)" in out and "\x1b" not in out


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.onnx"
    assert main(["predict", str(missing), str(tmp_path / "x.npz")]) == 2
    assert capsys.readouterr().err == f"phlox: {missing}: there is no such file; check the path\n"
