"""`compile` on PyTorch: compiled equals eager, with PyTorch's compiler and with the traced graph as it is.

Serves: phlox/backend/torch/compiler/codegen.py, phlox/backend/torch/compiler/kernels/embedding_grad.py
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import _inductor as inductor

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.ops import random as generator
from phlox.errors import CompileError, DeviceError, RandomnessError
from phlox.models.digits import DigitsConfig
from tests.transform.steps import Counting, X, close, data, network, step, values

TAPE = Autodiff(Torch()).device()
BACKENDS = [
    Autodiff(Torch()),
    Autodiff(Torch(float="f64")),
    Autodiff(Torch(), recompute=True),
    Autodiff(Autodiff(Torch())),
]


def t(values: Any, device: Any = TAPE) -> px.Tensor:
    return px.tensor(values, device=device)


def train(run: Callable[..., Any], model: Any, x: px.Tensor, steps: int = 4) -> tuple[Any, list[float], int]:
    optimizer, losses = optim.AdamWConfig().init(), list[float]()
    with px.random.stream(7) as stream:
        for number in range(steps):
            model, loss = run(model, optimizer, 0.1 / (number + 1), x)
            losses.append(loss.item())
        return model, losses, stream.position


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_a_step_with_dropout_and_running_statistics_equals_the_eager_one(backend: Backend) -> None:
    device = backend.device()
    model, expected, position = train(step, network(device=device), data(device=device))
    run = px.compile(step)
    compiled, losses, compiled_position = train(run, network(device=device), data(device=device))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    close(compiled, model)
    assert compiled_position == position > 0 and run.programs == 1


def test_bfloat16() -> None:
    device = Autodiff(Torch(float="bf16")).device()
    model, expected, _ = train(step, network(device=device, rate=0.0), data(device=device))
    compiled, losses, _ = train(px.compile(step), network(device=device, rate=0.0), data(device=device))
    np.testing.assert_allclose(losses, expected, rtol=0.05)
    assert {str(value.dtype) for value in values(compiled)} == {"bfloat16"}
    assert [v.shape for v in values(compiled)] == [v.shape for v in values(model)]


@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("values", [2.0, [2.0, 3.0]], ids=["without axes", "with axes"])
def test_a_number_that_is_an_argument_leaves_half_precision_as_it_is(element: Any, values: Any) -> None:
    formulas: list[Callable[[px.Tensor, float], px.Tensor]] = [
        lambda x, r: x * r, lambda x, r: r - x, lambda x, r: x / r, lambda x, r: x + r, lambda x, r: x**r,
        lambda x, r: x.maximum(r), lambda x, r: x.minimum(r), lambda x, r: px.where(x > 2.5, x, r),
    ]  # fmt: skip

    def every(x: px.Tensor, r: float) -> list[px.Tensor]:
        return [formula(x, r) for formula in formulas]

    x = px.tensor(values, device=Torch(float=element))
    for found, expected in zip(px.compile(every)(x, 0.5), every(x, 0.5), strict=True):
        assert found.primitive.dtype == expected.primitive.dtype == x.primitive.dtype
        np.testing.assert_allclose(found.numpy().astype(np.float32), expected.numpy().astype(np.float32), rtol=0.01)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_pytorchs_compiler_makes_code_of_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
        noise = px.random.normal(x.shape, device=x.device)
        model, loss = step(model, optimizer, lr, x + noise)
        return model, loss, noise

    monkeypatch.setenv(VARIABLE, "inductor")
    counting, found = Counting(noisy), list[Any]()
    for run in (noisy, px.compile(counting)):
        model, optimizer = nn.Linear(4, 1, device=TAPE).init(0), optim.SgdConfig(momentum=0.9).init()
        losses, noises = list[float](), list[Any]()
        with px.random.stream(px.random.Stream((0xDEADBEEF, 0xFFFFFFFF), 2**32 - 100)) as stream:
            for rate in (0.1, 0.05):
                model, loss, noise = run(model, optimizer, rate, data(device=TAPE))
                losses.append(loss.item())
                noises.append(noise.numpy())
        assert stream.position == 2**32 - 98
        found.append((model, losses, noises))
    close(found[1][0], found[0][0])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
    np.testing.assert_array_equal(found[1][2], found[0][2])
    assert counting.calls == 1


def draws(device: Any) -> list[Any]:
    return [
        px.random.uniform((33,), device=device),
        px.random.normal((5, 7), device=device),
        px.random.bernoulli((65,), 0.3, device=device),
        px.random.integers((40,), -5, 2**31 - 6, device=device),
        px.random.permutation(50, device=device),
        px.random.uniform((0,), device=device),
    ]


@pytest.mark.parametrize("key", [(0, 0), (0xDEADBEEF, 0xFFFFFFFF)])
def test_draws_are_those_of_eager_calls_bit_for_bit(key: tuple[int, int]) -> None:
    x = px.zeros((1,), device=Torch())
    run = px.compile(lambda x: draws(x.device))
    for position in (0, 2**32 - 100):
        with px.random.stream(px.random.Stream(key, position)):
            expected = [one.numpy() for one in [*draws(x.device), *draws(x.device)]]
        with px.random.stream(px.random.Stream(key, position)) as stream:
            found = [one.numpy() for one in [*run(x), *run(x)]]
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        assert stream.position == position + 12


@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
def test_draws_of_other_elements(element: Any) -> None:
    x = px.zeros((1,), device=Torch(float=element))
    with px.random.stream(5):
        expected = [px.random.normal((9,), device=x.device).numpy(), px.random.uniform((9,), device=x.device).numpy()]
    run = px.compile(lambda x: [px.random.normal((9,), device=x.device), px.random.uniform((9,), device=x.device)])
    with px.random.stream(5):
        for a, b in zip(expected, run(x), strict=True):
            np.testing.assert_array_equal(a, b.numpy())


def test_a_network_of_convolutions_and_pooling() -> None:
    config = DigitsConfig()
    images = t(np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype(np.float32))
    targets = t(np.array([1, 2, 3, 4]))

    def learn(model: Any, optimizer: Any, x: px.Tensor, y: px.Tensor) -> Any:
        loss = px.functional.cross_entropy(model(x), y)
        return optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss

    found: list[Any] = []
    for run in (learn, px.compile(learn)):
        px.random.seed(3)
        model, optimizer = config.init(TAPE).init(0), optim.SgdConfig().init()
        losses: list[float] = []
        for _ in range(2):
            model, loss = run(model, optimizer, images, targets)
            losses.append(loss.item())
        found.append((model, losses))
    close(found[1][0], found[0][0])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)


def block(x: px.Tensor, table: px.Tensor, ids: Any, weight: px.Tensor) -> px.Tensor:
    h = px.functional.layer_norm(table.take(ids, 0) + x)
    q = (h @ weight).reshape((2, 5, 2, 4)).permute_dims((0, 2, 1, 3))
    h = h + nn.functional.attention(q, q, q, causal=True).permute_dims((0, 2, 1, 3)).reshape((2, 5, 8))
    return px.functional.gelu(h) @ table.permute_dims((1, 0))


def test_derivatives_of_an_attention_block() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((2, 5, 8), (6, 8), (8, 8))]
    ids = t(np.arange(10).reshape(2, 5) % 6)

    def gradients(x: px.Tensor, table: px.Tensor, weight: px.Tensor, ids: Any) -> list[Any]:
        leaves = [one.require_grad() for one in (x, table, weight)]
        logits = block(leaves[0], leaves[1], ids, leaves[2])
        grads = px.functional.cross_entropy(logits.reshape((10, 6)), ids.reshape((10,))).backward()
        return [leaf.grad(grads) for leaf in leaves]

    given: list[Any] = [t(array) for array in arrays]
    run: Any = px.compile(gradients)
    for a, b in zip(gradients(given[0], given[1], given[2], ids), run(*given, ids), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
@pytest.mark.parametrize(
    ("codegen", "element", "tolerance"),
    [("inductor", "f32", 2e-6), ("none", "f32", 2e-6), ("none", "f64", 1e-12), ("none", "bf16", 2e-2)],
)
@pytest.mark.parametrize("approximate", [True, False])
def test_a_layer_of_tokens_with_a_bias_and_gelu(
    monkeypatch: pytest.MonkeyPatch, approximate: bool, element: Any, tolerance: float, codegen: str
) -> None:
    monkeypatch.setenv(VARIABLE, codegen)
    device, exact = (Autodiff(Torch(float=one)).device() for one in (element, "f64"))

    def gradients(x: px.Tensor, weight: px.Tensor, bias: px.Tensor) -> list[Any]:
        leaves = [one.require_grad() for one in (x, weight, bias)]
        y = px.functional.linear(*leaves).gelu(approximate=approximate)
        grads = (y * px.arange(3, device=x.device).float()).sum().backward()
        return [y, *[leaf.grad(grads) for leaf in leaves]]

    # With a weight of ones in one place, from where gelu is nothing to where it is its argument.
    x = np.linspace(-16.0, 16.0, 20).reshape(2, 5, 2)
    given = x, np.array([[1.0, 0.0, 1e-3], [0.0, 1.0, 0.5]]), np.array([0.5, 0.25, -1.0])
    found = px.compile(gradients)(*(t(one, device) for one in given))
    for a, b in zip(found, gradients(*(t(one, exact) for one in given)), strict=True):
        np.testing.assert_allclose(a.numpy().astype(np.float64), b.numpy(), rtol=tolerance, atol=20 * tolerance)


def test_several_steps_are_one_program() -> None:
    xs = np.stack([X, X + 1.0, X * 0.5])
    eager, losses = network(device=TAPE), list[float]()
    optimizer = optim.AdamWConfig().init()
    with px.random.stream(1):
        for number, x in enumerate(xs):
            eager, loss = step(eager, optimizer, 0.1 / (number + 1), data(x, TAPE))
            losses.append(loss.item())
    run, model, rates = px.compile(step, steps=3, over=("lr", "x")), network(device=TAPE), [0.1, 0.05, 0.1 / 3]
    with px.random.stream(1):
        model, found = run(model, optim.AdamWConfig().init(), cast("Any", rates), data(xs, TAPE))
    np.testing.assert_allclose(found.numpy(), losses, rtol=1e-5)
    close(model, eager)


def test_numbers_are_arguments() -> None:
    counting: Any = Counting(
        lambda x, rate, count: (x * rate + count, (x.sum() * rate).maximum(count), rate - x / count)
    )
    run, x = px.compile(counting), t([1.0, 2.0])
    for rate, count in ((0.5, 3), (-2.0, 7), (1e30, -1)):
        for a, b in zip(run(x, rate, count), counting.fn(x, rate, count), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
            assert a.primitive.dtype == torch.float32
    assert counting.calls == 1


@pytest.mark.parametrize("needs", [
    lambda x, n: x.sum().item(), lambda x, n: x if x.sum() > 0 else -x, lambda x, n: x.numpy(),
    lambda x, n: x if n > 0 else -x, lambda x, n: [x for _ in range(n)], lambda x, n: x.reshape((n,)),
])  # fmt: skip
def test_a_value_that_is_needed_while_recording_is_named(needs: Any) -> None:
    with pytest.raises(CompileError, match="needed while the function is being compiled|unknown during tracing"):
        px.compile(needs)(t([1.0]), 1)


def test_shapes_views_and_results_that_are_arguments() -> None:
    counting = Counting(lambda x: (x, x.permute_dims((1, 0)), x[0], 3))
    run = px.compile(counting)
    for array in (X, X.T, X[::2]):
        x = t(array.copy()) if array is not X.T else t(X).permute_dims((1, 0))
        same, turned, row, constant = run(x)
        np.testing.assert_array_equal(same.numpy(), array)
        np.testing.assert_array_equal(turned.numpy(), array.T)
        np.testing.assert_array_equal(row.numpy(), array[0])
        assert constant == 3
    assert counting.calls == 3
    run(t(np.ascontiguousarray(X.T)))  # in memory of another order it is the same program
    assert counting.calls == 3


class Filters(px.Module):
    """A convolution, whose kernel gives the gradient of its weight channels last."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(4, 6, 3, device=TAPE)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.conv(x)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
@pytest.mark.parametrize("codegen", ["inductor", "none"])
@pytest.mark.parametrize("donate", [(), ("model", "optimizer")], ids=["kept", "donated"])
def test_results_lie_row_by_row_whatever_weights_and_kernels_give(
    donate: tuple[str, ...], codegen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, codegen)
    x, found = t(np.arange(200.0).reshape(2, 4, 5, 5) / 100.0), list[Any]()
    last = np.random.default_rng(0).normal(size=(6, 3, 3, 4))
    for run in (step, px.compile(step, donate=donate)):
        model, optimizer = Filters().init(0), optim.AdamWConfig().init()
        model.conv.weight.set(t(last).permute_dims((0, 3, 1, 2)))
        for _ in range(2):
            model, _ = run(model, optimizer, 0.1, x)
        found.append(model)
    close(found[1], found[0])
    arrays = [param.val().backend.strip(param.val().primitive) for param in found[1].params()]
    assert all(array.is_contiguous() for array in arrays)


def test_without_a_compiler_donated_arguments_are_used_up_in_name_only() -> None:
    run = px.compile(step, donate=("model", "optimizer"))
    model = network(device=TAPE)
    updated, _ = run(model, optim.AdamWConfig().init(), 0.1, data(device=TAPE))
    assert any((a != b).any() for a, b in zip(values(updated), values(model), strict=True))


def test_under_pytorchs_own_tape_the_function_itself_is_called() -> None:
    run = px.compile(lambda x: (x * x).sum())
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    run(px.Tensor.from_primitive(leaf, Torch(), px.Float)).primitive.backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 4.0]


def test_two_engines_and_two_devices_do_not_mix() -> None:
    run = px.compile(lambda x, y: x + y)
    with pytest.raises(CompileError, match="move it there"):
        run(px.ones((2,), device=Torch()), px.ones((2,), device=Jax()))
    elsewhere = px.Tensor.from_primitive(torch.ones(2, device="meta"), Torch(), px.Float)
    with pytest.raises(DeviceError, match="different devices"):
        run(px.ones((2,), device=Torch()), elsewhere)


def test_streams_opened_inside() -> None:
    def draw(x: px.Tensor, source: Any) -> px.Tensor:
        with px.random.stream(source):
            return x + px.random.normal((2,), device=x.device)

    run, x = px.compile(lambda x: draw(x, 3)), t([1.0, 2.0])
    for _ in range(2):  # the same at every call, as eagerly
        np.testing.assert_array_equal(run(x).numpy(), draw(x, 3).numpy())
    outside = px.random.Stream((1, 2))
    with pytest.raises(RandomnessError, match="constant of the program"):
        px.compile(lambda x: draw(x, outside))(x)


def test_threads_record_and_run_side_by_side() -> None:
    run, found = px.compile(lambda x, n: (x @ x.permute_dims((1, 0))).sum() * n), dict[int, float]()

    def work(number: int) -> None:
        x = t(np.full((number % 3 + 1, 2), number + 1.0, np.float32))
        found[number] = run(x, 0.5).item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: (number % 3 + 1) ** 2 * (number + 1) ** 2 for number in range(9)}


def test_without_a_compiler_it_warns_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no C++ compiler here\nlong story")

    monkeypatch.setenv(VARIABLE, "inductor")
    monkeypatch.setattr(inductor, "compile", broken)
    run = px.compile(lambda x: x * 2.0)
    with pytest.warns(RuntimeWarning, match="PyTorch's compiler does not work here.*: no C\\+\\+ compiler here$"):
        assert run(t([1.0])).tolist() == [2.0]
    assert run(t([2.0])).tolist() == [4.0]


def test_a_placeholder_that_escapes_is_refused() -> None:
    kept = list[px.Tensor]()
    px.compile(lambda x: kept.append(x * 2.0))(t([1.0], Torch().device()))
    for use in (lambda x: x.sum(), lambda x: x + 1.0, lambda x: x.numpy(), lambda x: x.shape == () or x.item()):
        with pytest.raises(CompileError, match="has ended"):
            use(kept[0])


def test_an_unknown_way_to_make_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(CompileError, match="PHLOX_TORCH_CODEGEN is `inductor` or `none`, got 'cuda'"):
        px.compile(lambda x: x * 2.0)(t([1.0]))


def test_what_is_kept_between_calls_holds_no_placeholders() -> None:
    number = 0.123456789
    px.compile(lambda x: x * number + px.random.normal((2,), device=x.device))(t([1.0, 2.0]))
    assert (t([1.0]) * number).item() == np.float32(number)
    assert all(type(table) is torch.Tensor for tables in generator._TABLES.values() for table in tables)


@pytest.mark.full
def test_the_compiler_is_loaded_only_when_something_is_compiled() -> None:
    code = (
        "import sys, phlox as px; from phlox.backend import Torch; x = px.ones((2,), device=Torch()) + 1.0; "
        "print([n for n in ('torch._dynamo', 'torch._inductor', 'sympy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
