"""The key paths whose instructions are counted: what a user's loop goes through again and again.

Each is made once, small, since what the arrays hold makes no difference to Python; the engine is the subject only where
it is named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.backend import Autodiff, Backend
from phlox.models.gpt import GptConfig

Run = Callable[[], object]

ENGINES = {"NumPy": "NumPy", "PyTorch": "Torch", "JAX": "Jax"}
"""The backend's class, for what people call the engine."""
PACKAGES = {"NumPy": ("numpy",), "PyTorch": ("numpy", "torch"), "JAX": ("numpy", "jax")}
"""Those whose versions count."""
CHAIN = 50
STEPS = 16
GPT = GptConfig(vocabulary=64, context=32, n_layers=2, d_model=32, n_heads=4)


@dataclass(frozen=True)
class KeyPath:
    """A path: its name, the packages whose version its count depends on, and how it is made."""

    name: str
    needs: tuple[str, ...]
    make: Callable[[], Run]


def engine(name: str) -> Backend:
    """The backend on an engine, which is imported now."""
    return getattr(px.backend, ENGINES[name])()


def _matrix(backend: Backend, *shape: int) -> Any:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return px.tensor(values, device=backend)


def _add(backend: Backend) -> Run:
    a, b = _matrix(backend, 8, 8), _matrix(backend, 8, 8)
    return lambda: a + b


def _chain(backend: Backend) -> Run:
    x = _matrix(Autodiff(backend), 8, 8).require_grad()

    def run() -> object:
        y = x
        for _ in range(CHAIN // 2):
            y = (y * 0.9).tanh()
        return x.grad(y.sum().backward())

    return run


def _linear(backend: Backend) -> Run:
    layer, x = nn.Linear(8, 8, device=backend).init(0), _matrix(backend, 4, 8)
    return lambda: layer(x)


def _mlp(backend: Backend) -> Any:
    device = Autodiff(backend).device()
    return nn.Sequential([nn.Linear(8, 16, device=device), nn.Relu(), nn.Linear(16, 4, device=device)]).init(0)


def _mlp_loss(model: Any, x: Any, labels: Any) -> px.Tensor:
    return nn.cross_entropy_loss(model(x), labels)


def _mlp_batch(backend: Backend) -> tuple[Any, Any]:
    labels = np.random.default_rng(0).integers(0, 4, 4).astype(np.int32)
    return _matrix(Autodiff(backend), 4, 8), px.tensor(labels, device=Autodiff(backend))


def _gpt(backend: Backend) -> tuple[Any, Callable[[], px.Tensor]]:
    device = Autodiff(backend).device()
    model = GPT.init(device).init(0)
    tokens = np.random.default_rng(0).integers(0, GPT.vocabulary, (4, GPT.context + 1)).astype(np.int32)
    inputs, targets = (px.tensor(np.ascontiguousarray(x), device=device) for x in (tokens[:, :-1], tokens[:, 1:]))
    return model, lambda: model.loss(inputs, targets)


def _gpt_forward(backend: Backend) -> Run:
    return _gpt(backend)[1]


def _gpt_backward(backend: Backend) -> Run:
    _, loss = _gpt(backend)
    return lambda: loss().backward()


def _from_grads() -> Run:
    model, loss = _gpt(engine("NumPy"))
    grads = loss().backward()
    return lambda: optim.GradientsParams.from_grads(grads, model)


def _adamw(backend: Backend) -> Run:
    model, optimizer = _mlp(backend), optim.AdamWConfig().init()
    grads = optim.GradientsParams.from_grads(_mlp_loss(model, *_mlp_batch(backend)).backward(), model)
    return lambda: optimizer.step(1e-3, model, grads)


def train(model: Any, optimizer: Any, lr: float, x: Any, labels: Any) -> tuple[Any, px.Tensor]:
    """A step, as a user writes it."""
    loss = _mlp_loss(model, x, labels)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss


def _compiled() -> Run:
    step = px.compile(train, donate=("model", "optimizer"))
    held, optimizer = [_mlp(engine("JAX"))], optim.AdamWConfig().init()
    x, labels = _mlp_batch(engine("JAX"))

    def run() -> object:
        held[0], loss = step(held[0], optimizer, 1e-3, x, labels)
        return loss

    return run


def _compiled_prediction() -> Run:
    model, x = _mlp(engine("JAX")).valid(), _matrix(engine("JAX"), 4, 8)
    predict = px.compile(lambda model, x: model(x))
    return lambda: predict(model, x)


def _tree() -> Run:
    import jax

    model = GPT.init(engine("JAX").device()).init(0)

    def run() -> object:
        leaves, structure = jax.tree.flatten(model)
        return jax.tree.unflatten(structure, leaves).head.weight

    return run


def _fit(measured: dict[str, Any]) -> Run:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4 * STEPS, 8)).astype(np.float32), rng.integers(0, 4, 4 * STEPS).astype(np.int32)
    model = nn.Linear(8, 4, device=Autodiff(engine("NumPy")).device()).init(0)
    learner = px.train.Learner(model, optim.AdamWConfig(), 1e-3, loss=nn.cross_entropy_loss, metrics=measured)
    loader = px.data.Loader(rows, batch_size=4)
    return lambda: learner.fit(loader, epochs=1, progress=False)


def _in_a_folder(write: Callable[[Path], object]) -> Run:
    folder = tempfile.TemporaryDirectory(prefix="phlox-guard-")

    return lambda: write(Path(folder.name))


def _save_file() -> Run:
    model = _mlp(engine("NumPy"))
    return _in_a_folder(lambda folder: model.save(folder / "model.safetensors"))


def _export() -> Run:
    layer, x = nn.Linear(8, 4, device=engine("NumPy")).init(0), _matrix(engine("NumPy"), 2, 8)
    return _in_a_folder(lambda folder: px.export.onnx(layer, [x], folder / "layer.onnx"))


def _save() -> Run:
    from phlox.record import SafetensorsRecorder

    model, recorder = _mlp(engine("NumPy")), SafetensorsRecorder()
    return lambda: recorder.to_bytes(model.into_record())


def _load() -> Run:
    from phlox.record import SafetensorsRecorder

    model, recorder = _mlp(engine("NumPy")), SafetensorsRecorder()
    data = recorder.to_bytes(model.into_record())
    return lambda: model.load_record(recorder.from_bytes(data))


def _declared() -> Run:
    device = engine("NumPy").device()
    return lambda: GPT.init(device)


def _per_engine(name: str, make: Callable[[Backend], Run], *engines: str) -> list[KeyPath]:
    return [
        KeyPath(name.format(each), PACKAGES[each], lambda make=make, each=each: make(engine(each))) for each in engines
    ]


PATHS = (
    *_per_engine("a + b on {}", _add, "NumPy", "PyTorch", "JAX"),
    *_per_engine(f"chain of {CHAIN} operations, forward and backward, on {{}}", _chain, "NumPy", "PyTorch"),
    *_per_engine("Linear on {}", _linear, "NumPy", "PyTorch"),
    *_per_engine("tiny GPT on {}: forward", _gpt_forward, "NumPy", "PyTorch"),
    *_per_engine("tiny GPT on {}: forward and backward", _gpt_backward, "NumPy", "PyTorch"),
    KeyPath("GradientsParams.from_grads of a tiny GPT", ("numpy",), _from_grads),
    *_per_engine("AdamW step of a small MLP on {}", _adamw, "NumPy", "PyTorch"),
    KeyPath("warm call of a compiled step on JAX", ("numpy", "jax"), _compiled),
    KeyPath("warm call of a compiled prediction on JAX", ("numpy", "jax"), _compiled_prediction),
    KeyPath("a module through jax.tree.flatten and unflatten", ("numpy", "jax"), _tree),
    KeyPath(f"an epoch of {STEPS} steps of Learner.fit, a Linear on NumPy", ("numpy",), lambda: _fit({})),
    KeyPath(
        f"an epoch of {STEPS} steps of Learner.fit with an accuracy, a Linear on NumPy",
        ("numpy",),
        lambda: _fit({"accuracy": metrics.Accuracy()}),
    ),
    KeyPath("save a small MLP", ("numpy",), _save),
    KeyPath("save a small MLP as a file", ("numpy",), _save_file),
    KeyPath("export a Linear to ONNX", ("numpy", "onnx", "onnxruntime"), _export),
    KeyPath("load a small MLP", ("numpy",), _load),
    KeyPath("declare a GPT", ("numpy",), _declared),
)
