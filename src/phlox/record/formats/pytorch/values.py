"""What an inert pickle is made of: plain data, and descriptions of tensors. Nothing here runs, imports or allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, FLOAT8, DType

_SHOWN = 200


class Meter:
    """What a small pickle may cost: each byte and each node that it makes us write a second time is charged.

    Sharing makes the work out of proportion to the file: a list of a hundred references to a list of a hundred
    references... RecordError once `limit` is spent.

    >>> Meter(10).charge(11)
    Traceback (most recent call last):
    ...
    phlox.errors.RecordError: it unfolds to far more than its own size, as only a file made to do harm does
    """

    __slots__ = ("_left",)

    def __init__(self, limit: int) -> None:
        self._left = limit

    def charge(self, amount: int) -> None:
        """Takes `amount` off what is left."""
        self._left -= amount
        if self._left < 0:
            raise RecordError("it unfolds to far more than its own size, as only a file made to do harm does")


@dataclass(eq=False, slots=True)
class Pairs:
    """A dict: its keys and values in order, as they came. Nothing is hashed before the keys are known to be good."""

    items: list[tuple[object, object]] = field(default_factory=list[tuple[object, object]])


@dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A global that a pickle may mention, such as a class of storages; it stands for itself."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Function(Name):
    """A global that a pickle may "call": `make` is our own function, and gives an inert value."""

    make: Callable[..., object]
    makes_tensor: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Foreign(Name):
    """A global without an inert meaning, such as a class of a training script: never imported, never called."""


@dataclass(eq=False, slots=True)
class Object:
    """What a foreign class or function would have made of its arguments, had it been called: it is not.

    `state` is what the pickle would have put into it, `items` what it would have filled it with as it fills a dict.
    """

    name: str
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list[tuple[object, object]])


@dataclass(frozen=True, eq=False, slots=True)
class ElementType(Name):
    """An element type of PyTorch, or its storages; `dtype` is None where a record has none such."""

    itemsize: int
    dtype: DType | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """A piece of memory of PyTorch: `size` elements of `type`, from number `offset` of what is stored under `key`."""

    type: ElementType
    key: str
    size: int
    offset: int = 0
    data: memoryview | None = None
    """Its bytes, where they are not in the file under its key."""


@dataclass(frozen=True, eq=False, slots=True)
class Strided:
    """A tensor of PyTorch: a strided view of a storage, all numbers in elements. None of them is checked yet."""

    storage: Storage
    type: ElementType
    offset: object
    shape: object
    strides: object


@dataclass(frozen=True, eq=False, slots=True)
class Refused:
    """What is harmless, but nothing that a record holds: told with its path when the entries are made."""

    what: str


@dataclass(eq=False, slots=True)
class NumpyType:
    """An element type of NumPy; its byte order comes with a BUILD."""

    dtype: DType
    big_endian: bool = False


@dataclass(eq=False, slots=True)
class NumpyArray:
    """An array of NumPy, perhaps completed by a BUILD; or one of its scalars, which is a number to us."""

    type: NumpyType | Refused | None = None
    shape: object = ()
    is_fortran: bool = False
    data: bytes = b""
    is_scalar: bool = False
    axes: tuple[int, ...] | None = None
    """In which order the axes lie in `data`, where that is neither that of C nor that of Fortran."""


def _element_types() -> dict[str, ElementType]:
    names = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "bool"}
    names |= {
        f"{sign}{bits}": f"{word}{bits}" for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
    }
    names |= {ours: f"float8_{theirs}" for ours, theirs in FLOAT8.items()}
    held = [ElementType(f"torch.{name}", DTYPES[ours].itemsize, DTYPES[ours]) for ours, name in names.items()]
    sizes = {"complex32": 4, "complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1, "qint32": 4}
    sizes |= {"quint4x2": 1, "quint2x4": 1, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2}
    return {t.name: t for t in [*held, *(ElementType(f"torch.{name}", size) for name, size in sizes.items())]}


TYPES: dict[str, ElementType] = _element_types()
"""The element types of PyTorch, by their names: "torch.float32", ..."""

_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Untyped": "uint8",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8",
    "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip

STORAGES: dict[str, ElementType] = {f"{name}Storage": TYPES[f"torch.{of}"] for name, of in _STORAGES.items()}
"""What the storages of PyTorch hold, by the names of their classes: "FloatStorage", ..."""


def shown(text: str) -> str:
    """A name or path of a stranger's, fit for a sentence: short, and without what a terminal cannot show."""
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


def called(value: object) -> str:
    """What a value of an inert pickle is called in a sentence."""
    if isinstance(value, Refused):
        return value.what
    if isinstance(value, Foreign):
        return f"the function or class {value.name}"
    if isinstance(value, Name):
        return f"the name {value.name}"
    if isinstance(value, Object):
        return f"an object made by {value.name}"
    return _CALLED.get(type(value), f"a value of type {type(value).__name__}")


_CALLED: dict[type, str] = {
    Pairs: "a dict",
    Storage: "a bare storage",
    Strided: "a tensor",
    NumpyType: "a type of NumPy's",
    NumpyArray: "a NumPy array",
}
