"""Models that packages on PyPI ship, beside onnxruntime; those that are not installed are skipped.

Serves: src/phlox/interop/onnx/

`pip install --no-deps silero-vad rapidocr-onnxruntime swift-f0 basic-pitch magika` brings them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.interop.onnx import load

runtime: Any = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) * 0.3).astype(np.float32)


SOUND = {"input": floats(1, 512), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
FILES: dict[str, dict[str, Any]] = {
    "silero_vad/data/silero_vad.onnx": SOUND,
    "silero_vad/data/silero_vad_16k_op15.onnx": SOUND,
    "silero_vad/data/silero_vad_half.onnx": SOUND,
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": floats(1, 3, 48, 192)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"x": floats(1, 3, 48, 160)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"x": floats(1, 3, 64, 96)},
    "swift_f0/model.onnx": {
        "audio": floats(1, 4000), "fmin": np.array(46.0, np.float32), "fmax": np.array(2093.0, np.float32)
    },
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": {"serving_default_input_2:0": floats(1, 43844, 1)},
    "magika/models/standard_v3_3/model.onnx": {"bytes": RNG.integers(0, 255, (1, 2048)).astype(np.int32)},
}  # fmt: skip


def path_of(file: str) -> Path:
    package, _, rest = file.partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / rest
    if not path.is_file():
        pytest.skip(f"this version of {package} has no {rest}")
    return path


@pytest.mark.full
@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("file", FILES)
def test_beside_onnxruntime(file: str, device: str) -> None:
    if device == "jax" and file.startswith("basic_pitch"):
        pytest.skip("XLA takes minutes to compile convolutions with windows this long")
    path = path_of(file)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = FILES[file]
    if set(given) != {one.name for one in session.get_inputs()}:
        pytest.skip("this version takes other inputs")
    wanted = session.run(None, given)
    numbers = {name: one.item() if one.ndim == 0 else px.tensor(one, device=device) for name, one in given.items()}
    loaded = load(path, device=device)
    found = loaded(**numbers)
    results = list(found.values()) if len(wanted) > 1 else [found]
    for got, exact in zip(results, wanted, strict=True):
        scale = max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(got.numpy() / scale, exact / scale, atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("device", ["jax", "torch"])
def test_voice_activity_compiled_and_trained(device: str) -> None:
    path = path_of("silero_vad/data/silero_vad.onnx")
    loaded = load(path, device=device)
    x, state = (px.tensor(SOUND[name], device=device) for name in ("input", "state"))
    compiled = px.compile(lambda m, x, state: m(x, state, 16000)["output"])
    np.testing.assert_allclose(compiled(loaded, x, state).numpy(), loaded(x, state, 16000)["output"].numpy(), atol=1e-5)
    if device == "jax":
        trained = loaded.train()
        grads = trained(x, state, 16000)["output"].log().sum().backward()
        used = [param.val().grad(grads) for path, param in trained.named_params() if "then_branch" in path]
        assert used and all(grad is not None and np.isfinite(grad.numpy()).all() for grad in used)
