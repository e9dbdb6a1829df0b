"""The globals that a state dict may name, each with an inert replacement; all others are `ForeignGlobal`.

A function takes the budget and the arguments in the pickle. For unexpected arguments it raises, and the file is
rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.record.dtypes import DTYPES, FLOAT8, DType
from phlox.record.formats.pytorch.values import (
    PLAINLY,
    STORAGES,
    TYPES,
    ElementType,
    ForeignGlobal,
    Function,
    Name,
    NumpyArray,
    NumpyType,
    Pairs,
    Storage,
    Strided,
    Unreadable,
    WorkBudget,
)

_NUMPY_CHARS = {"?": "b1", "b": "i1", "h": "i2", "B": "u1", "H": "u2", "e": "f2", "f": "f4", "d": "f8"}
_NUMPY_NAMES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_ML_TYPES = {f"ml_dtypes.{DTYPES[name].name}": DTYPES[name] for name in ("bf16", *FLOAT8)}
_NUMPY_TYPES: dict[str, DType] = {
    **{name: np.dtype(char) for name, char in _NUMPY_CHARS.items()},
    **{name: np.dtype(name) for name in _NUMPY_NAMES},
    **_ML_TYPES,
}

_OF_THE_SYSTEM = frozenset([
    "os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "pty", "ctypes", "importlib", "runpy",
    "webbrowser", "pickle", "_pickle", "marshal", "code", "pdb", "bdb", "timeit", "commands", "popen2",
    "multiprocessing", "signal",
])  # fmt: skip
_OF_PYTHON = {"eval", "exec", "execfile", "compile", "__import__", "open", "file", "input", "breakpoint", "apply"}


def find_global(module: str, name: str) -> object:
    """The inert replacement of `name` in `module`; a `ForeignGlobal` name if there is none.

    Safety does not depend on this, since nothing is ever called. But a global that accesses the system or other code
    does not belong in a file of weights, so the file is rejected with a RecordError that says so.

    >>> find_global("torch", "float32").dtype
    dtype('float32')
    >>> find_global("argparse", "Namespace")
    ForeignGlobal(name='argparse.Namespace')
    >>> find_global("os", "system")
    Traceback (most recent call last):
    ...
    phlox.errors.RecordError: it wants os.system, which no state dict needs and which may be an attack; ...
    """
    meaning = _GLOBALS.get(f"{module}.{name}")
    if meaning is not None:
        return meaning
    full = shown(f"{module}.{name}")
    package = module.partition(".")[0]
    if package in _OF_THE_SYSTEM or (module in _BUILTINS and name.partition(".")[0] in _OF_PYTHON):
        raise RecordError(
            f"it wants {full}, which no state dict needs and which may be an attack; nothing of it was run. If you "
            "trust the file, load it with torch, and save its state_dict() with safetensors"
        )
    return ForeignGlobal(full)


def _tensor(
    budget: WorkBudget, storage: object, offset: object, shape: object, strides: object, *flags: object
) -> object:
    # The flags are requires_grad, hooks and, last, whether the values must be conjugated or negated.
    if len(flags) > 3 or not isinstance(storage, Storage):
        raise TypeError
    if len(flags) == 3 and isinstance(flags[2], Pairs) and any(value for _, value in flags[2].items):
        return Unreadable("a tensor that is to be negated or conjugated when read", "call resolve_neg() before saving")
    return Strided(storage, storage.type, offset, shape, strides)


def _typed_tensor(
    budget: WorkBudget, storage: object, offset: object, shape: object, strides: object, grad: object, hooks: object,
    dtype: object, *metadata: object,
) -> object:  # fmt: skip
    if not isinstance(dtype, ElementType):
        raise TypeError
    result = _tensor(budget, storage, offset, shape, strides, grad, hooks, *metadata)
    return Strided(result.storage, dtype, offset, shape, strides) if isinstance(result, Strided) else result


def _storage(budget: WorkBudget, data: object) -> object:
    from phlox.record.formats.pytorch.reader import storage_in  # which uses this

    if not isinstance(data, bytes):
        raise TypeError
    budget.charge(len(data))
    return storage_in(data, budget)


def _parameter(budget: WorkBudget, data: object, *_: object) -> object:
    if not isinstance(data, (Strided, Unreadable)):
        raise TypeError
    return data


def _from_type(budget: WorkBudget, function: object, kind: object, arguments: object, state: object) -> object:
    # A subclass may add methods and attributes to its numbers, which are the tensor's, as `Tensor.numpy` gives them.
    if not (isinstance(kind, (Name, ForeignGlobal)) and isinstance(arguments, tuple)):
        raise TypeError
    if isinstance(function, ForeignGlobal):
        return Unreadable(f"a tensor of the class {kind.name}", _PLAIN)
    if not (isinstance(function, Function) and function.makes_tensor):
        raise TypeError
    value: object = function.make(budget, *cast("tuple[object, ...]", arguments))
    return Unreadable(f"a tensor of the class {kind.name}", _PLAIN) if value is _WRAPPED else value


def _dict(budget: WorkBudget, items: object = ()) -> object:
    if isinstance(items, Pairs):
        return items
    if not isinstance(items, (list, tuple)):
        raise TypeError
    pairs = cast("list[Any]", items)
    budget.charge(64 * len(pairs))
    return Pairs([(key, value) for key, value in pairs])


def _default_dict(budget: WorkBudget, factory: object = None) -> object:
    return Pairs()


def _items(budget: WorkBudget, items: object = None) -> object:
    if items is None:
        return []
    if not isinstance(items, (list, tuple)):
        raise TypeError
    return cast("object", items)


def _device(budget: WorkBudget, kind: str, index: int | None = None) -> object:
    budget.charge(len(kind))
    return kind if index is None else f"{kind}:{index:d}"


def _encoded(budget: WorkBudget, text: str, encoding: str = "latin1") -> object:
    budget.charge(len(text))
    if encoding not in ("latin1", "latin-1"):
        raise TypeError
    return text.encode("latin-1")


def _bytes(budget: WorkBudget, data: object = b"", encoding: str = "latin1") -> object:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise TypeError  # Python's bytes(n) would make n zeros
    return _encoded(budget, data, encoding)


def _numpy_type(budget: WorkBudget, name: str | Name, *_: object) -> object:
    if isinstance(name, Name):  # a dtype of `ml_dtypes`, which NumPy names by its class
        name = name.name
    dtype = _NUMPY_TYPES.get(name)
    return Unreadable(f"NumPy elements of type {shown(name)!r}") if dtype is None else NumpyType(dtype)


def _numpy_array(budget: WorkBudget, kind: object, shape: object, code: object) -> object:
    return NumpyArray()


def _numpy_scalar(budget: WorkBudget, dtype: object, data: bytes | str = b"") -> object:
    if isinstance(dtype, Unreadable):
        return dtype
    result = _numpy_frombuffer(budget, data, dtype, (), "C")
    return replace(result, is_scalar=True) if isinstance(result, NumpyArray) else result


def _numpy_frombuffer(
    budget: WorkBudget, data: bytes | str, dtype: object, shape: object, order: object, axes: object = None
) -> object:
    if isinstance(dtype, Unreadable):
        return dtype
    if not isinstance(dtype, NumpyType):
        raise TypeError
    budget.charge(len(data))
    lie = cast("tuple[int, ...]", axes) if order == "K" and isinstance(axes, tuple) else None
    return NumpyArray(dtype, shape, order == "F", data.encode() if isinstance(data, str) else data, axes=lie)


def _jax_array(budget: WorkBudget, function: object, arguments: object, state: object, aval: object) -> object:
    # JAX's reconstruction of the same data as NumPy's pickle.
    array = NumpyArray()
    set_numpy_state(budget, array, state)
    return array


def set_numpy_state(budget: WorkBudget, array: NumpyArray, state: object) -> None:
    """The effect of `numpy.ndarray.__setstate__`; TypeError for an invalid state."""
    match cast("tuple[object, ...]", state):
        case (int(), shape, NumpyType() as dtype, is_fortran, bytes() | str() as data):
            budget.charge(len(data))
            array.type, array.shape, array.is_fortran = dtype, shape, bool(is_fortran)
            array.data = data.encode() if isinstance(data, str) else data
        case (int(), _, Unreadable() as refused, _, _):
            array.type = refused
        case _:
            raise TypeError


def _itself(budget: WorkBudget, value: object, *_: object) -> object:
    return value


def _refused(description: str, remedy: str = PLAINLY) -> Callable[..., object]:
    def make(budget: WorkBudget, *_: object) -> object:
        return Unreadable(description, remedy)

    return make


_BUILTINS = ("builtins", "__builtin__")  # of Python 3 and 2
_CORES = ("numpy.core", "numpy._core")  # of NumPy 1 and 2
_TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")

_PLAIN = "save plain tensors: to_dense(), full_tensor() or dequantize() may give them"
_WRAPPED = Unreadable("a tensor of a class of its own", _PLAIN)

_MAKES_TENSOR: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_qtensor": _refused("a quantized tensor", "call dequantize() before saving"),
    "torch._utils._rebuild_sparse_tensor": _refused("a sparse tensor", "call to_dense() before saving"),
    "torch._utils._rebuild_nested_tensor": _refused("a nested tensor", "save its parts"),
    "torch._utils._rebuild_meta_tensor_no_storage": _refused(
        "a tensor of the meta device", "it has no values; give the module some before saving it"
    ),
    "torch._utils._rebuild_wrapper_subclass": lambda *_: _WRAPPED,
}

_OF_BUILTINS: dict[str, Callable[..., object]] = {
    "set": _items,
    "frozenset": _items,
    "bytes": _bytes,
    "bytearray": _bytes,
    "complex": _refused("a complex number"),
}

_OF_NUMPY: dict[str, Callable[..., object]] = {
    "multiarray._reconstruct": _numpy_array,
    "multiarray.scalar": _numpy_scalar,
    "numeric._frombuffer": _numpy_frombuffer,
}

_FUNCTIONS: dict[str, Callable[..., object]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": _default_dict,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _items,
    "torch.device": _device,
    "torch.storage._load_from_bytes": _storage,
    "torch.serialization._get_layout": _itself,
    "_codecs.encode": _encoded,
    "numpy.dtype": _numpy_type,
    "jax._src.array._reconstruct_array": _jax_array,
    **{f"torch.jit._pickle.build_{kind}list": _items for kind in ("int", "double", "bool", "tensor")},
    "torch.jit._pickle.restore_type_tag": _itself,
    **{f"{module}.{name}": make for module in _BUILTINS for name, make in _OF_BUILTINS.items()},
    **{f"{module}.{name}": make for module in _CORES for name, make in _OF_NUMPY.items()},
}

# Names of factories of defaultdict, of classes of NumPy arrays, and of PyTorch's quantization schemes.
_NAMES = (
    *(f"{module}.{name}" for module in _BUILTINS for name in ("dict", "list", "int", "long", "float", "str", "bool")),
    *("numpy.ndarray", "torch.per_tensor_affine", "torch.per_channel_affine", *_TENSOR_CLASSES),
)

_GLOBALS: dict[str, object] = {
    **{name: Name(name) for name in _NAMES},
    **{name: Function(name, make) for name, make in _FUNCTIONS.items()},
    **{name: Function(name, make, makes_tensor=True) for name, make in _MAKES_TENSOR.items()},
    **{name: Name(name) for name in _ML_TYPES},
    **TYPES,
    **{f"torch.{name}": of for name, of in STORAGES.items()},
    "torch.storage.UntypedStorage": STORAGES["UntypedStorage"],
}
