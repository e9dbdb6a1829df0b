"""Hypothesis strategies for shapes, axes, devices and tensors, to test properties for any input.

This module needs Hypothesis (`pip install hypothesis`); the rest of `phlox.testing` does not.

>>> from hypothesis import given
>>> from phlox.testing import strategies as some
>>> @given(some.tensors(shape=some.shapes(min_dims=1)))
... def test_flipping_twice_changes_nothing(x):
...     assert bool((x.flip().flip() == x).all())
>>> test_flipping_twice_changes_nothing()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phlox.backend import Backend, Bool, Device, DeviceLike, Float, Int, Kind, as_device
from phlox.host.dtypes import INT_RANGES
from phlox.tensor import Tensor, tensor

Shape: TypeAlias = tuple[int, ...]
ShapeOrStrategy: TypeAlias = "Shape | st.SearchStrategy[Shape]"

__all__ = ["axes", "axis", "broadcastable", "devices", "elements", "shapes", "tensors"]


def shapes(*, min_dims: int = 0, max_dims: int = 4, min_side: int = 0, max_side: int = 4) -> st.SearchStrategy[Shape]:
    """Shapes of any rank, including sizes of zero and one; they shrink towards few small axes.

    >>> from hypothesis import given
    >>> @given(shapes(min_dims=1, max_dims=2))
    ... def test(shape): assert len(shape) in (1, 2)
    >>> test()
    """
    return hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side)


def broadcastable(count: int = 2, *, min_side: int = 0, max_dims: int = 3, max_side: int = 4) -> Any:
    """A tuple of `count` shapes that broadcast together.

    >>> import numpy as np
    >>> from hypothesis import given
    >>> @given(broadcastable(3))
    ... def test(three): np.broadcast_shapes(*three)
    >>> test()
    """
    sizes = hnp.mutually_broadcastable_shapes(num_shapes=count, min_side=min_side, max_dims=max_dims, max_side=max_side)
    return sizes.map(lambda result: result.input_shapes)


def axis(rank: int) -> st.SearchStrategy[int]:
    """One axis of a tensor of this rank, positive or negative."""
    return st.integers(-rank, rank - 1) if rank else st.nothing()


def axes(rank: int, *, min_size: int = 0) -> st.SearchStrategy[Shape]:
    """Distinct axes of a tensor of this rank, in any order, each positive or negative."""
    chosen = st.lists(st.integers(0, max(0, rank - 1)), min_size=min_size, max_size=rank, unique=True)

    def from_either_end(indices: Sequence[int]) -> st.SearchStrategy[Shape]:
        return st.tuples(*(st.sampled_from((index, index - rank)) for index in indices))

    return chosen.flatmap(from_either_end)


def devices(*backends: DeviceLike) -> st.SearchStrategy[Device]:
    """One of the devices of these backends; by default only `"numpy"`."""
    return st.sampled_from([as_device(backend) for backend in backends or ("numpy",)])


def elements(backend: Backend, kind: type[Kind] = Float, *, special: bool = False) -> st.SearchStrategy[Any]:
    """Python scalars that are exact in a backend's dtype of this kind.

    Floats have moderate size, so that a few operations on them neither overflow nor underflow. With `special` they can
    be anything: the largest and smallest, zeros of both signs, infinities, NaN. Integers cover the whole range.
    """
    if kind is Bool:
        return st.booleans()
    if kind is Int:
        return st.integers(*INT_RANGES[backend.int_element])
    dtype = backend.host_float_dtype
    # Hypothesis has no bfloat16; both half-precision dtypes are obtained by rounding.
    width = 64 if backend.float_element == "f64" else 32
    limits: dict[str, Any] = {} if special else {"min_value": -8.0, "max_value": 8.0, "allow_subnormal": False}

    def rounded(value: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.asarray(value, np.float64).astype(dtype))

    numbers = st.floats(width=width, **limits)
    if not special:
        # No tiny values except zero: they would vanish in sums.
        numbers = numbers.map(lambda x: x if abs(x) >= 2.0**-6 else 0.0)
    return numbers.map(rounded)


@st.composite
def tensors(
    draw: st.DrawFn,
    device: DeviceLike | st.SearchStrategy[Device] | None = None,
    shape: ShapeOrStrategy | None = None,
    kind: type[Kind] | st.SearchStrategy[type[Kind]] = Float,
    *,
    elements: st.SearchStrategy[Any] | None = None,
    special: bool = False,
) -> Tensor[Any, Any, Any]:
    """Tensors on a device (by default NumPy), of a shape (by default any) and kind.

    Device, shape and kind are values or strategies. `elements` generates the values; by default it is
    `elements(backend, kind, special=special)`.

    >>> from hypothesis import given
    >>> @given(tensors(shape=(2, 3), kind=Int))
    ... def test_negation(x): assert bool((-(-x) == x).all())
    >>> test_negation()
    """
    target: Any = draw(device) if isinstance(device, st.SearchStrategy) else device
    target = as_device(target)
    sizes: Shape = draw(shape) if isinstance(shape, st.SearchStrategy) else draw(shapes()) if shape is None else shape
    of: Any = draw(kind) if isinstance(kind, st.SearchStrategy) else kind
    numbers = _elements(target.backend, of, special=special) if elements is None else elements
    dtype = {"float": np.float64, "int": np.int64, "bool": np.bool_}[of.name]
    values = draw(hnp.arrays(dtype, sizes, elements=numbers))
    return tensor(values, device=target, kind=of)


_elements = elements
