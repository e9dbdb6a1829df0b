"""The tables about planning in the documentation: GPTs of three sizes on 8 to 512 devices, and the accelerators.

    python tools/planning.py             writes them into the page that has their marks
    python tools/planning.py --check     says whether they are out of date, and changes nothing

The figures are those of `phlox.distributed.planning.plan`, whose formulas a test compares with compiled steps.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from phlox import optim
from phlox.backend import NumPy
from phlox.cli.plan import PRESETS
from phlox.distributed.planning.accelerators import ACCELERATORS
from phlox.distributed.planning.plan import Plan, plan
from phlox.host.text import amount
from phlox.host.text import size as size_of
from phlox.models import GptConfig, LlamaConfig

DOCS = Path(__file__).parent.parent / "docs"
ROWS = 4
"""Rows for each part of the batch."""
DEVICE = ACCELERATORS["h100"]
MESHES = {
    "1B": [({"data": n}, "fsdp") for n in (8, 64, 512)],
    "7B": [({"data": n}, "fsdp") for n in (8, 64, 512)]
    + [({"data": n // 8, "model": 8}, "tensor-parallel+fsdp") for n in (8, 64, 512)],
    "70B": [({"data": n // 8, "model": 8}, "tensor-parallel+fsdp") for n in (8, 64, 128, 512)],
}


def planned(size: str, mesh: dict[str, int], layout: str) -> Plan:
    """One row of the table: bf16, AdamW, every block computed again."""
    model = GptConfig(**PRESETS["gpt", size]).init(NumPy(float="bf16"))
    return plan(model, mesh, layout, batch=ROWS * mesh["data"], optimizer=optim.AdamWConfig())


def plans() -> str:
    """The table of models and meshes."""
    heads = (
        "model", "devices", "layout", "parameters, states", "gradients", "gathered", "activations (kept)", "total",
        "sent: parameters, gradients", "sent: activations", "FLOPs", "seconds: compute, send",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for size, meshes in MESHES.items():
        for mesh, layout in meshes:
            found = planned(size, mesh, layout)
            by_data = sum(one.sent for one in found.exchanges if one.axes == ("data",))
            compute, exchange = found.seconds(DEVICE, DEVICE.flops_half, DEVICE.link, DEVICE.network)
            shape = f"{layout} ({', '.join(f'{name}={count}' for name, count in mesh.items())})"
            activations = f"{size_of(found.activations_checkpointed)} ({size_of(found.activations)})"
            total = size_of(found.memory) + (" (too much)" if found.memory > DEVICE.memory else "")
            cells = [
                size, str(found.devices), shape, size_of(found.parameters + found.optimizer),
                size_of(found.gradients), size_of(found.gathered), activations, total, size_of(by_data),
                size_of(found.sent - by_data), amount(found.flops), f"{compute:.2g}, {exchange:.2g}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def eighths() -> str:
    """The memory of a device that has an eighth of a Llama: bf16, AdamW, one row of 8,192 tokens."""
    heads = (
        "Llama", "elements", "parameters", "gradients", "AdamW", "gathered", "activations, recomputed", "all kept",
        "total, recomputed", "all kept",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for size in ("8B", "70B"):
        model = LlamaConfig(**PRESETS["llama", size]).init(NumPy(float="bf16"))
        found = plan(model, {"data": 8}, "fsdp", batch=8, optimizer=optim.AdamWConfig())
        more = found.activations - found.activations_checkpointed
        figures = (
            found.parameters, found.gradients, found.optimizer, found.gathered, found.activations_checkpointed,
            found.activations, found.memory, found.memory + more,
        )  # fmt: skip
        lines.append(f"| {size} | {found.count:,} | {' | '.join(size_of(one) for one in figures)} |")
    return "\n".join(lines)


def accelerators() -> str:
    """The table of accelerators."""
    lines = [
        "| `--device` | memory | FLOP/s in bf16, f32 | bytes/s to devices of the host, of others | devices | source |",
        "|---|---|---|---|---|---|",
    ]
    for one in ACCELERATORS.values():
        flops = f"{amount(round(one.flops_half))}, {amount(round(one.flops_single))}"
        network = "not published" if one.network is None else size_of(round(one.network))
        links = f"{size_of(round(one.link))}, {network}"
        lines.append(
            f"| `{one.name}` | {size_of(int(one.memory))} | {flops} | {links} | {one.per_host} | {one.source} |"
        )
    return "\n".join(lines)


TABLES = {"plans": plans, "eighths": eighths, "accelerators": accelerators}


def page() -> Path:
    """The page that has the marks."""
    return next(
        path for path in sorted(DOCS.glob("*.md")) if "tools/planning.py plans: begin" in path.read_text("utf-8")
    )


def written(text: str) -> str:
    """The text of the page with the tables as they are now."""
    for name, make in TABLES.items():
        begin, end = (f"<!-- tools/planning.py {name}: {mark} -->" for mark in ("begin", "end"))
        inside = f"{begin}\n{make()}\n{end}"
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=inside: new, text, flags=re.DOTALL)
    return text


def main() -> int:
    """Write the tables, or with --check look whether they are as they would be written."""
    path = page()
    before = path.read_text("utf-8")
    after = written(before)
    if "--check" not in sys.argv:
        path.write_text(after, "utf-8")
    elif before != after:
        print(f"{path.name} is out of date: python tools/planning.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
