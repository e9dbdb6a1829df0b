"""Integers of 64 bits on backends of 32: kept or refused, beside onnxruntime.

Serves: src/phlox/interop/onnx/wide.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import RangeError
from phlox.interop.onnx import load

pytest.importorskip("onnx")

import onnxruntime
from onnx import TensorProto

from tests.interop.onnx.support import INT64, model, node, value

ENGINES = [NumPy(), Jax(), Torch()]
INT32 = TensorProto.INT32
SMALLEST = -(2**31)
SMALL, LARGE = np.array([[3, -4], [5, 6]]), np.array([[70_000, -50_000], [2**31 - 1, SMALLEST]])
WEIGHTS = {"w": np.array([[100_000, 3], [7, -90_000]]), "axis": np.array(0), "two": np.array(2), "p": np.array(997)}

GROWING: dict[str, Any] = {
    "Abs": node("Abs", ["x"], ["y"]),
    "Add": node("Add", ["x", "x"], ["y"]),
    "CumSum": node("CumSum", ["x", "axis"], ["y"]),
    "Einsum": node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik"),
    "Gemm": node("Gemm", ["x", "w", "w"], ["y"]),
    "MatMul": node("MatMul", ["x", "w"], ["y"]),
    "Mul": node("Mul", ["x", "w"], ["y"]),
    "Neg": node("Neg", ["x"], ["y"]),
    "Pow": node("Pow", ["x", "two"], ["y"]),
    "ReduceL1": node("ReduceL1", ["x"], ["y"], keepdims=0),
    "ReduceProd": node("ReduceProd", ["x"], ["y"], keepdims=0),
    "ReduceSum": node("ReduceSum", ["x"], ["y"], keepdims=0),
    "ReduceSumSquare": node("ReduceSumSquare", ["x"], ["y"], keepdims=0),
    "Sub": node("Sub", ["x", "w"], ["y"]),
}


def file(*nodes: Any, element: int = INT64) -> Any:
    weights = {name: array.astype(np.int32 if element == INT32 else np.int64) for name, array in WEIGHTS.items()}
    return model(nodes, [value("x", ["n", 2], element)], [value("y", None, element)], weights)


def expected(made: Any, x: np.ndarray) -> Any:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("operator", GROWING)
@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_what_fits_is_computed_and_the_rest_is_refused(operator: str, backend: Any) -> None:
    loaded, names = load(file(GROWING[operator])), {"Gemm", "ReduceL1", "ReduceSumSquare", "ReduceProd"}
    run = px.compile(loaded)
    for x in (SMALL, LARGE):
        # What onnxruntime has no kernel for is NumPy's to say.
        by_hand = {
            "Gemm": lambda x=x: x @ WEIGHTS["w"] + WEIGHTS["w"],
            "ReduceL1": np.abs(x).sum,
            "ReduceSumSquare": (x**2).sum,
            "ReduceProd": x.prod,
        }
        right = by_hand[operator]() if operator in names else expected(file(GROWING[operator]), x)
        if operator == "ReduceProd" and x is LARGE:
            continue  # it does not fit 64 bits either
        given = px.tensor(x, device=backend.device())
        fits = (right >= SMALLEST) & (right < 2**31)
        if fits.all():
            assert loaded(given).tolist() == right.tolist()
        else:
            with pytest.raises(RangeError, match="does not fit .* use a backend of wider ones"):
                loaded(given)
        wide = type(backend)(int="i64")
        assert loaded.to_device(wide.device())(px.tensor(x, device=wide.device())).tolist() == right.tolist()
        if not isinstance(backend, NumPy):
            compiled = run(given).numpy()
            assert (compiled == np.where(fits, right, SMALLEST)).all()
            with px.debug.checks():
                if fits.all():
                    assert run(given).tolist() == right.tolist()
                else:
                    with pytest.raises(RangeError, match="does not fit .*in a compiled function"):
                        run(given)


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_a_hash_whose_steps_do_not_fit(backend: Any) -> None:
    made = file(node("Mul", ["x", "w"], ["far"]), node("Mod", ["far", "p"], ["y"]))
    loaded, given = load(made), px.tensor(LARGE, device=backend.device())
    y = loaded(given)
    assert y.backend == backend and y.tolist() == expected(made, LARGE).tolist()


@pytest.mark.parametrize("backend", [NumPy(int="i64"), Jax(int="i64"), Torch(int="i64")], ids=repr)
def test_integers_of_32_bits_wrap_on_wider_backends(backend: Any) -> None:
    for operator in ("Add", "Mul", "Sub", "Neg"):
        made = file(GROWING[operator], element=INT32)
        found = load(made)(px.tensor(LARGE, device=backend.device())).numpy()
        assert (found == (LARGE_BY_HAND[operator] + 2**31) % 2**32 - 2**31).all()


LARGE_BY_HAND = {"Add": LARGE + LARGE, "Mul": LARGE * WEIGHTS["w"], "Sub": LARGE - WEIGHTS["w"], "Neg": -LARGE}


def test_ends_that_leave_are_not_cut() -> None:
    made = model(
        [node("Add", ["x", "end"], ["y"])], [value("x", ["n"], INT64)], [value("y", ["n"], INT64)],
        {"end": np.array(2**63 - 8)},
    )  # fmt: skip
    with pytest.raises(RangeError, match="9223372036854775802 does not fit"):
        load(made)(px.tensor([1, 2], device="numpy"))
