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
from phlox.errors import ConfigError
from phlox.models import (
    EncoderClassifierConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageClassifierConfig,
    LanguageModel,
    LanguageRecipe,
    LanguageTraining,
    LlamaConfig,
    VisionEncoderConfig,
)
from phlox.serve import Server, ServerOptions
from phlox.serve.errors import ApiError
from phlox.serve.predictor import Input, Predictor, is_predictor, predictor_of
from phlox.text import BytePairTokenizer
from phlox.train import RunFolder
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


def test_a_classifier_of_texts() -> None:
    encoder = EncoderConfig(vocabulary=260, context=8, n_layers=1, d_model=8, n_heads=2)
    model = EncoderClassifierConfig(encoder, classes=3).init("numpy").init(0)
    with running(Server(LanguageModel(model, BytePairTokenizer()))) as address:
        answer = httpx.post(f"{address}/predict", json={"inputs": ["abc", "de"]}).json()
        refused = httpx.post(f"{address}/predict", json={"inputs": ["abc", "much too long"]})
        assert httpx.post(f"{address}/predict", json={"inputs": [1]}).json()["error"]["message"].endswith("be texts")
    for text, row in zip(["abc", "de"], answer["outputs"]["logits"], strict=True):
        expected = model.valid()(px.tensor([list(text.encode())], device="numpy"))[0].numpy()
        np.testing.assert_allclose(row, expected, rtol=1e-5)
    assert refused.status_code == 400 and "from 1 to 8" in refused.json()["error"]["message"]


def test_a_classifier_of_images() -> None:
    encoder = VisionEncoderConfig(image_size=(4, 4), patch_size=(2, 2), n_layers=1, d_model=8, n_heads=2)
    model = ImageClassifierConfig(encoder, classes=3).init("numpy").init(0)
    images = np.random.default_rng(0).random((2, 3, 4, 4)).astype(np.float32)
    with running(Server(LanguageModel(model))) as address:
        answer = httpx.post(f"{address}/predict", json={"inputs": {"images": images.tolist()}}).json()
        (entry,) = httpx.get(f"{address}/v1/models").json()["data"][0]["inputs"]
    expected = model.valid()(px.tensor(images, device="numpy")).numpy()
    np.testing.assert_allclose(answer["outputs"]["logits"], expected, rtol=1e-5)
    assert entry == {"name": "images", "shape": ["rows", 3, 4, 4], "type": "float32"}


def test_an_encoder_decoder_is_refused() -> None:
    sizes = {"vocabulary": 260, "d_model": 8, "n_heads": 2, "n_layers": 1}
    model = EncoderDecoderConfig(**sizes).init("numpy")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a decoder"):
        Server(LanguageModel(model, BytePairTokenizer()))


def test_a_run_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    training = LanguageTraining("The cat sat on the mat.\n" * 150, LanguageRecipe.of_size(35000).replace(steps=1))
    with RunFolder(tmp_path / "run") as folder:
        training.run(folder)
    assert not is_predictor(tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").unlink()
    assert is_predictor(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run: is a run of a model of texts, Llama, without tokenizer\.json; write"):
        predictor_of(tmp_path / "run", "numpy")


def test_the_tokenizer_of_another_model_is_refused() -> None:
    sizes: Any = {"vocabulary": 100, "context": 8, "n_layers": 1, "d_model": 8, "n_heads": 2}
    classifier = EncoderClassifierConfig(EncoderConfig(**sizes), classes=3)
    for config in (LlamaConfig(**sizes), EncoderConfig(**sizes), classifier):
        with pytest.raises(ConfigError, match="tiny: the tokenizer has 256 tokens, but the model only 100"):
            Server(LanguageModel(config.init("numpy"), BytePairTokenizer()), ServerOptions(name="tiny"))


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
