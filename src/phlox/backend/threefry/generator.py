"""The specification of the random numbers that every engine draws, and its implementation on NumPy arrays.

The NumPy backend draws by these functions; those of JAX and PyTorch give the same numbers, bit for bit. Code that needs
random numbers without an engine (keys of sub-streams, the order of a data set) calls them directly.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011): a keyed bijection of two 32-bit words. A *draw* is named by `state = uint32[3] = (k0, k1, position)`: the
key of a stream, and the number of the draw in it. Its n random words are

    h = ceil(n / 2);  (a[i], b[i]) = threefry((k0, k1), (position, i)) for i in 0..h-1;  words = concat(a, b)[:n]

and the other functions are made of these words, in row-major order:

- uniform: the top 24 bits times 2**-24, the same in float32 and float64; float16 and bfloat16 round the float32 number
  down (they drop the mantissa bits that do not fit), so the result stays below 1.
- normal: bit 0 is the sign, m - 1 the top 24 bits, the magnitude comes from `half_normal`; float16 and bfloat16 round
  the float32 number to nearest even.
- bernoulli: element < threshold, for the 16-bit elements concat(words & 0xFFFF, words >> 16)[:n] of ceil(n / 2) words.
- integers: low + floor((high - low) * (a[i] * 2**32 + b[i]) / 2**64) of 2 n words: no probability is off by more than a
  factor 1 + 2**-32.
- permutation: the stable argsort of n words.

All functions except the permutation can draw a `part` of a larger draw, consecutive elements of it, with the same bits.
They compute no other elements, except the other word of each pair.

Position 0xFFFFFFFF is for the keys of sub-streams (`fold_in`), so no draw may have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from phlox.backend.parallel import Part
from phlox.backend.threefry.half_normal import NODES, ORIGIN, STEPS
from phlox.errors import RangeError

State = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]

PARITY: Final = 0x1BD11BDA  # of the key schedule
ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
RESERVED: Final = 0xFFFFFFFF  # the position of sub-streams
DROPPED: Final = {"float16": 13, "bfloat16": 16}  # mantissa bits of a float32 that do not fit the type
_M32: Final = 0xFFFFFFFF

_BLOCKS = 32768  # in a chunk, so that its buffers stay in the second-level cache
_BIG = 192  # up to so many blocks, integers of Python are faster than arrays
_ONES = sum(1 << 64 * i for i in range(_BIG))
_COUNTERS = sum(i << 64 * i for i in range(_BIG))
# 0-d arrays, because NumPy converts a scalar at each call
_SHIFTS = tuple(tuple((np.array(r, np.uint32), np.array(32 - r, np.uint32)) for r in group) for group in ROTATIONS)


def check_draw(n: int, position: int = 0) -> None:
    """Refuse a draw of over 2**32 words, or one at the position reserved for sub-streams."""
    if n > 1 << 32:
        raise RangeError(f"a draw has at most 2**32 random words, this one needs {n}; draw in several parts")
    if position == RESERVED:
        raise RangeError("position 0xFFFFFFFF of a random stream is reserved for sub-streams; start a new stream")


def check_threshold(threshold: int) -> None:
    """Refuse a threshold of `random_bernoulli` that is no probability in units of 2**-16."""
    if not 0 <= threshold <= 1 << 16:
        raise RangeError(f"threshold is round(p * 65536) of a probability p, in 0..65536, not {threshold}")


def check_permutation(n: int) -> None:
    """Refuse a length of `random_permutation` whose indices int32 cannot hold."""
    if not 0 <= n <= 1 << 31:
        raise RangeError(f"a random permutation has 0..2**31 elements, not {n}")


def check_range(low: int, high: int) -> None:
    """Refuse bounds of `random_integers` that hold no integer, or integers that int32 cannot."""
    if not -(1 << 31) <= low < high <= 1 << 31:
        raise RangeError(f"random integers need -2**31 <= low < high <= 2**31, not low={low}, high={high}")


def check_substream(data: int) -> None:
    """Refuse a number of a sub-stream that is no uint32."""
    if not 0 <= data <= _M32:
        raise RangeError(f"the number of a sub-stream must be in 0..2**32-1, not {data}")


def in_halves(start: int, stop: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements start..stop-1 of n as a range of the first half, which is the longer, and one of the second half.

    >>> in_halves(2, 6, 7)
    ((2, 4), (0, 2))
    """
    half = (n + 1) // 2
    return (min(start, half), min(stop, half)), (max(start, half) - half, max(stop, half) - half)


def fold_in(key: tuple[int, int], data: int) -> tuple[int, int]:
    """The key of sub-stream number `data`, in 0..2**32-1, of the stream with this key.

    Sub-streams of one stream have different keys, because Threefry is a bijection; keys of different streams are
    equal only by chance, as two random words of 64 bits.

    Raises:
        RangeError: `data` is out of range.

    >>> fold_in((0, 0), 7) != fold_in((0, 0), 8)
    True
    """
    check_substream(data)
    return _lanes(*key, RESERVED, data, 1)


def _lanes(k0: int, k1: int, position: int, first: int, blocks: int) -> tuple[int, int]:
    """Blocks first..first+blocks-1, as two integers that hold word i in their bits 64 i .. 64 i + 31.

    A whole small draw is computed in Python integers: forty nanoseconds for an operation, an eighth of NumPy's time.
    Between the words there are free bits: sums are masked to 32 bits only where a shift would reach a neighbour.
    """
    room = (1 << 64 * blocks) - 1
    ones = _ONES & room
    mask = ones * _M32
    key = (k0 * ones, k1 * ones, (k0 ^ k1 ^ PARITY) * ones)
    a = (k0 + position & _M32) * ones
    b = (_COUNTERS & room) + (k1 + first) * ones & mask
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            a += b
            b = ((b << r | b >> 32 - r) ^ a) & mask
        a += key[(group + 1) % 3]
        b = b + key[(group + 2) % 3] + (group + 1) * ones & mask
    return a & mask, b


def _rounds(k0: int, k1: int, position: int, a: Words, b: Words, t: Words) -> None:
    """Threefry in place: b has the counters, a is uninitialized, t is scratch."""
    key = (k0, k1, k0 ^ k1 ^ PARITY)
    a.fill(k0 + position & _M32)
    np.add(b, np.uint32(k1), b)
    for group in range(5):
        for left, right in _SHIFTS[group & 1]:
            np.add(a, b, a)
            np.right_shift(b, right, t)
            np.left_shift(b, left, b)
            np.bitwise_or(b, t, b)
            np.bitwise_xor(b, a, b)
        np.add(a, np.uint32(key[(group + 1) % 3]), a)
        np.add(b, np.uint32(key[(group + 2) % 3] + group + 1 & _M32), b)


def _checked_words(state: State, n: int) -> tuple[int, int, int]:
    """The words of a state, after a check that it can draw n words; called before memory is allocated."""
    k0, k1, position = state.tolist()
    check_draw(n, position)
    return k0, k1, position


def _pairs(draw: tuple[int, int, int], start: int, stop: int) -> Iterator[tuple[int, Words]]:
    """Pairs start..stop-1 of a draw in pieces: the index of a piece's first pair, and its words.

    The words are the first words of its pairs, then the second ones; the caller may overwrite them.
    """
    k0, k1, position = draw
    count = stop - start
    if count <= _BIG:
        a, b = _lanes(k0, k1, position, start, count)
        pairs = np.frombuffer((a | b << 32).to_bytes(8 * count, "little"), "<u4").reshape(count, 2)
        yield 0, pairs.T.astype(np.uint32, order="C").reshape(-1)
        return
    size = min(count, _BLOCKS)
    numbers = np.arange(size, dtype=np.uint32)
    words, scratch = np.empty(2 * size, np.uint32), np.empty(size, np.uint32)
    for offset in range(0, count, size):
        size = min(size, count - offset)
        a, b = words[:size], words[size : 2 * size]
        np.add(numbers[:size], np.uint32(start + offset), b)
        _rounds(k0, k1, position, a, b, scratch[:size])
        yield offset, words[: 2 * size]


def _chunks(draw: tuple[int, int, int], n: int, part: Part | None = None) -> Iterator[tuple[int, Words]]:
    """The n words of a draw in pieces: (index of the first word, words); the caller may overwrite the words."""
    if part is not None and part.total != n:
        first, second = in_halves(part.start, part.start + n, part.total)
        for offset, words in _pairs(draw, *first):
            yield offset, words[: words.size // 2]
        for offset, words in _pairs(draw, *second):
            yield first[1] - first[0] + offset, words[words.size // 2 :]
        return
    h = (n + 1) // 2
    for start, words in _pairs(draw, 0, h):
        size = words.size // 2
        if size == h:
            yield 0, words[:n]
        else:
            yield start, words[:size]
            yield h + start, words[size : size + n - h - start]


def random_bits(state: State, n: int, part: Part | None = None) -> Words:
    """The n random words of a draw, uint32.

    >>> [hex(word) for word in random_bits(np.zeros(3, np.uint32), 2)]
    ['0x6b200159', '0x99ba4efe']
    """
    draw = _checked_words(state, n if part is None else part.total)
    out = np.empty(n, np.uint32)
    for start, words in _chunks(draw, n, part):
        out[start : start + words.size] = words
    return out


def _wide(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The memory to compute the numbers of `part` in: `part` itself, or float32 if its elements are narrower."""
    return part if part.itemsize >= 4 else np.empty(part.size, np.float32)


def random_uniform(
    state: State, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, part: Part | None = None
) -> npt.NDArray[Any]:
    """Uniform numbers in [0, 1), multiples of 2**-24; float16 and bfloat16 keep their leading 11 or 8 bits.

    >>> random_uniform(np.zeros(3, np.uint32), (2,))
    array([0.4184571 , 0.60049903], dtype=float32)
    """
    n = math.prod(shape)
    draw = _checked_words(state, n if part is None else part.total)
    out = np.empty(n, dtype)
    for start, words in _chunks(draw, n, part):
        piece = out[start : start + words.size]
        wide = _wide(piece)
        words >>= 8
        wide[...] = words.view(np.int32)
        if wide is not piece:
            pattern = wide.view(np.int32)
            pattern &= -1 << DROPPED[out.dtype.name]
        wide *= 2.0**-24
        if wide is not piece:
            piece[...] = wide
    return out.reshape(shape)


def random_normal(
    state: State, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, part: Part | None = None
) -> npt.NDArray[Any]:
    """Standard normal numbers, within 3.4e-7 of the exact quantiles, at most 5.54 from 0.

    >>> random_normal(np.zeros(3, np.uint32), (2,))
    array([-0.80910087,  0.523683  ], dtype=float32)
    """
    n = math.prod(shape)
    draw = _checked_words(state, n if part is None else part.total)
    out = np.empty(n, dtype)
    room = min(n, 2 * _BLOCKS)
    floats, indices, steps = np.empty(room, np.float32), np.empty(room, np.intp), np.empty(room, np.int32)
    for start, words in _chunks(draw, n, part):
        piece = out[start : start + words.size]
        wide = _wide(piece)
        m, index, step = floats[: words.size], indices[: words.size], steps[: words.size]
        sign = words.view(np.int32) << 31
        sign >>= 31  # 0 or -1, and (x ^ sign) - sign is x or -x
        words >>= 8
        words += 1
        m[...] = words.view(np.int32)
        pattern, node = m.view(np.int32), words.view(np.int32)
        np.right_shift(pattern, 14, out=node)
        node -= ORIGIN
        index[...] = node
        pattern &= 0x3FFF
        STEPS.take(index, out=step, mode="wrap")  # no index is out of range, and "wrap" is the fastest mode
        step *= pattern
        step >>= 14
        NODES.take(index, out=node, mode="wrap")
        node -= step
        node ^= sign
        node -= sign
        wide[...] = node
        wide *= 2.0**-26
        if wide is not piece:
            piece[...] = wide
    return out.reshape(shape)


def random_bernoulli(
    state: State, shape: tuple[int, ...], threshold: int, part: Part | None = None
) -> npt.NDArray[np.bool_]:
    """True with probability threshold / 65536, from 16 random bits for each element.

    >>> random_bernoulli(np.zeros(3, np.uint32), (4,), 32768)
    array([ True,  True,  True, False])
    """
    check_threshold(threshold)
    n = math.prod(shape)
    total = n if part is None else part.total
    half = (total + 1) // 2
    draw = _checked_words(state, half)
    out = np.empty(n, np.bool_)
    if part is not None and total != n:
        (low, end_of_low), (high, end_of_high) = in_halves(part.start, part.start + n, total)
        count = end_of_low - low
        for start, words in _chunks(draw, count, Part(low, half)):
            np.less(words & 0xFFFF, threshold, out=out[start : start + words.size])
        for start, words in _chunks(draw, end_of_high - high, Part(high, half)):
            words >>= 16
            np.less(words, threshold, out=out[count + start : count + start + words.size])
        return out.reshape(shape)
    for start, words in _chunks(draw, half):
        low, high = out[start : start + words.size], out[half + start : half + start + words.size]
        np.less(words & 0xFFFF, threshold, out=low)
        words >>= 16
        np.less(words[: high.size], threshold, out=high)
    return out.reshape(shape)


def random_integers(
    state: State, shape: tuple[int, ...], low: int, high: int, part: Part | None = None
) -> npt.NDArray[np.int32]:
    """Integers in [low, high), int32, practically unbiased: 64 random bits for each element.

    >>> random_integers(np.zeros(3, np.uint32), (4,), 1, 7)
    array([3, 2, 6, 4], dtype=int32)
    """
    check_range(low, high)
    n = math.prod(shape)
    first, total = Part(0, n) if part is None else part
    draw = _checked_words(state, 2 * total)
    out = np.empty(n, np.int32)
    span = np.uint64(high - low)
    for start, words in _pairs(draw, first, first + n):
        a, b = words.astype(np.uint64).reshape(2, -1)
        a *= span
        b *= span
        b >>= 32
        a += b
        a >>= 32
        out[start : start + a.size] = a.astype(np.int64) + low
    return out.reshape(shape)


def random_permutation(state: State, n: int) -> npt.NDArray[np.int32]:
    """0..n-1 in random order, int32: the stable argsort of n words.

    >>> random_permutation(np.zeros(3, np.uint32), 4)
    array([1, 0, 2, 3], dtype=int32)
    """
    check_permutation(n)
    words = random_bits(state, n)
    # NumPy sorts 16-bit keys by radix, in linear time: twice that is three times as fast as one sort of 32-bit keys.
    order = np.argsort(words.astype(np.uint16), kind="stable")
    words >>= 16
    return order[np.argsort(words.astype(np.uint16)[order], kind="stable")].astype(np.int32)
