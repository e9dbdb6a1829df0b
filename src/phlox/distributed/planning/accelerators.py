"""The peak rates of well-known accelerators, from the documents named beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The rates of a device: operations per second, and bandwidths in bytes per second in one direction."""

    name: str
    memory: float
    """The memory in bytes."""
    flops_half: float
    """Operations of matrix products in bf16 or f16, without sparsity."""
    flops_single: float
    """Operations of matrix products in f32."""
    link: float
    """The bandwidth to the devices of the same host, or of the same torus."""
    network: float | None
    """The bandwidth to devices of other hosts; None if no document has it."""
    per_host: int
    """The number of devices that `link` connects."""
    source: str
    """The documents that have the figures."""


_NVIDIA = "NVIDIA, data sheets {0} Tensor Core GPU and DGX {0} (network)"
_GOOGLE = "Google Cloud, TPU {0}, docs.cloud.google.com/tpu/docs/{0}"

ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("a100", 80e9, 312e12, 19.5e12, 300e9, 25e9, 8, _NVIDIA.format("A100")),
        Accelerator("h100", 80e9, 989e12, 67e12, 450e9, 50e9, 8, _NVIDIA.format("H100")),
        Accelerator("h200", 141e9, 989e12, 67e12, 450e9, 50e9, 8, _NVIDIA.format("H200")),
        Accelerator(
            "b200", 180e9, 2250e12, 75e12, 900e9, 50e9, 8,
            "NVIDIA, data sheets Blackwell (HGX B200) and DGX B200 (network)",
        ),
        Accelerator(
            "mi300x", 192e9, 1307e12, 163e12, 448e9, 50e9, 8,
            "AMD, data sheet Instinct MI300X; Microsoft, Azure ND MI300X v5 (network)",
        ),
        Accelerator(
            "tpu-v4", 32e9, 275e12, 275e12 / 6, 300e9, None, 4096,
            f"{_GOOGLE.format('v4')}; Jouppi et al. 2023, TPU v4, arXiv:2304.01433 (links)",
        ),
        Accelerator("tpu-v5e", 16e9, 197e12, 197e12 / 6, 200e9, 3.125e9, 256, _GOOGLE.format("v5e")),
        Accelerator("tpu-v5p", 95e9, 459e12, 459e12 / 6, 600e9, 6.25e9, 8960, _GOOGLE.format("v5p")),
        Accelerator("tpu-v6e", 32e9, 918e12, 918e12 / 6, 400e9, 12.5e9, 256, _GOOGLE.format("v6e")),
    )
}  # fmt: skip
"""The accelerators by name: GPUs as SXM or OAM modules.

FLOP/s are for dense products; where a data sheet gives them with sparsity (H100, H200, B200), they are halved.
Bandwidths are for one direction; if a document adds both (all links), they are halved too. A TPU multiplies in
bf16: a product in f32 counts as six. Each GPU has its own network adapter: 200 Gbit/s with the A100, 400 with the
others. The network bandwidth of a TPU is its pod's, divided by the number of chips.
"""
