"""Ambient streams: seeds, scopes, sub-streams, threads; and the same tensors on every backend, bit for bit."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.threefry import generator as reference
from phlox.errors import KindError, RandomnessError, RangeError, ShapeError
from phlox.random.stream import key_of

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]

DRAWS: dict[str, Any] = {
    "uniform": lambda d: px.random.uniform((3, 5), device=d),
    "uniform of a range": lambda d: px.random.uniform((7,), -2.5, 3.0, device=d),
    "normal": lambda d: px.random.normal((3, 5), device=d),
    "normal of a spread": lambda d: px.random.normal((9,), 0.7, 0.02, device=d),
    "bernoulli": lambda d: px.random.bernoulli((50,), 0.3, device=d),
    "integers": lambda d: px.random.integers((4, 4), -7, 1000, device=d),
    "permutation": lambda d: px.random.permutation(23, device=d),
    "one": lambda d: px.random.normal((), device=d),
    "none": lambda d: px.random.uniform((0, 2), device=d),
}


def state(key: tuple[int, int], position: int) -> Any:
    return np.array([*key, position], np.uint32)


@pytest.fixture(autouse=True)
def isolated() -> Any:
    with px.random.stream(0):
        yield


@pytest.mark.parametrize("name", DRAWS)
def test_every_backend_draws_the_same_bits(name: str) -> None:
    draw = DRAWS[name]
    found = []
    for backend in BACKENDS:
        with px.random.stream(11):
            draw(backend)  # the second draw, not the first
            found.append(draw(backend))
    for tensor in found:
        assert tensor.kind is found[0].kind
        assert tensor.numpy().dtype == found[0].numpy().dtype
        assert tensor.numpy().tobytes() == found[0].numpy().tobytes()


def test_a_draw_is_a_function_of_key_and_position() -> None:
    key = key_of(2**40 + 5)
    assert key == (2**8, 5)
    with px.random.stream(2**40 + 5):
        for position in range(3):
            np.testing.assert_array_equal(
                px.random.uniform((6,)).numpy(), reference.random_uniform(state(key, position), (6,), np.float32)
            )
        assert px.random.current().position == 3


def test_draws_differ_and_seeds_repeat_them() -> None:
    px.random.seed(3)
    first, second = px.random.normal((8,)).tolist(), px.random.normal((8,)).tolist()
    assert first != second
    px.random.seed(3)
    assert [px.random.normal((8,)).tolist(), px.random.normal((8,)).tolist()] == [first, second]
    px.random.seed(4)
    assert px.random.normal((8,)).tolist() != first
    px.random.seed(-1)
    assert px.random.current().key == (2**32 - 1, 2**32 - 1)
    for seed in (np.int64(3), jnp.int32(3), px.tensor(3), jax.random.key(3), jax.random.PRNGKey(3), (0, 3)):
        px.random.seed(seed)
        assert px.random.normal((8,)).tolist() == first


def test_scopes_nest_and_leave_the_outer_stream_alone() -> None:
    with px.random.stream(1):
        alone = [px.random.uniform((2,)).tolist() for _ in range(2)]
    with px.random.stream(1) as outer:
        around = [px.random.uniform((2,)).tolist()]
        with px.random.stream(2):
            px.random.seed(5)  # seeds the inner stream
            inside = px.random.uniform((2,)).tolist()
        around.append(px.random.uniform((2,)).tolist())
        assert outer.position == 2 and px.random.current() is outer
    assert around == alone
    with px.random.stream(5):
        assert px.random.uniform((2,)).tolist() == inside
    with pytest.raises(ZeroDivisionError), px.random.stream(9):
        raise ZeroDivisionError
    assert px.random.current().key == (0, 0)


def test_a_stream_goes_on_where_it_stands() -> None:
    stream = px.random.Stream((1, 2))
    with px.random.stream(stream):
        px.random.uniform((2,))
    with px.random.stream(stream):
        px.random.uniform((2,))
    assert stream.position == 2 and "position=2" in repr(stream)
    with px.random.stream((1, 2)):
        px.random.uniform((2,))
        second = px.random.uniform((2,)).tolist()
    with px.random.stream(np.array([1, 2, 1], np.uint32)):
        assert px.random.uniform((2,)).tolist() == second
    with px.random.stream(jnp.array([1, 2, 1], jnp.uint32)):
        assert px.random.uniform((2,), device="jax").tolist() == second
    stream.skip(5)
    assert stream.position == 7 and stream.words().tolist() == [1, 2, 7]


def test_sub_streams_are_reserved_in_order() -> None:
    with px.random.stream(7) as stream:
        first, second = stream.substream(), stream.substream()
        assert stream.position == 2
    assert first == reference.fold_in(key_of(7), 0) and second == reference.fold_in(key_of(7), 1)
    assert len({first, second, key_of(7)}) == 3
    with px.random.stream(first):
        a = px.random.uniform((4,)).tolist()
    with px.random.stream(second):
        assert px.random.uniform((4,)).tolist() != a


def test_a_stream_is_used_up_at_last() -> None:
    with px.random.stream(px.random.Stream((0, 0), 2**32 - 2)):
        px.random.uniform((1,))
        with pytest.raises(RandomnessError, match="exhausted"):
            px.random.uniform((1,))


def test_threads_take_different_positions_of_one_stream() -> None:
    stream = px.random.Stream((3, 4))
    together = threading.Barrier(8)

    def work(n: int) -> list[float]:
        with px.random.stream(stream):
            if n < 8:
                together.wait()
            return px.random.uniform((4,)).tolist()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(400)))
    assert stream.position == 400
    with px.random.stream((3, 4)):
        wanted = [px.random.uniform((4,)).tolist() for _ in range(400)]
    assert sorted(found) == sorted(wanted)


def test_a_scope_is_of_its_thread_and_task() -> None:
    seen: list[Any] = []
    with px.random.stream(99):
        thread = threading.Thread(target=lambda: seen.append(px.random.current().key))
        thread.start()
        thread.join()
    assert seen[0] != (0, 99)

    async def task(seed: int) -> list[float]:
        with px.random.stream(seed):
            await asyncio.sleep(0)
            return px.random.uniform((3,)).tolist()

    async def both() -> list[list[float]]:
        return list(await asyncio.gather(task(1), task(2), task(1)))

    first, second, third = asyncio.run(both())
    assert first == third != second


@pytest.mark.parametrize(
    "source", ["a", 1.5, None, (1,), (1, 2, 3), (-1, 0), (0, 2**32), np.zeros(2, np.uint32), np.zeros(3)]
)
def test_what_is_no_stream(source: Any) -> None:
    with pytest.raises((KindError, ShapeError, RangeError), match="key|stream"), px.random.stream(source):
        pass
    with pytest.raises((KindError, ShapeError, RangeError), match="seed|key"):
        px.random.seed(source)


def test_what_is_no_seed() -> None:
    for bad in (2**64, -(2**63) - 1):
        with pytest.raises(RangeError, match=r"in -2\*\*63\.\.2\*\*64-1.*got"):
            px.random.seed(bad)
    with pytest.raises(RandomnessError, match=r"open .*stream\(seed\).* inside"):
        jax.jit(px.random.seed)(3)


# --- inside JAX's own transformations

X = np.ones(4, np.float32)


def noisy(x: Any) -> Any:
    return (x * px.random.normal((4,), device="jax").primitive).sum()


@pytest.mark.parametrize(
    "run",
    [
        lambda: jax.jit(noisy)(X),
        lambda: jax.lax.scan(lambda c, x: (c, noisy(x)), 0.0, X[None]),
        lambda: jax.checkpoint(noisy)(X),
        lambda: jax.grad(jax.checkpoint(noisy))(X),
        lambda: jax.eval_shape(noisy, X),
        lambda: jax.make_jaxpr(noisy)(X),
        lambda: jax.jit(jax.grad(noisy))(X),
        lambda: jax.lax.cond(True, noisy, noisy, X),
        lambda: jax.jit(jax.vmap(noisy))(X[None]),
    ],
    ids=[
        "jit",
        "scan",
        "checkpoint",
        "grad of checkpoint",
        "eval_shape",
        "make_jaxpr",
        "jit of grad",
        "cond",
        "jit of vmap",
    ],
)
def test_a_draw_that_would_be_baked_in_is_refused(run: Any) -> None:
    with pytest.raises(RandomnessError, match=r"phlox\.compile.*phlox\.random\.stream.*valid\(\)"):
        run()
    assert px.random.current().position == 0  # and takes no position


def test_draws_under_grad_vmap_and_jvp_are_as_in_eager() -> None:
    with px.random.stream(5):
        noise = px.random.normal((4,)).numpy()
    with px.random.stream(5):
        np.testing.assert_array_equal(jax.grad(noisy)(X), noise)
        assert px.random.current().position == 1
    with px.random.stream(5):
        np.testing.assert_allclose(jax.vmap(noisy)(np.stack([X, 2 * X])), [noise.sum(), 2 * noise.sum()], rtol=1e-6)
    with px.random.stream(5):
        np.testing.assert_allclose(jax.jvp(noisy, (X,), (2 * X,)), [noise.sum(), 2 * noise.sum()], rtol=1e-6)


def test_a_stream_on_a_traced_key_works_under_jit() -> None:
    def draw(words: Any) -> Any:
        with px.random.stream(words):
            first = px.random.uniform((3,), device="jax").primitive
            return first, px.random.normal((3,), device="jax").primitive

    with px.random.stream(21):
        eager = px.random.uniform((3,)).numpy(), px.random.normal((3,)).numpy()
    found = jax.jit(draw)(px.random.Stream(key_of(21)).words())
    for a, b in zip(found, eager, strict=True):
        assert np.asarray(a).tobytes() == b.tobytes()
    words = np.stack([state(key_of(21), 0), state(key_of(22), 0)])
    many = jax.jit(jax.vmap(draw))(words)
    assert np.asarray(many[1][0]).tobytes() == eager[1].tobytes()
    assert np.asarray(many[1][1]).tobytes() != eager[1].tobytes()


def test_a_parameter_that_is_declared_on_a_traced_key_is_that_of_the_eager_call() -> None:
    def declare(words: Any) -> Any:
        with px.random.stream(words):
            px.random.normal((2,), device="jax")
            return px.Param.deferred((3,), device="jax").val().primitive

    words = state((1, 2), 4)
    np.testing.assert_array_equal(jax.jit(declare)(words), declare(words))


def test_compiled_draws_are_those_of_eager() -> None:
    def draw(x: px.Tensor) -> px.Tensor:
        return px.random.normal((3,), device="jax") * x + px.random.uniform((3,), device="jax")

    x = px.ones((3,), device="jax")
    with px.random.stream(8):
        eager = [draw(x).tolist() for _ in range(2)]
        after = px.random.current().position
    with px.random.stream(8):
        compiled = px.compile(draw)
        np.testing.assert_allclose([compiled(x).tolist() for _ in range(2)], eager, rtol=1e-6)
        assert px.random.current().position == after == 4


# --- saving and restoring


def test_the_state_of_a_stream_is_plain_and_restores_it() -> None:
    px.random.seed(2**33 + 5)
    px.random.uniform((2,))
    saved = px.random.state()
    assert saved == {"key": [2, 5], "position": 1}
    wanted = [px.random.normal((3,)).tolist(), px.random.uniform((3,)).tolist()]
    px.random.seed(0)
    px.random.restore(json.loads(json.dumps(saved)))
    assert [px.random.normal((3,)).tolist(), px.random.uniform((3,)).tolist()] == wanted
    stream = px.random.Stream((0, 0))
    stream.restore(saved)
    with px.random.stream(stream):
        assert px.random.normal((3,)).tolist() == wanted[0]


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, KindError),
        ({}, KindError),
        ({"key": [1, 2]}, KindError),
        ({"key": [1], "position": 0}, KindError),
        ({"key": "ab", "position": 0}, KindError),
        ({"key": [1, 2], "position": 0.5}, KindError),
        ({"key": [1, 2], "position": 0, "more": 1}, KindError),
        ({"key": [1, -2], "position": 0}, RangeError),
        ({"key": [1, 2], "position": 2**32}, RangeError),
    ],
)
def test_what_is_no_state(state: Any, error: type[Exception]) -> None:
    before = px.random.state()
    with pytest.raises(error, match="random stream"):
        px.random.restore(state)
    assert px.random.state() == before


def test_a_stream_in_a_program_has_no_state() -> None:
    x = px.ones((1,), device="jax")
    acts = (px.random.state, lambda: px.random.restore({"key": [0, 0], "position": 0}), lambda: px.random.seed(0))
    for act in acts:
        with pytest.raises(RandomnessError, match="during tracing"):
            px.compile(lambda x, act=act: (act(), x)[1])(x)


def test_a_copy_goes_on_from_the_same_place() -> None:
    stream = px.random.Stream((1, 2), 5)
    for twin in (copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):  # noqa: S301
        assert twin is not stream and twin.state() == stream.state()
        twin.take()
        assert stream.position == 5
