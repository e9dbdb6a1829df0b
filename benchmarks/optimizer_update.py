# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The cost of AdamW's update of a model's weights, without the gradients, against PyTorch's fused kernel and Optax."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import phlox as px
from benchmarks.harness import Ratio, built, compare, quick, seconds_in_turn
from phlox import optim
from phlox.module import GradientsParams

TENSORS, ELEMENTS = (300, 25_000_000) if not quick() else (60, 2_000_000)
LR = 1e-3


def shapes() -> list[tuple[int, ...]]:
    """Shapes as in a transformer: of six tensors, two are matrices with almost all elements, and four are vectors."""
    width = int((ELEMENTS / (TENSORS / 3)) ** 0.5)
    return [(width, width) if i % 3 == 0 else (width,) for i in range(TENSORS)]


class Weights(px.Module):
    """A module with only parameters."""

    def __init__(self, arrays: list[np.ndarray], device: Any) -> None:
        self.params_ = [px.Param(px.tensor(array, device=device)) for array in arrays]


def phlox_update(
    arrays: list[np.ndarray],
    grads: list[np.ndarray],
    engine: str,
    *,
    compiled: bool = False,
    donate: bool = False,
    config: optim.SimpleConfig | None = None,
) -> Callable[[], Any]:
    """An update by Phlox, step after step."""
    model = Weights(arrays, engine).train()
    inner = [px.tensor(grad, device=engine) for grad in grads]
    given = GradientsParams({param.id: grad for param, grad in zip(model.params(), inner, strict=True)})
    optimizer = (config or optim.AdamWConfig()).init(donate=donate)

    def step(model: Any, optimizer: Any, grads: Any) -> Any:
        return optimizer.step(LR, model, grads)

    run = px.compile(step, donate=("model", "optimizer")) if compiled else step
    held = [model]

    def go() -> None:
        held[0] = run(held[0], optimizer, given)
        if engine == "jax":
            jax.block_until_ready([param.leaf for param in held[0].params()])

    return go


def torch_update(arrays: list[np.ndarray], grads: list[np.ndarray], fused: bool) -> Callable[[], Any]:
    """An update by torch.optim."""
    params = [torch.nn.Parameter(torch.tensor(array)) for array in arrays]
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad)
    return torch.optim.AdamW(params, lr=LR, fused=fused, foreach=not fused).step


def optax_update(arrays: list[np.ndarray], grads: list[np.ndarray]) -> Callable[[], Any]:
    """An update by Optax under jit, with donated parameters and state."""
    import optax

    transformation = optax.adamw(LR, weight_decay=0.01)
    given = [jnp.asarray(grad) for grad in grads]

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(step, donate_argnums=(0, 1))
    params = [jnp.asarray(array) for array in arrays]
    held: list[Any] = [(params, transformation.init(params))]

    def go() -> None:
        held[0] = jax.block_until_ready(run(*held[0], given))

    return go


def peak(update: Callable[[], Any]) -> int:
    """The temporary memory of an update in bytes, by tracemalloc, which includes NumPy's."""
    for _ in range(3):
        update()
    gc.collect()
    tracemalloc.start()
    try:
        update()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        update()
        return max(tracemalloc.get_traced_memory()[1] - before, 0)
    finally:
        tracemalloc.stop()


def temporaries(update: Callable[[], Any]) -> int:
    """The bytes that XLA allocates for an update, beyond arguments and results."""
    client = jax.devices("cpu")[0].client
    known = {id(program) for program in client.live_executables()}
    update()
    programs = [program for program in client.live_executables() if id(program) not in known]
    return max(program.get_compiled_memory_stats().temp_size_in_bytes for program in programs)


def memory(arrays: list[np.ndarray], grads: list[np.ndarray]) -> list[Ratio]:
    """The memory of an update beyond parameters, state and gradients, relative to that of the parameters."""
    whole = sum(array.nbytes for array in arrays)
    extra = {
        "Phlox on NumPy": peak(phlox_update(arrays, grads, "numpy")),
        "Phlox on NumPy, donate=True": peak(phlox_update(arrays, grads, "numpy", donate=True)),
        "Lion by Phlox on NumPy, donate=True": peak(
            phlox_update(arrays, grads, "numpy", donate=True, config=optim.LionConfig())
        ),
        "Phlox on JAX, compiled": temporaries(phlox_update(arrays, grads, "jax", compiled=True)),
    }
    workload = f"extra memory of an update of {TENSORS} tensors, {sum(a.size for a in arrays) / 1e6:.0f} M elements"
    return [
        Ratio(
            workload, name, "the parameters", found * 1e6, whole * 1e6, *[found / whole] * 3,
            target=asked, measure="bytes",
        )
        for (name, found), asked in zip(extra.items(), (None, 0.02, None, 0.01), strict=True)
    ]  # fmt: skip


def run() -> list[Ratio]:
    """The update on each engine against the peers."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes()]
    grads = [rng.standard_normal(shape, np.float32) for shape in shapes()]
    fused, looped, optaxs = "torch fused", "torch foreach", "optax under jit"
    numpys, torchs, jaxs = "Phlox on NumPy", "Phlox on Torch", "Phlox on JAX, compiled"
    given = ", donate=True"
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        numpys: lambda: phlox_update(arrays, grads, "numpy"),
        numpys + given: lambda: phlox_update(arrays, grads, "numpy", donate=True),
        torchs: lambda: phlox_update(arrays, grads, "torch"),
        torchs + given: lambda: phlox_update(arrays, grads, "torch", donate=True),
        jaxs: lambda: phlox_update(arrays, grads, "jax", compiled=True),
        fused: lambda: torch_update(arrays, grads, True),
        looped: lambda: torch_update(arrays, grads, False),
        optaxs: lambda: optax_update(arrays, grads),
    }
    times = seconds_in_turn(built(makers), rounds=5 if quick() else 15)
    workload = f"AdamW update of {TENSORS} tensors, {sum(a.size for a in arrays) / 1e6:.0f} M elements"
    return [
        compare(workload, times, numpys, fused),
        compare(workload, times, numpys + given, fused, target=1.5),
        compare(workload, times, torchs, fused),
        compare(workload, times, torchs + given, fused, target=1.05),
        compare(workload, times, torchs + given, looped),
        compare(workload, times, jaxs, optaxs, target=1.0),
        *memory(arrays, grads),
    ]
