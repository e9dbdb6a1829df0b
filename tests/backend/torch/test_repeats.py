"""What a program does again and again, traced once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from phlox.backend.torch import compat, repeats  # noqa: E402
from phlox.backend.torch.repeats import repeated  # noqa: E402

calls: list[Any] = []


def update(x: Any, y: Any, numbers: Sequence[Any]) -> Sequence[Any]:
    calls.append(x)
    new = (x * numbers[0] + y.sin()) / numbers[1]
    return new, new.exp() * x


def traced(body: Callable[..., Any], *example: Any) -> Any:
    calls.clear()
    mode = compat.FAKE_TENSOR_MODE.value(allow_non_fake_inputs=True, shape_env=None)
    with torch.no_grad(), mode:
        return compat.trace_graph(body, [mode.from_tensor(x) for x in example])


def both(body: Callable[[Any], Callable[..., Any]], *example: Any) -> int:
    """The number of calls; the graph is the same as without repeats."""
    plain = traced(body(lambda function, arrays, numbers: function(*arrays, numbers)), *example)
    graph = traced(body(repeated), *example)
    count = len(calls)
    assert graph.code == plain.code
    values = [
        [node.meta["val"] for node in found.graph.nodes if node.op == "call_function"] for found in (graph, plain)
    ]
    shapes = [[(x.shape, x.stride(), x.dtype) for x in found] for found in values]
    assert shapes[0] == shapes[1]
    for a, b in zip(graph(*example), plain(*example), strict=True):
        assert torch.equal(a, b)
    return count


X, Y, NUMBER = torch.ones(3, 4), torch.full((3, 4), 2.0), torch.tensor(3.0)


def test_equal_calls_are_traced_once() -> None:
    def body(run: Any) -> Any:
        def fn(x: Any, y: Any, n: Any) -> list[Any]:
            a, b = run(update, (x, y), (n, 2.0))
            c, d = run(update, (y, a), (n, 2.0))
            e, f = run(update, (d, b), (n, 2.0))
            return [a, b, c, d, (e + f).sum()]

        return fn

    assert both(body, X, Y, NUMBER) == 1


def test_other_calls_are_traced() -> None:
    def body(run: Any) -> Any:
        def fn(x: Any, y: Any, n: Any) -> list[Any]:
            results = [*run(update, (x, y), (n, 2.0)), *run(update, (x, y), (n, 2.5)), *run(update, (x, x), (n, 2.0))]
            results += [*run(update, (x.T, y.T), (n, 2.0)), *run(update, (x[1:], y[1:]), (n, 2.0))]
            return [*results, *run(update, (x.double(), y.double()), (n, 2.0)), *run(update, (x, y), (n + 1, 2.0))]

        return fn

    assert both(body, X, Y, NUMBER) == 7


def test_a_constant_is_no_tracer() -> None:
    def body(run: Any) -> Any:
        def fn(x: Any, n: Any) -> list[Any]:
            return [*run(update, (x, Y), (n, 2.0)), *run(update, (x, Y + 1), (n, 2.0))]

        return fn

    assert both(body, X, NUMBER) == 2


def test_without_a_trace() -> None:
    calls.clear()
    for _ in range(2):
        assert torch.equal(repeated(update, (X, Y), (NUMBER, 2.0))[0], (X * 3.0 + Y.sin()) / 2.0)
    assert len(calls) == 2


def test_nothing_is_kept() -> None:
    traced(lambda x, y, n: list(repeated(update, (x, y), (n, 2.0))), X, Y, NUMBER)
    calls.clear()
    gc.collect()
    assert len(repeats._recorded) == 0


def test_a_pytorch_without_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat._TRACK, "exists", False)

    def body(run: Any) -> Any:
        return lambda x, y, n: [*run(update, (x, y), (n, 2.0)), *run(update, (y, x), (n, 2.0))]

    assert both(body, X, Y, NUMBER) == 2
