"""Distributions as objects, against SciPy (values), PyTorch (gradients) and the statistics of what is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.random import Bernoulli, Categorical, Distribution, Normal, Uniform

stats: Any = scipy.stats
ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}
DRAWS = np.random.default_rng(0)
A, B = (DRAWS.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2))
CLASSES = DRAWS.integers(0, 4, (2, 3))
ONES = DRAWS.integers(0, 2, (2, 3, 4)).astype(np.bool_)
X = DRAWS.normal(size=(2, 3, 4)).astype(np.float32)
HIGH = np.abs(A) + 2.0


def softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.float64(x)))


KINDS: dict[str, Any] = {
    "categorical": (Categorical, lambda a: td.Categorical(logits=a), (A,), (B,), CLASSES),
    "bernoulli": (Bernoulli, lambda a: td.Bernoulli(logits=a), (A,), (B,), ONES),
    "normal": (Normal, td.Normal, (A, np.exp(B)), (B, np.exp(A)), X),
    "uniform": (Uniform, td.Uniform, (A * 0.0 - 3.0, HIGH), (A * 0.0 - 4.0, HIGH + 1.0), X),
}
"""The class, that of PyTorch, the parameters of two distributions, and values."""


def made(kind: str, backend: Any, which: int = 2) -> Any:
    return KINDS[kind][0](*[px.tensor(x, device=backend) for x in KINDS[kind][which]])


def values(kind: str, backend: Any) -> Any:
    return px.tensor(KINDS[kind][4], device=backend)


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_those_of_scipy(engine: str) -> None:
    backend = ENGINES[engine]
    close: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}
    p, q = softmax(np.float64(A)), softmax(np.float64(B))
    one = made("categorical", backend)
    found = np.log(np.take_along_axis(p, CLASSES[..., None], -1)[..., 0])
    np.testing.assert_allclose(one.log_prob(values("categorical", backend)).numpy(), found, **close)
    np.testing.assert_allclose(one.entropy().numpy(), stats.entropy(p, axis=-1), **close)
    np.testing.assert_allclose(one.kl(made("categorical", backend, 3)).numpy(), stats.entropy(p, q, axis=-1), **close)
    np.testing.assert_allclose(one.mean.numpy(), (p * np.arange(4)).sum(-1), **close)
    np.testing.assert_array_equal(one.mode.numpy(), A.argmax(-1))
    for name, law in {
        "bernoulli": stats.bernoulli(sigmoid(A)),
        "normal": stats.norm(A, np.exp(np.float64(B))),
        "uniform": stats.uniform(np.full_like(A, -3.0), HIGH + 3.0),
    }.items():
        one = made(name, backend)
        log_prob = law.logpmf(ONES) if name == "bernoulli" else law.logpdf(X)
        np.testing.assert_allclose(one.log_prob(values(name, backend)).numpy(), log_prob, **close)
        np.testing.assert_allclose(one.entropy().numpy(), law.entropy(), **close)
        np.testing.assert_allclose(one.mean.numpy(), law.mean(), **close)
        assert one.shape == (2, 3, 4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_values_and_gradients_are_those_of_pytorch(engine: str, kind: str, compiled: bool) -> None:
    make, theirs, first, second, x = KINDS[kind]
    if compiled and engine == "torch" and kind != "categorical":
        pytest.skip("one is enough: its compiler takes seconds")
    place = ENGINES[engine].device()
    weights = np.linspace(0.5, 1.5, int(np.prod(x.shape))).reshape(x.shape).astype(np.float32)

    def scores(*parameters: Any) -> Any:
        half = len(parameters) // 2
        one, other = make(*parameters[:half]), make(*parameters[half:])
        scaled = px.tensor(weights, device=place)
        terms = (one.log_prob(values(kind, place)), one.entropy(), one.kl(other))
        return sum(((term * scaled).sum() for term in terms), px.tensor(0.0, device=place))

    given = [px.tensor(one, device=place) for one in (*first, *second)]
    run: Any = px.value_and_grad(scores, argnums=tuple(range(len(given))))
    value, grads = (px.compile(run) if compiled else run)(*given)
    leaves = [torch.tensor(np.float64(one), requires_grad=True) for one in (*first, *second)]
    one, other = theirs(*leaves[: len(first)]), theirs(*leaves[len(first) :])
    w, sample = torch.tensor(np.float64(weights)), torch.tensor(x)
    expected = sum(
        (w * term).sum()
        for term in (
            one.log_prob(sample.double() if kind != "categorical" else sample), one.entropy(),
            td.kl_divergence(one, other),
        )
    )  # fmt: skip
    assert isinstance(expected, torch.Tensor)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for grad, leaf in zip(grads, leaves, strict=True):
        np.testing.assert_allclose(grad.numpy(), np.asarray(leaf.grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_distributed_as_they_should(kind: str) -> None:
    n = 20_000
    with px.random.stream(3):
        drawn = made(kind, NumPy()).sample((n,)).numpy()
    assert drawn.shape == (n, *made(kind, NumPy()).shape)
    flat = drawn.reshape(n, -1)
    for number in range(flat.shape[1]):
        if kind == "categorical":
            expected = softmax(np.float64(A)).reshape(-1, 4)[number] * n
            assert stats.chisquare(np.bincount(flat[:, number], minlength=4), expected).pvalue > 1e-4
        elif kind == "bernoulli":
            p = float(sigmoid(A).reshape(-1)[number])
            assert stats.binomtest(int(flat[:, number].sum()), n, p).pvalue > 1e-4
        else:
            a, b = (np.float64(one).reshape(-1)[number] for one in KINDS[kind][2])
            law = stats.norm(a, b) if kind == "normal" else stats.uniform(a, b - a)
            assert stats.kstest(flat[:, number], law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_on_every_backend_with_and_without_a_tape(kind: str) -> None:
    found: list[Any] = []
    for backend in (*ENGINES.values(), Autodiff(NumPy()), Autodiff(Jax())):
        one = made(kind, backend)
        with px.random.stream(5):
            eager = one.sample((7,))
        with px.random.stream(5):
            compiled = eager if backend is ENGINES["torch"] else px.compile(lambda law: law.sample((7,)))(one)
        np.testing.assert_allclose(eager.numpy(), compiled.numpy(), rtol=1e-6, atol=1e-6)
        assert eager.device.backend in (backend, getattr(backend, "inner", None))
        found.append(eager.numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_of_normal_and_uniform_are_differentiable(engine: str) -> None:
    place = ENGINES[engine].device()
    with px.random.stream(1):
        noise = px.random.normal((50,), device=place).numpy()

    def cost(mean: Any, std: Any) -> Any:
        with px.random.stream(1):
            return Normal(mean, std).sample((50,)).square().mean()

    mean, std = px.tensor(0.5, device=place), px.tensor(2.0, device=place)
    grads = px.grad(cost, argnums=(0, 1))(mean, std)
    x = 0.5 + 2.0 * np.float64(noise)
    assert [one.item() for one in grads] == pytest.approx([np.mean(2 * x), np.mean(2 * x * noise)], rel=1e-5)
    with px.random.stream(1):
        unit = px.random.uniform((50,), device=place).numpy()
    with px.random.stream(1):
        grad = px.grad(lambda high: Uniform(0.0, high).sample((50,)).mean())(std)
    assert grad.item() == pytest.approx(unit.mean(), rel=1e-5)


def test_one_for_each_example_of_vmap() -> None:
    means, x = px.tensor(A[0]), px.tensor(X[0])
    found = px.vmap(lambda mean, x: Normal(mean, 2.0).log_prob(x).sum())(means, x)
    np.testing.assert_allclose(found.numpy(), stats.norm(A[0], 2.0).logpdf(X[0]).sum(-1), rtol=1e-5)
    found = px.vmap(lambda logits, x: Categorical(logits).log_prob(x))(means, px.tensor(CLASSES[0]))
    np.testing.assert_allclose(found.numpy(), np.log(softmax(A[0]))[range(3), CLASSES[0]], rtol=1e-5)
    with px.random.stream(1):
        drawn = px.vmap(lambda mean: Normal(mean, 1e-6).sample((5,)))(means)
    np.testing.assert_allclose(drawn.numpy(), A[0][:, None].repeat(5, 1), atol=1e-4)
    with px.random.stream(1):
        classes = px.vmap(lambda logits: Categorical(logits * 1e4).sample((5,)))(means)
        ones = px.vmap(lambda logits: Bernoulli(logits * 1e4).sample((5,)))(means)
    assert (classes.numpy() == A[0].argmax(-1)[:, None]).all()
    assert (ones.numpy() == (A[0] > 0)[:, None]).all()


def test_a_compiled_function_takes_and_gives_distributions() -> None:
    @px.compile
    def moved(law: Normal) -> Normal:
        return Normal(law.mean + 1.0, law.std * 2.0)

    found = moved(Normal(px.zeros((3,), device=Jax()), 1.0))
    assert isinstance(found, Normal)
    assert (found.mean.tolist(), found.std.tolist()) == ([1.0] * 3, [2.0] * 3)


def test_shapes_broadcast() -> None:
    law = Normal(px.zeros((3,)), px.ones((2, 1)))
    assert law.shape == (2, 3) and law.std.shape == (2, 3)
    assert law.log_prob(px.zeros((5, 1, 1))).shape == (5, 2, 3)
    classes = Categorical(px.zeros((2, 3)))
    assert classes.shape == (2,)
    assert classes.log_prob(px.tensor([[0, 1], [2, 2], [1, 1]])).shape == (3, 2)
    assert classes.sample((4, 5)).shape == (4, 5, 2)
    assert Categorical(px.zeros((3,))).sample().shape == ()
    assert Bernoulli(px.zeros((3,))).log_prob(px.ones((2, 1)) > 0.0).shape == (2, 3)
    assert Uniform(0.0, px.ones((3,))).sample((4,)).shape == (4, 3)


# --- the edges


def test_what_cannot_be_drawn_has_no_probability() -> None:
    never = Categorical(px.tensor([0.0, -math.inf]))
    assert never.log_prob(px.tensor([0, 1, 2, -1])).tolist() == [0.0, -math.inf, -math.inf, -math.inf]
    assert never.entropy().item() == 0.0
    assert never.kl(Categorical(px.tensor([0.0, 0.0]))).item() == pytest.approx(math.log(2.0))
    assert Categorical(px.tensor([0.0, 0.0])).kl(never).item() == math.inf
    assert Categorical(probs=px.tensor([0.0, 3.0, 1.0])).probs.tolist() == pytest.approx([0.0, 0.75, 0.25])
    sure = Bernoulli(probs=px.tensor([0.0, 1.0]))
    assert sure.log_prob(True).tolist() == [-math.inf, 0.0]
    assert sure.log_prob(0).tolist() == [0.0, -math.inf]
    assert sure.log_prob(0.5).tolist() == [-math.inf] * 2
    assert sure.entropy().tolist() == [0.0, 0.0]
    assert sure.kl(sure).tolist() == [0.0, 0.0]
    assert sure.sample((4,)).tolist() == [[False, True]] * 4
    assert Uniform(0.0, 1.0).log_prob(px.tensor([-0.1, 0.0, 1.0])).tolist() == [-math.inf, 0.0, -math.inf]
    assert Uniform(0.0, 2.0).kl(Uniform(0.0, 1.0)).item() == math.inf


def test_gradients_are_finite_where_a_class_is_impossible() -> None:
    for cost in (lambda law: law.entropy(), lambda law: law.kl(Categorical(px.tensor([0.0, 0.0, 1.0])))):
        grad = px.grad(lambda x, cost=cost: cost(Categorical(x)))(px.tensor([0.0, -math.inf, 1.0]))
        assert np.isfinite(grad.numpy()).all() and grad[1].item() == 0.0


@pytest.mark.parametrize("logit", [-1000.0, -90.0, 90.0, 1000.0])
def test_far_logits_are_exact(logit: float) -> None:
    law = Bernoulli(px.tensor(logit))
    assert law.log_prob(True).item() == pytest.approx(min(logit, 0.0), abs=1e-30)
    assert law.log_prob(False).item() == pytest.approx(min(-logit, 0.0), abs=1e-30)
    assert 0.0 <= law.entropy().item() < 1e-30
    assert math.isfinite(px.grad(lambda x: Bernoulli(x).entropy())(px.tensor(logit)).item())
    wide = Categorical(px.tensor([logit, 0.0]))
    assert wide.log_prob(1).item() == pytest.approx(min(-logit, 0.0), abs=1e-30)
    assert 0.0 <= wide.entropy().item() < 1e-30


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_rounds_once(kind: str) -> None:
    half = NumPy(float="f16")
    parameters = [px.tensor(x, device=half) for x in KINDS[kind][2]]
    law = KINDS[kind][0](*parameters)
    exact = KINDS[kind][1](*[torch.tensor(np.float64(x.numpy())) for x in parameters])
    x = values(kind, half)
    expected = exact.log_prob(torch.tensor(x.numpy().astype(np.int64 if kind == "categorical" else np.float64)))
    found = law.log_prob(x)
    assert found.device.backend is half
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-3, atol=1e-3)
    assert law.sample((2,)).numpy().dtype.kind in "fib"


# --- wrong arguments

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Categorical(), KindError, "give either logits or probs"),
    (lambda: Bernoulli(px.zeros(()), probs=px.zeros(())), KindError, "give either logits or probs"),
    (lambda: Categorical([0.0, 1.0]), KindError, "logits is a Float tensor, got list; see px.tensor"),  # type: ignore[arg-type]
    (lambda: Categorical(px.tensor([0, 1])), KindError, r"convert with .float\(\)"),
    (lambda: Categorical(px.tensor(0.0)), ShapeError, r"shape \(\) has none"),
    (lambda: Categorical(probs=px.tensor([-1.0, 2.0])), RangeError, "must not be negative"),
    (lambda: Categorical(px.zeros((3,))).log_prob(px.zeros((1,))), KindError, "classes are an Int tensor, got Float"),
    (lambda: Categorical(px.zeros((2, 3))).log_prob(px.tensor([0, 1, 2])), ShapeError, r"\(3,\) do not broadcast with"),
    (lambda: Bernoulli(probs=px.tensor(1.5)), RangeError, "between 0 and 1"),
    (lambda: Bernoulli(px.zeros((2,))).log_prob(px.zeros((3,))), ShapeError, "do not broadcast"),
    (lambda: Normal(0.0, 0.0), RangeError, "std must be greater than 0"),
    (lambda: Normal(0.0, math.nan), RangeError, "std must be greater than 0"),
    (lambda: Normal("0", 1.0), KindError, "mean is a Float tensor, got str"),  # type: ignore[arg-type]
    (lambda: Normal(0.0, 1.0).log_prob("x"), KindError, "x is a Float tensor or a number, got str"),
    (lambda: Normal(px.zeros((2,)), 1.0).log_prob(px.zeros((3,))), ShapeError, "do not broadcast"),
    (lambda: Normal(0.0, 1.0).kl(Uniform(0.0, 1.0)), KindError, "give another Normal, got Uniform"),  # type: ignore[arg-type]
    (lambda: Uniform(1.0, 1.0), RangeError, "high must be greater than low"),
    (lambda: Distribution(), TypeError, "abstract"),  # type: ignore[abstract]
]


@pytest.mark.parametrize(("act", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_arguments(act: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act()
