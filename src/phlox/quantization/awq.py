"""AWQ: finer steps for the weights of large inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from phlox.module import Param
from phlox.module.packed import Packed
from phlox.module.reparameterization import Reparameterization
from phlox.quantization.calibration import Calibration, Inputs
from phlox.quantization.schemes import Scheme, as_matrix, packed_matrix
from phlox.tensor import Tensor


class InputScaled(Reparameterization):
    """weight = base, with each input's weights multiplied by a factor; products scale their inputs instead."""

    def __init__(self, base: Packed, scale: Tensor) -> None:
        self.base = base
        self.scale = Param(scale, trained=False)
        self.axis = base.axis

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        scale = self.scale.val()
        return self.base.val() * (scale.expand_dims(-1) if self.axis else scale)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        if not self.axis or isinstance(self.base, Param):
            return super().linear(x, bias)
        return self.base.linear(x * self.scale.val(), bias)

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear_transposed`."""
        if self.axis or isinstance(self.base, Param):
            return super().linear_transposed(x, bias)
        return self.base.linear_transposed(x * self.scale.val(), bias)


class Awq(Calibration):
    """Multiply the weights of large inputs before rounding, and divide the inputs (Lin et al. 2024).

    Args:
        batches: arguments of the model, or tuples of them; some thousand tokens serve.
        steps: how many exponents from 0 to 1 of the inputs' mean magnitudes are tried.

    >>> import phlox as px
    >>> from phlox.quantization import Awq
    >>> px.random.seed(0)
    >>> model, x = px.nn.Linear(64, 32).init(0), px.random.normal((200, 64)) * (2.0 * px.random.normal((64,))).exp()
    >>> errors = [(px.quantize(model, "weight", "int4", calibration=c)(x) - model(x)).square().mean().item()
    ...     for c in (None, Awq([x]))]
    >>> errors[1] < 0.8 * errors[0]
    True
    """

    def __init__(self, batches: Iterable[Any], *, steps: int = 20) -> None:
        super().__init__(batches)
        self.steps = steps

    def pack(
        self, value: Tensor, axis: int, inputs: Inputs, scheme: Scheme, group: int | None, symmetric: bool
    ) -> Reparameterization:
        """See `Calibration.pack`."""
        assert inputs.products is not None and inputs.magnitudes is not None
        # The search knows the error of weights alone, and would clip those of large inputs.
        scheme = replace(scheme, searches=False)
        matrix = as_matrix(value, axis).to_full_precision()
        magnitudes = inputs.magnitudes + 1e-6 * inputs.magnitudes.max() + 1e-12
        best: tuple[float, Packed, Tensor] | None = None
        for step in range(self.steps):
            scale = magnitudes ** (step / self.steps)
            scale = (scale / (scale.max() * scale.min()).sqrt()).from_full_precision(value)
            whole = scale.to_full_precision()
            packed = packed_matrix((matrix * whole).from_full_precision(value), scheme, group, symmetric)
            difference = packed.matrix().to_full_precision() / whole - matrix
            error = ((difference @ inputs.products) * difference).sum().item()
            if best is None or error < best[0]:
                best = error, packed, scale
        assert best is not None
        return InputScaled(best[1].as_weight(value.shape, axis), 1.0 / best[2])
