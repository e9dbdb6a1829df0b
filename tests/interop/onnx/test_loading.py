"""Loading ONNX files: which initializers are parameters, functions and subgraphs, and files that are wrong.

Serves: src/phlox/interop/onnx/{loading,bind,order,reading,weights,elements}.py
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ExtraNotInstalledError, RangeError, RecordError, ShapeError, UnsupportedError
from phlox.interop.onnx import bind, load, register

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from tests.interop.onnx.support import BOOL, INT64, mlp, mlp_by_hand, model, node, normal, value  # noqa: E402

X = normal(7, 2, 3, seed=2)


def paths(loaded: Any) -> list[str]:
    return [path for path, _ in loaded.named_params()]


# --- sources


def test_a_path_bytes_a_stream_and_a_proto(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    content = mlp().SerializeToString()
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), content, io.BytesIO(content), mlp()):
        np.testing.assert_allclose(load(source)(px.tensor(X)).numpy(), mlp_by_hand(X), rtol=1e-5, atol=1e-6)


def test_external_data(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    loaded = load(tmp_path / "m.onnx")
    np.testing.assert_allclose(loaded(X).numpy(), mlp_by_hand(X), rtol=1e-5, atol=1e-6)
    again = pickle.loads(pickle.dumps(loaded))  # noqa: S301
    (tmp_path / "data.bin").unlink()
    np.testing.assert_array_equal(again(X).numpy(), loaded(X).numpy())
    with pytest.raises(RecordError, match=r"the tensor `zero`.*data.bin.*copy that file"):
        load(tmp_path / "m.onnx")
    with pytest.raises(RecordError, match="give the path of the model"):
        load((tmp_path / "m.onnx").read_bytes())


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "link/secret", ""])
def test_external_data_elsewhere_is_refused(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(120))
    (folder / "link").symlink_to(tmp_path)
    onnx.save(_external(place), folder / "m.onnx")
    with pytest.raises(RecordError, match=r"`up.weight`.*outside|`up.weight`.*beside"):
        load(folder / "m.onnx")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"offset": "60"}, "beyond the end"),
        ({"offset": "-4"}, "beyond the end"),
        ({"length": "8"}, "takes 120 bytes, but 8"),
        ({"length": "many"}, "not given in numbers"),
    ],
)
def test_external_data_of_wrong_sizes(entries: dict[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(120))
    onnx.save(_external("data", **entries), tmp_path / "m.onnx")
    with pytest.raises(RecordError, match=says):
        load(tmp_path / "m.onnx")


def _external(place: str, **entries: str) -> Any:
    proto = mlp()
    weight = next(one for one in proto.graph.initializer if one.name == "up.weight")
    weight.ClearField("raw_data")
    weight.data_location = 1
    for key, text in {"location": place, **entries}.items():
        weight.external_data.add(key=key, value=text)
    return proto


# --- parameters


def test_paths_and_which_are_trained() -> None:
    loaded = load(mlp())
    assert paths(loaded) == ["up.weight", "up.bias", "down.weight"]
    assert all(param.trained for param in loaded.params())
    assert not any(param.trained for param in load(mlp(), trained=False).params())
    chosen = load(mlp(), trained=["**.weight", "!down"])
    assert [path for path, param in chosen.named_params() if param.trained] == ["up.weight"]
    with pytest.raises(RecordError, match="upp"):
        load(mlp(), trained="upp")


def test_statistics_are_parameters_that_are_not_trained() -> None:
    weights = {name: np.abs(normal(3)) + 0.5 for name in ("g", "b", "m", "v")}
    nodes = [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], name="/norm/BatchNormalization")]
    loaded = load(model(nodes, [value("x", [2, 3, 4])], [value("y", [2, 3, 4])], weights))
    assert [param.trained for param in loaded.params()] == [True, True, False, False]
    assert [param.trainable for param in loaded.params()] == [True, True, False, False]
    x = normal(2, 3, 4)
    m, v, g, b = (weights[name].reshape(3, 1) for name in "mvgb")
    np.testing.assert_allclose(loaded(x).numpy(), (x - m) / np.sqrt(v + 1e-5) * g + b, rtol=1e-4, atol=1e-5)


def test_options_stay_constants() -> None:
    weights = {
        "sizes": np.array([1, 1, 4, 4]), "low": np.array(-1.0, np.float32), "fill": np.array([2.0], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "table": np.arange(2000), "at": np.zeros((1, 1), np.int64),
    }  # fmt: skip
    nodes = [
        node("Resize", ["x", "", "", "sizes"], ["r"]),
        node("Clip", ["r", "low"], ["c"]),
        node("Pad", ["c", "pads", "fill"], ["y"]),
        node("Gather", ["table", "at"], ["i"]),
    ]
    loaded = load(model(nodes, [value("x", [1, 1, 2, 2])], [value("y", None), value("i", None, INT64)], weights))
    assert [(path, param.trained) for path, param in loaded.named_params()] == [("table", False)]
    x = np.array([[[[-3.0, 1.0], [2.0, 3.0]]]], np.float32)
    wanted = np.pad(
        np.maximum(x.repeat(2, 2).repeat(2, 3), -1.0), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=2.0
    )
    np.testing.assert_array_equal(loaded(x)["y"].numpy(), wanted)


def test_names_that_modules_keep_for_themselves() -> None:
    nodes = [
        node("MatMul", ["x", "save"], ["a"]),
        node("MatMul", ["a", "program"], ["b"]),
        node("MatMul", ["b", "a/b c"], ["y"]),
    ]
    weights = {name: np.eye(2, dtype=np.float32) for name in ("save", "program", "a/b c")}
    loaded = load(model(nodes, [value("x", [2, 2])], [value("y", [2, 2])], weights))
    assert paths(loaded) == ["save_", "program_", "a.b_c"]
    np.testing.assert_array_equal(loaded(np.eye(2, dtype=np.float32)).numpy(), np.eye(2))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "float8_e4m3fn"])
def test_weights_of_other_floats(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    weight = normal(3, 4).astype(dtype)
    element = helper.np_dtype_to_tensor_dtype(dtype)
    nodes = [node("Cast", ["w"], ["f"], to=1), node("MatMul", ["x", "f"], ["y"])]
    loaded = load(model(nodes, [value("x", [2, 3])], [value("y", [2, 4])], {"w": weight}, opset=19))
    assert numpy_helper.from_array(weight).data_type == element
    np.testing.assert_allclose(loaded(normal(2, 3)).numpy(), normal(2, 3) @ weight.astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize("name", ["int8", "uint8", "int4", "uint4", "int32", "bool"])
def test_constants_of_whole_numbers(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    whole = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    nodes = [node("Cast", ["w"], ["f"], to=1), node("MatMul", ["x", "f"], ["y"])]
    loaded = load(model(nodes, [value("x", [2, 2])], [value("y", [2, 3])], {"w": whole}, opset=21))
    np.testing.assert_allclose(loaded(normal(2, 2)).numpy(), normal(2, 2) @ whole.astype(np.float32), rtol=1e-6)


def test_files_of_phlox_name_their_parameters() -> None:
    weights = {"layers.0.gamma": normal(4), "constant_1": normal(4), "n.running_mean": normal(4)}
    nodes = [
        node("Sub", ["x", "n.running_mean"], ["c"]),
        node("Mul", ["c", "layers.0.gamma"], ["h"]),
        node("Add", ["h", "constant_1"], ["y"]),
    ]
    proto = model(nodes, [value("x", [2, 4])], [value("y", [2, 4])], weights)
    assert len(paths(load(proto))) == 3
    proto.producer_name = "phlox"
    loaded = load(proto)
    assert [(path, param.trained) for path, param in loaded.named_params()] == [
        ("layers.0.gamma", True), ("n.running_mean", False)
    ]  # fmt: skip
    again = pickle.loads(pickle.dumps(loaded))  # noqa: S301
    assert paths(again) == paths(loaded)


# --- copies and records


def test_copies_pickles_and_records(tmp_path: Path) -> None:
    loaded = load(mlp())
    wanted = loaded(X).numpy()
    for other in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded)), loaded.to_device("numpy")):  # noqa: S301
        np.testing.assert_array_equal(other(X).numpy(), wanted)
    path = loaded.save(tmp_path / "weights")
    other = load(mlp()).map(lambda _, param: param.map(lambda x: x * 0.0))
    assert other.load(path).ok
    np.testing.assert_array_equal(other(X).numpy(), wanted)


# --- functions and subgraphs


def test_functions_of_the_model_with_attributes_of_their_own() -> None:
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    body = [node("Add", ["p", "q"], ["a"]), inner]
    function = helper.make_function("mine", "Leaky", ["p", "q"], ["b"], body, [helper.make_opsetid("", 18)], ["slope"])
    nodes = [
        node("Leaky", ["x", "x"], ["h"], domain="mine", slope=0.5),
        node("Leaky", ["h", "x"], ["y"], domain="mine"),
    ]
    proto = model(
        nodes, [value("x", [3])], [value("y", [3])], functions=[function], more=[helper.make_opsetid("mine", 1)]
    )
    x = np.array([-1.0, 2.0, -3.0], np.float32)
    leaky = lambda z, slope: np.where(z < 0, z * slope, z)  # noqa: E731
    np.testing.assert_allclose(load(proto)(x).numpy(), leaky(leaky(2 * x, 0.5) + x, 0.01), rtol=1e-6)


def test_a_function_that_calls_itself() -> None:
    body = [node("Again", ["p"], ["q"], domain="mine")]
    function = helper.make_function("mine", "Again", ["p"], ["q"], body, [helper.make_opsetid("mine", 1)])
    nodes = [node("Again", ["x"], ["y"], domain="mine")]
    sets = [helper.make_opsetid("mine", 1)]
    with pytest.raises(RecordError, match="`Again` calls itself"):
        load(model(nodes, [value("x", [3])], [value("y", [3])], functions=[function], more=sets))


def test_functions_that_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "_MOST_NODES", 1000)
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    functions = []
    for depth in range(30):  # each calls the next twice
        operator, domain = (f"F{depth + 1}", "mine") if depth < 29 else ("Neg", "")
        body = [node(operator, ["p"], ["q"], domain=domain), node(operator, ["q"], ["r"], domain=domain)]
        functions.append(helper.make_function("mine", f"F{depth}", ["p"], ["r"], body, sets))
    proto = model(
        [node("F0", ["x"], ["y"], domain="mine")],
        [value("x", [1])],
        [value("y", [1])],
        functions=functions,
        more=sets[1:],
    )
    with pytest.raises(RecordError, match="more than 1,000 nodes"):
        load(proto)


def test_subgraphs_see_what_is_around_them() -> None:
    def branch(operator: str) -> Any:
        return helper.make_graph([node(operator, ["h", "w"], ["r"])], operator, [], [value("r", None)])

    inner = helper.make_graph(
        [node("If", ["flag"], ["r"], then_branch=branch("Add"), else_branch=branch("Mul"))],
        "outer",
        [],
        [value("r", None)],
    )
    other = helper.make_graph([node("Neg", ["h"], ["r"])], "neg", [], [value("r", None)])
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("If", ["deep"], ["y"], then_branch=inner, else_branch=other)]
    inputs = [value("x", [3, 3]), value("flag", [], BOOL), value("deep", [], BOOL)]
    loaded = load(model(nodes, inputs, [value("y", [3, 3])], {"w": normal(3, 3)}))
    x = normal(3, 3, seed=1)
    h = x @ normal(3, 3)
    for flag, deep, wanted in ((True, True, h + normal(3, 3)), (False, True, h * normal(3, 3)), (False, False, -h)):
        np.testing.assert_allclose(loaded(x, flag, deep).numpy(), wanted, rtol=1e-5)


def test_nodes_out_of_order_are_put_in_order() -> None:
    proto = mlp()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    np.testing.assert_allclose(load(proto)(X).numpy(), mlp_by_hand(X), rtol=1e-5, atol=1e-6)


def test_old_operator_sets_of_which_nothing_has_changed() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])], opset=6)
    np.testing.assert_array_equal(load(proto)(np.array([-1.0, 1.0], np.float32)).numpy(), [0.0, 1.0])
    proto = model([node("Add", ["x", "x"], ["y"])], [value("x", [2])], [value("y", [2])], opset=6)
    with pytest.raises(UnsupportedError, match=r"Add, opset 6"):
        load(proto)


# --- what is not known


def test_all_unknown_operators_are_listed_at_once() -> None:
    nodes = [
        node("Odd", ["x"], ["a"], domain="mine", name="first"),
        node("Odd", ["a"], ["b"], domain="mine", name="second"),
        node("Nope", ["b"], ["c"]),
        node("Even", ["c"], ["y"], domain="others"),
    ]
    sets = [helper.make_opsetid("mine", 3)]
    with pytest.raises(UnsupportedError) as caught:
        load(model(nodes, [value("x", [2])], [value("y", [2])], more=sets))
    lines = str(caught.value).splitlines()
    assert "mine.Odd, opset 3: `first` (mine.Odd), `second` (mine.Odd)" in lines[2]
    assert "ai.onnx.Nope, opset 18" in lines[1] and "that makes `c`" in lines[1]
    assert "others.Even, opset not imported" in lines[3] and "register" in lines[4]


def test_registered_operators() -> None:
    register("Triple", lambda node, x: x * node.get("times", 3.0), domain="test.only")
    nodes = [
        node("Triple", ["x"], ["a"], domain="test.only"),
        node("Triple", ["a"], ["y"], domain="test.only", times=2.0),
    ]
    sets = [helper.make_opsetid("test.only", 1)]
    loaded = load(model(nodes, [value("x", [2])], [value("y", [2])], more=sets))
    np.testing.assert_array_equal(loaded(np.ones(2, np.float32)).numpy(), [6.0, 6.0])


# --- what is wrong


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x00" * 64, bytes(range(256)), b"\x08\x09"])
def test_no_onnx(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(RecordError, match=r"m\.onnx: is no ONNX model"):
        load(tmp_path / "m.onnx")


def test_every_cut_of_a_file_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    content = mlp().SerializeToString()
    for end in range(0, len(content) - 1, 7):
        with pytest.raises((RecordError, UnsupportedError)):
            load(content[:end])


def test_changed_bytes_are_errors_of_phlox_or_load() -> None:
    content = bytearray(mlp().SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        try:
            load(bytes(changed))
        except px.errors.PhloxError:
            pass


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.onnx")


def test_a_newer_operator_set() -> None:
    proto = mlp()
    proto.opset_import[0].version = 999
    with pytest.raises(RecordError, match=r"opset 999.*knows up to.*install a newer one"):
        load(proto)


def test_cycles_and_missing_inputs() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], name="one"), node("Neg", ["a"], ["b"], name="two")]
    with pytest.raises(RecordError, match="wait for each other's results: `one`.*`two`"):
        load(model(nodes, [value("x", [2])], [value("b", [2])]))
    with pytest.raises(RecordError, match="`one`.*uses `nothing`, which nothing makes"):
        load(model([node("Add", ["x", "nothing"], ["y"], name="one")], [value("x", [2])], [value("y", [2])]))
    with pytest.raises(RecordError, match="nothing makes its output `z`"):
        load(model([node("Neg", ["x"], ["y"])], [value("x", [2])], [value("z", [2])]))
    with pytest.raises(RecordError, match="`y` is made twice"):
        load(model([node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"])], [value("x", [2])], [value("y", [2])]))


def test_sizes_that_contradict() -> None:
    proto = mlp()
    proto.graph.initializer[3].dims[0] = 1_000_000
    with pytest.raises(RecordError, match=r"`up.weight` has the shape \(1000000, 6\).*but 120"):
        load(proto)
    proto.graph.initializer[3].dims[0] = 1 << 50
    with pytest.raises(RecordError, match="which no tensor has"):
        load(proto)


def test_absurd_sizes_are_refused_when_they_are_made() -> None:
    nodes = [node("ConstantOfShape", ["n"], ["big"]), node("Add", ["x", "big"], ["y"])]
    loaded = load(model(nodes, [value("x", [1])], [value("y", None)], {"n": np.array([1 << 20, 1 << 20])}))
    with pytest.raises(RangeError, match="impossible"):
        loaded(np.ones(1, np.float32))
    nodes = [node("Expand", ["x", "n"], ["y"])]
    loaded = load(model(nodes, [value("x", [1])], [value("y", None)], {"n": np.array([1 << 20, 1 << 20])}))
    with pytest.raises(RangeError, match="impossible"):
        loaded(np.ones(1, np.float32))


def test_errors_name_the_node() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], name="/head/MatMul")]
    loaded = load(model(nodes, [value("x", ["a", "b"])], [value("y", None)], {"w": normal(3, 4)}))
    with pytest.raises(ShapeError) as caught:
        loaded(normal(2, 5))
    assert "`/head/MatMul` (MatMul, opset 18), given shapes (2, 5), (3, 4)" in caught.value.__notes__[0]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'onnx'"):
        load(b"")
