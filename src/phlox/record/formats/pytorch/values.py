"""The values of an inert pickle: plain data and descriptions of tensors. Nothing here runs code or allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, FLOAT8, DType


class WorkBudget:
    """A limit on the work that a small pickle can cause: each byte and each node that is repeated is charged.

    Shared references can make the work disproportionate to the file: a list of a hundred references to a list of a
    hundred references... Raises RecordError once `limit` is spent.

    >>> WorkBudget(10).charge(11)
    Traceback (most recent call last):
    ...
    phlox.errors.RecordError: it unfolds to far more than its own size, as only a harmful file does
    """

    __slots__ = ("_left",)

    def __init__(self, limit: int) -> None:
        self._left = limit

    def charge(self, amount: int) -> None:
        """Subtract `amount` from the remaining budget."""
        self._left -= amount
        if self._left < 0:
            raise RecordError("it unfolds to far more than its own size, as only a harmful file does")


@dataclass(eq=False, slots=True)
class Pairs:
    """A dict as a list of keys and values in order. Nothing is hashed before the keys are checked."""

    items: list[tuple[object, object]] = field(default_factory=list[tuple[object, object]])


@dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A global that a pickle may mention, such as a storage class."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Function(Name):
    """A global that a pickle may "call": `make`, our own function, returns an inert value."""

    make: Callable[..., object]
    makes_tensor: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class ForeignGlobal(Name):
    """A global without an inert replacement, such as a class of a training script: never imported or called."""


@dataclass(eq=False, slots=True)
class Object:
    """The object that a foreign class or function would have made, had it been called; it never is.

    `state` is what BUILD would have set, `items` what SETITEMS would have set.
    """

    name: str
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list[tuple[object, object]])


@dataclass(frozen=True, eq=False, slots=True)
class ElementType(Name):
    """A dtype of PyTorch, or its storage class; `dtype` is None if a record has no such dtype."""

    itemsize: int
    dtype: DType | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """A storage of PyTorch: `size` elements of `type`, from element `offset` of the data under `key`."""

    type: ElementType
    key: str
    size: int
    offset: int = 0
    data: memoryview | None = None
    """Its bytes, if they are not in the file under its key."""


@dataclass(frozen=True, eq=False, slots=True)
class Strided:
    """A tensor of PyTorch: a strided view of a storage, in units of elements, not yet checked."""

    storage: Storage
    type: ElementType
    offset: object
    shape: object
    strides: object


PLAINLY = "save its numbers, text and tensors as such, or leave it out"


@dataclass(frozen=True, eq=False, slots=True)
class Unreadable:
    """A harmless value that a record cannot hold; it is reported with its path and a remedy."""

    description: str
    remedy: str = PLAINLY


@dataclass(eq=False, slots=True)
class NumpyType:
    """A dtype of NumPy; a BUILD sets its byte order."""

    dtype: DType
    big_endian: bool = False


@dataclass(eq=False, slots=True)
class NumpyArray:
    """A NumPy array, possibly completed by a BUILD; or a NumPy scalar, which becomes a plain value."""

    type: NumpyType | Unreadable | None = None
    shape: object = ()
    is_fortran: bool = False
    data: bytes = b""
    is_scalar: bool = False
    axes: tuple[int, ...] | None = None
    """The order of the axes in `data`, if it is neither C nor Fortran order."""


def _element_types() -> dict[str, ElementType]:
    names = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "bool"}
    names |= {
        f"{sign}{bits}": f"{word}{bits}" for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
    }
    names |= {own: f"float8_{suffix}" for own, suffix in FLOAT8.items()}
    supported = [ElementType(f"torch.{name}", DTYPES[own].itemsize, DTYPES[own]) for own, name in names.items()]
    sizes = {"complex32": 4, "complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1, "qint32": 4}
    sizes |= {"quint4x2": 1, "quint2x4": 1, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2}
    return {t.name: t for t in [*supported, *(ElementType(f"torch.{name}", size) for name, size in sizes.items())]}


TYPES: dict[str, ElementType] = _element_types()
"""The dtypes of PyTorch, by name: "torch.float32", ..."""

_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Untyped": "uint8",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8",
    "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip

STORAGES: dict[str, ElementType] = {f"{name}Storage": TYPES[f"torch.{dtype}"] for name, dtype in _STORAGES.items()}
"""The dtypes of PyTorch's storages, by class name: "FloatStorage", ..."""


def described(value: object) -> str:
    """The description of an inert value in a message."""
    if isinstance(value, Unreadable):
        return value.description
    if isinstance(value, ForeignGlobal):
        return f"the function or class {value.name}"
    if isinstance(value, Name):
        return f"the name {value.name}"
    if isinstance(value, Object):
        return f"an object made by {value.name}"
    return _DESCRIPTIONS.get(type(value), f"a value of type {type(value).__name__}")


_DESCRIPTIONS: dict[type, str] = {
    Pairs: "a dict",
    Storage: "a bare storage",
    Strided: "a tensor",
    NumpyType: "a type of NumPy's",
    NumpyArray: "a NumPy array",
}
