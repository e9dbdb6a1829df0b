"""`phlox plan`: the costs of a training step for each device of a mesh, by formulas."""

from __future__ import annotations

import argparse
import contextlib
import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from phlox import optim
from phlox.backend import NumPy
from phlox.cli.command import DONE, Command, whole
from phlox.distributed.planning.accelerators import ACCELERATORS, Accelerator
from phlox.distributed.planning.plan import LAYOUTS, Plan, plan
from phlox.distributed.planning.step_costs import PaperMesh
from phlox.errors import ConfigError, ShardingError
from phlox.host.page import Page, Table
from phlox.host.text import amount, size
from phlox.models import BertConfig, BertMaskedLmConfig, GptConfig, LlamaConfig

CONFIGS: dict[str, type[Any]] = {"gpt": GptConfig, "llama": LlamaConfig, "bert": BertConfig}
SIZES = ("vocabulary", "context", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_hidden")
PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("gpt", "1B"): {"vocabulary": 51200, "context": 2048, "n_layers": 16, "d_model": 2048, "n_heads": 16},
    ("gpt", "7B"): {"vocabulary": 51200, "context": 2048, "n_layers": 32, "d_model": 4096, "n_heads": 32},
    ("gpt", "70B"): {"vocabulary": 51200, "context": 2048, "n_layers": 86, "d_model": 8192, "n_heads": 64},
    ("llama", "1B"): {
        "vocabulary": 128256, "context": 8192, "n_layers": 16, "d_model": 2048, "n_heads": 32, "n_kv_heads": 8,
        "d_hidden": 8192, "tied": True,
    },
    ("llama", "7B"): {
        "vocabulary": 32000, "context": 4096, "n_layers": 32, "d_model": 4096, "n_heads": 32, "d_hidden": 11008,
    },
    ("llama", "8B"): {
        "vocabulary": 128256, "context": 8192, "n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8,
        "d_hidden": 14336,
    },
    ("llama", "70B"): {
        "vocabulary": 128256, "context": 8192, "n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8,
        "d_hidden": 28672,
    },
}  # fmt: skip
"""Sizes by the approximate number of parameters; those of `llama` are Llama 3.2 1B, Llama 2 7B, Llama 3 8B and 70B."""
OPTIMIZERS = {
    name.removesuffix("Config").lower(): name
    for name in ("AdamWConfig", "AdamConfig", "SgdConfig", "LionConfig", "AdafactorConfig", "MuonConfig", "LambConfig")
}


def mesh(text: str) -> dict[str, int]:
    """`data=8,model=4` as the type of an argument."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in axes:
            raise argparse.ArgumentTypeError(f"{text!r} is not a mesh, such as data=8,model=4")
        axes[name] = int(size)
    return axes


def rate(text: str) -> float:
    """A positive number, such as 989e12, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number, such as 450e9")
    return number


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--mesh", type=mesh, required=True, metavar="AXES", help="the devices, as data=8,model=4")
    model = parser.add_argument_group("the model")
    model.add_argument("--model", choices=sorted(CONFIGS), default="gpt", help="the architecture (default: gpt)")
    model.add_argument(
        "--preset",
        choices=list(dict.fromkeys(size for _, size in PRESETS)),
        help="the sizes of a model with this number of parameters",
    )
    model.add_argument("--config", metavar="FILE", help="a JSON file with the config of the model")
    for name in SIZES:
        model.add_argument(f"--{name.replace('_', '-')}", type=whole, metavar="N", help="in place of the config's")
    training = parser.add_argument_group("the training")
    training.add_argument(
        "--batch", type=whole, metavar="ROWS", help="rows in a batch, over all devices (default: 1 for each device)"
    )
    training.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="the layout (default: fsdp, with tensor-parallel if the mesh has an axis `model`)",
    )
    training.add_argument(
        "--precision", choices=["f32", "bf16", "f16"], default="bf16", help="the precision (default: bf16)"
    )
    training.add_argument(
        "--optimizer", choices=sorted(OPTIMIZERS), default="adamw", help="the optimizer (default: adamw)"
    )
    training.add_argument(
        "--no-checkpoint", action="store_true", help="keep all activations instead of recomputing blocks"
    )
    device = parser.add_argument_group("the device")
    device.add_argument(
        "--device", choices=sorted(ACCELERATORS), default="h100", help="the accelerator (default: h100)"
    )
    device.add_argument("--flops", type=rate, metavar="RATE", help="operations per second, in place of the vendor's")
    device.add_argument("--link", type=rate, metavar="RATE", help="bytes per second to devices of the same host")
    device.add_argument("--network", type=rate, metavar="RATE", help="bytes per second to devices of other hosts")
    parser.add_argument("--json", action="store_true", help="print JSON")


def config_of(options: argparse.Namespace) -> Any:
    """The config that the options describe."""
    cls = CONFIGS[options.model]
    sizes: dict[str, Any] = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    if options.config is not None and options.preset is not None:
        raise ConfigError("give --config or --preset, not both")
    if options.preset is not None and (options.model, options.preset) not in PRESETS:
        presets = ", ".join(size for model, size in PRESETS if model == options.model)
        others = f"--preset {presets}, " if presets else ""
        raise ConfigError(
            f"there is no preset {options.preset} of {options.model}; give {others}its sizes (--n-layers, ...), or "
            "--config"
        )
    if unknown := sorted(set(sizes) - set(cls().to_dict())):
        raise ConfigError(f"{cls.__name__} has no {unknown[0]}")
    base = cls.load(options.config) if options.config is not None else cls()
    preset = {} if options.preset is None else PRESETS[options.model, options.preset]
    return base.replace(**preset | sizes)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    config = config_of(options)
    axes: dict[str, int] = options.mesh
    layout = options.layout or ("tensor-parallel+fsdp" if axes.get("model", 1) > 1 else "fsdp")
    rows = axes.get("data", next(iter(axes.values())))
    batch = rows if options.batch is None else options.batch
    if layout.startswith("tensor-parallel") and "data" not in axes:
        axes = {"data": 1, **axes}  # otherwise the rows would be cut over the only axis
        batch = 1 if options.batch is None else batch
    if layout.startswith("tensor-parallel") and "model" not in axes:
        raise ShardingError(f"the layout {layout} cuts over an axis `model`, which the mesh does not have; add model=2")
    config = BertMaskedLmConfig(config) if isinstance(config, BertConfig) else config
    model = config.init(NumPy(float=options.precision))
    settings: dict[str, Any] = {
        "optimizer": getattr(optim, OPTIMIZERS[options.optimizer])(), "checkpoint": not options.no_checkpoint,
    }  # fmt: skip
    costs = plan(model, axes, layout, batch=batch, **settings)
    device = ACCELERATORS[options.device]
    peak = options.flops or (device.flops_single if options.precision == "f32" else device.flops_half)
    links = options.link or device.link, options.network or device.network
    if options.json:
        compute, exchange = costs.seconds(device, peak, *links)
        more = {"layout": layout, "memory": costs.memory, "sent": costs.sent}
        print(json.dumps({**asdict(costs), **more, "compute_seconds": compute, "exchange_seconds": exchange}, indent=2))
        return DONE
    setting = f"{layout}, {options.precision}, {options.optimizer}"
    print(page(costs, options.model, setting, device, peak, *links).text())
    if costs.memory > device.memory:
        each = batch // (axes[PaperMesh(axes).batch_axis])
        print(f"\n{_remedy(device, lambda mesh, name: plan(model, mesh, name, batch=each * mesh['data'], **settings))}")
    return DONE


def _remedy(device: Accelerator, planned: Callable[[dict[str, int], str], Plan]) -> str:
    """The smallest mesh of hosts on which a step fits, with the same number of rows for each part of a batch."""
    fitting: list[tuple[Plan, str]] = []
    for name in ("fsdp", "tensor-parallel+fsdp"):

        def planned_on(hosts: int, name: str = name) -> Plan:
            return planned({"data": 8 * hosts} if name == "fsdp" else {"data": hosts, "model": 8}, name)

        with contextlib.suppress(ShardingError):  # such as heads that the mesh does not divide
            sizes = [1 << power for power in range(10)]  # hosts: more of them need less memory each
            least = bisect_left(sizes, True, key=lambda hosts: planned_on(hosts).memory <= device.memory)
            fitting += [(planned_on(hosts), name) for hosts in sizes[least : least + 1]]
    if not fitting:
        return "it fits on no 4,096 of these devices; give fewer rows (--batch), a shorter --context, another --device"
    best, name = min(fitting, key=lambda fit: fit[0].devices)
    shape = ",".join(f"{axis}={length}" for axis, length in best.mesh.items())
    return (
        f"it fits on {best.devices:,} devices, {size(best.memory)} each:\n"
        f"  --mesh {shape} --layout {name} --batch {best.batch}"
    )


def page(
    costs: Plan, model: str, setting: str, device: Accelerator, peak: float, link: float, network: float | None
) -> Page:
    """The printed report of a plan."""
    shape = ", ".join(f"{name}={length}" for name, length in costs.mesh.items())
    kept = "each block recomputed" if costs.checkpoint else "all activations kept"
    other = costs.activations if costs.checkpoint else costs.activations_checkpointed
    element = 4 if ", f32," in setting else 2
    fits = "fits" if costs.memory <= device.memory else "does not fit"
    memory = [
        ("parameters", costs.parameters, f"{amount(costs.parameters // element)} of them, {element} bytes each"),
        ("gradients", costs.gradients, "as the parameters"),
        ("optimizer", costs.optimizer, f"its states, {costs.optimizer / costs.parameters * element:.3g} bytes each"),
        ("gathered", costs.gathered, "whole parameters, from when they are used to the end of the backward pass"),
        ("activations", costs.activations_checkpointed if costs.checkpoint else costs.activations,
         f"{kept}; {size(other)} if {'not' if costs.checkpoint else 'they were'}"),
        ("data", costs.data, "tokens and targets"),
        ("total", costs.memory, f"{fits} {size(int(device.memory))} of {device.name}"),
    ]  # fmt: skip
    sent = [(e.kind, e.what, f"over {', '.join(e.axes)}", size(e.sent)) for e in costs.exchanges]
    compute, exchange = costs.seconds(device, peak, link, network)
    together, apart = max(compute, exchange), compute + exchange
    beyond = "" if network is None else f", {size(round(network))}/s beyond"
    rates = f"{amount(round(peak))}FLOP/s, {size(round(link))}/s within {device.per_host:,} devices{beyond}"
    both = f"{together:.3g} s, or {apart:.3g} s if it sends or computes at a time"
    times = [
        f"least time of a step on {device.name}: {both}",
        f"{compute:.3g} s to compute and {exchange:.3g} s to send, at {rates}",
    ]
    parts = [
        f"{costs.batch:,} rows of {costs.context:,} tokens a step",
        Page(
            "memory a device",
            parts=[Table([""] * 3, [(name, size(number), note) for name, number, note in memory], {0, 2})],
        ),
        Page("sent by a device, a step", parts=[Table([""] * 4, [*sent, ("total", "", "", size(costs.sent))], 3)]),
        Page("", parts=[f"FLOPs of a device, a step: {amount(costs.flops)}", *times]),
    ]  # fmt: skip
    head = f"{model}, {amount(costs.count)} parameters on {costs.devices} devices ({shape}): {setting}"
    return Page("", parts=[head, *parts])


COMMAND = Command(
    description="Compute what a training step costs each device of a mesh, by formulas: memory, bytes sent, "
    "operations, and the least time at the rates of an accelerator. It needs no device and makes no parameters.",
    arguments=arguments,
    run=run,
)
