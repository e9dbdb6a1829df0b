"""NumPy arrays as arguments of compiled functions: each means the tensor that `phlox.tensor` makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import CompileError, KindError, RangeError

BACKENDS = [NumPy(), Jax(), Torch(), Jax(float="f64", int="i64"), Torch(float="bf16"), Jax(float="bf16")]

ARRAYS: dict[str, Any] = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3) / 3.0,
    "f64": np.arange(6, dtype=np.float64).reshape(2, 3) / 3.0,
    "f16": np.arange(6, dtype=np.float16).reshape(2, 3),
    "bf16": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    "i64": np.arange(6).reshape(2, 3),
    "u8": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "bool": np.array([[True, False, True]]),
    "truth without axes": np.array(True),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "strided": np.arange(12, dtype=np.float64)[::-2],
    "read-only": np.broadcast_to(np.float32(2.0), (4, 2)),
    "other order of bytes": np.arange(4, dtype=">f4"),
    "empty": np.zeros((0, 3), np.float32),
}


def same(found: Any, wanted: Any) -> None:
    assert (found.kind, found.shape, found.backend) == (wanted.kind, wanted.shape, wanted.backend)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("name", ARRAYS)
def test_it_is_the_tensor_that_is_made_of_it(name: str, backend: Backend) -> None:
    array = ARRAYS[name]
    like = px.ones((2,), device=backend)
    wanted = px.tensor(array, device=backend)
    run = px.compile(lambda like, x: (x, px.where(x == x, x, x), like + 1.0))
    for _ in range(3):  # the first traces, the next are read as the last one was
        same(run(like, array)[0], wanted)
        same(run(like, array)[1], wanted)
    same(run(like, wanted)[0], wanted)
    assert run.programs == run.traces == (1 if backend.compiles else 0)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_without_a_tensor_it_goes_to_the_default_device(backend: Backend) -> None:
    run = px.compile(lambda x, n: x * n)
    with px.default_device(backend):
        for _ in range(2):
            found = run(np.array([1.0, 2.0]), 3.0)
            assert found.backend is backend and found.tolist() == [3.0, 6.0]


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_it_goes_to_where_the_module_is(backend: Backend) -> None:
    """On the tape, where that is: a first layer that drops out does so for an array as for a tensor there."""
    device = Autodiff(backend).device()
    model = nn.Sequential([nn.Dropout(0.5), nn.Linear(40, 2, device=device)]).init(seed=0)
    first = px.compile(lambda x, model: (x, model(x)))
    array = np.ones((3, 40), np.float32)
    for given in (model, model.valid()):
        place = device if given is model else backend.device()
        px.random.seed(1)
        wanted = first(px.tensor(array, device=place), given)
        px.random.seed(1)
        found = first(array, given)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Batch:
    x: Any
    name: str = "constant"


X, Y = np.array([1.0, 2.0]), np.array([3, 4])
NESTED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "list": ([X, Y], lambda b: b[0] * b[1].float()),
    "tuple": ((X, (Y,)), lambda b: b[0] * b[1][0].float()),
    "dict": ({"x": X, "y": {"z": Y}}, lambda b: b["x"] * b["y"]["z"].float()),
    "named tuple": (Pair(X, Y), lambda b: b.x * b.y.float()),
    "dataclass": (Batch(X), lambda b: b.x * (3.0 if b.name == "constant" else 0.0)),
    "dataclass in a list": ([Batch(X), Batch(Y)], lambda b: b[0].x * b[1].x.float()),
}


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("name", NESTED)
def test_nested(name: str, backend: Backend) -> None:
    batch, fn = NESTED[name]
    run = px.compile(lambda scale, b: fn(b) * scale)
    wanted = fn(_tensors(batch, backend))
    for _ in range(2):
        same(run(px.ones((), device=backend), batch), wanted)
        same(run(px.ones((), device=backend), b=batch), wanted)


def _tensors(value: Any, backend: Backend) -> Any:
    if isinstance(value, np.ndarray):
        return px.tensor(value, device=backend)
    if isinstance(value, Batch):
        return Batch(_tensors(value.x, backend), value.name)
    if isinstance(value, dict):
        return {key: _tensors(part, backend) for key, part in value.items()}
    parts: Any = [_tensors(part, backend) for part in value]
    return Pair(*parts) if isinstance(value, Pair) else tuple(parts) if isinstance(value, tuple) else parts


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_inside_another_function(backend: Backend) -> None:
    inner = px.compile(lambda x, y: x + y)
    outer = px.compile(lambda x: inner(x, np.array([1.0, 2.0])))
    x = px.ones((2,), device=backend)
    assert outer(x).tolist() == [2.0, 3.0]
    assert px.vmap(lambda x: inner(x, np.array([1.0, 2.0])))(px.stack([x, x])).tolist() == [[2.0, 3.0]] * 2
    grads = px.compile(px.grad(lambda x: inner(x, np.array([1.0, 2.0])).square().sum()))(x)
    assert grads.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("nested", [False, True])
def test_over_steps(nested: bool, backend: Backend) -> None:
    def step(model: Any, optimizer: Any, lr: float, batch: Any) -> Any:
        x = batch["x"][0] if nested else batch
        loss = model(x).square().mean()
        return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss

    def run(make: Callable[[Any], Any]) -> list[float]:
        model = nn.Linear(3, 1, device=Autodiff(backend).device()).init(seed=0)
        steps = px.compile(step, steps=4, over=("batch", "lr"))
        x = make(np.linspace(0.0, 1.0, 24).reshape(4, 2, 3))
        return steps(model, optim.SgdConfig().init(), np.full(4, 0.1), {"x": [x]} if nested else x)[1].tolist()

    wanted = run(lambda array: px.tensor(array, device=backend))
    assert run(lambda array: array) == wanted
    with pytest.raises(CompileError, match="for each of the 4 steps on its first axis, and is of shape"):
        run(lambda array: array[:3])


def _object() -> Any:
    return np.array([1.0, None])


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "text": (np.array(["a", "b"]), KindError, r"x\['a'\]: a NumPy array of shape \(2,\): .* str32; give floats, ints"),
    "objects": (_object(), KindError, r"x\['a'\]: a NumPy array of shape \(2,\): .*(object|NoneType|ndarray)"),
    "complex": (np.ones(3, complex), KindError, r"x\['a'\]: a NumPy array of shape \(3,\): .* complex128; give floats"),
    "times": (np.zeros(2, "datetime64[s]"), KindError, r"x\['a'\]: a NumPy array of shape \(2,\): .* datetime64"),
    "too large": (
        np.array([2**40]),
        RangeError,
        r"x\['a'\]: a NumPy array of shape \(1,\): 1099511627776 does not fit",
    ),
    "float": (np.array([1e300]), RangeError, r"x\['a'\]: a NumPy array of shape \(1,\): 1e\+300 does not fit"),
}


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("name", BAD)
def test_bad_elements(name: str, backend: Backend) -> None:
    array, error, message = BAD[name]
    run = px.compile(lambda like, x: x["a"] if isinstance(x, dict) else x)
    like = px.ones((2,), device=backend)
    with pytest.raises(error, match=message):
        run(like, {"a": array})
    run(like, np.zeros(2, np.float32))  # and once there is a call like it
    with pytest.raises(error, match=message.replace(r"\['a'\]", "")):
        run(like, array)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("size", [3, 100, 10**4, 10**6])
def test_the_array_is_the_callers_again(size: int, backend: Backend) -> None:
    """Whatever its alignment, as what is returned, as what is computed later, and in the array itself."""
    run = px.compile(lambda like, x: (x, x.reshape((-1,))[1:], x * like, x.sum()))
    like = px.ones((1,), device=backend)
    room = np.empty(size + 64, np.float32)
    for offset in range(0, 17, 4):
        array = room[offset : offset + size]
        for turn in range(3):
            array[:] = turn
            found = run(like, array)
            array[:] = -1.0
            for one in found[:3]:
                assert (one.numpy() == turn).all()
            assert found[3].item() == turn * size
            assert (array == -1.0).all()


def test_other_kinds_and_shapes_in_the_same_place() -> None:
    run = px.compile(lambda like, x: (like, x + x) if isinstance(x, px.Tensor) else (like, like * (x + x)))
    like = px.ones((2,), device=Jax())
    for array in (
        np.ones(2, np.float32),
        np.ones(2),
        np.ones(2, np.int64),
        np.ones((3, 2)),
        np.ones(2),
        2.0,
        np.array(2),
    ):
        wanted = np.asarray(array) * 2 * np.ones(2)
        np.testing.assert_array_equal(np.asarray(run(like, array)[1].numpy()) * np.ones(2), wanted)
    assert run.programs == 4  # floats, integers, a real number, a whole number


def test_a_subclass_is_an_array() -> None:
    run = px.compile(lambda like, x: x * 2.0)
    like = px.ones((2,), device=Jax())
    for _ in range(2):
        assert run(like, np.ones(2).view(np.recarray)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_donated(backend: Backend) -> None:
    run = px.compile(lambda x, y: x + y, donate=("x",))
    array = np.ones(5, np.float32)
    for _ in range(3):
        assert run(array, px.ones((5,), device=backend)).tolist() == [2.0] * 5
    assert (array == 1.0).all()


def test_a_constant_of_a_config_stays_one() -> None:
    class Setting(px.Config):
        size: int = 3

    run = px.compile(lambda x, setting: x * setting.size)
    assert run(np.ones(2), Setting()).tolist() == [3.0, 3.0]


INSIDE: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda x: x, lambda batch: batch),
    (lambda x: (x,), lambda batch: batch[0]),
    (lambda x: {"a": [x]}, lambda batch: batch["a"][0]),
]


@pytest.mark.parametrize(("inside", "out"), INSIDE, ids=["alone", "tuple", "nested"])
def test_a_call_like_the_last_one_may_have_another_shape(
    inside: Callable[[Any], Any], out: Callable[[Any], Any]
) -> None:
    model = nn.Linear(3, 1).init(0, device="jax")
    found = px.compile(lambda models, batch: models["m"](out(batch)).sum())
    x = np.ones((4, 3), np.float32)
    for rows in (4, 4, 2, 2, 4, 3):
        expected = model(px.tensor(x[:rows], device="jax")).sum().item()
        assert found({"m": model}, inside(x[:rows])).item() == pytest.approx(expected)


@pytest.mark.parametrize("donate", [(), ("model", "optimizer")], ids=["kept", "donated"])
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_an_engine_that_traces_again_for_the_same_shapes_gets_tensors(engine: str, donate: tuple[str, ...]) -> None:
    # Code depends on more than shapes: on PyTorch's threads, on the precision that JAX is told to multiply with.
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        x, y = batch
        loss = (model(x) - y).square().mean()
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(0.1, model, grads), loss

    def trained(run: Any, other: Any) -> list[float]:
        model = nn.Linear(3, 2, device=Autodiff(Jax() if engine == "jax" else Torch()).device()).init(seed=0)
        optimizer, losses = optim.SgdConfig().init(), list[float]()
        for turn in range(6):
            with other() if turn >= 3 else nullcontext():
                model, loss = run(model, optimizer, batch)
            losses.append(loss.item())
        return losses

    batch = np.arange(12, dtype=np.float32).reshape(4, 3) / 12, np.ones((4, 2), np.float32)
    compiled = px.compile(step, donate=donate)
    other = {"jax": lambda: jax.default_matmul_precision("highest"), "torch": _another_number_of_threads}[engine]

    def eager(model: Any, optimizer: Any, batch: Any) -> Any:
        return step(model, optimizer, [px.tensor(x, device=model.weight.device) for x in batch])

    wanted = trained(eager, nullcontext)
    np.testing.assert_allclose(trained(compiled, other), wanted, rtol=1e-5)
    assert compiled.traces == 2

    apply = px.compile(lambda model, x: model(x))  # what is read in a shorter way, since nothing but arrays is in it
    model = nn.Linear(3, 2, device=engine).init(seed=0)
    first = [apply(model, batch[0]).numpy() for _ in range(3)][-1]
    with other():
        np.testing.assert_allclose(apply(model, batch[0]).numpy(), first, rtol=1e-5)
    assert apply.traces == 2


@contextmanager
def _another_number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
