"""Meshes and layouts in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.host.html import Cell, counted, facts, header, representation, short, table

if TYPE_CHECKING:
    from phlox.distributed.layout import Layout
    from phlox.distributed.mesh import Mesh


def html_of_mesh(mesh: Mesh) -> str:
    """The representation of a mesh."""
    return representation(mesh, _mesh)


def html_of_layout(layout: Layout) -> str:
    """The representation of a layout."""
    return representation(layout, _layout)


def _mesh(mesh: Mesh) -> str:
    part, parts = mesh.part
    sizes = " × ".join(f"{name} {size}" for name, size in mesh.shape.items())
    count = counted(mesh.size, "device")
    pairs = [
        ("axes", sizes),
        ("rows of a batch are cut over", ", ".join(mesh.batch_axes)),
        ("this process has", f"part {part + 1} of {parts}" if parts > 1 else "all rows"),
        ("devices", str(mesh.device)),
    ]
    return f"<div>{header('Mesh', count, repr(mesh.backend))}</div>{facts(pairs)}"


def _layout(layout: Layout) -> str:
    rows = [[Cell(pattern, code=True), Cell(_spec(spec), code=True)] for pattern, spec in layout.patterns.items()]
    rest = "replicated" if layout.rest is None else f"cut over {_spec(layout.rest)} from {layout.least:,} elements on"
    rows.append([Cell("all others", kind="soft"), Cell(rest)])
    heads = ["parameters", "each axis is cut over"]
    return f"<div>{header('Layout', counted(len(layout.patterns), 'pattern'))}</div>{table(heads, rows, left=2)}"


def _spec(spec: object) -> str:
    return "replicated" if spec == () else short(spec, 120)
