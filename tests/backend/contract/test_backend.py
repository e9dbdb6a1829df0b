"""Backends as values and as a contract: names, precision, what is missing, and what a third party has to write.

Serves: phlox/backend/contract/{engine,arrays,compiling,taping,tracing}.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox.backend import (
    Autodiff,
    EngineBackend,
    Jax,
    NumPy,
    Torch,
    backend_by_name,
    backend_names,
    load_backend,
    register_backend,
    registry,
)
from phlox.backend.contract.catalogue import DERIVED
from phlox.errors import BackendError, DeviceError, RangeError
from tests.backend.plain import REQUIRED, Plain

ENGINES = [NumPy, Jax, Torch]
EVERY = [
    engine(float=element) for engine in ENGINES for element in ("f64", "f32", "bf16", "f16") if element in engine.floats
]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_required_operation_is_there(engine: Any) -> None:
    backend = engine()
    assert [name for name in sorted(REQUIRED) if not callable(getattr(backend, name, None))] == []
    assert [name for name in sorted(REQUIRED) if not callable(getattr(Autodiff(backend), name, None))] == []


def test_a_third_party_writes_what_is_required_and_no_more() -> None:
    assert set(DERIVED).isdisjoint(vars(Plain))
    x = px.tensor([[1.0, 2.0]], device=Autodiff(Plain())).require_grad()
    found = x.grad(x.softmax().gelu().var().backward())
    assert found is not None and found.backend is Plain() and repr(Plain(float="f64")) == "Plain(float='f64')"


def test_backends_are_interned_by_value() -> None:
    assert NumPy() is NumPy(float="f32", int="i32") and NumPy() is not NumPy(float="f64")
    assert Autodiff(NumPy()) is Autodiff(NumPy()) and Autodiff(NumPy()).inner is NumPy()
    assert NumPy() != Plain() and len({NumPy(), NumPy(), Autodiff(NumPy()), NumPy(int="i64")}) == 3


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(registry._BACKENDS)
    register_backend("plain", "tests.backend.plain:Plain")
    yield
    registry._BACKENDS.clear()
    registry._BACKENDS.update(before)


@pytest.mark.usefixtures("registered")
def test_a_registered_backend_is_known_by_name() -> None:
    assert backend_names() == ["jax", "numpy", "plain", "torch"]
    assert load_backend("plain") is Plain and backend_by_name("plain") is Plain()
    assert px.ones((2,), device="plain:cpu").backend is Plain()
    with pytest.raises(DeviceError, match="did you mean 'plain'"):
        px.ones((2,), device="plane")


def test_what_a_backend_lacks_it_says_by_name() -> None:
    class Poor(EngineBackend):
        name = "poor"
        device = Plain.device
        device_of = Plain.device_of
        from_host = Plain.from_host
        shape: Any = Plain.shape

    x = px.tensor([1.0], device=Poor())
    for backend, y in ((Poor(), x), (Autodiff(Poor()), px.Tensor.from_inner(x))):
        with pytest.raises(BackendError, match=r"does not support `float_erf`"):
            y.erf()
        with pytest.raises(BackendError, match=r"Poor\(\).*does not support `float_exp`"):
            backend.float_exp(x.primitive)
    assert not hasattr(NumPy(), "__nonsense__") and not hasattr(NumPy(), "nonsense")


# --- element types


@pytest.mark.parametrize("backend", EVERY, ids=repr)
def test_operations_keep_the_element_type(backend: Any) -> None:
    x = px.tensor([[1.0, 2.0], [3.0, 4.0]], device=backend)
    i = px.tensor([[1, 2], [3, 4]], device=backend)
    wanted = backend.host_float_dtype
    results = [
        x, x + 1, 2.0 * x, x / 3, x**2, x**0.5, x @ x, x.sum(), x.mean(), x.var(), x.prod(), x.cumsum(0), x.erf(),
        x.exp(), x.sigmoid(), x.softmax(), x.gelu(), x.logsumexp(), i.float(), (x > 2).float(), px.where(x > 2, x, 0),
        px.functional.linear(x, x), px.functional.layer_norm(x), px.random.normal((3,), 1.0, 2.0, device=backend),
        px.random.uniform((2,), device=backend), px.zeros_like(x), px.eye(2, device=backend), x.maximum(2),
        x.pad(((0, 1), (0, 0))), x.clip(0, 1),
    ]  # fmt: skip
    assert [str(y.numpy().dtype) for y in results if y.numpy().dtype != wanted] == []
    whole = [i, i + 1, i // 2, i.sum(), i.prod(), i.cumsum(0), x.argmax(), x.int(), (x > 2).int(), i.max(), i % 3, i**2]
    assert [str(y.numpy().dtype) for y in whole if y.numpy().dtype != np.int32] == []
    tape = px.tensor([[1.0, 2.0], [3.0, 4.0]], device=Autodiff(backend)).require_grad()
    found = tape.grad(((tape @ tape).gelu() * 0.5 + tape.softmax() / 3.0).mean().backward())
    assert found is not None and found.numpy().dtype == wanted and np.isfinite(found.numpy().astype(np.float64)).all()


@pytest.mark.parametrize("backend", [b for b in EVERY if b.float_element in ("f16", "bf16")], ids=repr)
def test_narrow_floats_are_near(backend: Any) -> None:
    values = np.linspace(-2.0, 2.0, 12).reshape(3, 4)
    x = px.tensor(values, device=backend)
    rounded = x.numpy().astype(np.float64)
    rtol = 2e-2 if backend.float_element == "bf16" else 2e-3
    e = np.exp(rounded)
    np.testing.assert_allclose(
        x.softmax().numpy().astype(float), e / e.sum(-1, keepdims=True), rtol=rtol, atol=rtol / 4
    )
    np.testing.assert_allclose((x @ x.T).numpy().astype(float), rounded @ rounded.T, rtol=rtol, atol=4 * rtol)
    ones = px.ones((1000,), device=backend)
    assert ones.sum().item() == 1000.0  # added up in the narrow type itself, it would stop at 256 or 2048


def test_bfloat16_of_numpy_is_taken() -> None:
    values = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    for backend in (NumPy(), Jax(float="bf16"), Torch(float="bf16"), Torch()):
        x = px.tensor(values, device=backend)
        assert x.kind is px.Float and x.tolist() == [1.5, -2.25]


@pytest.mark.parametrize("backend", [Torch(float="f16"), Jax(float="f16")], ids=repr)
def test_narrow_floats_refuse_what_does_not_fit(backend: Any) -> None:
    with pytest.raises(RangeError, match=r"70000\.0.*float16"):
        px.tensor([70000.0], device=backend)
    with pytest.raises(RangeError, match="float16"):
        px.full((2,), 1e6, device=backend)


def test_wide_integers() -> None:
    for backend in (NumPy(int="i64"), Torch(int="i64")):
        i = px.tensor([2**40, 3], device=backend)
        assert (i * 2).tolist() == [2**41, 6] and i.sum().item() == 2**40 + 3 and i.numpy().dtype == np.int64
        assert px.tensor([5.0], device=backend).argmax().numpy().dtype == np.int64
        assert px.tensor([1e12], device=backend).int().numpy().dtype == np.int64


def test_memory_is_not_shared_with_the_caller() -> None:
    for backend in (Jax(), Torch()):
        values = np.ones(3, np.float32)
        x = px.tensor(values, device=backend)
        values[0] = 5.0
        assert x.tolist() == [1.0, 1.0, 1.0], backend
