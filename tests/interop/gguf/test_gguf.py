"""Models in GGUF files that the package `gguf` wrote, from models of `transformers`: their logits are the reference.

Serves: phlox/interop/gguf/
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import phlox as px
from phlox.errors import ConfigError, PhloxError, RecordError
from phlox.interop.gguf import load, read_metadata, save
from phlox.interop.gguf.model_file import ARCHITECTURES
from phlox.interop.gguf.packed import packed_weights
from phlox.models import BertConfig, GptConfig, LinearScaling, Llama3Scaling, LlamaConfig
from phlox.record import GgufRecorder, Record
from phlox.record import load as load_record
from phlox.record.formats.gguf.keys import as_metadata, from_metadata

TOKENS = np.random.default_rng(0).integers(1, 40, (2, 13)).astype(np.int32)
GPT2: dict[str, Any] = {"vocab_size": 40, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
LLAMA: dict[str, Any] = {
    "vocab_size": 40, "max_position_embeddings": 64, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 0.1}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama grouped": ("LlamaForCausalLM", LLAMA | {
        "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "rms_norm_eps": 0.1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "attention_bias": True, "mlp_bias": True,
    }),
    "llama linear": ("LlamaForCausalLM", LLAMA | {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
    }),
    "llama 3": ("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3, "head_dim": 64}),
}  # fmt: skip
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


@pytest.fixture(scope="module")
def transformers() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of its own dependencies
            import transformers
        yield transformers


def theirs(transformers: Any, case: str) -> Any:
    name, config = CASES[case]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():  # far enough from where they begin to tell a mistake
            weight.normal_(0.0, 1.0 if weight.shape[0] == 40 else 0.2)
            if weight.ndim == 1 and path.endswith("weight"):
                weight.add_(1.0)
    return model


def written(model: Any, path: Path, kind: str = "F32", change: Callable[[Any], None] = lambda writer: None) -> Path:
    """The file as llama.cpp's converter writes it; matrices of the model are set to what the file holds of them."""
    config, architecture = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("a test")
    if architecture == "gpt2":
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        rope, width = config.rope_parameters, config.head_dim
        writer.add_vocab_size(config.vocab_size)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(width)
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_key_length(width)
        writer.add_value_length(width)
        if rope["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "llama3":
            plain = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
            writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "é", "▁a"])
    writer.add_token_scores([0.0, -1.5, -2.0])
    writer.add_token_types([2, 1, 1])
    writer.add_bos_token_id(1)
    change(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], 2)
    state = {
        name: tensor for name, tensor in model.state_dict().items() if not name.endswith((".attn.bias", "inv_freq"))
    }
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, tensor in state.items():
        target = names.get_name(name, (".weight", ".bias"))
        assert target is not None
        array = tensor.numpy().T if architecture == "gpt2" and name.endswith(TRANSPOSED) else tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
        heads = next((count for part, count in heads.items() if part in name), 0)
        order = np.arange(len(array))
        if heads:
            order = order.reshape(heads, 2, len(array) // heads // 2).swapaxes(1, 2).reshape(-1)
        array, stored = np.ascontiguousarray(array[order]), None
        if array.ndim == 2 and kind != "F32" and "position" not in target:
            stored = gguf.GGMLQuantizationType[kind]
            data = gguf.quants.quantize(array, stored)
            back = gguf.quants.dequantize(data, stored)[np.argsort(order)]
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(back.T if architecture == "gpt2" and name.endswith(TRANSPOSED) else back))
            array = data
        writer.add_tensor(target, array, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> np.ndarray:
    if isinstance(model, torch.nn.Module):
        with torch.no_grad():
            return model(torch.tensor(TOKENS.astype(np.int64)))[0].numpy()
    device = next(iter(model.params())).device
    return model(px.tensor(TOKENS, device=device)).numpy()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_file(case: str, kind: str, transformers: Any, tmp_path: Path) -> None:
    model = theirs(transformers, case)
    path = written(model, tmp_path / "m.gguf", kind)
    ours = load(path, device="numpy")
    np.testing.assert_allclose(logits(ours), logits(model), rtol=1e-3, atol=2e-4)
    # Saved by ours, it has the same keys and tensors, and gives the same again.
    again = save(ours, tmp_path / "n.gguf", type=kind, metadata=read_metadata(path))
    first, second = gguf.GGUFReader(path), gguf.GGUFReader(again)
    extra = {"gpt2.vocab_size", "general.quantization_version", "phlox", "llama.rope.scaling.original_context_length"}
    assert {f"{case.split()[0]}.attention.value_length", "GGUF.version", *first.fields} | extra >= {*second.fields}
    for name, field in first.fields.items():
        if name != "GGUF.kv_count":
            mine = second.fields[name]
            assert (mine.types, mine.contents()) == (field.types, field.contents()), name
    tensors = {tensor.name: tensor for tensor in second.tensors}
    for tensor in first.tensors:
        mine = tensors.pop(tensor.name)
        assert (mine.tensor_type, mine.shape.tolist()) == (tensor.tensor_type, tensor.shape.tolist())
        if kind != "Q4_1":  # whose minima are rounded again
            np.testing.assert_allclose(mine.data.view(np.uint8)[..., :1], tensor.data.view(np.uint8)[..., :1])
    assert not tensors
    np.testing.assert_allclose(logits(load(again, device="numpy")), logits(ours), atol=0 if kind[0] == "F" else 1.0)


@pytest.mark.parametrize("case", ["gpt2 untied", "llama grouped"])
def test_packed_weights_are_those_of_the_model(case: str, transformers: Any, tmp_path: Path) -> None:
    path = written(theirs(transformers, case), tmp_path / "m.gguf", "Q8_0")
    model = load(path, device="numpy", packed=False)
    params = dict(model.named_params())
    adapter = next(each for each in ARCHITECTURES if each.name == case.split()[0]).adapter(model.config)
    seen: set[str] = set()
    for name, packed, axis in packed_weights(load_record(path), adapter):
        plain = packed.dequantized()
        np.testing.assert_array_equal(plain.T if axis else plain, params[name].val().numpy())
        assert axis == (name != "tokens.weight") and packed.nbytes < plain.nbytes / 3
        seen.add(name)
    assert seen == {name for name, param in params.items() if len(param.shape) == 2 and name != "positions"}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "MXFP4"])
@pytest.mark.parametrize("case", ["gpt2", "llama grouped"])
def test_a_packed_model_gives_the_same(case: str, kind: str, backend: str, transformers: Any, tmp_path: Path) -> None:
    path = written(theirs(transformers, case), tmp_path / "m.gguf", kind)
    plain, model = load(path, device=backend, packed=False), load(path, device=backend)
    np.testing.assert_allclose(logits(model), logits(plain), rtol=1e-4, atol=1e-4)
    sizes = [sum(param.val().nbytes for _, param in each.named_params()) for each in (plain, model)]
    assert sizes[1] < 0.4 * sizes[0]
    # Saved as it is, it has the bytes of the file.
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(save(model, tmp_path / "n.gguf", type=None)).tensors}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name != "rope_freqs.weight":
            assert tensors[tensor.name].data.tobytes() == tensor.data.tobytes(), tensor.name


@pytest.mark.parametrize("which", ["blocks.*.attention.query.weight", "blocks.**.weight"])
def test_weights_that_are_packed_in_another_way_are_quantized(which: str, tmp_path: Path) -> None:
    config = GptConfig(vocabulary=20, context=8, n_layers=2, d_model=32, n_heads=2)
    model: Any = px.quantize(config.init("numpy"), which, "int8", group=32)
    tokens = px.tensor([[1, 2, 3]], device="numpy")
    for kind in ("F32", None):
        loaded = load(save(model, tmp_path / "m.gguf", type=kind), device="numpy")
        np.testing.assert_allclose(loaded(tokens).numpy(), model(tokens).numpy(), atol=1e-5)


def test_the_tokenizer_is_kept(transformers: Any, tmp_path: Path) -> None:
    path = written(theirs(transformers, "llama"), tmp_path / "m.gguf")
    values: dict[str, Any] = read_metadata(path)
    assert values["tokenizer.ggml.tokens"] == ["<unk>", "é", "▁a"] and values["tokenizer.ggml.bos_token_id"] == 1
    assert values["tokenizer.ggml.scores"].dtype == np.float32 and values["tokenizer.ggml.token_type"].dtype == np.int32
    copy = save(load(path), tmp_path / "n.gguf", type="Q4_K", metadata=values | {"llama.block_count": 7})
    again = read_metadata(copy)
    assert {key: repr(again[key]) for key in values} == {key: repr(value) for key, value in values.items()}


def test_our_models_go_through_a_file(tmp_path: Path) -> None:
    configs = [
        GptConfig(vocabulary=20, context=8, n_layers=1, d_model=8, n_heads=2, tied=False),
        LlamaConfig(vocabulary=20, context=8, n_layers=1, d_model=8, n_heads=4, n_kv_heads=2, d_head=6, tied=True),
        LlamaConfig(vocabulary=20, context=8, n_layers=1, d_model=8, n_heads=2, rotary_scaling=LinearScaling(2.5)),
        LlamaConfig(vocabulary=20, context=8, n_layers=1, d_model=32, n_heads=1, rotary_base=1e6,
                    rotary_scaling=Llama3Scaling(factor=8.0, context=4096)),
    ]  # fmt: skip
    for config in configs:
        model = config.init("numpy")
        loaded = load(save(model, tmp_path / "m", type="F32"), device="numpy")
        tokens = px.tensor([[1, 2, 3]], device="numpy")
        np.testing.assert_array_equal(loaded(tokens).numpy(), model(tokens).numpy())
        assert getattr(loaded.config, "rotary_scaling", None) == getattr(config, "rotary_scaling", None)


def test_models_without_a_counterpart_are_refused(tmp_path: Path) -> None:
    small: dict[str, Any] = {"vocabulary": 20, "context": 8, "n_layers": 1, "d_model": 8, "n_heads": 2}
    for config, why in (
        (
            BertConfig(**small),
            "Bert has no counterpart in GGUF; models with these configs have: GptConfig, LlamaConfig",
        ),
        (LlamaConfig(**small, activation="relu"), "hidden_act='relu' cannot be saved as llama in GGUF"),
        (GptConfig(**small, rotary=True), "rotary=True"),
        (LlamaConfig(**small, rotary_scaling=Llama3Scaling(high=3.0)), "no keys for Llama3Scaling"),
    ):
        with pytest.raises(ConfigError, match=why):
            save(config.init("numpy"), tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


MODEL = LlamaConfig(vocabulary=20, context=8, n_layers=1, d_model=8, n_heads=2)


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """A file of a small model with other keys or tensors."""
    record = load_record(save(MODEL.init("numpy"), path, type=None))
    values, tensors = dict(from_metadata(record.metadata)), dict(record.tensors)
    change(values, tensors)
    return GgufRecorder().save(Record(tensors, as_metadata(values)), path)


@pytest.mark.parametrize(("key", "value", "why"), [
    ("general.architecture", "mamba", "a model of the architecture 'mamba' is not supported; .*: gpt2, llama.*record"),
    ("general.type", "adapter", "a adapter of the architecture 'llama' is not supported"),
    ("split.count", np.uint16(3), "it is one of several parts; join them with llama-gguf-split"),
    ("llama.attention.sliding_window", 5, "llama.attention.sliding_window: the key is not known, and may change"),
    ("llama.block_count", None, "llama.block_count: the key is missing"),
    ("llama.block_count", 10**6, "too few for 1000000 layers"),
    ("llama.block_count", "many", "llama.block_count: expected a whole number for the whole model, got 'many'"),
    ("llama.attention.head_count", np.array([2, 2]), "head_count: expected a whole number for the whole model"),
    ("llama.attention.head_count", 0, "n_heads"),
    ("llama.attention.head_count_kv", np.uint32(3), "n_kv_heads"),
    ("llama.expert_count", np.uint32(8), "llama.expert_count: 8 is not supported: the model is a mixture of experts"),
    ("llama.attention.causal", False, "each token would see all others"),
    ("llama.rope.scaling.type", "yarn", "'yarn' is not supported; supported are: none, linear"),
    ("llama.rope.dimension_count", np.uint32(2), "a part of each head of 4 would not be rotated"),
    ("llama.attention.layer_norm_rms_epsilon", np.float32(np.nan), "expected a number for the whole model, got nan"),
    ("llama.vocab_size", np.uint32(19), r"token_embd.weight.*\(20, 8\)"),
    ("llama.embedding_length", np.uint32(2**31), "token_embd.weight"),
    ("blk.0.attn_q.weight", None, "blk.0.attn_q.weight: missing"),
    ("blk.0.attn_q.scale", np.ones(1), "blk.0.attn_q.scale"),
    ("blk.0.ffn_up.bias", np.ones(32), "blk.0.ffn_gate.bias"),
    ("rope_freqs.weight", np.array([1.0, 2.0]), "rope_freqs.weight are not the factors of Llama 3"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_told(key: str, value: Any, why: str, tmp_path: Path) -> None:
    def change(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        is_key = not key.startswith(("blk", "rope"))
        (values if is_key else tensors)[key] = value
        if value is None:
            del (values if is_key else tensors)[key]

    path = changed(tmp_path / "m.gguf", change)
    with pytest.raises((ConfigError, RecordError), match=why) as caught:
        load(path, device="numpy")
    assert str(path) in str(caught.value)


def test_keys_of_any_kind_raise_only_our_errors(tmp_path: Path) -> None:
    values = from_metadata(load_record(save(MODEL.init("numpy"), tmp_path / "m.gguf")).metadata)
    for key in values:
        for value in ("", "é", True, -1, 2**40, float("inf"), np.float32(1e-45), ["x"], np.zeros((0,), np.uint8)):
            path = changed(tmp_path / "n.gguf", lambda keys, _, key=key, value=value: keys.update({key: value}))
            try:
                load(path, device="numpy")
            except PhloxError as error:
                assert str(path) in str(error), (key, value, error)


def test_a_tensor_that_is_not_read_is_told(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((3, 84), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        RecordError, match=r"m\.gguf: token_embd\.weight: its elements are Q2_K; Phlox reads .*llama-quan"
    ):
        load(tmp_path / "m.gguf")
