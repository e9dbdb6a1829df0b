"""Reports of compiled calls in notebooks.

Serves: phlox/transform/compile/html.py
"""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.analysis import Analysis, Traffic
from phlox.host.text import amount
from phlox.transform.compile.report import ExecutableReport
from tests.markup import read


def product(x: Any) -> Any:
    return x @ x


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_a_report(backend: Backend) -> None:
    report = px.compile(product).lower(px.ones((16, 16), device=backend))
    found = read(report)
    assert found.texts[0] == "product" and f"by {report.source}" in found.text
    assert ["arguments", "1.0 KiB"] in found.rows and report.flops is not None
    assert ["FLOPs", amount(report.flops)] in found.rows and report.flops > 8000


def test_traffic_and_what_is_unknown() -> None:
    found = read(ExecutableReport("<script>", "Jax()", Analysis("XLA", devices=8, loops_of_unknown_length=1)))
    assert (
        "<script>" in found.texts and ["memory", "unknown"] in found.rows and ["collectives", "unknown"] in found.rows
    )
    assert "each of 8 devices" in found.text and "1 loop of unknown length" in found.text
    traffic = {"all-reduce": Traffic(2, 1024, 2048)}
    found = read(ExecutableReport("f", "Jax()", Analysis("XLA", collectives=traffic)))
    assert ["all-reduce", "2", "1.0 KiB", "2.0 KiB"] in found.rows
