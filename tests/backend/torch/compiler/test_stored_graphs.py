"""Compiled graphs on disk, which later processes load."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import phlox as px  # noqa: E402
from phlox.backend import Torch  # noqa: E402
from phlox.backend.torch import compat  # noqa: E402
from phlox.backend.torch.compiler import stored_graphs  # noqa: E402
from phlox.backend.torch.compiler.codegen import VARIABLE as CODEGEN  # noqa: E402
from phlox.host.cache_folder import VARIABLE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
ROOT = Path(__file__).parents[4]
WEIGHT = torch.arange(12.0).reshape(4, 3) / 10.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path / "torch"


# --- the key


def traced(function: Callable[..., Any], *example: Any) -> Any:
    mode = compat.FAKE_TENSOR_MODE.value(allow_non_fake_inputs=True, shape_env=None)
    with torch.no_grad(), mode:
        return compat.trace_graph(function, [mode.from_tensor(x) for x in example])


def key(function: Callable[..., Any], *example: Any, **options: Any) -> str | None:
    text = stored_graphs._text_of(traced(function, *example), example, options)
    return None if text is None else stored_graphs.key_of_text(text)


X = torch.ones(5, 4)


def product(x: Any) -> list[Any]:
    return [x @ WEIGHT + 1.0]


@pytest.fixture
def base(folder: Path) -> str:
    found = key(product, X)
    assert found is not None
    return found


def test_an_equal_graph_has_the_same_key(base: str) -> None:
    weight = WEIGHT.clone()

    def renamed(anything: Any) -> list[Any]:
        return [torch.add(torch.mm(anything, weight), 1.0)]

    assert key(renamed, torch.zeros(5, 4)) == base


CHANGES: dict[str, Callable[[], str | None]] = {
    "constant": lambda: key(lambda x: [x @ (WEIGHT + 1e-6) + 1.0], X),
    "number": lambda: key(lambda x: [x @ WEIGHT + 1.0000000000000002], X),
    "integer": lambda: key(lambda x: [x @ WEIGHT + 1], X),
    "operation": lambda: key(lambda x: [x @ WEIGHT - 1.0], X),
    "shape": lambda: key(product, torch.ones(6, 4)),
    "dtype": lambda: key(lambda x: [x @ WEIGHT.double() + 1.0], X.double()),
    "layout": lambda: key(product, torch.ones(4, 5).T),
    "offset": lambda: key(product, torch.ones(6, 4)[1:]),
    "result": lambda: key(lambda x: [*product(x), x.sin()], X),
    "setting": lambda: key(product, X, emulate_precision_casts=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_graph_has_another_key(name: str, base: str) -> None:
    other = CHANGES[name]()
    assert other is not None
    assert other != base


def test_surroundings_are_in_the_key(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {base}
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys.add(str(key(product, X)))
    torch.set_num_threads(threads)
    for name, value in (("get_num_threads", lambda: 77), ("get_default_dtype", lambda: torch.float64)):
        with monkeypatch.context() as patch:
            patch.setattr(torch, name, value)
            keys.add(str(key(product, X)))
    for name, value in (("_process", lambda: "another processor"), ("processor", lambda: "another processor")):
        with monkeypatch.context() as patch:
            stored_graphs._process.cache_clear()
            patch.setattr(stored_graphs, name, value)
            keys.add(str(key(product, X)))
    stored_graphs._process.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(compat, "inductor_config", lambda: {"cpp.threads": 3})
        keys.add(str(key(product, X)))
    assert len(keys) == 7
    assert key(product, X) == base


def test_what_is_not_kept(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.autocast("cpu"):
        assert stored_graphs.key_of_text("x") is None
    assert stored_graphs._of_tensor(torch.ones(2, device="meta")) is None
    assert stored_graphs._of((1, object()), {}) is None
    monkeypatch.setenv(VARIABLE, "off")
    assert stored_graphs.key_of_text("x") is None


# --- what is kept of a program

INDUCTOR = """
import torch
from torch._inductor.lowering import unused
from torch._inductor.select_algorithm import extern_kernels
empty = torch.empty
async_compile = AsyncCompile()
kernel_0 = async_compile.cpp_pybinding(['float*'], '''text''')
async_compile.wait(globals())
del async_compile
class Runner:
    def call(self, args):
        extern_kernels.mm(*args)
        return kernel_0(empty(2))
runner = Runner()
call = runner.call
def benchmark():
    unused()
"""


def test_only_what_is_called_is_kept() -> None:
    import math

    kernels = type("kernels", (), {"mm": torch.mm})
    namespace = {"kernel_0": math.sin, "extern_kernels": kernels, "call": None}
    assert stored_graphs._program(INDUCTOR, {**namespace, "kernel_0": None}, {}) is None
    assert stored_graphs._program(INDUCTOR, namespace, {"empty": None}) is None
    found = stored_graphs._program(INDUCTOR, namespace, {})
    if getattr(math, "__file__", None):  # otherwise it is a part of Python
        assert found is not None
        source, libraries = found
        assert libraries == {"kernel_0": math.__file__}
        assert [line.split()[0] for line in source.splitlines() if line[:1].strip()] == [
            "import", "empty", "class", "runner", "call",
        ]  # fmt: skip
        other = stored_graphs._program(INDUCTOR, {**namespace, "extern_kernels": type("k", (), {"mm": abs})}, {})
        assert other is not None
        assert "import extern_kernels" in other[0]


# --- compiled programs


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one program was compiled."""
    path = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        patch.setenv(CODEGEN, "inductor")
        results["cold"] = computed()
    return path


results: dict[str, list[Any]] = {}
COUNT = np.arange(7, dtype=np.float32)


def step(x: px.Tensor) -> tuple[px.Tensor, px.Tensor, px.Tensor]:
    return (x.sin() * px.tensor(COUNT, device=x.device)).exp(), x, x.reshape((-1,))


def computed() -> list[Any]:
    x = px.tensor(np.linspace(-3.0, 3.0, 35, dtype=np.float32).reshape(5, 7), device=Torch().device())
    return [y.numpy() for y in px.compile(lambda x: step(x)[0])(x).split(1, 0)]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    original = compat.compile_with_output
    monkeypatch.setattr(compat, "compile_with_output", lambda *args: (found.append(args), original(*args))[1])
    return found


def test_a_kept_program_is_not_compiled(kept: Path, compilations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(kept))
    monkeypatch.setenv(CODEGEN, "inductor")
    assert len(list((kept / "torch").iterdir())) == 1
    found = computed()
    assert not compilations
    for a, b in zip(found, results["cold"], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_damaged_program_is_not_loaded(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(kept))
    (entry,) = (kept / "torch").iterdir()
    assert stored_graphs.load(entry.name) is not None
    files = {path.name: path.read_bytes() for path in entry.iterdir() if path.name != "digests"}
    for name, content in (("facts.json", b"{}"), ("program.py", b"raise OSError"), ("0.so", b"no library")):
        stored_graphs.FOLDER.store(name, {**files, name: content})  # its digests fit
        with caplog.at_level(logging.WARNING, "phlox.compile"):
            assert stored_graphs.load(name) is None
        assert "cannot be loaded" in caplog.records[-1].getMessage()
        assert not (kept / "torch" / name).exists()


# --- processes

TRAINING = """
import json, logging, os, sys
import numpy as np
import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch import compat

count = [0]
original = compat.compile_with_output
def counted(*args):
    count[0] += 1
    return original(*args)
compat.compile_with_output = counted

device = Autodiff(Torch()).device()
widths = [160] * 8
model = nn.Sequential(*[nn.Linear(160, 160) for _ in range(int(sys.argv[1]))]).init(3, device)
optimizer = optim.AdamWConfig(weight_decay=0.1).init()
x = px.tensor(np.random.default_rng(0).standard_normal((8, 160), dtype=np.float32), device=device)

def step(model, optimizer, lr, x):
    loss = (model(x) - x).square().mean()
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss

run = px.compile(step, donate=("model", "optimizer"))
losses = []
for lr in (1e-2, 1e-3, 1e-3):
    model, loss = run(model, optimizer, lr, x)
    losses.append(loss.item().hex())
digest = __import__("hashlib").sha256()
for param in model.params():
    digest.update(param.val().numpy().tobytes())
print(json.dumps({"count": count[0], "losses": losses, "digest": digest.hexdigest(),
    "heavy": "torch._inductor.select_algorithm" in sys.modules}))
"""


def train(cache: str, inductor: Path, layers: int = 8) -> subprocess.Popen[str]:
    environment = {
        **os.environ, CODEGEN: "inductor", VARIABLE: cache, "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }  # fmt: skip
    command = [sys.executable, "-c", TRAINING, str(layers)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(out)


@pytest.mark.full
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    inductor = tmp_path / "inductor"
    off = result(train("off", inductor))
    at_once = [train(str(tmp_path / "cache"), inductor) for _ in range(2)]
    cold = [result(process) for process in at_once]
    warm = result(train(str(tmp_path / "cache"), tmp_path / "other"))
    assert off["count"] == 0
    counts = [found["count"] for found in cold]
    assert max(counts) <= 2 <= sum(counts)  # the later one of the two may find what the other has stored meanwhile
    assert warm["count"] == 0
    assert not warm["heavy"]
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    for found in (*cold, warm):
        assert (found["losses"], found["digest"]) == (off["losses"], off["digest"])
    assert result(train(str(tmp_path / "cache"), inductor, 9))["count"] > 0
