# ruff: noqa: E501
"""Zeros, infinities, NaN and what is masked: values and derivatives are finite wherever mathematics has them so.

Serves: phlox/tensor/functional/
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, inf, log, nan, pi
from typing import Any, NamedTuple

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from tests.backend.contract.stranger import Stranger

BACKENDS = [NumPy(), Jax(), Torch(), Stranger()]
ENGINES = [NumPy(), Jax(), Torch()]


def beside(x: Any, values: Any) -> Any:
    return px.tensor(values, device=x.device)


class Case(NamedTuple):
    """A function at a point: what it gives, its gradient, and the gradient of w . gradient for w = 1, 2, ..."""

    name: str
    fn: Callable[[Any], Any]
    at: list[Any]
    value: float
    slope: list[Any]
    second: list[Any] | None = None
    """None where there is none: the gradient is a constant."""
    half: bool = True
    """Does the point fit half precision?"""


def binary(target: list[float]) -> Callable[[Any], Any]:
    return lambda p: f.binary_cross_entropy(p, beside(p, target), reduction="sum")


def logits(target: list[float]) -> Callable[[Any], Any]:
    return lambda x: f.binary_cross_entropy_with_logits(x, beside(x, target), reduction="sum")


def divergence(target: list[float], **options: Any) -> Callable[[Any], Any]:
    return lambda x: f.kl_div(x, beside(x, target), reduction="sum", **options)


def counts(target: list[float], **options: Any) -> Callable[[Any], Any]:
    return lambda x: f.poisson_nll_loss(x, beside(x, target), reduction="sum", **options)


def of_variance(v: Any) -> Any:
    return f.gaussian_nll_loss(beside(v, [1.0]), beside(v, [2.0]), v)


def of_mean(x: Any) -> Any:
    return f.gaussian_nll_loss(x, beside(x, [2.0]), beside(x, [inf]))


def soft(x: Any) -> Any:
    return f.cross_entropy(x, beside(x, [[1.0, 0.0]]))


def without_a_class(x: Any) -> Any:
    return f.cross_entropy(x, beside(x, [1]), weight=beside(x, [1.0, 0.0]), reduction="sum")


def without_a_row(x: Any) -> Any:
    return f.cross_entropy(x, beside(x, [0, 7]), ignore_index=7)


def smoothed_without_a_row(x: Any) -> Any:
    return f.cross_entropy(x, beside(x, [0, 7]), ignore_index=7, label_smoothing=0.5)


def likelihood_without_a_row(x: Any) -> Any:
    return f.nll_loss(x, beside(x, [0, 7]), ignore_index=7)


def weighed(x: Any) -> Any:
    return f.binary_cross_entropy(x, beside(x, [1.0, 1.0]), weight=beside(x, [1.0, 0.0]), reduction="sum")


def logits_weighed(x: Any) -> Any:
    return f.binary_cross_entropy_with_logits(x, beside(x, [0.0, 1.0]), weight=beside(x, [1.0, 0.0]), reduction="sum")


# For [x, 0] the softmax at x = 0 is one half.
TABLE = [
    # Binary cross-entropy: bounded logarithms are flat.
    Case("bce where right", binary([0.0, 1.0]), [0.0, 1.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("bce where wrong", binary([0.0, 1.0]), [1.0, 0.0], 200.0, [0.0, 0.0], [0.0, 0.0]),
    Case("bce soft", binary([0.5, 0.5]), [0.0, 1.0], 100.0, [0.0, 0.0], [0.0, 0.0]),
    Case("bce inside", binary([0.0, 1.0]), [0.5, 0.5], 2 * log(2), [2.0, -2.0], [4.0, 8.0]),
    Case("bce of a sigmoid", lambda x: binary([1.0, 0.0, 1.0])(x.sigmoid()), [1000.0, -1000.0, 0.0], log(2), [0.0, 0.0, -0.5],
         [0.0, 0.0, 0.75]),
    Case("bce, targets", lambda t: f.binary_cross_entropy(beside(t, [0.0, 1.0, 0.5]), t, reduction="sum"), [0.0, 1.0, 0.5], log(2),
         [100.0, -100.0, 0.0]),
    # ... from infinite logits, and from weights of zero.
    Case("bce of logits", logits([0.0, 1.0, 1.0]), [-inf, inf, 0.0], log(2), [0.0, 0.0, -0.5], [0.0, 0.0, 0.75]),
    Case("bce weight of zero", weighed, [0.5, nan], log(2), [-2.0, 0.0], [4.0, 0.0]),
    Case("bce of logits, weight of zero", logits_weighed, [0.0, nan], log(2), [0.5, 0.0], [0.25, 0.0]),
    # Divergences: 0 log 0 = 0.
    Case("kl_div", divergence([0.0, 1.0]), [-inf, -1.0], 1.0, [0.0, -1.0]),
    Case("kl_div of logarithms", divergence([-inf, 0.0], log_target=True), [-inf, -1.0], 1.0, [0.0, -1.0]),
    Case("kl_div, targets", lambda t: f.kl_div(beside(t, [-inf, -1.0]), t, log_target=True, reduction="sum"), [-inf, 0.0], 1.0,
         [0.0, 2.0], [0.0, 6.0]),
    Case("poisson", counts([0.0, 1.0]), [-inf, 0.0], 1.0, [0.0, 0.0], [0.0, 2.0]),
    Case("poisson, rates", counts([0.0, 1.0], log_input=False, epsilon=0.0), [0.0, 1.0], 1.0, [1.0, 0.0], [0.0, 2.0]),
    Case("gaussian, infinite variance", of_variance, [inf], inf, [0.0], [0.0]),
    Case("gaussian, mean, infinite variance", of_mean, [1.0], inf, [0.0], [0.0]),
    Case("huber far out", lambda x: f.huber_loss(x, x.detach() * 0.0 + beside(x, [0.0])), [60000.0], 59999.5, [1.0], [0.0]),
    # Classes without probability, weight, or part in the loss.
    Case("cross_entropy soft", soft, [[0.0, -inf]], 0.0, [[0.0, 0.0]], [[0.0, 0.0]]),
    Case("cross_entropy weight of zero", without_a_class, [[0.0, -inf]], 0.0, [[0.0, 0.0]], [[0.0, 0.0]]),
    Case("cross_entropy ignored", without_a_row, [[0.0, 0.0], [nan, inf]], log(2), [[-0.5, 0.5], [0.0, 0.0]], [[-0.25, 0.25], [0.0, 0.0]]),
    Case("cross_entropy smoothed, ignored", smoothed_without_a_row, [[0.0, 0.0], [nan, inf]], log(2), [[-0.25, 0.25], [0.0, 0.0]],
         [[-0.25, 0.25], [0.0, 0.0]]),
    Case("nll_loss ignored", likelihood_without_a_row, [[-1.0, 0.0], [nan, inf]], 1.0, [[-1.0, 0.0], [0.0, 0.0]]),
    # Norms and angles at zero are constant, however often they are differentiated.
    Case("norm", lambda x: x.norm(), [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("norm of 3", lambda x: x.norm(3.0), [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("norm of -1", lambda x: x.norm(-1.0), [0.0, 1.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("matrix norm", lambda x: px.linalg.matrix_norm(x), [[0.0, 0.0], [0.0, 0.0]], 0.0, [[0.0, 0.0]] * 2, [[0.0, 0.0]] * 2),
    Case("std", lambda x: x.std(), [1.0, 1.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("hypot", lambda x: x[0].hypot(x[1]), [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("atan2", lambda x: x[0].atan2(x[1]), [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("atan2 far out", lambda x: x[0].atan2(x[1]), [1.0, inf], 0.0, [0.0, 0.0], [0.0, 0.0]),
    # Sums of exponentials of nothing.
    Case("logsumexp", lambda x: x.logsumexp(0), [-inf, -inf], -inf, [0.0, 0.0], [0.0, 0.0]),
    Case("logaddexp", lambda x: x[0].logaddexp(x[1]), [-inf, -inf], -inf, [0.5, 0.5], [0.0, 0.0]),
    Case("softmax", lambda x: x.softmax()[0], [0.0, -inf], 1.0, [0.0, 0.0], [0.0, 0.0]),
    Case("log_softmax", lambda x: x.log_softmax()[0], [0.0, -inf], 0.0, [0.0, 0.0], [0.0, 0.0]),
    # Powers and products.
    Case("0 to the power of 0", lambda x: x[0] ** x[1], [0.0, 0.0], 1.0, [0.0, 0.0], [0.0, 0.0]),
    Case("0 to the power of x", lambda x: (0.0**x).sum(), [0.0, 2.0], 1.0, [0.0, 0.0]),
    Case("0 to a negative power", lambda x: (0.0**x).sum(), [-1.0], inf, [-inf]),
    Case("xlogy", lambda x: x[0].xlogy(x[1]), [0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]),
    Case("sinc", lambda x: x.sinc().sum(), [0.0], 1.0, [0.0], [-pi**2 / 3]),
    # Far out, where squares overflow and slopes end.
    Case("gelu by tanh", lambda x: x.gelu(approximate=True).sum(), [30000.0, -30000.0], 30000.0, [1.0, 0.0], [0.0, 0.0]),
    Case("gelu by tanh, farther", lambda x: x.gelu(approximate=True).sum(), [1e20, -1e20], 1e20, [1.0, 0.0], [0.0, 0.0], half=False),
    Case("gelu", lambda x: x.gelu().sum(), [30000.0, -30000.0], 30000.0, [1.0, 0.0], [0.0, 0.0]),
    Case("gelu, infinite", lambda x: x.gelu().sum(), [inf], inf, [1.0], [0.0]),
    Case("atan", lambda x: x.atan().sum(), [inf], pi / 2, [0.0], [0.0]),
    Case("asinh", lambda x: x.asinh().sum(), [inf], inf, [0.0], [0.0]),
    Case("erf", lambda x: x.erf().sum(), [inf], 1.0, [0.0], [0.0]),
    Case("erfc", lambda x: x.erfc().sum(), [inf], 0.0, [0.0], [0.0]),
    Case("softsign", lambda x: f.softsign(x).sum(), [60000.0], 60000.0 / 60001.0, [1.0 / 60001.0**2], [-2.0 / 60001.0**3]),
    Case("sinc far out", lambda x: x.sinc().sum(), [60000.0], 0.0, [1.0 / 60000.0], None),
    # What a branch is not taken for.
    Case("where", lambda x: px.where(x > 0.0, x.exp(), 0.0).sum(), [-inf, 0.0, 1.0], exp(1.0), [0.0, 0.0, exp(1.0)], [0.0, 0.0, 3 * exp(1.0)]),
    Case("median of an infinity", lambda x: x.median(), [1.0, inf, 2.0], 2.0, [0.0, 0.0, 1.0]),
]  # fmt: skip


def slope_of(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return px.grad(fn)


def second_of(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def along(x: Any) -> Any:
        weights = beside(x, np.arange(1.0, x.size + 1.0).reshape(x.shape))
        return (px.grad(fn)(x) * weights).sum()

    return px.grad(along)


def close(case: Case, what: str, got: Any, right: Any, rtol: float, atol: float) -> None:
    np.testing.assert_allclose(
        np.asarray(got.numpy(), np.float64), np.asarray(right, np.float64), rtol, atol, err_msg=f"{case.name}: {what}"
    )


def found_of(case: Case, x: Any) -> list[Any]:
    """The value, the gradient, and the second derivative if that is compared."""
    return [run(x) for run in (case.fn, slope_of(case.fn), *([second_of(case.fn)] if case.second is not None else ()))]


def check(device: Any, rtol: float, atol: float) -> None:
    """All of the table; on XLA as one program."""
    cases = [case for case in TABLE if case.half or device.float_element in ("f32", "f64")]
    points = [px.tensor(case.at, device=device) for case in cases]

    def whole(points: list[Any]) -> list[Any]:
        return [found_of(case, x) for case, x in zip(cases, points, strict=True)]

    results = (px.compile(whole) if isinstance(device, Jax) else whole)(points)
    wrong: list[str] = []
    for case, found in zip(cases, results, strict=True):
        rights = [("value", case.value), ("gradient", case.slope), ("second derivative", case.second)]
        for got, (what, right) in zip(found, rights, strict=False):
            try:
                close(case, what, got, right, rtol, atol)
            except AssertionError as error:
                wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


ACCURACY = {"f64": (1e-9, 1e-12), "f32": (1e-5, 1e-6), "f16": (5e-3, 5e-3), "bf16": (3e-2, 3e-2)}
PLACES = [
    *BACKENDS, *(engine(float=precision) for engine in (NumPy, Torch) for precision in ("f64", "f16", "bf16")), Jax(float="f16"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", PLACES, ids=repr)
def test_table(backend: Any) -> None:
    check(backend, *ACCURACY[backend.float_element])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_table_batched() -> None:
    for case in TABLE:
        both = px.vmap(slope_of(case.fn))(px.tensor([case.at, case.at], device=NumPy()))
        close(case, "gradients", both, [case.slope, case.slope], 1e-5, 1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_table_eager_on_jax() -> None:
    for case in TABLE:
        close(case, "gradient", slope_of(case.fn)(px.tensor(case.at, device=Jax())), case.slope, 1e-5, 1e-6)


# --- what is masked


def gradient(x: Any, found: Any) -> np.ndarray[Any, Any]:
    return x.grad(found).numpy()


def gradients(fn: Callable[..., Any], *values: np.ndarray[Any, Any], device: Any) -> list[np.ndarray[Any, Any]]:
    """The result and the gradient of w . result towards each operand, for some w."""
    operands = [px.tensor(x, device=Autodiff(device)).require_grad() for x in values]
    y = fn(*operands)
    weights = np.random.default_rng(1).normal(size=y.shape)
    found = (y * beside(y, weights)).sum().backward()
    return [y.inner().numpy(), *(gradient(x, found) for x in operands)]


ATTENTION = ["keys", "heads", "groups", "causal", "added", "one head"]


@pytest.mark.covering(2)
@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_attention_does_not_read_what_no_query_sees(backend: Any, kind: str, bad: float) -> None:
    rng = np.random.default_rng(0)
    heads, groups, n, m, d = 4, 2 if kind == "groups" else 4, 3, 5, 4
    query, key, value = (rng.normal(size=(2, h, size, d)) for h, size in ((heads, n), (groups, m), (groups, m)))
    mask = np.ones((2, 1, 1, m), np.bool_)
    mask[0, ..., 3:] = mask[1, ..., 4:] = False
    clean, dirty = (key, value), [np.where(mask[:, :, 0, :, None], x, bad) for x in (key, value)]
    if kind in ("heads", "groups"):
        mask = np.broadcast_to(mask, (2, heads, n, m)).copy()
    if kind == "one head":
        query, mask, clean, dirty = query[0, 0], mask[0, 0], [x[0, 0] for x in clean], [x[0, 0] for x in dirty]
    given = np.where(mask, 0.0, -inf) if kind == "added" else mask

    def attend(query: Any, key: Any, value: Any) -> Any:
        return f.attention(query, key, value, mask=beside(query, given), causal=kind == "causal")

    wanted = gradients(attend, query, *clean, device=backend)
    for got, right in zip(gradients(attend, query, *dirty, device=backend), wanted, strict=True):
        np.testing.assert_allclose(got, right, 1e-5, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_attention_that_sees_nothing_has_no_gradient(backend: Any) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4))
    mask = np.array([[True, True, False], [False, False, False], [True, False, False]])
    found = gradients(lambda q, k, v: f.attention(q, k, v, mask=beside(q, mask)), x, x, x, device=backend)
    assert all(np.isfinite(one).all() for one in found)
    assert not found[0][1].any() and not found[1][1].any()  # the query that sees nothing
    assert not found[2][2].any() and not found[3][2].any()  # the key that nothing sees


@pytest.mark.covering(1)
@pytest.mark.parametrize("layer", [nn.Lstm, nn.Gru, nn.Rnn])
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_recurrent_layers_do_not_read_padding(backend: Any, layer: Any) -> None:
    device = Autodiff(backend)
    model = layer(3, 4, bidirectional=True, device=device).init(0)
    values = np.random.default_rng(0).normal(size=(3, 5, 3))
    lengths = [2, 5, 0]
    inside = np.arange(5) < np.array(lengths)[:, None]

    def run(beyond: float) -> list[Any]:
        x = px.tensor(np.where(inside[..., None], values, beyond), device=device).require_grad()
        y, _ = model(x, lengths=lengths)
        found = (y * beside(y, np.arange(y.size).reshape(y.shape) / y.size)).sum().backward()
        assert not gradient(x, found)[~inside].any()
        return [y.inner().numpy(), gradient(x, found), *(gradient(p.val(), found) for p in model.params())]

    for got, right in zip(run(nan), run(0.0), strict=True):
        np.testing.assert_allclose(got, right, 1e-5, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_ctc_does_not_read_beyond_lengths(backend: Any) -> None:
    values = np.random.default_rng(0).normal(size=(4, 2, 3))
    targets, steps, lengths = [[1, 2], [1, 9]], [4, 2], [2, 1]

    def loss(x: Any) -> Any:
        return f.ctc_loss(x, *(beside(x, one) for one in (targets, steps, lengths)), reduction="none")

    dirty = values.copy()
    dirty[2:, 1] = nan
    for got, right in zip(gradients(loss, dirty, device=backend), gradients(loss, values, device=backend), strict=True):
        np.testing.assert_allclose(got, right, 1e-5, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_dropped_elements_may_be_anything(backend: Any) -> None:
    device = Autodiff(backend)
    x = px.tensor([inf, nan] * 4, device=device).require_grad()
    y = nn.Dropout(1.0)(x)
    assert not y.inner().numpy().any() and not gradient(x, y.sum().backward()).any()


# --- what engines overlook


@pytest.mark.covering(2)
@pytest.mark.parametrize("shape, axis", [((3000,), 0), ((300, 40), 1), ((7, 30, 50), (0, 2))])
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("engine", [NumPy, Jax, Torch])
def test_reductions_of_many_see_nan(engine: Any, precision: Any, shape: tuple[int, ...], axis: Any) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    place = tuple(size // 2 for size in shape)
    values[place] = nan
    x = px.tensor(values, device=engine(float=precision))
    wanted = np.isnan(values).any(axis)

    def reductions(x: Any) -> list[Any]:
        named = [getattr(x, name)(axis) for name in ("max", "min", "sum", "mean", "prod", "std", "logsumexp")]
        return [*named, *(x.norm(p, axis) for p in (1.0, 2.0, 3.0, inf, -inf))]

    for found in (px.compile(reductions) if engine is Jax else reductions)(x):
        np.testing.assert_array_equal(found.isnan().numpy(), wanted)


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_max_pooling_sees_nan(backend: Any, window: int) -> None:
    values = np.random.default_rng(0).normal(size=(8, 16, 24, 24)).astype(np.float32)
    values[0, 0, 0, 0] = values[-1, -1, -1, -1] = nan
    tiles = values.reshape(8, 16, 24 // window, window, 24 // window, window)
    got = f.max_pool2d(px.tensor(values, device=backend), window).numpy()
    np.testing.assert_array_equal(got, tiles.max((3, 5)))


@pytest.mark.covering(2)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("values", [[0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, -0.0, 1.0, -1.0], [nan, -0.0, 0.0, nan, -inf]])
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_topk_knows_no_sign_of_zero(backend: Any, values: list[float], largest: bool) -> None:
    x = np.array(values)
    order = np.argsort(-x if largest else x, kind="stable")
    if largest:
        order = np.concatenate([order[np.isnan(x[order])], order[~np.isnan(x[order])]])
    take = partial(px.Tensor.topk, k=3, largest=largest)
    device = backend.device()
    runs = [take, px.compile(take)] if isinstance(backend, Jax) else [take]
    for run in runs:
        np.testing.assert_array_equal(run(px.tensor(x, device=device))[1].numpy(), order[:3])


# --- functions of eigenvectors and singular vectors that do not depend on their choice


@pytest.mark.covering(2)
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4])
@pytest.mark.parametrize("precision, accuracy", [("f32", 2e-5), ("f64", 1e-11)])
@pytest.mark.parametrize("engine", [NumPy, Jax, Torch])
def test_projectors_and_rotations(engine: Any, precision: Any, accuracy: float, noise: float) -> None:
    """Of equal and of nearly equal eigenvalues: the projector on their space, and the rotation of a polar decomposition."""
    rng = np.random.default_rng(0)
    n, k, device = 12, 5, engine(float=precision)
    basis, other = (np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(2))
    weights, disturbance = rng.normal(size=(n, n)), noise * rng.normal(size=(n, n))
    symmetric = (basis * np.where(np.arange(n) < k, 1.0, 2.0)) @ basis.T + disturbance + disturbance.T
    general = basis @ other.T + disturbance
    symmetric, general = (x.astype(np.float32).astype(np.float64) for x in (symmetric, general))

    def projector(x: Any) -> Any:
        v = px.linalg.eigh(x).eigenvectors[:, :k]
        return (v @ v.mT * beside(x, weights)).sum()

    def rotation(x: Any) -> Any:
        u, _, vh = px.linalg.svd(x, full_matrices=False)
        return (u @ vh * beside(x, weights)).sum()

    w, v = np.linalg.eigh(symmetric)
    between = np.zeros((n, n))
    between[:k, k:] = 1.0 / (w[:k, None] - w[k:])
    inner = v.T @ (weights + weights.T) @ v * 0.5 * (between + between.T)
    found = px.grad(projector)(px.tensor(symmetric, device=device)).numpy()
    np.testing.assert_allclose(found, v @ inner @ v.T, 0.0, accuracy)
    u, s, vh = np.linalg.svd(general)
    inner = u.T @ weights @ vh.T
    wanted = u @ ((inner - inner.T) / (s[:, None] + s)) @ vh
    found = px.grad(rotation)(px.tensor(general, device=device)).numpy()
    np.testing.assert_allclose(found, wanted, 0.0, accuracy)
