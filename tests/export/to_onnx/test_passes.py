"""What is made of a graph once it is traced."""

from __future__ import annotations

import numpy as np

from phlox.export.to_onnx.graph import Graph, Interface
from phlox.export.to_onnx.passes import fuse_biases, name_outputs, remove_dead_nodes, rename


def graph() -> Graph:
    made = Graph(20)
    made.inputs = [Interface("x", "f32", (2, 3))]
    made.fresh("x")
    return made


def test_equal_nodes_and_constants_are_one() -> None:
    one = graph()
    first = one.add("Add", ["x", one.constant(np.float32(1.0))])
    assert one.add("Add", ["x", one.constant(np.float32(1.0))]) == first
    assert one.add("Add", ["x", one.constant(np.float64(1.0))]) != first
    assert [node.op for node in one.nodes] == ["Add", "Add"] and len(one.constants) == 2


def test_what_a_loop_does_not_change_is_computed_outside() -> None:
    outer = graph()
    inner = Graph(20, outer)
    inner.note_home("state")
    (fixed,) = inner.add("Exp", ["x"])
    (moving,) = inner.add("Add", ["state", fixed])
    inner.outputs = [Interface(moving, "f32", ())]
    assert [node.op for node in outer.nodes] == ["Exp"] and [node.op for node in inner.nodes] == ["Add"]
    (result,) = outer.add("Scan", ["x"], body=inner)
    outer.outputs = [Interface(result, "f32", ())]
    remove_dead_nodes(outer)
    assert [node.op for node in outer.nodes] == ["Exp", "Scan"], "the body reads it"


def test_only_what_outputs_are_made_of_stays() -> None:
    one = graph()
    one.parameters = {"weight": np.ones(3), "other": np.ones(3)}
    (kept,) = one.add("Mul", ["x", "weight"])
    one.add("Mul", ["x", "other"])
    one.outputs = [Interface(kept, "f32", ())]
    remove_dead_nodes(one)
    assert len(one.nodes) == 1 and one.parameters.keys() == {"weight"}


def test_an_output_is_the_result_of_a_node_of_its_own() -> None:
    one = graph()
    (y,) = one.add("Exp", ["x"])
    one.outputs = [Interface("x", "f32", ()), Interface(y, "f32", ()), Interface(y, "f32", ())]
    name_outputs(one)
    assert [node.op for node in one.nodes] == ["Exp", "Identity", "Identity"]
    assert len({output.name for output in one.outputs}) == 3 and one.outputs[1].name == y
    rename(one, {y: "result"})
    assert one.outputs[1].name == "result" and one.nodes[-1].inputs == ["result"]


def test_a_bias_that_is_read_elsewhere_too_stays() -> None:
    for others in (0, 1):
        one = graph()
        one.parameters = {"w": np.ones((1, 1, 2)), "b": np.ones(1)}
        (y,) = one.add("ConvTranspose", ["x", "w"])
        (b,) = one.add("Reshape", ["b", one.integers([1, 1])])
        (total,) = one.add("Add", [y, b])
        one.outputs = [Interface(total, "f32", ()), *[Interface(y, "f32", ())] * others]
        fuse_biases(one)
        assert one.nodes[-1].op == ("Add" if others else "ConvTranspose")
