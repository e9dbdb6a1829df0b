"""What is checked in every process of a group: `python -c "..." RANK COUNT PATH` calls `main`.

References are computed here too, by a process that has the whole batch and no group.
"""

from __future__ import annotations

import faulthandler
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy, Torch
from phlox.backend.parallel import RowGroup, rows_of
from phlox.backend.processes import Processes, set_processes
from phlox.distributed import broadcast, gather, mean
from phlox.distributed import sum as total
from phlox.errors import CompileError, DistributedError, KindError, RangeError, UnsupportedError
from phlox.models import GptConfig
from tests.distributed.raising import raised

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])
GROUP = RowGroup(RANK, SIZE)
ENGINES = (Torch(), NumPy())
STEPS = 6
RNG = np.random.default_rng(0)
CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def check_on(*backends: Any) -> Callable[[Callable[[Any], None]], None]:
    """A check on each of these backends."""

    def registered(function: Callable[[Any], None]) -> None:
        @wraps(function)
        def on_each() -> None:
            for backend in backends:
                function(backend)

        CHECKS.append(on_each)

    return registered


def rows(array: Any) -> Any:
    """Those of this process."""
    count = len(array) // SIZE
    return array[RANK * count : (RANK + 1) * count]


def same_everywhere(*arrays: Any) -> None:
    """Are they the same in all processes, to the last bit?"""
    for array in arrays:
        every = Torch().gather_on_host(np.ascontiguousarray(array))
        for one in every:
            np.testing.assert_array_equal(one.view(np.uint8), every[0].view(np.uint8))


# ------------------------------------------------------------------------------------------------------- collectives


@check
def values() -> None:
    ranks = np.arange(SIZE)
    for backend in (*ENGINES, NumPy(float="bf16"), Torch(float="f16"), NumPy(float="f64", int="i64")):
        x = px.full((2, 3), float(RANK + 1), device=backend)
        i, b = px.full((2,), RANK, device=backend), px.full((2,), RANK == 1, device=backend)
        assert mean(x).tolist() == [[(SIZE + 1) / 2] * 3] * 2 and mean(x).backend is backend
        assert total(x).tolist() == [[SIZE * (SIZE + 1) / 2] * 3] * 2
        assert total(i).tolist() == [int(ranks.sum())] * 2 and total(i).kind is px.Int
        assert gather(i).tolist() == np.repeat(ranks, 2).tolist() and gather(x).shape == (2 * SIZE, 3)
        assert gather(b).tolist() == np.repeat(ranks == 1, 2).tolist()
        assert gather(x[0, 0]).tolist() == (ranks + 1.0).tolist()
        uneven = px.full((RANK + 1, 2), float(RANK), device=backend)
        assert gather(uneven)[:, 1].tolist() == np.repeat(ranks, ranks + 1).tolist()
        for root in range(SIZE):
            assert broadcast(i, root).tolist() == [root] * 2
            assert broadcast(b, root).tolist() == [root == 1] * 2
        assert mean(px.zeros((0, 2), device=backend)).shape == (0, 2)


@check
def containers() -> None:
    def network(rank: int) -> Any:
        return nn.Sequential([nn.Linear(2, 3), nn.BatchNorm(3)]).init(rank)

    module = network(RANK)
    given: dict[str, Any] = {
        "loss": px.tensor(float(RANK)),
        "count": RANK + 1,
        "rate": 0.5 * RANK,
        "row": np.full(3, RANK),
        "none": None,
    }
    found: Any = mean(given)
    middle = (SIZE - 1) / 2
    assert found["loss"].item() == middle and found["count"] == middle + 1 and found["rate"] == middle / 2
    assert found["row"].tolist() == [middle] * 3 and found["row"].dtype == np.float64 and found["none"] is None
    sums: Any = total((RANK + 1, np.float32(0.1), np.arange(2, dtype=np.int32)))
    assert sums[0] == SIZE * (SIZE + 1) // 2 and type(sums[0]) is int and type(sums[1]) is np.float32
    assert sums[2].tolist() == [0, SIZE] and sums[2].dtype == np.int32
    assert gather(RANK).tolist() == list(range(SIZE)) and gather([0.5])[0].tolist() == [0.5] * SIZE
    assert gather(np.full((RANK, 2), RANK)).shape == (SIZE * (SIZE - 1) // 2, 2)
    first: Any = broadcast(module)
    for param, other in zip(first.params(), network(0).params(), strict=True):
        np.testing.assert_array_equal(param.val().numpy(), other.val().numpy())
    assert [param.id for param in first.params()] == [param.id for param in module.params()]
    for param, other in zip(gather(module).params(), module.params(), strict=True):
        np.testing.assert_array_equal(param.val().numpy(), other.val().numpy())
    one: Any = mean(module)
    expected = np.mean([network(rank).layers[0].weight.val().numpy() for rank in range(SIZE)], 0)
    same_everywhere(one.layers[0].weight.val().numpy())
    np.testing.assert_allclose(one.layers[0].weight.val().numpy(), expected, rtol=1e-6)


@check
def bad_input() -> None:
    with raised(KindError, "mean of `[1]`", "Int", ".float()"):
        mean([px.tensor(1.0), px.tensor(1)])
    with raised(KindError, "sum of `['a']`", "bool"):
        total({"a": True})
    with raised(KindError, "gather of `['name']`", "str"):
        gather({"name": "x"})
    with raised(RangeError, f"0 to {SIZE - 1}, not {SIZE}"):
        broadcast(1, SIZE)
    with raised(DistributedError, "has shape", "all axes but the first"):
        gather(px.zeros((2, RANK + 1)))
    with raised(UnsupportedError, "inside phlox.vmap"):
        px.vmap(lambda x: mean(x))(px.ones((2, 3)))


@check
def buckets_of_many_arrays() -> None:
    shapes = [(3,), (), (2_100_000,), (5, 7), (0,), (3_000_001,), (2, 2)]
    for backend in ENGINES:
        arrays = [px.full(shape, float(RANK + n), device=backend) for n, shape in enumerate(shapes)]
        for n, x in enumerate(mean(arrays)):
            assert x.shape == shapes[n] and bool((x == (SIZE - 1) / 2 + n).all())


def tower(x: Any, w: Any) -> Any:
    """A loss that goes through every collective."""
    h = (x * w).sum(0)
    a, b = mean(h), total(h)
    every = gather(h.reshape((1, -1)))
    first = broadcast(h, SIZE - 1)
    weights = px.tensor(np.linspace(0.5, 1.5, SIZE).astype(np.float32), device=x.device)
    return (a * b).sum() + (every.square().sum(1) * weights).sum() * (RANK + 1.0) + (first * a).exp().mean()


def whole_tower(xs: Any, w: Any) -> Any:
    """The mean of the losses of all processes, computed by one."""
    hs = [(x * w).sum(0) for x in xs]
    b = hs[0]
    for h in hs[1:]:
        b = b + h
    a = b * (1.0 / SIZE)
    weights = np.linspace(0.5, 1.5, SIZE)
    out = 0.0
    for rank in range(SIZE):
        every = sum(float(weight) * h.square().sum() for weight, h in zip(weights, hs, strict=True))
        out = out + (a * b).sum() + every * (rank + 1.0) + (hs[-1] * a).exp().mean()
    return out * (1.0 / SIZE)


@check_on(*ENGINES)
def derivatives(backend: Any) -> None:
    data = RNG.normal(size=(SIZE, 4, 3)).astype(np.float32) * 0.3
    w = px.tensor(np.array([0.5, -1.0, 2.0], np.float32), device=backend)
    xs = [px.tensor(one, device=backend) for one in data]
    expected = px.grad(lambda w: whole_tower(xs, w))(w)
    for f in (px.grad(lambda w: tower(xs[RANK], w)), px.compile(px.grad(lambda w: tower(xs[RANK], w)))):
        np.testing.assert_allclose(mean(f(w)).numpy(), expected.numpy(), rtol=2e-5)


@check
def programs_wait() -> None:
    backend = Torch()
    for size in (2, 1_000_000):
        x = px.full((size,), float(RANK + 1), device=backend)
        for f in (lambda x: total(x) * 1.0, lambda x: mean(x * 1.0) * float(SIZE)):
            compiled = px.compile(f)
            for _ in range(50):
                assert bool((compiled(x) == SIZE * (SIZE + 1) / 2).all())
        compiled = px.compile(lambda x: (gather(x * 2.0), broadcast(x + 1.0, 1) * 2.0))
        for _ in range(5):
            every, first = compiled(x)
            assert bool(
                (every.reshape((SIZE, -1)).mean(1) == px.arange(SIZE, device=backend).float() * 2.0 + 2.0).all()
            )
            assert bool((first == 6.0).all())
    import torch.distributed._functional_collectives as functional

    def by_torch(x: Any) -> Any:
        found = functional.all_reduce(x.primitive * 1.0, "sum", cast("Any", dist.group.WORLD))
        return px.Tensor.from_primitive(found, backend, px.Float) * 1.0

    compiled = px.compile(by_torch)
    for _ in range(50):
        assert bool((compiled(x) == SIZE * (SIZE + 1) / 2).all())


@check
def in_place_is_refused() -> None:
    def reduces(x: Any) -> Any:
        held = x.primitive.clone()
        dist.all_reduce(held)
        return px.Tensor.from_primitive(held, x.backend, px.Float)

    def gathers(x: Any) -> Any:
        held = [torch.empty_like(x.primitive) for _ in range(SIZE)]
        dist.all_gather(held, x.primitive)
        return px.Tensor.from_primitive(held[0], x.backend, px.Float)

    for f, name in ((reduces, "all_reduce"), (gathers, "all_gather")):
        with raised(CompileError, name, "px.distributed.sum", "would not wait"):
            px.compile(f)(px.ones((2,), device=Torch()))
    assert reduces(px.ones((2,), device=Torch())).tolist() == [SIZE] * 2


# ---------------------------------------------------------------------------------------------------------- training


class Net(px.Module):
    """Convolution and batch norm, dropout, and a parameter without use."""

    def __init__(self, synchronized: bool, device: Any) -> None:
        self.conv = nn.Conv2d(1, 4, 3, bias=False, device=device)  # whose gradient would be rounding alone
        self.norm = nn.BatchNorm(4, synchronized=synchronized, device=device)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3, device=device)
        self.unused = nn.Linear(2, 2, device=device)

    def __call__(self, x: Any) -> Any:
        return self.head(self.drop(self.norm(self.conv(x)).gelu().mean((2, 3))))

    def loss(self, x: Any, y: Any) -> Any:
        return nn.cross_entropy_loss(self(x), y)


def gpt(device: Any) -> Any:
    return GptConfig(vocabulary=32, context=8, n_layers=1, d_model=16, n_heads=2, dropout=0.1).init(device)


def net(device: Any) -> Any:
    return Net(synchronized=True, device=device)


def window(batch: int) -> Any:
    tokens = np.random.default_rng(1).integers(0, 32, (batch, 9)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def images(batch: int) -> Any:
    rng = np.random.default_rng(1)
    return rng.normal(size=(batch, 1, 5, 5)).astype(np.float32) * 2.0 + 1.0, rng.integers(0, 3, batch).astype(np.int32)


def by_tape(model: Any, optimizer: Any, lr: float, x: Any, y: Any) -> Any:
    loss = model.loss(x, y)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss.detach()


def by_function(model: Any, optimizer: Any, lr: float, x: Any, y: Any) -> Any:
    loss, grads = px.value_and_grad(lambda m: m.loss(x, y))(model)
    return optimizer.step(lr, model, grads), loss


def train(make: Any, data: Any, step: Any, backend: Any, group: RowGroup | None, compiled: bool) -> tuple[Any, Any]:
    """The losses of six steps, averaged over the processes, and the parameters afterwards."""
    px.random.seed(0)
    model = make(Autodiff(backend).device()).init(seed=0).train()
    optimizer = optim.AdamWConfig().init(grad_clipping=optim.GradientClipping.global_norm(0.5))
    cut = (lambda x: x) if group is None else rows
    x, y = (px.tensor(cut(array), device=backend) for array in data)
    run = px.compile(step, donate=("model", "optimizer")) if compiled else step
    losses: list[float] = []
    with rows_of(group):
        for _ in range(STEPS):
            model, loss = run(model, optimizer, 1e-2, x, y)
            inner = loss.inner() if loss.backend.differentiates else loss
            losses.append(inner.item() if group is None else mean(inner).item())
    return losses, [param.val().numpy() for param in model.params()]


@check
def training() -> None:
    for make, data, step in ((gpt, window(8), by_tape), (net, images(8), by_function)):
        for backend in ENGINES:
            alone, weights = train(make, data, by_tape, backend, None, compiled=False)
            assert max(alone) - min(alone) > 0.01, alone
            for compiled in (False, True) if backend.compiles else (False,):
                losses, found = train(make, data, step, backend, GROUP, compiled)
                what = f"{make.__name__} {backend} {step.__name__} compiled={compiled}"
                np.testing.assert_allclose(losses, alone, atol=1e-5, err_msg=what)
                for one, expected in zip(found, weights, strict=True):
                    # Adam divides by its own size what may be a rounding error.
                    np.testing.assert_allclose(one, expected, atol=2e-3, err_msg=what)
                same_everywhere(*found)


@check_on(*ENGINES)
def line_searches_agree(backend: Any) -> None:
    """L-BFGS decides by the loss, which is another one in every process, how often to compute it."""
    rng = np.random.default_rng(5)
    data, targets = (rng.normal(size=(4 * SIZE, n)).astype(np.float32) for n in (3, 1))

    def descend(group: RowGroup | None) -> tuple[list[float], Any]:
        model = nn.Linear(3, 1, device=Autodiff(backend).device()).init(seed=0).train()
        x, y = (px.tensor(one if group is None else rows(one), device=backend) for one in (data, targets))
        optimizer, losses = optim.LbfgsConfig(line_search="strong_wolfe").init(), list[float]()
        with rows_of(group):
            for _ in range(3):
                model = optimizer.minimize(1.0, model, lambda m: nn.mse_loss(m(x).exp(), y))
                assert optimizer.outcome is not None
                losses.append(optimizer.outcome.last_loss)
        return losses, model.weight.val().numpy()

    alone, together = descend(None), descend(GROUP)
    np.testing.assert_allclose(together[0], alone[0], rtol=1e-5)
    same_everywhere(together[1])


@check_on(Torch(float="bf16"), NumPy(float="bf16"))
def half_precision(backend: Any) -> None:
    model = nn.Linear(4, 2, device=Autodiff(backend).device()).init(seed=0).train()
    x = px.tensor(np.random.default_rng(RANK).normal(size=(3, 4)).astype(np.float32), device=backend)
    own = px.grad(lambda m: m(x).square().mean())(model)
    with rows_of(GROUP):
        found = px.grad(lambda m: m(x).square().mean())(model)
    for (_, mine), (_, averaged) in zip(own.items(), found.items(), strict=True):
        assert averaged.backend is backend
        wide = mean(mine.to_full_precision())
        np.testing.assert_array_equal(averaged.numpy(), wide.from_full_precision(backend).numpy())


@check_on(*ENGINES)
def missing_gradients(backend: Any) -> None:
    model = Net(synchronized=False, device=Autodiff(backend).device()).init(seed=0).train()
    x = px.ones((2, 2), device=backend)

    def loss(m: Any, x: Any) -> Any:
        return m.unused(x).sum() if RANK == 1 else m.head(px.ones((2, 4), device=backend)).sum()

    for function in (px.grad(loss), px.compile(px.grad(loss))):
        with rows_of(GROUP), raised(DistributedError, f"process {RANK} of {SIZE}", "gradient of `", ".weight`"):
            function(model, x)
    with rows_of(GROUP):
        grads = px.grad(lambda m: m.head(px.ones((2, 4), device=backend)).sum())(model)
        assert len(grads) == 2  # and zeros for none of the others
        frozen = model.freeze("head.bias")
        assert len(px.grad(lambda m: m.head(px.ones((2, 4), device=backend)).sum())(frozen)) == 1


@check
def single_examples_keep_their_gradients() -> None:
    x = px.tensor(np.random.default_rng(RANK).normal(size=(3, 4)).astype(np.float32))
    model = nn.Linear(4, 2).init(seed=0).train()
    f = px.vmap(lambda x: px.grad(lambda m: m(x).square().sum())(model).get(model.weight.id))
    with rows_of(GROUP):
        np.testing.assert_array_equal(f(x).numpy(), f(x).numpy())
        inside = f(x).numpy()
    np.testing.assert_array_equal(inside, f(x).numpy())


@check_on(*ENGINES)
def gradients_of_gradients(backend: Any) -> None:
    """A penalty on the gradient of the whole batch, whose own gradient goes through the mean."""
    data = np.random.default_rng(3).normal(size=(2 * SIZE, 4)).astype(np.float32)

    def penalty(x: Any, model: Any) -> Any:
        inner = px.grad(lambda m: m(x).tanh().mean())(model)
        return inner.get(model.weight.id).square().sum()

    model = nn.Linear(4, 1, device=Autodiff(backend).device()).init(seed=0).train()
    whole = px.grad(lambda m: penalty(px.tensor(data, device=backend), m))(model)
    x = px.tensor(rows(data), device=backend)
    with rows_of(GROUP):
        found = px.grad(lambda m: penalty(x, m))(model)
    np.testing.assert_allclose(
        found.get(model.weight.id).numpy(), whole.get(model.weight.id).numpy(), rtol=1e-4, atol=1e-6
    )


@check
def batch_norm() -> None:
    data = np.random.default_rng(2).normal(size=(4 * SIZE, 3, 5)).astype(np.float32) * 3.0 + 5.0
    for backend in (*ENGINES, Torch(float="bf16")):
        results: list[Any] = []
        for group in (None, GROUP):
            layer: Any = nn.BatchNorm(3, synchronized=True, device=Autodiff(backend).device()).init(seed=0).train()
            x = px.tensor(data if group is None else rows(data), device=backend)
            with rows_of(group):
                y, gradient = px.value_and_grad(lambda x, layer=layer: (layer(x).tanh() * x).mean())(x)
            whole = (
                [y.numpy()[()], gradient.numpy()]
                if group is None
                else [mean(y).numpy()[()], gather(gradient).numpy() / SIZE]
            )
            results.append([*whole, layer.running_mean.val().numpy(), layer.running_var.val().numpy()])
        close = 2e-2 if backend.float_element == "bf16" else 2e-5
        for alone, together in zip(*results, strict=True):
            np.testing.assert_allclose(together.astype(np.float32), alone.astype(np.float32), rtol=close, atol=close)
        same_everywhere(results[1][2], results[1][3])


def main(names: list[str]) -> None:
    faulthandler.dump_traceback_later(200, exit=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=RANK, world_size=SIZE, timeout=timedelta(seconds=60)
    )
    set_processes(Processes(RANK, SIZE))
    for one in CHECKS:
        if not names or one.__name__ in names:
            one()
            dist.barrier()
            print(one.__name__, flush=True)
    dist.destroy_process_group()
