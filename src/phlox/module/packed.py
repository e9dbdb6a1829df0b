"""`Packed`: a parameter of few bits, which is unpacked where it is used."""

from __future__ import annotations

from typing import Any

from phlox.backend import Backend, Device, Float, Int
from phlox.backend.contract.nn.packed import CODINGS
from phlox.backend.tracing.symbolic import less
from phlox.module.param import Param
from phlox.module.reparameterization import Reparameterization
from phlox.tensor import Tensor, functional, zeros


class Packed(Reparameterization):
    """A weight of codes of 4, 8 or 16 bits, with a scale for each group of them; see `phlox.quantize`.

    As a matrix with a row for each output it is W[r, c] = level(codes[r, c]) * scales[r, g] + offsets[r, g] with
    g = c // group.
    It is not trained. Products unpack it by blocks; gradients flow to their inputs.

    Args:
        codes: 32-bit words, Int [rows, words], the first code in the lowest bits.
        coding: what a code means: a name of `phlox.functional.CODINGS`.
        columns: how many codes a row has.
        scales: Float [rows, groups], another packed matrix of this shape, or None for 1.
        offsets: the same, or None for 0.
        shape: the shape of the weight; by default [rows, columns].
        axis: its axis of the rows.
    """

    codes: dict[str, Param]
    """The words, by what they are: `int4_g64` are codes of int4 in groups of 64. Paths in a record have this name, so
    that codes are never read as others."""
    scales: Param | Packed | None
    offsets: Param | Packed | None

    def __init__(
        self,
        codes: Tensor[Any, Any, Int] | Param,
        coding: str,
        columns: int,
        *,
        scales: Tensor | Param | Packed | None = None,
        offsets: Tensor | Param | Packed | None = None,
        shape: tuple[int, ...] | None = None,
        axis: int = 0,
    ) -> None:
        words = codes if isinstance(codes, Param) else Param(codes, trained=False)
        scales, offsets = _part(scales), _part(offsets)
        groups = next((part.shape[1] for part in (scales, offsets) if part is not None), 1)
        self.codes = {coding if groups == 1 else f"{coding}_g{columns // groups}": words}
        self.scales, self.offsets = scales, offsets
        self.columns = columns
        self.sizes = (self.words.shape[0], columns) if shape is None else tuple(shape)
        self.axis = axis

    @property
    def coding(self) -> str:
        """The name of the coding."""
        return next(iter(self.codes)).partition("_")[0]

    @property
    def group(self) -> int:
        """How many columns share a scale."""
        return int(next(iter(self.codes)).partition("_g")[2] or self.columns)

    @property
    def words(self) -> Param:
        """The codes, Int [rows, words]."""
        return next(iter(self.codes.values()))

    @property
    def base(self) -> Param:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The words: what is below adapters ends with them."""
        return self.words

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Reparameterization.shape`."""
        return self.sizes

    @property
    def device(self) -> Device:
        """See `Reparameterization.device`."""
        return self.words.device

    @property
    def backend(self) -> Backend:
        """See `Reparameterization.backend`."""
        return self.words.backend

    def as_weight(self, shape: tuple[int, ...], axis: int) -> Packed:
        """This matrix as a weight of a shape, whose rows lie along `axis`; returns it."""
        self.sizes, self.axis = tuple(shape), axis
        return self

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return sum(param.val().nbytes for param in self.params())

    def origin(self) -> Param:
        """See `Reparameterization.origin`: the codes have the id of the parameter."""
        return self.words

    def matrix(self) -> Tensor:
        """The values as a matrix with a row for each output."""
        return _dequantized(self.words.val(), self.coding, self.columns, value_of(self.scales), value_of(self.offsets))

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        axis = self.axis
        if len(self.sizes) == 2:
            return self.matrix().T if axis else self.matrix()
        others = [size for n, size in enumerate(self.sizes) if n != axis]
        return self.matrix().reshape((self.sizes[axis], *others)).moveaxis(0, axis)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        return self._product(x, bias) if self.axis == 1 and len(self.sizes) == 2 else super().linear(x, bias)

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear_transposed`."""
        if self.axis == 0 and len(self.sizes) == 2:
            return self._product(x, bias)
        return super().linear_transposed(x, bias)

    def embedding(self, indices: Tensor[Any, Any, Int], *, padding_index: int | None = None) -> Tensor:
        """See `Reparameterization.embedding`."""
        if self.axis != 0 or len(self.sizes) != 2:
            return super().embedding(indices, padding_index=padding_index)
        if isinstance(self.scales, Param):  # their lookup checks the indices, and is NaN beyond the entries
            return self._rows(indices)
        return functional.embedding(zeros((self.sizes[0], 1), device=self.device), indices) + self._rows(indices)

    def expert_linear(self, x: Tensor, experts: Tensor[Any, Any, Int], bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.expert_linear`; of few rows, only the matrices of their experts are unpacked."""
        scales, offsets = value_of(self.scales), value_of(self.offsets)
        if len(self.sizes) != 3:
            return super().expert_linear(x, experts, bias)
        n, inputs, outputs = self.sizes
        numbers, words = experts.reshape((-1,)), self.words.val()
        groups = [1 if part is None else part.shape[-1] for part in (scales, offsets)]
        fits = inputs % CODINGS[self.coding].per_word == 0 and all(count == 1 or count % n == 0 for count in groups)
        if self.axis != 2 or not fits or less(n, numbers.shape[0]):
            return super().expert_linear(x, experts, bias)

        def of_rows(part: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
            """[outputs, n m], or one for all, as [outputs, rows, m]."""
            if part.shape[-1] == 1:
                return part.expand_dims(1)
            return part.reshape((part.shape[0], n, part.shape[1] // n)).take(numbers, 1)

        scales, offsets = (part if part is None else of_rows(part) for part in (scales, offsets))
        weight = _dequantized(of_rows(words), self.coding, inputs, scales, offsets).swapaxes(0, 1)
        y = (weight @ x.reshape((-1, inputs, 1))).reshape((*experts.shape, outputs))
        return y if bias is None else y + bias.take(experts)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        scales, offsets = value_of(self.scales), value_of(self.offsets)
        return functional.packed_linear(x, self.words.val(), scales, offsets, bias, coding=self.coding)

    def _rows(self, indices: Tensor[Any, Any, Int]) -> Tensor:
        scales, offsets = (None if part is None else _rows_of(part, indices) for part in (self.scales, self.offsets))
        return _dequantized(_rows_of(self.words, indices), self.coding, self.columns, scales, offsets)


def value_of(part: Param | Packed | None) -> Tensor | None:
    """The scales or offsets as a tensor."""
    return part.matrix() if isinstance(part, Packed) else None if part is None else part.val()


def _part(value: Tensor | Param | Packed | None) -> Param | Packed | None:
    return Param(value, trained=False) if isinstance(value, Tensor) else value


def _rows_of(part: Param | Packed, indices: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Any]:
    if isinstance(part, Packed):
        return part._rows(indices)  # pyright: ignore[reportPrivateUsage]
    value = part.val()
    if len(value.shape) == 2 and value.shape[0] == 1:  # one number for the whole matrix
        return value
    return functional.embedding(value, indices) if value.kind is Float else value[indices]


def _dequantized(
    words: Tensor[Any, Any, Int], coding: str, columns: int, scales: Tensor | None, offsets: Tensor | None
) -> Tensor:
    """[..., words] to [..., columns]."""
    levels = functional.unpack(words, coding)
    if levels.shape[-1] != columns:
        levels = levels[..., :columns]
    if scales is None and offsets is None:
        return levels
    groups = (scales if scales is not None else offsets).shape[-1]  # pyright: ignore[reportOptionalMemberAccess]
    leading = levels.shape[:-1]
    grouped = levels.reshape((*leading, groups, columns // groups))
    if scales is not None:
        grouped = grouped * scales.expand_dims(-1)
    if offsets is not None:
        grouped = grouped + offsets.expand_dims(-1)
    return grouped.reshape((*leading, columns))
