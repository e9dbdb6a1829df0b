"""State dicts of PyTorch: every layer gives PyTorch's output with PyTorch's weights, and gives the weights back.

Serves: phlox/interop/pytorch/layers.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import phlox as px
from phlox import nn
from phlox.errors import RecordError
from phlox.interop import pytorch
from phlox.interop.adapter import split, transpose
from phlox.record import HALF, LazyTensor, Record, TensorEntry

T = torch.nn


@dataclass
class Case:
    """A layer of theirs, the same of ours, and the shape of what goes in."""

    name: str
    theirs: Callable[[], T.Module]
    ours: Callable[[], px.Module]
    shape: tuple[int, ...]


CASES = [
    Case("linear", lambda: T.Linear(3, 5), lambda: nn.Linear(3, 5), (4, 3)),
    Case("square linear", lambda: T.Linear(4, 4), lambda: nn.Linear(4, 4), (2, 4)),
    Case("linear without bias", lambda: T.Linear(3, 5, bias=False), lambda: nn.Linear(3, 5, bias=False), (4, 3)),
    Case("layer norm", lambda: T.LayerNorm(6), lambda: nn.LayerNorm(6), (4, 6)),
    Case("layer norm of two axes", lambda: T.LayerNorm([3, 6]), lambda: nn.LayerNorm((3, 6)), (4, 3, 6)),
    Case("layer norm without bias", lambda: T.LayerNorm(6, bias=False), lambda: nn.LayerNorm(6, bias=False), (4, 6)),
    Case(
        "layer norm without anything",
        lambda: T.LayerNorm(6, elementwise_affine=False),
        lambda: nn.LayerNorm(6, affine=False),
        (4, 6),
    ),
    Case("rms norm", lambda: T.RMSNorm(6, eps=1e-6), lambda: nn.RmsNorm(6), (4, 6)),
    Case("group norm", lambda: T.GroupNorm(2, 6), lambda: nn.GroupNorm(2, 6), (4, 6, 5)),
    Case(
        "instance norm", lambda: T.InstanceNorm2d(6, affine=True), lambda: nn.InstanceNorm(6, affine=True), (4, 6, 5, 3)
    ),
    Case("batch norm of vectors", lambda: T.BatchNorm1d(6), lambda: nn.BatchNorm(6), (4, 6)),
    Case("batch norm of images", lambda: T.BatchNorm2d(6), lambda: nn.BatchNorm(6), (4, 6, 5, 3)),
    Case(
        "batch norm without affine",
        lambda: T.BatchNorm1d(6, affine=False),
        lambda: nn.BatchNorm(6, affine=False),
        (4, 6),
    ),
    Case(
        "batch norm without statistics",
        lambda: T.BatchNorm1d(6, track_running_stats=False),
        lambda: nn.BatchNorm(6, track_running_stats=False),
        (4, 6),
    ),
    Case("conv1d", lambda: T.Conv1d(4, 6, 3, groups=2), lambda: nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9)),
    Case("conv2d", lambda: T.Conv2d(4, 6, (3, 2)), lambda: nn.Conv2d(4, 6, (3, 2)), (2, 4, 7, 6)),
    Case("conv3d", lambda: T.Conv3d(2, 3, 2, bias=False), lambda: nn.Conv3d(2, 3, 2, bias=False), (2, 2, 3, 4, 5)),
    Case(
        "conv_transpose1d",
        lambda: T.ConvTranspose1d(4, 6, 3, groups=2),
        lambda: nn.ConvTranspose1d(4, 6, 3, groups=2),
        (2, 4, 9),
    ),
    Case(
        "conv_transpose2d",
        lambda: T.ConvTranspose2d(4, 6, (3, 2), stride=2),
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2),
        (2, 4, 7, 6),
    ),
    Case("conv_transpose3d", lambda: T.ConvTranspose3d(2, 3, 2), lambda: nn.ConvTranspose3d(2, 3, 2), (2, 2, 3, 4, 5)),
    Case("prelu", lambda: T.PReLU(6), lambda: nn.PRelu(6), (4, 6)),
    Case(
        "mlp",
        lambda: T.Sequential(T.Linear(3, 8), T.ReLU(), T.LayerNorm(8), T.Linear(8, 8), T.Tanh(), T.Linear(8, 2)),
        lambda: nn.Sequential(
            [nn.Linear(3, 8), nn.Relu(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
        ),
        (4, 3),
    ),
    Case(
        "cnn",
        lambda: T.Sequential(
            T.Sequential(T.Conv2d(1, 4, 3, padding=1, bias=False), T.BatchNorm2d(4), T.PReLU(4)),
            T.MaxPool2d(2),
            T.Flatten(),
            T.Linear(4 * 4 * 4, 10),
        ),
        lambda: nn.Sequential(
            [
                nn.Sequential([nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm(4), nn.PRelu(4)]),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(4 * 4 * 4, 10),
            ]
        ),
        (2, 1, 8, 8),
    ),
]


def twin(case: Case) -> T.Module:
    """Theirs, with parameters and buffers that no initializer would give, in use."""
    torch.manual_seed(0)
    module = case.theirs()
    with torch.no_grad():
        for tensor in (*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand_like(tensor) + 0.1)
    return module.eval()


def same_state(theirs: T.Module, state: dict[str, torch.Tensor]) -> bool:
    expected = theirs.state_dict()
    return set(state) == set(expected) and all(
        state[name].dtype == tensor.dtype and torch.equal(state[name], tensor) for name, tensor in expected.items()
    )


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_layer(case: Case, backend: str, tmp_path: Path) -> None:
    theirs = twin(case)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours = case.ours().to_device(backend)
    report = pytorch.load(ours, tmp_path / "theirs.safetensors")
    assert report.ok and report.done and not report.unexpected and not report.missing
    x = np.random.default_rng(1).normal(size=case.shape).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    found = ours.valid()(px.tensor(x, device=backend)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    written = pytorch.save(ours, tmp_path / "ours")
    assert written.name == "ours.safetensors"
    state = safetensors.torch.load_file(written)
    if "num_batches_tracked" in str(list(state)):  # theirs have not been trained
        assert all(int(state[name]) == 0 for name in state if name.endswith("num_batches_tracked"))
    assert same_state(theirs, state)
    case.theirs().load_state_dict(state)  # strictly


def test_embedding() -> None:
    theirs, ours = T.Embedding(10, 4), nn.Embedding(10, 4)
    pytorch.load_state_dict(ours, theirs.state_dict())
    indices = np.array([[0, 3], [9, 9]], np.int32)
    np.testing.assert_array_equal(ours(px.tensor(indices)).numpy(), theirs(torch.from_numpy(indices)).detach().numpy())


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_attention(bias: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = T.MultiheadAttention(8, 2, bias=bias, batch_first=True).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter))
    ours = nn.MultiHeadAttention(8, 2, bias=bias)
    torch.save({"epoch": 3, "model": theirs.state_dict()}, tmp_path / "checkpoint.pt")
    pytorch.load(ours, tmp_path / "checkpoint.pt", prefix="model")
    x, y = np.random.default_rng(1).normal(size=(2, 3, 5, 8)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(y), need_weights=False)[0]
    np.testing.assert_allclose(ours(px.tensor(x), px.tensor(y)).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    assert same_state(theirs, safetensors.torch.load_file(pytorch.save(ours, tmp_path / "ours")))


def test_files_of_torch_save(tmp_path: Path) -> None:
    theirs = twin(CASES[-1])
    torch.save(theirs.state_dict(), tmp_path / "cnn.pt")
    ours = CASES[-1].ours()
    pytorch.load(ours, tmp_path / "cnn.pt")
    assert same_state(theirs, safetensors.torch.load_file(pytorch.save(ours, tmp_path / "ours")))


# --- whole models


class TheirBlock(T.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = T.MultiheadAttention(width, 2, batch_first=True)
        self.norm1, self.norm2 = T.LayerNorm(width), T.LayerNorm(width)
        self.mlp = T.Sequential(T.Linear(width, 2 * width), T.GELU(), T.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class TheirModel(T.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = T.Embedding(10, 8)
        self.scale = T.Parameter(torch.ones(8))
        self.blocks = T.ModuleList([TheirBlock(8) for _ in range(2)])
        self.heads = T.ModuleDict({"a": T.Linear(8, 8), "b": T.Linear(8, 3)})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.heads["b"](self.heads["a"](x))


class Block(px.Module):
    def __init__(self, width: int) -> None:
        self.attention = nn.MultiHeadAttention(width, 2)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential([nn.Linear(width, 2 * width), nn.Gelu(), nn.Linear(2 * width, width)])

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(px.Module):
    def __init__(self) -> None:
        self.embed = nn.Embedding(10, 8)
        self.scale = px.Param(px.ones((8,)))
        self.blocks = [Block(8) for _ in range(2)]
        self.heads = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 3)}

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens) * self.scale.val()
        for block in self.blocks:
            x = block(x)
        return self.heads["b"](self.heads["a"](x))


pytorch.register_layer(Block, names={"attention": "self_attn"})


def test_a_model_of_ones_own_layers(tmp_path: Path) -> None:
    torch.manual_seed(3)
    theirs = TheirModel().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = Model()
    pytorch.load(ours, tmp_path)
    tokens = np.array([[1, 2, 3, 9]], np.int32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).numpy()
    np.testing.assert_allclose(ours(px.tensor(tokens)).numpy(), expected, rtol=1e-5, atol=1e-5)
    state = safetensors.torch.load_file(pytorch.save(ours, tmp_path / "ours"))
    assert same_state(theirs, state)
    TheirModel().load_state_dict(state)


def test_a_row_of_ones_own() -> None:
    class Gated(px.Module):
        def __init__(self) -> None:
            self.gate, self.up = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)

    class Outer(px.Module):
        def __init__(self) -> None:
            self.parts = [Gated()]

    pytorch.register_layer(Gated, [split("gate_up.weight", ["gate.weight", "up.weight"], transposed=True)])
    array = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    outer = Outer()
    pytorch.load_state_dict(outer, {"parts.0.gate_up.weight": array})
    np.testing.assert_array_equal(outer.parts[0].gate.weight.val().numpy(), array[:4].T)
    assert pytorch.to_state_dict(outer).paths() == ["parts.0.gate_up.weight"]

    pytorch.register_layer(Gated, lambda layer: [transpose("w", "gate.weight")])  # takes the place of the first
    assert pytorch.to_state_dict(outer).paths() == ["parts.0.up.weight", "parts.0.w"] or set(
        pytorch.to_state_dict(outer)
    ) == {"parts.0.up.weight", "parts.0.w"}
    pytorch.register_layer(Gated, [transpose("*.weight", "*.weight")])
    with pytest.raises(RecordError, match=r"register_layer\(Gated\): .* no wildcards"):
        pytorch.to_state_dict(outer)


def test_a_subclass_of_a_layer_is_laid_out_as_it() -> None:
    class Special(nn.Linear):
        pass

    assert pytorch.to_state_dict(Special(2, 3))["weight"].tensor.shape == (3, 2)


def test_a_layer_that_stands_in_two_places(tmp_path: Path) -> None:
    class Theirs(T.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = T.Linear(3, 3)
            self.second = self.first

    class Ours(px.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(3, 3)
            self.second = self.first

    theirs, ours = Theirs(), Ours()
    assert len(theirs.state_dict()) == 4
    pytorch.load_state_dict(ours, theirs.state_dict())
    state = safetensors.torch.load_file(pytorch.save(ours, tmp_path / "x"))
    assert same_state(theirs, state)
    half = {name: tensor for name, tensor in theirs.state_dict().items() if name.startswith("second")}
    assert pytorch.load_state_dict(Ours(), half).ok  # as a file that stores it once has it


def test_sequential_by_name() -> None:
    theirs = T.Sequential()
    theirs.add_module("fc", T.Linear(2, 3))
    ours = nn.Sequential(fc=nn.Linear(2, 3), act=nn.Relu())
    pytorch.load_state_dict(ours, theirs.state_dict())
    assert pytorch.to_state_dict(ours).paths() == ["fc.weight", "fc.bias"]


# --- what it takes and gives


def test_nothing_is_read_before_it_is_asked_for() -> None:
    reads: list[str] = []

    def lazy(path: str, shape: tuple[int, ...]) -> LazyTensor:
        return LazyTensor.from_function(shape, np.float32, lambda: reads.append(path) or np.zeros(shape, np.float32))

    state = Record({"in_proj_weight": lazy("a", (24, 8)), "out_proj.weight": lazy("b", (8, 8))})
    record = pytorch.from_state_dict(state, nn.MultiHeadAttention(8, 2, bias=False))
    assert record.paths() == ["query.weight", "key.weight", "value.weight", "out.weight"] and not reads
    assert record["key.weight"].tensor.read().shape == (8, 8) and reads == ["a"]


def test_a_state_dict_has_no_ids_and_says_that_it_is_pytorchs() -> None:
    record = pytorch.to_state_dict(nn.Linear(2, 3))
    assert record.metadata == {"format": "pt"} and not record.aliases
    assert all(isinstance(entry, TensorEntry) and entry.id is None for entry in record.tensors.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_tensors_of_pytorch_in_memory(dtype: torch.dtype) -> None:
    theirs = T.Linear(3, 5).to(dtype)
    record = pytorch.from_state_dict(theirs.state_dict(), nn.Linear(3, 5))
    assert str(record["weight"].tensor.dtype) == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(
        record["weight"].tensor.read().astype(np.float64), theirs.weight.detach().double().numpy().T
    )
    ours = nn.Linear(3, 5)
    assert len(pytorch.load_state_dict(ours, theirs.state_dict()).cast) == 2


def test_precision_of_what_is_saved(tmp_path: Path) -> None:
    state = safetensors.torch.load_file(pytorch.save(nn.Linear(2, 3), tmp_path / "half", HALF))
    assert state["weight"].dtype == torch.float16


def test_no_pickle_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"suffix \.safetensors"):
        pytorch.save(nn.Linear(2, 3), tmp_path / "model.pt")


# --- what does not fit


def state_of(*names: str, shape: tuple[int, ...] = (3,)) -> dict[str, Any]:
    return {name: np.zeros(shape, np.float32) for name in names}


def test_all_problems_are_told_in_both_names() -> None:
    model = nn.Sequential([nn.Linear(2, 3), nn.Relu(), nn.LayerNorm(3)])
    before = model.into_record()["layers.0.weight"].tensor.read().copy()
    state = {"0.weight": np.zeros((4, 2), np.float32), **state_of("0.bias", "2.wieght", "2.bias")}
    with pytest.raises(RecordError) as error:
        pytorch.load_state_dict(model, state)
    text = str(error.value)
    assert "cannot load the record into Sequential, 3 problems" in text
    assert "layers.0.weight: the record has shape (2, 4), the module expects (2, 3)" in text
    assert "layers.2.gamma: missing from the record" in text
    assert "2.wieght: in the record, but not in the module" in text
    assert "layers.0.weight is 0.weight" in text and "layers.2.gamma is 2.weight" in text
    assert "Did you mean '2.weight' with '2.wieght'?" in text
    np.testing.assert_array_equal(model.into_record()["layers.0.weight"].tensor.read(), before)


def test_the_file_is_named(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.ones(3, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(RecordError, match=r"x\.safetensors: cannot load the record into Linear, 1 problem"):
        pytorch.load(nn.Linear(2, 3), tmp_path / "x.safetensors")


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(RecordError, match=r"weight: shape \(3,\) does not have 2 axes"):
        pytorch.load_state_dict(nn.Linear(2, 3), state_of("weight", "bias"))
    with pytest.raises(RecordError, match=r"in_proj_weight: axis 0 of shape \(7, 8\) cannot be split 2:2:2"):
        pytorch.load_state_dict(nn.MultiHeadAttention(8, 2), state_of("in_proj_weight", shape=(7, 8)))


def test_a_prefix() -> None:
    state = {"model.0.weight": np.ones((3, 2), np.float32), **state_of("model.0.bias", "step")}
    model = nn.Sequential([nn.Linear(2, 3)])
    with pytest.raises(RecordError, match=r"All names in the state dict have the prefix 'model': give prefix='model'"):
        pytorch.load_state_dict(model, state)
    assert pytorch.load_state_dict(model, state, prefix="model").ok
    with pytest.raises(RecordError, match=r"nothing in the state dict is below 'modle'; did you mean 'model"):
        pytorch.load_state_dict(model, state, prefix="modle")


def test_names_of_ours_are_not_taken_for_theirs() -> None:
    """Their layout is another: a square matrix would be loaded the wrong way round, without a word."""
    model = nn.Sequential([nn.Linear(3, 3)])
    with pytest.raises(RecordError, match=r"layers.0.weight: this is a Phlox name, for 0.weight in PyTorch"):
        pytorch.load_state_dict(model, model.into_record(), strict=False)


def test_options_of_loading() -> None:
    class Theirs(T.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = T.Linear(4, 4), T.Linear(4, 2)

    class Ours(px.Module):
        def __init__(self) -> None:
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    theirs, ours = Theirs(), Ours()
    report = pytorch.load_state_dict(ours, theirs.state_dict(), strict=False)
    assert report.missing == ["head.weight", "head.bias"] and report.unexpected == ["fc.weight", "fc.bias"]
    ours = Ours()
    pytorch.load_state_dict(ours, theirs.state_dict(), remap={r"^fc\.": "head."})
    np.testing.assert_array_equal(ours.head.weight.val().numpy(), theirs.fc.weight.detach().numpy().T)
    ours = Ours()
    report = pytorch.load_state_dict(ours, theirs.state_dict(), include="body")
    np.testing.assert_array_equal(ours.body.weight.val().numpy(), theirs.body.weight.detach().numpy().T)
    assert report.loaded == ["body.weight", "body.bias"]


def test_statistics_that_the_layer_does_not_keep_are_told() -> None:
    theirs = T.InstanceNorm1d(3, affine=True, track_running_stats=True)
    with pytest.raises(RecordError, match="running_mean: in the record, but not in the module"):
        pytorch.load_state_dict(nn.InstanceNorm(3, affine=True), theirs.state_dict())


def test_positional_records_are_refused() -> None:
    with pytest.raises(RecordError, match="positional"):
        pytorch.load_state_dict(nn.Linear(2, 3), Record({"0": np.zeros(3)}, positional=True))


def test_every_parameter_of_every_layer_is_in_one_rule() -> None:
    for case in CASES:
        ours = case.ours()
        rules = pytorch.adapter(ours).rules
        covered = [pattern.text for rule in rules for pattern in rule.ours]
        assert sorted(covered) == sorted(path for path, _ in ours.named_params())


def test_no_layer_is_forgotten() -> None:
    tested = {type(part) for case in CASES for part in _parts(case.ours())} | {nn.Embedding, nn.MultiHeadAttention}
    tested |= {nn.LstmCell, nn.GruCell, nn.RnnCell}  # test_pytorch_recurrent.py
    tested |= {nn.Router, nn.ExpertLinear, nn.LatentAttention}  # PyTorch has none
    with_params = {
        cls
        for cls in (getattr(nn, name) for name in nn.__all__)
        if isinstance(cls, type) and issubclass(cls, px.Module) and "Param.deferred" in _sources(cls)
    }
    assert len(with_params) > 10 and with_params <= tested


def _parts(module: Any) -> list[Any]:
    return [module, *(part for layer in getattr(module, "layers", ()) for part in _parts(layer))]


def _sources(cls: type) -> str:
    return "".join(inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("phlox.nn"))


def test_the_front() -> None:
    assert px.interop.pytorch is pytorch and "interop" in dir(px) and "pytorch" in dir(px.interop)
