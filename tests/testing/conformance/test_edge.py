"""Edges of the contract that do not hold are found, and said as they stand on the page."""

from __future__ import annotations

from typing import Any

import pytest

from phlox.backend import NumPy
from phlox.errors import BackendError
from phlox.testing.conformance.edge import Edge, check_edge, page, raises


@pytest.mark.parametrize(
    "code, wanted, words",
    [
        ("t([1.0]) + 1", [3.0], ("got 2.0, expected 3.0",)),
        ("t([1.0]) + 1", [2], ("gave Float, expected Int",)),
        ("t([1.0]).shape", (2,), ("gave (1,), expected (2,)",)),
        ("t([1.0])", 1.0, ("gave shape (1,), expected ()",)),
        ("t([1.0]) + 1", raises(BackendError), ("expected BackendError",)),
        ("t([1.0]) + t([1])", raises(TypeError, "nonsense"), ("expected TypeError with 'nonsense'",)),
        ("t([1.0]) + t([1])", [2.0], ("raised KindError",)),
        ("t([0.0])", [-0.0], ("the sign of a zero differs",)),
    ],
)
def test_an_edge_that_does_not_hold(code: str, wanted: Any, words: tuple[str, ...]) -> None:
    edge = Edge("section", "statement", ((code, wanted),), signs=True)
    with pytest.raises(AssertionError) as caught:
        check_edge(edge, NumPy())
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "| `" + code in page([edge])
