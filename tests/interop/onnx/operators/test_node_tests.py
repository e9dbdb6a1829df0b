"""The node tests of the `onnx` package, on every engine, and the page that says which of them pass.

Serves: src/phlox/interop/onnx/operators/, src/phlox/interop/onnx/{registry,node,inference,graph}.py
Serves: tools/onnx_operators.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from tools import onnx_operators as page

pytest.importorskip("onnx")

NEED_64_BITS = {"test_bitcast_float64_to_int64", "test_bitcast_int64_to_float64", "test_bitcast_uint32_to_int32"}
ON_JAX = [
    "add_bcast", "and3d", "argmax_keepdims_example", "averagepool_2d_ceil", "basic_conv_with_padding",
    "batchnorm_epsilon", "bitshift_left_uint8", "bitwise_and_i32_2d", "cast_FLOAT_to_FLOAT8E4M3FN", "clip",
    "concat_2d_axis_1", "convtranspose_pad", "cumsum_1d_reverse", "depthtospace_example", "dequantizelinear_axis",
    "einsum_batch_matmul", "expand_dim_changed", "flatten_axis2", "gather_negative_indices",
    "gathernd_example_int32", "gelu_tanh_1", "gemm_all_attributes", "gridsample_bicubic",
    "group_normalization_epsilon", "gru_with_initial_bias", "hardmax_axis_1", "if", "layer_normalization_2d_axis1",
    "loop11", "lstm_with_peepholes", "matmul_3d", "maxpool_2d_dilations",
    "maxpool_with_argmax_2d_precomputed_pads", "mod_mixed_sign_int32", "onehot_with_axis", "prelu_broadcast",
    "qlinearconv", "quantizelinear_axis", "reduce_l2_keep_dims_example", "reshape_negative_dim",
    "resize_upsample_sizes_cubic", "rms_normalization_2d_axis1", "rnn_seq_length", "roialign_aligned_true",
    "rotary_embedding", "scan9_sum", "scatter_elements_with_reduction_max", "scatternd_add", "slice_neg_steps",
    "softmax_axis_1", "split_variable_parts_2d_opset18", "stft", "tile", "top_k", "transpose_default",
    "tril_one_row_neg", "unsqueeze_two_axes", "where_example", "attention_3d",
]  # fmt: skip


@pytest.mark.full
def test_every_operator_passes_all_of_its_tests_or_the_page_says_why_not() -> None:
    lacking = {name for name, (good, total) in page.by_operator().items() if good < total}
    assert {name.rpartition(".")[2] for name in lacking} == set(page.REASONS)
    assert len(page.by_operator()) - len(lacking) >= 150
    found = page.outcomes().values()
    failing = [one for one in found if one.failure is not None and not one.expanded]
    assert all(one.operators & lacking for one in failing), failing


def test_those_written_out_as_functions_pass_too() -> None:
    failing = [name for name, one in page.outcomes().items() if one.expanded and one.failure is not None]
    assert all("bernoulli" in name for name in failing), failing


def test_the_page_is_up_to_date() -> None:
    import onnx

    if f"onnx {onnx.__version__} " not in page.PAGE.read_text(encoding="utf-8"):
        pytest.skip("the page is of another version of onnx")
    assert page.page() == page.PAGE.read_text(encoding="utf-8"), "run python tools/onnx_operators.py"


@pytest.mark.full
def test_pytorch_passes_the_same_tests() -> None:
    wanted = {name for name, one in page.outcomes().items() if one.failure is None} - NEED_64_BITS
    found = {name: page.failure(page.cases()[name], Torch().device()) for name in wanted}
    assert {name: why for name, why in found.items() if why is not None} == {}


@pytest.mark.full
@pytest.mark.parametrize("name", ON_JAX)
def test_jax_passes_a_test_of_each_kind(name: str) -> None:
    assert page.failure(page.cases()[f"test_{name}"], Jax().device()) is None


def test_a_wrong_result_is_noticed() -> None:
    case = page.cases()["test_abs"]
    with pytest.raises(AssertionError):
        page.check(px.tensor(case.data_sets[0][0][0]), case.data_sets[0][1][0], 1e-3, 1e-7)


def test_random_operators_draw_what_they_say() -> None:
    import onnx
    from onnx import helper

    def drawn(operator: str, shape: list[int], **attributes: Any) -> np.ndarray:
        node = helper.make_node(operator, [], ["y"], shape=shape, **attributes)
        graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, shape)])
        model = px.interop.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
        px.random.seed(0)
        return model().numpy()

    normal = drawn("RandomNormal", [10_000], mean=2.0, scale=3.0)
    assert abs(normal.mean() - 2.0) < 0.1 and abs(normal.std() - 3.0) < 0.1
    uniform = drawn("RandomUniform", [10_000], low=-1.0, high=3.0)
    assert abs(uniform.mean() - 1.0) < 0.1 and uniform.min() >= -1.0 and uniform.max() < 3.0
    case = page.cases()["test_bernoulli"]
    px.random.seed(0)
    x = np.full((20_000,), 0.3)
    graph = onnx.ModelProto()
    graph.CopyFrom(case.model)
    del graph.graph.input[0].type.tensor_type.shape.dim[:]
    graph.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "n"
    ones = px.interop.onnx.load(graph, device=NumPy(float="f64").device())(px.tensor(x)).numpy()
    assert set(np.unique(ones)) == {0.0, 1.0} and abs(ones.mean() - 0.3) < 0.02


def test_dropout_drops_its_share() -> None:
    from onnx import helper

    inputs = [helper.make_tensor_value_info("x", 1, ["n"])]
    nodes = [
        helper.make_node("Constant", [], ["r"], value_float=0.25),
        helper.make_node("Constant", [], ["t"], value=helper.make_tensor("", 9, [], [True])),
        helper.make_node("Dropout", ["x", "r", "t"], ["y", "mask"]),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, ["n"]), helper.make_tensor_value_info("mask", 9, ["n"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = px.interop.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    px.random.seed(0)
    found = model(px.ones((20_000,)))
    kept = found["mask"].numpy()
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(found["y"].numpy(), kept / 0.75, rtol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attributes", "shapes"),
    [
        ("Gelu", {}, [(3, 4)]),
        ("BiasGelu", {}, [(3, 4), (4,)]),
        ("FastGelu", {}, [(3, 4), (4,)]),
        ("QuickGelu", {"alpha": 1.5}, [(3, 4)]),
        ("FusedMatMul", {"transA": 1, "transB": 1, "alpha": 0.5}, [(4, 3), (5, 4)]),
        ("SkipLayerNormalization", {"epsilon": 1e-3}, [(2, 3, 4), (2, 3, 4), (4,), (4,), (4,)]),
        ("SkipSimplifiedLayerNormalization", {"epsilon": 1e-3}, [(2, 3, 4), (2, 3, 4), (4,)]),
    ],
)
def test_operators_of_microsoft_agree_with_onnxruntime(
    operator: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    from onnx import helper

    names = [f"x{number}" for number in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, shapes, strict=True)]
    node = helper.make_node(operator, names, ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)])
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=sets, ir_version=9)
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in zip(names, shapes, strict=True)}
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, given)
    found = px.interop.onnx.load(proto)(**given)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
