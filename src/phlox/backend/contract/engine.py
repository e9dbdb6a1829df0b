"""`EngineBackend`: the base of the backends that stand directly on an engine."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from phlox.backend.contract.tiles import TileOps
from phlox.backend.kind import Kind
from phlox.backend.reproducible import when_installed
from phlox.errors import BackendError, RangeError
from phlox.host.dtypes import FLOAT_ELEMENTS, INT_ELEMENTS, FloatElement, IntElement


class EngineBackend(TileOps):
    """The base of backends that call an engine directly, such as `NumPy(float="f32", int="i32")`."""

    floats: ClassVar[tuple[FloatElement, ...]] = FLOAT_ELEMENTS
    ints: ClassVar[tuple[IntElement, ...]] = INT_ELEMENTS
    _instances: ClassVar[dict[tuple[type, str, str], Any]] = {}

    def __new__(cls, float: FloatElement = "f32", int: IntElement = "i32") -> Self:
        # Interned, so that the check "same backend?" before each operation is one comparison of identities.
        instances = EngineBackend._instances
        key = (cls, float, int)
        if key in instances:
            return instances[key]
        if float not in cls.floats:
            raise BackendError(f"{cls.__name__} has no float element {float!r} (it has {', '.join(cls.floats)})")
        if int not in cls.ints:
            raise BackendError(f"{cls.__name__} has no int element {int!r} (it has {', '.join(cls.ints)})")
        self = super().__new__(cls)
        self.float_element = float
        self.int_element = int
        self.setup()
        self = instances.setdefault(key, self)
        when_installed(self._install_reproducible)
        return self

    def _install_reproducible(self) -> None:
        from phlox.backend.contract.reproducible import install_in  # for the mode alone

        install_in(self)

    def setup(self) -> None:
        """Prepare everything that depends on the element types; called once for each backend."""

    def with_float(self, element: FloatElement) -> EngineBackend:
        return type(self)(float=element, int=self.int_element)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.float_element, self.int_element)

    def __repr__(self) -> str:
        options = [f"float={self.float_element!r}"] * (self.float_element != "f32")
        options += [f"int={self.int_element!r}"] * (self.int_element != "i32")
        return f"{type(self).__name__}({', '.join(options)})"

    def casts_on_all_cores(self) -> bool:
        """Does this engine cast a host array of floats on all cores by itself?"""
        return False

    def recast(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """A host array of floats cast to another element type faster than NumPy does, with the same values.

        None if there is no faster way, or if a value would become infinite. The payload of a NaN may differ.
        """
        if 2 not in (array.itemsize, dtype.itemsize):
            return None
        from phlox.host.float_casts import recast  # and ml_dtypes: only for 16-bit floats

        return recast(array, dtype)

    def fit(self, array: np.ndarray[Any, Any], kind: type[Kind]) -> np.ndarray[Any, Any]:
        dtype = self.host_dtype(kind)
        if array.dtype == dtype:
            return array
        if kind.name == "int" and array.dtype != np.bool_:
            cast = array.astype(dtype)
            if not (cast == array).all():  # an integer that does not fit changes in the cast
                info = np.iinfo(dtype)
                low, high = array.min(), array.max()
                worst = low if low < info.min else high
                raise RangeError(
                    f"{worst} does not fit {self!r}'s integers ({dtype.name}); use a backend of wider ones"
                )
            return cast
        if kind.name == "float" and (cast := self.recast(array, dtype)) is not None:
            return cast
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
        if kind.name == "float" and not np.isfinite(cast).all():
            lost = np.isinf(cast) & np.isfinite(array)
            if lost.any():
                worst = array[lost].flat[0]
                raise RangeError(f"{worst} does not fit {self!r}'s floats ({dtype.name}); use a backend of wider ones")
        return cast
