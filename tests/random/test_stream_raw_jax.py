"""Draws inside raw JAX transformations that lie within a program: one that would stand for many is refused.

Serves: phlox/backend/jax/keys.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy
from phlox.errors import KindError, RandomnessError, ShapeError

JAX = Jax()
X = np.ones(3, np.float32)


def noisy(x: Any) -> Any:
    return (x * px.random.normal((3,), device=JAX).primitive).sum()


def turn(carry: Any, x: Any) -> Any:
    return carry + noisy(x), None


REPEATING: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: jax.lax.scan(turn, 0.0, jnp.stack([x, x]))[0],
    "map": lambda x: jax.lax.map(noisy, jnp.stack([x, x])),
    "while": lambda x: jax.lax.while_loop(lambda c: c < 2.0, lambda c: c + 1.0 + noisy(x), 0.0),
    "fori": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c + noisy(x), 0.0),
    "cond": lambda x: jax.lax.cond(x[0] > 0, noisy, noisy, x),
    "jit": lambda x: jax.jit(noisy)(x),
    "checkpoint": lambda x: jax.grad(jax.checkpoint(noisy))(x),
    "vmap of scan": lambda x: jax.vmap(lambda y: jax.lax.scan(turn, 0.0, jnp.stack([y, y]))[0])(x[None]),
    "grad of scan": lambda x: jax.grad(lambda y: jax.lax.scan(turn, 0.0, jnp.stack([y, y]))[0])(x),
}


def compiled(fn: Callable[[Any], Any]) -> Any:
    def native(x: px.Tensor) -> px.Tensor:
        return px.Tensor.from_primitive(fn(x.primitive), JAX)

    return px.compile(native)(px.Tensor.from_primitive(jnp.asarray(X), JAX))


@pytest.mark.parametrize("name", REPEATING)
def test_a_draw_that_would_repeat_in_a_compiled_function_is_refused(name: str) -> None:
    with px.random.stream(3) as stream:
        with pytest.raises(RandomnessError, match=r"phlox\.scan or phlox\.checkpoint"):
            compiled(REPEATING[name])
        assert stream.position == 0
        compiled(lambda x: REPEATING["scan"](x) if False else noisy(x))  # and nothing is left behind
        assert stream.position == 1


@pytest.mark.parametrize("name", REPEATING)
def test_and_in_a_scope_on_a_traced_key(name: str) -> None:
    def scoped(words: Any) -> Any:
        with px.random.stream(words):
            return REPEATING[name](X)

    with pytest.raises(RandomnessError, match=r"open .*stream\(key\).* inside it"):
        jax.jit(scoped)(np.array([1, 2, 0], np.uint32))


def test_a_scope_inside_on_a_key_that_changes() -> None:
    keys = np.array([[1, 2, 0], [1, 2, 1], [5, 6, 0]], np.uint32)

    def step(carry: Any, key: Any) -> Any:
        with px.random.stream(key):
            return carry, px.random.normal((3,), device=JAX).primitive

    found = compiled(lambda x: jax.lax.scan(step, 0.0, keys)[1])
    with px.random.stream((1, 2)):
        np.testing.assert_array_equal(found[0].numpy(), px.random.normal((3,)).numpy())
        np.testing.assert_array_equal(found[1].numpy(), px.random.normal((3,)).numpy())
    assert found[2].tolist() != found[0].tolist()


def test_a_key_for_each_example() -> None:
    keys = np.array([[1, 2, 0], [3, 4, 0]], np.uint32)

    def one(key: Any, x: Any) -> Any:
        with px.random.stream(key):
            return noisy(x)

    for how in (lambda fn: fn, jax.jit):
        found = how(jax.vmap(one, (0, None)))(keys, X)
        for key, got in zip(keys, found, strict=True):
            with px.random.stream(key):
                np.testing.assert_allclose(got, px.random.normal((3,)).numpy().sum(), rtol=1e-6)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: jax.grad(noisy)(x).sum(),
        lambda x: jax.vmap(noisy)(jnp.stack([x, x]))[1],
        lambda x: jax.jvp(noisy, (x,), (x,))[0],
        lambda x: jax.vmap(jax.grad(noisy))(jnp.stack([x, x]))[0].sum(),
        lambda x: (
            px.compile(lambda t: px.Tensor.from_primitive(noisy(t.primitive), JAX))(
                px.Tensor.from_primitive(x, JAX)
            ).primitive
        ),
        lambda x: px.scan(
            lambda c, t: (c, px.Tensor.from_primitive(noisy(t.primitive), JAX)),
            None,
            px.Tensor.from_primitive(x[None], JAX),
        )[1].primitive[0],
    ],
    ids=["grad", "vmap", "jvp", "vmap of grad", "compile", "phlox.scan"],
)
def test_draws_that_are_made_once_a_call_go_on_working(run: Any) -> None:
    with px.random.stream(8) as stream:
        wanted = px.random.normal((3,)).numpy().sum()
        second = px.random.normal((3,)).numpy().sum()
    with px.random.stream(8) as stream:
        np.testing.assert_allclose(compiled(run).item(), wanted, rtol=1e-5)
        assert stream.position == 1
        np.testing.assert_allclose(compiled(run).item(), second, rtol=1e-5)


def test_phlox_checkpoint_and_loops_in_a_compiled_step() -> None:
    backend = Autodiff(JAX)

    def loss(x: Any) -> Any:
        block = px.checkpoint(lambda h: h * px.random.normal((3,), device=backend))
        return px.scan(lambda h, _: (block(h), None), block(x), length=2)[0].sum()

    x = px.ones((3,), device=backend)
    with px.random.stream(2):
        wanted = px.grad(loss)(x).numpy()
    with px.random.stream(2) as stream:
        np.testing.assert_allclose(px.compile(px.grad(loss))(x).numpy(), wanted, rtol=1e-5)
        assert stream.position == 3


def test_a_compiled_function_in_a_raw_loop_does_not_repeat_a_draw() -> None:
    draw = px.compile(lambda x: x * px.random.normal((3,), device=JAX))

    def scoped(words: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return carry, draw(px.Tensor.from_primitive(x, JAX)).primitive

        with px.random.stream(words):
            return jax.lax.scan(step, 0.0, np.stack([X, X]))[1]

    with pytest.raises(RandomnessError, match="would repeat"):
        jax.jit(scoped)(np.array([1, 2, 0], np.uint32))


def test_a_stream_on_a_known_array_is_refused_under_a_trace() -> None:
    def fn(x: Any) -> Any:
        with px.random.stream(jnp.array([1, 2, 0], jnp.uint32)):
            return noisy(x)

    known = jnp.array([1, 2, 0], jnp.uint32)

    def around(x: Any) -> Any:
        with px.random.stream(known):
            return noisy(x)

    assert np.isfinite(around(X))
    with pytest.raises(RandomnessError):
        jax.jit(around)(X)
    assert px.ones((1,), device=NumPy()).item() == 1.0


@pytest.mark.parametrize("backend", [Jax(), NumPy()], ids=repr)
def test_a_seed_inside_a_program_means_what_it_does_eagerly(backend: Any) -> None:
    def step(x: px.Tensor) -> px.Tensor:
        with px.random.stream(3):
            fixed = px.random.normal((3,), device=x.device)
        return x + fixed * px.random.normal((3,), device=x.device)

    def loop(x: px.Tensor) -> px.Tensor:
        return px.scan(lambda carry, _: (step(carry), None), x, length=3)[0]

    for fn in (step, loop):
        compiled = px.compile(fn)
        for turn in range(2):
            px.random.seed(turn)
            expected = fn(px.zeros((3,), device=backend)).numpy()
            px.random.seed(turn)
            got = compiled(px.zeros((3,), device=backend)).numpy()
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_a_seed_inside_a_program_does_not_hide_a_raw_loop() -> None:
    def run(x: px.Tensor) -> px.Tensor:
        with px.random.stream(3):
            return px.Tensor.from_primitive(jax.lax.scan(turn, 0.0, jnp.stack([x.primitive] * 2))[0], JAX, px.Float)

    with pytest.raises(RandomnessError, match="would repeat on each run"):
        px.compile(run)(px.tensor(X, device=JAX))


# --- keys of JAX


KEYS: dict[str, Any] = {
    "typed": lambda seed: jax.random.key(seed),
    "raw": lambda seed: jax.random.PRNGKey(seed),
}


@pytest.mark.parametrize("how", KEYS)
def test_a_stream_opens_on_a_key_of_jax(how: str) -> None:
    with px.random.stream(12345) as stream:
        expected = [px.random.normal((3,)).tolist() for _ in range(2)]
    assert stream.position == 2
    for device in ("numpy", "jax", "torch"):
        with px.random.stream(KEYS[how](12345)):
            assert [px.random.normal((3,), device=device).tolist() for _ in range(2)] == expected
    with px.random.stream(jax.random.fold_in(KEYS[how](1), 2)):
        assert px.random.normal((3,)).tolist() != expected[0]


@pytest.mark.parametrize("how", ["typed", "raw"])
def test_a_traced_key_in_raw_transformations(how: str) -> None:
    def draw(key: Any) -> Any:
        with px.random.stream(key):
            return px.random.normal((3,), device="jax").primitive + px.random.uniform((3,), device="jax").primitive

    keys = [KEYS[how](seed) for seed in (1, 2)]
    expected = np.stack([draw(key) for key in keys])
    jitted = jax.jit(draw)
    np.testing.assert_array_equal(np.stack([jitted(key) for key in keys]), expected)
    np.testing.assert_array_equal(jax.vmap(draw)(jax.numpy.stack(keys)), expected)
    np.testing.assert_array_equal(jax.lax.map(draw, jax.numpy.stack(keys)), expected)


def test_what_is_no_key() -> None:
    with (
        pytest.raises(ShapeError, match=r"one key, got an array of keys of shape \(3,\)"),
        px.random.stream(jax.random.split(jax.random.key(0), 3)),
    ):
        pass
    for bad in (jax.numpy.zeros(3), jax.numpy.zeros((2, 2), "uint32"), jax.numpy.zeros(2, "int32")):
        with (
            pytest.raises(KindError, match=r"two integers, or one of JAX.*got an array of \w+ of shape"),
            px.random.stream(bad),
        ):
            pass
    with px.random.stream(jax.random.key(3, impl="rbg")):
        other = px.random.normal((3,)).tolist()
    with px.random.stream(jax.random.key(4, impl="rbg")):
        assert px.random.normal((3,)).tolist() != other
