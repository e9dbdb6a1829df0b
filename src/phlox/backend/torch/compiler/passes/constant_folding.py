"""Constant folding for inference with convolutions: what depends on the weights alone is computed once.

A network that only predicts is called with the same weights again and again. Its graph is split in two: the first
depends on the weights alone, folds the scale and shift of a batch norm into the convolution before it and packs the
filters for the kernels; the second is the rest, and takes what the first one gives.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import is_on
from phlox.backend.torch.compiler.graph import arguments_of
from phlox.backend.torch.compiler.kernels import winograd
from phlox.backend.torch.compiler.passes.weight_cache import WeightCache

_aten: Any = torch.ops.aten
_COPIES = {_aten.clone.default, _aten.constant_pad_nd.default, _aten.view.default}


def fold_constants(graph: Any, weights: Sequence[int]) -> Callable[..., list[torch.Tensor]] | None:
    """The program of a traced graph in two; None where little would be won.

    `weights` are the positions of the arguments that mostly stay the same. Little is won in training, or where much
    is left besides convolutions, for which code is better made of the whole graph.
    """
    nodes = list(graph.graph.nodes)
    kernels = compat.CONVOLUTION, compat.CONVOLUTION_PLUS, compat.REORDER_CONVOLUTION_WEIGHT
    if not torch.backends.mkldnn.is_available() or not all(kernel.here for kernel in kernels):
        return None
    if not any(node.target is _aten.convolution.default for node in nodes) or not all(map(_is_pure, nodes)):
        return None
    constant = _constant(nodes, set(weights))
    if any(node in constant for node in nodes[-1].all_input_nodes):  # each call gives arrays of its own
        return None
    chains = _chains(nodes, constant)
    taken = {node for chain in chains for node in chain.nodes}
    left = {node for node in nodes if node.op == "call_function"} - constant - taken
    if not chains or sum(node.target not in _COPIES for node in left) > len(chains):
        return None
    first, second = _Split(nodes, constant, chains).modules(graph)
    count = len(arguments_of(nodes))

    def of_weights(*mine: torch.Tensor) -> list[torch.Tensor]:
        flat: list[Any] = [None] * count  # the others have no part in it
        for at, weight in zip(weights, mine, strict=True):
            flat[at] = weight
        return first(*flat)

    return FoldedConstants(of_weights, second, weights)


class FoldedConstants:
    """A program in two parts. The results of the weights are kept until a weight is replaced or written to."""

    def __init__(self, first: Callable[..., Any], second: Callable[..., Any], weights: Sequence[int]) -> None:
        self._first, self._second, self._weights = WeightCache(first), second, tuple(weights)

    def __call__(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        return self._second(*flat, *self._first(*[flat[at] for at in self._weights]))


# --- what the graph says


def _is_pure(node: Any) -> bool:
    """Does this operation write nowhere, draw nothing, and not belong to training?"""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    schema = compat.schema_of(node.target)
    if schema is None:  # Python's own, as taking one of several results
        return True
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not schema.is_mutable and not random and not compat.CONVOLUTION_BACKWARD.is_of(node)


def _constant(nodes: Sequence[Any], weights: set[int]) -> set[Any]:
    """The nodes that depend only on the weights."""
    places = {node: at for at, node in enumerate(arguments_of(nodes))}
    found: set[Any] = set()
    for node in nodes:
        known = node.op == "get_attr" or places.get(node) in weights
        if known or (node.op == "call_function" and all(part in found for part in node.all_input_nodes)):
            found.add(node)
    return found


class _Chain(NamedTuple):
    """A convolution and the operations that are folded into it."""

    nodes: list[Any]
    """From the convolution to what takes its place."""
    affine: list[tuple[bool, Any]]
    """In order: is it a factor (or a summand), and the node, of a number a channel."""
    added: Any
    """Images that are added in the end, or None."""
    clipped: bool
    """Does a relu come last?"""


def _chains(nodes: Sequence[Any], constant: set[Any]) -> list[_Chain]:
    chains: list[_Chain] = []
    taken: set[Any] = set()
    for node in nodes:
        if node.target is _aten.convolution.default and _fits(node, constant):
            chains.append(_chain(node, constant, taken))
            taken.update(chains[-1].nodes)
    return chains


def _fits(node: Any, constant: set[Any]) -> bool:
    """Is it a convolution of f32 images on a processor, with a weight and a bias that stay?"""
    x, weight, bias = node.args[:3]
    y = node.meta["val"]
    known = weight in constant and (bias is None or bias in constant) and x not in constant
    return known and not node.args[6] and y.ndim == 4 and y.dtype is torch.float32 and y.device.type == "cpu"


def _chain(conv: Any, constant: set[Any], taken: set[Any]) -> _Chain:
    chain, affine, added = [conv], list[tuple[bool, Any]](), None
    y = conv.meta["val"]
    while len(chain[-1].users) == 1:
        (node,) = chain[-1].users
        if node in taken or node.kwargs:
            break
        if node.target is _aten.relu.default:
            return _Chain([*chain, node], affine, added, True)
        if node.target not in (_aten.mul.Tensor, _aten.add.Tensor) or added is not None:
            break
        others = [part for part in node.args if part is not chain[-1]]
        if len(others) != 1 or not isinstance(others[0], fx.Node):
            break
        value = others[0].meta["val"]
        if others[0] in constant:
            if tuple(value.shape) not in ((y.shape[1], 1, 1), (1, y.shape[1], 1, 1)) or value.dtype is not y.dtype:
                break
            affine.append((node.target is _aten.mul.Tensor, others[0]))
        elif node.target is _aten.add.Tensor and _alike(value, y):
            added = others[0]
        else:
            break
        chain.append(node)
    return _Chain(chain, affine, added, False)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


# --- two graphs of one


class _Split:
    """Copies a graph into two."""

    def __init__(self, nodes: Sequence[Any], constant: set[Any], chains: Sequence[_Chain]) -> None:
        self._first, self._second = fx.Graph(), fx.Graph()
        self._old: dict[Any, Any] = {}
        self._new: dict[Any, Any] = {}
        self._given: dict[Any, Any] = {}
        """What the second graph takes from the first, and as what."""
        for node in nodes:
            if node.op == "placeholder":
                self._old[node] = self._first.node_copy(node)
                self._new[node] = self._last = self._second.node_copy(node)
        for node in nodes:
            if node in constant and node.op != "placeholder":
                self._old[node] = self._first.node_copy(node, self._old.__getitem__)
        ends = {chain.nodes[-1]: chain for chain in chains}
        inside = {node for chain in chains for node in chain.nodes}
        for node in nodes:
            if node in ends:
                self._new[node] = self._convolution(ends[node])
            elif node not in inside and node not in constant and node.op != "placeholder":
                self._new[node] = self._second.node_copy(node, self._seen)
        self._first.output(list(self._given))

    def modules(self, root: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both as functions."""
        return fx.GraphModule(root, self._first).forward, fx.GraphModule(root, self._second).forward

    def _seen(self, node: Any) -> Any:
        """A node of the old graph in the second one."""
        return self._new[node] if node in self._new else self._taken(self._old[node])

    def _taken(self, made: Any) -> Any:
        """A node of the first graph as an argument of the second one."""
        if made not in self._given:
            with self._second.inserting_after(self._last):
                self._given[made] = self._last = self._second.placeholder(f"given_{len(self._given)}")
        return self._given[made]

    def _convolution(self, chain: _Chain) -> Any:
        conv = chain.nodes[0]
        x, weight, bias, *options = conv.args
        stride, padding, dilation, *_, groups = options
        pixels, result, kernel = (node.meta["val"] for node in (x, conv, weight))
        weight, bias = self._folded(self._old[weight], None if bias is None else self._old[bias], chain)
        if is_on("winograd") and winograd.suits(pixels, result, kernel, options, winograd.KEPT):
            points = self._taken(self._first.call_function(winograd.filters, (weight, False)))
            bias = None if bias is None else self._taken(bias)
            added = None if chain.added is None else self._seen(chain.added)
            given = (self._seen(x), points, bias, added, chain.clipped, padding)
            return self._second.call_function(winograd.convolve, given)
        sizes = list(x.meta["val"].shape)
        order = (weight, padding, stride, dilation, groups, sizes)
        weight = self._first.call_function(compat.REORDER_CONVOLUTION_WEIGHT.value, order)
        weight, bias = self._taken(weight), None if bias is None else self._taken(bias)
        options = (weight, bias, padding, stride, dilation, groups)
        call = self._second.call_function
        if chain.added is None:
            y = call(compat.CONVOLUTION.value, (self._seen(x), *options, "none", [], ""))
        else:
            both = (self._seen(x), self._seen(chain.added))
            y = call(compat.CONVOLUTION_PLUS.value, (*both, *options, "add", 1.0, None, [], ""))
        # The kernels could do this as well, but would make zeros of NaN.
        return call(_aten.relu_.default, (y,)) if chain.clipped else y

    def _folded(self, weight: Any, bias: Any, chain: _Chain) -> tuple[Any, Any]:
        call, channels = self._first.call_function, chain.nodes[0].meta["val"].shape[1]
        for is_factor, node in chain.affine:
            flat = call(_aten.reshape.default, (self._old[node], [channels]))
            if not is_factor:
                bias = flat if bias is None else call(_aten.add.Tensor, (bias, flat))
                continue
            weight = call(_aten.mul.Tensor, (weight, call(_aten.reshape.default, (flat, [channels, 1, 1, 1]))))
            bias = None if bias is None else call(_aten.mul.Tensor, (bias, flat))
        return weight, bias
