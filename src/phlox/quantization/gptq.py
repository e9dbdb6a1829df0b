"""GPTQ: codes that correct the errors of the codes before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phlox.module.packed import Packed
from phlox.quantization.calibration import Calibration, Inputs
from phlox.quantization.schemes import Scales, Scheme, as_matrix, assembled, safe, scales_of
from phlox.tensor import Tensor, concat, functional, linalg, stack

_BLOCK = 128


class Gptq(Calibration):
    """Round the inputs' weights one after another, and let the later ones make up for the errors (Frantar et al. 2023).

    Args:
        batches: arguments of the model, or tuples of them; some ten thousand tokens serve.
        damping: the share of the mean square of the inputs that is added to each, for inputs that depend on others.

    >>> import phlox as px
    >>> from phlox.quantization import Gptq
    >>> px.random.seed(0)
    >>> model, x = px.nn.Linear(64, 32).init(0), px.random.normal((200, 64)) @ px.random.normal((64, 64))
    >>> errors = [(px.quantize(model, "weight", "int4", calibration=c)(x) - model(x)).square().mean().item()
    ...     for c in (None, Gptq([x]))]
    >>> errors[1] < 0.8 * errors[0]
    True
    """

    def __init__(self, batches: Iterable[Any], *, damping: float = 0.01) -> None:
        super().__init__(batches)
        self.damping = damping

    def pack(
        self, value: Tensor, axis: int, inputs: Inputs, scheme: Scheme, group: int | None, symmetric: bool
    ) -> Packed:
        """See `Calibration.pack`."""
        assert inputs.products is not None
        matrix = as_matrix(value, axis).to_full_precision()
        columns = matrix.shape[1]
        group = columns if group is None else group
        factor = self._factor(inputs.products)
        coding = scheme.coding if symmetric else scheme.offset_coding or ""
        codes: list[Tensor[Any, Any, Any]] = []
        scales: list[Tensor] = []
        zeros: list[Tensor] = []
        size = group if group <= _BLOCK else _BLOCK
        for start in range(0, columns, size):
            end = min(start + size, columns)
            block, triangle = matrix[:, start:end], factor[start:end, start:end]
            if start % group == 0:
                grouped = matrix[:, start : start + group].expand_dims(1)
                of_group, zero = scales_of(grouped, scheme, value.backend, symmetric)
                scales.append(of_group.numbers)
                zeros += [] if zero is None else [zero]
            scale, zero = scales[-1][:, 0], zeros[-1][:, 0] if zeros else 0.0
            errors: list[Tensor] = []
            for index in range(end - start):
                weight = block[:, index]
                code = functional.encode(weight / safe(scale) + zero, coding)
                rounded = functional.unpack(functional.pack(code.expand_dims(-1), coding), coding)[:, 0]
                error = (weight - (rounded - zero) * scale) / triangle[index, index]
                codes.append(code)
                errors.append(error)
                block = block - error.expand_dims(-1) * triangle[index].expand_dims(0)
            if end < columns:
                rest = matrix[:, end:] - stack(errors, 1) @ factor[start:end, end:]
                matrix = concat([matrix[:, :end], rest], 1)
        whole = Scales(concat(scales, 1))
        packed = assembled(stack(codes, 1), coding, whole, concat(zeros, 1) if zeros else None, value.backend)
        return packed.as_weight(value.shape, axis)

    def _factor(self, products: Tensor) -> Tensor:
        """The upper Cholesky factor of the inverse of the inputs' second moments."""
        diagonal = products.diagonal()
        damped = products + linalg.diag(diagonal * 0.0 + self.damping * diagonal.mean() + 1e-8)
        inverse = linalg.inv(damped)
        return linalg.cholesky((inverse + inverse.T) * 0.5).T
