"""The formulas for the costs of a training step on one device, see `phlox.distributed.planning.plan`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from phlox.backend.analysis import sent_by_ring
from phlox.backend.sharding import AxisNames

UPDATE_FLOPS = 15
"""The operations of AdamW for each parameter."""


class PaperMesh(NamedTuple):
    """A mesh of devices that need not exist, with the members that a layout needs."""

    shape: dict[str, int]

    @property
    def partitions(self) -> bool:
        """Does its engine have a partitioner? The formulas describe programs of such an engine."""
        return True

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self.shape)

    @property
    def batch_axis(self) -> str:
        """The axis over which the rows of a batch are divided."""
        return "data" if "data" in self.shape else self.axes[0]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The collectives of one kind and purpose in a step."""

    what: str
    kind: str
    axes: tuple[str, ...]
    """The mesh axes along which devices exchange."""
    count: int
    payload: int
    """The bytes of all results on one device."""
    sent: int
    """The bytes that a device sends."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """How the partitioner compiles sums over devices; the defaults are for GPUs and TPUs."""

    scatters: bool = True
    """Is the gradient of a sharded parameter a reduce-scatter? Otherwise it is an all-reduce, as on CPUs."""
    merges: bool = True
    """Are sums over devices that are added to each other merged into one? That concerns the gradients of the input of
    query, key and value, and of an embedding that is also the head; not on CPUs."""
    gathers_again: bool = False
    """Are shards gathered again when blocks are recomputed? Otherwise they stay gathered until the backward pass, as in
    Phlox's programs: `phlox.checkpoint` keeps XLA from reusing activations, not weights."""


class ParamPart(NamedTuple):
    """A parameter with its sharding by a layout."""

    path: str
    shape: tuple[int, ...]
    bytes: int
    spec: tuple[AxisNames, ...]
    trained: bool
    is_matrix: bool
    """Does it multiply each token?"""

    @property
    def owner(self) -> str:
        """The layer that has the parameter."""
        return self.path.rpartition(".")[0]


class Sizes(NamedTuple):
    """The sizes of a model that the formulas need."""

    n_layers: int
    d_model: int
    context: int
    vocabulary: int
    n_heads: int
    d_kv: int
    """The width of the keys of all heads together."""
    d_attention: int
    """The width of the queries of all heads together."""
    d_hidden: int
    gated: bool
    tied: bool
    """Is the embedding also the head?"""
    element: int
    """The bytes of an activation."""


def _names(axes: AxisNames) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()


class StepCosts:
    """The formulas."""

    def __init__(
        self, mesh: PaperMesh, params: list[ParamPart], sizes: Sizes, tokens: int, n: int, checkpoint: bool,
        compiler: Compiler,
    ) -> None:  # fmt: skip
        self.mesh, self.params, self.sizes = mesh, params, sizes
        self.tokens, self.n, self.checkpoint, self.compiler = tokens, n, checkpoint, compiler
        self.batch_axis = mesh.batch_axis
        query = next(p for p in params if p.path.endswith("blocks.0.attention.query.weight"))
        self.tensor_axes = self._cut(query, 1)
        self.parts = self._size(self.tensor_axes)
        """The number of devices over which a block is sharded."""
        self._gathers_again = checkpoint and compiler.gathers_again

    def _size(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.mesh.shape[name] for name in axes)

    def _cut(self, p: ParamPart, axis: int) -> tuple[str, ...]:
        """The mesh axes, without the batch axis, over which an axis is sharded."""
        names = _names(p.spec[axis]) if axis < len(p.spec) else ()
        return tuple(name for name in names if name != self.batch_axis)

    def _is_gathered(self, p: ParamPart) -> bool:
        """Is it sharded over the axis of the batch, so that devices gather it before they use it?"""
        return any(self.batch_axis in _names(axes) for axes in p.spec) and self.mesh.shape[self.batch_axis] > 1

    def stored(self, p: ParamPart) -> int:
        """The bytes of a parameter's part on a device."""
        return p.bytes // math.prod(self._size(_names(axes)) for axes in p.spec)

    def used(self, p: ParamPart) -> int:
        """The bytes of the gathered part with which a device computes."""
        return p.bytes // math.prod(self._size(self._cut(p, axis)) for axis in range(len(p.spec)))

    # --- memory

    def gathered_at_once(self) -> int:
        """The bytes of gathered parameters: all of them or, if blocks gather again, one block and those outside."""
        gathered = [p for p in self.params if self._is_gathered(p)]
        if self._gathers_again:
            gathered = [p for p in gathered if "blocks." not in p.path or "blocks.0." in p.path]
        return sum(self.used(p) for p in gathered)

    def _block(self) -> int:
        """Elements that a block keeps for each token: 4 d + (2 d_q + 2 d_kv + heads n + 2 h) / t; 3 h if gated."""
        s = self.sizes
        inside = 2 * s.d_attention + 2 * s.d_kv + s.n_heads * self.n + (3 if s.gated else 2) * s.d_hidden
        return 4 * s.d_model + inside // self.parts

    def _outside_blocks(self) -> int:
        """Elements for each token outside of blocks: the logits, and their gradient."""
        head = [p for p in self.params if p.is_matrix and p.path.endswith(("head.weight", "tokens.weight"))]
        axis = 0 if self.sizes.tied else 1
        parts = self._size(self._cut(head[-1], axis)) if head else 1
        return 2 * self.sizes.vocabulary // parts

    def activations(self) -> int:
        """The bytes of activations for a backward pass without recomputation."""
        return self.sizes.element * self.tokens * (self.sizes.n_layers * self._block() + self._outside_blocks())

    def activations_checkpointed(self) -> int:
        """The bytes if each block keeps only its input: d for each token and block, one running block, the logits."""
        s = self.sizes
        return s.element * self.tokens * (s.n_layers * s.d_model + self._block() + self._outside_blocks())

    # --- operations

    def flops(self) -> int:
        """6 operations for each token and matrix element, 12 n d_q for attention, 15 for each updated parameter.

        With recomputation it is 8 and 16, in blocks.
        """
        s = self.sizes
        passes = 4 if self.checkpoint else 3
        total = passes * 4 * self.tokens * self.n * s.d_attention * s.n_layers // self.parts
        for p in self.params:
            if p.is_matrix:
                elements = math.prod(p.shape) * self.used(p) // p.bytes
                total += (passes if "blocks." in p.path else 3) * 2 * self.tokens * elements
            total += UPDATE_FLOPS * math.prod(p.shape) * self.stored(p) // p.bytes
        return total

    # --- exchanges

    def exchanges(self) -> Iterator[Exchange]:
        """The collectives of a step, without the collectives of a few scalars."""
        yield from self._of_parameters()
        if self.parts > 1:
            yield from self._of_activations()

    def _of_parameters(self) -> Iterator[Exchange]:
        group, axes = self.mesh.shape[self.batch_axis], (self.batch_axis,)
        if group == 1:
            return
        cut = [p for p in self.params if self._is_gathered(p)]
        if cut:
            tied = [p for p in cut if self._is_tied(p)]  # gathered once for each use
            every = sum(self.used(p) for p in [*cut, *tied])
            twice = [p for p in cut if self._gathers_again and "blocks." in p.path]
            again = sum(self.used(p) for p in twice)
            yield self._exchange("parameters", "all-gather", axes, len([*cut, *tied, *twice]), every + again, group)
            trained = [p for p in cut if p.trained]
            if self.compiler.scatters:
                parts = sum(self.stored(p) for p in trained)
                yield self._exchange("gradients of shards", "reduce-scatter", axes, len(trained), parts, group)
            else:
                sums = sum(self.used(p) * self._uses(p) for p in trained)
                yield self._exchange("gradients of shards", "all-reduce", axes, 1, sums, group)
        others = [p for p in self.params if p.trained and not self._is_gathered(p)]
        remaining = sum(self.used(p) * self._uses(p) for p in others)
        if remaining:
            yield self._exchange("gradients", "all-reduce", axes, 1, remaining, group)

    def _uses(self, p: ParamPart) -> int:
        """The number of gradients of a parameter that are summed over devices: two for a tied table, unless merged."""
        return 2 if self._is_tied(p) and not self.compiler.merges else 1

    def _is_tied(self, p: ParamPart) -> bool:
        """Is it the table of tokens, and also the head?"""
        return self.sizes.tied and p.path.endswith("tokens.weight")

    def _of_activations(self) -> Iterator[Exchange]:
        """Sums over devices that share a block: forward after row-sharded layers, backward before column-sharded."""
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
        payload = s.element * self.tokens * s.d_model
        sums = (("activations", forward), ("activations, again", again), ("gradients of activations", backward))
        for purpose, count in sums:
            if count:
                yield self._exchange(purpose, "all-reduce", self.tensor_axes, count, count * payload, group)
        if self._outside_blocks() < 2 * s.vocabulary:  # the greatest logit, the sum of exponentials, the target's logit
            yield self._exchange("loss", "all-reduce", self.tensor_axes, 3, 3 * s.element * self.tokens, group)

    @staticmethod
    def _exchange(purpose: str, kind: str, axes: tuple[str, ...], count: int, payload: int, group: int) -> Exchange:
        return Exchange(purpose, kind, axes, count, payload, sent_by_ring(kind, payload, group))
