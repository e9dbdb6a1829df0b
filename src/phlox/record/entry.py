"""What a record holds under a path: a tensor that is read only when asked, with the id of its parameter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from phlox.errors import RecordError, RecordWarning
from phlox.host import float_casts
from phlox.record.dtypes import (
    Array,
    DType,
    Kind,
    Recast,
    canonical,
    cast_elements,
    checked_shape,
    kind_of,
)
from phlox.record.precision import Underflow, underflow_message

LARGE = 1 << 24
"""Bytes of a tensor that is not read while another such one is."""
PORTION = 1 << 18
"""Bytes that are cast at a time where there is no need of the whole."""
_OF_ENGINES = 4
"""Times as many where an engine casts: its threads are to share them, and take no memory of their own."""


class LazyTensor(msgspec.Struct, frozen=True, eq=False):
    """A host array that is made (read from a file, copied from a device, cast) only when `read` is called.

    Make one with `from_array` or `from_function`.

    >>> import numpy as np
    >>> tensor = LazyTensor.from_array(np.ones((2, 3), np.float32))
    >>> tensor.shape, tensor.kind, tensor.astype(np.float16).read().dtype
    ((2, 3), 'float', dtype('float16'))
    """

    shape: tuple[int, ...]
    dtype: DType
    source_dtype: DType
    """What `source` gives; another than `dtype` where this tensor is a casting view."""
    source: Callable[[], Array]
    path: str = "tensor"
    """Named in errors."""
    recast: Recast = float_casts.recast
    """How floats are cast where there is a faster way than NumPy's: by the engine of a model's tensors."""
    underflow: Underflow | None = None
    """Where it is noted how many values casts make zero; without it each read warns of them."""

    @staticmethod
    def from_array(array: Any, path: str = "tensor") -> LazyTensor:
        """Holds `array` (anything `np.asarray` takes) without copying it; layout and byte order are as they come."""
        array = np.asarray(array)
        dtype = canonical(array.dtype, path)
        return LazyTensor(array.shape, dtype, dtype, lambda: array, path)

    @staticmethod
    def from_function(
        shape: tuple[int, ...],
        dtype: Any,
        function: Callable[[], Any],
        path: str = "tensor",
        recast: Recast = float_casts.recast,
    ) -> LazyTensor:
        """Holds a function of no arguments that gives an array of this shape and element type, at each read anew."""
        dtype = canonical(dtype, path)
        return LazyTensor(checked_shape(shape, dtype, path), dtype, dtype, function, path, recast)

    @property
    def is_cast(self) -> bool:
        """Whether what is read is cast to another element type."""
        return self.dtype != self.source_dtype

    @property
    def kind(self) -> Kind:
        """Float, int or bool, as `dtype` says."""
        return kind_of(self.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes at `dtype`."""
        return self.size * self.dtype.itemsize

    def read(self) -> Array:
        """The array: C-contiguous, in native byte order, perhaps a read-only view of a mapped file.

        Raises RecordError where a value does not fit `dtype`, or the source does not give what it promised. Gives
        `RecordWarning` where values that are not zero become zero.
        """
        array = self._stored()
        return array if self.dtype == self.source_dtype else self.cast(array)

    def blocks(self) -> Iterator[Array]:
        """The elements in order, as 1-d arrays; casts a block at a time, so that no cast copy exists whole."""
        array = self.stored()
        return self._cast(array) if self.is_cast else iter((array,))

    def stored(self) -> Array:
        """The elements in order, as a 1-d array of `source_dtype`: `cast` of any part is a part of what this is."""
        return self._stored().reshape(-1)

    def cast(self, array: Array) -> Array:
        """A part of what is stored at the element type of this, in the same order; several threads may do so."""
        return cast_elements(array, self.dtype, self.path, self.recast, self._tell) if self.is_cast else array

    def _tell(self, count: int) -> None:
        if self.underflow is not None:
            self.underflow.append((self.path, self.dtype, count))
        else:
            warnings.warn(f"{self.path}: {underflow_message('values', self.dtype)}", RecordWarning, stacklevel=5)

    def astype(self, dtype: Any, path: str | None = None, underflow: Underflow | None = None) -> LazyTensor:
        """This tensor at another element type of the same kind, cast when read.

        Raises RecordError at once for another kind; at reading, for a value that does not fit. Errors name `path`.
        """
        path = self.path if path is None else path
        dtype = canonical(dtype, path)
        if dtype == self.dtype:
            return self if path == self.path else msgspec.structs.replace(self, path=path)
        if kind_of(dtype) != self.kind:
            raise RecordError(f"{path}: a record does not cast between kinds, here {self.dtype} to {dtype}")
        # A view of a view casts twice, as the same casts of the array would.
        source = self.read if self.is_cast else self.source
        return LazyTensor(self.shape, dtype, self.dtype, source, path, self.recast, underflow)

    def map(self, function: Callable[[Array], Array], shape: tuple[int, ...]) -> LazyTensor:
        """What `function` makes of the array when it is read: of this shape, and of the same element type.

        A function that gives a view (a slice, a transpose) costs no more than the elements that it shows.

        >>> import numpy as np
        >>> tensor = LazyTensor.from_array(np.arange(6).reshape(2, 3)).map(lambda array: array.T, (3, 2))
        >>> tensor.read()[2].tolist()
        [2, 5]
        """
        return LazyTensor.from_function(shape, self.dtype, lambda: function(self.read()), self.path, self.recast)

    def __repr__(self) -> str:
        return f"LazyTensor({self.dtype}, {self.shape})"

    def _stored(self) -> Array:
        array = np.asarray(self.source())
        same = array.dtype == self.source_dtype or canonical(array.dtype, self.path) == self.source_dtype
        if array.shape != self.shape or not same:
            raise RecordError(
                f"{self.path}: its source gave {array.dtype} of shape {array.shape}, "
                f"not {self.source_dtype} of shape {self.shape} as declared"
            )
        return np.asarray(array, dtype=self.source_dtype, order="C")

    def _cast(self, flat: Array) -> Iterator[Array]:
        portion = PORTION if self.recast is float_casts.recast else _OF_ENGINES * PORTION
        count = max(1, portion // self.dtype.itemsize)
        for start in range(0, flat.size, count):
            yield self.cast(flat[start : start + count])


class TensorEntry(msgspec.Struct, frozen=True, eq=False):
    """A tensor of a record, and the id of the parameter it was taken from (None where it has none)."""

    tensor: LazyTensor
    id: str | None = None
    state: bool = False
    """Whether it accumulates over the steps of a training, see `PrecisionSettings`; files do not say it."""
