"""The decorator itself: how every operation is covered, which backends meet, and what is forwarded."""

from __future__ import annotations

import copy
import inspect
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Batched, EngineBackend, Jax, NumPy, Torch
from phlox.backend.contract import Decorator
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, REQUIRED
from phlox.batching import Frame, entered, is_below, joined
from phlox.batching.rules import FORWARDED, RULES
from phlox.errors import AutodiffError, UnsupportedError
from phlox.tensor import Tensor

B = NumPy()
ONE_BY_ONE = {"bool_flatnonzero"}
"""Defined by NumPy functions alone (`on_host`), and without a rule: they go from example to example."""


def test_every_operation_is_covered_in_one_way() -> None:
    assert not set(RULES) & set(FORWARDED)
    assert set(RULES) | set(FORWARDED) <= OPERATIONS, "a rule for what is no operation"
    missing = OPERATIONS - set(RULES) - set(FORWARDED)
    assert not missing & REQUIRED, "what a backend must have needs a rule"
    assert missing <= DERIVED.keys()
    hosted = {name for name in missing if "on_host(" in inspect.getsource(getattr(DERIVED[name], name))}
    assert hosted == ONE_BY_ONE, "what runs on the host needs a rule, or is slow"


def test_rules_reach_the_inner_backend() -> None:
    M = Batched(B)
    for name in (*RULES, *FORWARDED):
        assert name in vars(M), name
    for name in OPERATIONS - set(RULES) - set(FORWARDED):
        assert name not in vars(M) and callable(getattr(M, name))


@pytest.mark.parametrize(
    ("cls", "of_itself"), [(Batched, {"checkpoint", "tape_function"}), (Autodiff, {"untaped", "duplicate"})]
)
def test_all_that_a_backend_says_is_forwarded(cls: type[Decorator], of_itself: set[str]) -> None:
    """What a backend says of itself and of arrays must not be the default, which knows nothing of what is decorated."""
    says = {name for name, value in vars(Backend).items() if callable(value) and not name.startswith("_")}
    of_the_engine = {"is_leaked", "is_leaked_error", "check_scalar", "host_dtype", "unstack", "stack"}
    of_the_engine |= {"full_precision", "in_one_call", "set_column", "write_from", "with_autodiff"}
    assert says - set(vars(cls)) - set(vars(Decorator)) - OPERATIONS <= of_the_engine | of_itself


def test_identity() -> None:
    M = Batched(B)
    assert M is Batched(B) and M.inner is B and repr(M) == "Batched(NumPy())" and M.name == "batched(numpy)"
    assert copy.copy(M) is M and M.__reduce__() == (Batched, (B,))
    assert (M.batched, Batched(M).batched, Autodiff(M).batched, B.batched) == (1, 2, 1, 0)
    assert not M.differentiates and Batched(Autodiff(B)).differentiates
    assert M.full_precision() is M and Batched(NumPy(float="f16")).full_precision() is M
    assert M.without_tape() is None and Batched(Autodiff(B)).without_tape() is M and Autodiff(M).without_tape() is M
    assert str(M.device()) == "batched(numpy):cpu"


def test_which_backends_meet() -> None:
    A, M = Autodiff(B), Batched(B)
    assert joined(B, M) is M and joined(M, A) is Batched(A) and joined(A, M) is Batched(A)
    assert joined(M, Autodiff(M)) is Autodiff(M) and joined(Batched(M), A) is Batched(Batched(A))
    assert joined(Autodiff(M), A) is None and joined(M, NumPy(float="f64")) is None
    assert is_below(M, Batched(A)) and is_below(M, Autodiff(Batched(A))) and not is_below(Batched(A), M)
    assert not is_below(M, M) and not is_below(Autodiff(M), Batched(A))


@pytest.mark.parametrize("engine", [NumPy(), Jax(), Torch()], ids=repr)
def test_arrays_of_a_batch(engine: Backend) -> None:
    M = Batched(engine)
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    x = M.boxed(engine.from_host(values, px.Float, engine.device()))
    assert M.shape(x) == x.shape == (3,) and M.kind_of(x) is px.Float and M.batch_of(x) == (2,)
    assert M.device_of(x) == M.device() and M.is_traced(x) and not M.is_donated(x)
    doubled = M.float_add(x, x)
    np.testing.assert_array_equal(engine.to_host(doubled.value), 2 * values)
    constant = M.float_full((3,), 2.0, M.device())
    assert type(M.float_mul(constant, constant)) is type(constant), "what is the same for all is computed once"
    with pytest.raises(UnsupportedError, match="stands for 2 examples and has no single value"):
        M.to_host(x)
    with pytest.raises(AutodiffError, match=r"use phlox.grad\(fn\)"):
        M.backward(x, None, False)
    half = Batched(type(cast(EngineBackend, engine))(float="f16"))
    assert M.shape(M.cast(x, half, half.device())) == (3,)
    with pytest.raises(UnsupportedError, match="cannot leave the batch"):
        M.cast(x, NumPy(float="f64"), NumPy(float="f64").device())


def test_a_nested_batch_keeps_its_arrays_apart() -> None:
    outer = Batched(B)
    inner = Batched(outer)
    x = outer.boxed(np.ones((2, 3, 4)))  # another for each of 2
    y = inner.boxed(x)  # and for each of 3
    assert inner.shape(x) == (3, 4) and inner.shape(y) == (4,) and inner.batch_of(y) == (2, 3)
    assert inner.batch_of(x) == (2,)
    assert type(inner.float_add(x, x)) is outer.box and type(inner.float_add(y, y)) is inner.box


def test_loops_of_a_recorded_program() -> None:
    """A carry that starts the same for all examples and does not stay so."""

    def total(x: Tensor) -> Any:
        def turn(carry: Any, y: Any) -> Any:
            return (carry[0] + y, carry[1] + 1.0), carry[1]

        zero = px.zeros((), device=x.device)
        return px.scan(turn, (zero, zero), x)

    x = px.tensor(np.arange(6.0).reshape(2, 3), device=Jax())
    for found in (px.vmap(total)(x), px.compile(lambda x: px.vmap(total)(x))(x)):
        (sums, count), ys = found
        assert sums.tolist() == [3.0, 12.0] and count.tolist() == [3.0, 3.0]
        assert ys.tolist() == [[0.0, 1.0, 2.0]] * 2


def test_frames_are_of_a_thread() -> None:
    from threading import Thread

    found: list[Any] = []
    with entered(Frame(Batched(B), 3)):
        thread = Thread(target=lambda: found.append(px.random.uniform((2,)).shape))
        thread.start()
        thread.join()
        assert repr(px.random.uniform((2,))) == "Tensor(Float (2,) on batched(numpy):cpu, one of 3 examples)"
    assert found == [(2,)]
