"""A fault inside an engine stays what it is: it is never said to be a mistake in the shapes of the operands.

Serves: phlox/tensor/dispatch.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import BackendError, OutOfMemoryError, PhloxError, ShapeError
from phlox.tensor.dispatch import Ops
from phlox.testing.conformance.rows import ROWS

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy())]


class Timeout(RuntimeError):
    """What a handler of the user's raises, wherever it is called."""


FAULTS = [
    KeyError("cache"),
    AttributeError("no such thing"),
    TypeError("of ours"),
    AssertionError(),
    NameError("x"),
    Timeout(),
]
ENGINES = [RuntimeError("CUDNN_STATUS_INTERNAL_ERROR"), ValueError("of the engine")]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every operation fail with an error, wherever tensors look it up."""
    called: list[str] = []

    def make(error: Exception) -> list[str]:
        def fail(*operands: Any) -> Any:
            called.append("")
            raise error

        monkeypatch.setattr(Ops, "__getitem__", lambda self, name: fail, raising=False)
        return called

    return make


def arguments(sample: tuple[Any, ...], backend: Any) -> list[Any]:
    return [
        px.tensor(value, device=backend) if isinstance(value, np.ndarray) and value.dtype != object else value
        for value in sample
    ]


@pytest.mark.parametrize("error", [*FAULTS, *ENGINES], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_every_operation_passes_it_on(backend: Any, error: Exception, broken: Any) -> None:
    rows = {row.name.partition(" ")[0]: row for row in ROWS if row.samples}.values()
    given = [(row, arguments(row.samples[0], backend)) for row in rows]
    called = broken(error)
    wrong: dict[str, str] = {}
    for row, values in given:
        before = len(called)
        try:
            row.call(*values)
        except Exception as found:
            if len(called) == before:
                continue  # it is no operation of a table
            if found is not error and not (type(found) is BackendError and "inside Phlox or its engine" in str(found)):
                wrong[row.name] = f"{type(found).__name__}: {found}"
            elif type(error) in map(type, FAULTS) and found is not error:
                wrong[row.name] = repr(found)
    assert wrong == {}
    assert len(called) > 150


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_what_is_said_of_it(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*operands: Any) -> Any:
        raise KeyError("a bug")

    def slow(*operands: Any) -> Any:
        raise RuntimeError("kernel failed\nat line 3")

    x, w = px.ones((1, 3, 8, 8), device=backend), px.ones((4, 3, 3, 3), device=backend)
    ops = x._ops
    monkeypatch.setitem(ops, "conv", fail)
    with pytest.raises(KeyError, match="a bug") as caught:
        f.conv2d(x, w)
    assert caught.value.__cause__ is None
    note = caught.value.__notes__[0]
    assert note.startswith(
        "an error inside Phlox or its engine, not in the arguments: conv2d(Float (1, 3, 8, 8), Float"
    )
    monkeypatch.setitem(ops, "conv", slow)
    with pytest.raises(BackendError, match=r"inside Phlox.*conv2d.*RuntimeError: kernel failed$") as engine:
        f.conv2d(x, w)
    assert isinstance(engine.value.__cause__, RuntimeError)


MISFITS = {
    "add": lambda x, y: x + y,
    "maximum": lambda x, y: x.maximum(y),
    "less": lambda x, y: x < y,
    "where": lambda x, y: px.where(x > 0, x, y),
    "matmul": lambda x, y: x @ y,
    "concat": lambda x, y: px.concat([x, y]),
    "broadcast_to": lambda x, y: x.broadcast_to((5, 5)),
    "reshape": lambda x, y: x.reshape((5,)),
    "linear": lambda x, y: f.linear(x, y),
    "mse_loss": lambda x, y: f.mse_loss(x, y),
    "solve": lambda x, y: px.linalg.solve(px.ones((3, 3), device=x.device) + px.eye(3, device=x.device), x),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_shapes_that_do_not_fit_are_said_to_be_it(backend: Any) -> None:
    x, y = px.ones((2, 3), device=backend), px.ones((4, 5), device=backend)
    for name, call in MISFITS.items():
        with pytest.raises(ShapeError, match=r"\(2, 3\)"):
            _ = name, call(x, y)


TOO_LARGE = {
    "full": lambda place: px.ones((4_000_000, 4_000_000), device=place),
    "matmul": lambda place: (
        (px.ones((4_000_000, 1), device=place) @ px.ones((1, 4_000_000), device=place)).sum().item()
    ),
    "add": lambda place: (px.ones((4_000_000, 1), device=place) + px.ones((1, 4_000_000), device=place)).sum().item(),
    "arange": lambda place: px.arange(2**50, device=place),
}


@pytest.mark.parametrize("place", ["numpy", "torch"])
def test_what_no_memory_holds(place: str) -> None:
    """56 TiB, which no machine gives; XLA on a processor would compute sums without making their operands."""
    for call in TOO_LARGE.values():
        with pytest.raises(OutOfMemoryError, match=r"out of memory, [\d.]+ [TP]iB were asked for; take less") as caught:
            call(place)
        assert isinstance(caught.value, MemoryError)
        assert isinstance(caught.value, PhloxError)


WORDS: dict[str, tuple[Any, ...]] = {
    "numpy": (NumPy(), MemoryError("Unable to allocate 596. GiB for an array with shape (400000, 400000)"), "596 GiB"),
    "jax": (Jax(), "RESOURCE_EXHAUSTED: Out of memory allocating 640000000000 bytes.", "596 GiB"),
    "torch": (
        Torch(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2048 bytes."),
        "2 KiB",
    ),
}


@pytest.mark.parametrize("place", WORDS)
@pytest.mark.parametrize("way", ["operation", "backward", "initialisation", "loading"])
def test_engines_that_have_no_memory(place: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, error, amount = WORDS[place]
    if isinstance(error, str):
        import jax

        error = jax.errors.JaxRuntimeError(error)

    def full(*operands: Any) -> Any:
        raise error

    x = px.ones((3,), device=Autodiff(backend)).require_grad()
    model = px.nn.Linear(3, 2, device=backend)
    record = px.nn.Linear(3, 2, device="numpy").init(0).into_record()
    y = (x * x).sum()
    with monkeypatch.context() as patch:
        if way == "operation":
            patch.setitem(px.ones((3,), device=backend)._ops, "mul", full)
            run, told = (lambda: px.ones((3,), device=backend) * px.ones((3,), device=backend)), r"mul\(Float \(3,\)"
        elif way == "backward":
            patch.setattr(backend, "float_mul", full, raising=False)
            run, told = (lambda: y.backward()), "backward of a tensor of shape ()"
        elif way == "initialisation":
            patch.setattr(type(backend), "random_uniform", full)
            run, told = (lambda: model.init(0)), "initialising `weight`, a parameter of shape"
        else:
            patch.setattr(type(backend), "from_host", full)
            run, told = (lambda: model.load_record(record)), "loading weight, Float of shape"
        with pytest.raises(OutOfMemoryError, match=rf"{told}.*{amount} were asked for"):
            run()
    assert model.init(0)(px.ones((1, 3), device=backend)).shape == (1, 2)
