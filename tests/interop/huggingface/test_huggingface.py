"""Models that `transformers` made and saved, loaded by ours: their logits, gradients and texts are the reference.

Serves: phlox/interop/huggingface/, phlox/models/causal.py
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, PhloxError, RecordError
from phlox.interop import huggingface
from phlox.models import BertClassifierConfig, BertConfig, BertMaskedLmConfig, GptConfig, Llama3Scaling, LlamaConfig
from phlox.module.deferred import no_initializers
from phlox.record import HALF, Record

GPT2: dict[str, Any] = {"vocab_size": 23, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
LLAMA: dict[str, Any] = {
    "vocab_size": 23, "max_position_embeddings": 16, "hidden_size": 16, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": 23, "max_position_embeddings": 16, "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 3,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2 | {
        "tie_word_embeddings": False, "n_inner": 20, "layer_norm_epsilon": 0.1, "activation_function": "gelu",
        "attn_pdrop": 0.2,
    }),
    "gpt2 base": ("GPT2Model", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama grouped": ("LlamaForCausalLM", LLAMA | {
        "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": True, "rms_norm_eps": 0.1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }),
    "llama biases": ("LlamaForCausalLM", LLAMA | {
        "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "hidden_act": "gelu_new",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}, "attention_dropout": 0.5,
    }),
    "llama 3": ("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3, "pad_token_id": 0, "head_dim": 8}),
    "bert": ("BertModel", BERT),
    "bert masked": ("BertForMaskedLM", BERT | {
        "hidden_act": "relu", "layer_norm_eps": 0.01, "type_vocab_size": 3, "attention_probs_dropout_prob": 0.25,
    }),
    "bert pretraining": ("BertForPreTraining", BERT),
    "bert classes": ("BertForSequenceClassification", BERT | {"num_labels": 5, "classifier_dropout": 0.3}),
    "bert tokens": ("BertForTokenClassification", BERT | {"pad_token_id": None}),
}  # fmt: skip
CAUSAL = [case for case in CASES if case.startswith(("gpt2", "llama")) and case != "gpt2 base"]
BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]
TOKENS = np.random.default_rng(0).integers(1, 23, (3, 11)).astype(np.int32)


@dataclass
class Theirs:
    """A model that `transformers` made, and the folder where it was saved."""

    model: Any
    folder: Path

    def __call__(self, **inputs: Any) -> np.ndarray:
        tensors = {name: torch.tensor(array.astype(np.int64)) for name, array in inputs.items()}
        with torch.no_grad():
            return self.model(**tensors)[0].numpy()


def lively(model: Any) -> Any:
    """The model, its weights far enough from where they begin to tell a mistake."""
    with torch.no_grad():
        for path, weight in model.named_parameters():
            weight.normal_(0.0, 1.0 if weight.shape[0] == 23 else 0.4)
            if weight.ndim == 1 and path.endswith("weight"):
                weight.add_(1.0)
    return model


@pytest.fixture(scope="module")
def transformers() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of its own dependencies
            import transformers
        transformers.utils.logging.disable_progress_bar()
        yield transformers


@pytest.fixture(scope="module")
def made(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Theirs]:
    known: dict[str, Theirs] = {}

    def make(case: str) -> Theirs:
        if case not in known:
            name, config = CASES[case]
            kind = getattr(transformers, name)
            torch.manual_seed(0)
            model = lively(kind(kind.config_class(**config)).eval())
            folder = tmp_path_factory.mktemp(case.replace(" ", "_"))
            model.save_pretrained(folder)
            known[case] = Theirs(model, folder)
        return known[case]

    return make


def ours(model: Any, **inputs: Any) -> np.ndarray:
    device = next(iter(model.params())).device
    tensors = {name: px.tensor(array, device=device) for name, array in inputs.items()}
    return model(**tensors).numpy()


# --- the proof


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_same_logits(case: str, backend: Backend, made: Callable[[str], Theirs]) -> None:
    theirs = made(case)
    with no_initializers():
        model = huggingface.load(theirs.folder, device=backend)
        tokens = px.tensor(TOKENS, device=backend)
        found = model.hidden(tokens) if case == "gpt2 base" else model(tokens)
    expected = theirs(input_ids=TOKENS)
    assert np.abs(expected).max() > 0.5 and expected.std() > 0.1  # there is something to be told apart
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", ["bert", "bert masked", "bert classes", "bert tokens"])
def test_masks_and_segments(case: str, backend: Backend, made: Callable[[str], Theirs]) -> None:
    theirs = made(case)
    model = huggingface.load(theirs.folder, device=backend)
    mask = (np.arange(11) < np.array([[11], [4], [7]])).astype(np.int32)
    segments = (np.arange(11) >= np.array([[5], [2], [6]])).astype(np.int32)
    expected = theirs(input_ids=TOKENS, attention_mask=mask, token_type_ids=segments)
    for form in (mask, mask.astype(bool)):
        found = ours(model, tokens=TOKENS, mask=form, segments=segments)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.abs(ours(model, tokens=TOKENS, segments=segments) - expected).max() > 0.01  # the mask counts
    assert np.abs(ours(model, tokens=TOKENS, mask=mask) - expected).max() > 0.01  # and so do segments


def test_the_vector_of_a_text(made: Callable[[str], Theirs]) -> None:
    theirs = made("bert")
    model = huggingface.load(theirs.folder, device="numpy")
    with torch.no_grad():
        expected = theirs.model(torch.tensor(TOKENS.astype(np.int64))).pooler_output.numpy()
    found = model.pooled(model(px.tensor(TOKENS, device="numpy"))).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@st.composite
def options(draw: st.DrawFn, kind: str) -> tuple[str, dict[str, Any]]:
    """An architecture and the options of a small model of it."""

    def whole(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    heads, width = whole(1, 4), 2 * whole(1, 4)
    epsilon, flags = one_of(1e-12, 1e-5, 0.1), [one_of(False, True) for _ in range(3)]
    if kind == "gpt2":
        return "GPT2LMHeadModel", {
            "vocab_size": 23, "n_positions": whole(11, 20), "n_embd": heads * width, "n_layer": whole(1, 3),
            "n_head": heads, "n_inner": one_of(None, 5), "layer_norm_epsilon": epsilon, "tie_word_embeddings": flags[0],
            "activation_function": one_of("gelu", "gelu_new", "relu", "silu", "tanh", "gelu_fast"),
        }  # fmt: skip
    shared = {
        "vocab_size": 23, "num_hidden_layers": whole(1, 3), "num_attention_heads": heads, "hidden_size": heads * width,
        "intermediate_size": whole(1, 20), "hidden_act": one_of("gelu", "gelu_new", "relu", "silu", "tanh"),
        "max_position_embeddings": whole(11, 20), "pad_token_id": one_of(None, 0, 22),
    }  # fmt: skip
    if kind == "bert":
        name = one_of("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification")
        labels = {} if name in ("BertModel", "BertForMaskedLM") else {"num_labels": whole(1, 4)}
        return name, shared | {"layer_norm_eps": epsilon, "type_vocab_size": whole(1, 3)} | labels
    theta = {"rope_theta": one_of(10.0, 10000.0)}
    rope = one_of({"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}, LLAMA3)
    return "LlamaForCausalLM", shared | {
        "num_key_value_heads": one_of(*(n for n in range(1, heads + 1) if heads % n == 0)),
        "head_dim": one_of(None, 4), "rms_norm_eps": epsilon, "rope_parameters": rope | theta,
        "attention_bias": flags[0], "mlp_bias": flags[1], "tie_word_embeddings": flags[2],
    }  # fmt: skip


@settings(max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_same_logits_whatever_the_config(kind: str, data: st.DataObject, transformers: Any) -> None:
    name, config = data.draw(options(kind))
    architecture = getattr(transformers, name)
    torch.manual_seed(0)
    reference = architecture(architecture.config_class(**config)).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs = Theirs(lively(reference), Path(folder))
        reference.save_pretrained(folder)
        found = ours(huggingface.load(folder, device="numpy"), tokens=TOKENS)
    expected = theirs(input_ids=TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))


EXACT: list[Backend] = [NumPy(float="f64"), Torch(float="f64")]
GRADIENTS = [(case, backend) for backend in EXACT for case in ("gpt2", "llama grouped", "llama 3", "bert masked")]
GRADIENTS += [(case, Jax()) for case in ("gpt2", "llama 3")]  # its compiler takes its time


@pytest.mark.parametrize(("case", "backend"), GRADIENTS, ids=[f"{case}-{backend!r}" for case, backend in GRADIENTS])
def test_same_gradients(case: str, backend: Backend, made: Callable[[str], Theirs]) -> None:
    theirs = made(case)
    targets = np.roll(TOKENS, 3, 1)
    tokens = TOKENS.copy()
    tokens[0, :4] = 0  # padding, where there is such a thing
    model = huggingface.load(theirs.folder, device=Autodiff(backend)).valid(tape=True)

    def both(model: Any, tokens: Any, targets: Any) -> Any:
        loss = model.loss(tokens, targets)
        return loss, px.GradientsParams.from_grads(loss.backward(), model)

    run = px.compile(both) if isinstance(backend, Jax) else both
    loss, grads = run(model, px.tensor(tokens, device=backend), px.tensor(targets, device=backend))
    reference = copy.deepcopy(theirs.model).double()
    logits = reference(torch.tensor(tokens.astype(np.int64)))[0]
    expected = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 23), torch.tensor(targets.astype(np.int64)).reshape(-1)
    )
    expected.backward()
    found = {name: weight.grad.numpy() for name, weight in reference.named_parameters()}
    # Theirs computes angles in f32 always.
    rough = 1e-4 if isinstance(backend, Jax) else 1e-5 if "llama" in case else 1e-8
    close: dict[str, Any] = {"rtol": rough, "atol": rough / 10}
    np.testing.assert_allclose(loss.item(), expected.item(), **close)
    adapted = huggingface.adapter_for(model.config).read(Record(found))
    params = dict(model.named_params())
    assert adapted.paths() and set(adapted.paths()) == set(params)
    for path, param in params.items():
        gradient = grads.get(param.id)
        assert gradient is not None, path
        np.testing.assert_allclose(gradient.numpy(), adapted[path].tensor.read(), err_msg=path, **close)


TEXTS = [(case, backend) for backend in (NumPy(), Torch()) for case in CAUSAL]
TEXTS += [(case, Jax()) for case in ("gpt2", "llama 3")]  # its compiler takes its time


@pytest.mark.parametrize(("case", "backend"), TEXTS, ids=[f"{case}-{backend!r}" for case, backend in TEXTS])
def test_same_text(case: str, backend: Backend, made: Callable[[str], Theirs]) -> None:
    theirs = made(case)
    prompt = TOKENS[:2, :4]
    expected = theirs.model.generate(
        torch.tensor(prompt.astype(np.int64)),
        attention_mask=torch.ones(2, 4, dtype=torch.int64),
        max_new_tokens=9,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = huggingface.load(theirs.folder, device=backend)
    found = model.generate(px.tensor(prompt, device=backend), 9, temperature=0.0, compile=isinstance(backend, Jax))
    assert found.tolist() == expected.tolist()
    assert len(set(found.numpy()[:, 4:].ravel().tolist())) > 2  # it does not repeat itself, which would hide a mistake


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", ["gpt2", "llama grouped"])
def test_same_texts_of_unequal_prompts_until_they_stop(
    case: str, backend: Backend, made: Callable[[str], Theirs]
) -> None:
    theirs = made(case)
    prompts = [TOKENS[0, :6].tolist(), TOKENS[1, :2].tolist(), TOKENS[2, :4].tolist()]
    padded, seen = np.zeros((3, 6), np.int64), np.zeros((3, 6), np.int64)
    for row, prompt in enumerate(prompts):
        padded[row, 6 - len(prompt) :], seen[row, 6 - len(prompt) :] = prompt, 1

    def texts(stop: list[int] | None) -> list[list[int]]:
        found = theirs.model.generate(
            torch.tensor(padded), attention_mask=torch.tensor(seen), max_new_tokens=9, do_sample=False,
            eos_token_id=stop, pad_token_id=0,
        )  # fmt: skip
        return [row[6 - len(prompt) :].tolist() for row, prompt in zip(found, prompts, strict=True)]

    model = huggingface.load(theirs.folder, device=backend)
    on_jax = isinstance(backend, Jax)
    whole = texts(None)
    assert [t.tolist() for t in model.generate(prompts, 9, temperature=0.0, compile=on_jax)] == whole
    stop = [whole[0][6 + 4], whole[1][2 + 2]]
    expected: list[list[int]] = []
    for text, prompt in zip(texts(stop), prompts, strict=True):
        new = text[len(prompt) :]
        end = next((place for place, token in enumerate(new) if token in stop), len(new))
        expected.append(prompt + new[:end])
    found = model.generate(prompts, 9, temperature=0.0, stop=stop, compile=on_jax)
    assert [t.tolist() for t in found] == expected != whole


@pytest.mark.full
@pytest.mark.parametrize("case", ["gpt2", "llama 3", "bert masked"])
def test_compiled_as_eager(case: str, made: Callable[[str], Theirs]) -> None:
    model = huggingface.load(made(case).folder, device="jax")
    tokens = px.tensor(TOKENS, device="jax")
    compiled = px.compile(lambda model, tokens: model(tokens))
    np.testing.assert_allclose(compiled(model, tokens).numpy(), model(tokens).numpy(), rtol=1e-5, atol=1e-5)


# --- files in their several forms


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}


def assert_equal(found: Any, expected: Any) -> None:
    assert found.config == expected.config
    assert values(found).keys() == values(expected).keys()
    for path, value in values(expected).items():
        np.testing.assert_array_equal(values(found)[path], value, err_msg=path)


def test_shards(made: Callable[[str], Theirs], tmp_path: Path) -> None:
    theirs = made("llama grouped")
    theirs.model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and (tmp_path / "model.safetensors.index.json").exists()
    assert_equal(huggingface.load(tmp_path, device="numpy"), huggingface.load(theirs.folder, device="numpy"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("case", ["gpt2", "gpt2 untied", "bert masked"])
def test_state_dicts(case: str, legacy: bool, made: Callable[[str], Theirs], tmp_path: Path) -> None:
    theirs = made(case)
    theirs.model.config.save_pretrained(tmp_path)
    state = theirs.model.state_dict()  # with tied tensors under all their names
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    assert_equal(huggingface.load(tmp_path, device="numpy"), huggingface.load(theirs.folder, device="numpy"))


def test_the_safest_of_several_files_counts(made: Callable[[str], Theirs], tmp_path: Path) -> None:
    folder = edited(made("gpt2"), tmp_path)
    for name in ("model.safetensors.index.json", "pytorch_model.bin", "training_args.bin"):
        (folder / name).write_text("no such thing")
    assert_equal(huggingface.load(folder, device="numpy"), huggingface.load(made("gpt2").folder, device="numpy"))


def test_numpy_is_enough(made: Callable[[str], Theirs]) -> None:
    code = """
import sys
import tempfile
for name in ("torch", "jax", "transformers", "safetensors"):
    sys.modules[name] = None  # importing it fails
import phlox as px
from phlox.interop import huggingface
model = huggingface.load(sys.argv[1], device="numpy")
print(model.generate(px.tensor([[3, 1]], device="numpy"), 5, temperature=0.0).tolist())
"""
    theirs = made("llama 3")
    told = subprocess.run(
        [sys.executable, "-c", code, str(theirs.folder)], capture_output=True, text=True, check=True, timeout=120
    )
    model = huggingface.load(theirs.folder, device="torch")
    found = model.generate(px.tensor([[3, 1]], device="torch"), 5, temperature=0.0, compile=False)
    assert json.loads(told.stdout) == found.tolist()


def test_bfloat16_stays_as_it_is(made: Callable[[str], Theirs], tmp_path: Path) -> None:
    half = copy.deepcopy(made("llama").model).bfloat16()
    half.save_pretrained(tmp_path)
    model = huggingface.load(tmp_path, device=Jax(float="bf16"))
    expected = half.lm_head.weight.detach().float().numpy().T
    np.testing.assert_array_equal(model.head.weight.val().numpy().astype(np.float32), expected)


def test_half_precision_is_cast(made: Callable[[str], Theirs], tmp_path: Path) -> None:
    theirs = made("bert")
    copy.deepcopy(theirs.model).half().save_pretrained(tmp_path)
    found = values(huggingface.load(tmp_path, device="numpy"))
    for path, value in values(huggingface.load(theirs.folder, device="numpy")).items():
        assert found[path].dtype == np.float32
        np.testing.assert_allclose(found[path], value, rtol=1e-3, atol=1e-3)


def edited(
    theirs: Theirs,
    folder: Path,
    weights: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda weights: weights,
    **config: Any,
) -> Path:
    """A folder that is `theirs` but for its weights and some entries of its config, where `...` takes one away."""
    data = json.loads((theirs.folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    changed = weights(load_file(theirs.folder / "model.safetensors"))
    save_file({name: np.ascontiguousarray(array) for name, array in changed.items()}, folder / "model.safetensors")
    return folder


def moved(name: str, other: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {other if key == name else key: array for key, array in weights.items()}


DECODER, WORDS = "cls.predictions.decoder", "bert.embeddings.word_embeddings"

FORMER: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any]]] = {
    "gpt2 without a prefix, with masks": (
        "gpt2",
        lambda w: {k.removeprefix("transformer."): v for k, v in w.items()}
        | {"h.0.attn.bias": np.ones((1, 1, 16, 16), np.uint8), "h.1.attn.masked_bias": np.float32(-1e4)},
        {"architectures": None, "scale_attn_weights": ..., "tie_word_embeddings": ..., "n_inner": ...},
    ),
    "gpt2 with its tied head": ("gpt2", lambda w: w | {"lm_head.weight": w["transformer.wte.weight"]}, {}),
    "gpt2, stored by the name of its head": ("gpt2", moved("transformer.wte.weight", "lm_head.weight"), {}),
    "bert, stored by the names of its head": (
        "bert masked",
        lambda w: moved("cls.predictions.bias", f"{DECODER}.bias")(moved(f"{WORDS}.weight", f"{DECODER}.weight")(w)),
        {},
    ),
    "llama with its turns": (
        "llama 3",
        lambda w: w | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)},
        {
            "rope_parameters": ..., "rope_theta": 100.0, "attention_bias": ..., "mlp_bias": ...,
            "rope_scaling": {"type": "llama3"} | {k: v for k, v in LLAMA3.items() if k[:5] != "rope_"},
        },
    ),
    "bert with other names of norms": (
        "bert masked",
        lambda w: {
            k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
            for k, v in w.items()
        }
        | {
            "bert.embeddings.position_ids": np.arange(16).reshape(1, 16),
            "bert.pooler.dense.weight": np.ones((12, 12), np.float32),
            "bert.pooler.dense.bias": np.ones(12, np.float32),
            "cls.seq_relationship.weight": np.ones((2, 12), np.float32),
            "cls.predictions.decoder.bias": w["cls.predictions.bias"],
        },
        {"position_embedding_type": "absolute", "architectures": ["BertForMaskedLM"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMER)
def test_files_of_former_times(case: str, made: Callable[[str], Theirs], tmp_path: Path) -> None:
    name, weights, config = FORMER[case]
    theirs = made(name)
    assert_equal(
        huggingface.load(edited(theirs, tmp_path, weights, **config), device="numpy"),
        huggingface.load(theirs.folder, device="numpy"),
    )


def test_a_bert_made_without_a_pooler(transformers: Any, tmp_path: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    found = huggingface.load(tmp_path, device="numpy")
    assert not found.config.pooler
    expected = Theirs(model, tmp_path)(input_ids=TOKENS)
    np.testing.assert_allclose(ours(found, tokens=TOKENS), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match=r"no pooler; create it with BertConfig\(pooler=True\)"):
        found.pooled(found(px.tensor(TOKENS, device="numpy")))


# --- saving


def test_a_small_vocabulary_has_no_token_of_gpt_2(transformers: Any, tmp_path: Path) -> None:
    config = GptConfig(vocabulary=50, context=8, n_layers=1, d_model=8, n_heads=2, tied=True)
    huggingface.save(config.init("numpy").init(seed=0), tmp_path / "new")
    found = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    assert found.bos_token_id is None and found.eos_token_id is None
    huggingface.save(config.init("numpy").init(seed=0), tmp_path / "other", config={"eos_token_id": 7})
    assert transformers.AutoConfig.from_pretrained(tmp_path / "other").eos_token_id == 7


@pytest.mark.parametrize("case", CASES)
def test_saved_by_us_and_loaded_by_them(
    case: str, made: Callable[[str], Theirs], transformers: Any, tmp_path: Path
) -> None:
    theirs = made(case)
    model = huggingface.load(theirs.folder, device="numpy")
    huggingface.save(model, tmp_path / "new", config={"eos_token_id": 7})
    assert_equal(huggingface.load(tmp_path / "new", device="torch"), model)
    architecture = json.loads((tmp_path / "new" / "config.json").read_text())["architectures"][0]
    kind = getattr(transformers, architecture)
    found, told = kind.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(told.values()), told  # nothing missing, unexpected or misshapen
    assert found.config.eos_token_id == 7
    for key, value in theirs.model.config.to_dict().items():
        if key in CASES[case][1] and key != "eos_token_id":
            assert getattr(found.config, key) == value, key
    if architecture == type(theirs.model).__name__:
        again = Theirs(found.eval(), tmp_path)
        np.testing.assert_allclose(again(input_ids=TOKENS), theirs(input_ids=TOKENS), rtol=1e-6, atol=1e-6)


def test_what_says_nothing_of_the_model_is_kept(made: Callable[[str], Theirs], tmp_path: Path) -> None:
    theirs = made("bert classes")
    before = json.loads((theirs.folder / "config.json").read_text()) | {"sep_token_id": 3, "num_hidden_layers": 77}
    before |= {"id2label": {str(i): f"class {i}" for i in range(5)}, "label2id": {f"class {i}": i for i in range(5)}}
    huggingface.save(huggingface.load(theirs.folder, device="numpy"), tmp_path, config=before)
    after = json.loads((tmp_path / "config.json").read_text())
    assert after["num_hidden_layers"] == 2 and after["sep_token_id"] == 3
    assert {key: after[key] for key in before} == before | {"num_hidden_layers": 2}


def test_a_model_of_ours_at_half_precision(transformers: Any, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocabulary=23, context=16, n_layers=1, d_model=16, n_heads=4, n_kv_heads=2, rotary_scaling=Llama3Scaling()
    )
    model = config.init("torch").init(3)
    huggingface.save(model, tmp_path, precision=HALF)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.float16
    found = Theirs(theirs.float().eval(), tmp_path)(input_ids=TOKENS)
    np.testing.assert_allclose(found, ours(model, tokens=TOKENS), atol=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        GptConfig(vocabulary=9, context=5, n_layers=1, d_model=8, n_heads=2, tied=True, attention_dropout=0.5),
        LlamaConfig(vocabulary=9, context=5, n_layers=1, d_model=8, n_heads=2, attention_dropout=0.25),
        BertConfig(vocabulary=9, context=5, n_layers=1, d_model=8, n_heads=2, padding_index=None),
        BertMaskedLmConfig(BertConfig(vocabulary=9, n_layers=1, d_model=8, n_heads=2, pooler=False)),
        BertClassifierConfig(BertConfig(vocabulary=9, n_layers=1, d_model=8, n_heads=2), classes=1, dropout=0.5),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_config_there_and_back(config: Any, tmp_path: Path) -> None:
    huggingface.save(config.init("numpy"), tmp_path)
    model = huggingface.load(tmp_path, device="numpy")
    back = model.config
    huggingface.save(model, tmp_path)  # over what was there
    assert huggingface.load(tmp_path, device="numpy").config == back
    inner, kept = (getattr(one, "bert", one) for one in (config, back))
    assert kept.replace(d_hidden=None) == inner.replace(
        d_hidden=None, **{name: getattr(kept, name) for name in ("n_kv_heads", "d_head") if hasattr(kept, name)}
    )
    assert type(back) is type(config)


# --- bad input

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "type": ("gpt2", {"model_type": "mamba"}, "models of the type 'mamba' are not supported; supported are: bert"),
    "no type": ("gpt2", {"model_type": ...}, "model_type is missing"),
    "head": ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel is not supported; the supp"),
    "odd head": ("gpt2", {"architectures": [["x"]]}, "architecture .* is not supported"),
    "gelu": ("gpt2", {"activation_function": "gelu_10"}, "activation activation_function='gelu_10' is not"),
    "not causal": ("llama", {"is_causal": False}, "is_causal=False is not supported: each token would see all others"),
    "window": ("llama", {"sliding_window": 8}, "config.json: sliding_window=8 is not known, and may change what the m"),
    "of rotary": ("llama", {"rope_parameters": {"rope_type": "default", "half": True}}, "rope_parameters: half=True"),
    "two names": ("gpt2", {"num_attention_heads": 7}, "num_attention_heads=7 and n_head=.* are two names"),
    "scale": ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False is not supported: attention scores"),
    "by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=True is not supported: each"),
    "crossed": ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True is not supported: the model would"),
    "untied base": ("gpt2 base", {"tie_word_embeddings": False}, "GPT2Model has no head"),
    "untied llama": ("llama", {"architectures": ["LlamaModel"]}, "LlamaModel has no head"),
    "quantized": ("llama", {"quantization_config": {"bits": 4}}, "weights of quant_method='' cannot be loaded"),
    "code": ("llama", {"auto_map": {"AutoModel": "m.M"}}, "auto_map=.* is not supported: the model contains its own"),
    "pruned": ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads=.* is not supported"),
    "rope": ("llama", {"rope_parameters": {"rope_type": "proportional"}}, "rope_type='proportional' are not supported"),
    "old rope": ("llama", {"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_type='mrope' are not"),
    "no factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor is missing"),
    "layers": ("llama", {"rope_parameters": {"full": {"rope_type": "default"}}}, "full={.*} is not known"),
    "partial": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    "relative": ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not"),
    "decoder": ("bert", {"is_decoder": True}, "is_decoder=True is not supported: each token"),
    "untied bert": ("bert masked", {"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
    "text": ("bert", {"hidden_size": "12"}, "hidden_size must be an integer, got '12'"),
    "half": ("bert", {"hidden_size": 12.5}, "hidden_size must be an integer, got 12.5"),
    "true": ("bert", {"hidden_size": True}, "hidden_size must be an integer, got True"),
    "huge": ("bert", {"layer_norm_eps": 10**400}, "layer_norm_eps is beyond the range of a float"),
    "zero": ("bert", {"num_attention_heads": 0}, "n_heads must be at least one, got 0"),
    "heads": ("llama", {"num_attention_heads": 3}, "n_heads|d_model"),
    "negative": ("gpt2", {"n_layer": -1}, "n_layers must be at least one, got -1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_configs(case: str, made: Callable[[str], Theirs], tmp_path: Path) -> None:
    name, config, message = REFUSED[case]
    folder = edited(made(name), tmp_path, **config)
    with pytest.raises(ConfigError, match=message) as caught:
        huggingface.load(folder, device="numpy")
    assert str(caught.value).startswith(str(folder / "config.json")) and "\n" not in str(caught.value)


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {name: array for name, array in weights.items() if name not in names}


MISFITS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any], str]] = {
    "missing": ("gpt2", without("transformer.h.1.mlp.c_fc.bias"), {}, r"h.1.mlp.c_fc.bias: missing from the record"),
    "no head": ("llama", without("lm_head.weight"), {}, "lm_head.weight: missing"),
    "shape": (
        "bert", lambda w: w | {"pooler.dense.bias": np.ones(7, np.float32)}, {},
        r"pooler.dense.bias: the record has shape \(7,\), the module expects \(12,\)",
    ),
    "other size": ("gpt2", lambda w: w, {"n_embd": 24}, r"wte.weight: .* \(23, 12\), the module expects \(23, 24\)"),
    "more": ("llama", lambda w: w | {"model.extra": np.ones(2, np.float32)}, {}, "model.extra: in the record, but not"),
    "kind": (
        "bert", lambda w: w | {"pooler.dense.bias": np.ones(12, np.int32)}, {},
        "pooler.dense.bias: the record has an int tensor, the module expects a float tensor",
    ),
    "layers": ("gpt2", lambda w: w, {"n_layer": 10**9}, "config.json has 1000000000 layers, but the file"),
    "fewer layers": ("gpt2", lambda w: w, {"n_layer": 1}, r"transformer\.h\.1\.\*\*: 12 entries in the record, but"),
    "huge": ("gpt2", lambda w: w, {"vocab_size": 10**15}, r"wte.weight: .* expects \(1000000000000000, 12\)"),
    "beyond": ("gpt2", lambda w: w, {"vocab_size": 10**30}, "10{30}"),
    "wide heads": ("llama 3", lambda w: w, {"head_dim": 2 * 10**9}, r"q_proj.weight: .* \(8000000000, 16\)"),
    "not tied": (
        "gpt2", lambda w: w | {"lm_head.weight": w["transformer.wte.weight"] + 1}, {},
        "lm_head.weight differs from transformer.wte.weight, but tie_word_embeddings",
    ),
    "nothing": ("gpt2", lambda w: {"x": np.ones(1, np.float32)}, {"n_layer": 1}, "transformer.wte|wte.weight: missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit(case: str, made: Callable[[str], Theirs], tmp_path: Path) -> None:
    name, weights, config, message = MISFITS[case]
    folder = edited(made(name), tmp_path, weights, **config)
    with pytest.raises(RecordError, match=message) as caught:
        huggingface.load(folder, device="numpy")
    assert str(folder) in str(caught.value)


FOLDERS: dict[str, tuple[Callable[[Path], Any], type[PhloxError], str]] = {
    "none": (lambda f: (f / "config.json").unlink(), ConfigError, "config.json does not exist"),
    "no json": (lambda f: (f / "config.json").write_text('{"model_type": '), ConfigError, "not valid JSON at line 1"),
    "a list": (lambda f: (f / "config.json").write_text("[1]"), ConfigError, "does not contain a JSON object"),
    "deep": (lambda f: (f / "config.json").write_text('{"a":' * 10**5), ConfigError, "nested too deeply"),
    "large": (lambda f: (f / "config.json").write_text(" " * (2**24 + 1)), ConfigError, "has 16777217 bytes"),
    "binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), ConfigError, "not UTF-8"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), RecordError, "there are no weights; looked for model"),
    "cut": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-5]),
        RecordError, "model.safetensors: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_damaged_folders(case: str, made: Callable[[str], Theirs], tmp_path: Path) -> None:
    damage, error, message = FOLDERS[case]
    folder = edited(made("gpt2"), tmp_path)
    damage(folder)
    with pytest.raises(error, match=message) as caught:
        huggingface.load(folder, device="numpy")
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


UNSAVED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "rotary": (lambda: GptConfig(rotary=True).init("numpy"), {}, "a Gpt with rotary=True cannot be saved as a GPT-2"),
    "bias": (lambda: GptConfig(bias=False).init("numpy"), {}, "a Gpt with bias=False"),
    "grouped": (lambda: GptConfig(n_kv_heads=1).init("numpy"), {}, "a Gpt with n_kv_heads=1"),
    "pooler": (lambda: BertMaskedLmConfig(BertConfig()).init("numpy"), {}, "a BertMaskedLm with a pooler"),
    "other": (lambda: px.nn.Linear(2, 2), {}, "Linear has no counterpart in transformers"),
    "labels": (
        lambda: BertClassifierConfig(BertConfig(), classes=3).init("numpy"), {"id2label": {"0": "no", "1": "yes"}},
        "id2label in config does not name 3 classes",
    ),
    "no json": (lambda: GptConfig().init("numpy"), {"x": object()}, "config has a value that JSON cannot express"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSAVED)
def test_what_cannot_be_saved(case: str, tmp_path: Path) -> None:
    make, config, message = UNSAVED[case]
    with pytest.raises(ConfigError, match=message) as caught:
        huggingface.save(make(), tmp_path, config=config)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_config_from_reads_a_dict() -> None:
    config = huggingface.config_from(
        {"model_type": "bert", "num_hidden_layers": 1, "architectures": ["BertForMaskedLM"]}
    )
    assert isinstance(config, BertMaskedLmConfig)
    assert config.bert == BertConfig(
        vocabulary=30522, context=512, n_layers=1, d_model=768, n_heads=12, d_hidden=3072, pooler=False
    )
    with pytest.raises(ConfigError, match=r"^config.json: n_layer must be an integer, got 'x'$"):
        huggingface.config_from({"model_type": "gpt2", "n_layer": "x"})


def test_settings_may_have_their_common_names() -> None:
    own = huggingface.config_from({"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 4, "n_positions": 16})
    common = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 4, "max_position_embeddings": 16}
    assert huggingface.config_from({"model_type": "gpt2", **common}) == own
    assert huggingface.config_from({"model_type": "gpt2", "n_head": 4, **common}) == own
