"""`px.models.load`: folders of Hugging Face, runs of Phlox, files, and names on the Hub, without the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError, RecordError
from phlox.interop import gguf, huggingface
from phlox.models import (
    BertConfig,
    GptConfig,
    LanguageModel,
    LanguageRecipe,
    LanguageTraining,
    LlamaConfig,
    load,
)
from phlox.text import BytePairTokenizer
from phlox.train import RunFolder

CONFIG = LlamaConfig(vocabulary=260, context=32, n_layers=1, d_model=32, n_heads=2, d_hidden=32)


def folder_of(path: Path, **generation: Any) -> Any:
    """A folder of Hugging Face with a tokenizer; returns its model."""
    px.random.seed(0)
    model = CONFIG.init("numpy")
    huggingface.save(model, path, config={"eos_token_id": 2, "bos_token_id": None})
    BytePairTokenizer(special=["<s>", "</s>", "<x>"], end="</s>").save(path)
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return model


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    model = folder_of(tmp_path)
    loaded = load(str(tmp_path), device="numpy")
    x = px.tensor([[1, 2, 3]], device="numpy")
    np.testing.assert_array_equal(loaded(x).numpy(), model.valid()(x).numpy())
    assert isinstance(loaded, LanguageModel) and loaded.stops == {2, 257} and loaded.options == {}
    assert isinstance(loaded.generate("Hi", 4), str)
    sampling = {"temperature": 0.7, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.1, "eos_token_id": [3, 4]}
    folder_of(tmp_path, **sampling)
    assert load(tmp_path, device="numpy").options == {}
    folder_of(tmp_path, do_sample=True, **sampling)
    loaded = load(tmp_path, device="numpy")
    assert loaded.options == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    assert loaded.stops == {3, 4, 257}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    folder_of(tmp_path / "a", do_sample=True, top_k=5, eos_token_id=[3])
    loaded = load(tmp_path / "a", device="numpy")
    loaded.save(tmp_path / "b")
    again = load(tmp_path / "b", device="numpy")
    assert again.stops == loaded.stops == {3, 257} and again.options == {"top_k": 5}
    assert again.generate("Hi", 5, temperature=0.0) == loaded.generate("Hi", 5, temperature=0.0)


@pytest.mark.full
def test_transformers_loads_what_was_trained_on_a_text(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = LanguageRecipe.of_size(35_000).replace(steps=3, batch_size=2)
    with RunFolder(tmp_path / "run") as folder:
        LanguageTraining("The cat sat on the mat, and the dog sat on the log. " * 100, recipe, "numpy").run(folder)
    ours = load(tmp_path / "run", device="numpy")
    ours.save(tmp_path / "saved")
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "saved")
    tokens = tokenizer("The cat", return_tensors="pt")
    with torch.no_grad():
        written = theirs.generate(**tokens, max_new_tokens=12, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    assert tokenizer.decode(written) == ours.generate("The cat", 12, temperature=0.0)


def test_other_models_and_folders_without_a_tokenizer(tmp_path: Path) -> None:
    bert = BertConfig(vocabulary=20, context=8, n_layers=1, d_model=8, n_heads=2).init("numpy")
    huggingface.save(bert, tmp_path)
    loaded = load(tmp_path, device="numpy")
    assert loaded.tokenizer is None and type(loaded.model).__name__ == "Bert"
    assert loaded.config.d_model == 8


def test_a_gguf_file(tmp_path: Path) -> None:
    model = GptConfig(vocabulary=32, context=8, n_layers=1, d_model=32, n_heads=2).init("numpy")
    path = gguf.save(model, tmp_path / "model.gguf", type="F16")
    assert load(path, device="numpy").tokenizer is None
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors: is no GGUF file; give one, or the folder of a model"):
        load(tmp_path / "model.safetensors")
    (tmp_path / "damaged.gguf").write_bytes(b"GG")
    with pytest.raises(RecordError, match="not a valid gguf record"):
        load(tmp_path / "damaged.gguf")


def test_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "cache")
    calls: list[dict[str, Any]] = []

    def downloaded(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        if name == "no/network":
            raise OSError("unreachable\nmore")
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)
    assert load("owner/name-1.5", device="numpy", revision="main").tokenizer is not None
    (call,) = calls
    assert call["name"] == "owner/name-1.5" and call["revision"] == "main"
    assert "*.safetensors" in call["allow_patterns"] and not any("bin" in name for name in call["allow_patterns"])
    with pytest.raises(ConfigError, match=r"no/network: .* cannot be downloaded from the Hub \(unreachable\)"):
        load("no/network")
    folder_of(tmp_path / "owner" / "local")
    load("owner/local", device="numpy")  # a local folder goes first
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "../owner/name"])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no such folder; give the path of one, or a name on the Hub"):
        load(name)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no model: neither the config\.json"):
        load(tmp_path)
