"""Tensor entries of a record: lazy tensors, with the id of their parameter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from phlox.backend.sharding import Index, Shard
from phlox.errors import RecordError, RecordWarning
from phlox.host import float_casts
from phlox.host.text import html_by
from phlox.record.dtypes import (
    SHORT_NAMES,
    Array,
    DType,
    Kind,
    Recast,
    canonical,
    cast_elements,
    checked_shape,
    kind_of,
)
from phlox.record.packed import PackedArrays, Packing
from phlox.record.precision import Underflow, underflow_message

LARGE = 1 << 24
"""Tensors of at least this many bytes are read one at a time."""
PORTION = 1 << 18
"""Bytes per block of a cast that does not need the whole array."""
_OF_ENGINES = 4
"""Factor of the block size if an engine casts: its threads share the block."""


class LazyTensor(msgspec.Struct, frozen=True, eq=False):
    """A host array that is computed (read from a file, copied from a device, cast) only when `read` is called.

    Create one with `from_array` or `from_function`.

    >>> import numpy as np
    >>> tensor = LazyTensor.from_array(np.ones((2, 3), np.float32))
    >>> tensor.shape, tensor.kind, tensor.astype(np.float16).read().dtype
    ((2, 3), 'float', dtype('float16'))
    """

    shape: tuple[int, ...]
    dtype: DType
    source_dtype: DType
    """The dtype of the result of `source`; it differs from `dtype` if reading casts."""
    source: Callable[[], Array]
    path: str = "tensor"
    """Shown in error messages."""
    recast: Recast = float_casts.recast
    """Casts floats faster than NumPy, with the engine of a model's tensors."""
    underflow: Underflow | None = None
    """Collects how many values casts make zero; without it, each read gives a warning."""
    part: Callable[[Index], Array] | None = None
    """Reads a part of the result of `source`, and no more; without it, the whole tensor is read and sliced."""
    shards: Callable[[], list[Shard]] | None = None
    """The parts, at `dtype`, that this process has to save; None if every process has the whole tensor."""
    packing: Packing | None = None
    """How a file holds it, if as codes with scales."""

    @staticmethod
    def from_array(array: Any, path: str = "tensor") -> LazyTensor:
        """Wrap `array` (anything that `np.asarray` accepts) without a copy, in any layout and byte order."""
        source, array = array, np.asarray(array)
        if source is not array and isinstance(source, np.ma.MaskedArray) and np.ma.is_masked(cast(Any, source)):
            raise RecordError(f"{path}: a masked array, whose mask a record does not keep; give filled(...) of it")
        dtype = canonical(array.dtype, path)
        return LazyTensor(array.shape, dtype, dtype, lambda: array, path)

    @staticmethod
    def from_function(
        shape: tuple[int, ...],
        dtype: Any,
        function: Callable[[], Any],
        path: str = "tensor",
        recast: Recast = float_casts.recast,
        shards: Callable[[], list[Shard]] | None = None,
    ) -> LazyTensor:
        """Wrap a function without arguments that returns an array of this shape and dtype; each read calls it.

        If the tensor is divided among several processes, `shards` returns the parts that this one has to save.
        """
        dtype = canonical(dtype, path)
        return LazyTensor(checked_shape(shape, dtype, path), dtype, dtype, function, path, recast, shards=shards)

    @staticmethod
    def from_packed(packed: PackedArrays, path: str = "tensor") -> LazyTensor:
        """Wrap a packed matrix: `read` gives its numbers, and `packed` the matrix itself."""
        dtype, packing = canonical(np.float32), Packing(packed.coding, packed.nbytes, lambda: packed)
        return LazyTensor(packed.shape, dtype, dtype, packed.dequantized, path, packing=packing)

    @property
    def is_cast(self) -> bool:
        """Whether reading casts to another dtype."""
        return self.dtype != self.source_dtype

    @property
    def kind(self) -> Kind:
        """Float, int or bool: the kind of `dtype`."""
        return kind_of(self.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes at `dtype`."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stored_as(self) -> tuple[str, int]:
        """The type and the number of bytes: those of the file if it holds a packed tensor, and otherwise of `dtype`."""
        packing = self.packing
        return (SHORT_NAMES[self.dtype], self.nbytes) if packing is None else (packing.type, packing.nbytes)

    def packed(self) -> PackedArrays | None:
        """The tensor as a matrix of codes with scales, if it is stored so: all axes but the last are the rows."""
        return None if self.packing is None else self.packing.read()

    def read(self) -> Array:
        """The array: C-contiguous, in native byte order, possibly read-only, such as a view of a mapped file.

        Raises RecordError if a value does not fit `dtype`, or if the source returns another shape or dtype than
        declared. Gives a `RecordWarning` if nonzero values become zero.
        """
        array = self._stored()
        return array if self.dtype == self.source_dtype else self.cast(array)

    def read_part(self, index: Index) -> Array:
        """Read `read()[index]`, for a slice for each axis, without reading or casting the rest if possible.

        From a mapped file, or a folder that several processes have written, only this part is read. If it is contiguous
        in the file, only its checksums are verified; otherwise those of the whole tensor. Raises RecordError as `read`
        does, and for an index outside of the tensor.

        >>> import numpy as np
        >>> LazyTensor.from_array(np.arange(12).reshape(3, 4)).read_part((slice(1, 3), slice(0, 2))).tolist()
        [[4, 5], [8, 9]]
        """
        index = checked_index(index, self.shape, self.path)
        if self.part is None:
            array = np.asarray(self._stored()[(*index, ...)], order="C")  # with the dots, the result is never a scalar
        else:
            array = self._stored(index)
        return self.cast(array)

    def blocks(self) -> Iterator[Array]:
        """The elements in order, as 1-d arrays that are cast block by block, without a full cast copy."""
        array = self.stored()
        return self._cast(array) if self.is_cast else iter((array,))

    def stored(self) -> Array:
        """The elements before the cast, as a 1-d array of `source_dtype`; apply `cast` to any part of it."""
        return self._stored().reshape(-1)

    def cast(self, array: Array) -> Array:
        """Cast a part of `stored()` to `dtype`; thread-safe."""
        if self.dtype == self.source_dtype:
            return array
        return cast_elements(array, self.dtype, self.path, self.recast, self._report_underflow)

    def _report_underflow(self, count: int) -> None:
        if self.underflow is not None:
            self.underflow.append((self.path, self.dtype, count))
        else:
            warnings.warn(f"{self.path}: {underflow_message('values', self.dtype)}", RecordWarning, stacklevel=5)

    def astype(self, dtype: Any, path: str | None = None, underflow: Underflow | None = None) -> LazyTensor:
        """This tensor at another dtype of the same kind, cast when read.

        Raises RecordError at once for another kind, and on reading for a value that does not fit. Errors name `path`.
        """
        path = self.path if path is None else path
        dtype = canonical(dtype, path)
        if dtype == self.dtype:
            return self if path == self.path else msgspec.structs.replace(self, path=path)
        if kind_of(dtype) != self.kind:
            raise RecordError(f"{path}: a record does not cast between kinds, here {self.dtype} to {dtype}")
        # Two calls of astype cast twice, as with arrays.
        source, part = (self.read, self.read_part) if self.is_cast else (self.source, self.part)
        new = LazyTensor(self.shape, dtype, self.dtype, source, path, self.recast, underflow, part)
        if self.shards is None:
            return new
        return msgspec.structs.replace(new, shards=partial(_cast_shards, new, self.shards))

    def map(self, function: Callable[[Array], Array], shape: tuple[int, ...]) -> LazyTensor:
        """Apply `function` to the array when it is read; the result has the given shape and the same dtype.

        A function that returns a view (a slice, a transpose) costs only the elements of that view.

        >>> import numpy as np
        >>> tensor = LazyTensor.from_array(np.arange(6).reshape(2, 3)).map(lambda array: array.T, (3, 2))
        >>> tensor.read()[2].tolist()
        [2, 5]
        """
        return LazyTensor.from_function(shape, self.dtype, lambda: function(self.read()), self.path, self.recast)

    def __repr__(self) -> str:
        return f"LazyTensor({self.dtype}, {self.shape})"

    _repr_html_ = html_by("phlox.record.pages", "page_of_entry")

    def _stored(self, index: Index | None = None) -> Array:
        """The result of the source, or of `part` for a part, after a check of its shape and dtype."""
        if index is None:
            array, shape = np.asarray(self.source()), self.shape
        else:
            assert self.part is not None
            array, shape = np.asarray(self.part(index)), tuple([s.stop - s.start for s in index])
        is_declared = array.dtype == self.source_dtype or canonical(array.dtype, self.path) == self.source_dtype
        if array.shape != shape or not is_declared:
            raise RecordError(
                f"{self.path}: its source gave {array.dtype} of shape {array.shape}, "
                f"not {self.source_dtype} of shape {shape} as declared"
            )
        stored = np.asarray(array, dtype=self.source_dtype, order="C")
        if stored is not array and stored.flags.owndata:
            stored.flags.writeable = False  # a new read-only copy: a loader can keep it without a copy of its own
        return stored

    def _cast(self, flat: Array) -> Iterator[Array]:
        portion = PORTION if self.recast is float_casts.recast else _OF_ENGINES * PORTION
        count = max(1, portion // self.dtype.itemsize)
        for start in range(0, flat.size, count):
            yield self.cast(flat[start : start + count])


def checked_index(index: object, shape: tuple[int, ...], path: str = "tensor") -> Index:
    """A part of a tensor as slices with both ends; RecordError unless there is one for each axis, within it.

    >>> checked_index((slice(None), slice(1, 2)), (3, 4))
    (slice(0, 3, None), slice(1, 2, None))
    """
    slices = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else ()
    if len(slices) != len(shape) or not all(isinstance(s, slice) for s in slices):
        raise RecordError(f"{path}: a part of a tensor of shape {shape} is a slice for each axis, not {index!r:.200}")
    result: list[slice] = []
    for s, size in zip(slices, shape, strict=True):
        start, stop = 0 if s.start is None else s.start, size if s.stop is None else s.stop
        if not 0 <= start <= stop <= size or s.step not in (None, 1):
            raise RecordError(f"{path}: {index!r:.200} is not a part of a tensor of shape {shape}")
        result.append(slice(start, stop))
    return tuple(result)


def _cast_shards(tensor: LazyTensor, shards: Callable[[], list[Shard]]) -> list[Shard]:
    def values(shard: Shard) -> Array:
        return tensor.cast(np.asarray(shard.read(), dtype=tensor.source_dtype, order="C"))

    return [Shard(shard.index, partial(values, shard)) for shard in shards()]


class TensorEntry(msgspec.Struct, frozen=True, eq=False):
    """A tensor of a record, and the id of its parameter (None if it has none).

    >>> entry = TensorEntry(LazyTensor.from_array(np.ones(2)), id="a1")
    >>> entry.tensor.shape, entry.id
    ((2,), 'a1')
    """

    tensor: LazyTensor
    id: str | None = None
    state: bool = False
    """Whether it accumulates over training steps, see `PrecisionSettings`; this is not stored in files."""

    _repr_html_ = html_by("phlox.record.pages", "page_of_entry")
