"""The transformer in Phlox: `phlox.models.Gpt`."""

from __future__ import annotations

from typing import Any

import phlox as px
from benchmarks.models import gpt
from phlox.models.gpt import Gpt, GptConfig
from phlox.record import Record


def model(sizes: gpt.Sizes, weights: dict[str, Any], device: px.Device) -> Gpt:
    """The model with these weights."""
    found = {"tokens.weight": weights["tokens"], "positions": weights["places"], "head.weight": weights["head"]}
    norms = {"norm": "norm"}
    for layer in range(sizes.layers):
        block = f"blocks.{layer}"
        norms |= {f"{block}.{name}": f"{layer}.{name}" for name in ("norm_1", "norm_2")}
        linears: dict[str, Any] = dict(zip(("query", "key", "value"), gpt.projections(weights, layer), strict=True))
        linears["out"] = (weights[f"{layer}.out"], weights[f"{layer}.out_bias"])
        places = {f"{block}.attention.{name}": pair for name, pair in linears.items()}
        places |= {
            f"{block}.{name}": (weights[f"{layer}.{name}"], weights[f"{layer}.{name}_bias"]) for name in ("up", "down")
        }
        for place, (matrix, bias) in places.items():
            found |= {f"{place}.weight": matrix, f"{place}.bias": bias}
    for place, name in norms.items():
        found |= {f"{place}.gamma": weights[name], f"{place}.beta": weights[f"{name}_bias"]}
    config = GptConfig(
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        n_layers=sizes.layers,
        d_model=sizes.width,
        n_heads=sizes.heads,
        dropout=sizes.dropout,
        epsilon=gpt.EPSILON,
    )
    net = config.init(device)
    net.load_record(Record(found))
    return net
