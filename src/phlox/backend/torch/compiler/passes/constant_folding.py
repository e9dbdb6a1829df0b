"""Constant folding for inference with convolutions: values that depend only on the weights are computed once.

A network that only predicts is called with the same weights again and again. Its graph is split in two: the first
depends on the weights alone, folds the scale and shift of a batch norm into the convolution before it and packs the
filters for the kernels; the second is the rest, and takes the results of the first.
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
    """The program of a traced graph in two parts; None if that would gain little.

    `weights` are the positions of the arguments that mostly stay the same. It gains little in training, and in graphs
    with much besides convolutions, for which compiling the whole graph is better.
    """
    nodes = list(graph.graph.nodes)
    kernels = compat.CONVOLUTION, compat.CONVOLUTION_PLUS, compat.REORDER_CONVOLUTION_WEIGHT
    if not torch.backends.mkldnn.is_available() or not all(kernel.exists for kernel in kernels):
        return None
    if not any(node.target is _aten.convolution.default for node in nodes) or not all(map(_is_pure, nodes)):
        return None
    constant = _constant(nodes, set(weights))
    if any(node in constant for node in nodes[-1].all_input_nodes):  # each call must return new arrays
        return None
    chains = _chains(nodes, constant)
    chained = {node for chain in chains for node in chain.nodes}
    others = {node for node in nodes if node.op == "call_function"} - constant - chained
    if not chains or sum(node.target not in _COPIES for node in others) > len(chains):
        return None
    first, second = _Split(nodes, constant, chains).modules(graph)
    count = len(arguments_of(nodes))

    def of_weights(*values: torch.Tensor) -> list[torch.Tensor]:
        flat: list[Any] = [None] * count  # the first part reads no others
        for position, weight in zip(weights, values, strict=True):
            flat[position] = weight
        return first(*flat)

    return FoldedConstants(of_weights, second, weights)


class FoldedConstants:
    """A program in two parts. The first part's results are kept until a weight is replaced or written to."""

    def __init__(self, first: Callable[..., Any], second: Callable[..., Any], weights: Sequence[int]) -> None:
        self._first, self._second, self._weights = WeightCache(first), second, tuple(weights)

    def __call__(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        return self._second(*flat, *self._first(*[flat[position] for position in self._weights]))


# --- parts of the graph


def _is_pure(node: Any) -> bool:
    """Is this operation without side effects and random numbers, and none of a backward pass?"""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    schema = compat.schema_of(node.target)
    if schema is None:  # a function of Python, such as getitem
        return True
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not schema.is_mutable and not random and not compat.CONVOLUTION_BACKWARD.is_of(node)


def _constant(nodes: Sequence[Any], weights: set[int]) -> set[Any]:
    """The nodes that depend only on the weights."""
    positions = {node: position for position, node in enumerate(arguments_of(nodes))}
    constant: set[Any] = set()
    for node in nodes:
        is_constant = node.op == "get_attr" or positions.get(node) in weights
        if is_constant or (node.op == "call_function" and all(part in constant for part in node.all_input_nodes)):
            constant.add(node)
    return constant


class _Chain(NamedTuple):
    """A convolution and the operations that are folded into it."""

    nodes: list[Any]
    """From the convolution to the last operation, whose result replaces the chain's."""
    affine: list[tuple[bool, Any]]
    """In order: is it a factor (or a summand), and its node, with one number for each channel."""
    added: Any
    """Images that are added last, or None."""
    clipped: bool
    """Does it end with a relu?"""


def _chains(nodes: Sequence[Any], constant: set[Any]) -> list[_Chain]:
    chains: list[_Chain] = []
    chained: set[Any] = set()
    for node in nodes:
        if node.target is _aten.convolution.default and _fits(node, constant):
            chains.append(_chain(node, constant, chained))
            chained.update(chains[-1].nodes)
    return chains


def _fits(node: Any, constant: set[Any]) -> bool:
    """Is it a convolution of f32 images on a processor, with a constant weight and bias?"""
    x, weight, bias = node.args[:3]
    y = node.meta["val"]
    is_foldable = weight in constant and (bias is None or bias in constant) and x not in constant
    return is_foldable and not node.args[6] and y.ndim == 4 and y.dtype is torch.float32 and y.device.type == "cpu"


def _chain(conv: Any, constant: set[Any], chained: set[Any]) -> _Chain:
    chain, affine, added = [conv], list[tuple[bool, Any]](), None
    y = conv.meta["val"]
    while len(chain[-1].users) == 1:
        (node,) = chain[-1].users
        if node in chained or node.kwargs:
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


def _alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


# --- splitting the graph


class _Split:
    """Copies a graph into two."""

    def __init__(self, nodes: Sequence[Any], constant: set[Any], chains: Sequence[_Chain]) -> None:
        self._first, self._second = fx.Graph(), fx.Graph()
        self._old: dict[Any, Any] = {}
        self._new: dict[Any, Any] = {}
        self._passed: dict[Any, Any] = {}
        """The nodes of the first graph that the second takes, and their placeholders there."""
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
                self._new[node] = self._second.node_copy(node, self._in_second)
        self._first.output(list(self._passed))

    def modules(self, root: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both as functions."""
        return fx.GraphModule(root, self._first).forward, fx.GraphModule(root, self._second).forward

    def _in_second(self, node: Any) -> Any:
        """A node of the old graph in the second one."""
        return self._new[node] if node in self._new else self._pass(self._old[node])

    def _pass(self, node: Any) -> Any:
        """A node of the first graph as an argument of the second one."""
        if node not in self._passed:
            with self._second.inserting_after(self._last):
                self._passed[node] = self._last = self._second.placeholder(f"given_{len(self._passed)}")
        return self._passed[node]

    def _convolution(self, chain: _Chain) -> Any:
        conv = chain.nodes[0]
        x, weight, bias, *options = conv.args
        stride, padding, dilation, *_, groups = options
        pixels, result, kernel = (node.meta["val"] for node in (x, conv, weight))
        weight, bias = self._folded(self._old[weight], None if bias is None else self._old[bias], chain)
        if is_on("winograd") and winograd.suits(pixels, result, kernel, options, winograd.KEPT):
            points = self._pass(self._first.call_function(winograd.filters, (weight, False)))
            bias = None if bias is None else self._pass(bias)
            added = None if chain.added is None else self._in_second(chain.added)
            arguments = (self._in_second(x), points, bias, added, chain.clipped, padding)
            return self._second.call_function(winograd.convolve, arguments)
        sizes = list(x.meta["val"].shape)
        order = (weight, padding, stride, dilation, groups, sizes)
        weight = self._first.call_function(compat.REORDER_CONVOLUTION_WEIGHT.value, order)
        weight, bias = self._pass(weight), None if bias is None else self._pass(bias)
        options = (weight, bias, padding, stride, dilation, groups)
        call = self._second.call_function
        if chain.added is None:
            y = call(compat.CONVOLUTION.value, (self._in_second(x), *options, "none", [], ""))
        else:
            images = (self._in_second(x), self._in_second(chain.added))
            y = call(compat.CONVOLUTION_PLUS.value, (*images, *options, "add", 1.0, None, [], ""))
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
