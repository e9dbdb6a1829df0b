"""What the layers of a model see on data, for choosing codes by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.reparameterization import Reparameterization, Site, Sites
from phlox.quantization.schemes import Scheme
from phlox.tensor import Tensor


class Inputs:
    """Sums over the inputs x [rows, columns] of one weight."""

    def __init__(self) -> None:
        self.products: Tensor | None = None
        """The mean of x' x."""
        self.magnitudes: Tensor | None = None
        """The mean of |x|."""
        self.rows = 0

    def add(self, x: Tensor) -> None:
        """More inputs [..., columns]."""
        x = x.detach().to_full_precision()
        x = x.reshape((-1, x.shape[-1]))
        rows = self.rows + x.shape[0]
        new, old = 1.0 / max(rows, 1), self.rows / max(rows, 1)
        products, magnitudes = x.T @ x * new, x.abs().sum(axis=0) * new
        self.products = products if self.products is None else self.products * old + products
        self.magnitudes = magnitudes if self.magnitudes is None else self.magnitudes * old + magnitudes
        self.rows = rows


class Calibration(ABC):
    """Chooses codes by what layers see on `batches`: the arguments of the model, or tuples of them."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    @abstractmethod
    def pack(
        self, value: Tensor, axis: int, inputs: Inputs, scheme: Scheme, group: int | None, symmetric: bool
    ) -> Reparameterization:
        """The weight in few bits."""

    def packed(
        self,
        model: Module,
        sites: Mapping[str, Site],
        weights: Mapping[str, Param],
        scheme: Scheme,
        group: int | None,
        symmetric: bool,
    ) -> dict[str, Reparameterization]:
        """The weights in few bits, by path; those whose layers do not multiply by them as by a matrix are left out."""
        if scheme.scale_coding is not None:
            raise ModuleError(
                f"quantize: scales of {scheme.scale_coding} are not calibrated; use int8, int4, nf4 or f8_e4m3"
            )
        seen = self._inputs(model, sites)
        results: dict[str, Reparameterization] = {}
        for path, inputs in seen.items():
            packed = self.pack(weights[path].val().detach(), sites[path].output_axis, inputs, scheme, group, symmetric)
            packed.origin().set_id(weights[path].id)
            results[path] = packed
        return results

    def _inputs(self, model: Module, sites: Mapping[str, Site]) -> dict[str, Inputs]:
        inputs = {path: Inputs() for path in sites}
        numbers = {path: number for number, path in enumerate(inputs)}
        _observed.update({numbers[path]: sums for path, sums in inputs.items()})
        try:
            own = Sites(model)
            view = own.replace({path: _Observed(own.found[path].param, numbers[path]) for path in sites}).valid()
            for batch in self.batches:
                view(*batch) if isinstance(batch, tuple) else view(batch)
        finally:
            _observed.clear()
        if not any(sums.rows for sums in inputs.values()):
            raise ModuleError("quantize: no selected weight was used on the batches for calibration; give some batches")
        return {path: sums for path, sums in inputs.items() if sums.rows}


_observed: dict[int, Inputs] = {}


class _Observed(Reparameterization):
    """A parameter whose inputs are noted."""

    def __init__(self, base: Any, number: int) -> None:
        self.base, self.number = base, number

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        return self.base.val()

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        _observed[self.number].add(x)
        return super().linear(x, bias)

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear_transposed`."""
        _observed[self.number].add(x)
        return super().linear_transposed(x, bias)
