"""What compiled functions report when asked to check."""

from __future__ import annotations

import re
from typing import Any

import jax
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy
from phlox.errors import IndexRangeError, RangeError

JAX = Jax()
TABLE = px.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=JAX)


def ints(*values: int) -> Any:
    return px.tensor(values, device=JAX, kind=px.Int)


BAD = {
    "take": (lambda i: TABLE.take(i), ints(0, 3), IndexRangeError, "index 3 is out of range for an axis of size 3"),
    "from the end": (lambda i: TABLE[i], ints(-4), IndexRangeError, "index -4 is out of range for an axis of size 3"),
    "embedding": (lambda i: px.functional.embedding(TABLE, i), ints(7), IndexRangeError, "index 7 is out of range"),
    "division": (lambda i: 5 // i, ints(1, 0), ZeroDivisionError, "integer division by zero"),
    "modulo": (lambda i: ints(4, 4) % i, ints(1, 0), ZeroDivisionError, "integer modulo by zero"),
    "power": (lambda i: 2**i, ints(1, -1), RangeError, "an integer to a negative power"),
    "cast": (lambda i: (i.float() * 1e20).int(), ints(0, 1), RangeError, r"1(\.0+\d*)?e\+20 does not fit"),
    "nan": (lambda i: i.float().log().int(), ints(-1), RangeError, "nan does not fit"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_an_eager_call_refuses_a_checked_program_reports(name: str) -> None:
    fn, bad, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        fn(bad)
    compiled = px.compile(fn)
    compiled(bad)  # unchecked, it goes unnoticed
    with px.debug.checks():
        compiled(ints(*[1] * bad.size)) if name != "cast" else compiled(ints(0, 0))
        with pytest.raises(
            kind, match=message + r".* \(in a compiled function, at .*test_checks\.py:\d+, in <lambda>\)"
        ):
            compiled(bad)
    compiled(bad)
    assert compiled.programs == 2


def test_what_is_out_of_range_is_never_a_neighbours_value() -> None:
    read = px.compile(lambda i: (TABLE.take(i), px.tensor([7, 8, 9], device=JAX).take(i)))
    floats, whole = read(ints(3, 1))
    assert floats.isnan().tolist() == [[True, True], [False, False]] and whole.tolist() == [-(2**31), 8]


def test_nothing_of_a_refused_call_is_kept() -> None:
    px.random.seed(0)
    model = nn.Embedding(4, 3, device=Autodiff(JAX))
    optimizer = optim.AdamWConfig().init()

    def step(model: Any, optimizer: Any, i: Any) -> Any:
        _, grads = px.value_and_grad(lambda m: m(i).square().sum())(model)
        return optimizer.step(0.1, model, grads)

    compiled = px.compile(step, donate=("model", "optimizer"))
    with px.debug.checks():
        model = compiled(model, optimizer, ints(0, 1))
        before = model.weight.val().tolist()
        with pytest.raises(IndexRangeError, match="index 4 is out of range"):
            compiled(model, optimizer, ints(0, 4))
        assert model.weight.val().tolist() == before
        again = compiled(model, optimizer, ints(0, 1))
    assert again.weight.val().tolist() != before


def test_several_checks_and_several_shapes() -> None:
    fn = px.compile(lambda i, j: TABLE.take(i).sum() + TABLE.take(j, 1).sum())
    with px.debug.checks():
        assert fn(ints(0), ints(1)).item() == 15.0
        for i, j, what in ((ints(5), ints(1), "index 5 .* size 3"), (ints(0, 2), ints(-3), "index -3 .* size 2")):
            with pytest.raises(IndexRangeError, match=what):
                fn(i, j)
        fn(ints(), ints(0))  # of nothing, nothing is out of range


def test_a_trace_within_the_program_is_left_out() -> None:
    def fn(i: Any) -> Any:
        _, rows = jax.lax.scan(
            lambda carry, k: (carry, TABLE.take(px.Tensor.from_primitive(k, JAX)).primitive), 0, i.primitive
        )
        return px.Tensor.from_primitive(rows, JAX)

    with px.debug.checks():
        assert px.compile(fn)(ints(1, 9)).isnan().any().item()


def test_raw_jit_and_other_backends_are_as_before() -> None:
    with px.debug.checks():
        assert jax.jit(lambda i: TABLE.take(i).primitive)(ints(9)).shape == (1, 2)
        with pytest.raises(IndexRangeError, match=re.escape("take: index 9 is out of range for an axis of size 3")):
            px.compile(lambda x, i: x.take(i))(px.ones((3, 2)), px.tensor([9]))
    with px.debug.checks(), px.debug.checks(False):
        px.compile(lambda i: TABLE.take(i))(ints(9))
    assert px.ones((1,), device=NumPy()).item() == 1.0
