"""Vectors of texts over HTTP: those of sentence-transformers for its folders, and means of other encoders."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.models import EncoderConfig, LanguageModel
from phlox.serve import Server, ServerOptions
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
        assert vectors(input=tokens)[0] == rows and vectors(input=tokens[0])[0] == rows[:1]
        (encoded,), _ = vectors(input=TEXTS[0], encoding_format="base64")
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(encoded), "<f4"), np.float32(rows[0]))
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
