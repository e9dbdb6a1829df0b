"""From the protocol buffer to a graph that is ready to run; one error lists all unknown operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from phlox.errors import RecordError, UnsupportedError
from phlox.interop.onnx.checks import problem_of, problem_of_graphs
from phlox.interop.onnx.elements import BOOL, FLOAT, INT64, STRING, element_of_type, host
from phlox.interop.onnx.graph import Graph, Step
from phlox.interop.onnx.inference import types_of_results
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.order import called, domain_of, sorted_nodes
from phlox.interop.onnx.reading import Tensors, onnx
from phlox.interop.onnx.registry import TABLE, Operator
from phlox.interop.onnx.weights import Use, Weights, role

OLDEST = 7
_MOST_NODES = 200_000
_UNSTABLE = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})
_UNFOLDED = _UNSTABLE | {"Multinomial", "Dropout"}

_PASSING = frozenset(
    {"Cast", "Transpose", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Concat", "Slice", "Split", "DequantizeLinear"}
)
"""Operators that only change type or layout: their operand counts as used where their result is used."""

Types = dict[str, int]


@dataclass(slots=True)
class Scope:
    """The meaning of names in a graph: versions of operator sets, element types, and the attributes of a function."""

    opsets: Mapping[str, int]
    types: Types
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    functions: tuple[str, ...] = ()
    """The names of the functions around this graph, the outermost first."""
    location: str = ""
    """The node around a subgraph."""
    constants: AbstractSet[str] = frozenset()
    """Names of values that follow from constants alone."""
    absent: AbstractSet[str] = frozenset()
    """Inputs of the function that its node does not give."""


@dataclass(slots=True)
class Draft:
    """A graph while it is bound."""

    description: str
    """The name of the graph in error messages."""
    scope: Scope
    uses: Mapping[str, list[Use]]
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    weights: dict[str, str] = field(default_factory=dict[str, str])
    """The paths of the values that are parameters."""
    steps: list[Step] = field(default_factory=list[Step])


class Binder:
    """Binds the graphs of one model, and collects its parameters and its unknown operators."""

    def __init__(self, model: Any, tensors: Tensors, name: str) -> None:
        self.model = name
        self.weights = Weights()
        self.unknown: dict[tuple[str, str, int], list[str]] = {}
        self._tensors = tensors
        self._defs = onnx().defs
        self._helper = onnx().helper
        self._functions = {(domain_of(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._nodes = 0
        self._ours = model.producer_name == "phlox"

    def bind(self, proto: Any, opsets: Mapping[str, int]) -> Graph:
        """Bind the main graph. Raises `UnsupportedError`, which lists all unknown operators."""
        graph = self._graph(proto, Scope(opsets, {}))
        if self.unknown:
            raise UnsupportedError(_all_unknown(self.model, self.unknown))
        return graph

    # --- graphs

    def _graph(self, proto: Any, scope: Scope) -> Graph:
        description = f"the graph `{proto.name}`" + (f" in {scope.location}" if scope.location else "")
        draft = Draft(description, replace(scope, types=dict(scope.types)), self._uses(proto.node, scope))
        types, constants = draft.scope.types, draft.constants
        for value in proto.input:
            types[value.name] = element_of_type(value.type) or types.get(value.name, 0)
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = host(self._sparse(sparse))
            types[sparse.values.name] = sparse.values.data_type
        initial = {initializer.name: initializer for initializer in proto.initializer}
        for name, initializer in initial.items():
            types[name] = initializer.data_type
            self._constant(draft, name, self._tensors.array(initializer), initializer=True)
        inputs = tuple(value.name for value in proto.input if value.name not in initial and value.name not in constants)
        optional = tuple(value.name for value in proto.input if value.name in initial or value.name in constants)
        if len(set(inputs)) < len(inputs):
            raise RecordError(f"{self.model}: {description} has two inputs of one name")
        outputs = tuple(value.name for value in proto.output)
        names = self._make_steps(draft, proto.node, inputs)
        lacking = [name for name in outputs if name and name not in names and name not in scope.types]
        if lacking:
            raise RecordError(f"{self.model}: {description}: nothing makes its output `{lacking[0]}`")
        return _finish_graph(proto.name, inputs + optional, outputs, draft, names)

    def _make_steps(self, draft: Draft, nodes: Sequence[Any], inputs: Sequence[str]) -> set[str]:
        """Bind the nodes of a graph. Returns the names of all its values."""
        scope, constants = draft.scope, draft.constants
        names = {*inputs, *constants, *draft.weights}
        fixed = set(constants) | scope.constants
        inside = replace(scope, constants=fixed)
        for proto in sorted_nodes(nodes, names, scope.types, f"{self.model}: {draft.description}"):
            self._nodes += 1
            if self._nodes > _MOST_NODES:
                raise RecordError(f"{self.model}: more than {_MOST_NODES:,} nodes, with those of its functions")
            if proto.op_type == "Constant" and domain_of(proto.domain) == "":
                self._constant_node(draft, proto)
                fixed |= {*proto.output} & constants.keys()
                continue
            step = self._step(proto, inside)
            step.constant = (
                bool(proto.input)
                and proto.op_type not in _UNFOLDED
                and step.body is None
                and not step.node.graphs
                and all(name in fixed for name in step.node.inputs if name)
            )
            if step.constant:
                fixed |= {*proto.output}
            scope.types.update(zip(step.node.outputs, step.node.output_types, strict=False))
            draft.steps.append(step)
        return {*names, *constants, *draft.weights, *(name for step in draft.steps for name in step.node.outputs)}

    # --- constants

    def _uses(self, nodes: Sequence[Any], scope: Scope) -> dict[str, list[Use]]:
        uses: dict[str, list[Use]] = {}
        for index, proto in enumerate(nodes):
            domain = domain_of(proto.domain)
            name = proto.name or f"{proto.op_type}_{index}"
            for position, operand in enumerate(proto.input):
                if operand:
                    use = Use(proto.op_type, domain, scope.opsets.get(domain, 1), name, position)
                    uses.setdefault(operand, []).append(use)
            for attribute in proto.attribute:
                for graph in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                    for operand, inner in self._uses(graph.node, scope).items():
                        uses.setdefault(operand, []).extend(inner)
        # A value that only changes its type or layout counts as used where the result is used.
        for proto in reversed(nodes):
            if proto.op_type in _PASSING:
                beyond = [use for name in proto.output for use in uses.get(name, ())]
                for name in proto.input if proto.op_type == "Concat" else proto.input[:1]:
                    if name:
                        uses[name] = [*beyond, *uses[name]]
        return uses

    def _constant(self, draft: Draft, name: str, values: np.ndarray[Any, Any], *, initializer: bool) -> None:
        uses = draft.uses.get(name, [])
        kind = role(name, values, uses, initializer=initializer, ours=self._ours)
        if kind is None:
            draft.constants[name] = values if values.dtype == object else host(values)
        else:
            draft.weights[name] = self.weights.add(name, values, uses, trained=kind == "trained")

    def _constant_node(self, draft: Draft, proto: Any) -> None:
        name = proto.output[0]
        attributes, _ = self._attributes(proto, draft.scope)
        ((kind, value),) = attributes.items() or ((None, None),)
        if kind is None or not (kind.startswith("value") or kind == "sparse_value"):
            raise RecordError(f"{self.model}: the node {called(proto)} has no value")
        if kind in ("value_string", "value_strings"):
            values = np.asarray(value, dtype=object)
        else:
            values = np.asarray(value)
            if kind in ("value_float", "value_floats"):
                values = values.astype(np.float32)
        draft.scope.types[name] = STRING if values.dtype == object else self._element(values, kind, proto)
        self._constant(draft, name, values, initializer=False)

    @staticmethod
    def _element(values: np.ndarray[Any, Any], kind: str, proto: Any) -> int:
        if kind == "value":
            return next((attr.t.data_type for attr in proto.attribute if attr.name == "value"), FLOAT) or FLOAT
        return int(onnx().helper.np_dtype_to_tensor_dtype(values.dtype))

    def _sparse(self, proto: Any) -> np.ndarray[Any, Any]:
        values, indices = self._tensors.array(proto.values), self._tensors.array(proto.indices)
        dims = tuple(proto.dims)
        if int(np.prod(dims)) > 1 << 28:
            raise RecordError(f"{self.model}: the sparse tensor `{proto.values.name}` has the shape {dims}: too large")
        dense = np.zeros(dims, values.dtype)
        dense[np.unravel_index(indices, dims) if indices.ndim == 1 else tuple(indices.T)] = values
        return dense

    # --- nodes

    def _step(self, proto: Any, scope: Scope) -> Step:
        domain, version = domain_of(proto.domain), scope.opsets.get(domain_of(proto.domain), 0)
        attributes, graphs = self._attributes(proto, scope)
        inputs = tuple(proto.input)
        input_types = tuple(scope.types.get(name, 0) for name in inputs)
        node = Node(
            proto.op_type, domain, version, proto.name, inputs, tuple(proto.output), attributes, input_types
        )  # fmt: skip
        local = self._functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        operator = TABLE.find(domain, proto.op_type, version) if version else None
        schema = self._schema(proto.op_type, domain, version)
        if local is None:
            self._refuse(node, scope, problem_of(node, proto, schema, operator, scope.absent))
        graph_types = (INT64, BOOL, *input_types[2:]) if proto.op_type == "Loop" else input_types
        bound = {name: self._subgraph(graph, proto, scope, graph_types) for name, graph in graphs.items()}
        if bound:
            types = _types_of_subgraphs(proto.op_type, bound, len(proto.output))
        else:
            types = types_of_results(proto.op_type, schema, attributes, input_types, len(proto.output))
        node = replace(node, output_types=types, graphs=bound)
        if local is not None:
            return self._call(node, local, scope)
        self._refuse(node, scope, problem_of_graphs(node, scope.absent))
        if operator is None or (domain == "" and (schema is None or self._has_changed(proto.op_type, version))):
            function = None if schema is None else self._function_of(schema, proto, node, version)
            if function is not None:
                return self._call(node, function, scope)
            self.unknown.setdefault((domain, proto.op_type, version), []).append(called(proto))
            operator = Operator(proto.op_type, 1, lambda *_: None)
        return Step(node, operator)

    def _refuse(self, node: Node, scope: Scope, problem: str) -> None:
        if problem:
            location = f" in {scope.location}" if scope.location else ""
            raise RecordError(f"{self.model}: {node.described()}{location} {problem}")

    def _has_changed(self, name: str, version: int) -> bool:
        """Has the operator changed between this version and the oldest operator set that is supported?"""
        return version < OLDEST and self._schema(name, "", version).since_version != (
            self._schema(name, "", OLDEST).since_version if self._schema(name, "", OLDEST) is not None else 0
        )

    def _schema(self, name: str, domain: str, version: int) -> Any:
        try:
            schema = self._defs.get_schema(name, max(version, 1), domain)
        except Exception:  # its class has moved between versions of onnx
            return None
        return None if schema.deprecated else schema

    def _subgraph(self, graph: Any, proto: Any, scope: Scope, input_types: Sequence[int]) -> Graph:
        types = dict(scope.types)
        types.update({value.name: element for value, element in zip(graph.input, input_types, strict=False)})
        inside = replace(scope, types=types, location=called(proto))
        return self._graph(graph, inside)

    def _attributes(self, proto: Any, scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of the attributes, and the graphs among them."""
        values: dict[str, Any] = {}
        graphs: dict[str, Any] = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in scope.attributes:
                    values[attribute.name] = scope.attributes[attribute.ref_attr_name]
            elif attribute.type == 5:
                graphs[attribute.name] = attribute.g
            elif attribute.type == 4:
                values[attribute.name] = self._tensors.array(attribute.t)
            elif attribute.type == 11:
                values[attribute.name] = self._sparse(attribute.sparse_tensor)
            else:
                value = self._helper.get_attribute_value(attribute)
                values[attribute.name] = _plain(value)
        return values, graphs

    # --- functions

    def _function_of(self, schema: Any, proto: Any, node: Node, version: int) -> Any:
        """ONNX's own definition of the operator as a function, if there is one."""
        package = onnx()
        if schema.has_function:
            bodies = [since for since in schema.function_opset_versions if since <= version]
            if bodies:
                body = schema.get_function_with_opset_version(max(bodies))
                return self._parsed(body)
        if schema.has_context_dependent_function:
            bodies = [since for since in schema.context_dependent_function_opset_versions if since <= version]
            has_types = all(node.input_types[position] for position, name in enumerate(node.inputs) if name)
            if bodies and has_types:
                types = [
                    package.helper.make_tensor_type_proto(element, None) if element else package.TypeProto()
                    for element in node.input_types
                ]
                types_in_bytes = [input_type.SerializeToString() for input_type in types]
                resolved = self._resolved(proto, node).SerializeToString()
                return self._parsed(
                    schema.get_context_dependent_function_with_opset_version(max(bodies), resolved, types_in_bytes)
                )
        return None

    @staticmethod
    def _parsed(body: bytes) -> Any:
        function = onnx().FunctionProto()
        function.ParseFromString(body)
        return function if function.node else None

    def _resolved(self, proto: Any, node: Node) -> Any:
        """The node, with values in place of references to attributes of the function around it."""
        whole = onnx().NodeProto()
        whole.CopyFrom(proto)
        del whole.attribute[:]
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                whole.attribute.append(attribute)
            elif node.attributes.get(attribute.name) is not None:
                whole.attribute.append(self._helper.make_attribute(attribute.name, node.attributes[attribute.name]))
        return whole

    def _call(self, node: Node, function: Any, scope: Scope) -> Step:
        function_name = f"{node.domain}.{function.name}"
        if function_name in scope.functions:
            raise RecordError(f"{self.model}: the function `{function.name}` calls itself")
        if len(node.inputs) > len(function.input):
            raise RecordError(
                f"{self.model}: {node.described()} has {len(node.inputs)} inputs, and its function takes "
                f"{len(function.input)}"
            )
        attributes = {attr.name: _plain(self._helper.get_attribute_value(attr)) for attr in function.attribute_proto}
        attributes.update((name, value) for name, value in node.attributes.items())
        schema = self._schema(node.operator, node.domain, node.version)
        if schema is not None:
            for name, attr in schema.attributes.items():
                if name not in attributes and attr.default_value.type:
                    attributes[name] = _plain(self._helper.get_attribute_value(attr.default_value))
        types = {name: node.type_of(position) for position, name in enumerate(function.input)}
        opsets = {**scope.opsets, **{domain_of(opset.domain): opset.version for opset in function.opset_import}}
        location = f"the function `{function.name}` at {node.described()}"
        is_given = [name not in scope.absent and name != "" for name in node.inputs]
        absent = {name for position, name in enumerate(function.input) if not any(is_given[position : position + 1])}
        inner = Scope(opsets, types, attributes, (*scope.functions, function_name), location, absent=absent)
        draft = Draft(location, inner, self._uses(function.node, inner))
        names = self._make_steps(draft, function.node, function.input)
        lacking = [name for position, name in enumerate(function.output) if name not in names and node.wants(position)]
        if lacking:
            raise RecordError(f"{self.model}: {location}: nothing makes its output `{lacking[0]}`")
        outputs = tuple(name if name in names else "" for name in function.output)
        graph = _finish_graph(function.name, tuple(function.input), outputs, draft, names)
        return Step(replace(node, output_types=graph.output_types), None, graph)


def _finish_graph(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], draft: Draft, names: set[str]) -> Graph:
    """The graph of a complete draft; sets, for each step, which values it frees and which operands are constants."""
    steps, constants, weights, types = draft.steps, draft.constants, draft.weights, draft.scope.types
    used = {value: None for step in steps for value in _used(step) if value and value not in names}
    used.update((value, None) for value in outputs if value and value not in names)
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        last.update((value, index) for value in (*_used(step), *step.node.outputs) if value)
    for value in (*outputs, *constants, *weights):
        last.pop(value, None)
    frees: dict[int, list[str]] = {}
    for value, index in last.items():
        if value in names:
            frees.setdefault(index, []).append(value)
    for index, step in enumerate(steps):
        step.last_uses = tuple(frees.get(index, ()))
        step.from_constants = frozenset(index for index, value in enumerate(step.node.inputs) if value in constants)
    output_types = tuple(types.get(value, 0) for value in outputs)
    return Graph(name, inputs, outputs, tuple(steps), constants, weights, tuple(used), output_types)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated"):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def _used(step: Step) -> Iterator[str]:
    yield from step.node.inputs
    for graph in step.node.graphs.values():
        yield from graph.captured


def _types_of_subgraphs(operator: str, graphs: Mapping[str, Graph], count: int) -> tuple[int, ...]:
    body = next(iter(graphs.values()))
    types = body.output_types[1:] if operator == "Loop" else body.output_types
    return (types + (0,) * count)[:count]


def _all_unknown(model: str, unknown: Mapping[tuple[str, str, int], list[str]]) -> str:
    lines = [f"{model} uses operators that are not known:"]
    for (domain, name, version), nodes in sorted(unknown.items()):
        which = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        lines.append(f"  {domain or 'ai.onnx'}.{name}, opset {version or 'not imported'}: {which}")
    lines.append("add them with phlox.interop.onnx.register(name, function, domain=...)")
    return "\n".join(lines)
