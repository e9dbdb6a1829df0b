"""Convolutions by Winograd's algorithm in programs on PyTorch: the values and gradients of multiplying out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.kernels import winograd

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
AT_MOST = 4e-6
"""Of the norm of the exact result, for the error; of multiplying out it is up to 8e-7."""
_aten: Any = torch.ops.aten
_operations: Any = torch.ops.phlox
PADDINGS = [(0, 0), (1, 1), (2, 0), (1, 2)]
CASES = [
    pytest.param(
        images, channels, out, height, width, padding, id=f"{images}x{channels}-{out}x{height}x{width}{padding}"
    )
    for (images, channels, out), (height, width), padding in product(
        [(1, 16, 16), (3, 16, 48), (2, 48, 32), (1, 80, 80)], [(3, 5), (4, 4), (9, 13)], PADDINGS
    )
]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Images with their channels last, or a weight."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(values).contiguous(memory_format=torch.channels_last)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    assert found.shape == exact.shape
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("images", "channels", "out", "height", "width", "padding"), CASES)
def test_results_and_gradients_are_those_of_multiplying_out(
    images: int, channels: int, out: int, height: int, width: int, padding: tuple[int, int]
) -> None:
    x, weight, bias = numbers(images, channels, height, width), numbers(out, channels, 3, 3, seed=1), torch.randn(out)
    points = winograd.filters(weight, turned=False)
    exact = torch.conv2d(x.double(), weight.double(), bias.double(), padding=padding)
    assert error(winograd.convolve(x, points, bias, None, False, padding), exact) < AT_MOST
    g = numbers(*exact.shape, seed=2)
    options = ([1, 1], padding, [1, 1], False, [0, 0], 1, [True, True, False])
    dx, dw, _ = _aten.convolution_backward(g.double(), x.double(), weight.double(), None, *options)
    turned = winograd.filters(weight, turned=True)
    there = [2 - pad for pad in padding]
    assert error(winograd.convolve(g, turned, None, None, False, there), dx) < AT_MOST
    assert error(winograd.weight_gradient(x, g, padding), dw) < AT_MOST


def test_a_sum_over_many_images_stays_as_exact() -> None:
    x, g = numbers(64, 16, 32, 32).relu(), numbers(64, 16, 32, 32, seed=1)
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    weight = numbers(16, 16, 3, 3)
    _, exact, _ = _aten.convolution_backward(g.double(), x.double(), weight.double(), None, *options)
    assert error(winograd.weight_gradient(x, g, (1, 1)), exact) < AT_MOST


@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_added_and_clipped(weight_format: torch.memory_format) -> None:
    x, added, bias = numbers(2, 32, 6, 7), numbers(2, 16, 6, 7, seed=3), torch.randn(16)
    weight = numbers(16, 32, 3, 3, seed=1).contiguous(memory_format=weight_format)
    points = winograd.filters(weight, turned=False)
    exact = torch.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    assert error(winograd.convolve(x, points, bias, added, True, (1, 1)), (exact + added).relu()) < AT_MOST
    assert (
        error(winograd.convolve(x, points, None, added, False, (1, 1)), exact - bias[:, None, None] + added) < AT_MOST
    )
    rows = winograd.convolve(x.contiguous(), points, bias, added.contiguous(), False, (1, 1))
    assert torch.equal(rows, winograd.convolve(x, points, bias, added, False, (1, 1)))


def test_clipping_keeps_nan_and_nothing_far_away_sees_it() -> None:
    x, weight = numbers(1, 16, 16, 16), numbers(16, 16, 3, 3, seed=1)
    x[0, 0, 0, 0] = torch.nan
    y = winograd.convolve(x, winograd.filters(weight, turned=False), None, None, True, (1, 1))
    exact = torch.conv2d(x, weight, padding=1).relu()
    assert y[0, :, :2, :2].isnan().all()
    assert exact[0, :, :2, :2].isnan().all()
    assert error(y[:, :, 4:, 4:], exact[:, :, 4:, 4:].double()) < AT_MOST


def test_threads_change_nothing() -> None:
    x, g, weight = numbers(3, 48, 9, 9), numbers(3, 80, 9, 9, seed=1), numbers(80, 48, 3, 3, seed=2)

    def all_of_it() -> list[torch.Tensor]:
        points = winograd.filters(weight, turned=False)
        return [points, winograd.convolve(x, points, None, None, False, (1, 1)), winograd.weight_gradient(x, g, (1, 1))]

    torch.set_num_threads(2)
    by_two = all_of_it()
    torch.set_num_threads(1)
    for one, other in zip(all_of_it(), by_two, strict=True):
        assert torch.equal(one, other)


def test_the_operations_keep_to_what_they_promise() -> None:
    x, weight, bias = numbers(2, 16, 5, 6), numbers(32, 16, 3, 3, seed=1), torch.randn(32)
    points = winograd.filters(weight, turned=False)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(_operations.winograd_filters, (weight, True), test_utils=checks)
    torch.library.opcheck(_operations.winograd, (x, points, bias, None, True, [1, 2]), test_utils=checks)
    g = numbers(2, 32, 5, 8, seed=2)
    torch.library.opcheck(_operations.winograd_weight_gradient, (x, g, [1, 2]), test_utils=checks)


# --- in graphs


def lowered(function: Any, *arguments: torch.Tensor) -> tuple[set[str], list[torch.Tensor]]:
    """What is left to be called of a function's graph, by names, and what it gives."""
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    winograd.lower(graph)
    targets = [node.target for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return {target.overloadpacket.__name__ for target in targets}, graph(*arguments)


def both_ways(x: torch.Tensor, weight: torch.Tensor, g: torch.Tensor, options: tuple[Any, ...]) -> list[torch.Tensor]:
    y = _aten.convolution(x, weight, None, *options)
    dx, dw, db = _aten.convolution_backward(g, x, weight, [weight.shape[0]], *options, [True, True, True])
    return [y, dx, dw, db]


def options(stride: int = 1, padding: int = 1, dilation: int = 1, groups: int = 1) -> tuple[Any, ...]:
    return [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups


def test_a_graph_is_computed_so_both_ways() -> None:
    x, weight, g = numbers(2, 16, 16, 16), numbers(32, 16, 3, 3, seed=1), numbers(2, 32, 16, 16, seed=2)
    names, found = lowered(lambda x, weight, g: both_ways(x, weight, g, options()), x, weight, g)
    assert names == {"winograd_filters", "winograd", "winograd_weight_gradient", "sum"}
    exact = both_ways(x.double(), weight.double(), g.double(), options())
    for one, other in zip(found, exact, strict=True):
        assert error(one, other) < AT_MOST


UNSUITED: dict[str, tuple[tuple[int, int, int], int, dict[str, int]]] = {
    "a stride": ((4, 16, 32), 16, {"stride": 2}),
    "a dilation": ((4, 16, 32), 16, {"dilation": 2, "padding": 2}),
    "groups": ((4, 32, 32), 16, {"groups": 2}),
    "a wide border": ((4, 16, 32), 16, {"padding": 3}),
    "few channels": ((4, 3, 32), 16, {}),
    "an uneven number of results": ((4, 16, 20), 16, {}),
    "few tiles": ((1, 16, 32), 16, {}),
    "tiles that reach far beyond": ((64, 16, 32), 5, {}),
    "filters of 36 MiB": ((16, 512, 512), 8, {}),
}


@pytest.mark.parametrize(("shape", "size", "given"), UNSUITED.values(), ids=UNSUITED)
def test_other_convolutions_stay_what_they_are(shape: tuple[int, int, int], size: int, given: dict[str, int]) -> None:
    images, channels, out = shape
    x, weight = numbers(images, channels, size, size), numbers(out, channels // given.get("groups", 1), 3, 3, seed=1)
    plain = options(**given)
    g = torch.randn_like(_aten.convolution(x, weight, None, *plain))
    names, _ = lowered(lambda x, weight, g: both_ways(x, weight, g, plain), x, weight, g)
    assert "convolution" in names
    assert not any("winograd" in name for name in names)


def test_other_element_types_and_filters_stay_what_they_are() -> None:
    x, weight = numbers(4, 16, 16, 16), numbers(32, 16, 3, 3, seed=1)
    for one, other in [(x.double(), weight.double()), (x, numbers(32, 16, 5, 5)), (x, numbers(32, 16, 3, 1))]:
        names, _ = lowered(lambda *given: [_aten.convolution(*given, None, *options(padding=0))], one, other)
        assert names == {"convolution"}


def test_where_there_is_no_kernel_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "_kernel", lambda: None)
    x, weight = numbers(4, 16, 16, 16), numbers(32, 16, 3, 3, seed=1)
    names, _ = lowered(lambda *given: [_aten.convolution(*given, None, *options())], x, weight)
    assert names == {"convolution"}


# --- in programs


class Network(px.Module):
    """A convolution of each kind: one that suits, one that does not, one that suits with what is added to it."""

    def __init__(self, device: px.Device) -> None:
        self.first = nn.Conv2d(16, 32, 3, padding=1, device=device)
        self.norm = nn.BatchNorm(32, device=device)
        self.down = nn.Conv2d(32, 32, 3, stride=2, padding=1, device=device)
        self.last = nn.Conv2d(32, 32, 3, padding=1, bias=False, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        x = self.down(self.norm(self.first(x)).relu())
        return (self.last(x) + x).relu()


def test_a_compiled_network_predicts_what_it_does_eagerly(calls_of: Callable[..., list[str]]) -> None:
    device = Torch().device()
    model = Network(device).init(seed=1).valid()
    x = px.tensor(numbers(2, 16, 16, 16).numpy(), device=device)
    expected = model(x).numpy()
    calls = calls_of(winograd)
    run = px.compile(lambda model, x: model(x))
    for _ in range(2):  # the filters are made in the first call alone
        np.testing.assert_allclose(run(model, x).numpy(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert calls == ["put_filters"] * 2 + ["convolve"] * 4


@pytest.mark.full
def test_a_compiled_step_has_the_gradients_of_an_eager_one(calls_of: Callable[..., list[str]]) -> None:
    device = Autodiff(Torch()).device()
    model = Network(device).init(seed=1)
    x = px.tensor(numbers(8, 16, 16, 16).numpy(), device=device)

    def gradients(model: Network, x: px.Tensor) -> list[Any]:
        grads = model(x).square().mean().backward()
        return [param.val().grad(grads) for param in (model.first.weight, model.down.weight, model.last.weight)]

    expected = [g.numpy() for g in gradients(model, x)]
    calls = calls_of(winograd)
    for found, exact in zip(px.compile(gradients)(model, x), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    assert sorted(calls) == ["convolve"] * 3 + ["put_filters"] * 3 + ["put_weight_gradient"] * 2
