"""The reproducible mode: a row alone, in any batch, eager and compiled, and with any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import UnsupportedError
from phlox.models import GptConfig

BATCHES = (1, 2, 3, 7, 33)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        [
            nn.Linear(50, 300),
            nn.Gelu(),
            nn.LayerNorm(300),
            nn.Linear(300, 37),
            nn.Silu(),
            nn.RmsNorm(37),
            nn.Linear(37, 5),
        ]
    )


def cnn() -> nn.Sequential:
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2)
    return nn.Sequential([first, nn.Relu(), nn.MaxPool2d(2), second, nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 10)])


def gpt() -> Any:
    return GptConfig(vocabulary=65, context=24, d_model=48, n_layers=2, n_heads=4).init()


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    "mlp": (mlp, (50,), 0),
    "cnn": (cnn, (3, 16, 16), 0),
    "gpt": (gpt, (17,), 65),
}
"""For each model: how it is made, the shape of a row, and the number of its tokens (0: the rows are floats)."""

ENGINES: dict[str, Callable[[], Backend]] = {"numpy": NumPy, "torch": Torch, "jax": Jax}


def rows(
    shape: tuple[int, ...], tokens: int, sizes: tuple[int, ...] = BATCHES
) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Batches of these sizes, all with one and the same row, and its position in each."""
    rng = np.random.default_rng(0)

    def draw(*sizes: int) -> np.ndarray[Any, Any]:
        return rng.integers(0, tokens, sizes, np.int32) if tokens else rng.standard_normal(sizes).astype(np.float32)

    row, batches = draw(*shape), []
    for size in sizes:
        batch = draw(size, *shape)
        batch[size // 2] = row
        batches.append((size // 2, batch))
    return batches


def results(fn: Callable[[Any], Any], batches: list[tuple[int, np.ndarray[Any, Any]]], backend: Backend) -> list[bytes]:
    """The bytes of the result for the row that all batches share."""
    return [fn(px.tensor(batch, device=backend)).numpy()[position].tobytes() for position, batch in batches]


CASES = [
    pytest.param(model, engine, compiled, marks=pytest.mark.full if model == "gpt" and compiled else ())
    for model in MODELS
    for engine in ENGINES
    for compiled in (False, True)
    if (engine, compiled) not in (("numpy", True), ("jax", False))  # NumPy has no compiler; for eager JAX see below
]


@pytest.mark.parametrize(("name", "engine", "compiled"), CASES)
def test_a_row_alone_is_the_row_in_any_batch(name: str, engine: str, compiled: bool) -> None:
    make, shape, tokens = MODELS[name]
    backend = ENGINES[engine]()
    px.random.seed(0)
    model = make().to_device(backend.device())
    fn = px.compile(model) if compiled else model
    batches = rows(shape, tokens, (1, 2, 3, 33) if engine == "jax" and name != "mlp" else BATCHES)
    with px.reproducible():
        first, *others = results(fn, batches, backend)
        if engine == "torch" and compiled:
            assert results(model, batches[:1], backend) == [first]  # eager and compiled are the same, too
    assert all(other == first for other in others)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_jax_is_the_same_eager_and_compiled(name: str) -> None:
    make, shape, tokens = MODELS[name]
    px.random.seed(0)
    model = make().to_device(Jax().device())
    batches = rows(shape, tokens, (1, 2, 70))
    with px.reproducible():
        assert len({*results(model, batches, Jax()), *results(px.compile(model), batches, Jax())}) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_outside_of_the_mode_an_engine_chooses_its_kernel_by_the_number_of_rows(engine: str) -> None:
    """The control: if it fails on some processor, that engine is the same there without the mode."""
    backend = ENGINES[engine]()
    weight = px.tensor(np.random.default_rng(1).standard_normal((768, 768)), device=backend)
    batches = rows((768,), 0)
    with px.reproducible(False):
        fast = set(results(lambda x: x @ weight, batches, backend))
    with px.reproducible():
        assert len({*results(lambda x: x @ weight, batches, backend)}) == 1
    if len(fast) == 1:
        pytest.skip(f"{backend!r} does not vary on this processor")


OPERATIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "product of rows in tiles": (lambda x: x @ px.ones((600, 20), device=x.device) * 0.1, (5, 600)),
    "product of each row": (lambda x: x @ x.permute_dims((0, 2, 1)), (5, 60)),
    "sum": (lambda x: x.sum((1,)), (1000,)),
    "sum of the middle axis": (lambda x: x.sum((1,)), (50, 33)),
    "mean of two axes": (lambda x: x.mean((1, 3)), (5, 6, 7)),
    "var": (lambda x: x.var((1,)), (300,)),
    "softmax": (lambda x: px.functional.softmax(x, 1), (101,)),
    "log_softmax": (lambda x: px.functional.log_softmax(x, 1), (5000,)),
    "sigmoid": (lambda x: px.functional.sigmoid(x), (7,)),
    "silu": (lambda x: px.functional.silu(x), (33,)),
    "mish": (lambda x: px.functional.mish(x), (33,)),
    "softplus": (lambda x: px.functional.softplus(x), (33,)),
    "gelu": (lambda x: px.functional.gelu(x), (33,)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_a_row_do_not_depend_on_its_place(name: str) -> None:
    fn, shape = OPERATIONS[name]
    with px.reproducible():
        for backend in (NumPy(), Torch(), Torch(float="bf16")):
            found = results(fn, rows(shape, 0), backend)
            assert len(set(found)) == 1, backend


def test_sums_have_the_same_bits_on_every_engine() -> None:
    x = np.random.default_rng(0).standard_normal((3, 777)).astype(np.float32)
    with px.reproducible():
        assert len({px.tensor(x, device=make()).sum((1,)).numpy().tobytes() for make in ENGINES.values()}) == 1
    exact = x.astype(np.float64).sum(1)
    with px.reproducible():
        assert np.allclose(px.tensor(x).sum((1,)).numpy(), exact, rtol=1e-6)


@pytest.mark.parametrize("engine", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)])
def test_results_and_gradients_are_right(engine: str) -> None:
    """Within rounding of those outside, also if the backward pass runs outside of the mode."""
    backend = ENGINES[engine]()
    px.random.seed(0)
    model = mlp().to_device(backend.device()).train()
    x = px.tensor(rows((50,), 0)[-1][1], device=backend)

    def gradients(forward: bool, backward: bool) -> list[np.ndarray[Any, Any]]:
        with px.reproducible(forward):
            loss = model(x).square().mean()
        with px.reproducible(backward):
            grads = loss.backward()
        return [gradient.numpy() for p in model.params() if (gradient := p.val().grad(grads)) is not None]

    fast, steady, mixed = gradients(False, False), gradients(True, True), gradients(True, False)
    for expected, *found in zip(fast, steady, mixed, strict=True):
        for other in found:
            assert np.allclose(expected, other, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_row_does_not_depend_on_the_batch() -> None:
    px.random.seed(0)
    for backend in (NumPy(), Torch(), Jax(), NumPy(float="f64"), Torch(float="bf16")):
        model = mlp().to_device(backend.device()).train()
        with px.reproducible():
            found: list[bytes] = []
            for position, batch in rows((50,), 0):
                x = px.tensor(batch, device=Autodiff(backend).device()).require_grad()
                gradient = x.grad(model(x).square().sum().backward())
                assert gradient is not None
                found.append(gradient.numpy()[position].tobytes())
        assert len(set(found)) == 1


def test_the_mode_is_of_its_thread_and_ends_with_its_scope() -> None:
    from phlox.backend.reproducible import is_reproducible

    seen: list[bool] = []
    with px.reproducible():
        thread = threading.Thread(target=lambda: seen.append(is_reproducible()))
        thread.start()
        thread.join()
        with px.reproducible(False):
            seen.append(is_reproducible())
        seen.append(is_reproducible())
    assert [*seen, is_reproducible()] == [False, False, True, False]

    function = px.reproducible()(is_reproducible)
    assert [is_reproducible(), function(), is_reproducible()] == [False, True, False]
    px.reproducible(True)
    seen = [is_reproducible()]
    px.reproducible(False)
    assert [*seen, is_reproducible()] == [True, False]


def test_a_compiled_function_has_a_program_for_each_mode() -> None:
    fn = px.compile(lambda x: px.functional.softmax(x, 1))
    x = px.ones((2, 3), device=Torch())
    fn(x)
    with px.reproducible(), px.debug.explain_recompiles() as reasons:
        fn(x)
        fn(x)
    fn(x)
    assert fn.programs == fn.traces == 2
    assert len(reasons) == 1


def test_arrays_on_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Torch, "is_on_processor", lambda self, x: False)
    with px.reproducible(), pytest.raises(UnsupportedError, match="on a CPU"):
        px.ones((2, 3), device=Torch()).sum()


def test_experts_of_a_row_do_not_depend_on_the_rows_of_others() -> None:
    weight = px.tensor(np.random.default_rng(1).standard_normal((3, 40, 20)))
    found = set[bytes]()
    with px.reproducible():
        for position, batch in rows((40,), 0):
            experts = px.tensor(np.arange(len(batch)) % 3).int()
            experts = px.where(px.tensor(np.arange(len(batch)) == position), px.tensor(1), experts)
            backend = weight.backend
            y = backend.expert_linear(px.tensor(batch).primitive, weight.primitive, experts.primitive)
            found.add(y[position].tobytes())
    assert len(found) == 1


_THREADS = """
import hashlib, sys
import numpy as np, phlox as px
from phlox.backend import load_backend
from tests.backend.test_reproducible import MODELS
backend = load_backend(sys.argv[1])()
if sys.argv[1] == "torch":
    import torch
    torch.set_num_threads(int(sys.argv[2]))
digest = hashlib.sha256()
for make, shape, tokens in MODELS.values():
    px.random.seed(0)
    model = make().to_device(backend.device()).train()
    rng = np.random.default_rng(0)
    x = rng.integers(0, tokens, (70, *shape), np.int32) if tokens else rng.standard_normal((70, *shape))
    loss = model(px.tensor(x, device=backend)).square().mean()
    grads = loss.backward()
    digest.update(loss.numpy().tobytes())
    for param in model.params():
        digest.update(param.val().grad(grads).numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_the_number_of_threads_changes_no_bit_of_results_and_gradients(engine: str) -> None:
    digests = set[str]()
    for threads in ("1", "2", "3"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PHLOX_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads), "PHLOX_REPRODUCIBLE": "1"}
        command = [sys.executable, "-c", _THREADS, engine, threads]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(digests) == 1
