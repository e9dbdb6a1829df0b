"""Symbolic dimensions of `jax.export` and `torch.export`: what is known of them, and what is not."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from jax import export

from phlox.backend import Jax, Torch
from phlox.backend.tracing import dimension
from phlox.backend.tracing.symbolic import any_less, differ, is_symbolic, less, noting_assumptions, real, whole

assert Jax and Torch  # whose import makes the dimensions known


def of_jax() -> tuple[Any, Any]:
    a, b = export.symbolic_shape("a, b")
    return a, b


def of_torch() -> tuple[Any, Any]:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    made: list[Any] = []
    for name, hint in (("a", 7), ("b", 5)):
        from torch._dynamo.source import ConstantSource

        symbol = env.create_symbol(hint, ConstantSource(name), DimDynamic.DYNAMIC)
        made.append(env.create_symintnode(symbol, hint=hint, source=ConstantSource(name)))
    return made[0], made[1]


@pytest.mark.parametrize("make", [of_jax, of_torch])
def test_what_is_known(make: Any) -> None:
    a, b = make()
    assert is_symbolic(a) and is_symbolic(a + 1) and not is_symbolic(3)
    assert less(a, a + 1) and not less(a + 1, a) and not less(a, a)
    assert less(-1, a) and any_less((3, a), 4) and not any_less((a, b), 1)
    assert differ(a, a + 1) and not differ(a, a) and not differ(a, b) and not differ(a, 3)
    assert dimension.as_size(a) is a and dimension.is_open(a)
    assert dimension.same_size(a, a) and not dimension.same_size(a, b)


@pytest.mark.parametrize("make", [of_jax, of_torch])
def test_what_is_not_known_is_noted(make: Any) -> None:
    a, b = make()
    with noting_assumptions() as assumed:
        assert (not less(a, 3) and not less(b, a) and less(a, a + 1) is not True) or less(a, a + 1)
    assert [str(one) for one, _ in assumed] == [str(a), str(b)]
    with noting_assumptions() as assumed:
        assert less(2, 3) and not differ(a, b)
    assert assumed == []


def test_plain_sizes_are_what_they_are() -> None:
    assert less(1, 2) and not less(2, 1) and any_less([1, 0], 1) and not any_less([], 1)
    assert real(3) == 3.0 and whole(3) == 3 and differ(3, 4) and not differ(3, 3)


def test_extremes_hold_for_all_sizes() -> None:
    a, b = of_jax()
    small, large = dimension.smaller(a, 4), dimension.larger(a, b)
    specs = [jax.ShapeDtypeStruct((size,), "float32") for size in (a, b)]
    program = export.export(jax.jit(lambda x, y: (jax.numpy.ones((small,)), jax.numpy.ones((large,)))))(*specs)
    for sizes, wanted in (((2, 3), (2, 3)), ((9, 3), (4, 9))):
        found = program.call(*[jax.numpy.zeros(size) for size in sizes])
        assert tuple(len(one) for one in found) == wanted


def test_a_trace_of_pytorch_fixes_nothing() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (1.0 if less(x.shape[0], 6) or differ(x.shape[0], 7) else 2.0)

    program = torch.export.export(Model(), (torch.zeros(5),), dynamic_shapes=({0: torch.export.Dim("n")},)).module()
    assert program(torch.zeros(9))[0] == 2.0
