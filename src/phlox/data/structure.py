"""Batches are arrays in any nesting of tuples, dicts, named tuples and dataclasses; here they are split and rebuilt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs

from phlox.errors import DataError
from phlox.tensor import Tensor

AnyArray: TypeAlias = npt.NDArray[Any]


def is_array(value: object) -> TypeIs[AnyArray]:
    """Is this a NumPy array?"""
    return isinstance(value, np.ndarray)


def host_array(value: Any) -> AnyArray | None:
    """Convert an array, a tensor or a scalar of any engine to a NumPy array; None for anything else.

    >>> import phlox as px
    >>> host_array(px.tensor([1.0, 2.0], device="jax")).tolist(), host_array([1.0])
    ([1.0, 2.0], None)
    """
    array: AnyArray
    if isinstance(value, Tensor):
        array = cast("Tensor[Any, Any, Any]", value).detach().numpy()
    elif hasattr(value, "__array__") and hasattr(value, "shape"):
        on_host = value.detach().cpu() if hasattr(value, "detach") else value
        try:
            array = np.asarray(on_host)
        except TypeError:  # bfloat16, which PyTorch does not convert to NumPy
            if not hasattr(on_host, "float"):
                raise
            array = np.asarray(on_host.float())
    else:
        return None
    # NumPy gives the dtypes of ml_dtypes the kind "V".
    return array.astype(np.float32) if array.dtype.kind == "V" and np.can_cast(array.dtype, np.float32) else array


def children(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container; None for a leaf."""
    kind: type[Any] = value.__class__
    if kind is np.ndarray or kind is Tensor:  # nearly all values
        return None
    if kind is dict or isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in cast("Mapping[Any, Any]", value).items()]
    if isinstance(value, tuple):
        names = getattr(cast("Any", value), "_fields", None)
        labels = (
            [f".{name}" for name in names] if names else [f"[{i}]" for i in range(len(cast("tuple[Any, ...]", value)))]
        )
        return list(zip(labels, cast("tuple[Any, ...]", value), strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def with_parts(value: Any, parts: Sequence[Any]) -> Any:
    """A container like `value` with other parts."""
    if isinstance(value, Mapping):
        mapping: Any = cast("Mapping[Any, Any]", value)
        items = dict(zip(mapping, parts, strict=True))
        if type(mapping) is dict:
            return items
        try:
            return type(mapping)(items)
        except Exception:  # a file of h5py or NumPy, a defaultdict: its constructor takes no items
            return items
    if isinstance(value, tuple):
        return getattr(cast("Any", value), "_make", tuple)(parts)
    instance: Any = value
    names = [field.name for field in dataclasses.fields(instance)]
    return dataclasses.replace(instance, **dict(zip(names, parts, strict=True)))


def mapped(fn: Callable[..., Any], value: Any, *others: Any) -> Any:
    """`fn(leaf, *leaves)` for every leaf, in the structure of `value`; the others must have the same structure."""
    if not others:  # a fast path for most batches
        kind: type[Any] = value.__class__
        if kind is np.ndarray:
            return fn(value)
        if kind is dict:
            return {key: mapped(fn, part) for key, part in value.items()}
        if kind is tuple:
            return tuple([fn(part) if part.__class__ is np.ndarray else mapped(fn, part) for part in value])
    found = children(value)
    if found is None:
        return fn(value, *others)
    columns = [children(other) or [] for other in others]
    return with_parts(
        value,
        [mapped(fn, part, *(column[i][1] for column in columns)) for i, (_, part) in enumerate(found)],
    )


def copy_views(batch: Any) -> Any:
    """The batch with copies in place of arrays that are views.

    Their memory may be the user's data, and transforms and callers may write to a batch.
    """
    return mapped(_copy_view, batch)


def _copy_view(leaf: Any) -> Any:
    return np.array(leaf, subok=True) if is_array(leaf) and not leaf.flags.owndata else leaf


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, such as `["pixels"]` or `.labels[0]`."""
    parts = children(value)
    if parts is None:
        yield path, value
        return
    for name, part in parts:
        yield from leaves(part, path + name)


def form(value: Any) -> Any:
    """The structure that all rows, or batches, must share: names and types of containers, as a comparable value."""
    parts = children(value)
    return None if parts is None else (type(value).__name__, tuple((name, form(part)) for name, part in parts))


def count_rows(value: Any, name: str) -> int:
    """The common length of all leaves; `DataError` names the first that differs, or that has no rows."""
    first: tuple[str, int] | None = None
    for path, leaf in leaves(value):
        shape = getattr(leaf, "shape", None)
        size = (shape[0] if shape else None) if shape is not None else (len(leaf) if hasattr(leaf, "__len__") else None)
        if size is None:
            shown = repr(leaf.item() if shape == () and hasattr(leaf, "item") else leaf)
            raise DataError(
                f"{name}{path} is one value, {shown[:40]}, and has no rows; give an array of one or more axes (a tuple "
                "holds columns, a list holds rows)"
            )
        if first is None:
            first = path, size
        elif size != first[1]:
            raise DataError(
                f"{name}{path} has {size} rows, but {name}{first[0]} has {first[1]}; all must have the same number"
            )
    if first is None:
        raise DataError(f"{name}: there is no array in it; give at least one")
    return first[1]


def stack(rows: Sequence[Any]) -> Any:
    """One batch of many rows: every leaf stacked on a new first axis, texts and other objects as a list.

    Raises:
        DataError: rows differ in their structure, or in the shapes of their arrays; the message names row and leaf.

    >>> stack([(np.zeros(2), 3), (np.ones(2), 4)])
    (array([[0., 0.],
           [1., 1.]]), array([3, 4]))
    """
    first = form(rows[0])
    for number, row in enumerate(rows):
        if form(row) != first:
            raise DataError(
                f"row {number} of the batch is {_describe(row)}, but row 0 is {_describe(rows[0])}; "
                "all rows must have the same structure"
            )
    paths = iter([path for path, _ in leaves(rows[0])])
    return mapped(lambda *column: _stack_column(column, next(paths)), rows[0], *rows[1:])


def _stack_column(column: Sequence[Any], path: str) -> Any:
    first = column[0]
    if isinstance(first, (str, bytes)) or first is None:
        return list(column)
    arrays = [np.asarray(x) for x in column]
    shapes = [array.shape for array in arrays]
    wrong = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if wrong is not None:
        raise DataError(
            f"row {wrong} of the batch has shape {shapes[wrong]} at leaf {path or 'the array'}, but row 0 has "
            f"{shapes[0]}; bring them to one shape in a transform, or give collate=Pad()"
        )
    if arrays[0].dtype == object:
        return list(column)
    return np.stack(arrays)


def _describe(row: Any) -> str:
    parts = children(row)
    if parts is None:
        return f"a {type(row).__name__}"
    return f"a {type(row).__name__} of {', '.join(name for name, _ in parts) or 'nothing'}"
