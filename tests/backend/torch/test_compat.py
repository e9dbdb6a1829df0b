"""Private names of PyTorch: each may be missing, and what is left computes the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Float, Int, NumPy, Torch
from phlox.backend.contract.update import AdagradScalars, AdamScalars, SgdScalars
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.errors import CompileError
from tests.backend.torch.lacking import lacking

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "phlox"
Work = Callable[..., list[Any]]
rng = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def composite(name: str, operands: int, *options: Any) -> Work:
    """Forward and backward of an operation of several functions, of which the last array is the gradient."""

    def work(B: Any, *arrays: Any) -> list[Any]:
        given, gs = arrays[:operands], arrays[operands:]
        filled = [*given, *[None] * EMPTY.get(name, 0)]
        y, saved = getattr(B, f"{name}_forward")(*filled, *options)
        whole = tuple(gs) if isinstance(y, tuple) else gs[0]
        needed = tuple(x is not None for x in filled)
        grads = getattr(B, f"{name}_backward")(saved, whole, needed, *options)
        return [*(y if isinstance(y, tuple) else (y,)), *[g for g in grads if g is not None]]

    return work


EMPTY = {"attention": 3, "cross_entropy": 1, "lstm": 1}
"""How many further operands are left out."""


def plain(name: str, *options: Any) -> Work:
    return lambda B, *arrays: [getattr(B, name)(*arrays, *options)]


def pool(name: str, axes: int) -> tuple[Work, list[Any]]:
    window, padding = (2,) * axes, ((0, 0),) * axes
    last = (1,) * axes if name == "max_pool" else padding
    return composite(name, 1, window, window, padding, last), [floats(2, 3, *[4] * axes), floats(2, 3, *[2] * axes)]


X = floats(6, 8)
IMAGES = floats(2, 4, 5, 5)
IDS = np.array([[1, 0, 2], [3, 3, 1]], np.int32)
SEQUENCES = np.log(np.full((6, 2, 5), 0.2, np.float32) + np.abs(floats(6, 2, 5)) * 0.01)
LSTM = [floats(3, 2, 4), *[floats(2, 5)] * 2, floats(4, 20), floats(5, 20), floats(20)]
CONV = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
WORKS: dict[str, tuple[Work, list[Any]]] = {
    "softmax": (composite("softmax", 1, 1), [X, floats(6, 8)]),
    "log_softmax": (composite("log_softmax", 1, 1), [X, floats(6, 8)]),
    "gelu": (composite("gelu", 1, False), [X, floats(6, 8)]),
    "layer_norm": (composite("layer_norm", 3, 1e-5), [X, floats(8), floats(8), floats(6, 8)]),
    "group_norm": (composite("group_norm", 3, 2, 1e-5), [IMAGES, floats(4), floats(4), IMAGES + 1.0]),
    "batch_norm": (
        composite("batch_norm_train", 3, 1e-5),
        [IMAGES, floats(4), floats(4), IMAGES + 1.0, floats(4), floats(4)],
    ),
    "cross_entropy": (composite("cross_entropy", 2, 0.0, None), [X, np.arange(6, dtype=np.int32), floats(6)]),
    "ctc": (
        composite("ctc_loss", 4, 0),
        [SEQUENCES, IDS + 1, np.array([6, 5], np.int32), np.array([2, 3], np.int32), floats(2)],
    ),
    "attention": (composite("attention", 3, (True, 0.5, 0.0)), [floats(2, 2, 5, 8) for _ in range(4)]),
    "conv": (composite("conv", 3, *CONV), [IMAGES, floats(3, 4, 3, 3), floats(3), floats(2, 3, 5, 5)]),
    "lstm": (
        composite("lstm", 6, False),
        [*LSTM, floats(3, 2, 5), *[X[:2, :5]] * 2],
    ),
    "predicting lstm": (
        lambda B, *arrays: list(B.lstm(*arrays, None, False)),
        LSTM,
    ),
    "embedding": (plain("float_take_adjoint", 0, (5, 4)), [floats(2, 3, 4), IDS]),
    "windows": (plain("float_windows_adjoint", 1, 3, 1, (6, 8)), [floats(6, 6, 3)]),
    "matmul": (plain("float_matmul"), [floats(256, 256), floats(256, 256)]),
    "elu": (plain("float_elu", 1.0, 1.0, 1.0), [X]),
    "elu_backward": (plain("float_elu_backward", 1.0, 1.0, 1.0), [floats(6, 8), X]),
    "relu_backward": (plain("float_relu_backward"), [floats(6, 8), np.maximum(X, 0.0)]),
    "threshold_backward": (plain("float_threshold_backward", 0.5, 2.0), [floats(6, 8), X]),
    "leaky_relu_backward": (plain("float_leaky_relu_backward", 0.1), [floats(6, 8), X]),
    "hardtanh_backward": (plain("float_hardtanh_backward", -1.0, 1.0), [floats(6, 8), X]),
    "softshrink_backward": (plain("float_softshrink_backward", 0.5), [floats(6, 8), X]),
    "hardshrink_backward": (plain("float_hardshrink_backward", 0.5), [floats(6, 8), X]),
    **{
        f"{name}_backward": (plain(f"float_{name}_backward"), [floats(6, 8), np.abs(X) / 4.0])
        for name in ("softplus", "silu", "mish", "hardswish", "tanh", "sigmoid")
    },
    **{f"{name}_{axes}": pool(name, axes) for name in ("max_pool", "avg_pool") for axes in (1, 2, 3)},
}
"""What is computed, and of what. Of each name that some of it uses, the name may be missing."""
USES: dict[str, tuple[str, ...]] = {
    "torch.native_layer_norm": ("layer_norm",),
    "torch.native_group_norm": ("group_norm",),
    "torch.native_batch_norm": ("batch_norm",),
    "torch.ops.aten.native_layer_norm_backward.default": ("layer_norm",),
    "torch.ops.aten.native_group_norm_backward.default": ("group_norm",),
    "torch.ops.aten.native_batch_norm_backward.default": ("batch_norm",),
    "torch.ops.aten._native_batch_norm_legit_functional.default": ("batch_norm",),
    "torch.ops.aten._softmax_backward_data.default": ("softmax",),
    "torch.ops.aten._log_softmax_backward_data.default": ("log_softmax", "cross_entropy"),
    "torch.ops.aten.gelu_backward.default": ("gelu",),
    "torch.ops.aten.nll_loss_forward.default": ("cross_entropy",),
    "torch.ops.aten.nll_loss_backward.default": ("cross_entropy",),
    "torch.ops.aten._ctc_loss.default": ("ctc",),
    "torch.ops.aten._ctc_loss_backward.default": ("ctc",),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default": ("attention",),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default": ("attention",),
    "torch.ops.aten.convolution_backward.default": ("conv",),
    "torch.ops.aten.embedding_dense_backward.default": ("embedding",),
    "torch.ops.aten.unfold_backward.default": ("windows",),
    **{
        f"torch.ops.aten.{kernel}_pool{axes}d{rest}.default": tuple(
            [f"{kernel}_pool_{number}" for number in ((1, 2) if axes == 2 else (3,))]
        )
        for kernel, rests in (("max", ("_with_indices", "_with_indices_backward")), ("avg", ("", "_backward")))
        for axes in (2, 3)
        for rest in rests
    },
    "torch.ops.aten.threshold_backward.default": ("relu_backward", "threshold_backward"),
    "torch.ops.aten.elu.default": ("elu",),
    **{
        f"torch.ops.aten.{name}_backward.default": (f"{name}_backward",)
        for name in (
            "leaky_relu", "elu", "softplus", "silu", "mish", "hardtanh", "hardswish", "softshrink", "hardshrink",
            "tanh", "sigmoid",
        )
    },
    "torch.ops.mkldnn._linear_pointwise.default": ("matmul",),
    "torch.ops.aten.mkldnn_rnn_layer.default": ("lstm", "predicting lstm"),
    "torch.ops.aten.mkldnn_rnn_layer_backward.default": ("lstm",),
    "torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight": ("predicting lstm",),
    "torch.utils._python_dispatch._disable_current_modes": ("lstm",),
    "torch.Tensor._version": ("predicting lstm",),
    **dict.fromkeys(
        (
            "torch._C._len_torch_dispatch_stack", "torch._C._functorch.peek_interpreter_stack",
            "torch._C._get_dispatch_mode", "torch._C._TorchDispatchModeKey",
        ),
        ("matmul", "elu"),
    ),
}  # fmt: skip
"""By private name the work that uses it, where it is an operation."""
UPDATES = {
    "adam": AdamScalars(0.1, 0.9, 0.999, 1e-8, 0.0, False, 0.1, 0.001, 1),
    "adamw": AdamScalars(0.1, 0.9, 0.999, 1e-8, 0.0, True, 0.1, 0.001, 1),
    "sgd": SgdScalars(0.1, 0.9, 0.0, 0.0, False, False, True),
    "adagrad": AdagradScalars(0.1, 0.0, 0.0, 1e-8, False, 1),
}
COMPILER = {"torch._inductor.compile", "torch._inductor.config"}
ELSEWHERE = {
    "torch._higher_order_ops": "tests/export/test_to_torch.py",
    "torch.fx.experimental._config": "tests/export/test_borders.py",
    "torch._inductor.codecache.CppCodeCache.load": "tests/backend/torch/compiler/kernels/test_cpp.py",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "test_without_bfloat16",
    **dict.fromkeys(
        (
            "torch.fx.experimental.proxy_tensor.get_proxy_slot",
            "torch.fx.experimental.proxy_tensor.track_tensor_tree",
        ),
        "tests/backend/torch/test_repeats.py",
    ),
    **dict.fromkeys(
        (
            "torch._inductor.compile_fx.compile_fx", "torch._inductor.compile_fx.compile_fx_inner",
            "torch._functorch.config", "torch._guards.TracingContext", "torch._guards.tracing",
            "torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr",
            "torch.fx._lazy_graph_module._use_lazy_graph_module",
        ),
        "tests/backend/torch/compiler/test_stored_graphs.py",
    ),
    **dict.fromkeys(
        (
            "torch._inductor.ir.ConcatKernel", "torch._inductor.codegen.cpp.CppKernelProxy",
            "torch._inductor.lowering.clone", "torch._inductor.pattern_matcher.ReplacementPatternEntry",
        ),
        "tests/backend/torch/compiler/test_fences.py",
    ),
    **dict.fromkeys(
        (
            "torch.ops.mkldnn._convolution_pointwise.default", "torch.ops.mkldnn._convolution_pointwise.binary",
            "torch.ops.mkldnn._reorder_convolution_weight.default",
        ),
        "tests/backend/torch/compiler/passes/test_constant_folding.py",
    ),
    **dict.fromkeys(
        (
            "torch._subclasses.fake_tensor.DataDependentOutputException",
            "torch._subclasses.fake_tensor.DynamicOutputShapeException",
        ),
        "test_errors_that_are_missing",
    ),
}  # fmt: skip


def on(B: Any, arrays: list[Any]) -> list[Any]:
    return [B.from_host(x, Int if x.dtype == np.int32 else Float, B.device()) for x in arrays]


def run(name: str, B: Any) -> list[Any]:
    work, arrays = WORKS[name]
    return [B.to_host(x) for x in work(B, *on(B, arrays))]


def compiled(name: str, B: Any) -> list[Any]:
    work, arrays = WORKS[name]
    program = B.compile(lambda _, given: work(B, *given), lambda: None)
    return [B.to_host(x) for x in program([], on(B, arrays))]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    return {name: run(name, NumPy()) for name in WORKS}


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")


def same(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_every_name_is_tested() -> None:
    needed = {name for name, part in compat.PRIVATE.items() if part.compiles}
    updates = {f"torch._fused_{name}_" for name in UPDATES}
    assert {*USES, *needed, *updates, *COMPILER, *ELSEWHERE} == compat.PRIVATE.keys()
    assert all(part.exists for part in compat.PRIVATE.values())
    assert {name for uses in USES.values() for name in uses} == WORKS.keys()


@pytest.mark.parametrize("name", USES)
def test_an_operation_without_its_kernel(name: str, expected: dict[str, list[Any]]) -> None:
    import_module("torch._dynamo.config")  # PyTorch's own compiler, loaded when something is traced, needs some of them
    with lacking(name):
        for work in USES[name]:
            same(run(work, Torch()), expected[work])
            if not name.startswith("torch._C."):  # PyTorch itself traces by these
                same(compiled(work, Torch()), expected[work])


@pytest.mark.parametrize("name", UPDATES)
def test_an_optimizer_without_its_kernel(name: str) -> None:
    with lacking(f"torch._fused_{name}_"):
        assert Torch().kernel(name, UPDATES[name]) is None
    assert Torch().kernel(name, UPDATES[name]) is not None


def test_without_bfloat16() -> None:
    with lacking("torch.ops.mkldnn._is_mkldnn_bf16_supported"):
        assert not compat.has_bfloat16()


@pytest.mark.parametrize("name", [name for name, part in compat.PRIVATE.items() if part.compiles])
def test_compiling_says_what_is_missing(name: str) -> None:
    layer = nn.Linear(3, 2, device=Torch().device()).init(0)
    x = px.ones((2, 3), device=Torch().device())
    sentence = (
        rf"PyTorch {re.escape(torch.__version__)} lacks `{re.escape(name)}`, which compiling needs; Phlox compiles on "
        rf"PyTorch 2\.11 to 2\.15 \(without compiling, everything runs\)"
    )
    with lacking(name):
        eager = layer(x).numpy()
        with pytest.raises(CompileError, match=sentence):
            px.compile(lambda layer, x: layer(x))(layer, x)
        with pytest.raises(CompileError, match=sentence):
            px.eval_shape(lambda layer, x: layer(x), layer, x)
    np.testing.assert_array_equal(layer(x).numpy(), eager)
    np.testing.assert_allclose(px.compile(lambda layer, x: layer(x))(layer, x).numpy(), eager, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(COMPILER))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_without_its_compiler_a_program_runs_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    x = px.ones((2, 3), device=Torch().device())
    said = f"runs its operations one by one: PyTorch .* lacks `{name}`"
    monkeypatch.setattr(compat.PRIVATE[name], "find", lambda: None)  # PyTorch itself traces by one of them
    with pytest.warns(RuntimeWarning, match=said):
        assert px.compile(lambda x: x + 1.0)(x).tolist() == (x + 1.0).tolist()


def test_errors_that_are_missing() -> None:
    import_module("torch._dynamo")  # which looks them up as it loads
    names = [name for name in ELSEWHERE if name.endswith("Exception")]
    with lacking(*names):
        assert compat.needs_value_errors() == ()
        with pytest.raises(CompileError):
            px.compile(lambda x: float(x.sum()))(px.ones((2,), device=Torch().device()))
    assert len(compat.needs_value_errors()) == 2


# --- all of them at once, from the start of a process

WITHOUT_ANY = """
import pytest, sys, torch
seen = set(sys.modules)
import phlox.backend
from phlox.backend import Autodiff, NumPy, Torch
assert not {name for name in {*sys.modules} - seen if name.startswith("torch._")}, "something private was imported"
from phlox.backend.torch import compat
assert not any({"exists", "value"} & vars(part).keys() for part in compat.PRIVATE.values()), "looked up too early"
from tests.backend.torch.lacking import lacking
import numpy as np
import phlox as px
from phlox import nn, optim

class Model(px.Module):
    def __init__(self, device):
        self.conv = nn.Conv2d(2, 4, 3, padding=1, device=device)
        self.batch_norm = nn.BatchNorm(4, device=device)
        self.pool = nn.MaxPool2d(2)
        self.embedding = nn.Embedding(10, 32, device=device)
        self.norm = nn.LayerNorm(32, device=device)
        self.attention = nn.MultiHeadAttention(32, 4, device=device)
        self.lstm = nn.Lstm(32, 32, device=device)
        self.wide = nn.Linear(32, 4096, device=device)
        self.head = nn.Linear(4096, 5, device=device)

    def __call__(self, images, ids):
        found = self.pool(self.batch_norm(self.conv(images)).relu()).mean()
        x = self.norm(self.embedding(ids))
        x = self.lstm(self.attention(x))[0]
        return self.head(px.functional.gelu(self.wide(x))) + found

def train(backend, config):
    device = Autodiff(backend).device()
    numbers = np.random.default_rng(0)
    model, optimizer, losses = Model(device).init(0), config.init(), []
    images = px.tensor(numbers.normal(size=(3, 2, 6, 6)).astype(np.float32), device=device)
    ids = px.tensor(numbers.integers(0, 10, (3, 4)).astype(np.int32), device=device)
    targets = px.tensor(numbers.integers(0, 5, 12).astype(np.int32), device=device)
    for _ in range(3):
        logits = model(images, ids)
        loss = nn.cross_entropy_loss(logits.reshape(12, 5), targets) + logits.softmax(-1).square().mean()
        model = optimizer.step(0.01, model, optim.GradientsParams.from_grads(loss.backward(), model))
        losses.append(loss.item())
    return losses

with lacking(*compat.PRIVATE):
    for config in (optim.AdamWConfig(), optim.SgdConfig(momentum=0.9), optim.AdagradConfig()):
        found, expected = train(Torch(), config), train(NumPy(), config)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
print("trained")
"""


@pytest.mark.full
def test_eager_training_needs_none_of_them() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE.parent}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ANY], capture_output=True, text=True, env=environment, check=False, cwd=ROOT
    )
    assert done.stdout.strip() == "trained", done.stderr


# --- nobody else names them

PRIVATE = re.compile(
    r"\btorch\s*\.\s*(\w+\s*\.\s*)*_[a-z]|\baten\s*\.\s*_|\bmkldnn\s*\.\s*_|\b_C\b|\bmake_fx\b|\bFakeTensor\w*|\b_inductor\b"
    r"|\bfake_tensor\b|\bno_dispatch\b|_disable_current_modes|\b_version\b|\._schema\b|\b_use_count\b|\b_cdata\b"
    r"|\bmkldnn_rnn_layer|\bnative_(layer|group|batch)_norm|\b_native_batch_norm|\b_fused_\w+_\b|_softmax_backward_data"
    r"|\b_ctc_loss|_scaled_dot_product|peek_interpreter_stack|\b\w+_dispatch_mode\b|aten\.\w+_backward\b|\bgetrefcount\b"
)
ALLOWED = {
    "backend/torch/compat.py": "it is the place",
    "record/formats/pytorch/globals.py": "the names stand in files that PyTorch has written",
}


def code_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file without comments and documentation."""
    for token in tokenize.tokenize(BytesIO(path.read_bytes()).readline):
        if token.type not in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def test_only_compat_names_private_parts_of_pytorch() -> None:
    found = list[str]()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in ALLOWED or "torch" not in path.read_text("utf-8"):
            continue
        lines: dict[int, str] = {}
        for line, text in code_of(path):
            before = lines.get(line, "")
            apart = " " if before and text not in ".," and not before.endswith(".") else ""
            lines[line] = before + apart + text
        found += [f"{name}:{line}: {text}" for line, text in lines.items() if PRIVATE.search(text)]
    assert not found, "\n".join(found)
