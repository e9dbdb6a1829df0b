"""`load_quantized`: a model from a file with packed weights, which never exist unpacked."""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

from phlox.backend import Float, Int, Kind
from phlox.backend.contract.nn.packed import CODINGS
from phlox.errors import RecordError
from phlox.module import Module, Param
from phlox.module.packed import Packed
from phlox.module.reparameterization import Sites
from phlox.record import Record, TensorEntry
from phlox.record import load as load_any
from phlox.record.formats.reader import PathLike, Readable
from phlox.tensor import zeros

M = TypeVar("M", bound=Module)

_CODES = re.compile(r"(.+)\.codes\.(\w+)")


def load_quantized(model: M, source: PathLike | Readable | Record) -> M:
    """A view of a model with the weights of a file that a packed model was saved to, packed as they are there.

    The parameters of `model` may be deferred, as those of a new one are: weights that are packed in the file are never
    created in floats. Plain weights are loaded as by `Module.load`.

    Args:
        model: of the architecture that was saved, plain.
        source: a record, a path, bytes or an open binary file.

    Raises `RecordError`, with the path, for packed weights that no parameter of the model fits, and what `Module.load`
    raises for all others.

    >>> import tempfile
    >>> import phlox as px
    >>> small = px.quantize(px.nn.Linear(64, 32).init(0), "weight", "int4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = small.save(f"{folder}/small")
    ...     again = px.load_quantized(px.nn.Linear(64, 32), path)
    >>> bool((again.weight.val() == small.weight.val()).all())
    True
    """
    record = source if isinstance(source, Record) else load_any(source)
    sites = Sites(model)
    new: dict[str, Packed] = {}
    for path in record:
        match = _CODES.fullmatch(path)
        # Scales that are packed themselves belong to the weight around them.
        if match is None or match[1].endswith((".scales", ".offsets")):
            continue
        site = sites.found.get(match[1])
        if site is None or not isinstance(site.param, Param):
            raise RecordError(
                f"{path}: the model has no plain parameter `{match[1]}`; load into a new model of the architecture "
                "that was saved"
            )
        shape, axis = site.param.shape, site.output_axis
        columns = math.prod(shape) // max(shape[axis], 1)
        new[match[1]] = _placeholder(record, match[1], site.param, shape[axis], columns).as_weight(shape, axis)
    view = sites.replace(new)
    view.load_record(record)
    return view


def _placeholder(record: Record, path: str, param: Param, rows: int, columns: int) -> Packed:
    """A packed weight of the shapes in the record, whose values are still to be loaded."""
    name = next(iter(record.select(f"{path}.codes")))
    coding, _, group = name.partition("_g")
    size = int(group) if group.isdecimal() else columns
    if coding not in CODINGS or not 0 < size <= columns or columns % size:
        raise RecordError(
            f"{path}.codes.{name}: `{name}` is no coding of {columns} columns; the codings are {', '.join(CODINGS)}, "
            "and _g64 after one means groups of 64"
        )
    words = _deferred(record, f"{path}.codes.{name}", param, Int)
    needed = rows, -(-columns // CODINGS[coding].per_word)
    if words.shape != needed:
        raise RecordError(f"{path}.codes.{name}: words have the shape {words.shape}, and the weight needs {needed}")
    parts: dict[str, Any] = {}
    for part in ("scales", "offsets"):
        below = f"{path}.{part}"
        if below in record:
            parts[part] = _deferred(record, below, param, Float)
        elif record.select(f"{below}.codes"):
            parts[part] = _placeholder(record, below, param, rows, columns // size)
    return Packed(words, coding, columns, **parts)


def _deferred(record: Record, path: str, param: Param, kind: type[Kind]) -> Param:
    entry = record[path]
    if not isinstance(entry, TensorEntry):
        raise RecordError(f"{path}: expected a tensor, got {type(entry).__name__}")
    return Param.deferred(entry.tensor.shape, _zeros, device=param.device, trained=False, kind=kind)


def _zeros(shape: tuple[int, ...], fans: tuple[int, int], device: Any) -> Any:
    return zeros(shape, kind=Int, device=device)
