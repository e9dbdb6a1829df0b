"""What a node lacks is told when it is loaded: all operators of the table, against onnx's own checker; and loops."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import RangeError, RecordError
from phlox.interop.onnx import load, register
from phlox.interop.onnx.operators import import_all
from phlox.interop.onnx.registry import TABLE

onnx = pytest.importorskip("onnx")

from onnx import checker, defs, helper  # noqa: E402

from tests.interop.onnx.support import BOOL, INT64, model, node, value  # noqa: E402

OLDEST, NEWEST = 7, defs.onnx_opset_version()
ONE = helper.make_tensor("one", 1, [1], [1.0])
LEAST = {
    "Gelu": (1, 1), "BiasGelu": (2, 2), "FastGelu": (1, 2), "QuickGelu": (1, 1), "FusedMatMul": (2, 2),
    "SkipLayerNormalization": (3, 5), "SkipSimplifiedLayerNormalization": (3, 4),
}  # fmt: skip
"""Of the operators of onnxruntime: the least and the most inputs, as its documentation says."""

import_all()
NAMES = sorted(name for domain, name in TABLE.operators if not domain)


def versions(name: str) -> list[Any]:
    """The schemas of an operator since the oldest operator set that is read."""
    found = {defs.get_schema(name, one, "").since_version: one for one in range(OLDEST, NEWEST + 1) if has(name, one)}
    return [(one, defs.get_schema(name, one, "")) for one in found.values()]


def has(name: str, version: int) -> bool:
    try:
        return not defs.get_schema(name, version, "").deprecated
    except defs.SchemaError:
        return False


def graph_of(count: int) -> Any:
    """A body that takes and makes so many values, and one more."""
    inputs = [value(f"in{n}", None) for n in range(count)]
    nodes = [helper.make_node("Constant", [], [f"out{n}"], value=ONE) for n in range(count + 1)]
    return helper.make_graph(nodes, "body", inputs, [value(f"out{n}", None) for n in range(count + 1)])


def attributes(name: str, schema: Any, inputs: int) -> dict[str, Any]:
    """Values for the attributes that a node must have."""
    taken = 0 if name == "If" else inputs - (name == "Scan" and schema.since_version == 8)
    samples = {
        "INT": 1, "INTS": [1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "a", "STRINGS": ["a"],
        "TENSOR": ONE, "GRAPH": graph_of(taken),
    }  # fmt: skip
    return {one: samples[wanted.type.name] for one, wanted in schema.attributes.items() if wanted.required}


def variants(name: str, schema: Any) -> list[tuple[list[str], dict[str, Any]]]:
    """Inputs and attributes of nodes, some of which lack something."""
    most = min(schema.max_input, max(schema.min_input, len(schema.inputs)) + 1)
    full = [f"x{n}" for n in range(schema.min_input)]
    found = [([f"x{n}" for n in range(count)], attributes(name, schema, count)) for count in range(most + 2)]
    found += [([*full[:n], "", *full[n + 1 :]], attributes(name, schema, len(full))) for n in range(len(full))]
    whole = attributes(name, schema, len(full))
    found += [(full, {one: given for one, given in whole.items() if one != left_out}) for left_out in whole]
    for one, kind in schema.attributes.items():
        found.append((full, {**whole, one: 3 if kind.type.name == "STRING" else "text"}))
    return found


def refused_by_onnx(proto: Any, version: int) -> bool:
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {"": version}
    try:
        checker.check_node(proto, context)
    except checker.ValidationError:
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_every_operator(name: str) -> None:
    """What onnx refuses is refused, by operator and name; what it takes, our function takes, too."""
    refused = 0
    for version, schema in versions(name):
        for inputs, given in variants(name, schema):
            proto = helper.make_node(name, inputs, [f"y{n}" for n in range(schema.min_output)], name="here", **given)
            graph = helper.make_graph(
                [proto], "g", [value(f"x{n}", None) for n in range(12)], [value(one, None) for one in proto.output]
            )
            whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
            problem = ""
            try:
                load(whole)
            except RecordError as error:
                problem = str(error)
            if refused_by_onnx(proto, version):
                refused += 1
                assert f"node `here` ({name}, opset {version}) " in problem, (inputs, given)
                continue
            if "" not in inputs:
                assert f"({name}, opset {version}) " not in problem, (inputs, given, problem)
            operator = TABLE.find("", name, version)
            if operator is not None and not problem:
                inspect.signature(operator.compute).bind(*[None] * (len(inputs) + (3 if operator.own else 1)))
    assert refused


@pytest.mark.parametrize("name", LEAST)
def test_operators_of_others(name: str) -> None:
    """Where onnx has no schema, the parameters of the function say how many inputs there are."""
    least, most = LEAST[name]
    sets = [helper.make_opsetid("com.microsoft", 1)]
    for count in range(most + 2):
        one = node(name, [f"x{n}" for n in range(count)], ["y"], domain="com.microsoft", name="here")
        whole = model([one], [value(f"x{n}", None) for n in range(9)], [value("y", None)], more=sets)
        if least <= count <= most:
            load(whole)
            continue
        limit = f"needs at least {least}" if count < least else f"takes at most {most}"
        with pytest.raises(RecordError, match=rf"node `here` \(com.microsoft.{name}, opset 1\) has {count} .*{limit}"):
            load(whole)


def test_a_registered_operator() -> None:
    sets = [helper.make_opsetid("tests.checks", 1)]
    register("Scaled", lambda node, x, scale, bias=None: x * scale, domain="tests.checks")
    register("Any", print, domain="tests.checks")
    x, y = value("x", [2]), value("y", [2])
    with pytest.raises(RecordError, match=r"that makes `y` \(tests.checks.Scaled, opset 1\) lacks its input 2"):
        load(model([node("Scaled", ["x", ""], ["y"], domain="tests.checks")], [x], [y], more=sets))
    load(model([node("Any", ["x", "x", "x"], ["y"], domain="tests.checks")], [x], [y], more=sets))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["x"], r"`sum` \(Add, opset 18\) in the function `F` at node `call` \(local.F, opset 1\) lacks its input 2"),
        (["x", ""], r"`sum` \(Add, opset 18\) in the function `F`.* lacks its input 2 \(B\)"),
        (["", "x"], r"`sum` \(Add, opset 18\) in the function `F`.* lacks its input 1 \(A\)"),
        (["x", "x", "x"], r"`call` \(local.F, opset 1\) has 3 inputs, and its function takes 2"),
    ],
)
def test_a_function_of_the_file(given: list[str], message: str) -> None:
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function(
        "local", "F", ["a", "b"], ["out"], [node("Add", ["a", "b"], ["out"], name="sum")], opsets
    )
    call = node("F", given, ["y"], domain="local", name="call")
    sets = [helper.make_opsetid("local", 1)]
    with pytest.raises(RecordError, match=message):
        load(model([call], [value("x", [2])], [value("y", [2])], functions=[function], more=sets))


# --- loops and branches


def doubling() -> Any:
    """x * 2 in each iteration, which goes on while it is told so."""
    nodes = [node("Add", ["state", "state"], ["next"]), node("Identity", ["on"], ["again"])]
    inputs = [value("n", [], INT64), value("on", [], BOOL), value("state", [2])]
    return helper.make_graph(nodes, "body", inputs, [value("again", [], BOOL), value("next", [2])])


def with_x(one: Any, outputs: tuple[str, ...] = ("y",)) -> Any:
    weights = {"count": np.array(5), "true": np.array(True)}
    return model([one], [value("x", [2]), value("on", [], BOOL)], [value(name, None) for name in outputs], weights)


def loop(*inputs: str, outputs: tuple[str, ...] = ("y",)) -> Any:
    return with_x(node("Loop", inputs, outputs, name="turns", body=doubling()))


@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
def test_a_limit_of_iterations(engine: str) -> None:
    """It counts all loops of a call together, and each call anew."""
    x, on = px.ones((2,), device=engine), px.ones((), device=engine).bool()
    exact = load(loop("count", "", "x"), max_iterations=5)
    for one in (exact, pickle.loads(pickle.dumps(exact)), load(loop("count", "", "x"))):  # noqa: S301
        assert one(x, on).tolist() == [32.0, 32.0] and one(x, on).tolist() == [32.0, 32.0]
    message = (
        r"node `turns` \(Loop, opset 18\) goes on after {} iterations, .* no more than {} in all .*max_iterations="
    )
    short = load(loop("count", "", "x"), max_iterations=4)
    for one in (short, pickle.loads(pickle.dumps(short)), px.compile(short)):  # noqa: S301
        with pytest.raises(RangeError, match=message.format(4, 4)):
            one(x, on)
    with pytest.raises(RangeError, match=message.format("1,000", "1,000")):
        load(loop("", "true", "x"), max_iterations=1000)(x * 0.0, on)
    twice = [
        node("Loop", ["count", "", "x"], ["h"], body=doubling(), name="first"),
        node("Loop", ["count", "", "h"], ["y"], body=doubling(), name="turns"),
    ]
    whole = model(twice, [value("x", [2])], [value("y", None)], {"count": np.array(5)})
    assert load(whole, max_iterations=10)(x).tolist() == [1024.0, 1024.0]
    with pytest.raises(RangeError, match=message.format(2, 7)):
        load(whole, max_iterations=7)(x)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_a_limit_that_is_none(wrong: Any) -> None:
    with pytest.raises(RecordError, match="max_iterations=.*; give a whole number of at least 1"):
        load(loop("count", "", "x"), max_iterations=wrong)


def graph(*names: str, inputs: int = 0) -> Any:
    """A graph that makes x under these names."""
    nodes = [node("Identity", ["x"], [name]) for name in names]
    given = [value(f"in{n}", [2]) for n in range(inputs)]
    return helper.make_graph(nodes, "inner", given, [value(name, [2]) for name in names])


def choice(outputs: tuple[str, ...], first: Any, second: Any) -> Any:
    return with_x(node("If", ["on"], outputs, name="turns", then_branch=first, else_branch=second), outputs)


def scan(**more: Any) -> Any:
    return with_x(node("Scan", ["x"], ["y"], name="turns", body=graph("a", inputs=1), **more))


FITS: dict[str, tuple[Any, str]] = {
    "no end": (loop("", "", "x"), "has neither a number of iterations nor a condition, so it would never end"),
    "few inputs": (loop("count", "", "x", "x"), "passes 4 inputs to its graph `body`, which takes 3"),
    "few outputs": (
        loop("count", "", "x", outputs=("y", "z")), "needs 3 outputs of its graph `body`, which makes 2"
    ),
    "a branch with inputs": (
        choice(("y",), graph("a"), graph("b", inputs=1)), "passes 0 inputs to its graph `else_branch`, which takes 1"
    ),
    "a branch of few outputs": (
        choice(("y", "z"), graph("a", "b"), graph("c")), "needs 2 outputs of its graph `else_branch`, which makes 1"
    ),
    "a scan of too many": (scan(num_scan_inputs=2), "has num_scan_inputs=2, and 1 input"),
    "a scan of none": (scan(num_scan_inputs=0), "has num_scan_inputs=0, and 1 input"),
    "axes of a scan": (
        scan(num_scan_inputs=1, scan_input_axes=[0, 1]), "has 2 scan_input_axes, and 1 are needed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FITS)
def test_graphs_that_do_not_fit(case: str) -> None:
    whole, message = FITS[case]
    with pytest.raises(RecordError, match=rf"node `turns` \([A-Za-z]+, opset 18\) {message}"):
        load(whole)
