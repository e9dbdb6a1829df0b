"""Every layer of `nn`, every model, and what else people use, with inputs whose axes are open where it makes sense.

They are exported and run by the tests, and are the table of docs/export.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import phlox as px
from phlox import models, nn
from phlox.module.calls import FunctionLayer

F = px.functional


@dataclass
class Case:
    """A model, and what it is exported for."""

    name: str
    make: Callable[..., Any]
    inputs: Any
    operators: tuple[str, ...] = ()
    """Operators that must be in the file: those that runtimes are fast at."""
    sizes: dict[str, Sequence[int]] | None = None
    layer: str = ""
    """The class of `nn` that it is about."""
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, device: Any = None) -> Any:
        module = self.make(device)
        return module.init(seed=0) if any(True for _ in module.named_params()) else module


def spec(*shape: int | str, kind: Any = px.Float) -> px.TensorSpec:
    return px.TensorSpec(shape, kind)


def layer(name: str, *args: Any, of: Any, needs: str = "", title: str = "", sizes: Any = None, **kwargs: Any) -> Case:
    """A layer of `nn` by its name."""

    def make(device: Any) -> Any:
        import inspect

        cls = getattr(nn, name)
        place = {"device": device} if "device" in inspect.signature(cls).parameters else {}
        return cls(*args, **kwargs, **place)

    inputs = [of] if isinstance(of, px.TensorSpec) else of
    return Case(title or name, make, inputs, tuple(needs.split()), sizes, name)


def function(name: str, fn: Callable[..., Any], *of: Any, needs: str = "", sizes: Any = None) -> Case:
    """A function as a model."""
    return Case(name, lambda device: FunctionLayer(fn), list(of), tuple(needs.split()), sizes)


VECTORS = spec("batch", 4)
TEXT = spec("batch", "time", 4)
SEQUENCE = spec("batch", 4, "time")
IMAGE = spec("batch", 4, "height", "width")
VOLUME = spec("batch", 4, "depth", "height", "width")
TOKENS = spec("batch", "time", kind=px.Int)
LENGTHS = spec("batch", kind=px.Int)

ACTIVATIONS = [
    layer("Relu", of=VECTORS, needs="Relu"),
    layer("Relu6", of=VECTORS, needs="Clip"),
    layer("LeakyRelu", 0.2, of=VECTORS, needs="LeakyRelu"),
    layer("PRelu", of=VECTORS, needs="PRelu"),
    layer("PRelu", 4, of=IMAGE, needs="PRelu", title="PRelu, channels"),
    layer("Elu", 0.7, of=VECTORS, needs="Elu"),
    layer("Selu", of=VECTORS, needs="Selu"),
    layer("Celu", 0.5, of=VECTORS, needs="Celu"),
    layer("Gelu", of=TEXT, needs="Gelu"),
    layer("Gelu", approximate=True, of=TEXT, needs="Gelu", title="Gelu, tanh"),
    layer("Silu", of=VECTORS, needs="Sigmoid Mul"),
    layer("Mish", of=VECTORS, needs="Mish"),
    layer("Sigmoid", of=VECTORS, needs="Sigmoid"),
    layer("LogSigmoid", of=VECTORS, needs="Softplus"),
    layer("Softplus", 2.0, of=VECTORS, needs="Softplus"),
    layer("Softsign", of=VECTORS, needs="Softsign"),
    layer("Tanh", of=VECTORS, needs="Tanh"),
    layer("TanhShrink", of=VECTORS, needs="Tanh"),
    layer("HardSigmoid", of=VECTORS, needs="HardSigmoid"),
    layer("HardSwish", of=VECTORS, needs="HardSwish"),
    layer("HardTanh", -0.5, 1.5, of=VECTORS, needs="Clip"),
    layer("HardShrink", 0.7, of=VECTORS, needs="Shrink"),
    layer("SoftShrink", 0.7, of=VECTORS, needs="Shrink"),
    layer("Threshold", 0.1, -3.0, of=VECTORS, needs="Where"),
    layer("Softmax", 1, of=TEXT, needs="Softmax"),
    layer("Softmin", -1, of=TEXT, needs="Softmax"),
    layer("LogSoftmax", 1, of=TEXT, needs="LogSoftmax"),
    layer("Glu", 1, of=IMAGE, needs="Sigmoid Slice"),
    layer("SwiGlu", of=VECTORS, needs="Sigmoid Slice"),
    layer("GeGlu", of=VECTORS, needs="Gelu Slice"),
]

LAYERS = [
    layer("Linear", 4, 3, of=VECTORS, needs="Gemm"),
    layer("Linear", 4, 3, of=TEXT, needs="MatMul Add", title="Linear, sequences"),
    layer("Linear", 4, 3, bias=False, of=VECTORS, needs="MatMul", title="Linear, no bias"),
    layer("Embedding", 10, 4, of=TOKENS, needs="Gather"),
    layer("Identity", of=VECTORS, needs="Identity"),
    layer("Flatten", of=spec("batch", 2, 3, 4), needs="Reshape"),
    layer("Flatten", 0, 1, of=TEXT, needs="Reshape", title="Flatten, open axes"),
    layer("Dropout", 0.5, of=VECTORS, needs="Identity"),
    Case(
        "Sequential",
        lambda device: nn.Sequential([nn.Linear(4, 8, device=device), F.relu, nn.Linear(8, 2, device=device)]),
        [VECTORS], ("Gemm", "Relu"), layer="Sequential",
    ),
    layer("Conv1d", 4, 6, 3, padding=2, dilation=2, groups=2, of=SEQUENCE, needs="Conv"),
    layer("Conv2d", 4, 6, 3, of=IMAGE, needs="Conv"),
    layer("Conv2d", 4, 6, (3, 2), stride=(2, 1), padding=(1, 2), bias=False, of=IMAGE, needs="Conv",
          title="Conv2d, strided"),
    layer("Conv2d", 4, 3, 3, padding="same", of=IMAGE, needs="Conv", title="Conv2d, same"),
    layer("Conv2d", 4, 3, 3, stride=2, padding="same", of=IMAGE, needs="Conv Pad", title="Conv2d, same, strided"),
    layer("Conv3d", 4, 2, (3, 2, 1), padding=1, of=VOLUME, needs="Conv"),
    layer("ConvTranspose1d", 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, of=SEQUENCE,
          needs="ConvTranspose"),
    layer("ConvTranspose2d", 4, 6, (3, 2), stride=2, padding=1, output_padding=1, of=IMAGE, needs="ConvTranspose"),
    layer("ConvTranspose2d", 4, 3, 2, dilation=2, of=IMAGE, needs="ConvTranspose", title="ConvTranspose2d, dilated"),
    layer("ConvTranspose3d", 4, 2, 2, stride=2, bias=False, of=VOLUME, needs="ConvTranspose"),
    layer("LayerNorm", 4, of=TEXT, needs="LayerNormalization"),
    layer("LayerNorm", (3, 4), of=spec("batch", "time", 3, 4), needs="LayerNormalization", title="LayerNorm, two axes"),
    layer("LayerNorm", 4, affine=False, of=TEXT, needs="LayerNormalization", title="LayerNorm, plain"),
    layer("RmsNorm", 4, of=TEXT, needs="Sqrt"),
    layer("BatchNorm", 4, of=IMAGE, needs="BatchNormalization"),
    layer("BatchNorm", 4, of=VECTORS, needs="BatchNormalization", title="BatchNorm, vectors"),
    layer("BatchNorm", 4, affine=False, of=VOLUME, needs="BatchNormalization", title="BatchNorm, plain"),
    layer("BatchNorm", 4, track_running_stats=False, of=IMAGE, needs="ReduceMean", title="BatchNorm, of the batch"),
    layer("GroupNorm", 2, 4, of=IMAGE, needs="InstanceNormalization"),
    layer("InstanceNorm", 4, affine=True, of=SEQUENCE, needs="InstanceNormalization"),
    layer("InstanceNorm", 4, of=IMAGE, needs="InstanceNormalization", title="InstanceNorm, plain"),
    layer("MaxPool1d", 3, stride=2, padding=1, dilation=2, of=SEQUENCE, needs="MaxPool"),
    layer("MaxPool2d", 2, of=IMAGE, needs="MaxPool"),
    layer("MaxPool3d", 2, ceil_mode=True, of=VOLUME, needs="MaxPool"),
    layer("AvgPool1d", 2, ceil_mode=True, of=spec("batch", 4, 9), needs="AveragePool"),
    layer("AvgPool2d", 2, of=IMAGE, needs="AveragePool"),
    layer("AvgPool2d", (3, 2), stride=(2, 1), padding=1, count_include_pad=False, of=IMAGE, needs="AveragePool",
          title="AvgPool2d, padded"),
    layer("AvgPool3d", (2, 2, 1), padding=(1, 0, 0), of=VOLUME, needs="AveragePool"),
    layer("AdaptiveAvgPool1d", 4, of=SEQUENCE, needs="MatMul"),
    layer("AdaptiveAvgPool2d", (3, None), of=IMAGE, needs="MatMul"),
    layer("AdaptiveAvgPool2d", 1, of=IMAGE, needs="GlobalAveragePool", title="AdaptiveAvgPool2d, to one"),
    layer("AdaptiveAvgPool3d", 2, of=spec("batch", 4, 5, 4, 3)),
    layer("RotaryEncoding", 4, of=spec("batch", 2, "time", 4), needs="Cos Sin"),
    layer("MultiHeadAttention", 4, 2, of=TEXT, needs="Softmax MatMul"),
    layer("MultiHeadAttention", 8, 4, n_kv_heads=2, causal=True, of=spec("batch", "time", 8), needs="Softmax Where",
          title="MultiHeadAttention, grouped, causal"),
    layer("MultiHeadAttention", 8, 2, rotary=nn.RotaryEncodingConfig(4), of=spec("batch", "time", 8), needs="Softmax",
          title="MultiHeadAttention, rotary"),
    Case(
        "MultiHeadAttention, crossed, masked",
        lambda device: nn.MultiHeadAttention(4, 2, device=device),
        {"query": TEXT, "key": spec("batch", "keys", 4), "mask": spec("batch", 1, "time", "keys", kind=px.Bool)},
        ("Softmax",), layer="MultiHeadAttention",
    ),
    layer("LatentAttention", 8, 2, kv_rank=4, d_content=3, d_rotary=2, d_value=5, causal=True,
          rotary=nn.RotaryEncodingConfig(2), of=spec("batch", "time", 8), needs="Softmax Where"),
    layer("MixtureOfExperts", 4, 6, 3, 2, of=TEXT, needs="MatMul TopK"),
    layer("Lstm", 4, 5, of=TEXT, needs="LSTM"),
    layer("Lstm", 4, 5, n_layers=2, bidirectional=True, of={"x": TEXT, "lengths": LENGTHS}, needs="LSTM",
          title="Lstm, both directions, lengths"),
    layer("LstmCell", 4, 5, of=VECTORS, needs="LSTM"),
    layer("Gru", 4, 5, of=TEXT, needs="GRU"),
    layer("Gru", 4, 5, bidirectional=True, bias=False, of={"x": TEXT, "lengths": LENGTHS}, needs="GRU",
          title="Gru, both directions, lengths"),
    layer("GruCell", 4, 5, of=VECTORS, needs="GRU"),
    layer("Rnn", 4, 5, of=TEXT, needs="RNN"),
    layer("Rnn", 4, 5, activation="relu", bidirectional=True, of=TEXT, needs="RNN", title="Rnn, relu"),
    layer("RnnCell", 4, 5, of=VECTORS, needs="RNN"),
]  # fmt: skip


class Likelihood(px.Module):
    """For losses that take probabilities, or their logarithms first."""

    def __init__(self, loss: Any, *, log: bool = False) -> None:
        self.loss, self.log = loss, log

    def __call__(self, x: px.Tensor, y: px.Tensor) -> px.Tensor:
        p = x.sigmoid()
        return self.loss(p.log() if self.log else p, y.sigmoid())


CLASSES = [spec("batch", 5), LENGTHS]
SCORES = spec("batch")
PAIR = [VECTORS, spec("batch", 4)]

LOSSES = [
    layer("MseLoss", of=PAIR),
    layer("L1Loss", of=PAIR),
    layer("HuberLoss", of=PAIR),
    layer("SmoothL1Loss", of=PAIR),
    layer("CrossEntropyLoss", of=CLASSES),
    layer("NllLoss", of=CLASSES),
    Case("KlDivLoss", lambda device: Likelihood(nn.KlDivLoss(), log=True), PAIR, layer="KlDivLoss"),
    layer("BinaryCrossEntropyWithLogitsLoss", of=PAIR),
    layer("PoissonNllLoss", of=PAIR),
    layer("CosineSimilarity", of=PAIR),
    layer("HingeEmbeddingLoss", of=PAIR),
    layer("TripletMarginLoss", of=[VECTORS, VECTORS, VECTORS]),
    layer("ContrastiveLoss", of=[px.tensor([[0.5, 1.0], [-2.0, 0.1]])]),
    layer("SigmoidContrastiveLoss", of=[px.tensor([[0.5, 1.0], [-2.0, 0.1]])]),
    layer("GaussianNllLoss", of=[VECTORS, VECTORS, px.tensor([[0.5, 1.0, 2.0, 0.1]])]),
    Case(
        "BinaryCrossEntropyLoss",
        lambda device: Likelihood(nn.BinaryCrossEntropyLoss()),
        PAIR,
        layer="BinaryCrossEntropyLoss",
    ),
    layer(
        "CtcLoss",
        of=[spec("time", 2, 5), px.tensor([[1, 2, 3], [2, 2, 4]]), px.tensor([6, 5]), px.tensor([3, 2])],
        sizes={"time": (9, 7)},
    ),
    layer("MarginRankingLoss", of=[SCORES, SCORES, SCORES]),
]


def cached(heads: int, width: int) -> tuple[nn.KeyValueCache, ...]:
    keys = spec("batch", heads, "capacity", width)
    return (nn.KeyValueCache(keys, keys, spec(kind=px.Int)),)  # pyright: ignore[reportArgumentType]


GPT = models.GptConfig(vocabulary=10, context=32, n_layers=1, d_model=8, n_heads=2)
LLAMA = models.LlamaConfig(vocabulary=10, context=32, n_layers=1, d_model=8, n_heads=4, n_kv_heads=2)
BERT = models.BertConfig(vocabulary=10, context=32, n_layers=2, d_model=8, n_heads=2)
ENCODER = models.EncoderConfig(
    vocabulary=10, context=32, n_layers=2, d_model=8, n_heads=2, positions="counted", distance_bias=True, pooler=False
)

MODELS = [
    Case("Gpt", lambda device: GPT.init(device), [TOKENS], ("Gelu", "LayerNormalization", "Softmax")),
    Case("Gpt, tied", lambda device: GPT.replace(tied=True, n_layers=2).init(device), [TOKENS], ("Transpose",)),
    Case("Gpt, cache", lambda device: GPT.init(device), {"tokens": TOKENS, "cache": cached(2, 4)}, ("Softmax",),
         {"batch": (3, 2), "time": (3, 4, 1), "capacity": (16, 12)}),
    Case("Llama", lambda device: LLAMA.init(device), [TOKENS], ("Softmax", "Cos")),
    Case("Llama, cache", lambda device: LLAMA.init(device), {"tokens": TOKENS, "cache": cached(2, 2)}, ("Softmax",),
         {"batch": (3, 2), "time": (3, 4, 1), "capacity": (16, 12)}),
    Case("Bert", lambda device: BERT.init(device), {"tokens": TOKENS, "mask": TOKENS}, ("LayerNormalization",)),
    Case("BertMaskedLm", lambda device: models.BertMaskedLmConfig(BERT).init(device), [TOKENS], ("Gelu",)),
    Case("BertClassifier", lambda device: models.BertClassifierConfig(BERT, classes=3).init(device), [TOKENS],
         ("Tanh",)),
    Case("SentenceEncoder", lambda device: models.SentenceEncoderConfig(ENCODER, pooling=("mean", "last")).init(device),
         {"tokens": TOKENS, "mask": TOKENS}, ("CumSum",)),
    Case("DigitsNet", lambda device: models.DigitsConfig(channels=(4, 8)).init(device), [spec("batch", 1, 8, 8)],
         ("Conv", "MaxPool", "Gelu", "Gemm")),
]  # fmt: skip

FUNCTIONS = [
    function("interpolate, nearest", lambda x: F.interpolate(x, scale_factor=2), IMAGE, needs="Resize"),
    function("interpolate, linear", lambda x: F.interpolate(x, (7, 9), mode="bilinear"), IMAGE, needs="Resize"),
    function("interpolate, aligned", lambda x: F.interpolate(x, (7, 9), mode="bilinear", align_corners=True), IMAGE),
    function("interpolate, cubic", lambda x: F.interpolate(x, (7, 9), mode="bicubic"), IMAGE, needs="Resize"),
    function("interpolate, fixed", lambda x: F.interpolate(x, 5), spec("batch", 2, 7), needs="Gather"),
    function("interpolate, like", lambda x, y: F.interpolate(x, y.shape[2:], mode="linear"), SEQUENCE,
             spec("batch", 4, "other")),
    function("grid_sample", lambda x, grid: F.grid_sample(x, grid), IMAGE, spec("batch", 3, 5, 2), needs="GridSample"),
    function("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), IMAGE, needs="Transpose"),
    function("one query for all keys", lambda q, k: F.attention(q, k, k, mask=(k.sum(-1) > 0.0).expand_dims(-2)),
             TEXT, spec("batch", "keys", 4)),
    function("unfold", lambda x: F.unfold(x, 2), spec("batch", 2, 5, 6)),
    function("cumulative", lambda x: (x.cumsum(1), x.cummax(1), x.cumprod(1)), TEXT, needs="CumSum Scan"),
    function("a loop", lambda x: px.scan(lambda c, y: (c * 0.5 + y, c), px.zeros((4,)), x), spec("time", 4),
             needs="Scan"),
    function("sorted", lambda x: (x.sort(1), x.argsort(1), x.topk(2, axis=1)), TEXT, needs="TopK"),
    function("reduced", lambda x: (x.mean(1), x.std((0, 1)), x.logsumexp(1), x.argmax(1), (x > 0.0).any(1)), TEXT,
             needs="ReduceMean"),
    function("sizes", lambda x: x.reshape((-1, 2)) * x.shape[1] / (x.shape[0] + 1), TEXT, needs="Shape"),
    function("slices", lambda x: px.concat([x[:, 1:], x[:, :-1], x[:, ::-1], x[:, -2:]], 1), TEXT, needs="Slice"),
    function("bounds", lambda x: px.concat([x[:, x.shape[1] - 3 :], x[:, : x.shape[1] - 3], x[:, 3 - x.shape[1] :],
                                           x[:, x.shape[1] // 2 :], x[:, :4]], 1), TEXT, needs="Slice"),
    function("statistics", lambda x: (x.std(1, correction=1), x.var((0, 1), correction=1), x.median(1),
                                      x.quantile((0.25, 0.3), 1)), TEXT, needs="TopK"),
    function("diagonals", lambda x: ((s := x @ x.mT).diagonal(), s.diagonal(1), px.einsum("bii->bi", s),
                                     px.linalg.trace(s)), TEXT),
    function("positions", lambda x: (x.sum(2) * px.linspace(0.5, 2.0, x.shape[1]), x.chunk(2, 1)[0]), TEXT),
    function("written", lambda x: (x.at[:, 0].set(0.0), x.at[:, 1:3].add(1.0)), TEXT,
             sizes={"batch": (1, 3), "time": (7, 5, 3)}),
    function("padded", lambda x: (x.pad(((0, 0), (1, 2), (0, 0)), mode="reflect"), x.pad(((0, 0), (1, 0), (1, 0)))),
             TEXT, needs="Pad", sizes={"batch": (1, 3), "time": (7, 5)}),
    function("einsum", lambda x, y: px.einsum("bti,bsi->bts", x, y), TEXT, spec("batch", "keys", 4), needs="MatMul"),
    function("whole numbers", lambda x: ((x // 3 - x % 3) & 7, x << 2, -x // 2), TOKENS, needs="Mod"),
    function("spectrum", lambda x: px.signal.rfft(x), spec("batch", 12), needs="MatMul"),
    function("spectrum, open", lambda x: px.signal.rfft(x, norm="ortho"), spec("batch", "time"), needs="MatMul"),
    function("frames", lambda x: px.signal.frame(x, 4, 2), spec("batch", "time"), needs="Gather",
             sizes={"batch": (1, 3), "time": (9, 12, 4)}),
    function("mapped", lambda x: px.vmap(lambda row: row * row.sum())(x), VECTORS),
    function("a gradient", lambda x: px.grad(lambda y: (y * y * y).sum())(x), VECTORS),
    function("nothing but the input", lambda x: (x, x, x * 1.0), VECTORS, needs="Identity"),
]  # fmt: skip

ALL = [*ACTIVATIONS, *LAYERS, *LOSSES, *MODELS, *FUNCTIONS]
