"""Compiling and loading our own CPU kernels, in C++, by Inductor, which keeps the libraries on disk.

They serve compiled programs only: eager work waits for no compiler. `vectors.h` is prepended to each of them.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import ctypes
import hashlib
import platform
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler import stored_graphs

_LIBRARY = "kernel.so"
POINTER, NUMBER, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


def load(name: str, arguments: Mapping[str, Sequence[Any]]) -> Any:
    """The functions of a kernel, with the types of their arguments; None, with a warning, if it cannot be compiled.

    None, too, on a CPU without AVX-512 and AVX2, which the kernels need.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    try:
        kernel = _library(source("vectors.h") + source(f"{name}.cpp"))
        kernel.lanes.restype = SIZE
        if not kernel.lanes():
            return None
    except Exception as error:  # a compiler may fail in any way
        lines = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(
            f"PyTorch's compiler does not work here, so there is no {name} of our own, and a compiled function takes "
            f"longer: {lines[0]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    for function, types in arguments.items():
        getattr(kernel, function).argtypes = list(types)
        getattr(kernel, function).restype = None
    return kernel


def _library(text: str) -> Any:
    """The library from a C++ source, from disk if it was compiled before."""
    if not stored_graphs.is_on():
        return compat.compile_cpp(text)
    key = hashlib.sha256(f"{stored_graphs.surroundings()} {text}".encode()).hexdigest()
    folder = stored_graphs.FOLDER.load(key)
    if folder is not None:
        try:
            return ctypes.CDLL(str(folder / _LIBRARY))
        except OSError as error:
            stored_graphs.FOLDER.discard(key, f"cannot be loaded ({error})")
    library = compat.compile_cpp(text)
    stored_graphs.FOLDER.store(key, {_LIBRARY: Path(library._name).read_bytes()})
    return library


@cache
def source(name: str) -> str:
    """The text of a file of this folder."""
    return Path(__file__).with_name(name).read_text("utf-8")


def integers(*numbers: int) -> Any:
    """The numbers as a C array."""
    return (SIZE * len(numbers))(*numbers)


def address(x: torch.Tensor | None) -> int | None:
    """The address of a tensor's elements."""
    return None if x is None else x.data_ptr()
