"""XLA's report on a compiled program, and the layout of a call's arrays on the devices."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, cast

from jax.sharding import NamedSharding

from phlox.backend.analysis import Analysis
from phlox.backend.jax.hlo import Program
from phlox.backend.jax.sharding import axes_of, device_name


def analysis_of(compiled: Any) -> Analysis:
    """The analysis of one of JAX's compiled functions, for one device."""
    program = Program(compiled.as_text() or "")
    costs, memory = _costs(compiled), compiled.memory_analysis()
    later = program.in_later_iterations

    def size(name: str) -> int | None:
        bytes_ = getattr(memory, f"{name}_size_in_bytes", None)
        return None if bytes_ is None else int(bytes_)

    def cost(name: str, extra: int) -> int | None:
        value = costs.get(name)
        return None if value is None or value < 0 else round(value) + extra

    return Analysis(
        source="XLA",
        devices=program.devices,
        flops=cost("flops", later.flops),
        bytes_accessed=cost("bytes accessed", later.bytes),
        arguments=size("argument"),
        outputs=size("output"),
        temporaries=size("temp"),
        aliased=size("alias"),
        collectives=program.collectives if program.entry else None,
        loops_of_unknown_length=program.unknown_loops,
    )


def _costs(compiled: Any) -> Mapping[str, float]:
    costs: Any = compiled.cost_analysis()
    if isinstance(costs, list):  # older JAX: one dict for each device
        costs = cast("list[Any]", costs)[0] if costs else None
    return costs or {}


def layout_of(x: Any) -> tuple[Hashable, str]:
    """The layout of an array on devices, as a key and as a text: `cut (None, 'model') on data=2, model=4`."""
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        named = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
        axes = axes_of(sharding.spec)
        cut = f"cut {(*axes, *[None] * (x.ndim - len(axes)))}" if axes else "whole"
        return (mesh, axes), f"{cut} on {named}"
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    if len(devices) == 1:
        return devices[0], f"whole on {device_name(devices[0])} alone"
    return sharding, f"cut {sharding} on {len(devices)} devices"
