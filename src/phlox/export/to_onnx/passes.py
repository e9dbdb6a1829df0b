"""The passes over a traced graph, which run in the order of `PASSES`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phlox.export.to_onnx.graph import Graph, Node


def fuse_batch_norms(graph: Graph) -> None:
    """x * scale + shift with running statistics becomes BatchNormalization, which runtimes fuse into convolutions."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        match = _batch_norm(node, makers, graph)
        if match is not None:
            inputs, epsilon = match
            node.op, node.inputs, node.attributes = "BatchNormalization", inputs, {"epsilon": epsilon}


def _batch_norm(node: Node, makers: dict[str, Node], graph: Graph) -> tuple[list[str], float] | None:
    """The inputs and epsilon of the batch norm that ends with this addition: x * s + t, with s = g / sqrt(v + e)."""

    def inputs_of(name: str, op: str) -> list[str] | None:
        maker = makers.get(name)
        return maker.inputs if maker is not None and maker.op == op else None

    def per_channel(name: str) -> str:
        reshaped = inputs_of(name, "Reshape")
        return name if reshaped is None else reshaped[0]

    def standard_deviation(name: str) -> tuple[str, float] | None:
        inverse = inputs_of(name, "Reciprocal")
        root = None if inverse is None else inputs_of(inverse[0], "Sqrt")
        total = None if root is None else inputs_of(root[0], "Add")
        if total is None or total[0] not in graph.parameters or graph.constants.get(total[1]) is None:
            return None
        return total[0], float(graph.constants[total[1]])

    if node.op != "Add" or len(node.inputs) != 2:
        return None
    product = inputs_of(node.inputs[0], "Mul")
    if product is None:
        return None
    scale, shift = per_channel(product[1]), per_channel(node.inputs[1])
    gamma: str | None = None
    spread = standard_deviation(scale)
    if spread is None and (factors := inputs_of(scale, "Mul")) is not None:
        spread, gamma = standard_deviation(factors[0]), factors[1]
    if spread is None:
        return None
    beta: str | None = None
    moved = inputs_of(shift, "Sub")  # beta - mean * scale
    if moved is not None:
        beta, towards = moved[0], inputs_of(moved[1], "Mul")
        mean = None if towards is None or towards[1] != scale else towards[0]
    else:
        towards = inputs_of(shift, "Mul")  # -mean * scale
        negative = None if towards is None or towards[1] != scale else inputs_of(towards[0], "Neg")
        mean = None if negative is None else negative[0]
    variance, epsilon = spread
    if mean not in graph.parameters:
        return None
    count = graph.parameters[variance].shape
    dtype = graph.parameters[variance].dtype

    gamma = graph.constant(np.ones(count, dtype)) if gamma is None else gamma
    beta = graph.constant(np.zeros(count, dtype)) if beta is None else beta
    return [product[0], gamma, beta, mean, variance], epsilon


def fuse_biases(graph: Graph) -> None:
    """A bias that is added to a transposed convolution becomes its third input."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    uses: dict[str, int] = {}
    for name in [name for node in graph.nodes for name in node.inputs] + [output.name for output in graph.outputs]:
        uses[name] = uses.get(name, 0) + 1
    for node in graph.nodes:
        if node.op != "Add":
            continue
        conv, bias = (makers.get(name) for name in node.inputs)
        if conv is None or bias is None or conv.op != "ConvTranspose" or bias.op != "Reshape":
            continue
        alone = len(conv.inputs) == 2 and uses[conv.outputs[0]] == 1
        if alone and bias.inputs[0] in graph.parameters and graph.parameters[bias.inputs[0]].ndim == 1:
            node.op, node.attributes = conv.op, conv.attributes
            node.inputs = [*conv.inputs, bias.inputs[0]]


def name_outputs(graph: Graph) -> None:
    """Make each output the result of a node of its own: inputs, parameters and repeated outputs get an Identity."""
    results = {name for node in graph.nodes for name in node.outputs}
    seen: set[str] = set()
    for output in graph.outputs:
        if output.name not in results or output.name in seen:
            name = graph.fresh("Identity")
            graph.nodes.append(Node("Identity", name, [output.name], [name], {}, "", ""))
            output.name = name
        seen.add(output.name)


def remove_dead_nodes(graph: Graph) -> None:
    """Remove all nodes that no output depends on."""
    needed = {output.name for output in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        bodies = [value for value in node.attributes.values() if isinstance(value, Graph)]
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
            for body in bodies:
                remove_dead_nodes(body)
                needed.update(_read(body))
    graph.nodes = kept[::-1]
    if graph.outer is None:
        graph.constants = {name: value for name, value in graph.constants.items() if name in needed}
        graph.parameters = {name: value for name, value in graph.parameters.items() if name in needed}


def _read(graph: Graph) -> set[str]:
    """The values that a body reads, from inside and outside of it."""
    names = {output.name for output in graph.outputs}
    for node in graph.nodes:
        names.update(node.inputs)
        for value in node.attributes.values():
            if isinstance(value, Graph):
                names |= _read(value)
    return names


PASSES: tuple[Callable[[Graph], None], ...] = (fuse_batch_norms, fuse_biases, name_outputs, remove_dead_nodes)


def rename(graph: Graph, names: dict[str, str]) -> None:
    """Rename values everywhere in the graph and in its loops."""
    for node in graph.nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        node.outputs = [names.get(name, name) for name in node.outputs]
        for value in node.attributes.values():
            if isinstance(value, Graph):
                rename(value, names)
    for output in graph.outputs:
        output.name = names.get(output.name, output.name)


def run_passes(graph: Graph) -> None:
    """Run all passes, in order."""
    for run_pass in PASSES:
        run_pass(graph)
