"""The files of AutoGPTQ and GPTQModel, and of AutoAWQ: integers with zero points, transposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phlox.backend.contract.nn.packed import pack, unpacked_codes
from phlox.errors import ConfigError
from phlox.interop.huggingface.quantized.matrix import SIGN_BITS, Entries, Host, Matrix, Stored, floats, zero_offsets
from phlox.interop.huggingface.settings import Settings

NAMES = ("qweight", "qzeros", "scales", "g_idx")
"""The entries of a quantized layer in both; there is no `weight`."""
_HARMLESS = frozenset({
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "model_name_or_path",
    "model_file_base_name", "dataset", "tokenizer", "block_name_to_quantize", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "batch_size", "pad_token_id", "use_cuda_fp16", "model_seqlen", "use_exllama",
    "max_input_length", "exllama_config", "cache_block_outputs", "meta", "quantizer", "lm_head", "desc_act", "sym",
    "backend", "act_group_aware",
})  # fmt: skip
"""How the weights were found, and by what they are multiplied; an order of columns that matters is in `g_idx`."""
_HARMLESS_OF_AWQ = frozenset({
    "zero_point", "modules_to_not_convert", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config",
    "backend",
})  # fmt: skip
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each code in a word."""


class Gptq:
    """Words along the inputs; zero points less 1, along the outputs."""

    bits = (4, 8)
    less = 1
    """What was subtracted from zero points."""

    def __init__(self, settings: Settings) -> None:
        self.read_bits(settings)
        version = settings.text("checkpoint_format", "gptq")
        if version not in ("gptq", "gptq_v2"):
            raise ConfigError(
                f"{settings.location}: checkpoint_format={version[:100]!r} is not supported; save as gptq"
            )
        self.less = int(version == "gptq")
        settings.only("pack_dtype", "int32", "words would have another size")
        settings.only("is_marlin_format", False, "codes would have another order")
        settings.only("dynamic", {}, "layers would have different bits")
        settings.check_all_read(_HARMLESS)

    def read_bits(self, settings: Settings) -> None:
        """The bits of a code, and the size of a group."""
        self.n_bits, self.group = settings.whole("bits", 4), settings.whole("group_size", -1)
        if self.n_bits not in self.bits:
            raise ConfigError(f"{settings.location}: bits={self.n_bits} is not supported; {self.bits} are")

    def find(self, layers: Mapping[str, Entries]) -> dict[str, Entries]:
        """The quantized layers among those that have some of the entries."""
        return {name: entries for name, entries in layers.items() if "qweight" in entries or "qzeros" in entries}

    def stored(self, entries: Entries) -> Stored:
        """The weight of one layer."""
        words, zeros, scales = (entries.matrix(name, kind) for name, kind in zip(NAMES, _KINDS, strict=False))
        groups, rows = scales.shape
        columns = self.columns(words.shape[0])
        size = columns if self.group == -1 else self.group
        if size < 1 or columns != groups * size or words.shape != self.words_shape(rows, columns):
            raise entries.error("qweight", f"has shape {words.shape}, and does not fit scales of shape {scales.shape} "
                                f"and groups of {size}")  # fmt: skip
        entries.take("qzeros", "int32", (groups, -(-rows * self.n_bits // 32)))
        if "g_idx" in entries:
            order = entries.take("g_idx", ("int32", "int64"), (columns,)).read()
            if not np.array_equal(order, np.arange(columns) // size):
                raise entries.error("g_idx", "gives groups of inputs that are not next to each other (act-order); "
                                    "quantize the model again with desc_act=False")  # fmt: skip

        def matrix() -> Matrix:
            points, factors = self.codes(zeros.read())[:, :rows].T + self.less, floats(scales).T
            own = self.own_words(words.read())[:rows]
            if (points == 1 << (self.n_bits - 1)).all():
                return Matrix(own if self.n_bits == 4 else own ^ SIGN_BITS, f"int{self.n_bits}", columns, factors)
            return Matrix(own, f"uint{self.n_bits}", columns, factors, zero_offsets(points, factors))

        return Stored((rows, columns), matrix)

    def columns(self, first: int) -> int:
        """The inputs, of words with so many along the first axis."""
        return first * 32 // self.n_bits

    def words_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of the words."""
        return columns * self.n_bits // 32, rows

    def codes(self, words: Host) -> Host:
        """The codes of words, in the order of the outputs."""
        return unpacked_codes(words, self.n_bits).astype(np.int32)

    def own_words(self, words: Host) -> Host:
        """The words as ours."""
        return np.ascontiguousarray(words.T)


class Awq(Gptq):
    """Words along the outputs, in an order of their own."""

    bits = (4,)
    less = 0

    def __init__(self, settings: Settings) -> None:
        self.read_bits(settings)
        version = settings.text("version", "gemm").lower()
        if version != "gemm":
            raise ConfigError(f"{settings.location}: version={version[:100]!r} of AWQ is not supported; save as gemm")
        settings.check_all_read(_HARMLESS_OF_AWQ)

    def columns(self, first: int) -> int:
        """See `Gptq.columns`."""
        return first

    def words_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """See `Gptq.words_shape`."""
        return columns, -(-rows // 8)

    def codes(self, words: Host) -> Host:
        """See `Gptq.codes`."""
        return self._in_order(words).astype(np.int32)

    def own_words(self, words: Host) -> Host:
        """See `Gptq.own_words`."""
        return pack(np.ascontiguousarray(self._in_order(words).T), 4)

    def _in_order(self, words: Host) -> Any:
        codes = unpacked_codes(words, 4).reshape(*words.shape, 8)
        return codes[..., np.argsort(_AWQ_ORDER)].reshape(words.shape[0], -1)


_KINDS = ("int32", "int32", "float")
