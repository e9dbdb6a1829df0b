"""What each pass and kernel of PyTorch's compiler is worth: the same compiled function with it, and without it.

Each is measured on the workload that needs it most. The steps of both are timed in turn, in one run. The first call
includes tracing and compiling.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from benchmarks.harness import SIZES, Ratio, measure
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.codegen import PASSES_VARIABLE
from phlox.models import GptConfig

Go = Callable[[], Any]
_rng = np.random.default_rng(0)
_SMALL = os.environ.get(SIZES) == "quick"


def _training(model: Any, loss: Callable[[Any], Any], optimizer: Any) -> Go:
    def step(model: Any, optimizer: Any, lr: float) -> tuple[Any, Any]:
        value = loss(model)
        grads = optim.GradientsParams.from_grads(value.backward(), model)
        return optimizer.step(lr, model, grads), value

    run, state = px.compile(step, donate=("model", "optimizer")), [model.train()]

    def go() -> float:
        state[0], value = run(state[0], optimizer, 1e-3)
        return value.item()

    return go


def _predicting(model: Any, *inputs: Any) -> Go:
    run, whole = px.compile(lambda model, *inputs: model(*inputs)), model.valid()
    return lambda: run(whole, *inputs).numpy()


def _floats(*shape: int) -> Any:
    return px.tensor(_rng.normal(size=shape).astype(np.float32), device=Torch())


def _gpt() -> Any:
    size = 64 if _SMALL else 256
    config = GptConfig(vocabulary=512, context=128, n_layers=2, d_model=size, n_heads=4, dropout=0.1)
    return config.init(Autodiff(Torch()).device()).init(seed=0)


def gpt_training() -> Go:
    """Two blocks of width 256, batches of 16 sequences of 128 tokens, dropout 0.1, AdamW."""
    tokens = px.tensor(_rng.integers(0, 512, (16, 128)), device=Torch())
    targets = px.tensor(_rng.integers(0, 512, (16, 128)), device=Torch())
    return _training(_gpt(), lambda model: model.loss(tokens, targets), optim.AdamWConfig().init())


def gpt_prediction() -> Go:
    """The logits of one sequence of 128 tokens."""
    return _predicting(_gpt(), px.tensor(_rng.integers(0, 512, (1, 128)), device=Torch()))


def _cnn() -> Any:
    layers: list[Any] = []
    for channels_in, channels in ((3, 64), (64, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(channels_in, channels, 3, padding=1), nn.BatchNorm(channels), nn.Relu()]
    layers += [nn.AvgPool2d(16), nn.Flatten(), nn.Linear(128 * 4, 10)]
    return nn.Sequential(layers).init(seed=0, device=Autodiff(Torch()).device())


def cnn_training() -> Go:
    """Four 3x3 convolutions of 64 to 128 channels on 16 images of 32x32 pixels, SGD with momentum."""
    images, labels = _floats(16, 3, 32, 32), px.tensor(_rng.integers(0, 10, 16), device=Torch())
    optimizer = optim.SgdConfig(momentum=0.9).init()
    return _training(_cnn(), lambda model: nn.cross_entropy_loss(model(images), labels), optimizer)


def cnn_prediction() -> Go:
    """The same network on one image."""
    return _predicting(_cnn(), _floats(1, 3, 32, 32))


class _Recurrent(px.Module):
    def __init__(self) -> None:
        self.lstm = nn.Lstm(128, 256)
        self.head = nn.Linear(256, 10)

    def __call__(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def lstm_training() -> Go:
    """An LSTM of 256 units on 32 sequences of 64 steps, Adam."""
    x, labels = _floats(32, 64, 128), px.tensor(_rng.integers(0, 10, 32), device=Torch())
    model = _Recurrent().init(seed=0, device=Autodiff(Torch()).device())
    return _training(model, lambda model: nn.cross_entropy_loss(model(x), labels), optim.AdamConfig().init())


def lstm_prediction() -> Go:
    """The same network on one sequence."""
    return _predicting(_Recurrent().init(seed=0, device=Torch().device()), _floats(1, 64, 128))


def mlp_prediction() -> Go:
    """Three linear layers of width 1024 on 16 rows."""
    layers = [nn.Linear(1024, 1024), nn.Relu(), nn.Linear(1024, 1024), nn.Relu(), nn.Linear(1024, 10)]
    return _predicting(nn.Sequential(layers).init(seed=0, device=Torch().device()), _floats(16, 1024))


BEST: dict[Callable[[], Go], list[str]] = {
    mlp_prediction: ["packed_gemm"],
    lstm_training: ["lstm"],
    lstm_prediction: ["lstm"],
    cnn_prediction: ["constant_folding", "winograd"],
    cnn_training: ["layout", "winograd", "fusion_hints"],
    gpt_prediction: ["attention", "packed_gemm"],
    gpt_training: [
        "gemm", "multi_tensor", "donation", "scalar_cse", "fusion_hints", "bernoulli", "embedding_grad", "attention",
    ],
}  # fmt: skip
"""By workload, the passes that are measured on it. (`decompositions` is there for accuracy, not for speed.)"""


def run() -> list[Ratio]:
    """For each pass: the time without it over the time with it, of a call and of the first call."""
    found: list[Ratio] = []
    for workload, passes in BEST.items():
        name = workload.__name__.replace("_", " ")
        runs: dict[str, Go] = {}
        first: dict[str, float] = {}
        for switch in ["", *[f"-{one}" for one in passes]]:
            os.environ[PASSES_VARIABLE] = switch
            go = runs[switch] = workload()
            begin = time.perf_counter()
            go()
            first[switch] = time.perf_counter() - begin
        os.environ.pop(PASSES_VARIABLE)
        times = measure(runs, rounds=3 if _SMALL else 15, seconds=0.05 if _SMALL else 0.3)
        for one in passes:
            ratios = [without / with_it for without, with_it in zip(times[f"-{one}"], times[""], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            with_it, without = (statistics.median(times[switch]) * 1e6 for switch in ("", f"-{one}"))
            found.append(Ratio(name, f"without {one}", "with it", without, with_it, middle, low, high))
            slow, quick = first[f"-{one}"], first[""]
            ratio = slow / quick
            row = Ratio(
                f"{name}, first call", f"without {one}", "with it", slow * 1e6, quick * 1e6, ratio, ratio, ratio
            )
            found.append(row)
    return found
