"""The operations that signatures say are elementwise or work along axes are so, by what they do on NumPy."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from phlox.backend import NumPy
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS
from phlox.backend.contract.signatures import ALONG, COMPOSITES, ELEMENTWISE, SCANS, SEVERAL, declared

B = NumPy()


def array(kind: str, *shape: int) -> Any:
    made = (np.arange(np.prod(shape)).reshape(shape) * 7 % 5 + 1) / (8.0 if kind == "float" else 1.0)
    return made.astype({"float": np.float32, "int": np.int32, "bool": np.bool_}[kind])


def test_the_table_by_hand() -> None:
    wanted = {"float_add": 2, "float_exp": 1, "float_clip": 3, "float_lerp": 3, "bool_not": 1, "where": 3, "gelu": 1}
    assert {name: ELEMENTWISE[name] for name in wanted} == wanted
    places = {"float_sum": 0, "bool_any": 0, "int_argmin": 0, "flip": 0, "float_var": 0, "roll": 1, "int_argtopk": 1}
    assert {name: ALONG[name] for name in places} == places
    assert not {"int_matmul", "float_cumsum", "reshape", "take"} & ELEMENTWISE.keys()
    assert not {"take", "float_windows_adjoint", "softmax_forward", "permute_dims", "concat"} & ALONG.keys()
    assert {name.partition("_")[2] for name in SCANS} == {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"}
    operands = {
        "linear": 3,
        "softmax": 1,
        "attention": 6,
        "lstm": 7,
        "rms_norm": 2,
        "ctc_loss": 4,
        "grid_sample": 2,
        "packed_linear": 5,
    }
    assert {name: COMPOSITES[name] for name in operands} == operands and len(COMPOSITES) == 22
    assert COMPOSITES.keys() & SEVERAL == {"lstm", "gru", "rnn", "batch_norm_train"}
    assert declared("Reduction")[:2] == ["float_sum", "float_prod"] and "bool_all" in declared("Reduction")
    assert (ELEMENTWISE.keys() | ALONG) <= OPERATIONS and not ELEMENTWISE.keys() & ALONG.keys()


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_operands_broadcast(name: str) -> None:
    kind, count = name.partition("_")[0], ELEMENTWISE[name]
    kind = kind if kind in ("float", "int", "bool") else "float"
    operands = [array(kind, 3, 1), array(kind, 4), array(kind, 2, 1, 1)][:count]
    if name == "where":
        operands[0] = operands[0] > 0.5
    parameters = [*inspect.signature(getattr(DERIVED[name], name)).parameters.values()] if name in DERIVED else []
    options = [{"float": 1.0, "bool": False}[one.annotation] for one in parameters[1 + count :]]
    with np.errstate(all="ignore"):
        found = getattr(B, name)(*operands, *options)
    assert np.shape(found) == np.broadcast_shapes(*(x.shape for x in operands)), name


@pytest.mark.parametrize("name", SCANS)
def test_the_first_of_a_scan_is_itself(name: str) -> None:
    x = array(name.partition("_")[0], 3, 4)
    found = getattr(B, name)(x, 1)
    assert found.shape == x.shape
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    np.testing.assert_allclose(found, np.stack([getattr(B, name)(row, 0) for row in x]), rtol=1e-6)
