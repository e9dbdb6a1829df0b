"""What an installed Phlox must do with each of its extras: `make release` runs this in each of its environments.

    python -I release_smoke.py jax           EXTRA, or `bare` for NumPy alone

It needs nothing but Phlox and what the extra installs, and is run from a copy outside of the checkout, so that the
installed package is what is tried.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend
from phlox.data import Loader, load_digits
from phlox.errors import EngineNotInstalledError, ExtraNotInstalledError


def _step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss = nn.cross_entropy_loss(model(x), y)
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(0.01, model, grads), loss


def _network(device: Any = None) -> nn.Sequential:
    return nn.Sequential(
        [
            nn.Conv2d(1, 4, 3, padding=1, device=device), nn.Relu(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64, 10, device=device),
        ]
    )  # fmt: skip


def _losses(backend: Backend, *, compiled: bool, steps: int = 3) -> tuple[Any, list[float]]:
    """A classifier of digits after some steps, and its losses."""
    digits = load_digits()
    device = Autodiff(backend).device()
    x = px.tensor((digits.images[:64] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8), device=device)
    y = px.tensor(digits.labels[:64], device=device)
    model: Any = _network(device).init(seed=1).train()
    optimizer: Any = optim.AdamWConfig().init()
    take, found = px.compile(_step) if compiled else _step, list[float]()
    for _ in range(steps):
        model, loss = take(model, optimizer, x, y)
        found.append(loss.item())
    return model, found


def bare(folder: Path) -> None:
    """Train, save and load with NumPy; what is missing is named with its extra; the command works."""
    model, losses = _losses(px.backend.NumPy(), compiled=False)
    assert losses[-1] < losses[0], losses
    for name in ("model.safetensors", "model.msgpack", "model.phlox", "model.json.gz", "model.npz"):
        again = _network()
        again.load(model.save(folder / name))
        for (_, one), (_, other) in zip(model.named_params(), again.named_params(), strict=True):
            assert one.val().numpy().tobytes() == other.val().numpy().tobytes(), name
    if not metadata.packages_distributions().keys() & {"jax", "torch", "onnx", "matplotlib", "pyarrow", "fsspec"}:
        _refuses(lambda: px.backend.Jax(), "phlox[jax]")
        _refuses(lambda: px.backend.Torch(), "phlox[torch]")
        _refuses(lambda: px.export.onnx(model, [px.TensorSpec((1, 1, 8, 8))], folder / "m.onnx"), "phlox[onnx]")
        _refuses(lambda: px.distributed.save(model.into_record(), "memory://run"), "phlox[distributed]")
        _refuses(lambda: px.train.draw_schedule(optim.CosineAnnealingLr(0.1, num_iters=10), 10), "phlox[train]")
        (folder / "t.parquet").write_bytes(b"PAR1")
        _refuses(lambda: Loader(folder / "t.parquet", 1), "phlox[data]")
    _command("--help")
    assert metadata.version("phlox") in _command("--version")
    _command("demo", "--epochs", "1", "--out", str(folder / "demo"))
    _command("verify", str(folder / "demo"))


def jax(folder: Path) -> None:
    """A compiled step on JAX has the losses of NumPy; a program for JAX alone is written."""
    _engine(px.backend.Jax())
    report = px.export.stablehlo(
        _network(px.backend.Jax()).init(seed=0), [px.TensorSpec((1, 1, 8, 8))], folder / "m.hlo"
    )
    assert report.largest_difference < 1e-4, report


def torch(folder: Path) -> None:
    """A compiled step on PyTorch has the losses of NumPy; a program for PyTorch alone is written."""
    _engine(px.backend.Torch())
    model = _network(px.backend.Torch()).init(seed=0)
    report = px.export.torch(model, [px.TensorSpec((1, 1, 8, 8))], folder / "m.pt2")
    assert report.largest_difference < 1e-4, report


def train(folder: Path) -> None:
    """A `Learner` shows its training on a terminal, draws it, and writes its folder."""
    from phlox.train import Learner, RichProgress, draw_curves, draw_schedule

    digits = load_digits()
    rows = ((digits.images / 16.0).astype(np.float32).reshape(-1, 64), digits.labels)
    learner = Learner(nn.Linear(64, 10), optim.AdamWConfig(), 0.01, nn.cross_entropy_loss)
    loader = Loader(rows, batch_size=256, shuffle=True)
    learner.fit(loader, epochs=2, callbacks=[RichProgress()], folder=folder / "run")
    assert draw_curves(learner.history).startswith(b"\x89PNG")
    draw_schedule(optim.CosineAnnealingLr(0.1, num_iters=10), 10)
    assert (folder / "run").is_dir()


def data(folder: Path) -> None:
    """Parquet and images are read."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "c"]}), folder / "t.parquet")
    [batch] = list(Loader(folder / "t.parquet", 3))
    assert np.asarray(batch["x"]).tolist() == [1.0, 2.0, 3.0], batch
    for name in ("cats", "dogs"):
        (folder / "images" / name).mkdir(parents=True)
        Image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(folder / "images" / name / "1.png")
    [images] = list(Loader(folder / "images", 2))
    assert np.asarray(images["image"]).shape == (2, 3, 4, 5) and np.asarray(images["label"]).tolist() == [0, 1]


def distributed(folder: Path) -> None:
    """Checkpoints go to a file system that fsspec knows, and come back."""
    record = _network().init(seed=3).into_record()
    px.distributed.save(record, "memory://phlox/run", step=7)
    assert px.distributed.latest("memory://phlox/run") == 7
    again = px.distributed.load("memory://phlox/run")
    assert sorted(again.paths()) == sorted(record.paths())


def onnx(folder: Path) -> None:
    """A model is exported, run, compared, and read again."""
    model = _network().init(seed=0)
    report = px.export.onnx(model, [px.TensorSpec(("batch", 1, 8, 8))], folder / "m.onnx")
    assert report.largest_difference < 1e-4, report
    again = px.interop.onnx.load(folder / "m.onnx")
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    expected = model.valid()(px.tensor(x)).numpy()
    np.testing.assert_allclose(again(px.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def zstd(folder: Path) -> None:
    """A record is compressed by zstd."""
    model = _network().init(seed=0)
    path = model.save(folder / "m.safetensors.zst")
    assert Path(path).read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    _network().load(path)


def fast(folder: Path) -> None:
    """Checksums and casts are those of the libraries, with the same results."""
    import zlib

    import isal.isal_zlib

    from phlox.host import simd_casts
    from phlox.record.io import crc32

    assert crc32._fastest() is isal.isal_zlib.crc32
    assert crc32.crc32(b"phlox" * 1000) == zlib.crc32(b"phlox" * 1000)
    assert simd_casts.get_cast() is not None
    x = np.linspace(-3, 3, 100_001, dtype=np.float32)
    halved = px.tensor(x, device=px.backend.NumPy(float="f16")).numpy()
    np.testing.assert_array_equal(halved, x.astype(np.float16))


def text(folder: Path) -> None:
    """A chat is written by a template, and a tokenizer is read from its file."""
    from phlox.text import BytePairTokenizer, TokenizerFile

    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = BytePairTokenizer(special=["<end>"], end="<end>", chat_template=template)
    assert tokenizer.chat([{"role": "user", "content": "ab"}]) == [97, 98]
    tokenizer.save(folder)
    assert TokenizerFile(folder / "tokenizer.json").encode("ab") == [97, 98]


def serve(folder: Path) -> None:
    """A server answers over HTTP."""
    import json
    import queue
    import threading
    from urllib.request import Request, urlopen

    from phlox.models import GptConfig, LanguageModel
    from phlox.serve import Server, ServerOptions
    from phlox.text import BytePairTokenizer

    model = LanguageModel(GptConfig(n_layers=1, d_model=8, n_heads=2).init("numpy"), BytePairTokenizer())
    addresses: queue.Queue[str] = queue.Queue()
    server = Server(model, ServerOptions(port=0))
    threading.Thread(target=server.run, args=(addresses.put,), daemon=True).start()
    body = json.dumps({"prompt": "ab", "max_tokens": 3, "ignore_eos": True}).encode()
    url = f"{addresses.get(timeout=60)}/v1/completions"
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3


def grammar(folder: Path) -> None:
    """A grammar allows what fits its schema."""
    from phlox.models.generation.grammar import Grammar
    from phlox.text import BytePairTokenizer

    state = Grammar.json({"const": 7}).matcher(BytePairTokenizer(), 256, frozenset())
    assert state.allowed().nonzero()[0].tolist() == [ord("7")]


EACH: dict[str, Callable[[Path], None]] = {
    "jax": jax, "torch": torch, "train": train, "data": data, "distributed": distributed, "onnx": onnx, "zstd": zstd,
    "fast": fast, "text": text, "serve": serve, "grammar": grammar,
}  # fmt: skip


def everything(folder: Path) -> None:
    """All of them in one process."""
    for name, check in EACH.items():
        (folder / name).mkdir()
        check(folder / name)


CHECKS = {"bare": bare, **EACH, "all": everything}


def _engine(backend: Backend) -> None:
    expected = _losses(px.backend.NumPy(), compiled=False)[1]
    for compiled in (False, True):
        np.testing.assert_allclose(_losses(backend, compiled=compiled)[1], expected, rtol=1e-4)


def _refuses(call: Callable[[], object], names: str) -> None:
    try:
        call()
    except (EngineNotInstalledError, ExtraNotInstalledError) as error:
        assert f"pip install '{names}'" in str(error), error
    else:
        raise AssertionError(f"nothing asked for {names}")


def _command(*arguments: str) -> str:
    """What `phlox arguments` prints; by the command that the wheel installs."""
    command = shutil.which("phlox", path=str(Path(sys.executable).parent))
    assert command is not None, "the wheel installs no command `phlox`"
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"phlox {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def main() -> None:
    """Try one extra."""
    [name] = sys.argv[1:]
    where = Path(px.__file__).resolve()
    assert where.is_relative_to(Path(sys.prefix).resolve()), f"{where} is not what was installed"
    with tempfile.TemporaryDirectory() as folder:
        CHECKS[name](Path(folder))
    print(f"{name}: ok, phlox {px.__version__}")


if __name__ == "__main__":
    main()
