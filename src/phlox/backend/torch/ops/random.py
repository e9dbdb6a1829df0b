"""Random numbers on PyTorch tensors, bit for bit as `phlox.backend.threefry.generator` defines them.

They are computed in two ways. On the CPU, NumPy computes them and PyTorch wraps the memory: several times faster than a
hundred operations of PyTorch. In a program this is one operation, since PyTorch's compiler would take longer for the
hundred than for everything else; the masks of dropout are drawn there by a kernel of our own. On other devices, for a
state that is a tensor, or with `native`, PyTorch computes them in int64: it has no unsigned arithmetic, and in int64
nothing overflows.

`state` is `uint32[3] = (k0, k1, position)` as a NumPy array, or as an int64 or int32 tensor with the same low 32 bits,
or as `RngState` of one in a program.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from phlox.backend.parallel import Part
from phlox.backend.threefry import generator as host
from phlox.backend.threefry.generator import (
    DROPPED,
    PARITY,
    ROTATIONS,
    check_draw,
    check_permutation,
    check_range,
    check_threshold,
    in_halves,
)
from phlox.backend.threefry.half_normal import NODES, ORIGIN, STEPS
from phlox.backend.torch.compiler.codegen import codegen, is_on
from phlox.backend.torch.compiler.kernels import bernoulli
from phlox.backend.torch.tracer import RngState, as_constants, makes_plain_tensors, tracing

State = Any  # np.ndarray, Tensor or Words
Shape = tuple[int, ...]
Device = torch.device | str | None

_M32: Final = 0xFFFFFFFF
_CPU: Final = torch.device("cpu")
_DTYPES: Final[dict[torch.dtype, Any]] = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}
_DROPPED: Final = {torch.float16: DROPPED["float16"], torch.bfloat16: DROPPED["bfloat16"]}
_TABLES: Final[dict[torch.device, tuple[Tensor, Tensor]]] = {}


def _on_host(state: State, device: Device, native: bool) -> bool:
    if native or isinstance(state, Tensor) or torch.compiler.is_compiling():
        return False
    return device is None or torch.device(device).type == "cpu"


def _from_host(
    name: str,
    state: State,
    shape: Shape,
    dtype: torch.dtype,
    low: int | None = None,
    high: int | None = None,
    part: Part | None = None,
) -> Tensor:
    """A draw by NumPy's function of this name; in a program, at run time."""
    if isinstance(state, RngState):
        by_kernel = name == "random_bernoulli" and codegen() == "inductor" and is_on("bernoulli")
        return _operation()(state.words, name, shape, dtype, low, high, by_kernel, *(part or (None, None)))
    if name == "random_permutation":
        return _wrap(host.random_permutation(state, *shape))
    options = [_DTYPES[dtype]] if dtype.is_floating_point else [number for number in (low, high) if number is not None]
    return _wrap(getattr(host, name)(state, shape, *options, part))


@lru_cache(1)
def _operation() -> Callable[..., Tensor]:
    """`_from_host` as an operation that PyTorch records; it is registered at first use."""

    def draw(
        words: Tensor,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        low: int | None,
        high: int | None,
        by_kernel: bool,
        start: int | None = None,
        total: int | None = None,
    ) -> Tensor:
        state, size = words.numpy().astype(np.uint32), tuple(shape)
        part = None if start is None or total is None else Part(start, total)
        mask = bernoulli.draw(state, size, cast(int, low), part) if by_kernel else None
        return _from_host(name, state, size, dtype, low, high, part) if mask is None else mask

    def tracer(words: Tensor, name: str, shape: Sequence[int], dtype: torch.dtype, *_: Any) -> Tensor:
        return words.new_empty(shape, dtype=dtype)

    schema = (
        "(Tensor words, str name, SymInt[] shape, ScalarType dtype, int? low, int? high, bool by_kernel, "
        "int? start=None, int? total=None) -> Tensor"
    )
    operation: Any = torch.library.custom_op("phlox::draw", draw, mutates_args=(), schema=schema)
    operation.register_fake(tracer)
    return operation


def _wrap(array: Any) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return _wrap(array.view(np.int16)).view(torch.bfloat16)
    return cast(Any, torch).from_numpy(array)  # its annotation is incomplete


def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    tables = _TABLES.get(device)
    if tables is None:
        with as_constants():
            tables = _wrap(NODES.copy()).to(device), _wrap(STEPS.copy()).to(device)
        if tracing.get() or makes_plain_tensors():
            _TABLES[device] = tables
    return tables


def _pairs(state: State, start: int, stop: int, n: int, device: Device) -> tuple[Tensor, Tensor]:
    """The words of pairs start..stop-1 of a draw of n words, as int64 in 0..2**32-1."""
    if isinstance(state, (Tensor, RngState)):
        check_draw(n)
        words = state.words if isinstance(state, RngState) else state
        k0, k1, position = _key(words) if isinstance(state, RngState) else (words.to(torch.int64) & _M32).unbind()
        device = words.device if device is None else device
    else:
        k0, k1, position = (int(word) for word in state)
        check_draw(n, position)
    key = (k0, k1, k0 ^ k1 ^ PARITY)
    b = torch.arange(start, stop, dtype=torch.int64, device=device) + k1 & _M32
    a = torch.zeros_like(b) + (k0 + position & _M32)
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            a = a + b  # not masked to 32 bits: it stays under 2**38, and only its low bits are used
            b = ((b << r | b >> 32 - r) ^ a) & _M32
        a = a + key[(group + 1) % 3]
        b = b + key[(group + 2) % 3] + (group + 1) & _M32
    return a & _M32, b


def _key_of(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k0, k1, position = (words.to(torch.int64) & _M32).unbind()
    return k0.clone(), k1.clone(), position.clone()


_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("key(Tensor words) -> (Tensor, Tensor, Tensor)")
_library.impl("key", _key_of, "CompositeExplicitAutograd")
torch.library.register_fake("phlox::key", _key_of, lib=_library)


def _key(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The words of a program's stream, each as a tensor of rank 0 on the CPU, where the state is.

    As one operation: Inductor passes such a tensor to a kernel of a GPU as a number, but it would let the kernel read
    an element of a longer tensor from the memory of the CPU.
    """
    return torch.ops.phlox.key(words)


def _words(state: State, n: int, device: Device, part: Part | None = None) -> Tensor:
    """The n words of a draw, as int64 in 0..2**32-1."""
    if part is None or part.total == n:
        return torch.cat(_pairs(state, 0, (n + 1) // 2, n, device))[:n]
    first, second = in_halves(part.start, part.start + n, part.total)
    a, _ = _pairs(state, *first, part.total, device)
    _, b = _pairs(state, *second, part.total, device)
    return torch.cat([a, b])


def random_bits(
    state: State, n: int, device: Device = None, *, native: bool = False, part: Part | None = None
) -> Tensor:
    """The n random words of a draw, as int32 with the bits of the uint32."""
    if _on_host(state, device, native):
        return _wrap(host.random_bits(state, n, part).view(np.int32))
    return _words(state, n, device, part).to(torch.int32)


def random_uniform(
    state: State,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    device: Device = None,
    *,
    native: bool = False,
    part: Part | None = None,
) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2**-24; float16 and bfloat16 keep their leading 11 or 8 bits.

    >>> random_uniform(np.zeros(3, np.uint32), (2,))
    tensor([0.4185, 0.6005])
    """
    if _on_host(state, device, native):
        return _from_host("random_uniform", state, shape, dtype, part=part)
    v = _words(state, math.prod(shape), device, part) >> 8
    if dtype not in _DROPPED:
        return (v.to(dtype) * 2.0**-24).reshape(shape)
    bits = v.to(torch.float32).view(torch.int32) & -1 << _DROPPED[dtype]
    return (bits.view(torch.float32) * 2.0**-24).to(dtype).reshape(shape)


def random_normal(
    state: State,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    device: Device = None,
    *,
    native: bool = False,
    part: Part | None = None,
) -> Tensor:
    """Standard normal numbers, within 3.4e-7 of the exact quantiles, at most 5.54 from 0.

    >>> random_normal(np.zeros(3, np.uint32), (2,))
    tensor([-0.8091,  0.5237])
    """
    if _on_host(state, device, native):
        return _from_host("random_normal", state, shape, dtype, part=part)
    words = _words(state, math.prod(shape), device, part)
    bits = ((words >> 8) + 1).to(torch.float32).view(torch.int32)
    k = ((bits >> 14) - ORIGIN).to(torch.int64)
    nodes, steps = _tables(words.device)
    r = nodes[k] - (steps[k] * (bits & 0x3FFF) >> 14)
    r = torch.where((words & 1).to(torch.bool), -r, r)
    wide = torch.float32 if dtype in _DROPPED else dtype
    return (r.to(wide) * 2.0**-26).to(dtype).reshape(shape)


def random_bernoulli(
    state: State,
    shape: Shape,
    threshold: int,
    device: Device = None,
    *,
    native: bool = False,
    part: Part | None = None,
) -> Tensor:
    """True with probability threshold / 65536, from 16 random bits for each element."""
    if _on_host(state, device, native):
        return _from_host("random_bernoulli", state, shape, torch.bool, threshold, part=part)
    check_threshold(threshold)
    n = math.prod(shape)
    if part is None or part.total == n:
        words = _words(state, (n + 1) // 2, device)
        return torch.cat([(words & 0xFFFF) < threshold, (words >> 16) < threshold])[:n].reshape(shape)
    half = (part.total + 1) // 2
    (low, end_of_low), (high, end_of_high) = in_halves(part.start, part.start + n, part.total)
    lower = _words(state, end_of_low - low, device, Part(low, half)) & 0xFFFF
    upper = _words(state, end_of_high - high, device, Part(high, half)) >> 16
    return (torch.cat([lower, upper]) < threshold).reshape(shape)


def _high_half(x: Tensor, y: int, carry: Tensor | int = 0) -> Tensor:
    """(x * y + carry) >> 32 for x and the carry under 2**32 and y up to 2**32, with no number over 2**49."""
    return x * (y >> 16) + (x * (y & 0xFFFF) + carry >> 16) >> 16


def random_integers(
    state: State,
    shape: Shape,
    low: int,
    high: int,
    device: Device = None,
    *,
    native: bool = False,
    part: Part | None = None,
) -> Tensor:
    """Integers in [low, high), int32, practically unbiased: 64 random bits for each element."""
    if _on_host(state, device, native):
        return _from_host("random_integers", state, shape, torch.int32, low, high, part)
    check_range(low, high)
    n = math.prod(shape)
    start, total = Part(0, n) if part is None else part
    a, b = _pairs(state, start, start + n, 2 * total, device)
    return (_high_half(a, high - low, _high_half(b, high - low)) + low).to(torch.int32).reshape(shape)


def random_permutation(state: State, n: int, device: Device = None, *, native: bool = False) -> Tensor:
    """0..n-1 in random order, int32: the stable argsort of n words."""
    if _on_host(state, device, native):
        return _from_host("random_permutation", state, (n,), torch.int32)
    check_permutation(n)
    return torch.argsort(_words(state, n, device), stable=True).to(torch.int32)


def state_of_seed(seed: Tensor) -> RngState:
    """The state at the start of the stream of an integer in a program: its 64 bits, high word first, and position 0."""
    bits = seed.to(torch.int64)
    return RngState(torch.stack([bits >> 32 & _M32, bits & _M32, torch.zeros_like(bits)]))


def fold_in(state: RngState, number: int) -> RngState:
    """The state at the start of a sub-stream; its number is the number at the state's position plus `number`."""
    return RngState(_folding()(state.words, number))


@lru_cache(1)
def _folding() -> Callable[..., Tensor]:
    """The work of `fold_in` as one operation of a program."""

    def fold(words: Tensor, number: int) -> Tensor:
        k0, k1, position = words.numpy().astype(np.uint32).tolist()
        return torch.tensor([*host.fold_in((k0, k1), position + number & _M32), 0], dtype=torch.int64)

    def tracer(words: Tensor, number: int) -> Tensor:
        return words.new_empty((3,), dtype=torch.int64)

    schema = "(Tensor words, int number) -> Tensor"
    operation: Any = torch.library.custom_op("phlox::fold_in", fold, mutates_args=(), schema=schema)
    operation.register_fake(tracer)
    return operation
