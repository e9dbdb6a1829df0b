"""Llama in the files of Hugging Face: rotary pairs half a head apart, as in Phlox, and their scaling."""

from __future__ import annotations

from phlox.interop.huggingface.decoders import BIAS, HEAD, HIDDEN_BIAS, PADDING, RMS, SILU, SIZES, DecoderFamily
from phlox.models import LlamaConfig


class Llama(DecoderFamily):
    """`Llama` as LlamaForCausalLM. LlamaModel, without a head, is loaded if the head is the embedding's transpose."""

    model_type = "llama"
    configs = (LlamaConfig,)
    architectures = ("LlamaForCausalLM", "LlamaModel")
    entries = (*SIZES, HEAD, BIAS, HIDDEN_BIAS, SILU, RMS, PADDING)
