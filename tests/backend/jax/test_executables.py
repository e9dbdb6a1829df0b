"""XLA's analysis of programs whose costs are known by hand; collectives in a process that has eight devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phlox.backend.jax.executables import analysis_of
from tests.simulated_devices import check_on_devices

X = np.ones((64, 64), np.float32)


def test_a_product() -> None:
    found = analysis_of(jax.jit(lambda x: x @ x).lower(X).compile())
    assert found.flops == 2 * 64**3
    assert (found.arguments, found.outputs, found.aliased, found.devices) == (64 * 64 * 4, 64 * 64 * 4, 0, 1)
    assert found.bytes_accessed == 3 * 64 * 64 * 4 or found.bytes_accessed == 2 * 64 * 64 * 4
    assert found.collectives == {}


def test_a_loop_costs_what_its_iterations_cost() -> None:
    def loop(n: int, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, n, lambda i, c: jnp.tanh(c @ x), x)

    flops = [analysis_of(jax.jit(loop, static_argnums=0).lower(n, X).compile()).flops for n in (3, 30)]
    for n, found in zip((3, 30), flops, strict=True):
        assert found is not None
        assert n * 2 * 64**3 <= found <= 1.01 * n * 2 * 64**3


def test_the_length_of_a_loop_may_be_unknown() -> None:
    compiled = jax.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda i, c: c @ x, x)).lower(3, X).compile()
    assert analysis_of(compiled).loops_of_unknown_length == 1


SCRIPT = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from phlox.backend.analysis import Traffic
from phlox.backend.jax.executables import analysis_of, layout_of

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
def put(x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))
def report(fn, *arrays):
    return analysis_of(jax.jit(fn).lower(*arrays).compile())

x = np.ones((64, 64), np.float32)
# A product over an axis that four devices share: each has a quarter of the work, and sums of 32 x 64 go around.
found = report(lambda a, b: a @ b, put(x, "data", "model"), put(x, "model", None))
assert found.devices == 8 and found.flops == 2 * 32 * 64 * 16 + 32 * 64, found  # and the sum
assert found.arguments == (32 * 16 + 16 * 64) * 4
assert found.collectives == {"all-reduce": Traffic(1, 32 * 64 * 4, 2 * 32 * 64 * 4 * 3 // 4)}, found
# The same in a loop of six.
def loop(a, b):
    def step(c, _):
        return jax.lax.with_sharding_constraint(c @ b, NamedSharding(mesh, P("data", "model"))), None
    return jax.lax.scan(step, a, None, length=6)[0]
found = report(loop, put(x, "data", "model"), put(x, None, "model"))
assert found.collectives == {"all-gather": Traffic(6, 6 * 32 * 64 * 4, 6 * 32 * 64 * 4 * 3 // 4)}, found
assert found.flops >= 6 * 2 * 32 * 64 * 16

assert layout_of(put(x, "data"))[1] == "cut ('data', None) on data=2, model=4"
assert layout_of(put(x, "data", None)) == layout_of(put(x, ("data",))) != layout_of(put(x, None, "data"))
assert layout_of(put(x))[1] == "whole on data=2, model=4"
assert layout_of(put(x, ("data", "model")))[1] == "cut (('data', 'model'), None) on data=2, model=4"
assert layout_of(jax.device_put(x, jax.devices()[1]))[1] == "whole on cpu:1 alone"
"""


@pytest.mark.full
def test_collectives_and_layouts() -> None:
    check_on_devices(8, SCRIPT)
