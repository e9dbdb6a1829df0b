"""`plan`: the costs of a training step for each device of a mesh, from shapes and a layout alone.

The formulas hold for a transformer with the names of `Gpt`, `Llama` and `Bert`: n_layers blocks of width d, with
attention heads, trained on rows of n tokens. `docs/planning.md` has them on one page; a test compares them with XLA's
own analysis of compiled steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from phlox.backend.analysis import Traffic
from phlox.backend.sharding import AxisNames
from phlox.distributed.layout import Layout, tensor_parallel
from phlox.distributed.planning.accelerators import Accelerator
from phlox.distributed.planning.step_costs import Compiler, Exchange, PaperMesh, ParamPart, Sizes, StepCosts
from phlox.errors import ShardingError
from phlox.module import Module
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.transform.summary.evaluate import blank, bytes_of, first_states

if TYPE_CHECKING:
    from phlox.distributed.mesh import Mesh

LAYOUTS = ("data", "fsdp", "tensor-parallel", "tensor-parallel+fsdp")
"""The layouts that `layout_by_name` knows."""


def layout_by_name(name: str, model: Module, mesh: PaperMesh) -> Layout:
    """The layout with a name of `LAYOUTS`.

    `data` replicates parameters; `fsdp` shards them over the axis of the batch; `tensor-parallel` shards them over
    `model` as Megatron does; `tensor-parallel+fsdp` does both.
    """
    if name not in LAYOUTS:
        raise ShardingError(f"there is no layout {name!r}; there are {', '.join(LAYOUTS)}")
    if name == "data":
        return Layout()
    if name == "fsdp":
        return Layout(rest=mesh.batch_axis)
    axis = mesh.batch_axis if name.endswith("fsdp") else None
    return tensor_parallel(model, cast("Mesh", mesh), fsdp=axis)


@dataclass(frozen=True, slots=True)
class Plan:
    """The costs of one training step for one device, in bytes and operations."""

    mesh: dict[str, int]
    batch: int
    """The number of rows in the global batch."""
    context: int
    """The number of tokens in a row."""
    checkpoint: bool
    """Are the blocks recomputed in the backward pass?"""
    count: int
    """The number of elements in all parameters of the model."""
    parameters: int
    gradients: int
    optimizer: int
    data: int
    """The bytes of the batch: tokens and targets."""
    gathered: int
    """The bytes of sharded parameters while they are gathered."""
    activations: int
    activations_checkpointed: int
    flops: int
    exchanges: tuple[Exchange, ...]

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh.values())

    @property
    def arguments(self) -> int:
        """The bytes that are kept from step to step, and the batch."""
        return self.parameters + self.optimizer + self.data

    @property
    def memory(self) -> int:
        """The peak memory, in bytes."""
        activations = self.activations_checkpointed if self.checkpoint else self.activations
        return self.arguments + self.gradients + self.gathered + activations

    @property
    def collectives(self) -> dict[str, Traffic]:
        """The number and the bytes of collectives, by kind."""
        totals: dict[str, Traffic] = {}
        for x in self.exchanges:
            totals[x.kind] = totals.get(x.kind, Traffic(0, 0, 0)) + Traffic(x.count, x.payload, x.sent)
        return totals

    @property
    def sent(self) -> int:
        """The bytes that a device sends in a step."""
        return sum(exchange.sent for exchange in self.exchanges)

    def seconds(self, device: Accelerator, flops: float, link: float, network: float | None) -> tuple[float, float]:
        """The least seconds to compute, and the least seconds to communicate, at these rates.

        Raises ShardingError if devices of several hosts communicate, and no rate is known for them.
        """
        spans = {name: math.prod(list(self.mesh.values())[index:]) for index, name in enumerate(self.mesh)}

        def rate(axes: tuple[str, ...]) -> float:
            # The last axis of a mesh counts the devices of a host.
            if max(spans[name] for name in axes) <= device.per_host:
                return link
            if network is None:
                raise ShardingError(
                    f"no document has the bandwidth between more than {device.per_host:,} devices of {device.name}; "
                    "give it as --network RATE"
                )
            return network

        return self.flops / flops, sum(exchange.sent / rate(exchange.axes) for exchange in self.exchanges)


def plan(
    model: Module,
    mesh: Mapping[str, int],
    layout: Layout | str,
    *,
    batch: int,
    context: int | None = None,
    optimizer: Any = None,
    checkpoint: bool = True,
    compiler: Compiler | None = None,
) -> Plan:
    """Compute what a training step costs each device of a mesh, without making parameters.

    Args:
        model: a `Gpt`, a `Llama` or a `BertMaskedLm`, with deferred parameters or not; its backend sets the precision.
        mesh: the size of each axis by name; the devices need not exist.
        layout: a `Layout`, or one of `LAYOUTS`.
        batch: the number of rows in the global batch.
        context: the number of tokens in a row; by default the model's context.
        optimizer: an optimizer or its config; without one there is no optimizer state.
        checkpoint: whether the blocks are recomputed in the backward pass.
        compiler: how the partitioner compiles sums over devices; by default as on GPUs and TPUs.

    Raises:
        ShardingError: the layout does not fit the model or the mesh, or the rows cannot be divided over the devices.
    """
    paper = PaperMesh(dict(mesh))
    if not mesh or min(mesh.values()) < 1:
        raise ShardingError(f"a mesh needs at least one axis, and sizes of at least 1, got {dict(mesh)}")
    if unknown := [name for name in ("replica", "seq") if mesh.get(name, 1) > 1]:
        raise ShardingError(f"the formulas do not know the axis {unknown[0]!r}; plan one replica, or whole sequences")
    chosen = layout_by_name(layout, model, paper) if isinstance(layout, str) else layout
    shards = mesh[paper.batch_axis]
    if batch < 1 or batch % shards:
        raise ShardingError(f"{batch} rows do not divide over {shards} devices (the axis {paper.batch_axis!r})")
    sizes = _sizes(model)
    n = sizes.context if context is None else context
    params = list(_params(model, chosen.specs(model, cast("Mesh", paper)), sizes.tied))
    step = StepCosts(paper, params, sizes, batch // shards * n, n, checkpoint, compiler or Compiler())
    own_bytes = {p.path: step.stored(p) for p in params}
    gradients = sum(own_bytes[p.path] for p in params if p.trained)
    return Plan(
        mesh=dict(mesh),
        batch=batch,
        context=n,
        checkpoint=checkpoint,
        count=sum(math.prod(p.shape) for p in params),
        parameters=sum(own_bytes.values()),
        gradients=gradients,
        optimizer=0 if optimizer is None else _state_bytes(optimizer, model, own_bytes),
        data=2 * 4 * step.tokens,
        gathered=step.gathered_at_once(),
        activations=step.activations(),
        activations_checkpointed=step.activations_checkpointed(),
        flops=step.flops(),
        exchanges=tuple(step.exchanges()),
    )


def _sizes(model: Module) -> Sizes:
    config: Any = getattr(model, "config", None)
    config = getattr(config, "bert", config)
    named = dict(model.structure().named())
    shapes = {path.partition("blocks.0.")[2]: param.shape for path, param in named.items() if "blocks.0." in path}
    needed = ("attention.query.weight", "attention.key.weight", "up.weight")
    if config is None or any(name not in shapes for name in needed):
        raise ShardingError(
            f"{type(model).__name__} is no transformer of phlox.models; the formulas are for Gpt, Llama and "
            "BertMaskedLm, and px.compile(step).lower(...) reports on any step"
        )
    first = next(iter(named.values()))
    return Sizes(
        n_layers=config.n_layers, d_model=config.d_model, context=config.context, vocabulary=config.vocabulary,
        n_heads=config.n_heads, d_kv=shapes[needed[1]][1], d_attention=shapes[needed[0]][1],
        d_hidden=shapes[needed[2]][1], gated="gate.weight" in shapes,
        tied=not any(path.endswith("head.weight") for path in named),
        element=bytes_of(blank((), first.kind, first.device)),
    )  # fmt: skip


def _params(model: Module, specs: Mapping[str, tuple[AxisNames, ...]], tied: bool) -> Iterator[ParamPart]:
    for path, param in model.structure().named():
        size = bytes_of(blank(param.shape, param.kind, param.device))
        is_table = path.endswith(("tokens.weight", "segments.weight", "positions"))
        is_matrix = len(param.shape) == 2 and (not is_table or (tied and path.endswith("tokens.weight")))
        yield ParamPart(path, param.shape, size, specs[path], param.trained, is_matrix)


def _state_bytes(optimizer: Any, model: Module, own_bytes: Mapping[str, int]) -> int:
    """Bytes of an optimizer's state on a device: a tensor of its parameter's shape is sharded as the parameter."""
    instance = optimizer if isinstance(optimizer, Optimizer) else optimizer.init()
    if not isinstance(instance, OptimizerAdaptor):
        raise ShardingError(f"{type(instance).__name__} steps all parameters at once, and its state cannot be planned")
    total = 0
    for path, param, tensors in first_states(instance, model):
        size_of_param = bytes_of(blank(param.shape, param.kind, param.device))
        for tensor in tensors:
            size = bytes_of(tensor)
            total += size * own_bytes[path] // size_of_param if tensor.shape == param.shape else size
    return total
