"""Vectors of texts over HTTP: those of sentence-transformers for its folders, and means of other encoders."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.errors import ConfigError
from phlox.models import EncoderConfig, LanguageModel, LlamaConfig, SentenceEncoderConfig
from phlox.serve import Server, ServerOptions
from phlox.serve.embedding import Embedder, batches_of
from phlox.text import BytePairTokenizer
from tests.interop.huggingface.test_sentences import SIZES, TEXTS, tokenizer
from tests.serve.support import running


@pytest.mark.parametrize("normalized", [True, False])
def test_vectors_are_those_of_sentence_transformers(normalized: bool, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(0)
    inner = transformers.BertModel(transformers.BertConfig(**SIZES))
    for parameter in inner.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    inner.save_pretrained(tmp_path / "inner")
    tokenizer("0", "right").save_pretrained(tmp_path / "inner")
    parts: list[Any] = [modules.Transformer(str(tmp_path / "inner")), modules.Pooling(16, "mean")]
    parts += [modules.Normalize()] if normalized else []
    st.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "whole"))
    expected = st.SentenceTransformer(str(tmp_path / "whole"), device="cpu").encode(TEXTS)
    model = px.models.load(tmp_path / "whole", device="numpy")
    with running(Server(model, ServerOptions(name="vectors"))) as address:
        url = f"{address}/v1/embeddings"

        def vectors(**fields: Any) -> Any:
            answer = httpx.post(url, json=fields, timeout=60).json()
            return [entry["embedding"] for entry in answer["data"]], answer["usage"]

        rows, usage = vectors(input=TEXTS)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        assert model.tokenizer is not None
        tokens = [model.tokenizer.encode(text) for text in TEXTS]
        assert usage == {"prompt_tokens": sum(map(len, tokens)), "total_tokens": sum(map(len, tokens))}
        assert vectors(input=tokens)[0] == rows
        np.testing.assert_allclose(vectors(input=tokens[0])[0], rows[:1], rtol=1e-5, atol=1e-7)  # in another batch
        (alone,), _ = vectors(input=TEXTS[0])
        (encoded,), _ = vectors(input=TEXTS[0], encoding_format="base64")
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(encoded), "<f4"), np.float32(alone))
        (short,), _ = vectors(input=TEXTS[0], dimensions=4)
        first = expected[0][:4]
        np.testing.assert_allclose(short, first / np.linalg.norm(first) if normalized else first, atol=1e-5)
        for fields, words in (({"dimensions": 17}, "at most 16"), ({"input": "w1 " * 40}, "longer than the context")):
            refused = httpx.post(url, json={"input": "w1", **fields})
            assert refused.status_code == 400 and words in refused.json()["error"]["message"]
        assert httpx.post(f"{address}/v1/completions", json={"prompt": "w1"}).status_code == 404


def test_an_encoder_gives_the_mean_of_its_last_states() -> None:
    encoder = EncoderConfig(vocabulary=260, context=32, n_layers=1, d_model=8, n_heads=2).init("numpy").init(0)
    with running(Server(LanguageModel(encoder, BytePairTokenizer()))) as address:
        answer = httpx.post(f"{address}/v1/embeddings", json={"input": "abc"}).json()
    mean = encoder.valid()(px.tensor([list(b"abc")], device="numpy"))[0].numpy().mean(0)
    np.testing.assert_allclose(answer["data"][0]["embedding"], mean / np.linalg.norm(mean), atol=1e-6)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        Server(LanguageModel(encoder))


@pytest.mark.parametrize("kind", ["encoder", "sentences", "decoder", "sentences of a decoder"])
def test_texts_are_read_in_batches_of_similar_lengths(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: Any = {"vocabulary": 260, "context": 64, "n_layers": 2, "d_model": 16, "n_heads": 2, "init_std": 0.3}
    inner: Any = LlamaConfig(**sizes) if "decoder" in kind else EncoderConfig(**sizes)
    model: Any = (SentenceEncoderConfig(inner) if "sentences" in kind else inner).init(NumPy(float="f64")).init(0)
    texts = ["a" * (1 + 7 * number % 50) for number in range(100)]
    shapes: list[tuple[int, int]] = []
    own = Embedder.__call__

    def counted(self: Embedder, rows: Any, size: Any = None) -> Any:
        shapes.append((len(rows), max(map(len, rows))))
        return own(self, rows, size)

    monkeypatch.setattr(Embedder, "__call__", counted)
    with running(Server(LanguageModel(model, BytePairTokenizer()))) as address, httpx.Client(timeout=60) as client:
        whole = client.post(f"{address}/v1/embeddings", json={"input": texts}).json()
        n_batches, most = len(shapes), 256 if kind == "decoder" else 4096
        assert n_batches < 40 and sum(rows for rows, _ in shapes) == 100
        assert all(rows * n <= most for rows, n in shapes)
        for number in (0, 1, 50, 99):
            single = client.post(f"{address}/v1/embeddings", json={"input": texts[number]}).json()
            np.testing.assert_allclose(
                single["data"][0]["embedding"], whole["data"][number]["embedding"], rtol=1e-6, atol=1e-7
            )
    assert whole["usage"]["prompt_tokens"] == sum(map(len, texts))


def test_batches() -> None:
    texts = [[0] * n for n in (3, 700, 1, 2, 3, 5, 9, 2)]
    assert list(batches_of(texts, 15)) == [[2, 3, 7], [0, 4, 5], [6], [1]]
    assert list(batches_of([])) == []


def test_a_client_that_goes_ends_its_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = EncoderConfig(vocabulary=260, context=32, n_layers=1, d_model=8, n_heads=2).init("numpy").init(0)
    n_texts: list[int] = []
    own = Embedder.__call__

    def slow(self: Embedder, rows: Any, size: Any = None) -> Any:
        n_texts.append(len(rows))
        time.sleep(0.2)
        return own(self, rows, size)

    monkeypatch.setattr(Embedder, "__call__", slow)
    monkeypatch.setattr("phlox.serve.server.BATCH_TOKENS", 4)
    server = Server(LanguageModel(encoder, BytePairTokenizer()))
    with running(server) as address, pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{address}/v1/embeddings", json={"input": ["abcd"] * 1000}, timeout=0.5)
    assert 0 < len(n_texts) < 20 and server._statuses == {499: 1}
