# ruff: noqa: E501, S301
"""Arrays of other libraries in and out, pickles and copies.

Serves: phlox/backend/jax/arrays.py, phlox/backend/torch/arrays.py
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import BackendError, CompileError, DonatedError, KindError, RangeError

BACKENDS: list[Any] = [
    NumPy(), NumPy(float="f64"), NumPy(float="bf16"), NumPy(float="f16"), Torch(), Torch(float="bf16"), Jax(),
    Jax(float="bf16"), Jax(float="f64", int="i64"), Autodiff(Torch()),
]  # fmt: skip


def read_only() -> np.ndarray[Any, Any]:
    values = np.arange(4, dtype=np.float32)
    values.flags.writeable = False
    return values


SOURCES: dict[str, Callable[[], Any]] = {
    "numpy f32": lambda: np.arange(4, dtype=np.float32),
    "numpy f64": lambda: np.arange(4.0),
    "numpy f16": lambda: np.arange(4, dtype=np.float16),
    "numpy bf16": lambda: np.arange(4).astype(ml_dtypes.bfloat16),
    "numpy i64": lambda: np.arange(4),
    "numpy bool": lambda: np.array([True, False]),
    "numpy backwards": lambda: np.arange(4, dtype=np.float32)[::-1],
    "numpy read-only": read_only,
    "torch f32": lambda: torch.arange(4.0),
    "torch bf16": lambda: torch.arange(4.0).bfloat16(),
    "torch f16": lambda: torch.arange(4.0).half(),
    "torch i64": lambda: torch.arange(4),
    "torch u8": lambda: torch.arange(4, dtype=torch.uint8),
    "torch bool": lambda: torch.tensor([True, False]),
    "torch with a gradient": lambda: torch.arange(4.0, requires_grad=True),
    "torch transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "jax f32": lambda: jnp.arange(4.0),
    "jax bf16": lambda: jnp.arange(4, dtype=jnp.bfloat16),
    "jax i32": lambda: jnp.arange(4),
    "jax bool": lambda: jnp.array([True, False]),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("source", SOURCES)
def test_arrays_of_others_become_tensors(source: str, backend: Any) -> None:
    array = SOURCES[source]()
    kind = px.Bool if "bool" in source else px.Int if " i" in source or " u" in source else px.Float
    for x in (px.tensor(array, device=backend), px.from_dlpack(array, device=backend)):
        assert x.kind is kind and x.backend is backend and x.tolist() == array.tolist()
        assert x.numpy().dtype == backend.host_dtype(kind)
    assert px.from_dlpack(array, device=backend, copy=True).tolist() == array.tolist()
    assert px.tensor(array, device=backend, kind=px.Float).tolist() == [
        float(v) if not isinstance(v, list) else v for v in array.tolist()
    ]


@pytest.mark.parametrize("backend", [NumPy(), Torch(), Jax()], ids=repr)
@pytest.mark.parametrize("make", [lambda: np.zeros(3, np.float32), lambda: torch.zeros(3)], ids=["numpy", "torch"])
def test_tensor_copies_and_from_dlpack_shares(make: Any, backend: Any) -> None:
    array = make()
    copied, shared = px.tensor(array, device=backend), px.from_dlpack(array, device=backend)
    again = px.from_dlpack(array, device=backend, copy=True)
    array[0] = 5.0
    assert copied.tolist() == again.tolist() == [0.0, 0.0, 0.0]
    if not (backend is Jax() and isinstance(array, np.ndarray)):  # which XLA shares only where it is aligned
        assert shared.tolist() == [5.0, 0.0, 0.0]


def test_what_cannot_be_shared() -> None:
    for array, backend in (
        (np.zeros(3), NumPy()), (np.zeros(3, np.float32)[::-1], Torch()), (torch.zeros(3).bfloat16(), NumPy(float="bf16")),
        *([(read_only(), Jax())] if jax.__version_info__ < (0, 12) else []),  # later ones take it as it is
    ):  # fmt: skip
        with pytest.raises(BackendError, match=r"from_dlpack: .* without a copy, which copy=False forbids"):
            px.from_dlpack(array, device=backend, copy=False)
    with pytest.raises(KindError, match="from_dlpack: list has no __dlpack__"):
        px.from_dlpack([1.0])
    for complex_array in (
        np.zeros(2, np.complex64),
        torch.zeros(2, dtype=torch.complex64),
        jnp.zeros(2, jnp.complex64),
    ):
        for backend in (NumPy(), Torch(), Jax()):
            with pytest.raises(KindError, match="complex64"):
                px.tensor(complex_array, device=backend)
    with pytest.raises(RangeError, match="int32"):
        px.tensor(torch.tensor([2**40]), device=Torch())
    with pytest.raises(RangeError, match="float16"):
        px.from_dlpack(torch.tensor([1e5]), device=NumPy(float="f16"))


def test_a_tensor_is_taken_from_a_tensor() -> None:
    x = px.ones((3,), device=Torch())
    assert px.from_dlpack(x, device=NumPy(), copy=False).backend is NumPy()
    assert np.shares_memory(px.from_dlpack(x, device=NumPy()).numpy(), x.numpy())


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_tensors_become_arrays_of_others(backend: Any) -> None:
    tensors = [
        px.tensor([[1.0, 2.0], [3.0, 4.0]], device=backend), px.tensor([1.0, 2.0], device=backend).flip(0),
        px.tensor([1.0], device=backend).broadcast_to((2, 2)), px.tensor([1, 2], device=backend),
        px.tensor([True, False], device=backend), px.tensor(2.0, device=backend),
    ]  # fmt: skip
    if backend.differentiates:
        tensors.append(tensors[0].require_grad() * 2.0)
    for x in tensors:
        narrow = x.numpy().dtype == ml_dtypes.bfloat16
        for take in (torch.from_dlpack, np.from_dlpack, jnp.from_dlpack):
            if narrow and (backend.name == "numpy" or take is np.from_dlpack):
                continue  # NumPy has no bfloat16 in DLPack
            with jax.enable_x64(True):
                assert take(x).tolist() == x.tolist()
        host = np.asarray(x)
        assert host.dtype == x.numpy().dtype and not host.flags.writeable and host.tolist() == x.tolist()
        assert np.array(x).flags.writeable and np.asarray(x, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(px.ones((2,)), np.float64, copy=False)
    if backend == NumPy(float="bf16"):
        with pytest.raises(BufferError, match="Torch or Jax"):
            torch.from_dlpack(tensors[0])


def test_memory_is_shared_outward() -> None:
    for backend in (NumPy(), Torch(), Jax()):
        x = px.ones((8,), device=backend)
        assert np.shares_memory(np.asarray(x), np.asarray(x)) and np.shares_memory(np.from_dlpack(x), x.numpy())


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_pickles_and_copies(backend: Any) -> None:
    for values in ([[1.5, -2.0]], [1, 2], [True], 3.0, np.zeros((0, 2))):
        x = px.tensor(values, device=backend)
        again = pickle.loads(pickle.dumps(x))
        assert again.backend is backend and again.kind is x.kind and again.device == x.device
        assert again.tolist() == x.tolist() and again.shape == x.shape
        assert copy.copy(x) is x and copy.deepcopy(x) is x


def test_a_pickle_holds_no_history_and_a_copy_keeps_it() -> None:
    x = px.tensor([1.0], device=Autodiff(NumPy())).require_grad()
    y = x * 2.0
    again = pickle.loads(pickle.dumps(y))
    assert again.tolist() == [2.0] and not again.is_require_grad() and again.backend is x.backend
    gradient = x.grad(copy.deepcopy(y).backward())
    assert gradient is not None and gradient.item() == 2.0


@pytest.mark.parametrize(
    "backend", [Jax(), Jax(float="f64"), Jax(float="bf16"), Torch(float="f16"), NumPy(float="bf16")], ids=repr
)
def test_a_tensor_is_a_pytree_at_every_precision(backend: Any) -> None:
    x = px.tensor([1.0, 2.0], device=backend)
    leaves, structure = jax.tree.flatten([x])
    assert leaves[0] is x.primitive and jax.tree.unflatten(structure, leaves)[0].tolist() == x.tolist()
    assert jax.tree.map(lambda leaf: leaf, x).backend is backend
    if backend.name == "jax":
        y = jax.jit(lambda t: t * 0.1 + 1.0)(x)
        assert y.backend is backend and y.numpy().dtype == backend.host_float_dtype
        assert y.tolist() == (x * 0.1 + 1.0).tolist()


def test_arrays_being_traced_become_tensors() -> None:
    found = jax.jit(lambda x: (px.tensor(x, device=Jax(float="bf16")) * 2.0).primitive)(jnp.ones(2))
    assert found.dtype == jnp.bfloat16 and found.tolist() == [2.0, 2.0]


def test_text_of_a_tensor() -> None:
    assert repr(px.tensor([1.0, 0.1])) == "Tensor(Float (2,) on numpy:cpu: [1. , 0.1])"
    assert (
        repr(px.tensor([1.0, 0.1], device=NumPy(float="bf16")))
        == "Tensor(Float[bf16] (2,) on numpy:cpu: [1.    , 0.1001])"
    )
    assert repr(px.tensor(2, device=Torch(int="i64"))) == "Tensor(Int[i64] () on torch:cpu: 2)"
    assert repr(px.tensor([True])) == "Tensor(Bool (1,) on numpy:cpu: [ True])"
    assert len(repr(px.zeros((1000, 1000, 10)))) < 2000
    shapes = jax.eval_shape(lambda x: x, px.ones((2,), device=Jax()))
    assert "ShapeDtypeStruct" in repr(shapes) and "Float" in repr(shapes)
    donated = px.ones((2,), device=Jax())
    donated.primitive.delete()
    assert repr(donated) == "Tensor(Float on jax, donated)"
    for read in (donated.numpy, donated.sum, donated.tolist, lambda: donated + 1.0):
        with pytest.raises(DonatedError, match="donated"):
            read()


def test_values_are_not_known_under_a_trace() -> None:
    x = px.ones((2,), device=Jax())
    reads: dict[str, Callable[[Any], Any]] = {
        "numpy": lambda t: t.numpy(), "tolist": lambda t: t.tolist(), "item": lambda t: t.sum().item(),
        "bool": lambda t: bool((t > 0.0).all()),
    }  # fmt: skip
    for name, read in reads.items():
        seen: list[str] = []

        def traced(t: Any, read: Any = read, seen: list[str] = seen) -> Any:
            seen.append(repr(t))
            read(t)
            return t

        with pytest.raises(CompileError, match=f"^{name}: the values of a .* are unknown during"):
            jax.jit(traced)(x)
        assert seen == ["Tensor(Float (2,) on jax:cpu, traced)"]
