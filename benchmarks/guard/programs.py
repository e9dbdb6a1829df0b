"""What XLA makes of compiled steps, and the graphs that PyTorch is given: kernels, work, memory.

The steps are those of the large table, written as there, so no model is written twice.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

import phlox as px
from benchmarks.guard.figures import Entry, Section, entries_of, lacking, versions_of
from benchmarks.libraries import with_phlox
from benchmarks.workloads import Workload
from phlox import nn, optim
from phlox.backend import Autodiff
from phlox.models import DigitsConfig

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP 784-1024-1024-10, batch 256": ("mlp", {"widths": (784, 1024, 1024, 10), "batch": 256}),
    "GPT 4x256, context 128, batch 16": ("gpt", {}),
    "residual CNN 32x32, batch 64": ("cnn", {}),
    "LSTM 2x256, 64 steps, batch 32": ("lstm", {}),
}
"""Family of the model, and options of its sizes."""

DEMO = "the demo's network, batch 64"

XLA, TORCH = f"programs of XLA, {platform.machine()}", "graphs of PyTorch"

_HEADER = re.compile(r"^(ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^ +(ROOT )?%?[\w.\-]+ = (\([^=]*?\)|\S+) (?P<opcode>[a-z][a-z0-9\-]*)\(")
_FUSED = re.compile(r"calls=%?(?P<name>[\w.\-]+)")
_APPLIED = re.compile(r"(to_apply|comparator|select|scatter)=%?(?P<name>[\w.\-]+)")

NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "copy-start", "copy-done"}
"""What is in a program without being a kernel."""


def demo(engine: str) -> Callable[[], float]:
    """A training step of the demo's network, compiled; gives its loss."""
    rng = np.random.default_rng(0)
    device = Autodiff(getattr(px.backend, {"jax": "Jax", "torch": "Torch"}[engine])()).device()
    images = px.tensor(rng.random((64, 1, 8, 8), np.float32), device=device)
    labels = px.tensor(rng.integers(0, 10, 64).astype(np.int32), device=device)

    def train(model: Any, optimizer: Any, lr: float, images: Any, labels: Any) -> tuple[Any, px.Tensor]:
        loss = nn.cross_entropy_loss(model(images), labels)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    step = px.compile(train, donate=("model", "optimizer"))
    held, optimizer = [DigitsConfig().init(device).init(seed=0)], optim.AdamWConfig().init()

    def run() -> float:
        held[0], loss = step(held[0], optimizer, 1e-3, images, labels)
        return loss.item()

    return run


def steps(engine: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """How to make each step on `jax` or `torch`; calling what is made takes the step."""

    def of(family: str, options: dict[str, Any]) -> Callable[[], object]:
        contestant = with_phlox.Contestant(Workload(family, family, family, options), engine)
        return lambda: contestant.losses(1)

    made: dict[str, Callable[[], Callable[[], object]]] = {DEMO: lambda: demo(engine)}
    for name, (family, options) in STEPS.items():
        made[name] = lambda family=family, options=options: of(family, options)
    return made


# --- XLA


def xla_section() -> Section:
    """The programs of all steps on JAX."""
    if lacking(("jax",)):
        return Section(XLA, {}, dict.fromkeys(steps("jax"), "jax"))
    versions = versions_of(("jax", "jaxlib"))
    entries, failed = entries_of({
        name: lambda make=make: xla_entry(make(), versions) for name, make in steps("jax").items()
    })  # fmt: skip
    return Section(XLA, entries, failed=failed)


def xla_entry(step: Callable[[], object], versions: dict[str, str]) -> Entry:
    """The program of a step, found among those that the engine holds after it."""
    import jax

    client = jax.devices()[0].client
    before = client.live_executables()  # kept, so that no new one takes the place of one of them
    for _ in range(3):  # what is compiled once more for results of its own shows in the next call
        step()
    made = [each for each in client.live_executables() if not any(each is old for old in before)]
    programs = [each for each in made if each.hlo_modules()[0].name.endswith("_body")]
    program = max(programs, key=lambda each: each.cost_analysis().get("flops", 0.0))
    cost, memory = program.cost_analysis(), program.get_compiled_memory_stats()
    kernels, fused = operations(program.hlo_modules()[0].to_string())
    figures = {
        "programs": len(programs),
        "kernels": sum(kernels.values()),
        "flops": cost.get("flops", 0.0),
        "bytes read and written": cost.get("bytes accessed", 0.0),
        "bytes of temporaries": memory.temp_size_in_bytes,
        "bytes of arguments": memory.argument_size_in_bytes,
        "bytes of new outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }
    parts = {name: (times, times) for name, times in sorted(kernels.items())}
    return Entry(figures, parts | {"(inside fusions)": (fused, fused)}, versions)


def operations(text: str) -> tuple[Counter[str], int]:
    """Of a program as text: its kernels by opcode, those of loops' bodies too, and how many operations fusions hold."""
    found: dict[str, list[str]] = {}
    inside: set[str] = set()
    applied: set[str] = set()
    here: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            here = found[header["name"]] = []
            continue
        operation = _OPERATION.match(line)
        if operation is None:
            continue
        opcode = operation["opcode"]
        here.append(opcode)
        if opcode == "fusion":
            inside.update(match["name"] for match in _FUSED.finditer(line))
        elif opcode != "call":  # a call is of a kernel that is cut up for threads
            applied.update(match["name"] for match in _APPLIED.finditer(line))
    kernels: Counter[str] = Counter()
    for name, opcodes in found.items():
        if name not in inside and name not in applied:
            kernels.update(opcode for opcode in opcodes if opcode not in NO_WORK)
    return kernels, sum(len([one for one in found.get(name, []) if one not in NO_WORK]) for name in inside)


# --- PyTorch


def torch_section() -> Section:
    """The graphs of all steps on PyTorch, as they are given to its compiler."""
    if lacking(("torch",)):
        return Section(TORCH, {}, dict.fromkeys(steps("torch"), "torch"))
    versions = versions_of(("torch",))
    entries, failed = entries_of({
        name: lambda make=make: torch_entry(make(), versions) for name, make in steps("torch").items()
    })  # fmt: skip
    return Section(TORCH, entries, failed=failed)


def torch_entry(step: Callable[[], object], versions: dict[str, str]) -> Entry:
    """The graph of a step, and how many two steps record."""
    with recorded_graphs() as graphs:
        for _ in range(2):
            step()
    operations: Counter[str] = Counter()
    for node in graphs[0].graph.nodes:
        if node.op == "call_function":
            operations[str(node.target)] += 1
    parts = {name: (times, times) for name, times in sorted(operations.items())}
    return Entry({"graphs": len(graphs), "operations": sum(operations.values())}, parts, versions)


@contextmanager
def recorded_graphs() -> Generator[list[Any]]:
    """The graphs that PyTorch's recorder makes meanwhile."""
    from torch.fx.experimental import proxy_tensor

    recorder: Any = proxy_tensor.make_fx
    graphs: list[Any] = []

    def make_fx(*arguments: Any, **options: Any) -> Callable[..., Any]:
        record = recorder(*arguments, **options)

        def run(*placeholders: Any) -> Any:
            graph = record(*placeholders)
            graphs.append(graph)
            return graph

        return run

    proxy_tensor.make_fx = make_fx
    try:
        yield graphs
    finally:
        proxy_tensor.make_fx = recorder
