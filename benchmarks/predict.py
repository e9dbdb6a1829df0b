# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""`python predict.py CONTESTANT FOLDER`: load the model and predict once; `first_prediction` starts and times it.

It prints as JSON when the prediction was there (of the monotonic clock, which all processes share), what it was, and
the largest resident size until then. A contestant imports what its user would import, and nothing is imported before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

SIZES = (784, 1024, 1024, 784)
"""The widths of the MLP, which has 2.7 million parameters."""


def with_phlox(folder: str) -> Any:
    """NumPy alone, from safetensors."""
    import numpy as np

    import phlox as px
    from phlox import nn
    from phlox.backend import NumPy

    class Mlp(px.Module):
        def __init__(self, device: px.Device) -> None:
            self.layers = [nn.Linear(a, b, device=device) for a, b in pairwise(SIZES)]

        def __call__(self, x: px.Tensor) -> px.Tensor:
            for layer in self.layers[:-1]:
                x = layer(x).relu()
            return self.layers[-1](x)

    device = NumPy().device()
    model = Mlp(device)
    model.load_record(px.record.load(f"{folder}/phlox.safetensors"))
    return model(px.tensor(np.ones((1, SIZES[0]), np.float32), device=device)).numpy()


def with_numpy(folder: str) -> Any:
    """By hand: the lower bound in Python."""
    import numpy as np
    from safetensors.numpy import load_file

    weights, x = load_file(f"{folder}/plain.safetensors"), np.ones((1, SIZES[0]), np.float32)
    for i in range(len(SIZES) - 1):
        x = x @ weights[f"{i}.weight"] + weights[f"{i}.bias"]
        x = np.maximum(x, 0.0) if i < len(SIZES) - 2 else x
    return x


def with_torch(folder: str) -> Any:
    """Eager, with memory-mapped weights; no initializer runs."""
    import torch

    with torch.device("meta"):
        layers: list[Any] = []
        for a, b in pairwise(SIZES):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
    model.load_state_dict(torch.load(f"{folder}/torch.pt", mmap=True, weights_only=True), assign=True)
    with torch.inference_mode():
        return model(torch.ones(1, SIZES[0])).numpy()


def with_jax(folder: str) -> Any:
    """Compiled, from safetensors."""
    import jax
    import jax.numpy as jnp
    from safetensors.flax import load_file

    def predict(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for i in range(len(SIZES) - 1):
            x = x @ weights[f"{i}.weight"] + weights[f"{i}.bias"]
            x = jax.nn.relu(x) if i < len(SIZES) - 2 else x
        return x

    return jax.device_get(jax.jit(predict)(load_file(f"{folder}/plain.safetensors"), jnp.ones((1, SIZES[0]))))


def with_keras(folder: str) -> Any:
    """Keras on JAX, from its own file."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras
    import numpy as np

    model: Any = keras.models.load_model(f"{folder}/model.keras", compile=False)
    return np.asarray(model(np.ones((1, SIZES[0]), np.float32)))


def with_onnxruntime(folder: str) -> Any:
    """A program that was compiled in advance, in C++."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.ones((1, SIZES[0]), np.float32)})[0]


CONTESTANTS: dict[str, Callable[[str], Any]] = {
    "phlox": with_phlox, "torch": with_torch, "jax": with_jax, "keras": with_keras, "onnxruntime": with_onnxruntime,
    "numpy": with_numpy,
}  # fmt: skip


def main() -> None:
    """See the module."""
    result = CONTESTANTS[sys.argv[1]](sys.argv[2])
    ready = time.monotonic()
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123  (pathlib is not small)
        status = dict(line.split(":", 1) for line in file)
    kib = {key: int(status[key].split()[0]) for key in ("VmHWM", "RssAnon")}
    print(f'{{"ready": {ready!r}, "kib": {kib["VmHWM"]}, "anon": {kib["RssAnon"]}, "sum": {float(result.sum())!r}}}')


if __name__ == "__main__":
    main()
