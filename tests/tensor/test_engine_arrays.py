"""Arrays of the engines beside tensors: as operands and indices, and what a tensor says of itself as an array.

Serves: phlox/tensor/engine_arrays.py
"""

# Arrays are given where types speak of tensors.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false, reportIncompatibleMethodOverride=false, reportIndexIssue=false

from __future__ import annotations

import operator
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
from phlox.errors import AutodiffError, BackendError, KindError

VALUES = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
OWN: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "numpy": (NumPy(), np.asarray),
    "jax": (Jax(), jnp.asarray),
    "torch": (Torch(), torch.tensor),
}
engines = pytest.mark.parametrize("engine", OWN)
OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod, operator.matmul, operator.lt
]  # fmt: skip


@engines
@pytest.mark.parametrize("op", OPERATORS, ids=[op.__name__ for op in OPERATORS])
def test_operators_take_arrays_of_the_engine_and_of_numpy(engine: str, op: Any) -> None:
    backend, own = OWN[engine]
    left, right = np.abs(VALUES), np.abs(VALUES.T) + 1.0
    expected = op(left.astype(np.float64), right.astype(np.float64))
    for device in (backend, Autodiff(backend)):
        x, y = px.tensor(left, device=device), px.tensor(right, device=device)
        made = [op(x, own(right)), op(x, right), op(x, right.astype(np.float64)), op(left, y)]
        if engine == "torch":  # JAX's operators themselves take tensors, see below
            made.append(op(own(left), y))
        for result in made:
            assert isinstance(result, px.Tensor) and result.backend == device
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_a_sum_may_leave_elements_out() -> None:
    for engine, (backend, own) in OWN.items():
        x = px.tensor(np.where(VALUES > 0, VALUES, np.nan), device=backend)
        for mask in (VALUES > 0, own(VALUES > 0), px.tensor(VALUES > 0, device=backend)):
            got = x.sum(axis=0, where=mask).numpy()
            np.testing.assert_allclose(got, np.sum(VALUES, axis=0, where=VALUES > 0), rtol=1e-6, err_msg=engine)


def test_with_an_array_of_jax_on_the_left_the_operator_is_that_of_jax() -> None:
    y = jnp.asarray(VALUES) + px.tensor(VALUES, device="jax")
    assert isinstance(y, jax.Array)
    np.testing.assert_allclose(y, VALUES * 2.0, rtol=1e-6)


@engines
def test_arrays_are_indices_and_values_in_place(engine: str) -> None:
    backend, own = OWN[engine]
    x = px.tensor(VALUES, device=backend)
    np.testing.assert_array_equal(x[own(np.array([2, 0]))].numpy(), VALUES[[2, 0]])
    np.testing.assert_array_equal(x[own(VALUES > 0)].numpy(), VALUES[VALUES > 0])
    np.testing.assert_array_equal(x.at[0].set(own(VALUES[1])).numpy()[0], VALUES[1])


X = {name: px.tensor(VALUES, device=backend) for name, (backend, _) in OWN.items()}
BATCHED = px.vmap(lambda row: px.tensor(jnp.sum(row)))
TRACKED = px.Tensor.from_inner(X["jax"]).require_grad()
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "torch, jax": (lambda: X["torch"] + jnp.ones(3), BackendError, r"add: an array of jax and Torch\(\) do not mix"),
    "remedy": (lambda: X["torch"] + jnp.ones(3), BackendError, r"phlox\.tensor\(array, device='torch:cpu'\)"),
    "jax, torch": (lambda: torch.ones(3) * X["jax"], BackendError, r"mul: an array of torch and Jax\(\) do not mix"),
    "left": (lambda: jnp.ones(3) - X["torch"], BackendError, r"sub: an array of jax and Torch\(\)"),
    "matmul": (lambda: X["numpy"] @ jnp.ones((3, 3)), BackendError, r"matmul: an array of jax and NumPy\(\)"),
    "kinds": (lambda: X["jax"] + jnp.arange(3), KindError, r"a Float tensor and an array of int32 .*kind=phlox\.Float"),
    "bools": (lambda: X["torch"] * torch.ones(3).bool(), KindError, r"mul: a Float tensor and an array of torch\.bool"),
    "scalar": (lambda: X["jax"].argmax() * jnp.array(2.5), KindError, r"mul: a Int tensor and an array of float32"),
    "PyTorch's tape": (lambda: X["torch"] + torch.ones(3).requires_grad_(), AutodiffError, r"gradient.*detach\(\)"),
    "our tape": (lambda: jnp.asarray(TRACKED), AutodiffError, r"history on the tape.*phlox\.lift"),
    "vmap": (lambda: BATCHED(X["jax"]), BackendError, r"phlox\.vmap.*jax\.vmap"),
    "not jax": (lambda: X["torch"].__jax_array__, AttributeError, r"not an array of JAX; .* \.to_device\('jax'\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_mix_is_one_sentence(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_scalars_of_jax_are_numbers_and_do_not_change_the_precision() -> None:
    with jax.enable_x64(True):
        two = jnp.asarray(np.float64(2.0))
        for backend, dtype in (
            (Jax(), np.float32),
            (Jax(float="bf16"), ml_dtypes.bfloat16),
            (Jax(float="f64"), np.float64),
        ):
            x = px.ones((3,), device=backend)
            for y in (
                x * two,
                two.astype(np.float32) * px.Tensor.from_inner(x).inner(),
                x * np.array(2.0),
                x / jnp.array(2),
            ):
                assert y.dtype == (dtype if isinstance(y, px.Tensor) else y.dtype)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (NumPy(), "float32"), (NumPy(float="f64"), "float64"), (Jax(float="bf16"), "bfloat16"),
        (Torch(), "float32"), (Torch(float="bf16"), "bfloat16"), (Autodiff(Torch(float="f16")), "float16"),
    ],
    ids=repr,
)  # fmt: skip
def test_dtypes_are_those_of_numpy_on_every_engine(backend: Any, dtype: str) -> None:
    x = px.tensor(VALUES, device=backend)
    assert isinstance(x.dtype, np.dtype) and x.dtype == np.dtype(dtype) == np.asarray(x).dtype
    assert (x.itemsize, x.nbytes, x.size, x.ndim) == (x.dtype.itemsize, 9 * x.dtype.itemsize, 9, 2)
    assert (x > 0).dtype == np.bool_ and x.argmax().dtype == np.int32


@engines
def test_dlpack_goes_both_ways(engine: str) -> None:
    backend, own = OWN[engine]
    given = own(VALUES.copy())
    x = px.from_dlpack(given, device=backend)
    for take in (np.from_dlpack, jnp.from_dlpack, torch.from_dlpack):
        np.testing.assert_array_equal(np.asarray(take(x)), VALUES)
    assert x.__dlpack_device__() == given.__dlpack_device__()
