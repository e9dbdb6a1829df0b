"""Every operation of the contract on a device that is no processor, eagerly and in a program, forward and backward.

PyTorch's device "meta" stands for a GPU: its tensors have shapes and a device, but no values, so no GPU is needed. No
operation may make a tensor on a processor on the way, read a value without need, or call a kernel for processors.

Serves: src/phlox/backend/torch/{arrays,backend,tracer}.py, src/phlox/backend/torch/ops/{random,update}.py
"""

# pyright: standard
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.contract.update import Piece
from phlox.backend.device import Device
from phlox.backend.torch import compat
from phlox.backend.torch.arrays import Arrays
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.compiler.graph import is_elementwise, origin_of
from phlox.backend.torch.compiler.passes import donation
from phlox.backend.torch.tracer import TracerOps, end, tracing
from phlox.host.signal_guard import scope
from phlox.models import GptConfig
from tests.backend.rows import FAMILIES, cases

NAME = "meta"
OF_VALUES = ("depends on the values", "does not broadcast to the indexed shape", "index arrays of shapes")
"""Texts of errors of operations whose shapes depend on the values of a mask, which are unknown here."""


@pytest.fixture(autouse=True)
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an operation reads values (indices, or what it refuses), it reads the sample's; of others, ones or zero."""
    to_host, from_host, to_cpu = Arrays.to_host, Arrays.from_host, torch.Tensor.cpu

    def host(self: Any, x: Any) -> Any:
        if x.device.type != NAME:
            return to_host(self, x)
        return np.full(tuple(x.shape), x.is_floating_point(), self.host_dtype(self.kind_of(x)))

    def cpu(x: Any) -> Any:
        if x.device.type != NAME:
            return to_cpu(x)
        return getattr(x, "of_sample", torch.full(x.shape, x.is_floating_point(), dtype=x.dtype))

    def sampled(self: Any, x: Any) -> Any:
        return to_host(self, x.of_sample) if hasattr(x, "of_sample") else host(self, x)

    def made(self: Any, array: Any, kind: Any, device: Device) -> Any:
        x = from_host(self, array, kind, device.on(self) if device.name != NAME else self.device())
        return x if device.name != NAME else torch.empty(x.shape, dtype=x.dtype, device=NAME)

    monkeypatch.setattr(Arrays, "to_host", sampled)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(Arrays, "from_host", made)
    monkeypatch.setattr(TracerOps, "_forbid", lambda *_: None)
    monkeypatch.setenv(VARIABLE, "inductor")  # with all passes and kernels


def eagerly(fn: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Call the function with tensors on the device."""
    tensors: list[Any] = [torch.empty(x.shape, dtype=x.dtype, device=NAME) for x in arrays]
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.of_sample = array
    return fn(*tensors)


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
    for title, arrays, function in cases(family, backend, Device(Autodiff(backend), NAME)):
        try:
            results = way(function, arrays)
        except Exception as error:
            if not any(text in str(error) for text in OF_VALUES):
                yield f"{title}: {' '.join(str(error.__cause__ or error).split())[:200]}"
        else:
            devices = {str(x.device) for x in results}
            if not devices <= {NAME}:
                yield f"{title}: the result is on {devices}"


QUICK = {"arithmetic", "attention", "conv", "nn"}


@pytest.mark.parametrize(
    ("family", "way", "element"),
    [
        pytest.param(
            family, way, element,
            marks=() if family in QUICK and way is eagerly and element == "f32" else pytest.mark.full,
        )
        for family in FAMILIES for way in (eagerly, in_a_program) for element in ("f32", "bf16")
    ],
)  # fmt: skip
def test_operations_stay_on_their_device(family: str, way: Callable[..., list[Any]], element: Any) -> None:
    assert list(problems(family, Torch(float=element), way)) == []


def test_waiting_for_a_tensor_waits_for_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: waited.append(str(device)))

    class OnGpu:
        device = torch.device("cuda", 1)

    Torch().await_array(OnGpu())
    Torch().await_array(torch.ones(2))
    with compat.FAKE_TENSOR_MODE.value():
        Torch().await_array(torch.empty(2, device="cuda"))
    assert waited == ["cuda:1"]


def test_an_update_cuts_arrays_into_parts_on_a_processor_only() -> None:
    def parts_on(device: str) -> list[int]:
        sizes: list[int] = []

        def work(old: list[Any]) -> list[Any]:
            sizes.append(len(old[0]))
            return [old[0] + old[1]]

        arrays = [[torch.empty(size, device=device) for _ in range(3)] for size in (1 << 18, 100, 200)]
        Torch().in_pieces(work, [Piece((old, grad), (new,)) for old, grad, new in arrays])
        return sizes

    assert parts_on("cpu") == [1 << 17, 1 << 17, 300]
    assert parts_on(NAME) == [1 << 18, 300]


def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss = nn.cross_entropy_loss(model(x), y)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(1e-3, model, grads), loss


class Recurrent(px.Module):
    """Tokens to logits."""

    def __init__(self, device: Device) -> None:
        self.embedding, self.lstm = nn.Embedding(64, 64, device=device), nn.Lstm(64, 64, device=device)
        self.head = nn.Linear(64, 64, device=device)

    def __call__(self, x: Any) -> Any:
        return self.head(self.lstm(self.embedding(x))[0])


def gpt(device: Device) -> tuple[Any, tuple[int, ...]]:
    config = GptConfig(vocabulary=64, context=64, n_layers=2, d_model=128, n_heads=2, dropout=0.1)
    return config.init(device), (4, 64)


def lstm(device: Device) -> tuple[Any, tuple[int, ...]]:
    return Recurrent(device), (4, 8)


def images(device: Device) -> tuple[Any, tuple[int, ...]]:
    layers: list[Any] = []
    for inputs in (3, 32, 32):
        layers += [nn.Conv2d(inputs, 32, 3, padding=1, device=device), nn.BatchNorm(32, device=device), nn.Relu()]
    layers += [nn.Dropout(0.1), nn.Flatten(), nn.Linear(32 * 16 * 16, 10, device=device)]
    return nn.Sequential(layers), (16,)


@pytest.mark.parametrize(
    ("make", "element"),
    [
        pytest.param(make, element, marks=() if (make, element) == (images, "f32") else pytest.mark.full)
        for make in (gpt, lstm, images)
        for element in ("f32", "bf16")
    ],
)
def test_a_training_step_stays_on_its_device(make: Any, element: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draws, its donated update, its shared updates; and no graph has an operation for processors alone."""
    graphs: list[Any] = []

    def run_as_it_is(graph: Any, *_: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compat, "compile_graph", run_as_it_is)
    monkeypatch.setattr(donation.LentMemory, "__init__", None)
    device = Device(Autodiff(Torch(float=element)), NAME)
    model, shape = make(device)
    labels = px.tensor(np.zeros(shape, np.int32), device=device)
    x = px.zeros((16, 3, 16, 16), device=device) if make is images else labels
    optimizer = optim.AdamWConfig().init()
    for compiled in (False, True):
        train = px.compile(step, donate=("model", "optimizer")) if compiled else step
        for _ in range(2):
            model, loss = train(model.train(), optimizer, x, labels)
            assert loss.device.name == NAME
            assert {param.val().device.name for param in model.params()} == {NAME}
    own = {node.target for graph in graphs for node in graph.graph.nodes if str(node.target).startswith("phlox.")}
    assert graphs and not [str(target) for target in own if is_for_processors(target)]
    read = [x for graph in graphs for x in numbers_read(graph.graph.nodes)]
    assert (make is lstm or read) and all(x.ndim == 0 for x in read)


def numbers_read(nodes: Any) -> Iterator[Any]:
    """The tensors on a processor that loops on the device read: of elementwise operations and views, their operands.

    Inductor computes those in the loop, and passes a tensor without axes to it as a number.
    """
    for node in nodes:
        if any(x.device.type == NAME for x in tensors_of(node)):
            open_nodes = [part for part in node.all_input_nodes if is_on_processor(part)]
            while open_nodes:
                part = open_nodes.pop()
                inner = [operand for operand in part.all_input_nodes if is_on_processor(operand)]
                if inner and (is_elementwise(part) or origin_of(part) is not part):
                    open_nodes += inner
                else:
                    yield from tensors_of(part)


def tensors_of(node: Any) -> list[Any]:
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def is_on_processor(node: Any) -> bool:
    return any(x.device.type == "cpu" for x in tensors_of(node))
