"""`scan`: the ordinary loop's values, gradients, draws and statistics, in one loop of a program.

Serves: phlox/autodiff/{loop,residuals}.py, phlox/batching/loop.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import (
    BackendError,
    CompileError,
    IndexRangeError,
    KindError,
    ModuleError,
    RandomnessError,
    ShapeError,
)
from phlox.transform.tree import tensors_of
from tests.transform.steps import Counting, Norm

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]
TAPES: list[Backend] = [Autodiff(backend) for backend in PLAIN]
JAX = Autodiff(Jax())
RNG = np.random.default_rng(0)
W = (0.5 * RNG.normal(size=(4, 4))).astype(np.float32)  # far from where tanh is flat, and 1 - tanh(x)^2 all rounding
H = RNG.normal(size=(2, 4)).astype(np.float32)
XS = RNG.normal(size=(3, 2, 4)).astype(np.float32)


def eagerly(fn: Any) -> Any:
    return fn


def loops(fn: Callable[..., Any], *args: Any) -> int:
    """The number of loops in the program of a compiled function of tensors."""
    backend = args[0].backend

    def native(*arrays: Any) -> Any:
        found = fn(*(px.Tensor.from_primitive(a, backend) for a in arrays))
        return [x.backend.strip(x.primitive) for x in tensors_of(found)]

    return str(jax.make_jaxpr(native)(*(x.backend.strip(x.primitive) for x in args))).count(" scan[")


def rnn(w: Any, h: Any, xs: Any, *, reverse: bool = False) -> Any:
    def turn(h: Any, x: Any) -> Any:
        h = (h @ w + x.sin()).tanh()
        return h, {"square": h.square().sum(-1), "positive": h > 0.0}

    return px.scan(turn, h, xs, reverse=reverse)


def unrolled(w: Any, h: Any, xs: Any, *, reverse: bool = False) -> Any:
    squares: list[Any] = []
    for i in reversed(range(3)) if reverse else range(3):
        h = (h @ w + xs[i].sin()).tanh()
        squares.append(h.square().sum(-1))
    return h, {"square": px.stack(squares[::-1] if reverse else squares)}


@pytest.mark.parametrize("backend", [*PLAIN, *TAPES], ids=repr)
@pytest.mark.parametrize("reverse", [False, True], ids=["forth", "back"])
def test_values_are_those_of_the_ordinary_loop(backend: Backend, reverse: bool) -> None:
    w, h, xs = (px.tensor(a, device=backend) for a in (W, H, XS))
    wanted, wanted_ys = unrolled(w, h, xs, reverse=reverse)
    for how in (eagerly, px.compile):
        last, ys = how(lambda w, h, xs: rnn(w, h, xs, reverse=reverse))(w, h, xs)
        np.testing.assert_allclose(last.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ys["square"].numpy(), wanted_ys["square"].numpy(), rtol=1e-5, atol=1e-6)
        assert ys["positive"].kind is px.Bool and ys["positive"].shape == (3, 2, 4)


def gradients(fn: Any, *values: Any) -> list[Any]:
    """The gradients of one number made of everything that `fn` returns, towards all of its arguments."""
    leaves = [x.require_grad() for x in values]
    last, ys = fn(*leaves)
    grads = ((last * 2.0).sum() + (ys["square"] * ys["square"]).sum()).backward()
    return [leaf.grad(grads) for leaf in leaves]


@pytest.mark.parametrize("backend", TAPES, ids=repr)
@pytest.mark.parametrize("reverse", [False, True], ids=["forth", "back"])
def test_gradients_are_those_of_the_ordinary_loop(backend: Backend, reverse: bool) -> None:
    """Towards the carry, what is run along, and a tensor that the function closes over."""
    tensors = [px.tensor(a, device=backend) for a in (W, H, XS)]
    wanted = gradients(lambda *a: unrolled(*a, reverse=reverse), *tensors)
    for how in (eagerly, px.compile):
        got = how(lambda *a: gradients(lambda *b: rnn(*b, reverse=reverse), *a))(*tensors)
        for g, expected in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g.numpy(), expected.numpy(), rtol=2e-5, atol=1e-6)


def test_gradients_are_those_of_raw_jax() -> None:
    def raw(w: Any, h: Any, xs: Any) -> Any:
        def turn(h: Any, x: Any) -> Any:
            h = jnp.tanh(h @ w + jnp.sin(x))
            return h, jnp.sum(h * h, -1)

        last, squares = jax.lax.scan(turn, h, xs)
        return jnp.sum(2 * last) + jnp.sum(squares * squares)

    wanted = jax.grad(raw, (0, 1, 2))(W, H, XS)
    got = px.compile(lambda *a: gradients(rnn, *a))(*(px.tensor(a, device=JAX) for a in (W, H, XS)))
    for g, expected in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g.numpy(), np.asarray(expected), rtol=2e-5, atol=1e-6)


def test_a_program_holds_one_loop_each_way_and_records_once() -> None:
    tensors = [px.tensor(a, device=JAX) for a in (W, H, XS)]
    assert loops(rnn, *tensors) == 1
    assert loops(lambda *a: gradients(rnn, *a), *tensors) == 2
    body = Counting(lambda h, x: ((h + x).tanh(), None))
    compiled = px.compile(lambda h, xs: px.scan(body, h, xs)[0])
    long = px.tensor(np.tile(XS, (40, 1, 1)), device=JAX)
    for _ in range(3):
        compiled(tensors[1], long)
    assert body.calls <= 2  # and not 120


# --- modules


class Block(px.Module):
    def __init__(self, device: Any, rate: float = 0.5) -> None:
        self.linear = nn.Linear(4, 4, device=device)
        self.dropout = nn.Dropout(rate)

    def __call__(self, x: Any) -> Any:
        return x + self.dropout(self.linear(x).tanh())


def blocks(device: Any) -> list[Block]:
    px.random.seed(5)
    return [Block(device).init() for _ in range(3)]


def deep(layers: Any, x: Any) -> Any:
    return px.scan(lambda h, layer: (layer(h), None), x, layers)[0].square().sum()


def plainly(layers: list[Block], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x.square().sum()


@pytest.mark.parametrize("backend", TAPES, ids=repr)
@pytest.mark.parametrize("through", [eagerly, px.checkpoint], ids=["plain", "checkpointed"])
def test_layers_one_a_turn(backend: Backend, through: Any) -> None:
    """With dropout: the same masks, eager and compiled, as one layer after the other."""
    layers = blocks(backend)
    x = px.tensor(H, device=backend)
    with px.random.stream(9):
        wanted = plainly(layers, x)
        position = px.random.current().position
    leaves = [[param.val() for param in layer.params()] for layer in layers]
    grads = wanted.backward()
    expected = [np.stack([leaf.grad(grads).numpy() for leaf in column]) for column in zip(*leaves, strict=True)]

    def step(stacked: Any, x: Any) -> Any:
        return px.value_and_grad(lambda m: px.scan(through(lambda h, layer: (layer(h), None)), x, m)[0].square().sum())(
            stacked
        )

    stacked = px.stack_modules(layers)
    for how in (eagerly, px.compile):
        with px.random.stream(9):
            loss, found = how(step)(stacked, x)
            assert px.random.current().position == position == 3
        np.testing.assert_allclose(loss.item(), wanted.item(), rtol=1e-5)
        assert len(found) == 2
        for param, g in zip(stacked.params(), expected, strict=True):
            np.testing.assert_allclose(found.get(param.id).numpy(), g, rtol=1e-4, atol=1e-5)


def test_a_module_in_the_carry_is_a_copy_and_keeps_statistics() -> None:
    for backend in TAPES:
        norm = Norm(4, backend.device())

        def run(norm: Any, xs: Any) -> Any:
            def turn(norm: Any, x: Any) -> Any:
                return norm, norm(x)  # noqa: B023

            return px.scan(turn, norm, xs)

        plain = Norm(4, backend.device())
        wanted = [plain(x) for x in px.tensor(XS, device=backend)]
        for how in (eagerly, px.compile):
            after, ys = how(run)(norm, px.tensor(XS, device=backend))
            assert norm.mean.val().tolist() == [0.0] * 4
            np.testing.assert_allclose(after.mean.val().numpy(), plain.mean.val().numpy(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(ys.numpy(), px.stack(wanted).numpy(), rtol=1e-5, atol=1e-6)
            assert after.mean.id == norm.mean.id


def test_a_module_from_outside_cannot_keep_statistics_in_a_recorded_loop() -> None:
    norm = Norm(4, JAX.device())
    xs = px.tensor(XS, device=JAX)

    def run(norm: Any, xs: Any) -> Any:
        return px.scan(lambda c, x: (c, norm(x)), None, xs)[1]

    run(norm, xs)
    assert norm.mean.val().abs().sum().item() > 0.0  # an ordinary loop
    with pytest.raises(ModuleError, match=r"into a phlox\.scan as part of the carry"):
        px.compile(run)(norm, xs)


def test_training_steps_in_a_loop() -> None:
    """The model goes from turn to turn, trained in each; a module among the ys is stacked."""
    data = px.tensor(RNG.normal(size=(4, 8, 3)).astype(np.float32), device=JAX)
    px.random.seed(3)
    model = nn.Linear(3, 1, device=JAX).init()

    def train(model: Any, data: Any, scan: Any) -> Any:
        def turn(model: Any, x: Any) -> Any:
            loss, grads = px.value_and_grad(lambda m: (m(x) - x.sum(-1, keepdims=True)).square().mean())(model)
            model = optim.SgdConfig().init().step(0.1, model, grads)
            return model, (loss, model)

        return scan(turn, model, data)

    def loop(turn: Any, model: Any, data: Any) -> Any:
        losses = []
        for x in data:
            model, (loss, _) = turn(model, x)
            losses.append(loss.item())
        return model, losses

    wanted, losses = train(model, data, loop)
    for how in (eagerly, px.compile):
        trained, (found, history) = how(lambda model, data: train(model, data, px.scan))(model, data)
        np.testing.assert_allclose(found.numpy(), losses, rtol=1e-5)
        for a, b, c in zip(trained.params(), wanted.params(), history.params(), strict=True):
            np.testing.assert_allclose(a.val().numpy(), b.val().numpy(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(c.val().numpy()[-1], b.val().numpy(), rtol=1e-5, atol=1e-6)
            assert c.shape == (4, *a.shape) and a.id == b.id and c.id != b.id
    # What comes out of the loop is trained further.
    compiled = px.compile(lambda m, d: px.value_and_grad(lambda n: n(d[0]).sum())(train(m, d, px.scan)[0])[1])
    assert len(compiled(model, data)) == 2


def test_a_module_that_goes_through_unchanged_gets_gradients() -> None:
    """As the weights of a recurrent cell that is carried along."""
    px.random.seed(3)
    cell = nn.Linear(4, 4, device=JAX).init()
    xs = px.tensor(XS, device=JAX)

    def run(cell: Any, xs: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            cell, h = carry
            return (cell, cell(h + x).tanh()), None

        after, h = px.scan(turn, (cell, px.zeros((2, 4), device=JAX)), xs)[0]
        return h.sum() + after(h).sum()

    grads = [how(px.grad(run))(cell, xs) for how in (eagerly, px.compile)]
    assert len(grads[0]) == len(grads[1]) == 2
    for (_, a), (_, b) in zip(grads[0].items(), grads[1].items(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


# --- second derivatives, loops in loops, checkpoints


def composed(x: Any, xs: Any, through: Any, inner: Any) -> Any:
    def inside(h: Any, y: Any) -> Any:
        h = (h * y + x).sin()
        return h, h.exp()

    def turn(h: Any, y: Any) -> Any:
        h, es = px.scan(inner(inside), h, xs)
        return h * y, es.sum()

    h, sums = px.scan(through(turn), x, xs)
    return h.sum() + sums.sum()


@pytest.mark.full
@pytest.mark.parametrize(
    ("through", "inner"),
    [(eagerly, eagerly), (px.checkpoint, eagerly), (eagerly, px.checkpoint)],
    ids=["plain", "outer checkpointed", "inner checkpointed"],
)
def test_second_derivatives_of_loops_in_loops(through: Any, inner: Any) -> None:
    backend = Jax(float="f64")
    x = px.tensor([0.3, -0.2], device=backend)
    xs = px.tensor([[0.5, 1.0], [-1.5, 0.25], [0.1, 0.7]], device=backend)

    def raw(x: Any) -> Any:
        def inside(h: Any, y: Any) -> Any:
            h = jnp.sin(h * y + x)
            return h, jnp.exp(h)

        def turn(h: Any, y: Any) -> Any:
            h, es = jax.lax.scan(inside, h, xs.primitive)
            return h * y, es.sum()

        h, sums = jax.lax.scan(turn, x, xs.primitive)
        return h.sum() + sums.sum()

    def everything(x: Any, xs: Any) -> Any:
        def fn(x: Any) -> Any:
            return composed(x, xs, through, inner)

        return fn(x), px.vjp(fn, x)[1](px.tensor(1.0, device=x.device))[0], px.hessian(fn)(x)

    with jax.enable_x64(True):
        wanted = raw(x.primitive), jax.grad(raw)(x.primitive), jax.hessian(raw)(x.primitive)
    for how in (eagerly, px.compile):
        for got, expected in zip(how(everything)(x, xs), wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), np.asarray(expected), rtol=1e-9)


def test_a_loop_inside_checkpoint() -> None:
    tensors = [px.tensor(a, device=JAX) for a in (W, H, XS)]
    wanted = gradients(rnn, *tensors)
    for how in (eagerly, px.compile):
        got = how(lambda *a: gradients(px.checkpoint(rnn), *a))(*tensors)
        for g, expected in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g.numpy(), expected.numpy(), rtol=2e-5, atol=1e-6)


def temporary(through: Any) -> int:
    """The memory that XLA needs for the gradient of a loop of sixteen turns."""

    def native(w: Any, x: Any) -> Any:
        w, x = (px.Tensor.from_primitive(a, JAX) for a in (w, x))
        leaf = w.require_grad()

        def turn(h: Any, w: Any) -> Any:
            h = h @ w
            for _ in range(4):
                h = (h.tanh() * h.exp()).sin()
            return h, None

        g = leaf.grad(px.scan(through(turn), x, leaf)[0].sum().backward())
        return g.primitive

    program: Any = jax.jit(native).lower(np.zeros((16, 64, 64), np.float32), np.ones((256, 64), np.float32)).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_checkpointed_turns_keep_the_carry_alone() -> None:
    assert temporary(px.checkpoint) < 0.35 * temporary(eagerly)


@pytest.mark.parametrize("backend", [Autodiff(Jax(), recompute=True), Autodiff(Jax(float="bf16"))], ids=repr)
def test_other_tapes(backend: Backend) -> None:
    tensors = [px.tensor(a, device=backend) for a in (W, H, XS)]
    wanted = gradients(unrolled, *tensors)
    got = px.compile(lambda *a: gradients(rnn, *a))(*tensors)
    tolerance = 1e-4 if backend.float_element == "f32" else 0.05
    for g, expected in zip(got, wanted, strict=True):
        np.testing.assert_allclose(
            g.numpy().astype(np.float32), expected.numpy().astype(np.float32), rtol=tolerance, atol=tolerance
        )


def test_functions_with_derivatives_of_their_own() -> None:
    """What they keep is out of reach, so that the body is run again."""

    @px.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2.0, lambda g: g * x  # a wrong derivative, to be recognised

    native = px.lift(jnp.sin)

    def run(x: Any, xs: Any) -> Any:
        return px.scan(lambda h, y: (native(doubled(h) * y), None), x, xs)[0].sum()

    x, xs = px.tensor(H, device=JAX), px.tensor(XS, device=JAX)
    wanted, got = px.grad(run)(x, xs), px.compile(px.grad(run))(x, xs)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)
    assert loops(px.grad(run), x, xs) == 2


def test_a_gradient_within_a_turn() -> None:
    def run(x: Any, xs: Any) -> Any:
        def turn(h: Any, y: Any) -> Any:
            slope = px.grad(lambda z: (z * z * y).sum())(h)
            return h - slope * 0.1, (slope, px.vjp(lambda z: z.exp(), h.detach())[1](y)[0])

        return px.scan(turn, x, xs)

    x, xs = px.tensor(H, device=JAX), px.tensor(XS, device=JAX)
    wanted, got = run(x, xs), px.compile(run)(x, xs)
    for a, b in zip(tensors_of(got), tensors_of(wanted), strict=True):
        assert a.backend is b.backend
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_a_function_that_computes_on_a_tape_above_its_arguments() -> None:
    w = px.tensor(W, device=JAX).require_grad()

    def run(xs: Any) -> Any:
        ys = px.scan(lambda n, x: (n + 1, (x @ w).sum()), 0, xs)[1]
        return w.grad((ys * ys).sum().backward())

    xs = px.tensor(XS, device=Jax())
    np.testing.assert_allclose(px.compile(run)(xs).numpy(), run(xs).numpy(), rtol=1e-4)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_what_meets_a_tape_in_the_loop_is_carried_on_it(backend: Backend) -> None:
    """As tensors from outside of a function that is differentiated."""
    h, xs = px.tensor(H, device=backend), px.tensor(XS, device=backend)

    def run(w: Any) -> Any:
        last, ys = px.scan(lambda c, x: ((c[0] @ w * x, c[0]), c[1].sum()), (h, h), xs)
        return last[0].sum() + (ys * ys).sum()

    def plain(w: Any) -> Any:
        a, b, total = h, h, 0.0
        for x in xs:
            total = total + b.sum().square()
            a, b = a @ w * x, a
        return a.sum() + total

    w = px.tensor(W, device=backend)
    wanted = px.grad(plain)(w).numpy()
    for how in (eagerly, px.compile):
        np.testing.assert_allclose(how(px.grad(run))(w).numpy(), wanted, rtol=1e-4, atol=1e-4)
        many = how(lambda w: px.vmap(px.grad(run))(w))(px.stack([w, w * 0.5]))
        np.testing.assert_allclose(many.numpy()[0], wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(many.numpy()[1], px.grad(plain)(w * 0.5).numpy(), rtol=1e-4, atol=1e-4)


# --- randomness


def noisy(x: Any, xs: Any, reverse: bool) -> Any:
    def turn(h: Any, x: Any) -> Any:
        noise = px.random.normal((2,), device=x.device)
        mask = px.random.bernoulli((2,), 0.5, device=x.device)
        return h + noise, (noise, mask, px.random.uniform((), device=x.device))

    before = px.random.uniform((2,), device=x.device)
    last, ys = px.scan(turn, x, xs, reverse=reverse)
    return before, last, ys, px.random.uniform((2,), device=x.device)


@pytest.mark.parametrize("reverse", [False, True], ids=["forth", "back"])
def test_draws_are_those_of_the_ordinary_loop_to_the_bit(reverse: bool) -> None:
    found: list[bytes] = []
    result: Any = None
    for backend in (*PLAIN, JAX):
        x, xs = px.zeros((2,), device=backend), px.zeros((4, 2), device=backend)
        for how in (eagerly, px.compile) if backend is JAX else (eagerly,):
            with px.random.stream(11) as stream:
                result = how(lambda x, xs: noisy(x, xs, reverse))(x, xs)
                assert stream.position == 2 + 4 * 3
            found.append(b"".join(t.numpy().tobytes() for t in tensors_of(result)))
    assert len(set(found)) == 1
    with px.random.stream(11):
        px.random.uniform((2,))
        first = px.random.normal((2,)).tolist()
    noise = result[2][0]
    assert noise[3 if reverse else 0].tolist() == first
    assert len({tuple(row) for row in noise.tolist()}) == 4


def test_draws_in_loops_in_loops_and_checkpoints() -> None:
    def run(x: Any) -> Any:
        def inside(h: Any, _: Any) -> Any:
            return h * px.random.uniform((2,), device=JAX), None

        def turn(h: Any, _: Any) -> Any:
            h = h + px.random.normal((2,), device=JAX)
            return px.scan(px.checkpoint(inside), h, length=2)[0], None

        return px.scan(px.checkpoint(turn), x, length=3)[0].sum()

    x = px.ones((2,), device=JAX)
    found = []
    for how in (eagerly, px.compile):
        with px.random.stream(4) as stream:
            value, gradient = how(px.value_and_grad(run))(x)
            found.append([value.item(), *gradient.tolist()])
            assert stream.position == 9
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_draws_in_raw_jit_are_refused() -> None:
    def run(x: Any) -> Any:
        return px.scan(lambda h, _: (h + px.random.uniform((2,), device=JAX), None), x, length=2)[0]

    x = px.ones((2,), device=JAX)
    with pytest.raises(RandomnessError, match="constant of the program"):
        jax.jit(run)(x)
    assert jax.jit(lambda x: px.scan(lambda h, _: (h * 2.0, None), x, length=3)[0])(x).tolist() == [8.0, 8.0]


# --- numbers, structures, checks


def test_numbers_in_the_carry_become_tensors() -> None:
    def run(xs: Any, start: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            count, total, low = carry["count"], carry["total"], carry["low"]
            assert count.kind is px.Int and total.shape == () and low is None
            carry = {"total": total + x.sum(), "low": None, "count": count + 1}  # in another order
            return carry, count.float() * 1.0

        return px.scan(turn, {"count": 0, "total": start, "low": None}, xs)

    for backend in PLAIN:
        for how in (eagerly, px.compile):
            last, counts = how(run)(px.tensor(XS, device=backend), 0.5)
            assert last["count"].item() == 3 and counts.tolist() == [0.0, 1.0, 2.0]
            np.testing.assert_allclose(last["total"].item(), 0.5 + XS.sum(), rtol=1e-4)


def test_nothing_to_carry() -> None:
    for how in (eagerly, px.compile):
        carry, ys = how(lambda x: px.scan(lambda c, _: (c, x), None, length=2))(px.ones((3,), device=JAX))
        assert carry is None and ys.shape == (2, 3)


# What no type checker lets through.
HALF: Any = 2.5
NO_FUNCTION: Any = None


def tupled(carry: Any, _: Any) -> Any:
    return (carry[0],), None


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (
        lambda x, xs: px.scan(lambda c, y: ({"h": c["h"].sum(0)}, None), {"h": x}, xs),
        ModuleError,
        r"carry\['h'\] was Float of shape \(2, 4\) .* and is Float of shape \(4,\)",
    ),
    "kind": (lambda x, xs: px.scan(lambda c, y: (c > 0.0, None), x, xs), ModuleError, "carry was Float .* is Bool"),
    "missing": (
        lambda x, xs: px.scan(lambda c, y: ({"a": c["a"]}, None), {"a": x, "b": x}, xs),
        ModuleError,
        r"carry was a dict of 2 and is a dict of 1",
    ),
    "list": (lambda x, xs: px.scan(tupled, [x], xs), ModuleError, "a list of 1 and is a tuple"),
    "constant": (
        lambda x, xs: px.scan(lambda c, y: ((c[0], "b"), None), (x, "a"), xs),
        ModuleError,
        r"carry\[1\] was 'a' and is 'b'",
    ),
    "no pair": (lambda x, xs: px.scan(lambda c, y: c, x, xs), ModuleError, "must return a pair .* got Tensor"),
    "lengths": (
        lambda x, xs: px.scan(lambda c, y: (c, None), x, {"a": xs, "b": xs[:2]}),
        ShapeError,
        r"xs\['a'\] has 3, xs\['b'\] has 2",
    ),
    "length": (lambda x, xs: px.scan(lambda c, y: (c, None), x, xs, length=4), ShapeError, "xs has 3, and length is 4"),
    "no length": (lambda x, xs: px.scan(lambda c, y: (c, None), x), ShapeError, "the number of steps"),
    "no number": (lambda x, xs: px.scan(lambda c, y: (c, y), x, length=HALF), KindError, "length is an integer.* 2.5"),
    "no function": (lambda x, xs: px.scan(NO_FUNCTION, x, xs), KindError, r"a function of \(carry, x\), got NoneType"),
    "no steps": (lambda x, xs: px.scan(lambda c, y: (c, None), x, xs[:0]), ShapeError, "at least one step"),
    "no axis": (lambda x, xs: px.scan(lambda c, y: (c, None), x, (xs, 2.0)), ShapeError, r"xs\[1\] has no axis"),
    "array": (
        lambda x, xs: px.scan(lambda c, y: (c, None), (x, np.ones(3)), xs),
        ModuleError,
        r"carry\[1\]: a value of type ndarray cannot be part of a loop.*make it a tensor",
    ),
    "optimizer": (
        lambda x, xs: px.scan(lambda c, y: (c, None), (x, optim.SgdConfig().init()), xs),
        ModuleError,
        r"carry\[1\]: an optimizer changes in place",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("how", [eagerly, px.compile], ids=["eager", "compiled"])
def test_bad_input(name: str, how: Any) -> None:
    fn, error, message = BAD[name]
    with pytest.raises(error, match=message):
        how(fn)(px.tensor(H, device=JAX), px.tensor(XS, device=JAX))


def test_what_only_one_of_the_two_can_see() -> None:
    counter = iter(range(9))
    with pytest.raises(ModuleError, match=r"one form in every step: y\[0\] was '0' and is '1'"):
        px.scan(lambda c, _: (c, (str(next(counter)),)), px.ones((2,)), length=2)
    x = px.ones((2,), device=JAX)
    with pytest.raises(BackendError, match=r"y is on NumPy\(\), and the loop is traced on .*device="):
        px.compile(lambda x: px.scan(lambda c, _: (c, px.ones((2,))), x, length=2))(x)
    optimizer = optim.AdamConfig().init()
    model = nn.Linear(2, 1, device=JAX).init()

    def turn(m: Any, _: Any) -> Any:
        return optimizer.step(0.1, m, px.grad(lambda m: m(x).sum())(m)), None

    with pytest.raises(CompileError, match="optimizer"):
        px.compile(lambda m: px.scan(turn, m, length=2)[0])(model)
    assert len(px.scan(turn, model, length=2)[0].params()) == 2 and len(optimizer.states) == 2


def test_checks_inside_a_loop() -> None:
    table = px.tensor([1.0, 2.0, 3.0], device=Jax())

    def run(index: Any) -> Any:
        def inside(c: Any, i: Any) -> Any:
            return c, table.take(i)

        def turn(c: Any, row: Any) -> Any:
            return c, px.scan(inside, None, row)[1]

        return px.scan(turn, None, index)[1], px.scan(inside, None, index[0])[1]

    compiled = px.compile(run)
    good, bad = ([[0, 1], [2, -1]], [[0, 1], [7, 0]])
    with px.debug.checks():
        rows, _ = compiled(px.tensor(good, device=Jax()))
        assert rows.tolist() == [[1.0, 2.0], [3.0, 3.0]]
        with pytest.raises(IndexRangeError, match=r"index 7 is out of range .*test_scan\.py:\d+, in inside"):
            compiled(px.tensor(bad, device=Jax()))
    assert compiled(px.tensor(bad, device=Jax()))[0].isnan().any().item()


def test_checks_are_kept_through_gradients() -> None:
    def run(w: Any, index: Any) -> Any:
        return px.grad(lambda w: px.scan(px.checkpoint(lambda c, i: (c * w.take(i), None)), w.sum(), index)[0])(w)

    w = px.tensor([1.0, 2.0, 3.0], device=JAX)
    with px.debug.checks():
        px.compile(run)(w, px.tensor([0, 2], device=JAX))
        with pytest.raises(IndexRangeError, match="index 3 is out of range"):
            px.compile(run)(w, px.tensor([0, 3], device=JAX))
