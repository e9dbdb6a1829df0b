"""Floor 6: layers, losses, initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily
from phlox.nn.attention import attention
from phlox.nn.dropout import Dropout, DropoutConfig, dropout
from phlox.tensor import functional

if TYPE_CHECKING:
    from phlox.nn.activation import (
        Activation,
        Celu,
        CeluConfig,
        Elu,
        EluConfig,
        GeGlu,
        GeGluConfig,
        Gelu,
        GeluConfig,
        Glu,
        GluConfig,
        HardShrink,
        HardShrinkConfig,
        HardSigmoid,
        HardSwish,
        HardTanh,
        HardTanhConfig,
        LeakyRelu,
        LeakyReluConfig,
        LogSigmoid,
        LogSoftmax,
        LogSoftmaxConfig,
        Mish,
        PRelu,
        PReluConfig,
        Relu,
        Relu6,
        Selu,
        Sigmoid,
        Silu,
        Softmax,
        SoftmaxConfig,
        Softmin,
        SoftminConfig,
        Softplus,
        SoftplusConfig,
        SoftShrink,
        SoftShrinkConfig,
        Softsign,
        SwiGlu,
        SwiGluConfig,
        Tanh,
        TanhShrink,
        Threshold,
        ThresholdConfig,
    )
    from phlox.nn.batch_norm import BatchNorm, BatchNormConfig
    from phlox.nn.conv import Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig
    from phlox.nn.conv_transpose import (
        ConvTranspose1d,
        ConvTranspose1dConfig,
        ConvTranspose2d,
        ConvTranspose2dConfig,
        ConvTranspose3d,
        ConvTranspose3dConfig,
    )
    from phlox.nn.embedding import Embedding, EmbeddingConfig
    from phlox.nn.flatten import Flatten, FlattenConfig, Identity
    from phlox.nn.initializer import (
        Constant,
        Dirac,
        Eye,
        Initializer,
        KaimingNormal,
        KaimingUniform,
        LecunNormal,
        LecunUniform,
        Normal,
        Ones,
        Orthogonal,
        Sparse,
        TruncatedNormal,
        Uniform,
        XavierNormal,
        XavierUniform,
        Zeros,
    )
    from phlox.nn.linear import Linear, LinearConfig
    from phlox.nn.loss import (
        BinaryCrossEntropyLoss,
        BinaryCrossEntropyLossConfig,
        BinaryCrossEntropyWithLogitsLoss,
        BinaryCrossEntropyWithLogitsLossConfig,
        CosineSimilarity,
        CosineSimilarityConfig,
        CrossEntropyLoss,
        CrossEntropyLossConfig,
        CtcLoss,
        CtcLossConfig,
        GaussianNllLoss,
        GaussianNllLossConfig,
        HingeEmbeddingLoss,
        HingeEmbeddingLossConfig,
        HuberLoss,
        HuberLossConfig,
        KlDivLoss,
        KlDivLossConfig,
        L1Loss,
        L1LossConfig,
        MarginRankingLoss,
        MarginRankingLossConfig,
        MseLoss,
        MseLossConfig,
        NllLoss,
        NllLossConfig,
        PoissonNllLoss,
        PoissonNllLossConfig,
        SmoothL1Loss,
        SmoothL1LossConfig,
        TripletMarginLoss,
        TripletMarginLossConfig,
        binary_cross_entropy_loss,
        binary_cross_entropy_with_logits_loss,
        cross_entropy_loss,
        ctc_loss,
        gaussian_nll_loss,
        hinge_embedding_loss,
        huber_loss,
        kl_div_loss,
        l1_loss,
        margin_ranking_loss,
        mse_loss,
        nll_loss,
        poisson_nll_loss,
        smooth_l1_loss,
        triplet_margin_loss,
    )
    from phlox.nn.multi_head_attention import KeyValueCache, MultiHeadAttention, MultiHeadAttentionConfig
    from phlox.nn.norm import (
        GroupNorm,
        GroupNormConfig,
        InstanceNorm,
        InstanceNormConfig,
        LayerNorm,
        LayerNormConfig,
        RmsNorm,
        RmsNormConfig,
    )
    from phlox.nn.pool import (
        AdaptiveAvgPool1d,
        AdaptiveAvgPool1dConfig,
        AdaptiveAvgPool2d,
        AdaptiveAvgPool2dConfig,
        AdaptiveAvgPool3d,
        AdaptiveAvgPool3dConfig,
        AvgPool1d,
        AvgPool1dConfig,
        AvgPool2d,
        AvgPool2dConfig,
        AvgPool3d,
        AvgPool3dConfig,
        MaxPool1d,
        MaxPool1dConfig,
        MaxPool2d,
        MaxPool2dConfig,
        MaxPool3d,
        MaxPool3dConfig,
    )
    from phlox.nn.recurrent_gru import Gru, GruCell, GruCellConfig, GruConfig
    from phlox.nn.recurrent_lstm import Lstm, LstmCell, LstmCellConfig, LstmConfig, LstmState
    from phlox.nn.recurrent_rnn import Rnn, RnnCell, RnnCellConfig, RnnConfig
    from phlox.nn.rotary import RotaryEncoding, RotaryEncodingConfig
    from phlox.nn.sequential import Sequential

__all__ = [
    "Activation", "AdaptiveAvgPool1d", "AdaptiveAvgPool1dConfig", "AdaptiveAvgPool2d", "AdaptiveAvgPool2dConfig",
    "AdaptiveAvgPool3d", "AdaptiveAvgPool3dConfig", "AvgPool1d", "AvgPool1dConfig", "AvgPool2d", "AvgPool2dConfig",
    "AvgPool3d", "AvgPool3dConfig", "BatchNorm", "BatchNormConfig", "BinaryCrossEntropyLoss",
    "BinaryCrossEntropyLossConfig", "BinaryCrossEntropyWithLogitsLoss", "BinaryCrossEntropyWithLogitsLossConfig",
    "Celu", "CeluConfig", "Constant", "Conv1d", "Conv1dConfig", "Conv2d", "Conv2dConfig", "Conv3d", "Conv3dConfig",
    "ConvTranspose1d", "ConvTranspose1dConfig", "ConvTranspose2d", "ConvTranspose2dConfig", "ConvTranspose3d",
    "ConvTranspose3dConfig", "CosineSimilarity", "CosineSimilarityConfig", "CrossEntropyLoss", "CrossEntropyLossConfig",
    "CtcLoss", "CtcLossConfig", "Dirac", "Dropout", "DropoutConfig", "Elu", "EluConfig", "Embedding", "EmbeddingConfig",
    "Eye", "Flatten", "FlattenConfig", "GaussianNllLoss", "GaussianNllLossConfig", "GeGlu", "GeGluConfig", "Gelu",
    "GeluConfig", "Glu", "GluConfig", "GroupNorm", "GroupNormConfig", "Gru", "GruCell", "GruCellConfig", "GruConfig",
    "HardShrink", "HardShrinkConfig", "HardSigmoid", "HardSwish", "HardTanh", "HardTanhConfig", "HingeEmbeddingLoss",
    "HingeEmbeddingLossConfig", "HuberLoss", "HuberLossConfig", "Identity", "Initializer", "InstanceNorm",
    "InstanceNormConfig", "KaimingNormal", "KaimingUniform", "KeyValueCache", "KlDivLoss", "KlDivLossConfig", "L1Loss",
    "L1LossConfig", "LayerNorm", "LayerNormConfig", "LeakyRelu", "LeakyReluConfig", "LecunNormal", "LecunUniform",
    "Linear", "LinearConfig", "LogSigmoid", "LogSoftmax", "LogSoftmaxConfig", "Lstm", "LstmCell", "LstmCellConfig",
    "LstmConfig", "LstmState", "MarginRankingLoss", "MarginRankingLossConfig", "MaxPool1d", "MaxPool1dConfig",
    "MaxPool2d", "MaxPool2dConfig", "MaxPool3d", "MaxPool3dConfig", "Mish", "MseLoss", "MseLossConfig",
    "MultiHeadAttention", "MultiHeadAttentionConfig", "NllLoss", "NllLossConfig", "Normal", "Ones", "Orthogonal",
    "PRelu", "PReluConfig", "PoissonNllLoss", "PoissonNllLossConfig", "Relu", "Relu6", "RmsNorm", "RmsNormConfig",
    "Rnn", "RnnCell", "RnnCellConfig", "RnnConfig", "RotaryEncoding", "RotaryEncodingConfig", "Selu", "Sequential",
    "Sigmoid", "Silu", "SmoothL1Loss", "SmoothL1LossConfig", "SoftShrink", "SoftShrinkConfig", "Softmax",
    "SoftmaxConfig", "Softmin", "SoftminConfig", "Softplus", "SoftplusConfig", "Softsign", "Sparse", "SwiGlu",
    "SwiGluConfig", "Tanh", "TanhShrink", "Threshold", "ThresholdConfig", "TripletMarginLoss",
    "TripletMarginLossConfig", "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform", "Zeros", "attention",
    "binary_cross_entropy_loss", "binary_cross_entropy_with_logits_loss", "cross_entropy_loss", "ctc_loss", "dropout",
    "functional", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div_loss", "l1_loss",
    "margin_ranking_loss", "mse_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss", "triplet_margin_loss",
]  # fmt: skip

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
        "conv": "Conv1d Conv1dConfig Conv2d Conv2dConfig Conv3d Conv3dConfig",
        "conv_transpose": (
            "ConvTranspose1d ConvTranspose1dConfig ConvTranspose2d ConvTranspose2dConfig ConvTranspose3d "
            "ConvTranspose3dConfig"
        ),
        "embedding": "Embedding EmbeddingConfig",
        "flatten": "Flatten FlattenConfig Identity",
        "initializer": (
            "Constant Dirac Eye Initializer KaimingNormal KaimingUniform LecunNormal LecunUniform Normal Ones "
            "Orthogonal Sparse TruncatedNormal Uniform XavierNormal XavierUniform Zeros"
        ),
        "linear": "Linear LinearConfig",
        "loss": (
            "BinaryCrossEntropyLoss BinaryCrossEntropyLossConfig BinaryCrossEntropyWithLogitsLoss "
            "BinaryCrossEntropyWithLogitsLossConfig CosineSimilarity CosineSimilarityConfig CrossEntropyLoss "
            "CrossEntropyLossConfig CtcLoss CtcLossConfig GaussianNllLoss GaussianNllLossConfig HingeEmbeddingLoss "
            "HingeEmbeddingLossConfig HuberLoss HuberLossConfig KlDivLoss KlDivLossConfig L1Loss L1LossConfig "
            "MarginRankingLoss MarginRankingLossConfig MseLoss MseLossConfig NllLoss NllLossConfig PoissonNllLoss "
            "PoissonNllLossConfig SmoothL1Loss SmoothL1LossConfig TripletMarginLoss TripletMarginLossConfig "
            "binary_cross_entropy_loss binary_cross_entropy_with_logits_loss cross_entropy_loss ctc_loss "
            "gaussian_nll_loss hinge_embedding_loss huber_loss kl_div_loss l1_loss margin_ranking_loss mse_loss "
            "nll_loss poisson_nll_loss smooth_l1_loss triplet_margin_loss"
        ),
        "multi_head_attention": "KeyValueCache MultiHeadAttention MultiHeadAttentionConfig",
        "norm": (
            "GroupNorm GroupNormConfig InstanceNorm InstanceNormConfig LayerNorm LayerNormConfig RmsNorm RmsNormConfig"
        ),
        "pool": (
            "AdaptiveAvgPool1d AdaptiveAvgPool1dConfig AdaptiveAvgPool2d AdaptiveAvgPool2dConfig AdaptiveAvgPool3d "
            "AdaptiveAvgPool3dConfig AvgPool1d AvgPool1dConfig AvgPool2d AvgPool2dConfig AvgPool3d AvgPool3dConfig "
            "MaxPool1d MaxPool1dConfig MaxPool2d MaxPool2dConfig MaxPool3d MaxPool3dConfig"
        ),
        "recurrent_gru": "Gru GruCell GruCellConfig GruConfig",
        "recurrent_lstm": "Lstm LstmCell LstmCellConfig LstmConfig LstmState",
        "recurrent_rnn": "Rnn RnnCell RnnCellConfig RnnConfig",
        "rotary": "RotaryEncoding RotaryEncodingConfig",
        "sequential": "Sequential",
    },
)
