"""Meshes and layouts in notebooks.

Serves: phlox/distributed/pages.py
"""

from __future__ import annotations

import pytest

from phlox.distributed import Layout, Mesh
from tests.markup import read


@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
def test_a_mesh(engine: str) -> None:
    found = read(Mesh(data=-1, device=engine))
    assert found.texts[0] == "Mesh" and ["rows of a batch are cut over", "data"] in found.rows
    assert any(row[0] == "devices" and row[1].startswith(f"{engine}:") for row in found.rows)


def test_a_layout() -> None:
    found = read(Layout({"<script>\u202e": (None, "model"), "whole.**": None}, rest=("data", "model"), least=10))
    assert ["<script>\\u202e", "(None, 'model')"] in found.rows and ["whole.**", "replicated"] in found.rows
    assert ["all others", "cut over ('data', 'model') from 10 elements on"] in found.rows
    assert ["all others", "replicated"] in read(Layout()).rows
