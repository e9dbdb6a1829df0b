"""Saving packed weights: as compressed-tensors, or as bitsandbytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from phlox.backend.contract.nn.packed import CODINGS, unpacked_codes
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter
from phlox.interop.huggingface.quantized.bitsandbytes import STATE
from phlox.interop.huggingface.quantized.compressed_tensors import packed_zeros
from phlox.interop.huggingface.quantized.loading import row_numbers, rows_in
from phlox.interop.huggingface.quantized.matrix import SIGN_BITS, Host, listed
from phlox.module import Module
from phlox.module.packed import Packed, value_of
from phlox.module.reparameterization import Site, Sites
from phlox.nn import Linear
from phlox.record import LazyTensor, Record

_OF_COMPRESSED_TENSORS = ("int8", "uint8", "int4", "uint4", "e4m3")
_OF_BITSANDBYTES = ("nf4", "fp4")
_LEAST_BLOCK, _MOST_BLOCK = 32, 4096


class Whole(NamedTuple):
    """A weight of the model of `transformers`, and the packed ones of ours that it consists of."""

    layer: str
    parts: list[tuple[Packed, Host]]
    """Each with the rows of it, in order."""
    coding: str
    rows: int
    columns: int
    groups: int
    has_offsets: bool

    def words(self) -> Host:
        """The codes, read now."""
        return np.concatenate([part.words.val().numpy()[rows] for part, rows in self.parts]).astype(np.int32)

    def of_groups(self, name: str) -> Host:
        """The scales or offsets [rows, groups], in f32, read now."""
        default = np.ones if name == "scales" else np.zeros
        values: list[Host] = []
        for part, rows in self.parts:
            value = value_of(getattr(part, name))
            shape = (len(rows), self.groups)
            every = (part.words.shape[0], self.groups)
            values.append(default(shape) if value is None else np.broadcast_to(value.numpy(), every)[rows])
        return np.concatenate(values).astype(np.float32)


class Saved(NamedTuple):
    """The entries of quantized weights, and what the config says of them."""

    entries: dict[str, LazyTensor]
    config: dict[str, Any]


def computed_sites(model: Module) -> dict[str, Site]:
    """The packed weights, by path; `ConfigError` for a weight that is computed in another way."""
    found = Sites(model, computed=True).found
    others = [path for path, site in found.items() if type(site.param) is not Packed]
    if others:
        site = found[others[0]]
        raise ConfigError(
            f"save: transformers has no weights that are computed as by {type(site.param).__name__}: "
            f"{listed(others)}; use phlox.merge(model) first"
        )
    return found


def saved(wholes: list[Whole], plain: Iterable[str], dtype: str) -> Saved:
    """The packed weights as `transformers` reads them; `ConfigError` for those that it could not.

    `plain` are the names of the other matrices in the file.
    """
    codings = {whole.coding for whole in wholes}
    if codings <= {*_OF_COMPRESSED_TENSORS}:
        return _compressed_tensors(wholes)
    if codings <= {*_OF_BITSANDBYTES} and len(codings) == 1:
        return _bitsandbytes(wholes, plain, dtype)
    raise ConfigError(
        f"save: weights of {' and '.join(sorted(codings))} do not go into one folder of transformers: int8, int4 and "
        "f8_e4m3 do, or nf4 alone; use phlox.merge(model, ...) for the others first"
    )


def wholes_of(found: Mapping[str, Site], adapter: Adapter) -> list[Whole]:
    """The packed weights as they are in the model of `transformers`."""
    parts: list[Packed] = []
    starts: list[int] = []
    numbers: dict[str, Any] = {}
    start = 0
    for path, site in found.items():
        packed: Any = site.param
        if not issubclass(site.layer, Linear) or len(packed.shape) != 2 or site.name != "weight":
            raise ConfigError(
                f"save: `{path}` is packed, and transformers has packed weights of linear layers alone; use "
                f"phlox.merge(model, {path!r}) first"
            )
        rows = packed.words.shape[0]
        parts.append(packed)
        starts.append(start)
        numbers[path] = row_numbers(rows, packed.axis == 1, start)
        start += rows
    theirs = adapter.write(Record(numbers), strict=False)
    if mixed := [path for path in theirs if path in numbers]:
        raise ConfigError(
            f"save: {listed(mixed)} are parts of larger matrices in transformers, of which other parts are not packed; "
            "pack all of a matrix, or use phlox.merge(model, ...) first"
        )
    wholes: list[Whole] = []
    for name, entry in theirs.tensors.items():
        rows, axis = rows_in(entry.tensor.read())
        wholes.append(_whole(name.removesuffix(".weight"), rows, axis, parts, starts))
    return wholes


def _whole(layer: str, rows: Host, axis: int, parts: list[Packed], starts: list[int]) -> Whole:
    numbers = np.searchsorted(starts, rows, side="right") - 1
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    chosen: list[tuple[Packed, Host]] = [(parts[number[0]], piece - starts[number[0]])
              for number, piece in zip(np.split(numbers, cuts), np.split(rows, cuts), strict=True)]  # fmt: skip
    kinds = {(part.coding, part.columns, _groups(part), part.offsets is not None) for part, _ in chosen}
    if len(kinds) > 1:
        raise ConfigError(
            f"save: the parts of {layer}.weight are packed in different ways, and it is one matrix in transformers; "
            "pack them alike"
        )
    coding, columns, groups, has_offsets = kinds.pop()
    if axis and coding not in _OF_BITSANDBYTES:
        raise ConfigError(
            f"save: {layer} is a Conv1D in transformers, which has no weights of {coding}; pack it as nf4, or use "
            "phlox.merge(model) first"
        )
    return Whole(layer, chosen, coding, len(rows), columns, groups, has_offsets)


def _groups(part: Packed) -> int:
    shapes = [(own.words.shape[0], own.columns) if isinstance(own, Packed) else own.shape
              for own in (part.scales, part.offsets) if own is not None]  # fmt: skip
    return shapes[0][1] if shapes else 1


# --- compressed-tensors


def _compressed_tensors(wholes: list[Whole]) -> Saved:
    entries: dict[str, LazyTensor] = {}
    groups: dict[tuple[int, bool, bool, int | None], list[str]] = {}
    for whole in wholes:
        group = whole.columns // whole.groups
        is_float = whole.coding == "e4m3"
        is_symmetric = whole.coding in ("int8", "int4", "e4m3") and not whole.has_offsets
        bits = CODINGS[whole.coding].bits
        key = bits, is_float, is_symmetric, group if whole.groups > 1 else None
        groups.setdefault(key, []).append(whole.layer)
        start = f"{whole.layer}.weight"
        shape = (whole.rows, whole.columns)
        entries[f"{start}_scale"] = _lazy((whole.rows, whole.groups), np.float32, partial(whole.of_groups, "scales"))
        if is_float:
            if whole.has_offsets:
                raise ConfigError(
                    f"save: {start} has offsets, and f8_e4m3 has none there; use phlox.merge(model) first"
                )
            entries[start] = _lazy(shape, ml_dtypes.float8_e4m3fn, partial(_float8, whole))
            continue
        words = -(-whole.columns * bits // 32)
        entries[f"{start}_packed"] = _lazy((whole.rows, words), np.int32, partial(_from_zero, whole))
        entries[f"{start}_shape"] = LazyTensor.from_array(np.array(shape, np.int64), f"{start}_shape")
        if not is_symmetric:
            zeros = packed_zeros(_zeros(whole, bits), bits)
            entries[f"{start}_zero_point"] = LazyTensor.from_array(zeros, f"{start}_zero_point")
    formats = {"float-quantized" if is_float else "pack-quantized" for _, is_float, _, _ in groups}
    return Saved(entries, {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "ignore": [],
        "config_groups": {f"group_{n}": _group(*key, names) for n, (key, names) in enumerate(groups.items())},
    })  # fmt: skip


def _group(bits: int, is_float: bool, is_symmetric: bool, group: int | None, names: list[str]) -> dict[str, Any]:
    return {
        "targets": names,
        "format": "float-quantized" if is_float else "pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "weights": {
            "num_bits": bits,
            "type": "float" if is_float else "int",
            "symmetric": is_symmetric,
            "strategy": "channel" if group is None else "group",
            "group_size": group,
            "dynamic": False,
        },
    }


def _from_zero(whole: Whole) -> Host:
    """Words of codes that begin at 0 for the smallest integer."""
    return whole.words() ^ SIGN_BITS if whole.coding == "int8" else whole.words()


def _float8(whole: Whole) -> Host:
    return unpacked_codes(whole.words(), 8)[:, : whole.columns].view(ml_dtypes.float8_e4m3fn)


def _zeros(whole: Whole, bits: int) -> Host:
    """The zero points, from 0 on: offset = -(zero - first level) scale."""
    scales, offsets = whole.of_groups("scales"), whole.of_groups("offsets")
    exact = -offsets.astype(np.float64) / np.where(scales == 0.0, 1.0, scales)
    exact = exact + (0 if whole.coding.startswith("u") else 1 << (bits - 1))
    zeros = np.rint(exact)
    # At half precision the offsets are rounded themselves.
    is_full = all(part.backend.full_precision() is part.backend for part, _ in whole.parts)
    if (np.abs(zeros - exact) > (1e-3 if is_full else 0.25)).any() or (zeros < 0).any() or (zeros >= 1 << bits).any():
        raise ConfigError(
            f"save: the offsets of {whole.layer}.weight are no zero points, whole multiples of its scales; use "
            "phlox.merge(model) first"
        )
    return zeros.astype(np.uint8)


# --- bitsandbytes


def _bitsandbytes(wholes: list[Whole], plain: Iterable[str], dtype: str) -> Saved:
    entries: dict[str, LazyTensor] = {}
    kind = wholes[0].coding
    for whole in wholes:
        block = whole.columns // whole.groups
        if whole.has_offsets or not (_LEAST_BLOCK <= block <= _MOST_BLOCK and block & (block - 1) == 0):
            raise ConfigError(
                f"save: {whole.layer}.weight has groups of {block}{' with offsets' * whole.has_offsets}; bitsandbytes "
                "has blocks of 32 to 4096, powers of two; use group=64, or phlox.merge(model) first"
            )
        state = {"quant_type": kind, "blocksize": block, "dtype": dtype, "shape": [whole.rows, whole.columns]}
        start, count = f"{whole.layer}.weight", whole.rows * whole.groups
        entries |= {
            start: _lazy((whole.rows * whole.columns // 2, 1), np.uint8, partial(_high_first, whole)),
            f"{start}.absmax": _lazy((count,), np.float32, partial(_flat_scales, whole)),
            f"{start}.quant_map": LazyTensor.from_array(CODINGS[kind].levels, f"{start}.quant_map"),
            f"{whole.layer}.{STATE}{kind}": LazyTensor.from_array(np.frombuffer(json.dumps(state).encode(), np.uint8)),
        }
    packed = {whole.layer for whole in wholes}
    return Saved(entries, {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": dtype,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": sorted({*plain, "lm_head"} - packed),
    })  # fmt: skip


def _high_first(whole: Whole) -> Host:
    codes = unpacked_codes(whole.words(), 8)[:, : whole.columns // 2]
    return (codes << 4 | codes >> 4).reshape(-1, 1)


def _flat_scales(whole: Whole) -> Host:
    return whole.of_groups("scales").reshape(-1)


def _lazy(shape: tuple[int, ...], dtype: Any, read: Callable[[], Host]) -> LazyTensor:
    return LazyTensor.from_function(shape, dtype, read)
