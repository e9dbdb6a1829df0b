"""Block types: equal to the package `gguf`, kept packed without loss, and with the error that searching scales gives.

Serves: phlox/record/formats/gguf/{blocks,quantization}.py, phlox/record/{packed,codings}.py
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from phlox.record import PackedArrays, RecordError
from phlox.record.codings import CODINGS, codes_of, words_of
from phlox.record.formats.gguf.blocks import REFUSED, TYPES, BlockType, fitting
from phlox.record.formats.gguf.quantization import quantized

SEARCHED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
SHAPES = [(1, 1), (3, 1), (2, 5), (33, 2), (0, 3)]
"""Rows, and blocks in a row."""


def bytes_of(kind: BlockType, rows: int, blocks: int) -> np.ndarray:
    """Any bytes are blocks of any type."""
    data = np.random.default_rng(rows).integers(0, 256, (rows, blocks * kind.size), dtype=np.uint8)
    if kind.name == "MXFP4":  # where 255 is not a number, and to `gguf` one more power of two
        data[:, :: kind.size] %= 255
    return data


def weights(kind: BlockType, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    array = rng.standard_normal((rows, blocks * kind.block)) * rng.lognormal(0, 2, (rows, 1))
    array[1:2] = 0
    array[2:3] = abs(array[2:3])
    array[3:4, ::2] = 0
    return array.astype(np.float32)


def test_the_table_is_that_of_ggml() -> None:
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    ours = {kind.number: (kind.block, kind.size) for kind in TYPES.values()}
    ours |= {number: size for number, (name, *size) in REFUSED.items() if name != "Q8_1"}
    names = {number: name for number, (name, *_) in REFUSED.items()} | {
        kind.number: name for name, kind in TYPES.items()
    }
    assert {number: tuple(size) for number, size in ours.items()} == {n: sizes[n] for n in ours}
    assert names == {number: gguf.GGMLQuantizationType(number).name for number in names}
    elements = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    assert {kind.name for kind in gguf.GGMLQuantizationType} == {*names.values(), *elements}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_any_bytes_are_read_as_gguf_reads_them(kind: BlockType, shape: tuple[int, int]) -> None:
    data = bytes_of(kind, *shape)
    ours, packed = kind.dequantized(data), kind.packed(data)
    if shape[0]:
        with np.errstate(all="ignore"):
            expected = dequantize(data, gguf.GGMLQuantizationType(kind.number))
        np.testing.assert_array_equal(ours, expected)
    assert ours.dtype == np.float32 and ours.shape == packed.shape == (shape[0], shape[1] * kind.block)
    np.testing.assert_array_equal(packed.dequantized(), ours)
    assert packed.codes.dtype == np.int32 and kind.bytes_of(packed).tobytes() == data.tobytes()
    assert packed.nbytes <= 5 * kind.block // 4 * shape[0] * shape[1] + 8 * shape[0]
    some = np.arange(shape[0])[::-2]
    np.testing.assert_array_equal(packed.rows(some).dequantized(), ours[some])
    np.testing.assert_array_equal(packed.rows(slice(1, 3)).dequantized(), ours[1:3])


@pytest.mark.parametrize("shape", SHAPES[1:4])
@pytest.mark.parametrize("name", [name for name in TYPES if name not in SEARCHED])
def test_the_bytes_of_gguf_are_written(name: str, shape: tuple[int, int]) -> None:
    array, kind = weights(TYPES[name], *shape), TYPES[name]
    np.testing.assert_array_equal(kind.encoded(array, quantized), quantize(array, gguf.GGMLQuantizationType[name]))


def simple(name: str, array: np.ndarray) -> np.ndarray:
    """Each group from its least to its largest number, or with its peak at the end, by rounding."""
    kind = TYPES[name]
    blocks = array.reshape(-1, kind.block)
    f16 = np.float16
    with np.errstate(all="ignore"):
        if name == "IQ4_NL":
            peak = np.take_along_axis(blocks, abs(blocks).argmax(-1, keepdims=True), -1)
            scale, levels = (peak / -127).astype(f16).astype(np.float32), CODINGS["iq4nl"].levels
            numbers = np.nan_to_num(blocks / scale)
            return (levels[abs(numbers[..., None] - levels).argmin(-1)] * scale).reshape(array.shape)
        if name == "Q6_K":
            groups = blocks.reshape(len(blocks), 16, 16)
            scales = np.take_along_axis(groups, abs(groups).argmax(-1, keepdims=True), -1) / -32
            peak = np.take_along_axis(scales, abs(scales).argmax(1, keepdims=True), 1)
            unit = (peak / -128).astype(f16).astype(np.float32)
            steps = np.rint(np.nan_to_num(scales / unit)).clip(-128, 127) * unit
            return (np.rint(np.nan_to_num(groups / steps)).clip(-32, 31) * steps).reshape(array.shape)
        groups = blocks.reshape(len(blocks), 8, 32)
        low = groups.min(-1, keepdims=True).clip(max=0)
        scales = (groups.max(-1, keepdims=True) - low) / kind.top
        units = [(numbers.max(1, keepdims=True) / 63).astype(f16).astype(np.float32) for numbers in (scales, -low)]
        steps, lows = (
            np.rint(np.nan_to_num(n / u)).clip(0, 63) * u for n, u in zip((scales, -low), units, strict=True)
        )
        codes = np.rint(np.nan_to_num((groups + lows) / steps)).clip(0, kind.top)
        return (codes * steps - lows).reshape(array.shape)


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_scales_are_never_worse_than_simple_ones(name: str) -> None:
    kind = TYPES[name]
    array = weights(kind, 40, 3)
    numbers = kind.dequantized(kind.encoded(array, quantized))

    def errors(other: np.ndarray) -> np.ndarray:
        return np.square(array.astype(np.float64) - other).reshape(-1, kind.block).sum(axis=1)

    ours, theirs = errors(numbers), errors(simple(name, array))
    assert (ours <= theirs * (1 + 1e-5)).all() and ours.sum() < 0.95 * theirs.sum()
    np.testing.assert_array_equal(numbers[1], 0)


def test_what_a_type_cannot_hold() -> None:
    for kind in TYPES.values():
        array = np.zeros((1, kind.block), np.float32)
        array[0, 3] = np.nan
        with pytest.raises(RecordError, match=f"it has the value nan, which {kind.name} cannot hold"):
            kind.encoded(array, quantized)
        if kind.name != "MXFP4":
            array[0, 3:5] = 3e38, -3e38
            with pytest.raises(RecordError, match=f"values up to 3e\\+38, too large for the scales of {kind.name}"):
                kind.encoded(array, quantized)
        tiny = np.full((1, kind.block), 1e-42, np.float32)  # below all scales: no error, no warning
        assert abs(kind.dequantized(kind.encoded(tiny, quantized))).max() < 1e-37


def test_a_packed_matrix_finds_its_type() -> None:
    for kind in TYPES.values():
        assert fitting(kind.packed(bytes_of(kind, 4, 2))) is kind
    q5, q8 = TYPES["Q5_0"], TYPES["Q8_0"]
    assert q8.bytes_of(q5.packed(bytes_of(q5, 4, 2))).shape == (4, 68)  # exact, if larger
    with pytest.raises(RecordError, match="Q5_0 has no codes of so many bits"):
        q5.bytes_of(q8.packed(bytes_of(q8, 4, 2)))
    q4k = TYPES["Q4_K"].packed(bytes_of(TYPES["Q4_K"], 2, 1))
    assert isinstance(q4k.scales, PackedArrays)
    wide = q4k._replace(scales=q4k.scales._replace(codes=q4k.scales.codes | 64))
    assert fitting(wide) is None
    assert (
        fitting(q4k._replace(offsets=None)) is None
        and fitting(PackedArrays(np.zeros((1, 5), np.int32), "int8", 20)) is None
    )
    floats = PackedArrays(np.zeros((1, 8), np.int32), "int8", 32, np.ones((1, 1), np.float32))
    assert fitting(floats) is None and (floats.dequantized() == 0).all()


@given(st.integers(0, 3), st.integers(0, 9), st.sampled_from([4, 8, 16]))
def test_words(rows: int, columns: int, bits: int) -> None:
    dtype = np.uint16 if bits == 16 else np.uint8
    codes = np.random.default_rng(columns).integers(0, 1 << bits, (rows, columns)).astype(dtype)
    words = words_of(codes, bits)
    assert words.dtype == np.int32 and words.shape == (rows, -(-columns * bits // 32))
    np.testing.assert_array_equal(codes_of(words, bits, columns), codes)
    if rows and columns:
        per_word = 32 // bits
        first = sum(int(code) << bits * i for i, code in enumerate(codes[0, :per_word]))
        assert int(words[0, 0]) % (1 << 32) == first
