"""Complete models, each built from its config, and their training recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.models.audio import *
    from phlox.models.bert import *
    from phlox.models.causal import *
    from phlox.models.decoder import *
    from phlox.models.digits import *
    from phlox.models.encoder_decoder import *
    from phlox.models.encoder_decoder_config import *
    from phlox.models.gpt import *
    from phlox.models.llama import *
    from phlox.models.recipe import *
    from phlox.models.rotary_scaling import *
    from phlox.models.speech import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "audio": "LogMelConfig log_mel read_wav resample",
        "bert": "Bert BertClassifier BertClassifierConfig BertConfig BertMaskedLm BertMaskedLmConfig",
        "causal": "CausalConfig CausalModel",
        "decoder": "Decoder DecoderConfig",
        "digits": "DigitsConfig DigitsNet",
        "encoder_decoder": "EncoderDecoder SourceDecoder",
        "encoder_decoder_config": "EncoderDecoderConfig",
        "gpt": "Gpt GptConfig",
        "llama": "Llama LlamaConfig",
        "recipe": "DigitsRecipe DigitsRun DigitsTraining Verification",
        "rotary_scaling": "DynamicScaling LinearScaling Llama3Scaling LongScaling YarnScaling",
        "speech": "BannedFirst SpeechSegment SpeechTokens TimestampRules detect_language transcribe",
    },
)
