"""Floor 6: layers, losses, initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily
from phlox.nn.attention import attention as attention
from phlox.nn.dropout import Dropout as Dropout
from phlox.nn.dropout import DropoutConfig as DropoutConfig
from phlox.nn.dropout import dropout as dropout
from phlox.tensor import functional as functional

if TYPE_CHECKING:
    from phlox.nn.activation import *
    from phlox.nn.batch_norm import *
    from phlox.nn.conv import *
    from phlox.nn.embedding import *
    from phlox.nn.flatten import *
    from phlox.nn.guided_losses import *
    from phlox.nn.initializer import *
    from phlox.nn.key_value_cache import *
    from phlox.nn.latent_attention import *
    from phlox.nn.linear import *
    from phlox.nn.linear_cross_entropy import *
    from phlox.nn.loss import *
    from phlox.nn.mixture_of_experts import *
    from phlox.nn.multi_head_attention import *
    from phlox.nn.norm import *
    from phlox.nn.pool import *
    from phlox.nn.recurrent import *
    from phlox.nn.reparameterizations import adapter_names as adapter_names
    from phlox.nn.reparameterizations import dora as dora
    from phlox.nn.reparameterizations import ia3 as ia3
    from phlox.nn.reparameterizations import lora as lora
    from phlox.nn.reparameterizations import use_adapters as use_adapters
    from phlox.nn.reparameterizations import without_adapters as without_adapters
    from phlox.nn.rotary import *
    from phlox.nn.sequential import *
    from phlox.nn.small_caches import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "activation": (
            "Activation Celu CeluConfig Elu EluConfig Gelu GeluConfig HardShrink HardShrinkConfig "
            "HardSigmoid HardSwish HardTanh HardTanhConfig LeakyRelu LeakyReluConfig LogSigmoid Mish PRelu "
            "PReluConfig Relu Relu6 Selu Sigmoid Silu Softplus SoftplusConfig SoftShrink SoftShrinkConfig "
            "Softsign Tanh TanhShrink Threshold ThresholdConfig GeGlu GeGluConfig Glu GluConfig LogSoftmax "
            "LogSoftmaxConfig Softmax SoftmaxConfig Softmin SoftminConfig SwiGlu SwiGluConfig"
        ),
        "batch_norm": "BatchNorm BatchNormConfig",
        "conv": (
            "Conv1d Conv1dConfig Conv2d Conv2dConfig Conv3d Conv3dConfig ConvTranspose1d ConvTranspose1dConfig "
            "ConvTranspose2d ConvTranspose2dConfig ConvTranspose3d ConvTranspose3dConfig"
        ),
        "embedding": "Embedding EmbeddingConfig",
        "flatten": "Flatten FlattenConfig Identity",
        "guided_losses": "PreferenceLoss distillation_loss dpo_loss",
        "initializer": (
            "Constant Dirac Eye Initializer KaimingNormal KaimingUniform LecunNormal LecunUniform Normal Ones "
            "Orthogonal Sparse TruncatedNormal Uniform XavierNormal XavierUniform Zeros"
        ),
        "latent_attention": "LatentAttention LatentAttentionConfig",
        "linear": "Linear LinearConfig",
        "linear_cross_entropy": "linear_cross_entropy_loss",
        "loss": (
            "BinaryCrossEntropyLoss BinaryCrossEntropyLossConfig BinaryCrossEntropyWithLogitsLoss "
            "BinaryCrossEntropyWithLogitsLossConfig ContrastiveLoss ContrastiveLossConfig CosineSimilarity "
            "CosineSimilarityConfig CrossEntropyLoss CrossEntropyLossConfig CtcLoss CtcLossConfig GaussianNllLoss "
            "GaussianNllLossConfig HingeEmbeddingLoss HingeEmbeddingLossConfig HuberLoss HuberLossConfig KlDivLoss "
            "KlDivLossConfig L1Loss L1LossConfig MarginRankingLoss MarginRankingLossConfig MseLoss MseLossConfig "
            "NllLoss NllLossConfig PoissonNllLoss PoissonNllLossConfig SigmoidContrastiveLoss "
            "SigmoidContrastiveLossConfig SmoothL1Loss SmoothL1LossConfig TripletMarginLoss TripletMarginLossConfig "
            "binary_cross_entropy_loss binary_cross_entropy_with_logits_loss contrastive_loss cross_entropy_loss "
            "ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div_loss l1_loss margin_ranking_loss "
            "mse_loss nll_loss poisson_nll_loss sigmoid_contrastive_loss smooth_l1_loss triplet_margin_loss"
        ),
        "key_value_cache": "KeyValueCache",
        "mixture_of_experts": (
            "ExpertLinear ExpertLinearConfig MixtureOfExperts MixtureOfExpertsConfig Router RouterConfig Routing "
            "balance_loss"
        ),
        "multi_head_attention": "MultiHeadAttention MultiHeadAttentionConfig",
        "norm": (
            "GroupNorm GroupNormConfig InstanceNorm InstanceNormConfig LayerNorm LayerNormConfig RmsNorm RmsNormConfig"
        ),
        "pool": (
            "AdaptiveAvgPool1d AdaptiveAvgPool1dConfig AdaptiveAvgPool2d AdaptiveAvgPool2dConfig AdaptiveAvgPool3d "
            "AdaptiveAvgPool3dConfig AvgPool1d AvgPool1dConfig AvgPool2d AvgPool2dConfig AvgPool3d AvgPool3dConfig "
            "MaxPool1d MaxPool1dConfig MaxPool2d MaxPool2dConfig MaxPool3d MaxPool3dConfig"
        ),
        "recurrent": (
            "Gru GruCell GruCellConfig GruConfig Lstm LstmCell LstmCellConfig LstmConfig LstmState Rnn RnnCell "
            "RnnCellConfig RnnConfig"
        ),
        "reparameterizations": "adapter_names dora ia3 lora use_adapters without_adapters",
        "rotary": "RotaryEncoding RotaryEncodingConfig",
        "sequential": "Sequential",
        "small_caches": "Int4KeyValueCache Int8KeyValueCache WindowKeyValueCache",
    },
    here="Dropout DropoutConfig attention dropout functional",
)
