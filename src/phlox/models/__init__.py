"""Complete models, each built from its config, and their training recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.models.bert import (
        Bert,
        BertClassifier,
        BertClassifierConfig,
        BertConfig,
        BertMaskedLm,
        BertMaskedLmConfig,
    )
    from phlox.models.causal import CausalBlock, CausalConfig, CausalModel
    from phlox.models.digits import DigitsConfig, DigitsNet
    from phlox.models.gpt import Gpt, GptConfig
    from phlox.models.llama import Llama, LlamaConfig
    from phlox.models.recipe import DigitsRecipe, DigitsRun, DigitsTraining, Verification
    from phlox.models.rotary_scaling import LinearScaling, Llama3Scaling

__all__ = [
    "Bert",
    "BertClassifier",
    "BertClassifierConfig",
    "BertConfig",
    "BertMaskedLm",
    "BertMaskedLmConfig",
    "CausalBlock",
    "CausalConfig",
    "CausalModel",
    "DigitsConfig",
    "DigitsNet",
    "DigitsRecipe",
    "DigitsRun",
    "DigitsTraining",
    "Gpt",
    "GptConfig",
    "LinearScaling",
    "Llama",
    "Llama3Scaling",
    "LlamaConfig",
    "Verification",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "bert": "Bert BertClassifier BertClassifierConfig BertConfig BertMaskedLm BertMaskedLmConfig",
        "causal": "CausalBlock CausalConfig CausalModel",
        "digits": "DigitsConfig DigitsNet",
        "gpt": "Gpt GptConfig",
        "llama": "Llama LlamaConfig",
        "recipe": "DigitsRecipe DigitsRun DigitsTraining Verification",
        "rotary_scaling": "LinearScaling Llama3Scaling",
    },
)
