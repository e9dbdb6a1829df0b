"""Rules by which a parameter is computed from others, for `phlox.reparameterize`."""

from __future__ import annotations

from phlox.nn.reparameterizations.adapters import Adapted, adapter_names, use_adapters, without_adapters
from phlox.nn.reparameterizations.dora import DoraFactors, dora
from phlox.nn.reparameterizations.ia3 import Ia3, ia3
from phlox.nn.reparameterizations.lora import Lora, LoraFactors, lora
from phlox.nn.reparameterizations.low_rank import LowRank
from phlox.nn.reparameterizations.mask import Mask
from phlox.nn.reparameterizations.orthogonal import Orthogonal
from phlox.nn.reparameterizations.spectral_norm import SpectralNorm
from phlox.nn.reparameterizations.weight_norm import WeightNorm

__all__ = [
    "Adapted", "DoraFactors", "Ia3", "Lora", "LoraFactors", "LowRank", "Mask", "Orthogonal", "SpectralNorm",
    "WeightNorm", "adapter_names", "dora", "ia3", "lora", "use_adapters", "without_adapters",
]  # fmt: skip
