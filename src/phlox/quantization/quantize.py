"""`quantize`: a model with weights of few bits."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from phlox.backend import Float
from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.packed import Packed
from phlox.module.reparameterization import Reparameterization, Site, Sites
from phlox.module.select import Selector
from phlox.nn.reparameterizations.adapters import Adapted, without_adapters_of
from phlox.quantization.calibration import Calibration
from phlox.quantization.schemes import Scheme, SchemeName, pack_weight, scheme_of
from phlox.quantization.training import FakeQuantized

M = TypeVar("M", bound=Module)


def quantize(
    model: M,
    which: Selector,
    scheme: SchemeName = "int8",
    *,
    group: int | None = None,
    symmetric: bool = True,
    calibration: Calibration | None = None,
) -> M:
    """A view of the model with the selected weights in few bits; the model itself is unchanged.

    Weights are packed where they are, so the result is on the same device. They are not trained: adapters are
    (`phlox.lora` on the result), or train with `fake_quantize` first. A weight with adapters is packed under them.
    Records hold packed weights as they are. `phlox.merge` gives plain weights again.

    Args:
        model: any module, not on a tape.
        which: the weights, as in `Module.freeze`: "blocks.**.weight".
        scheme: "int8", "int4", "nf4" (4 bits at the quantiles of the normal distribution), "mxfp4", "nvfp4" (4-bit
            floats with scales of 8 bits), "f8_e4m3" (8-bit floats).
        group: how many weights, along the inputs, share a scale. By default 64 for int4 and nf4, 32 for mxfp4, 16 for
            nvfp4, and all inputs of an output for int8 and f8_e4m3.
        symmetric: with False, int8 and int4 have zero points, for weights that are not around zero.
        calibration: chooses codes by what the layers see on data: `Gptq(batches)` or `Awq(batches)` of
            `phlox.quantization`. By default, and always for convolutions and lookups in embeddings, each weight is
            rounded to the nearest level.

    Raises `ModuleError`, with the path, for a pattern that matches nothing, a parameter that is no matrix or is on a
    tape, groups that do not divide its inputs, and weights that are not finite.

    >>> import phlox as px
    >>> model = px.nn.Linear(64, 32).init(0)
    >>> small = px.quantize(model, "weight", "int4", group=32)
    >>> [path for path, _ in small.named_params()], small.weight.nbytes / model.weight.val().nbytes
    (['weight.codes.int4_g32', 'weight.scales', 'bias'], 0.15625)
    """
    chosen, group = scheme_of(scheme, group, symmetric)
    sites = Sites(model)
    selected = sites.select(which)
    weights = {path: _weight(site) for path, site in selected.items()}
    for path, param in weights.items():
        _check(path, selected[path], param, chosen, group, sites)
    calibrated = {} if calibration is None else calibration.packed(model, selected, weights, chosen, group, symmetric)
    new: dict[str, Any] = {}
    for path, site in selected.items():
        packed = calibrated.get(path)
        if packed is None:
            packed = pack_weight(weights[path], site.output_axis, chosen, group, symmetric, path)
        new[path] = _in_place(site.param, packed)
    return sites.replace(new)


def _weight(site: Site) -> Any:
    """The parameter whose value is packed: that of adapters is the one below them."""
    param = without_adapters_of(site.param)
    return param.base if isinstance(param, FakeQuantized) else param


def _in_place(param: Any, packed: Reparameterization) -> Reparameterization:
    if not isinstance(param, Adapted):
        return packed
    param.base = _in_place(param.base, packed)
    return param


def _check(path: str, site: Site, param: Any, scheme: Scheme, group: int | None, sites: Sites) -> None:
    shape = param.shape
    if isinstance(param, Packed):
        raise ModuleError(
            f"{path}: it is packed already; use phlox.merge(model, {path!r}) first to pack it in another way"
        )
    if not isinstance(param, Param):
        raise ModuleError(f"{path}: it is computed by {type(param).__name__}; use phlox.merge(model, {path!r}) first")
    if param.kind is not Float or len(shape) < 2:
        raise ModuleError(
            f"{path}: weights with two axes or more can be packed, and this is {param.kind.__name__} {shape}"
        )
    if param.trained and param.backend.differentiates:
        raise ModuleError(
            f"{path}: it is being trained (the model is on a tape), and packed weights are not; quantize "
            "model.valid(), or train with phlox.fake_quantize(model, ...)"
        )
    columns = math.prod(shape) // max(shape[site.output_axis], 1)
    if not columns:
        raise ModuleError(f"{path}: it is empty, of shape {shape}")
    if columns % (group or columns):
        fits = [size for size in (16, 32, 64, 128) if columns % size == 0]
        remedy = f"group={fits[-1]} does" if fits and scheme.scale_coding is None else "leave it out of the pattern"
        raise ModuleError(f"{path}: groups of {group} do not divide its {columns} inputs; {remedy}")
    for use in sites.uses(path):
        if use.output_axis != site.output_axis:
            raise ModuleError(
                f"{path}: it is tied to `{use.path}`, which uses it with its outputs along another axis, "
                "so that one packing does not fit both; leave it out of the pattern"
            )
