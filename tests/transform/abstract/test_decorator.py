"""A backend without values: what it is, how it meets others, and what it refuses.

Serves: phlox/transform/abstract/decorator.py, phlox/transform/abstract/counting.py
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax.numpy as jnp
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Batched, Jax, NumPy, Torch
from phlox.backend.contract import Decorator
from phlox.backend.contract.catalogue import OPERATIONS
from phlox.errors import CompileError, IndexRangeError, ShapeError, UnsupportedError
from phlox.tensor import Tensor
from phlox.transform.abstract import Abstract, Work, abstracted, counted

B = NumPy()
A = Abstract(B)


def blank(*shape: int, kind: Any = px.Float, backend: Backend = A) -> Tensor[Any, Any, Any]:
    return Tensor.from_primitive(A.blank(shape, kind), backend, kind)


def test_identity() -> None:
    assert A is Abstract(B) and A.inner is B and repr(A) == "Abstract(NumPy())"
    assert copy.copy(A) is A and pickle.loads(pickle.dumps(A)) is A  # noqa: S301
    assert not A.compiles and not A.differentiates
    with pytest.raises(UnsupportedError, match="a decorator"):
        Abstract(Autodiff(B))


def test_the_same_decorators_without_values() -> None:
    assert abstracted(B) is A and abstracted(A) is A
    tape = Autodiff(Autodiff(B, recompute=True))
    assert abstracted(tape) is Autodiff(Autodiff(A, recompute=True))


def test_all_that_a_backend_says_is_forwarded() -> None:
    """What a backend says of itself and of arrays must not be the default, which knows nothing of what is decorated."""
    says = {name for name, value in vars(Backend).items() if callable(value) and not name.startswith("_")}
    said = set(vars(Abstract)) | set(vars(Decorator)) | OPERATIONS
    of_the_engine = {"check_scalar", "host_dtype", "in_one_call", "is_leaked", "is_leaked_error", "scan"}
    of_the_engine |= {"full_precision", "set_column", "write_from", "stack", "unstack", "with_autodiff"}
    no_tape = {"backward", "checkpoint", "copy_leaf", "is_leaf", "make_leaf", "node_of", "poisoned", "tape_function"}
    assert says - said <= of_the_engine | no_tape | {"value"}


def test_constants_meet_what_has_no_value() -> None:
    x = blank(2, 3)
    y = x + px.tensor([1.0, 2.0, 3.0], device=B)
    assert y.shape == (2, 3) and y.backend is A
    constant = px.tensor([1.0, 2.0], device=A)  # has a value, and keeps it
    assert (constant * 2.0).tolist() == [2.0, 4.0]
    index = px.tensor([0, 2], device=B)
    assert x[:, index].shape == (2, 2)
    with pytest.raises(IndexRangeError, match="3 is out of range"):
        x[:, px.tensor([3], device=B)]


def test_nothing_is_allocated() -> None:
    x = px.zeros((10**7, 10**7), device=A)
    assert ((x @ x).exp().sum(axis=0) + px.random.normal((10**7,), device=A)).shape == (10**7,)
    assert px.arange(10**12, device=A).kind is px.Int


def test_shapes_that_do_not_fit_are_refused_as_ever() -> None:
    with pytest.raises(ShapeError):
        _ = blank(2, 3) + blank(4)
    with pytest.raises(ShapeError):
        _ = blank(2, 3) @ blank(2, 3)
    with pytest.raises(ShapeError):
        blank(2, 3).reshape((4, 2))
    with pytest.raises(ShapeError):
        px.concat([blank(2, 3), blank(2, 4)], axis=0)


@pytest.mark.parametrize(
    "ask", [lambda x: x.item(), lambda x: float(x), lambda x: x.numpy(), lambda x: bool(x > 0.0), lambda x: x.tolist()]
)
def test_values_are_refused(ask: Any) -> None:
    with pytest.raises(CompileError, match=r"unknown during tracing; .*phlox\.where"):
        ask(blank(1))


def test_moving() -> None:
    x = blank(2, 3)
    half = Abstract(NumPy(float="bf16"))
    assert x.to_device(half).backend is half
    assert x.to_device(Autodiff(A)).backend is Autodiff(A)
    with pytest.raises(UnsupportedError, match="cannot go to"):
        x.to_device(B)


def test_a_batch_of_what_has_no_value() -> None:
    found = px.vmap(lambda x: (x @ x).sum(axis=0))(blank(5, 3, 3))
    assert found.shape == (5, 3) and found.backend is A
    assert Batched(A).inner is A


@pytest.mark.parametrize("backend", [Jax(), Torch(), NumPy()], ids=repr)
def test_functions_of_the_engine(backend: Backend) -> None:
    def doubled(x: Any) -> Any:
        return x + x if backend is not Jax() else jnp.add(x, x)

    empty = Abstract(backend)
    x = Tensor.from_primitive(empty.blank((2, 3), px.Float), empty, px.Float)
    y = px.lift(doubled)(x)
    assert y.shape == (2, 3) and y.backend is empty
    taped = Tensor.from_primitive(empty.blank((2, 3), px.Float), Autodiff(empty), px.Float).require_grad()
    z = px.lift(doubled)(taped).sum()
    assert z.shape == () and taped.grad(z.backward()).shape == (2, 3)  # pyright: ignore[reportOptionalMemberAccess]


def test_counting() -> None:
    x, y = blank(3, 4), blank(4, 5)
    work = Work()
    _ = x @ y  # not counted
    with counted(work):
        z = x @ y
        z = z.T.reshape((15,))[:7]
        with counted(None):
            _ = z.exp()
        z = z.exp()
        _ = z.sum()
        _ = px.where(z > 0.0, z, 0.0)  # the comparison
        _ = px.tensor([1.0], device=A) + 1.0  # a constant
    assert (work.products, work.others, work.total) == (120, 21, 141)


def test_counts_of_transforms_and_decompositions() -> None:
    def of(fn: Any, *shape: int) -> int:
        work = Work()
        with counted(work):
            fn(blank(*shape))
        return work.total

    assert of(lambda x: px.signal.rfft(x), 3, 64) == 3 * 5 * 64 * 6 // 2
    assert of(lambda x: px.linalg.cholesky(x), 30, 30) == pytest.approx(30**3 / 3, rel=0.01)
    assert of(lambda x: px.linalg.solve(x, blank(30, 2)), 30, 30) == pytest.approx(
        2 / 3 * 30**3 + 2 * 30**2 * 2, rel=0.01
    )
