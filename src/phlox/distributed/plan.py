"""`plan`: what a step of training costs each device of a mesh, from shapes and a layout alone.

The formulas hold for a transformer with the names of `Gpt`, `Llama` and `Bert`: of n_layers blocks, of width d, with
heads of attention, trained on rows of n tokens. `docs/distributed_planning.md` has them on one page; a test compares
them with XLA's own analysis of compiled steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from phlox.backend.analysis import Traffic, sent_by_ring
from phlox.backend.sharding import AxisNames
from phlox.distributed.accelerators import Accelerator
from phlox.distributed.layout import Layout, tensor_parallel
from phlox.errors import ShardingError
from phlox.module import Module
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.optim.state.tree import flatten
from phlox.tensor import Tensor
from phlox.transform.summary.evaluate import blank, bytes_of

if TYPE_CHECKING:
    from phlox.distributed.mesh import Mesh

LAYOUTS = ("data", "fsdp", "tensor-parallel", "tensor-parallel+fsdp")
"""The layouts that `layout_by_name` knows."""

UPDATE_FLOPS = 15
"""Operations of AdamW for each parameter."""


class PaperMesh(NamedTuple):
    """A mesh of devices that need not exist: all that a layout asks of one."""

    shape: dict[str, int]

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self.shape)

    @property
    def batch_axis(self) -> str:
        """The axis that rows of a batch are cut over."""
        return "data" if "data" in self.shape else self.axes[0]

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape.values())


def layout_by_name(name: str, model: Module, mesh: PaperMesh) -> Layout:
    """`data`: replicated parameters; `fsdp`: cut over the axis of the batch; `tensor-parallel`: cut over `model` as
    Megatron does; `tensor-parallel+fsdp`: both.
    """
    if name not in LAYOUTS:
        raise ShardingError(f"there is no layout {name!r}; there are {', '.join(LAYOUTS)}")
    if name == "data":
        return Layout()
    if name == "fsdp":
        return Layout(rest=mesh.batch_axis)
    rest = mesh.batch_axis if name.endswith("fsdp") else None
    return tensor_parallel(model, cast("Mesh", mesh), fsdp=rest)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind and purpose, of one step."""

    what: str
    kind: str
    axes: tuple[str, ...]
    """Of the mesh: the devices along them exchange."""
    count: int
    payload: int
    """Bytes of the results on one device, all together."""
    sent: int
    """Bytes that a device sends."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """What the partitioner makes of sums over devices; the defaults are those of GPUs and TPUs."""

    scatters: bool = True
    """Is the gradient of a parameter in shards a reduce-scatter? Else it is an all-reduce, as on processors."""
    merges: bool = True
    """Are sums over devices that are added to each other one? The gradients towards the input of query, key and value
    are; not on processors."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step costs one device; bytes and operations."""

    mesh: dict[str, int]
    batch: int
    """Rows of the global batch."""
    context: int
    """Tokens of a row."""
    checkpoint: bool
    """Are the blocks computed again in the backward pass?"""
    count: int
    """The elements of all parameters of the model."""
    parameters: int
    gradients: int
    optimizer: int
    data: int
    """The batch: tokens and targets."""
    gathered: int
    """Parameters in shards that stand gathered at one time."""
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
        """Bytes that live from step to step, and the batch."""
        return self.parameters + self.optimizer + self.data

    @property
    def memory(self) -> int:
        """All of it at its peak."""
        kept = self.activations_checkpointed if self.checkpoint else self.activations
        return self.arguments + self.gradients + self.gathered + kept

    @property
    def collectives(self) -> dict[str, Traffic]:
        """Counts and bytes by kind."""
        found: dict[str, Traffic] = {}
        for one in self.exchanges:
            found[one.kind] = found.get(one.kind, Traffic(0, 0, 0)) + Traffic(one.count, one.payload, one.sent)
        return found

    @property
    def sent(self) -> int:
        """Bytes that a device sends."""
        return sum(one.sent for one in self.exchanges)

    def seconds(self, device: Accelerator, flops: float, link: float, network: float) -> tuple[float, float]:
        """The least time to compute, and the least time to exchange, at these rates."""
        spans = {name: math.prod(list(self.mesh.values())[place:]) for place, name in enumerate(self.mesh)}

        def rate(axes: tuple[str, ...]) -> float:
            # The last axis of a mesh counts the devices of a host.
            return link if max(spans[name] for name in axes) <= device.per_host else network

        return self.flops / flops, sum(one.sent / rate(one.axes) for one in self.exchanges)


class _Param(NamedTuple):
    """A parameter as a layout cuts it."""

    path: str
    shape: tuple[int, ...]
    bytes: int
    spec: tuple[AxisNames, ...]
    trained: bool
    is_matrix: bool
    """Does it multiply each token?"""

    @property
    def owner(self) -> str:
        """The layer that has it."""
        return self.path.rpartition(".")[0]


def plan(
    model: Module,
    mesh: Mapping[str, int],
    layout: Layout | str,
    *,
    batch: int,
    context: int | None = None,
    optimizer: Any = None,
    checkpoint: bool = True,
    compiler: Compiler = Compiler(),
) -> Plan:
    """What a step of training costs each device; no parameter of the model is made.

    Args:
        model: a `Gpt`, a `Llama` or a `BertMaskedLm`, whose parameters may be deferred; its backend says the precision.
        mesh: the size of each axis by name; no such devices need be there.
        layout: a `Layout`, or one of `LAYOUTS`.
        batch: rows of the global batch.
        context: tokens of a row; by default the model's own.
        optimizer: an optimizer or its config; without it there is no state.
        checkpoint: whether the blocks are computed again in the backward pass.

    Raises:
        ShardingError: the layout does not fit the model or the mesh, or the rows do not divide.
    """
    paper = PaperMesh(dict(mesh))
    if not mesh or min(mesh.values()) < 1:
        raise ShardingError(f"a mesh needs at least one axis, and sizes of at least 1, got {dict(mesh)}")
    chosen = layout_by_name(layout, model, paper) if isinstance(layout, str) else layout
    shards = mesh[paper.batch_axis]
    if batch < 1 or batch % shards:
        raise ShardingError(f"{batch} rows do not divide over {shards} devices (the axis {paper.batch_axis!r})")
    sizes = _sizes(model)
    n = sizes.context if context is None else context
    params = list(_params(model, chosen.specs(model, cast("Mesh", paper)), sizes.tied))
    step = _Step(paper, params, sizes, batch // shards * n, n, checkpoint, compiler)
    own = {p.path: step.own(p) for p in params}
    gradients = sum(own[p.path] for p in params if p.trained)
    return Plan(
        mesh=dict(mesh),
        batch=batch,
        context=n,
        checkpoint=checkpoint,
        count=sum(math.prod(p.shape) for p in params),
        parameters=sum(own.values()),
        gradients=gradients,
        optimizer=0 if optimizer is None else _state_bytes(optimizer, model, own),
        data=2 * 4 * step.tokens,
        gathered=step.gathered_at_once(),
        activations=step.activations(),
        activations_checkpointed=step.activations_checkpointed(),
        flops=step.flops(),
        exchanges=tuple(step.exchanges()),
    )


class _Sizes(NamedTuple):
    """What the formulas ask of a model."""

    n_layers: int
    d_model: int
    context: int
    vocabulary: int
    n_heads: int
    d_kv: int
    """The width of keys, all heads together."""
    d_attention: int
    """That of queries."""
    d_hidden: int
    gated: bool
    tied: bool
    """Is the table of tokens the head, too?"""
    element: int
    """Bytes of an activation."""


def _sizes(model: Module) -> _Sizes:
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
    return _Sizes(
        n_layers=config.n_layers, d_model=config.d_model, context=config.context, vocabulary=config.vocabulary,
        n_heads=config.n_heads, d_kv=shapes[needed[1]][1], d_attention=shapes[needed[0]][1],
        d_hidden=shapes[needed[2]][1], gated="gate.weight" in shapes,
        tied=not any(path.endswith("head.weight") for path in named),
        element=bytes_of(blank((), first.kind, first.device)),
    )  # fmt: skip


def _params(model: Module, specs: Mapping[str, tuple[AxisNames, ...]], tied: bool) -> Iterator[_Param]:
    for path, param in model.structure().named():
        size = bytes_of(blank(param.shape, param.kind, param.device))
        is_table = path.endswith(("tokens.weight", "segments.weight", "positions"))
        is_matrix = len(param.shape) == 2 and (not is_table or (tied and path.endswith("tokens.weight")))
        yield _Param(path, param.shape, size, specs[path], param.trained, is_matrix)


def _names(axes: AxisNames) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()


class _Step:
    """The formulas."""

    def __init__(
        self, mesh: PaperMesh, params: list[_Param], sizes: _Sizes, tokens: int, n: int, checkpoint: bool,
        compiler: Compiler,
    ) -> None:  # fmt: skip
        self.mesh, self.params, self.sizes = mesh, params, sizes
        self.tokens, self.n, self.checkpoint, self.compiler = tokens, n, checkpoint, compiler
        self.batch_axis = mesh.batch_axis
        query = next(p for p in params if p.path.endswith("blocks.0.attention.query.weight"))
        self.tensor_axes = self._cut(query, 1)
        self.parts = self._size(self.tensor_axes)
        """Over how many devices a block is cut."""

    def _size(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.mesh.shape[name] for name in axes)

    def _cut(self, p: _Param, axis: int) -> tuple[str, ...]:
        """The mesh axes, without that of the batch, over which an axis is cut."""
        names = _names(p.spec[axis]) if axis < len(p.spec) else ()
        return tuple(name for name in names if name != self.batch_axis)

    def _is_gathered(self, p: _Param) -> bool:
        """Is it cut over the axis of the batch, so that devices gather it before they use it?"""
        return any(self.batch_axis in _names(axes) for axes in p.spec) and self.mesh.shape[self.batch_axis] > 1

    def own(self, p: _Param) -> int:
        """Bytes of the part on a device."""
        return p.bytes // math.prod(self._size(_names(axes)) for axes in p.spec)

    def used(self, p: _Param) -> int:
        """Bytes of the part that a device computes with, once it is gathered."""
        return p.bytes // math.prod(self._size(self._cut(p, axis)) for axis in range(len(p.spec)))

    # --- memory

    def gathered_at_once(self) -> int:
        """Of parameters in shards: all of them; if blocks are recomputed those of one, and of what is outside."""
        whole = [p for p in self.params if self._is_gathered(p)]
        if self.checkpoint:
            whole = [p for p in whole if "blocks." not in p.path or "blocks.0." in p.path]
        return sum(self.used(p) for p in whole)

    def _block(self) -> int:
        """Elements that a block keeps for each token: 4 d + (2 d_q + 2 d_kv + heads n + 2 h) / t; 3 h if gated."""
        s = self.sizes
        inside = 2 * s.d_attention + 2 * s.d_kv + s.n_heads * self.n + (3 if s.gated else 2) * s.d_hidden
        return 4 * s.d_model + inside // self.parts

    def _outside(self) -> int:
        """Elements for each token outside of blocks: the logits, and their gradient."""
        head = [p for p in self.params if p.is_matrix and p.path.endswith(("head.weight", "tokens.weight"))]
        axis = 0 if self.sizes.tied else 1
        parts = self._size(self._cut(head[-1], axis)) if head else 1
        return 2 * self.sizes.vocabulary // parts

    def activations(self) -> int:
        """Bytes for a backward pass without recomputation."""
        return self.sizes.element * self.tokens * (self.sizes.n_layers * self._block() + self._outside())

    def activations_checkpointed(self) -> int:
        """Bytes if each block keeps its input alone: d for each token and block, one block at work, the logits."""
        s = self.sizes
        return s.element * self.tokens * (s.n_layers * s.d_model + self._block() + self._outside())

    # --- operations

    def flops(self) -> int:
        """6 operations for each token and element of a matrix, 12 n d_q for attention, 15 for each parameter updated.

        With recomputation 8 and 16, in blocks.
        """
        s = self.sizes
        passes = 4 if self.checkpoint else 3
        total = passes * 4 * self.tokens * self.n * s.d_attention * s.n_layers // self.parts
        for p in self.params:
            if p.is_matrix:
                elements = math.prod(p.shape) * self.used(p) // p.bytes
                total += (passes if "blocks." in p.path else 3) * 2 * self.tokens * elements
            total += UPDATE_FLOPS * math.prod(p.shape) * self.own(p) // p.bytes
        return total

    # --- exchanges

    def exchanges(self) -> Iterator[Exchange]:
        """All collectives of a step; those of a few numbers are left out."""
        yield from self._of_parameters()
        if self.parts > 1:
            yield from self._of_activations()

    def _of_parameters(self) -> Iterator[Exchange]:
        group, axes = self.mesh.shape[self.batch_axis], (self.batch_axis,)
        if group == 1:
            return
        whole = [p for p in self.params if self._is_gathered(p)]
        if whole:
            every = sum(self.used(p) for p in whole)
            again = sum(self.used(p) for p in whole if self.checkpoint and "blocks." in p.path)
            count = len(whole) + sum(self.checkpoint and "blocks." in p.path for p in whole)
            yield self._exchange("parameters", "all-gather", axes, count, every + again, group)
            trained = [p for p in whole if p.trained]
            if self.compiler.scatters:
                parts = sum(self.own(p) for p in trained)
                yield self._exchange("gradients of shards", "reduce-scatter", axes, len(trained), parts, group)
            else:
                sums = sum(self.used(p) for p in trained)
                yield self._exchange("gradients of shards", "all-reduce", axes, 1, sums, group)
        rest = sum(self.used(p) for p in self.params if p.trained and not self._is_gathered(p))
        if rest:
            yield self._exchange("gradients", "all-reduce", axes, 1, rest, group)

    def _of_activations(self) -> Iterator[Exchange]:
        """Sums over the devices that share a block: after rows forward, before columns backward."""
        s, group = self.sizes, self.parts
        forward = backward = again = 0
        before: set[tuple[str, int]] = set()
        for p in self.params:
            if not p.is_matrix and not p.path.endswith("tokens.weight"):
                continue
            rows, columns = bool(self._cut(p, 0)), bool(self._cut(p, 1))
            if p.path.endswith("tokens.weight"):
                forward += rows
                backward += rows and self.sizes.tied
            elif rows:
                forward += 1
                again += self.checkpoint and not p.owner.endswith("down")
            elif columns:
                key = (p.owner.rpartition(".")[0], p.shape[0]) if self.compiler.merges else (p.owner, 0)
                backward += key not in before
                before.add(key)
        one = s.element * self.tokens * s.d_model
        named = (("activations", forward), ("activations, again", again), ("gradients of activations", backward))
        for what, count in named:
            if count:
                yield self._exchange(what, "all-reduce", self.tensor_axes, count, count * one, group)
        if self._outside() < 2 * s.vocabulary:  # the greatest logit, the sum of exponentials, and that of the target
            yield self._exchange("loss", "all-reduce", self.tensor_axes, 3, 3 * s.element * self.tokens, group)

    @staticmethod
    def _exchange(what: str, kind: str, axes: tuple[str, ...], count: int, payload: int, group: int) -> Exchange:
        return Exchange(what, kind, axes, count, payload, sent_by_ring(kind, payload, group))


def _state_bytes(optimizer: Any, model: Module, own: Mapping[str, int]) -> int:
    """Bytes of an optimizer's state on a device: a tensor of the shape of its parameter is cut as that is."""
    made = optimizer if isinstance(optimizer, Optimizer) else optimizer.init()
    if not isinstance(made, OptimizerAdaptor):
        raise ShardingError(f"{type(made).__name__} steps all parameters at once, and its state cannot be planned")
    twin = made.twin()
    twin.report(model)  # finds the groups, without a step
    total = 0
    for path, param in model.structure().named():
        if not param.trained:
            continue
        whole = blank(param.shape, param.kind, param.device)
        leaves: list[Any] = []
        flatten(twin.init_state(whole, twin.variant(param.id)), leaves)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensor = cast("Tensor[Any, Any, Any]", leaf)
                size = bytes_of(tensor)
                total += size * own[path] // bytes_of(whole) if tensor.shape == param.shape else size
    return total
