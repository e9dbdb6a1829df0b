"""Meshes and layouts in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.host.page import Cell, Page, Table, facts
from phlox.host.text import count, short

if TYPE_CHECKING:
    from phlox.distributed.layout import Layout
    from phlox.distributed.mesh import Mesh


def page_of_mesh(mesh: Mesh) -> Page:
    """The axes and the devices of a mesh."""
    part, parts = mesh.part
    pairs = [
        ("axes", " × ".join(f"{name} {size}" for name, size in mesh.shape.items())),
        ("rows of a batch are cut over", ", ".join(mesh.batch_axes)),
        ("this process has", f"part {part + 1} of {parts}" if parts > 1 else "all rows"),
        ("devices", str(mesh.device)),
    ]
    return Page("Mesh", [count(mesh.size, "device"), repr(mesh.backend)], [facts(pairs)])


def page_of_layout(layout: Layout) -> Page:
    """The patterns of a layout, and the rule for all other parameters."""
    rows = [[Cell(pattern, code=True), Cell(_spec(spec), code=True)] for pattern, spec in layout.patterns.items()]
    text = "replicated" if layout.rest is None else f"cut over {_spec(layout.rest)} from {layout.least:,} elements on"
    rows.append([Cell("all others", kind="soft"), Cell(text)])
    table = Table(["parameters", "each axis is cut over"], rows, 2)
    return Page("Layout", [count(len(layout.patterns), "pattern")], [table])


def _spec(spec: object) -> str:
    return "replicated" if spec == () else short(spec, 120)
