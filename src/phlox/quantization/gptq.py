"""GPTQ: codes that correct the errors of the codes before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phlox.module.packed import Packed
from phlox.quantization.calibration import Calibration, Inputs
from phlox.quantization.schemes import Scheme, as_matrix, symmetric_scales, zero_points
from phlox.tensor import Tensor, concat, functional, linalg, stack, tensor, where

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
        rows, columns = matrix.shape
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
            errors: list[Tensor] = []
            if start % group == 0:
                grouped = matrix[:, start : start + group].expand_dims(1)
                scale, zero = (
                    (symmetric_scales(grouped, scheme)[0], None) if symmetric else zero_points(grouped, scheme)
                )
                scales.append(scale)
                zeros += [] if zero is None else [zero]
            scale = scales[-1][:, 0]
            safe, zero = where(scale == 0.0, 1.0, scale), zeros[-1][:, 0] if zeros else None
            for index in range(end - start):
                weight = block[:, index]
                level = weight / safe if zero is None else weight / safe + zero
                code = functional.encode(level, coding)
                rounded = functional.unpack(functional.pack(code.expand_dims(-1), coding), coding)[:, 0]
                error = (weight - (rounded if zero is None else rounded - zero) * scale) / triangle[index, index]
                codes.append(code)
                errors.append(error)
                block = block - error.expand_dims(-1) * triangle[index].expand_dims(0)
            if end < columns:
                rest = matrix[:, end:] - stack(errors, 1) @ factor[start:end, end:]
                matrix = concat([matrix[:, :end], rest], 1)
        all_scales = concat(scales, 1)
        offsets = -concat(zeros, 1) * all_scales if zeros else None
        words = functional.pack(stack(codes, 1), coding)
        return Packed(words, coding, columns, scales=all_scales, offsets=offsets).as_weight(value.shape, axis)

    def _factor(self, products: Tensor) -> Tensor:
        """The upper Cholesky factor of the inverse of the inputs' second moments."""
        columns = products.shape[0]
        diagonal = products.diagonal()
        damped = products + linalg.diag(diagonal * 0.0 + self.damping * diagonal.mean() + 1e-8)
        inverse = linalg.inv(damped)
        del columns
        return linalg.cholesky((inverse + inverse.T) * 0.5).T
