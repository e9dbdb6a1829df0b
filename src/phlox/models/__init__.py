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
    from phlox.models.dual_encoder import *
    from phlox.models.encoder import *
    from phlox.models.encoder_decoder import *
    from phlox.models.encoder_decoder_config import *
    from phlox.models.encoder_heads import *
    from phlox.models.generation import Completion as Completion
    from phlox.models.generation import Grammar as Grammar
    from phlox.models.generation import PrefixCache as PrefixCache
    from phlox.models.generation import Step as Step
    from phlox.models.generation import StopText as StopText
    from phlox.models.gpt import *
    from phlox.models.language_model import *
    from phlox.models.language_recipe import *
    from phlox.models.llama import *
    from phlox.models.loading import *
    from phlox.models.recipe import *
    from phlox.models.rotary_scaling import *
    from phlox.models.sentences import *
    from phlox.models.speech import *
    from phlox.models.vision import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "audio": "LogMelConfig log_mel read_wav resample",
        "bert": "Bert BertClassifier BertClassifierConfig BertConfig BertMaskedLm BertMaskedLmConfig",
        "causal": "CausalConfig CausalModel",
        "decoder": "Decoder DecoderConfig ExpertsConfig LatentConfig",
        "digits": "DigitsConfig DigitsNet",
        "dual_encoder": "DualEncoder DualEncoderConfig",
        "encoder": "BlocksConfig Encoder EncoderConfig",
        "encoder_decoder": "EncoderDecoder SourceDecoder",
        "encoder_decoder_config": "EncoderDecoderConfig",
        "encoder_heads": "EncoderClassifier EncoderClassifierConfig EncoderMaskedLm EncoderMaskedLmConfig",
        "generation": "Completion Grammar PrefixCache Step StopText",
        "gpt": "Gpt GptConfig",
        "language_model": "LanguageModel",
        "language_recipe": "LanguageRecipe LanguageTraining",
        "llama": "Llama LlamaConfig",
        "loading": "load",
        "recipe": "DigitsRecipe DigitsRun DigitsTraining Verification",
        "rotary_scaling": "DynamicScaling LinearScaling Llama3Scaling LongScaling YarnScaling",
        "sentences": "PoolingName SentenceEncoder SentenceEncoderConfig SentenceLayerConfig pool",
        "speech": "BannedFirst SpeechSegment SpeechTokens TimestampRules detect_language transcribe",
        "vision": "ImageClassifier ImageClassifierConfig VisionEncoder VisionEncoderConfig",
    },
)
