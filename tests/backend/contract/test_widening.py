"""Every engine at every precision: element types, one rounding where it matters, 64 bits without JAX's switch.

Serves: phlox/backend/jax/x64.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.contract.widening import COMPUTING
from phlox.errors import BackendError, RangeError
from phlox.models import DigitsConfig

ENGINES: list[Any] = [NumPy, Jax, Torch]
ELEMENTS: list[Any] = ["f64", "f32", "bf16", "f16"]
EVERY: list[Any] = [engine(float=element) for engine in ENGINES for element in ELEMENTS]
HALF: list[Any] = [backend for backend in EVERY if backend.float_element in ("bf16", "f16")]
WIDE_INTS: list[Any] = [engine(int="i64") for engine in ENGINES]


# --- half precision


@pytest.mark.parametrize("backend", HALF, ids=repr)
def test_sums_do_not_stick(backend: Any) -> None:
    """Added up in the type itself, ones stop at 256 or 2048."""
    ones = px.ones((4096,), device=backend)
    assert ones.sum().item() == ones.cumsum(0).max().item() == 4096.0 and ones.mean().item() == 1.0
    assert (ones.reshape(1, -1) @ ones.reshape(-1, 1)).item() == 4096.0
    assert ones.logsumexp().item() == pytest.approx(1.0 + np.log(4096.0), rel=4e-3)
    spread = px.tensor(np.arange(8.0) + 100.0, device=backend)
    assert spread.var().item() == pytest.approx(5.25, rel=4e-3)


@pytest.mark.parametrize("backend", HALF, ids=repr)
def test_operations_round_once_or_so(backend: Any) -> None:
    """NumPy's once; other engines' own functions may take a rounding more."""
    values = np.linspace(-3.0, 3.0, 61)
    x = px.tensor(values, device=backend)
    held = x.numpy().astype(np.float64)
    got = x.softplus().numpy().astype(np.float64)
    eps = 2.0 ** (-8 if backend.float_element == "bf16" else -11)
    most = 1.01 if backend.name == "numpy" else 4.0
    assert (np.abs(got - np.log1p(np.exp(held))) <= most * eps * np.abs(got)).all()


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_numbers_are_not_rounded_before_they_are_used(element: Any) -> None:
    """1000 * 1.001 at bfloat16 is 1000, but that of a 1.001 rounded first is another."""
    for engine in (NumPy, Torch):
        x = px.tensor([257.0 if element == "f16" else 258.0], device=engine(float=element))
        wide = np.float32(x.item()) * np.float32(1.001)
        assert (x * 1.001).item() == float(wide.astype(x.numpy().dtype)), engine


def test_numpy_computes_nothing_at_half_precision() -> None:
    backend = NumPy(float="bf16")
    missing = [name for name in COMPUTING if not hasattr(vars(backend).get(name), "widened")]
    assert missing == []
    x = px.tensor([[1.0, 2.0]], device=backend)
    assert x.reshape(2).numpy().base is not None and x[0].numpy().dtype == ml_dtypes.bfloat16  # moves stay narrow


@pytest.mark.parametrize("backend", HALF, ids=repr)
def test_what_is_saved_for_the_way_back_holds_no_wide_operand(backend: Any) -> None:
    x, w = px.ones((4, 3), device=backend), px.ones((3, 2), device=backend)
    y, saved = backend.linear_forward(x.primitive, w.primitive, None)
    assert saved[0] is x.primitive and saved[1] is w.primitive and backend.to_host(y).dtype == backend.host_float_dtype


# --- full precision and back


@pytest.mark.parametrize("backend", EVERY, ids=repr)
def test_to_full_precision_and_back(backend: Any) -> None:
    values = [0.1, 2.0, 300.0]
    x = px.tensor(values, device=backend)
    wide = x.to_full_precision()
    half = backend.float_element in ("bf16", "f16")
    assert (wide is x) == (not half) and wide.backend.float_element == ("f32" if half else backend.float_element)
    assert wide.backend.name == backend.name and wide.device.name == x.device.name and wide.tolist() == x.tolist()
    back = (wide * wide).from_full_precision(x)
    assert back.backend is backend and back.tolist() == wide.square().from_full_precision(backend).tolist()
    if backend.float_element == "f16":
        assert back[-1].item() == np.inf, "rounds as arithmetic does"
    tape = Autodiff(backend)
    leaf = px.tensor([1.0, 2.0], device=tape).require_grad()
    inside = leaf.to_full_precision()
    assert inside.is_require_grad() and inside.backend.differentiates
    gradient = leaf.grad((inside * inside).sum().from_full_precision(leaf).backward())
    assert gradient is not None and gradient.backend is backend and gradient.tolist() == [2.0, 4.0]


def test_the_way_back_leads_to_the_same_engine() -> None:
    with pytest.raises(BackendError, match=r"from_full_precision: Torch\(float='bf16'\) is not NumPy\(\) at another"):
        px.ones((2,)).from_full_precision(Torch(float="bf16"))
    assert px.arange(3, device=Torch(float="bf16")).to_full_precision().kind is px.Int


# --- between precisions


@pytest.mark.parametrize("source", EVERY, ids=repr)
def test_to_any_other_precision_and_engine(source: Any) -> None:
    x = px.tensor([[1.5, -2.25], [0.0, 4.0]], device=source)
    for target in EVERY:
        y = x.to_device(target)
        assert y.backend is target and y.numpy().dtype == target.host_float_dtype and y.tolist() == x.tolist()
    assert px.tensor([True, False], device=source).to_device(Torch()).tolist() == [True, False]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_fit_is_refused(engine: Any) -> None:
    for narrow in (NumPy(float="f16"), Torch(float="f16"), Jax(float="f16")):
        with pytest.raises(RangeError, match="to_device: 70000.0 does not fit .*float16"):
            px.tensor([1.0, 70000.0], device=engine()).to_device(narrow)
        assert px.tensor([np.inf], device=engine()).to_device(narrow).item() == np.inf
    with pytest.raises(RangeError, match=r"to_device: 1e\+300 does not fit .*float32"):
        px.tensor([1e300], device=engine(float="f64")).to_device(engine())
    with pytest.raises(RangeError, match=f"to_device: {2**40} does not fit .*int32"):
        px.tensor([2**40], device=engine(int="i64")).to_device(engine())


@pytest.mark.parametrize("backend", WIDE_INTS, ids=repr)
def test_wide_integers_everywhere(backend: Any) -> None:
    i = px.tensor([2**40, 3, -7], device=backend)
    results = [i * 2, i.sum(), i.prod(), i.cumsum(0), i // 2, i.argmax(), i.sort(), px.arange(3, device=backend), -i,
               (i > 0).int(), px.tensor([1e12], device=backend).int(), i.take(px.tensor([0], device=backend)),
               px.random.integers((3,), 0, 9, device=backend)]  # fmt: skip
    assert [y for y in results if y.numpy().dtype != np.int64] == []
    assert results[0].tolist() == [2**41, 6, -14] and results[1].item() == 2**40 - 4
    assert i.float().numpy().dtype == backend.host_float_dtype == np.float32


# --- whole models


def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss = px.functional.cross_entropy(model(x), y)
    return optimizer.step(1e-2, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


@pytest.mark.covering(2)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("backend", EVERY, ids=repr)
def test_a_convolutional_model_takes_steps(backend: Any, compiled: bool) -> None:
    if compiled and not backend.compiles:
        pytest.skip("no compiler")
    if backend.compiles and not compiled and backend.float_element in ("f32", "f16"):
        pytest.skip("some of the little programs of eager operations suffice")
    device = Autodiff(backend).device()
    model = DigitsConfig(channels=(4, 8), dropout=0.1).init(device).init(seed=0)
    # At f16 the squares of small gradients are zero, and their means with them.
    optimizer = optim.AdamWConfig(epsilon=1e-3 if backend.float_element == "f16" else 1e-8).init()
    px.random.seed(1)
    x = px.random.normal((8, 1, 8, 8), device=device)
    y = px.tensor([0, 1, 2, 3, 4, 5, 6, 7], device=device)
    run = px.compile(step) if compiled else step
    losses: list[float] = []
    for _ in range(4):
        model, loss = run(model, optimizer, x, y)
        losses.append(loss.item())
    assert np.isfinite(losses).all() and losses[-1] < losses[0], losses
    assert all(p.val().numpy().dtype == backend.host_float_dtype for p in model.params() if p.kind is px.Float)


# --- JAX's 64 bits

ISOLATED = """
import threading
import jax, jax.numpy as jnp, numpy as np
import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax

seen = []
def watch():
    while not done.wait(0.002):
        seen.append(jnp.ones(3).dtype.name)
done = threading.Event()
thread = threading.Thread(target=watch, daemon=True)
thread.start()
wide = Jax(float="f64", int="i64")
x = px.random.normal((5, 3), device=Autodiff(wide))
model = nn.Linear(3, 2, device=Autodiff(wide).device()).init(seed=0)
run = px.compile(lambda model, x, rate: (model(x) * rate).square().mean())
for rate in (0.1, 0.2):
    eager = (model(x) * rate).square().mean()
    compiled = run(model, x, rate)
    assert abs(eager.item() - compiled.item()) < 1e-15 and compiled.numpy().dtype == np.float64
gradient = model.weight.val().grad(eager.backward())
assert gradient.numpy().dtype == np.float64
assert (px.tensor([1.0], device=wide) + 0.1).item() == 1.1 and px.arange(2, device=wide).numpy().dtype == np.int64
done.set()
thread.join()
assert set(seen) == {"float32"}, set(seen)
assert jax.config.jax_enable_x64 is False and jnp.ones(3).dtype == jnp.float32 and jnp.arange(3).dtype == jnp.int32
assert (px.ones((2,), device=Jax()) + 0.1).numpy().dtype == np.float32
plain = model.valid()
data = x.inner()
raw = jax.jit(lambda model, x: model(x))(plain, data)
assert raw.numpy().dtype == np.float64 and np.abs(raw.numpy() - plain(data).numpy()).max() < 1e-15
with jax.enable_x64(True):
    found = jax.grad(lambda model: (model(data) * rate).square().mean().primitive)(plain)
assert np.abs(found.weight.val().numpy() - gradient.numpy()).max() < 1e-15
assert jnp.ones(3).dtype == jnp.float32
"""


@pytest.mark.full
def test_jax_at_64_bits_leaves_the_rest_of_the_process_alone() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", ISOLATED],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
