"""Derivatives inside of derivatives: each kind in each, over tensors and modules, against PyTorch's in float64.

Serves: phlox/backend/levels.py, phlox/autodiff/tracers.py, phlox/transform/leaves.py
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError, CompileError, KindError

ENGINES = [NumPy(float="f64"), Torch(float="f64"), Jax()]
RNG = np.random.default_rng(0)
X, V = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2))
W, BIAS, OUT = RNG.normal(size=(2, 4)), RNG.normal(size=4), RNG.normal(size=(4, 1))


def tolerance(engine: Any) -> dict[str, Any]:
    return {"rtol": 1e-9, "atol": 1e-9} if engine.float_element == "f64" else {"rtol": 2e-3, "atol": 2e-3}


class Net(px.Module):
    def __init__(self, device: Any) -> None:
        self.w, self.b, self.out = (px.Param(px.tensor(a, device=device)) for a in (W, BIAS, OUT))

    def __call__(self, x: Any) -> Any:
        return (x @ self.w.val() + self.b.val()).tanh() @ self.out.val()


Theirs = dict[str, torch.Tensor]


def forward(p: Theirs, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ p["w"] + p["b"]) @ p["out"]


def parameters() -> Theirs:
    return {"w": torch.tensor(W), "b": torch.tensor(BIAS), "out": torch.tensor(OUT)}


def total(found: Any) -> Any:
    """The sum of squares of all tensors."""
    parts = [g for _, g in found.items()] if isinstance(found, (px.GradientsParams, dict)) else [found]
    return sum((g.square().sum() for g in parts[1:]), parts[0].square().sum())


def alone(model: Any) -> Any:
    return lambda x: model(x).square().sum()


def scanned(model: Any, x: Any) -> Any:
    """The gradient at each of three points of a path."""

    def step(at: Any, _: Any) -> Any:
        slope = px.grad(alone(model))(at)
        return at - slope * 0.1, slope

    return px.scan(step, x, length=3)[1]


def scanned_by_torch(p: Theirs, x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    for _ in range(3):
        found.append(torch.func.grad(lambda x: forward(p, x).square().sum())(x))
        x = x - found[-1] * 0.1
    return torch.stack(found)


def adapted(model: Any, x: Any) -> Any:
    """A step of gradient descent inside, as MAML takes it."""
    slopes = px.grad(lambda m: m(x).square().sum())(model)
    moved = model.map(lambda path, param: param.map(lambda value: value - slopes.get(param.id) * 0.1))
    return moved(x)


def adapted_by_torch(p: Theirs, x: torch.Tensor) -> torch.Tensor:
    slopes = torch.func.grad(lambda p: forward(p, x).square().sum())(p)
    return forward({name: value - slopes[name] * 0.1 for name, value in p.items()}, x)


def like(x: Any) -> Any:
    return px.tensor(V, device=x.device) if x.shape == V.shape else px.tensor(V[0], device=x.device)


def like_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(V) if x.shape == V.shape else torch.tensor(V[0])


def rows(x: Any) -> Any:
    return x if x.ndim == 2 else x[None, :]


_T = torch.func
INNER: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Theirs, torch.Tensor], Any]]] = {
    "grad of a tensor": (
        lambda m, x: px.grad(alone(m))(x),
        lambda p, x: _T.grad(lambda x: forward(p, x).square().sum())(x),
    ),
    "grad of a module": (
        lambda m, x: px.grad(lambda m: alone(m)(x))(m),
        lambda p, x: _T.grad(lambda p: forward(p, x).square().sum())(p),
    ),
    "value_and_grad of both": (
        lambda m, x: px.value_and_grad(lambda m, x: alone(m)(x), argnums=(0, 1))(m, x)[1][1],
        lambda p, x: _T.grad(lambda p, x: forward(p, x).square().sum(), argnums=(0, 1))(p, x)[1],
    ),
    "grad of a dict": (
        lambda m, x: px.grad(lambda d: alone(d["m"])(d["x"]))({"m": m, "x": x})["m"],
        lambda p, x: _T.grad(lambda p: forward(p, x).square().sum())(p),
    ),
    "grad of grad": (
        lambda m, x: px.grad(lambda x: px.grad(alone(m))(x).square().sum())(x),
        lambda p, x: _T.grad(lambda x: _T.grad(lambda x: forward(p, x).square().sum())(x).square().sum())(x),
    ),
    "vjp": (
        lambda m, x: px.vjp(m, x)[1](m(x))[0],
        lambda p, x: _T.vjp(lambda x: forward(p, x), x)[1](forward(p, x))[0],
    ),
    "jvp": (
        lambda m, x: px.jvp(m, (x,), (like(x),))[1],
        lambda p, x: _T.jvp(lambda x: forward(p, x), (x,), (like_torch(x),))[1],
    ),
    "hvp": (
        lambda m, x: px.hvp(alone(m), x, like(x)),
        lambda p, x: _T.jvp(_T.grad(lambda x: forward(p, x).square().sum()), (x,), (like_torch(x),))[1],
    ),
    "jacobian": (lambda m, x: px.jacobian(m)(x), lambda p, x: _T.jacrev(lambda x: forward(p, x))(x)),
    "hessian": (
        lambda m, x: px.hessian(alone(m))(x),
        lambda p, x: _T.hessian(lambda x: forward(p, x).square().sum())(x),
    ),
    "vmap of grad": (
        lambda m, x: px.vmap(px.grad(lambda r: m(r).square().sum()))(rows(x)),
        lambda p, x: _T.vmap(_T.grad(lambda r: forward(p, r).square().sum()))(rows(x)),
    ),
    "grad of vmap": (
        lambda m, x: px.grad(lambda x: px.vmap(m)(rows(x)).square().sum())(x),
        lambda p, x: _T.grad(lambda x: forward(p, x).square().sum())(x),
    ),
    "in scan": (scanned, scanned_by_torch),
    "checkpoint around": (
        lambda m, x: px.checkpoint(lambda m, x: px.grad(alone(m))(x))(m, x),
        lambda p, x: _T.grad(lambda x: forward(p, x).square().sum())(x),
    ),
    "checkpoint inside": (
        lambda m, x: px.grad(lambda x: px.checkpoint(m)(x).square().sum())(x),
        lambda p, x: _T.grad(lambda x: forward(p, x).square().sum())(x),
    ),
    "a step inside": (adapted, adapted_by_torch),
}


def both(model: Any, x: Any, inner: Any) -> Any:
    """A loss with a part that is a derivative."""
    return model(x).sin().sum() + total(inner(model, x))


def both_by_torch(p: Theirs, x: torch.Tensor, inner: Any) -> torch.Tensor:
    return forward(p, x).sin().sum() + total(inner(p, x))


def of_module(model: Any, found: Any) -> list[Any]:
    return [found.get(param.id) for param in model.params()]


def by_hand(model: Any, x: Any, inner: Any) -> Any:
    """As an ordinary training step does it."""
    return of_module(model, optim.GradientsParams.from_grads(both(model, x, inner).backward(), model))


OUTER: dict[str, tuple[Callable[..., list[Any]], Callable[..., list[Any]]]] = {
    "grad of the module": (
        lambda m, x, inner: of_module(m, px.grad(lambda m: both(m, x, inner))(m)),
        lambda p, x, inner: list(_T.grad(lambda p: both_by_torch(p, x, inner))(p).values()),
    ),
    "backward": (by_hand, lambda p, x, inner: list(_T.grad(lambda p: both_by_torch(p, x, inner))(p).values())),
    "grad of the tensor": (
        lambda m, x, inner: [px.grad(lambda x: both(m, x, inner))(x)],
        lambda p, x, inner: [_T.grad(lambda x: both_by_torch(p, x, inner))(x)],
    ),
    "vjp of both": (
        lambda m, x, inner: (lambda found: [*of_module(m, found[0]), found[1]])(
            px.vjp(lambda m, x: both(m, x, inner), m, x)[1](px.tensor(2.0, device=x.device))
        ),
        lambda p, x, inner: [
            g * 2.0
            for found in [_T.grad(lambda p, x: both_by_torch(p, x, inner), argnums=(0, 1))(p, x)]
            for g in [*found[0].values(), found[1]]
        ],
    ),
    "jvp": (
        lambda m, x, inner: [px.jvp(lambda x: both(m, x, inner), (x,), (like(x),))[1]],
        lambda p, x, inner: [(_T.grad(lambda x: both_by_torch(p, x, inner))(x) * like_torch(x)).sum()],
    ),
    "vmap of grad": (
        lambda m, x, inner: [px.vmap(px.grad(lambda r: both(m, r, inner)))(x)],
        lambda p, x, inner: [torch.stack([_T.grad(lambda r: both_by_torch(p, r, inner))(r) for r in x])],
    ),
}

PLACES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "model A(B), x B": lambda b: (Autodiff(b), b),
    "model A(B), x A(B)": lambda b: (Autodiff(b), Autodiff(b)),
    "model A(B), x A(A(B))": lambda b: (Autodiff(b), Autodiff(Autodiff(b))),
    "model A(A(B)), x A(A(B))": lambda b: (Autodiff(Autodiff(b)), Autodiff(Autodiff(b))),
}


def made(engine: Any, place: str) -> tuple[Any, Any]:
    of_model, of_x = PLACES[place](engine)
    return Net(of_model), px.tensor(X, device=of_x)


def compare(engine: Any, found: list[Any], wanted: list[Any], what: str) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), **tolerance(engine), err_msg=what)


TOWARDS_A_MODULE = ("grad of a module", "grad of a dict", "a step inside")
"""Outside of a differentiated function, gradients towards a module have no history: not for `backward` by hand."""
CASES = [(inner, outer) for outer in OUTER for inner in INNER if outer != "backward" or inner not in TOWARDS_A_MODULE]


def wanted(inner: str, outer: str) -> list[Any]:
    return OUTER[outer][1](parameters(), torch.tensor(X), INNER[inner][1])


@pytest.mark.covering(2)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("inner", "outer"), CASES)
def test_each_in_each(inner: str, outer: str, place: str) -> None:
    model, x = made(ENGINES[0], place)
    compare(ENGINES[0], OUTER[outer][0](model, x, INNER[inner][0]), wanted(inner, outer), place)


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("engine", ENGINES[1:], ids=repr)
def test_each_in_each_on_other_engines(engine: Any, outer: str) -> None:
    for place in list(PLACES)[:2]:
        model, x = made(engine, place)
        for inner in [inner for inner, other in CASES if other == outer]:
            compare(engine, OUTER[outer][0](model, x, INNER[inner][0]), wanted(inner, outer), f"{inner}, {place}")


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("outer", ["grad of the module", "backward", "vjp of both"])
@pytest.mark.parametrize("engine", ENGINES[1:], ids=repr)
def test_each_in_each_compiled(engine: Any, outer: str) -> None:
    inners = [inner for inner, other in CASES if other == outer and inner not in ("hessian", "jacobian")]
    model, x = made(engine, "model A(B), x B")
    found = px.compile(lambda m, x: [OUTER[outer][0](m, x, INNER[inner][0]) for inner in inners])(model, x)
    for inner, mine in zip(inners, found, strict=True):
        compare(engine, mine, wanted(inner, outer), inner)


# --- whole programs, as they are written with PyTorch


def mlp(device: Any, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """A network, and its twin of PyTorch with the same parameters, in float64."""
    rng = np.random.default_rng(7)
    layers: list[Any] = []
    theirs: list[torch.nn.Module] = []
    for d_in, d_out in pairwise(sizes):
        weight, bias = rng.normal(size=(d_in, d_out)) / d_in**0.5, rng.normal(size=d_out) * 0.1
        layer: Any = nn.Linear(d_in, d_out, device=device).init(0)
        layer.weight.set(px.tensor(weight, device=device))
        layer.bias.set(px.tensor(bias, device=device))
        linear = torch.nn.Linear(d_in, d_out).double()
        linear.load_state_dict({"weight": torch.tensor(weight.T), "bias": torch.tensor(bias)})
        layers += [layer, nn.Tanh()]
        theirs += [linear, torch.nn.Tanh()]
    return nn.Sequential(layers[:-1]), torch.nn.Sequential(*theirs[:-1])


def check_parameters(engine: Any, model: Any, theirs: Any, steps_tolerance: float = 5e-4) -> None:
    close: dict[str, Any] = (
        {"rtol": 1e-8, "atol": 1e-9} if engine.float_element == "f64" else {"rtol": 5e-3, "atol": steps_tolerance}
    )
    for mine, other in zip(model.params(), theirs.parameters(), strict=True):
        value = other.detach().numpy()
        np.testing.assert_allclose(mine.val().numpy(), value.T if value.ndim == 2 else value, **close)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_wgan_with_gradient_penalty(engine: Any, compiled: bool) -> None:
    """Gulrajani et al., "Improved training of Wasserstein GANs", 2017: three steps of critic and generator."""
    device = Autodiff(engine).device()
    critic, their_critic = mlp(device, (2, 8, 1))
    generator, their_generator = mlp(device, (3, 6, 2))
    rng = np.random.default_rng(1)
    batches = [(rng.normal(size=(5, 2)), rng.normal(size=(5, 3)), rng.uniform(size=(5, 1))) for _ in range(3)]

    def critic_loss(d: Any, g: Any, real: Any, z: Any, mix: Any) -> Any:
        fake = g(z).detach()
        between = real * mix + fake * (1.0 - mix)
        slope = px.grad(lambda x: d(x).sum())(between)
        return d(fake).mean() - d(real).mean() + 10.0 * ((slope.square().sum(-1).sqrt() - 1.0).square()).mean()

    def step(d: Any, g: Any, d_optimizer: Any, g_optimizer: Any, real: Any, z: Any, mix: Any) -> Any:
        loss, slopes = px.value_and_grad(lambda d: critic_loss(d, g, real, z, mix))(d)
        d = d_optimizer.step(0.05, d, slopes)
        g = g_optimizer.step(0.05, g, px.grad(lambda g: -d(g(z)).mean())(g))
        return d, g, loss

    run = px.compile(step) if compiled else step
    optimizers = [optim.SgdConfig().init() for _ in range(2)]
    d_theirs = torch.optim.SGD(their_critic.parameters(), 0.05)
    g_theirs = torch.optim.SGD(their_generator.parameters(), 0.05)
    for arrays in batches:
        critic, generator, loss = run(
            critic, generator, *optimizers, *(px.tensor(a, device=engine.device()) for a in arrays)
        )
        real, z, mix = map(torch.tensor, arrays)
        fake = their_generator(z).detach()
        between = (real * mix + fake * (1 - mix)).requires_grad_()
        (slope,) = torch.autograd.grad(their_critic(between).sum(), between, create_graph=True)
        penalty = 10 * ((slope.square().sum(-1).sqrt() - 1).square()).mean()
        wanted_loss = their_critic(fake).mean() - their_critic(real).mean() + penalty
        d_theirs.zero_grad()
        wanted_loss.backward()
        d_theirs.step()
        g_theirs.zero_grad()
        (-their_critic(their_generator(z)).mean()).backward()
        g_theirs.step()
        np.testing.assert_allclose(loss.item(), wanted_loss.item(), **tolerance(engine))
    check_parameters(engine, critic, their_critic)
    check_parameters(engine, generator, their_generator)


@pytest.mark.every(3)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_physics_informed_network(engine: Any, compiled: bool) -> None:
    """Raissi et al., 2019: u_t + u u_x - 0.01 u_xx = 0 (Burgers), three steps of Adam."""
    model, theirs = mlp(Autodiff(engine).device(), (2, 8, 1))
    points = np.random.default_rng(2).uniform(-1, 1, size=(6, 2))

    def residual(m: Any, p: Any) -> Any:
        u, first = px.value_and_grad(lambda p: m(p).sum())(p)
        second = px.grad(lambda p: px.grad(lambda p: m(p).sum())(p)[1])(p)
        return first[0] + u * first[1] - 0.01 * second[1]

    def step(m: Any, optimizer: Any, p: Any) -> Any:
        loss, slopes = px.value_and_grad(lambda m: px.vmap(lambda p: residual(m, p))(p).square().mean())(m)
        return optimizer.step(0.01, m, slopes), loss

    run, optimizer = px.compile(step) if compiled else step, optim.AdamConfig().init()
    adam, given = torch.optim.Adam(theirs.parameters(), 0.01), torch.tensor(points, requires_grad=True)
    for _ in range(3):
        model, loss = run(model, optimizer, px.tensor(points, device=engine.device()))
        u = theirs(given)
        (first,) = torch.autograd.grad(u.sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 1].sum(), given, create_graph=True)
        wanted_loss = (first[:, 0] + u[:, 0] * first[:, 1] - 0.01 * second[:, 1]).square().mean()
        adam.zero_grad()
        wanted_loss.backward()
        adam.step()
        np.testing.assert_allclose(loss.item(), wanted_loss.item(), **tolerance(engine))
    check_parameters(engine, model, theirs)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_maml(engine: Any, compiled: bool) -> None:
    """Finn et al., "Model-agnostic meta-learning", 2017: two steps inside, over two tasks."""
    model, theirs = mlp(Autodiff(engine).device(), (1, 8, 1))
    rng = np.random.default_rng(3)
    tasks = [tuple(rng.normal(size=(5, 1)) for _ in range(4)) for _ in range(2)]

    def inside(m: Any, x: Any, y: Any) -> Any:
        slopes = px.grad(lambda m: nn.mse_loss(m(x), y))(m)
        return m.map(lambda path, param: param.map(lambda value: value - 0.1 * slopes.get(param.id)))

    def outside(m: Any, tasks: Any) -> Any:
        losses = [nn.mse_loss(inside(inside(m, x, y), x, y)(x2), y2) for x, y, x2, y2 in tasks]
        return (losses[0] + losses[1]) / 2.0

    run = px.value_and_grad(outside)
    given = [tuple(px.tensor(a, device=engine.device()) for a in task) for task in tasks]
    loss, slopes = (px.compile(run) if compiled else run)(model, given)

    wanted_loss = torch.tensor(0.0, dtype=torch.float64)
    for task in tasks:
        x, y, x2, y2 = map(torch.tensor, task)
        values = dict(theirs.named_parameters())
        for _ in range(2):
            inner = torch.nn.functional.mse_loss(torch.func.functional_call(theirs, values, (x,)), y)
            found = torch.autograd.grad(inner, list(values.values()), create_graph=True)
            values = {name: value - 0.1 * g for (name, value), g in zip(values.items(), found, strict=True)}
        wanted_loss = wanted_loss + torch.nn.functional.mse_loss(torch.func.functional_call(theirs, values, (x2,)), y2)
    (wanted_loss / 2).backward()
    np.testing.assert_allclose(loss.item(), wanted_loss.item() / 2, **tolerance(engine))
    for param, their in zip(model.params(), theirs.parameters(), strict=True):
        assert their.grad is not None
        gradient = their.grad.numpy()
        found = slopes.get(param.id).numpy()
        np.testing.assert_allclose(found, gradient.T if gradient.ndim == 2 else gradient, **tolerance(engine))


# --- what is differentiated towards


def test_any_structure_of_any_arguments() -> None:
    model, x = made(ENGINES[0], "model A(B), x B")

    def loss(d: Any, scale: Any, x: Any) -> Any:
        return (d["net"](x) * d["more"][0] * scale).square().sum(), "beside"

    given = {"net": model, "more": [px.tensor(2.0, device=ENGINES[0]), "a name"]}
    scale = px.tensor(3.0, device=ENGINES[0])
    (value, beside), (of_dict, of_x) = px.value_and_grad(loss, argnums=(0, -1))(given, scale, x)
    assert beside == "beside" and value.backend is Autodiff(ENGINES[0])
    p, two, at = parameters(), torch.tensor(2.0).double(), torch.tensor(X)
    theirs = _T.grad(lambda p, two, at: (forward(p, at) * two * 3.0).square().sum(), argnums=(0, 1, 2))(p, two, at)
    compare(ENGINES[0], of_module(model, of_dict["net"]), list(theirs[0].values()), "the module in a dict")
    compare(ENGINES[0], [of_dict["more"][0], of_x], [theirs[1], theirs[2]], "tensors")
    assert of_dict["more"][1] == "a name" and of_x.backend is Autodiff(ENGINES[0])  # it follows the parameters
    assert all(g.backend is ENGINES[0] for _, g in of_dict["net"].items())
    assert px.grad(loss, argnums=1)(given, scale, x).shape == ()


def test_matrices_of_structures() -> None:
    model, x = made(ENGINES[0], "model A(B), x B")
    p, at = parameters(), torch.tensor(X)
    found = px.jacobian(lambda x, m: {"y": m(x)}, argnums=(0, 1))(x, model)["y"]
    theirs = _T.jacrev(lambda x, p: forward(p, x), argnums=(0, 1))(at, p)
    compare(ENGINES[0], [found[0], *of_module(model, found[1])], [theirs[0], *theirs[1].values()], "jacobian")
    blocks = px.hessian(lambda x, m: m(x).square().sum(), argnums=(0, 1))(x, model)
    wanted = torch.func.jacrev(_T.grad(lambda x, p: forward(p, x).square().sum(), argnums=(0, 1)), argnums=(0, 1))(
        at, p
    )
    compare(ENGINES[0], [blocks[0][0], *of_module(model, blocks[0][1])], [wanted[0][0], *wanted[0][1].values()], "x")
    for row, name in zip(of_module(model, blocks[1]), wanted[1], strict=True):
        compare(
            ENGINES[0], [row[0], *of_module(model, row[1])], [wanted[1][name][0], *wanted[1][name][1].values()], name
        )


# --- where a history would be cut


def test_what_would_cut_a_history_is_an_error() -> None:
    model, x = made(ENGINES[0], "model A(B), x A(B)")

    def by_hand(m: Any) -> Any:
        at = x.require_grad()
        return at.grad(m(at).sum().backward()).square().sum()

    with pytest.raises(
        AutodiffError, match=r"backward\(\) inside a differentiated function would cut that function's history"
    ):
        px.grad(by_hand)(model)

    two = Net(Autodiff(Autodiff(ENGINES[0])))
    with pytest.raises(AutodiffError, match=r"also depends on leaves on .* that are not its arguments"):
        px.grad(lambda x: two(x).sum())(x.inner())

    _, pull = px.vjp(model, x)
    with pytest.raises(AutodiffError, match="that function's history"):
        px.grad(lambda c: pull(c)[0].square().sum())(px.ones((3, 1), device=ENGINES[0]))

    step = px.compile(lambda m, x: m(x).sum())
    model, x = made(Jax(), "model A(B), x A(A(B))")
    with pytest.raises(CompileError, match="a tensor with a history on the tape cannot go into a compiled function"):
        px.grad(lambda x: step(model, x))(x)

    import jax

    with pytest.raises(AutodiffError, match=r"jax's functions see the array of a tensor without its history"):
        px.grad(lambda x: jax.tree.map(lambda a: a * 2.0, {"x": x})["x"].sum())(x)
    with pytest.raises(AutodiffError, match=r"jax's functions see the array of .* without its history"):
        px.grad(lambda m: jax.tree.map(lambda a: a * 2.0, m)(x).sum())(model)

    sgd = optim.SgdConfig().init()

    def through_an_optimizer(m: Any) -> Any:
        return sgd.step(0.1, m, px.grad(lambda m: m(x).square().sum())(m))(x).sum()

    with pytest.raises(AutodiffError, match=r"an optimizer's step inside of a differentiated function"):
        px.grad(through_an_optimizer)(model)


def test_bad_arguments_are_explained() -> None:
    model, x = made(ENGINES[0], "model A(B), x B")
    with pytest.raises(AutodiffError, match=r"argnums is 2, and the function was called with 1 positional arguments"):
        px.grad(lambda x: x.sum(), argnums=2)(x)
    with pytest.raises(KindError, match="argnums is the index of a positional argument or a tuple of indices, got 'x'"):
        px.grad(lambda x: x.sum(), argnums="x")(x)  # type: ignore[arg-type]
    with pytest.raises(KindError, match=r"\['n'\]: Int tensors have no derivatives"):
        px.grad(lambda d: d["x"].sum())({"x": x, "n": px.arange(3)})
    with pytest.raises(AutodiffError, match="must be a module or a tensor, or hold some; got float"):
        px.grad(lambda x: x)(1.0)
    with pytest.raises(AutodiffError, match="no parameter that is trained"):
        px.grad(lambda m: m(x).sum())(model.freeze("**"))
    with pytest.raises(AutodiffError, match="the result does not depend on any parameter that is trained"):
        px.grad(lambda m: (x * 2.0).sum())(model)
    with pytest.raises(AutodiffError, match="records no tape; move the module there: model.train()"):
        px.grad(lambda m: m(x).sum())(model.valid())
    assert px.grad(lambda x: px.tensor(1.0))(x).tolist() == np.zeros((3, 2)).tolist()


def test_views_of_a_module_share_its_leaves() -> None:
    model, x = made(ENGINES[0], "model A(B), x B")
    found = optim.GradientsParams.from_grads(model.train()(x).sum().backward(), model)
    assert len(found) == 3
    assert len(px.grad(lambda m: m.train()(x).sum() + m(x).sum())(model)) == 3
