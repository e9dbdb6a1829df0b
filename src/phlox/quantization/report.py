"""What packing does to a model: bytes, the error of each weight, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from phlox.errors import ModuleError
from phlox.host.page import Cell, Page, Table
from phlox.host.text import Report, size
from phlox.module import Module, Param
from phlox.module.packed import Packed
from phlox.module.reparameterization import Sites
from phlox.nn.reparameterizations.adapters import without_adapters_of

M = TypeVar("M", bound=Module)


class PackedWeight(NamedTuple):
    """One weight before and after."""

    path: str
    coding: str
    """What its codes mean, see `phlox.functional.unpack`."""
    group: int
    """How many weights share a scale."""
    bytes_before: int
    bytes_after: int
    error: float
    """The root of the mean square of the difference, over that of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationReport(Report):
    """The result of `compare_quantized`. `print` it."""

    weights: tuple[PackedWeight, ...]
    """The packed weights, in the order of the model."""
    bytes_before: int
    """The bytes of all parameters."""
    bytes_after: int
    loss_before: float | None = None
    """The mean loss on the batches that were given, if any."""
    loss_after: float | None = None

    def _page(self) -> Page:
        rows = [
            [
                Cell(weight.path, code=True),
                weight.coding,
                str(weight.group),
                size(weight.bytes_before),
                size(weight.bytes_after),
                f"{weight.error:.2%}",
            ]
            for weight in self.weights
        ]
        share = self.bytes_after / max(self.bytes_before, 1)
        loss = "" if self.loss_before is None else f"loss {self.loss_before:.4g} before, {self.loss_after:.4g} after"
        heads = ["weight", "coding", "group", "before", "after", "error"]
        return Page(
            f"{len(self.weights)} weights packed",
            [f"{size(self.bytes_before)} -> {size(self.bytes_after)}", f"{share:.0%}"],
            [loss, Table(heads, rows, 2)],
        )


def compare_quantized(
    before: M, after: M, loss: Callable[[M, Any], Any] | None = None, batches: Iterable[Any] = ()
) -> QuantizationReport:
    """What packing did to a model: bytes, the relative error of each weight, and the mean loss before and after.

    Args:
        before: the model.
        after: the result of `phlox.quantize`.
        loss: a function `(model, batch)` to the loss, called for both on each of `batches`, in inference mode.

    Raises `ModuleError` if nothing is packed, and for a weight that the first model does not have.

    >>> import phlox as px
    >>> model = px.nn.Linear(64, 32).init(0)
    >>> report = px.quantization.compare_quantized(model, px.quantize(model, "weight", "int8"))
    >>> report.bytes_after < 0.3 * report.bytes_before, report.weights[0].error < 0.01
    (True, True)
    """
    old = Sites(before).found
    weights: list[PackedWeight] = []
    for path, site in Sites(after, computed=True).found.items():
        view = without_adapters_of(site.param)
        packed: Any = view
        while not isinstance(packed, (Packed, Param)):
            packed = packed.base
        if isinstance(packed, Param):
            continue
        if path not in old or old[path].param.shape != packed.shape:
            raise ModuleError(f"compare_quantized: the first model has no `{path}` of shape {packed.shape}")
        value = without_adapters_of(old[path].param).val().detach()
        whole = value.to_full_precision()  # sums of squares may be beyond half precision
        error = (view.val().to_full_precision() - whole).square().sum().sqrt() / whole.square().sum().sqrt()
        sizes = value.nbytes, packed.nbytes
        weights.append(PackedWeight(path, packed.coding, packed.group, *sizes, error.item()))
    if not weights:
        raise ModuleError("compare_quantized: the second model has no packed weights; see phlox.quantize")
    losses: list[list[float]] = [[], []]
    if loss is not None:
        for batch in batches:
            for model, values in ((before, losses[0]), (after, losses[1])):
                values.append(float(loss(model.valid(), batch).item()))
    means = [sum(values) / len(values) if values else None for values in losses]
    return QuantizationReport(
        weights=tuple(weights),
        bytes_before=_bytes(before),
        bytes_after=_bytes(after),
        loss_before=means[0],
        loss_after=means[1],
    )


def _bytes(model: Module) -> int:
    return sum(param.val().nbytes for param in model.params())
