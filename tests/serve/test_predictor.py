"""Predictions over HTTP: arrays as lists of JSON, with checks of names, shapes and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.cli import main
from phlox.serve import Server, ServerOptions
from phlox.serve.errors import ApiError
from phlox.serve.predictor import Input, Predictor, is_predictor, predictor_of
from tests.cli.support import SMALL
from tests.serve.support import running


def add(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"sum": arrays["x"] + arrays["n"], "bad": np.asarray([np.nan, 1.0])}


PREDICTOR = Predictor([Input("x", ("rows", 2), np.dtype(np.float32)), Input("n", ("rows", 1), np.dtype(np.int32))], add)


def test_outputs_are_lists() -> None:
    answer = PREDICTOR({"inputs": {"x": [[1, 2.5]], "n": [[3]]}})
    assert answer == {"outputs": {"sum": [[4.0, 5.5]], "bad": [None, 1.0]}}


@pytest.mark.parametrize(("body", "message"), [
    ([], "the body must be"),
    ({"input": {}}, "the body must be"),
    ({"inputs": [1]}, "the model takes x, n: name them"),
    ({"inputs": {"x": [[1, 2]]}}, "the model takes x, n, got x"),
    ({"inputs": {"x": [[1, 2, 3]], "n": [[1]]}}, r"inputs.x must be an array of shape \['rows', 2\], got \[1, 3\]"),
    ({"inputs": {"x": [[1, 2], [3]], "n": [[1]]}}, "inputs.x must be lists of equal lengths"),
    ({"inputs": {"x": [["a", "b"]], "n": [[1]]}}, "inputs.x must be numbers"),
    ({"inputs": {"x": [[1, 2]], "n": [[1.5]]}}, "inputs.n must be whole numbers"),
    ({"inputs": {"x": [[1, 2]], "n": [[2**40]]}}, "inputs.n must be numbers from"),
])  # fmt: skip
def test_what_is_refused(body: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        PREDICTOR(body)


def test_over_http() -> None:
    with running(Server(PREDICTOR, ServerOptions(name="adder"))) as address:
        answer = httpx.post(f"{address}/predict", json={"inputs": {"x": [[1, 2]], "n": [[1]]}})
        assert answer.json()["outputs"]["sum"] == [[2.0, 3.0]]
        refused = httpx.post(f"{address}/predict", json={"inputs": {"x": [], "n": [[1]]}})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "inputs.x"
        assert httpx.post(f"{address}/v1/completions", json={}).status_code == 404


def test_an_onnx_file(tmp_path: Path) -> None:
    layer = px.nn.Linear(2, 1, device="numpy").init(0)
    path = tmp_path / "line.onnx"
    px.export.onnx(layer, px.ones((1, 2), device="numpy"), path)
    assert is_predictor(path) and not is_predictor(tmp_path)
    answer = predictor_of(path, "numpy")({"inputs": [[1.0, 2.0]]})
    (output,) = answer["outputs"].values()
    np.testing.assert_allclose(output, layer(px.tensor([[1.0, 2.0]], device=NumPy())).numpy(), rtol=1e-5)


@pytest.mark.full
def test_the_run_of_the_demo(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    assert main(["demo", "--config", str(tmp_path / "small.json"), "--out", str(tmp_path / "run")]) == 0
    assert is_predictor(tmp_path / "run")
    predictor = predictor_of(tmp_path / "run", "numpy")
    sizes = predictor.inputs[0].shape
    assert sizes is not None
    images = np.zeros((2, *sizes[1:])).tolist()  # type: ignore[arg-type]
    (probabilities,) = predictor({"inputs": images})["outputs"].values()
    np.testing.assert_allclose(np.sum(probabilities, -1), 1.0, rtol=1e-4)
