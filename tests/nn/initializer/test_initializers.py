"""Initializers that shape a weight as a whole, the fans of every layer, and one answer on every backend.

Serves: phlox/nn/initializer/
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from scipy import stats

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, ModuleError, ShapeError

ALL: list[tuple[Any, tuple[int, ...]]] = [
    (nn.Zeros(), (3, 4)),
    (nn.Ones(), (3, 4)),
    (nn.Constant(value=0.3), ()),
    (nn.Uniform(low=-2.0), (3, 4)),
    (nn.Normal(mean=1.0), (3, 4)),
    (nn.TruncatedNormal(std=0.02), (30, 4)),
    (nn.KaimingUniform(), (3, 4)),
    (nn.KaimingNormal(mode="fan_out"), (3, 4)),
    (nn.XavierUniform(), (3, 4)),
    (nn.XavierNormal(), (3, 4)),
    (nn.LecunUniform(), (3, 4)),
    (nn.LecunNormal(), (3, 4)),
    (nn.Orthogonal(gain=2.0), (6, 4)),
    (nn.Orthogonal(), (4, 2, 3, 3)),
    (nn.Eye(gain=0.5), (3, 4)),
    (nn.Dirac(groups=2), (4, 2, 3)),
    (nn.Sparse(sparsity=0.5), (8, 3)),
]


def draw(
    initializer: Any, shape: tuple[int, ...], backend: Backend | None = None, *, seed: int = 7
) -> np.ndarray[Any, Any]:
    with px.random.stream(seed):
        return initializer(shape, (3, 4), (backend or NumPy()).device()).numpy()


@pytest.mark.parametrize(("initializer", "shape"), ALL, ids=lambda value: repr(value))
def test_every_backend_gets_the_same_bits(initializer: Any, shape: tuple[int, ...]) -> None:
    expected = draw(initializer, shape)
    assert expected.shape == shape
    for backend in (Jax(), Torch()):
        np.testing.assert_array_equal(draw(initializer, shape, backend), expected)
    np.testing.assert_allclose(draw(initializer, shape, NumPy(float="f64")), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(draw(initializer, shape, NumPy(float="f16")), expected, rtol=2e-3, atol=1e-3)
    assert type(initializer).from_json(initializer.to_json()) == initializer


def test_all_initializers_are_tested() -> None:
    everything = [getattr(nn, name) for name in nn.__all__]
    found = {value for value in everything if isinstance(value, type) and issubclass(value, nn.Initializer)}
    assert found == {nn.Initializer, *(type(initializer) for initializer, _ in ALL)} and len(found) > 15


# --- whole weights


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (4, 2, 3, 3), (20, 2, 3)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    q = draw(nn.Orthogonal(gain=3.0), shape, NumPy(float="f64")).reshape(shape[0], -1)
    small = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    np.testing.assert_allclose(small, 9.0 * np.eye(len(small)), atol=1e-12)
    theirs = torch.nn.init.orthogonal_(torch.empty(shape)).reshape(shape[0], -1).numpy()
    assert (q.shape[0] <= q.shape[1]) == np.allclose(theirs @ theirs.T, np.eye(shape[0]), atol=1e-5)


def test_orthogonal_matrices_are_equally_likely() -> None:
    """An entry of a random 3 x 3 rotation or reflection is evenly spread over (-1, 1), and signs do not lean."""
    entries = np.array([draw(nn.Orthogonal(), (3, 3), seed=seed) for seed in range(600)])
    for row, column in ((0, 0), (1, 1), (2, 2), (0, 2)):
        assert stats.kstest(entries[:, row, column], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.linalg.det(entries).mean()) < 0.2


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dirac_makes_a_convolution_copy(groups: int, axes: int) -> None:
    layer: Any = [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1]
    conv = layer(4, 4, 3, padding=1, groups=groups, bias=False, initializer=nn.Dirac(groups=groups))
    x = px.random.normal((2, 4, 5, 4, 3)[: axes + 2])
    np.testing.assert_array_equal(conv(x).numpy(), x.numpy())


@pytest.mark.parametrize(("shape", "groups"), [((4, 2, 3), 1), ((2, 4, 3, 2), 1), ((6, 2, 3), 2), ((6, 4, 3, 3, 3), 3)])
def test_dirac_and_eye_are_those_of_pytorch(shape: tuple[int, ...], groups: int) -> None:
    theirs = torch.nn.init.dirac_(torch.empty(shape), groups).numpy()
    np.testing.assert_array_equal(draw(nn.Dirac(groups=groups), shape), theirs)
    np.testing.assert_array_equal(draw(nn.Eye(), shape[:2]), torch.nn.init.eye_(torch.empty(shape[:2])).numpy())


def test_eye_makes_a_dense_layer_copy() -> None:
    x = px.random.normal((3, 4))
    y = nn.Linear(4, 6, initializer=nn.Eye())(x)
    np.testing.assert_array_equal(y.numpy(), np.pad(x.numpy(), ((0, 0), (0, 2))))


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.9, 1.0])
def test_sparse(sparsity: float) -> None:
    w = draw(nn.Sparse(sparsity=sparsity, std=0.5), (201, 40))
    assert ((w == 0).sum(axis=0) == math.ceil(sparsity * 201)).all()
    theirs = torch.nn.init.sparse_(torch.empty(201, 40), sparsity).numpy()
    assert ((theirs == 0).sum(axis=0) == (w == 0).sum(axis=0)).all()
    if sparsity < 1:
        assert stats.kstest(w[w != 0], stats.norm(0, 0.5).cdf).pvalue > 1e-3
        assert len({tuple(column) for column in (w == 0).T}) == (1 if sparsity == 0 else 40)


# --- distributions, against other libraries

SHAPE = (150, 200)
THEIRS: list[tuple[Any, Callable[[], Any]]] = [
    (nn.TruncatedNormal(), lambda: torch.nn.init.trunc_normal_(torch.empty(SHAPE))),
    (
        nn.TruncatedNormal(mean=1.0, std=2.0, low=-1.0, high=0.5),
        lambda: torch.nn.init.trunc_normal_(torch.empty(SHAPE), 1.0, 2.0, -1.0, 2.0),
    ),
    (nn.LecunNormal(), lambda: jax.nn.initializers.lecun_normal()(jax.random.key(1), SHAPE)),
    (nn.LecunUniform(), lambda: jax.nn.initializers.lecun_uniform()(jax.random.key(1), SHAPE)),
    (nn.XavierNormal(), lambda: torch.nn.init.xavier_normal_(torch.empty(SHAPE))),
    (nn.XavierUniform(gain=2.0), lambda: torch.nn.init.xavier_uniform_(torch.empty(SHAPE), 2.0)),
    (nn.KaimingNormal(), lambda: torch.nn.init.kaiming_normal_(torch.empty(SHAPE[::-1]))),
    (nn.KaimingUniform(gain=math.sqrt(2.0)), lambda: torch.nn.init.kaiming_uniform_(torch.empty(SHAPE[::-1]))),
    (
        nn.KaimingNormal(mode="fan_out"),
        lambda: torch.nn.init.kaiming_normal_(torch.empty(SHAPE[::-1]), mode="fan_out"),
    ),
]


@pytest.mark.parametrize(("initializer", "theirs"), THEIRS, ids=[repr(row[0]) for row in THEIRS])
def test_distributions_are_those_of_other_libraries(initializer: Any, theirs: Any) -> None:
    torch.manual_seed(0)
    own = nn.Linear(*SHAPE, bias=False, initializer=initializer).init(3).weight.val().numpy()
    result: Any = stats.ks_2samp(own.ravel(), np.asarray(theirs()).ravel())
    assert result.pvalue > 1e-3


# --- fans

LAYERS: list[tuple[Callable[[Any], Any], tuple[int, int]]] = [
    (lambda spy: nn.Linear(7, 9, initializer=spy), (7, 9)),
    (lambda spy: nn.Embedding(7, 9, initializer=spy), (7, 9)),
    (lambda spy: nn.Conv1d(6, 4, 5, initializer=spy), (30, 20)),
    (lambda spy: nn.Conv2d(6, 4, (3, 5), initializer=spy), (90, 60)),
    (lambda spy: nn.Conv2d(6, 4, (3, 5), groups=2, initializer=spy), (45, 30)),
    (lambda spy: nn.Conv2d(6, 6, 3, groups=6, initializer=spy), (9, 9)),
    (lambda spy: nn.Conv3d(2, 4, (1, 2, 3), initializer=spy), (12, 24)),
    (lambda spy: nn.ConvTranspose1d(6, 4, 5, initializer=spy), (30, 20)),
    (lambda spy: nn.ConvTranspose2d(6, 4, (3, 5), groups=2, initializer=spy), (45, 30)),
    (lambda spy: nn.ConvTranspose3d(2, 4, 2, initializer=spy), (16, 32)),
]


@pytest.mark.parametrize(("make", "fans"), LAYERS)
def test_fans(make: Any, fans: tuple[int, int]) -> None:
    """Connections into and out of a unit: what a unit of the result sums over, by a look at the layer itself."""
    seen: list[tuple[int, int]] = []

    class Spy(nn.Initializer):
        def __call__(self, shape: Any, fans: Any, device: Any) -> Any:
            seen.append(fans)
            return px.ones(shape, device=device)

    layer = make(Spy()).init()
    assert set(seen) == {fans} and len(seen) == len(layer.params())
    if isinstance(layer, (nn.Linear, nn.Embedding)):
        return
    # With weights of one, the middle of the result of ones counts the connections into a unit.
    layer.bias.set(px.zeros(layer.bias.shape))
    transposed = type(layer).__name__.startswith("ConvTranspose")
    channels = layer.weight.shape[0] if transposed else layer.weight.shape[1] * layer.groups
    assert int(layer(px.ones((1, channels, *(11 for _ in layer.weight.shape[2:])))).max().item()) == fans[0]


def bias_of(layer: Any) -> Any:
    return layer.bias.val().numpy()


@pytest.mark.full
def test_the_bias_begins_as_the_weight_unless_told_otherwise() -> None:
    assert np.abs(bias_of(nn.Linear(50, 400).init(0))).max() == pytest.approx(1 / math.sqrt(50), rel=0.02)
    assert (bias_of(nn.Linear(5, 4, initializer=nn.Orthogonal())) == 0).all()
    assert (bias_of(nn.Conv2d(4, 4, 3, initializer=nn.Dirac(), bias_initializer=nn.Ones())) == 1).all()
    config = nn.LinearConfig(5, 4, initializer=nn.Normal(std=0.02), bias_initializer=nn.Zeros())
    assert nn.LinearConfig.from_json(config.to_json()) == config
    assert (bias_of(config.init()) == 0).all()


# --- wrong use

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: draw(nn.Orthogonal(), (3,)), ShapeError, r"Orthogonal: a weight needs at least two axes.*\(3,\)"),
    (lambda: draw(nn.Dirac(), (3, 3)), ShapeError, r"Dirac: a weight must be \[out, in, \*kernel\].*\(3, 3\)"),
    (lambda: draw(nn.Dirac(groups=2), (3, 3, 3)), ShapeError, "3 output channels are not divisible by 2 groups"),
    (lambda: draw(nn.Eye(), (3, 3, 3)), ShapeError, "Eye: a weight must have two axes.*Dirac"),
    (lambda: draw(nn.Sparse(), (3,)), ShapeError, r"Sparse: a weight must have two axes.*\(3,\)"),
    (lambda: nn.Sparse(sparsity=1.5), ConfigError, "sparsity must be between 0 and 1, got 1.5"),
    (lambda: nn.Sparse(std=-1.0), ConfigError, "std must not be negative"),
    (lambda: nn.Normal(std=-1.0), ConfigError, "std must not be negative, got -1.0"),
    (lambda: nn.Uniform(low=2.0), ConfigError, "low must not exceed high, got 2.0 and 1.0"),
    (lambda: nn.TruncatedNormal(low=2.0), ConfigError, "low must be below high"),
    (lambda: nn.Dirac(groups=0), ConfigError, "groups must be at least 1"),
    (lambda: nn.KaimingUniform(mode="fan"), ConfigError, "mode"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_use(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- those of JAX, and none


class Declared(px.Module):
    """Parameters with initializers of JAX, in several forms."""

    def __init__(self, device: Any) -> None:
        of = jax.nn.initializers
        self.glorot = px.Param.deferred((3, 4), of.glorot_uniform(), device=device)
        self.orthogonal = px.Param.deferred((4, 4), of.orthogonal(), device=device)
        self.constant = px.Param.deferred((2,), of.constant(3.0), device=device)
        self.zeros = px.Param.deferred((2,), of.zeros, device=device)
        self.own = px.Param.deferred(
            (3,), lambda key, shape, dtype: jax.random.normal(key, shape, dtype), device=device
        )
        self.partial = px.Param.deferred((3,), functools.partial(jax.random.uniform, minval=2.0), device=device)
        self.none = px.Param.deferred((200, 50), device=device)
        lecun: Any = of.lecun_normal()
        self.layer = nn.Linear(3, 4, initializer=lecun, device=device)


@pytest.mark.parametrize(
    "backend",
    [
        NumPy(),
        Jax(),
        Torch(),
        Autodiff(NumPy()),
        NumPy(float="f64"),
        Jax(float="f64"),
        Torch(float="bf16"),
        NumPy(float="f16"),
    ],
    ids=repr,
)
def test_initializers_of_jax_and_none(backend: Backend) -> None:
    px.random.seed(5)
    model = Declared(backend.device())
    found = {path: param.val().numpy().astype(np.float64) for path, param in model.named_params()}
    assert all(param.backend == backend for param in model.params())
    bound = math.sqrt(6.0 / 7.0)
    assert np.abs(found["glorot"]).max() <= bound and np.abs(found["glorot"]).std() > 0
    close = 2e-2 if backend.float_element in ("bf16", "f16") else 1e-5
    np.testing.assert_allclose(found["orthogonal"] @ found["orthogonal"].T, np.eye(4), atol=close)
    assert found["constant"].tolist() == [3.0, 3.0] and found["zeros"].tolist() == [0.0, 0.0]
    assert len(set(found["own"])) == 3 and (found["partial"] >= 2.0 - 1.0).all()
    assert abs(found["none"].mean()) < 0.05 and abs(found["none"].std() - 1.0) < 0.05
    assert not found["layer.bias"].any() and found["layer.weight"].any()
    px.random.seed(5)
    again = {path: param.val().numpy() for path, param in Declared(backend.device()).named_params()}
    assert all(np.array_equal(found[path], again[path]) for path in found)
    if backend.float_element != "f64":
        px.random.seed(5)
        plain = Declared(NumPy().device())
        for path, param in plain.named_params():
            np.testing.assert_allclose(found[path], param.val().numpy(), rtol=1e-2 if close > 1e-3 else 0)


def test_the_key_is_the_parameters_own() -> None:
    draw: Any = lambda key, shape, dtype: jax.random.normal(key, shape, dtype)  # noqa: E731
    model: Any = nn.Sequential([nn.Linear(2, 2, initializer=draw) for _ in range(2)])
    one, other = (model.layers[n].weight.val().numpy() for n in (0, 1))
    assert not np.array_equal(one, other)
    seeded = [Declared(NumPy().device()).init(3).own.val().numpy() for _ in range(2)]
    assert np.array_equal(seeded[0], seeded[1])
    shapes = jax.jit(lambda: Declared(Jax().device()).init(3).own.val().primitive)
    np.testing.assert_array_equal(shapes(), seeded[0])


def test_an_initializer_of_jax_that_gives_something_else() -> None:
    param = px.Param.deferred((3,), lambda key, shape, dtype: jax.numpy.zeros(2))
    with pytest.raises(ModuleError, match=r"an initializer gave shape \(2,\) for a parameter of shape \(3,\)"):
        param.val()
