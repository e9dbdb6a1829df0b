"""Adapters that PEFT made and saved, in our models, and ours in PEFT: its outputs and gradients are the reference.

Serves: phlox/interop/peft/, phlox/nn/reparameterizations/
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, ModuleError, PhloxError, RecordError
from phlox.interop import huggingface
from phlox.models import GptConfig
from phlox.module import Module, Param
from tests.interop.huggingface.test_huggingface import CASES, TOKENS, lively

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its own dependencies
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's own remarks on these small models

EXACT = NumPy(float="f64")


def lora(rank: int = 3, alpha: float = 5, **options: Any) -> Any:
    return peft.LoraConfig(r=rank, lora_alpha=alpha, **options)


def ia3(**options: Any) -> Any:
    return peft.IA3Config(**options)


ADAPTERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "lora of fused layers": ("gpt2", lambda: lora(target_modules=["c_attn", "c_proj"], lora_dropout=0.5)),
    "rank-stabilized": ("gpt2", lambda: lora(target_modules=["c_attn", "c_fc"], use_rslora=True)),
    "dora of fused layers": ("gpt2", lambda: lora(use_dora=True, target_modules=["c_attn", "mlp.c_fc"])),
    "embedding, but not its head": ("gpt2", lambda: lora(target_modules=["wte"])),
    "dora of embeddings": ("gpt2", lambda: lora(use_dora=True, target_modules=["wte", "wpe"])),
    "embedding and its head": ("gpt2", lambda: lora(target_modules=["wte", "lm_head"], ensure_weight_tying=True)),
    "embedding and another head": ("gpt2 untied", lambda: lora(target_modules=["wte", "lm_head"])),
    "all linear, and a whole layer": ("gpt2", lambda: lora(target_modules="all-linear", modules_to_save=["ln_f"])),
    "all biases": ("gpt2", lambda: lora(target_modules=["c_attn"], bias="all")),
    "biases of adapted layers": ("gpt2", lambda: lora(target_modules=["c_attn"], bias="lora_only")),
    "ranks and alphas by pattern, one layer": ("gpt2", lambda: lora(
        target_modules=["c_attn", "c_fc"], rank_pattern={"h.1.attn.c_attn": 4}, alpha_pattern={"c_fc": 7},
        layers_to_transform=[1],
    )),
    "without a head": ("gpt2 base", lambda: lora(target_modules=["c_attn"])),
    "ia3 of fused layers": ("gpt2", lambda: ia3(
        target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"],
    )),
    "regular expression": ("llama", lambda: lora(target_modules=r".*\.(q_proj|v_proj|down_proj)")),
    "dora": ("llama", lambda: lora(use_dora=True, target_modules=["q_proj", "embed_tokens"])),
    "ia3": ("llama", lambda: ia3(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"],
    )),
    "excluded": ("llama grouped", lambda: lora(
        target_modules=["k_proj"], exclude_modules=["model.layers.0.self_attn.k_proj"],
    )),
    "bert": ("bert", lambda: lora(use_dora=True, target_modules=["query", "value", "dense", "word_embeddings"])),
    "classes": ("bert classes", lambda: lora(target_modules=["query"], task_type="SEQ_CLS")),
    "ia3 with biases": ("bert classes", lambda: ia3(
        target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"],
    )),
    "masked": ("bert masked", lambda: lora(target_modules=["word_embeddings", "key"])),
}  # fmt: skip
NO_MERGE = ("embedding, but not its head", "dora of embeddings", "masked")
"""There the head keeps the embedding's old weight."""


def theirs(case: str) -> Any:
    name, config = CASES[case]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    return lively(kind(kind.config_class(**config)).eval())


def moved(model: Any, seed: int = 1) -> Any:
    """The model, with everything that is trained away from where it began."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model.eval()


def outputs(model: Any, tokens: np.ndarray = TOKENS) -> np.ndarray:
    with torch.no_grad():
        result = model.double().eval()(torch.tensor(tokens.astype(np.int64)))[0].numpy()
    model.float()
    return result


def ours(model: Any, case: str = "") -> np.ndarray:
    tokens = px.tensor(TOKENS, device=next(iter(model.params())).device)
    return (model.hidden(tokens) if case == "gpt2 base" else model(tokens)).numpy()


def assert_close(found: np.ndarray, expected: np.ndarray, rough: float = 2e-6) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=rough * np.abs(expected).max())


def loaded(folder: Path, backend: Backend = EXACT) -> Any:
    return huggingface.load(folder, device=backend)


# --- the proof


@pytest.mark.parametrize("what", ADAPTERS)
def test_same_outputs_both_ways(what: str, tmp_path: Path) -> None:
    case, config = ADAPTERS[what]
    base = theirs(case)
    base.save_pretrained(tmp_path / "base")
    plain = outputs(base)
    adapted = moved(peft.get_peft_model(base, config()))
    adapted.save_pretrained(tmp_path / "theirs")
    expected = outputs(adapted)
    assert np.abs(expected - plain).max() > 0.1 * np.abs(plain).max()  # there is something to be told apart
    model = loaded(tmp_path / "base")
    before = ours(model, case)
    view = px.load_adapter(model, tmp_path / "theirs", name="new")
    assert_close(ours(view, case), expected)
    np.testing.assert_array_equal(ours(model, case), before)
    if what in NO_MERGE:
        with pytest.raises(ModuleError, match=r"not the head that has the same weight(.|\n)*"):
            px.merge(view)
    else:
        assert_close(ours(px.merge(view), case), expected)
    px.save_adapter(view, tmp_path / "ours")
    assert_close(ours(px.load_adapter(model, tmp_path / "ours"), case), expected)
    if case != "gpt2 base":  # our model is saved as the one with a head
        kind = getattr(transformers, CASES[case][0])
        again = peft.PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "base"), tmp_path / "ours")
        assert_close(outputs(again), expected)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("what", ["dora of fused layers", "ia3", "bert"])
def test_on_every_engine(what: str, backend: Backend, tmp_path: Path) -> None:
    case, config = ADAPTERS[what]
    base = theirs(case)
    base.save_pretrained(tmp_path / "base")
    adapted = moved(peft.get_peft_model(base, config()))
    adapted.save_pretrained(tmp_path / "theirs", safe_serialization=False)
    assert (tmp_path / "theirs" / "adapter_model.bin").is_file()
    view = px.load_adapter(loaded(tmp_path / "base", backend), tmp_path / "theirs")
    assert_close(ours(view), outputs(adapted), 1e-5)


def test_gradients(tmp_path: Path) -> None:
    base = theirs("gpt2")
    base.save_pretrained(tmp_path / "base")
    options = {"target_modules": ["c_fc", "mlp.c_proj"], "use_dora": True}
    adapted = moved(peft.get_peft_model(base, lora(**options)))
    adapted.save_pretrained(tmp_path / "theirs")
    reference = adapted.double()
    logits = reference(torch.tensor(TOKENS.astype(np.int64)))[0]
    targets = np.roll(TOKENS, 3, 1)
    torch.nn.functional.cross_entropy(
        logits.reshape(-1, 23), torch.tensor(targets.astype(np.int64)).reshape(-1)
    ).backward()
    expected = {name: weight.grad.numpy() for name, weight in reference.named_parameters() if weight.grad is not None}
    device = Autodiff(EXACT)
    model = px.load_adapter(loaded(tmp_path / "base", device), tmp_path / "theirs").valid(tape=True)
    loss = model.loss(px.tensor(TOKENS, device=device), px.tensor(targets, device=device))
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    found = {path: grads.get(param.id) for path, param in model.named_params() if param.trained}
    assert len(found) == len(expected) == 12
    for path, gradient in found.items():
        _, block, layer, *_, end = path.split(".")
        module = f"base_model.model.transformer.h.{block}.mlp.{'c_fc' if layer == 'up' else 'c_proj'}"
        name = f"{module}.lora_{'magnitude_vector' if end == 'magnitude' else end}.default.weight"
        assert gradient is not None, path
        value = gradient.numpy()
        np.testing.assert_allclose(value if value.ndim == 1 else value.T, expected[name], rtol=1e-6, atol=1e-9)


def test_several_and_weighted(tmp_path: Path) -> None:
    base = theirs("llama")
    base.save_pretrained(tmp_path / "base")
    both = peft.get_peft_model(base, lora(target_modules=["q_proj", "v_proj"]), adapter_name="a")
    both.add_adapter("b", lora(2, 3, target_modules=["q_proj", "up_proj"]))
    for n, name in enumerate("ab"):
        both.set_adapter(name)
        moved(both, n)
    both.save_pretrained(tmp_path)
    model = loaded(tmp_path / "base")
    for name in "ab":
        model = px.load_adapter(model, tmp_path / name, name=name)
    assert px.adapter_names(model) == ["a", "b"]
    for name in "ab":
        both.set_adapter(name)
        assert_close(ours(px.use_adapters(model, name)), outputs(both))
    both.add_weighted_adapter(["a", "b"], [0.75, 0.5], "c", combination_type="cat")
    both.set_adapter("c")
    mixed = px.use_adapters(model, {"a": 0.75, "b": 0.5})
    assert_close(ours(mixed), outputs(both))
    rows = px.use_adapters(model, ["a", "base", "b"])
    expected = [ours(px.use_adapters(model, name))[n] for n, name in enumerate(("a", None, "b"))]
    assert_close(ours(rows), np.stack(expected))
    assert_close(ours(px.merge(mixed)), outputs(both.merge_and_unload()))


def test_an_embedding_and_its_head_with_a_rank_of_their_own(tmp_path: Path) -> None:
    base = theirs("gpt2")
    base.save_pretrained(tmp_path / "base")
    model = loaded(tmp_path / "base")
    view = px.lora(px.lora(model, "**.up.weight", rank=2, alpha=3), "tokens.weight", rank=1, alpha=4)
    for param in view.params():
        if param.trained:
            param.set(param.val() + px.random.normal(param.shape, device=param.device))
    px.save_adapter(view, tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base"), tmp_path / "ours"
    )
    assert_close(outputs(again), ours(view))
    assert_close(ours(px.load_adapter(model, tmp_path / "ours")), ours(view))


def test_adapters_of_ours_for_a_fused_layer(tmp_path: Path) -> None:
    """A of query, key and value differ, one is missing, and ranks and scales differ."""
    base = theirs("gpt2")
    base.save_pretrained(tmp_path / "base")
    model = loaded(tmp_path / "base")
    for kind, folder in ((px.lora, "lora"), (px.dora, "dora")):
        view = kind(model, "**.attention.query.weight", rank=2, alpha=3)
        view = kind(view, "blocks.0.attention.value.weight", rank=4, alpha=9)
        trained = [param for _, param in view.named_params() if param.trained]
        assert len(trained) == (6 if kind is px.lora else 9)
        px.random.seed(0)
        for param in trained:
            param.set(param.val() + px.random.normal(param.shape, device=param.device))
        px.save_adapter(view, tmp_path / folder)
        again = peft.PeftModel.from_pretrained(
            transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base"), tmp_path / folder
        )
        assert_close(outputs(again), ours(view))
        back = px.load_adapter(model, tmp_path / folder)
        assert_close(ours(back), ours(view))
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"]) == (6, {"transformer.h.1.attn.c_attn": 2})


@pytest.mark.parametrize("kind", [px.lora, px.dora])
def test_joint_files_keep_their_ranks(kind: Any, tmp_path: Path) -> None:
    model = GptConfig(vocabulary=11, context=8, n_layers=1, d_model=8, n_heads=2).init(EXACT)
    view = kind(model, "**.attention.*.weight", rank=4)
    for path, param in view.named_params():
        if path.endswith("B"):
            param.set(px.random.normal(param.shape, device=param.device))
    px.save_adapter(view, tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert stored["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"].shape == (12, 8)
    back = px.load_adapter(model, tmp_path)
    tokens = px.tensor([[1, 2, 3]], device=EXACT)
    np.testing.assert_allclose(back(tokens).numpy(), view(tokens).numpy(), atol=1e-6)
    assert [param.shape for param in back.params()] == [param.shape for param in view.params()]


# --- other models, by our own names


class Small(Module):
    """A model with layers of every kind, whose paths are those of `TorchSmall`."""

    def __init__(self) -> None:
        self.table = px.nn.Embedding(7, 6)
        self.conv = px.nn.Conv1d(6, 5, 3, padding=1, stride=2)
        self.grouped = px.nn.Conv1d(5, 4, 1)
        self.out = px.nn.Linear(4, 3)

    def __call__(self, tokens: Any) -> Any:
        x = self.conv(self.table(tokens).permute_dims((0, 2, 1)))
        return self.out(self.grouped(x).permute_dims((0, 2, 1)))


class TorchSmall(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 6)
        self.conv = torch.nn.Conv1d(6, 5, 3, padding=1, stride=2)
        self.grouped = torch.nn.Conv1d(5, 4, 1)
        self.out = torch.nn.Linear(4, 3)

    def forward(self, tokens: Any) -> Any:
        x = self.conv(self.table(tokens).transpose(1, 2))
        return (self.out(self.grouped(x).transpose(1, 2)),)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=str)
def test_layers_of_every_kind(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = TorchSmall()
    model = Small().init(device=EXACT)
    torch.save(base.state_dict(), tmp_path / "base.pt")
    px.interop.pytorch.load(model, tmp_path / "base.pt")
    adapted = moved(peft.get_peft_model(base, lora(2, 3, target_modules=["table", "conv", "out"], **options)))
    adapted.save_pretrained(tmp_path / "theirs")
    tokens = TOKENS % 7
    view = px.load_adapter(model, tmp_path / "theirs")
    expected = outputs(adapted, tokens)
    assert_close(view(px.tensor(tokens, device=EXACT)).numpy(), expected)
    assert_close(px.merge(view)(px.tensor(tokens, device=EXACT)).numpy(), expected)
    px.save_adapter(view, tmp_path / "ours")
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "ours"))
    first = {name: value for name, value in first.items() if "base_layer" not in name}
    assert {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in second.items()}
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_initial_values() -> None:
    torch.manual_seed(0)
    reference = peft.get_peft_model(TorchSmall(), lora(3, target_modules=["table", "conv", "out"]))
    many = [px.lora(Small().init(n), ["table.weight", "conv.weight", "out.weight"], rank=3) for n in range(20)]
    for module, path in (("table", "table.weight"), ("conv", "conv.weight"), ("out", "out.weight")):
        for end in "AB":
            values = np.stack([dict(m.named_params())[f"{path}.lora.default.{end}"].val().numpy() for m in many])
            key = f"lora_embedding_{end}.default" if module == "table" else f"lora_{end}.default.weight"
            theirs = dict(reference.base_model.model.named_parameters())[f"{module}.{key}"].detach().numpy()
            assert (values == 0).all() == (theirs == 0).all()
            if module != "table" and end == "A":  # uniform, to the same bound
                bound = 1 / np.sqrt(theirs[0].size)
                assert np.abs(theirs).max() <= bound and 0.9 * bound < np.abs(values).max() <= bound
            elif module == "table" and end == "B":
                assert abs(values.std() - 1) < 0.15


class Halved(px.Reparameterization):
    """Stands for a weight in another form, such as a quantised one."""

    def __init__(self, param: Any) -> None:
        self.base = Param(param.val() / 2, trained=False)

    def val(self) -> Any:
        return self.base.val() * 2


def test_on_weights_in_another_form(tmp_path: Path) -> None:
    plain = px.nn.Linear(6, 4).init(0)
    model = px.reparameterize(plain, "weight", Halved)
    view = px.lora(model, "weight", rank=2, train="bias")
    params = dict(view.named_params())
    assert [path for path, param in params.items() if param.trained] == [
        "weight.lora.default.A", "weight.lora.default.B", "bias",
    ]  # fmt: skip
    params["weight.lora.default.B"].set(px.ones((2, 4)))
    px.save_adapter(view, tmp_path, further=[])
    back = px.load_adapter(model, tmp_path)
    x = px.random.normal((3, 6))
    np.testing.assert_array_equal(back(x).numpy(), view(x).numpy())
    np.testing.assert_array_equal(px.load_adapter(plain, tmp_path)(x).numpy(), view(x).numpy())


# --- refusals


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = GptConfig(vocabulary=11, context=8, n_layers=2, d_model=8, n_heads=2).init("numpy")
    folder = tmp_path_factory.mktemp("good")
    px.save_adapter(px.lora(model, "**.up.weight", rank=2), folder)
    return model, folder


REFUSED: dict[str, tuple[dict[str, Any], type[PhloxError], str]] = {
    "another kind": ({"peft_type": "PROMPT_TUNING"}, ConfigError, "'PROMPT_TUNING' are not supported; LORA and IA3"),
    "bias of factors": ({"lora_bias": True}, ConfigError, "lora_bias=True is not supported"),
    "unknown": ({"new_thing": 3}, ConfigError, "new_thing=3 is not known, and may change"),
    "repeated layers": ({"layer_replication": [[0, 2]]}, ConfigError, "layer_replication="),
    "another base": ({"init_lora_weights": "pissa"}, ConfigError, "'pissa' changes the base"),
    "expression": ({"target_modules": "("}, ConfigError, "names of modules are not valid"),
    "names": ({"target_modules": ["c_fc", 3]}, ConfigError, "target_modules must have entries of the type str"),
    "modules": ({"modules_to_save": {"a": 1}}, ConfigError, "modules_to_save must have entries of the type str"),
    "dora": ({"use_dora": True}, RecordError, "c_fc: lora_magnitude_vector is missing"),
    "rank": ({"r": 4}, RecordError, r"c_fc: lora_A has the shape \(2, 8\), and the model needs \(4, 8\)"),
    "not selected": ({"target_modules": ["c_attn"]}, RecordError, "c_fc: it is in the file, but target_modules"),
    "missing": ({"target_modules": ["c_attn", "c_fc"]}, RecordError, "c_attn: target_modules select it, and the file"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_settings(what: str, good: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = good
    changes, error, message = REFUSED[what]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(error, match=message):
        px.load_adapter(model, tmp_path)


FILES: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    "no such module": (lambda file: {name.replace("c_fc", "c_f"): value for name, value in file.items()},
                       r"h.0.mlp.c_f: the model has no such module; did you mean 'transformer.h.0.mlp.c_fc'"),
    "half": (lambda file: {name: value for name, value in file.items() if "lora_B" not in name}, "lora_B is missing"),
    "another model": (lambda file: {name: np.repeat(value, 2, 1) for name, value in file.items()},
                      r"4 problems:\n.*lora_A has the shape \(2, 16\), and the model needs \(2, 8\)"),
    "unknown entry": (lambda file: file | {"base_model.model.x.weight": np.ones(2, np.float32)}, "no rule matches"),
    "whole": (lambda file: file | {"base_model.model.transformer.ln_f.weight": np.ones(2, np.float32)},
              r"ln_f.weight: norm.gamma of the model has the shape \(8,\), and the file has \(2,\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_refused_files(what: str, good: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = good
    change, message = FILES[what]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    save_file(change(load_file(folder / "adapter_model.safetensors")), tmp_path / "adapter_model.safetensors")
    with pytest.raises(RecordError, match=message):
        px.load_adapter(model, tmp_path)


def test_refused_calls(good: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = good
    view = px.lora(model, "**.up.weight", rank=2)
    with pytest.raises(ModuleError, match="has an adapter 'default' already; give this one another name"):
        px.load_adapter(view, folder)
    with pytest.raises(ModuleError, match="the model has no adapter 'french'; it has default"):
        px.save_adapter(view, tmp_path, name="french")
    with pytest.raises(ModuleError, match="choose an adapter by name; it has none"):
        px.save_adapter(model, tmp_path)
    with pytest.raises(ConfigError, match=r"adapter_config.json"):
        px.load_adapter(model, tmp_path)
    (tmp_path / "adapter_config.json").write_text((folder / "adapter_config.json").read_text())
    with pytest.raises(RecordError, match=r"there is no adapter; looked for adapter_model.safetensors"):
        px.load_adapter(model, tmp_path)
    mixed = px.dora(view, "**.down.weight", rank=2)
    with pytest.raises(ConfigError, match="of several kinds"):
        px.save_adapter(mixed, tmp_path)
    trained = px.lora(model, "**.up.weight", rank=2, train="blocks.0.up.bias")
    with pytest.raises(ConfigError, match=r"transformer.h.0.mlp.c_fc: PEFT saves a layer either with an adapter or"):
        px.save_adapter(trained, tmp_path)
