"""What linear algebra says of input that it cannot take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import linalg
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import AutodiffError, KindError, LinalgError, PhloxError, ShapeError
from tests.backend.plain import Plain

BACKENDS: list[Backend] = [NumPy(), Plain(), Jax(), Torch(), Autodiff(NumPy()), NumPy(float="bf16"), Jax(float="f16")]
SINGULAR = [[1.0, 2.0], [2.0, 4.0]]
STACK = [[[1.0, 0.0], [0.0, 1.0]], SINGULAR]

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=repr)


@each_backend
@pytest.mark.parametrize(
    "call, what",
    [
        (lambda x: linalg.solve(x, px.ones((2,), device=x.device)), "solve: the matrix is singular"),
        (lambda x: linalg.inv(x), "inv: the matrix is singular"),
        (
            lambda x: linalg.solve_triangular(x * 0.0, px.ones((2,), device=x.device), upper=True),
            "solve_triangular: the matrix is singular",
        ),
        (lambda x: linalg.cholesky(-x), "cholesky: the matrix is not positive definite"),
        (lambda x: linalg.eigh(x / (x * 0.0)), "eigh: the matrix holds NaN or infinities"),
        (lambda x: linalg.eigvalsh(x / (x * 0.0)), "eig.*: the matrix holds NaN or infinities"),
        (lambda x: linalg.svd(x / (x * 0.0)), "svd: the matrix holds NaN or infinities"),
        (lambda x: linalg.svdvals(x / (x * 0.0)), "svdvals: the matrix holds NaN or infinities"),
    ],
)
def test_matrices_that_lack_what_is_needed(backend: Backend, call: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(LinalgError, match=what):
        call(px.tensor(SINGULAR, device=backend))


@each_backend
def test_the_first_bad_matrix_of_a_stack_is_named(backend: Backend) -> None:
    x = px.tensor(STACK, device=backend)
    with pytest.raises(LinalgError, match=r"inv: matrix \(1,\) of the stack is singular"):
        linalg.inv(x)
    with pytest.raises(LinalgError, match=r"cholesky: matrix \(0, 1\) of the stack is not positive definite"):
        linalg.cholesky(x[None] - px.tensor([[0.0, 0.0], [0.0, 1.0]], device=backend)[None] * 0.5 - 0.0 * x)
    with pytest.raises(LinalgError, match=r"solve: matrix \(1,\) of the stack is singular"):
        linalg.solve(x, px.ones((2, 3), device=backend))


def test_under_a_trace_they_give_nan() -> None:
    x = px.tensor(SINGULAR, device=Jax())
    for fn in (
        linalg.inv,
        lambda x: linalg.cholesky(-x),
        lambda x: linalg.solve(x, x),
        lambda x: linalg.solve_triangular(x * 0.0, x, upper=False),
        lambda x: linalg.svdvals(x / (x * 0.0)),
        lambda x: linalg.eigh(x / (x * 0.0)).eigenvalues,
    ):
        assert np.isnan(px.compile(fn)(x).numpy()).any()


ONE = px.ones((2, 3))
WHOLE: Any = px.ones((2, 2)).int()


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda: linalg.inv(ONE), ShapeError, r"inv: takes square matrices .* got shape \(2, 3\)"),
        (lambda: linalg.det(px.ones((3,))), ShapeError, r"det: takes matrices .* got shape \(3,\)"),
        (lambda: linalg.qr(WHOLE), KindError, r"qr takes Float tensors, got Int"),
        (lambda: linalg.qr(ONE, mode="full"), ShapeError, r"mode must be 'reduced' or 'complete', got 'full'"),  # type: ignore[arg-type]
        (lambda: linalg.solve(px.ones((2, 2)), px.ones((3,))), ShapeError, r"solve: shapes \(2, 2\) and \(3,\)"),
        (lambda: linalg.solve(px.ones((4, 2, 2)), px.ones((3, 2, 1))), ShapeError, r"do not broadcast"),
        (lambda: linalg.solve(px.ones((2, 2)), px.ones((2,), device=Torch())), PhloxError, r"different backends"),
        (lambda: linalg.lstsq(ONE, px.ones((3,))), ShapeError, r"lstsq: shapes \(2, 3\) and \(3,\) do not fit"),
        (lambda: linalg.matrix_norm(px.ones((2, 2)), 3), ShapeError, r"ord must be 'fro'"),
        (lambda: linalg.matrix_norm(px.ones((0, 2)), 2), ShapeError, r"order 2 is undefined for a matrix .* \(0, 2\)"),
        (lambda: linalg.matrix_norm(px.ones((2, 2)), axis=(0, -2)), ShapeError, r"two different axes"),
        (
            lambda: linalg.norm(px.ones((2, 2, 2)), 2),
            ShapeError,
            r"norm: order 2 of a tensor .* needs one or two axes",
        ),
        (lambda: linalg.norm(px.ones((3,)), "nuc"), ShapeError, r"norm: order 'nuc' is a matrix norm"),
        (lambda: linalg.cond(px.ones((0, 0))), ShapeError, r"has no condition number"),
        (lambda: linalg.multi_dot([]), ShapeError, r"no tensors"),
        (lambda: linalg.multi_dot([ONE, ONE]), ShapeError, r"shapes \(2, 3\) and \(2, 3\) do not fit"),
        (lambda: linalg.multi_dot([px.ones(()), ONE]), ShapeError, r"takes matrices, with vectors only at the ends"),
        (lambda: px.dot(ONE, ONE), ShapeError, r"dot: takes two vectors"),
        (lambda: px.dot(px.ones((2,)), px.ones((3,))), ShapeError, r"dot: shapes \(2,\) and \(3,\) do not fit"),
        (lambda: px.dot(px.ones((2,)), px.ones((2,)).int()), KindError, r"Float and Int tensors do not mix"),
        (lambda: px.dot(px.ones((2,)).bool(), px.ones((2,)).bool()), KindError, r"convert with .int\(\)"),
        (lambda: px.outer(ONE, ONE), ShapeError, r"outer: takes two vectors"),
        (lambda: px.vdot(ONE, px.ones((2,))), ShapeError, r"different numbers of elements"),
        (lambda: px.vecdot(ONE, px.ones((2,))), ShapeError, r"vecdot: shapes \(2, 3\) and \(2,\) differ in axis -1"),
        (lambda: px.inner(ONE, px.ones(())), ShapeError, r"both operands need an axis"),
        (lambda: px.tensordot(ONE, ONE, 3), ShapeError, r"have no 3 axes"),
        (lambda: px.tensordot(ONE, ONE, ((0,), (0, 1))), ShapeError, r"do not form pairs"),
        (lambda: px.tensordot(ONE, ONE, ((0, 0), (0, 1))), ShapeError, r"repeats an axis"),
        (lambda: px.tensordot(ONE, ONE, ((0,), (1,))), ShapeError, r"axes \[0\] of the left .* axes \[1\]"),
        (lambda: px.cross(ONE, px.ones((2, 1))), ShapeError, r"cross: axis -1 must have size 3"),
        (lambda: px.cross(ONE, ONE, axis=4), ShapeError, r"axis 4 is out of range"),
        (lambda: px.cross(ONE, px.ones((3, 3))), ShapeError, r"do not broadcast"),
        (lambda: px.diag(px.ones((2, 2, 2))), ShapeError, r"diag: takes a vector or a matrix"),
        (lambda: px.diag_embed(px.ones(())), ShapeError, r"needs a tensor of vectors"),
        (lambda: px.trace(ONE.bool()), KindError, r"convert with .int\(\)"),
        (lambda: px.diagonal(ONE, 0.5), KindError, r"offset must be an integer, got 0.5"),  # type: ignore[arg-type]
        (lambda: px.diag_embed(ONE, 0.5), KindError, r"offset must be an integer, got 0.5"),  # type: ignore[arg-type]
        (lambda: px.diagonal(ONE, axis1=1), ShapeError, r"two different axes"),
        (lambda: px.matmul(ONE, px.ones((2,))), ShapeError, r"matmul: shapes \(2, 3\) and \(2,\) do not fit"),
        (lambda: px.matmul(ONE, 2.0), KindError, r"matmul: .* got float"),  # type: ignore[arg-type]
        (lambda: px.einsum("ij,jk"), ShapeError, r"no tensors given"),
        (lambda: px.einsum("ij,jk", ONE), ShapeError, r"names 2 operands, but 1 are given"),
        (lambda: px.einsum("ijk", ONE), ShapeError, r"'ijk' names 3 axes of a tensor of rank 2"),
        (lambda: px.einsum("i", ONE), ShapeError, r"'i' names 1 axes of a tensor of rank 2"),
        (lambda: px.einsum("i1", ONE), ShapeError, r"must consist of letters"),
        (lambda: px.einsum("i......", ONE), ShapeError, r"must consist of letters"),
        (lambda: px.einsum("ii", ONE), ShapeError, r"the axes 'i' have sizes 2 and 3"),
        (lambda: px.einsum("ii", px.ones((3, 1))), ShapeError, r"the axes 'i' have sizes 3 and 1"),
        (lambda: px.einsum("ij,ij", ONE, ONE.mT), ShapeError, r"the axes 'i' have sizes 2 and 3"),
        (lambda: px.einsum("ij->ijj", ONE), ShapeError, r"repeats a letter in the result"),
        (lambda: px.einsum("ij->k", ONE), ShapeError, r"has 'k' in the result, but in no operand"),
        (lambda: px.einsum("i...->i", ONE), ShapeError, r"must name the axes of '...' in the result"),
        (lambda: px.einsum("...,...", ONE, ONE.mT), ShapeError, r"the axes '...'"),
        (lambda: px.einsum("ij->", ONE.bool()), KindError, r"got Bool"),
        (lambda: px.einsum("ij,ij->", ONE, ONE.int()), KindError, r"do not mix"),
        (lambda: px.einsum("ij,ij->", ONE, 2.0), KindError, r"must be a tensor, got float"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(call: Callable[[], Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        call()


def test_what_has_no_derivative_says_so() -> None:
    x = px.ones((3, 2), device=Autodiff(NumPy())).require_grad()
    with pytest.raises(AutodiffError, match="mode='reduced'"):
        linalg.qr(x + px.diag_embed(px.ones((2,)))[:1, :1], mode="complete").Q.sum().backward()
    with pytest.raises(AutodiffError, match="full_matrices=False"):
        linalg.svd(x).U.sum().backward()
    with pytest.raises(LinalgError, match="singular"):
        linalg.slogdet(x[:2]).logabsdet.backward()


def test_a_constant_from_below_meets_a_tracked_tensor() -> None:
    x = px.tensor([[2.0, 0.0], [1.0, 1.0]], device=Autodiff(NumPy())).require_grad()
    b = px.tensor([2.0, 3.0])
    grads = linalg.solve(x, b).sum().backward()
    assert x.grad(grads) is not None
    assert px.einsum("ij,j->i", x, b).is_require_grad() and px.einsum("j,ij->i", b, x).is_require_grad()
    assert b.matmul(x).is_require_grad() and px.dot(b, x[0]).is_require_grad()
