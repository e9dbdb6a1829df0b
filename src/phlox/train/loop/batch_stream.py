"""The data of a training: a `Loader`, or any other iterable of batches, with its position if it has one."""

from __future__ import annotations

import base64
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import numpy as np

from phlox.backend import Device
from phlox.data.loader import Loader
from phlox.data.structure import children, form, host_array, is_array, leaves, mapped
from phlox.errors import DataError, DataWarning
from phlox.tensor import Tensor

Rows = np.ndarray[Any, Any]
LOADER = "loader"
"""The name, in a state, of the settings that determine a loader's batches."""


class BatchStream:
    """The batches of one source, epoch after epoch.

    An object with `epoch(number, start=)`, such as a `Loader`, can begin at any batch of any epoch. For any other
    iterable an epoch is one `for` loop; it resumes by `load_state_dict` (or `set_state` of its iterator) if it has that
    method, and otherwise begins at the beginning. A function without arguments is called at each epoch to return an
    iterable. If the iterable has `set_epoch`, it is called with the number of the epoch.

    Raises `DataError` for any other object.
    """

    def __init__(self, data: Any, name: str = "data") -> None:
        self.name = name
        self._data: Any = data
        self.is_indexed = callable(getattr(data, "epoch", None))
        if isinstance(data, (str, bytes, Mapping, tuple, list, np.ndarray, Tensor)) or not (
            self.is_indexed or isinstance(data, Iterable) or callable(data)
        ):
            raise DataError(
                f"{name}: a {type(cast('object', data)).__name__} is not an iterable of batches; give "
                "Loader(arrays, batch_size=...), or any iterable that gives a batch at a time"
            )
        self._source: Any = None  # the iterable of the running epoch, and its iterator
        self._iterator: Any = None
        self._saved_state: Any = None  # a state to resume from
        self._was_used = False
        self._dtypes: list[Any] | None = None
        self.needs_arrays = False
        """Must batches consist of arrays and numbers only?"""
        self._first: tuple[Any, list[tuple[str, Any]]] | None = None
        self.max_batches: int | None = None
        """The maximum number of batches in an epoch; None is no limit."""
        self.number = 0
        """The number of the last batch: a loader skips a batch if it could read no row of it."""
        self._device: Device | None = None

    # --- sizes and settings

    @property
    def gives_a_batch_at_once(self) -> bool:
        """Can a batch be read twice, and without workers that must begin?"""
        return self.is_indexed and not getattr(self._data, "workers", 0)

    @property
    def batches(self) -> int | None:
        """The number of batches in an epoch, if it is known."""
        if self.max_batches is not None:
            return None
        try:
            return len(self._data)
        except (TypeError, NotImplementedError, AttributeError):
            return None

    @property
    def batch_size(self) -> int | None:
        """The number of rows in a batch, if it is known."""
        size = getattr(self._data, "batch_size", None)
        return size if isinstance(size, int) else None

    def rows(self, epoch: int, number: int) -> Rows | None:
        """The numbers of the rows of a batch, if the source knows them."""
        rows = getattr(self._data, "rows", None)
        if not (self.is_indexed and callable(rows)):
            return None
        try:
            return np.asarray(cast("Any", rows)(epoch, number))
        except Exception:
            return None

    def on_device(self, device: Device) -> bool:
        """Let a `Loader` with workers or prefetch copy batches to the device in the background; False for others."""
        data = self._data
        if not (isinstance(data, Loader) and (data.workers or data.prefetch)):
            return False
        self._device = device
        return True

    @contextmanager
    def open(self) -> Generator[None]:
        """A scope in which a loader keeps its workers from one epoch to the next."""
        data = self._data
        if not isinstance(data, Loader) or data.is_open or not (data.workers or data.prefetch):
            yield
            return
        with data:
            yield

    # --- its batches

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch, from number `start` on."""
        if self.max_batches is not None and start >= self.max_batches:
            return
        for number, batch in self._numbered(epoch, start):
            dtypes = _dtypes(batch)
            if dtypes is None and not self.is_indexed:
                dtypes = _dtypes(batch := as_batch(batch))
            if dtypes is None or dtypes != self._dtypes:
                self._check(batch, number)
                self._dtypes = dtypes
            self.number = number
            yield batch
            if number + 1 == self.max_batches:
                return

    def _numbered(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        if isinstance(self._data, Loader):
            self._check_same_loader(start)
            return self._data.numbered(epoch, start, device=self._device)
        return enumerate(self._batches(epoch, start), start)

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        if self.is_indexed:
            self._check_same_loader(start)
            return iter(self._data.epoch(epoch, start=start))
        data: Any = self._data
        is_factory = isinstance(data, type) or not hasattr(data, "__iter__")
        source: Any = data() if is_factory else data
        saved_state, self._saved_state = self._saved_state, None
        if isinstance(saved_state, Mapping) and LOADER in saved_state:  # the data were a loader when it was saved
            saved_state = None
        if callable(getattr(source, "set_epoch", None)):
            source.set_epoch(epoch)
        if saved_state is not None and hasattr(source, "load_state_dict"):
            source.load_state_dict(saved_state)
        batches: Any = iter(source)
        if batches is source and self._was_used and saved_state is None and not is_factory:
            raise DataError(
                f"{self.name}: this {type(source).__name__} gives its batches only once, so there is no epoch "
                f"{epoch + 1}; give a function that makes a new one (lambda: ...), or train for epochs=1"
            )
        self._was_used = True
        self._source, self._iterator = source, batches
        if saved_state is not None and not hasattr(source, "load_state_dict"):
            if hasattr(batches, "set_state"):
                batches.set_state(saved_state)
            else:
                saved_state = None
        if saved_state is not None:
            return batches if start else self._next_if_over(batches)
        if start:
            warnings.warn(
                f"{self.name}: a {type(source).__name__} cannot restore its position, so the first {start} batches of "
                "this epoch are skipped; if its order is random, these are not the batches that were trained on. A "
                "Loader, or an iterable with state_dict, resumes exactly",
                DataWarning,
                stacklevel=2,
            )
            return itertools.islice(batches, start, None)
        return batches

    def _next_if_over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The remaining batches; those of the next epoch, if the restored state is at the end of an epoch."""
        first = next(batches, None)
        if first is None:
            self._iterator = batches = iter(self._source)
        else:
            yield first
        yield from batches

    # --- its position

    def state(self) -> Any:
        """The position beyond the numbers of epoch and batch, as plain values; None if these suffice.

        For a `Loader` these are the settings that determine its batches.
        """
        if self.is_indexed:
            return {LOADER: _batches_of(self._data)} if isinstance(self._data, Loader) else None
        source = self._data if self._source is None else self._source
        if hasattr(source, "state_dict"):
            return encoded(source.state_dict())
        if hasattr(self._iterator, "get_state"):
            return encoded(self._iterator.get_state())
        return None

    def restore(self, state: Any) -> None:
        """Continue from a result of `state`, at the next `epoch`."""
        self._saved_state = None if state is None else decoded(state)

    def _check_same_loader(self, start: int) -> None:
        """In the middle of an epoch, raise `DataError` if order or size of batches changed: rows would be repeated."""
        saved_state, self._saved_state = self._saved_state, None
        if not start or not isinstance(self._data, Loader) or not isinstance(saved_state, Mapping):
            return
        former: Mapping[str, Any] = cast("Mapping[str, Any]", saved_state).get(LOADER, {})
        for name, value in _batches_of(self._data).items():
            before = former.get(name, value)
            if before != value:
                raise DataError(
                    f"{self.name}: cannot resume within an epoch (batch {start}): the checkpoint's loader had {name} "
                    f"{before!r}, this one has {value!r}, so rows would be repeated or skipped; use {before!r} until "
                    "the epoch ends"
                )

    def _check(self, batch: Any, number: int) -> None:
        """Raise `DataError` if the batch has not the structure and the dtypes of the first one."""
        kinds: list[tuple[str, Any]] = [
            (path, leaf.dtype.kind if is_array(leaf) else type(leaf)) for path, leaf in leaves(batch)
        ]
        if self._first is None:
            if not any(isinstance(leaf, (np.ndarray, Tensor)) for _, leaf in leaves(batch)):
                raise DataError(f"{self.name}: batch {number} has no array in it; it is {_described(batch)}")
            self._first = form(batch), kinds
            if self.needs_arrays:
                _check_arrays(batch, self.name)
            return
        first_form, first = self._first
        if kinds == first and form(batch) == first_form:
            return
        for (path, kind), (_, before) in zip(kinds, first, strict=False):
            if kind != before and form(batch) == first_form:
                raise DataError(
                    f"{self.name}{path}: batch {number} has {_kind(kind)} where the first batch had {_kind(before)}; "
                    "all batches must be alike"
                )
        raise DataError(
            f"{self.name}: batch {number} is {_described(batch)}, and the first batch had another structure; all "
            "batches must be alike"
        )


def _batches_of(loader: Loader) -> dict[str, Any]:
    return {name: value for name, value in loader.state_dict().items() if name not in ("epoch", "batch")}


def _dtypes(batch: Any) -> list[Any] | None:
    """The dtypes, and the keys, of a tuple or dict of arrays, for a quick check; None for other batches."""
    kind: type[Any] = batch.__class__
    if kind is tuple:
        dtypes: list[Any] = [kind]
        parts: Iterable[Any] = batch
    elif kind is dict:
        dtypes, parts = list(batch), batch.values()
    else:
        return None
    for part in parts:
        if part.__class__ is not np.ndarray:
            return None
        dtypes.append(part.dtype)
    return dtypes


def as_batch(value: Any) -> Any:
    """A batch of arrays: tensors of other libraries become NumPy arrays, and lists of arrays tuples."""
    whole: Any = value
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if items and all(_is_foreign(item) or is_array(item) or children(item) is not None for item in items):
            whole = tuple(items)
    if children(whole) is None:
        return host_array(whole) if _is_foreign(whole) else whole
    return mapped(_leaf_of_batch, whole)


def _leaf_of_batch(leaf: Any) -> Any:
    return as_batch(leaf) if isinstance(leaf, list) or _is_foreign(leaf) else leaf


def _is_foreign(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape") and not isinstance(value, (np.ndarray, Tensor))


def _check_arrays(batch: Any, name: str) -> None:
    """Raise `DataError` for anything but arrays and numbers: a step would be compiled again for every batch."""
    for path, leaf in leaves(batch):
        if is_array(leaf) and leaf.dtype.kind not in "fiub":
            leaf = leaf.reshape(-1)[0] if leaf.size else ""
        if not isinstance(leaf, (np.ndarray, np.generic, Tensor, int, float)) or isinstance(leaf, (str, bytes)):
            raise DataError(
                f"{name}{path} is a {type(leaf).__name__}; a compiled step takes arrays and numbers, and any other "
                "value would compile it again for each batch; drop it in the loader's transform, or give "
                "compile=False to the learner"
            )


def _described(batch: Any) -> str:
    parts = children(batch)
    if parts is None:
        return f"a {type(batch).__name__}"
    return f"a {type(batch).__name__} of {', '.join(name for name, _ in parts) or 'nothing'}"


def _kind(kind: Any) -> str:
    names = {"f": "floats", "i": "integers", "u": "integers", "b": "booleans", "U": "texts", "O": "objects"}
    return names.get(kind, f"dtype kind {kind!r}") if isinstance(kind, str) else f"a {kind.__name__}"


# --- states of other libraries, as plain values

_TAGS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (
        lambda value: isinstance(value, bytes),
        lambda value: base64.b64encode(value).decode(),
        base64.b64decode,
    ),
    "torch": (
        lambda value: type(value).__module__.partition(".")[0] == "torch" and _is_foreign(value),
        lambda value: encoded(np.asarray(value)),
        lambda packed: _torch_tensor(decoded(packed)),
    ),
    "array": (
        lambda value: is_array(value) or _is_foreign(value),
        lambda value: [str(np.asarray(value).dtype), list(value.shape), np.asarray(value).reshape(-1).tolist()],
        lambda packed: np.asarray(packed[2], packed[0]).reshape(packed[1]),
    ),
    "tuple": (
        lambda value: isinstance(value, tuple),
        lambda value: [encoded(part) for part in value],
        lambda packed: tuple(decoded(part) for part in packed),
    ),
    "integer": (
        lambda value: isinstance(value, int) and not -(2**63) <= value < 2**63,
        str,
        int,
    ),
    "items": (
        lambda value: (
            isinstance(value, Mapping)
            and not all(isinstance(key, str) and not key.startswith("$") for key in cast("Mapping[Any, Any]", value))
        ),
        lambda value: [[encoded(key), encoded(part)] for key, part in value.items()],
        lambda packed: {decoded(key): decoded(part) for key, part in packed},
    ),
}
"""For types that are no plain values: the tag, a test for the type, and the conversions to and from a plain form."""


def _torch_tensor(array: Any) -> Any:
    torch: Any = import_module("torch")
    return torch.from_numpy(array)


def encoded(value: Any) -> Any:
    """Encode a state of plain values, bytes, tuples and arrays as plain values; `decoded` is the inverse.

    Raises `DataError` for an object of another class, which the file of a checkpoint cannot hold.
    """
    for name, (fits, pack, _) in _TAGS.items():
        if fits(value):
            return {f"${name}": pack(value)}
    if isinstance(value, Mapping):
        return {key: encoded(part) for key, part in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [encoded(part) for part in cast("list[Any]", value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise DataError(
        f"the state of the data has a {type(value).__name__} in it, which a checkpoint cannot hold; its state_dict "
        "must consist of plain values and arrays"
    )


def decoded(value: Any) -> Any:
    """The inverse of `encoded`; tensors of libraries other than PyTorch become NumPy arrays."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        if len(items) == 1:
            ((key, part),) = items.items()
            if key.startswith("$") and key[1:] in _TAGS:
                return _TAGS[key[1:]][2](part)
        return {key: decoded(part) for key, part in items.items()}
    if isinstance(value, list):
        return [decoded(part) for part in cast("list[Any]", value)]
    return value
