"""Every operation of the contract on a device that is no processor, eagerly and in a program, forward and backward.

PyTorch's device "meta" stands for a GPU: its tensors have shapes and a device, but no values, so no GPU is needed. No
operation may make a tensor on a processor on the way, read a value without need, or call a kernel for processors.

Serves: src/phlox/backend/torch/ops/*.py, src/phlox/backend/torch/{arrays,backend,tracer}.py
"""

# pyright: standard
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Torch
from phlox.backend.device import Device
from phlox.backend.torch import autograd_bridge, compat
from phlox.backend.torch.arrays import Arrays
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.tracer import TracerOps, end, tracing
from phlox.errors import UnsupportedError
from phlox.host.signal_guard import scope
from phlox.tensor import Tensor
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

NAME = "meta"
FAMILIES = sorted({row.call.__module__.rpartition(".")[2] for row in ROWS})


@pytest.fixture(autouse=True)
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an operation reads values (indices, or what it refuses), it reads zeros."""
    to_host, from_host = Arrays.to_host, Arrays.from_host

    def zeros(self: Any, x: Any) -> Any:
        if x.device.type != NAME:
            return to_host(self, x)
        return np.zeros(tuple(x.shape), self.host_dtype(self.kind_of(x)))

    def made(self: Any, array: Any, kind: Any, device: Device) -> Any:
        x = from_host(self, array, kind, device.on(self) if device.name != NAME else self.device())
        return x if device.name != NAME else torch.empty(x.shape, dtype=x.dtype, device=NAME)

    monkeypatch.setattr(Arrays, "to_host", zeros)
    monkeypatch.setattr(Arrays, "from_host", made)
    monkeypatch.setattr(TracerOps, "_forbid", lambda *_: None)


def run(row: Row, sample: Sequence[Any], arrays: Sequence[Any], backend: Any, *, backward: bool) -> list[Any]:
    """The arrays that a row gives for the arrays of its sample: its value, or its gradients."""
    remaining = iter(arrays)
    arguments: list[Any] = []
    for argument in sample:
        kind = running.kind_of(argument) if isinstance(argument, np.ndarray) else None
        arguments.append(argument if kind is None else Tensor.from_primitive(next(remaining), backend, kind))
    if not backward:
        return [row.call(*arguments).primitive]
    taped = Autodiff(backend)
    arguments = [px.tensor(x, device=Device(taped, NAME)) if isinstance(x, Tensor) else x for x in arguments]
    indices = running.differentiable(row, sample)
    for index in indices:
        arguments[index] = arguments[index].require_grad()
    y = row.call(*arguments)
    if not y.is_require_grad():
        return []
    grads = y.sum().backward()
    gradients = [arguments[index].grad(grads) for index in indices]
    return [gradient.primitive for gradient in gradients if gradient is not None]


def eagerly(fn: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Call the function with tensors on the device."""
    return fn(*[torch.empty(x.shape, dtype=x.dtype, device=NAME) for x in arrays])


def in_a_program(fn: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Trace the function; no operation of the program may be one for processors alone."""
    results: list[Any] = []

    def body(*tracers: Any) -> list[Any]:
        results.extend(fn(*tracers))
        return [x.contiguous() for x in results] or [torch.zeros(())]

    mode = compat.FAKE_TENSOR_MODE.value(allow_non_fake_inputs=True, shape_env=None)
    try:
        with scope(tracing, True), torch.no_grad(), mode:
            tracers = [torch.empty(x.shape, dtype=x.dtype, device=NAME) for x in arrays]
            graph = compat.trace_graph(body, tracers, decompositions())
            for entry in pipeline.PASSES:
                if entry.level == "graph":
                    entry.function(graph)
            own = [node for node in graph.graph.nodes if str(node.target).startswith("phlox.")]
            assert not [str(node.target) for node in own if is_for_processors(node.target)]
    finally:
        end(mode)
    return results


def is_for_processors(operation: Any) -> bool:
    """Has this operation of ours no kernel for other devices?"""
    name = operation.name().partition(".")[0]
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return name == "phlox::draw" or not (has(name, "CUDA") or has(name, "CompositeExplicitAutograd"))


def problems(family: str, backend: Any, way: Callable[..., list[Any]]) -> Iterator[str]:
    """What goes wrong in the rows of a family."""
    half = backend.float_element in running.HALVES
    for row in ROWS:
        if row.call.__module__.rpartition(".")[2] != family or (half and not row.half):
            continue
        sample = running.rounded_sample((row.samples + row.specials)[0], backend.float_element)
        if sample is None:
            continue
        arrays = [x.primitive for x in running.tensors(sample, backend) if isinstance(x, Tensor)]
        for backward in (False, True) if row.samples and running.differentiable(row, sample) else (False,):
            title = f"{row.name}{', backward' * backward}"
            try:
                results = way(
                    lambda *arrays, r=row, s=sample, b=backward: run(r, s, arrays, backend, backward=b), arrays
                )
            except UnsupportedError as error:
                if "depends on the values" not in str(error):
                    yield f"{title}: {error}"
            except Exception as error:
                yield f"{title}: {' '.join(str(error.__cause__ or error).split())[:200]}"
            else:
                devices = {str(x.device) for x in results}
                if not devices <= {NAME}:
                    yield f"{title}: the result is on {devices}"


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("way", [eagerly, in_a_program])
@pytest.mark.parametrize("family", FAMILIES)
def test_operations_stay_on_their_device(family: str, way: Callable[..., list[Any]], element: Any) -> None:
    assert list(problems(family, Torch(float=element), way)) == []
