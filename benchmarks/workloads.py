"""The workloads: models, their sizes and their names."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

LR, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
"""The settings of AdamW, for all contestants and all parameters."""

STEPS = 32
"""The number of steps per call, for contestants that take several."""

Kind: TypeAlias = Literal["tiny", "long", "accelerated"]


@dataclass(frozen=True)
class Workload:
    """A model and a batch for it; `options` are the arguments of its `Sizes`."""

    name: str
    title: str
    family: str
    options: dict[str, Any]
    kind: Kind = "long"
    """Tiny: dispatch dominates; libraries that call kernels one by one use one thread, and eager ones train too.
    Accelerated: in bf16, on a GPU."""
    several: bool = False
    """Whether contestants that take several steps a call take part."""
    predicts: bool = True
    """Whether inference is measured too. It is not if only the training differs from that of another workload."""
    starts: int = 1
    """The number of processes in which the time to the first step is measured."""
    after: str = ""
    """The name of a similar earlier workload: contestants that were far behind there do not take part."""

    @property
    def bf16(self) -> bool:
        """Whether everything is in bf16 instead of f32."""
        return self.kind == "accelerated"

    @property
    def maths(self) -> ModuleType:
        """The package of the model: sizes, weights, a batch."""
        return importlib.import_module(f"benchmarks.models.{self.family}")

    @property
    def sizes(self) -> Any:
        """The sizes, as defined in the model's package."""
        return self.maths.Sizes(**self.options)

    @property
    def flops(self) -> float:
        """The floating-point operations of the matrix products of a training step."""
        return self.maths.flops(self.sizes)

    @property
    def dropout(self) -> bool:
        """Whether a step draws random numbers."""
        return bool(self.options.get("dropout"))

    def written_with(self, library: str) -> ModuleType:
        """The module that defines the model, as users of the library write it."""
        return importlib.import_module(f"benchmarks.models.{self.family}.{library}")

    def inputs(self, library: str, x: Any) -> Any:
        """The inputs in the form that the library's model expects."""
        convert = getattr(self.written_with(library), "inputs", None)
        return x if convert is None else convert(x)


_GPT_6 = {"layers": 6, "width": 384, "heads": 6, "context": 256, "batch": 8}

WORKLOADS = (
    Workload("mlp-small", "MLP 64-128-10, batch 64", "mlp", {}, kind="tiny", several=True),
    Workload(
        "mlp-large",
        "MLP 784-1024-1024-10, batch 256",
        "mlp",
        {"widths": (784, 1024, 1024, 10), "batch": 256},
        several=True,
    ),
    Workload("cnn", "residual CNN 32x32x3, batch 64", "cnn", {}),
    Workload("gpt-4x256", "GPT 4x256, context 128, batch 16", "gpt", {}, starts=3),
    Workload("gpt-6x384", "GPT 6x384, context 256, batch 8", "gpt", _GPT_6),
    Workload(
        "gpt-6x384-dropout",
        "GPT 6x384, context 256, batch 8, dropout 0.1",
        "gpt",
        _GPT_6 | {"dropout": 0.1},
        predicts=False,
        after="gpt-6x384",
    ),
    Workload("lstm", "LSTM 2x256, 64 steps, batch 32", "lstm", {}),
)

QUICK = (
    Workload("mlp-small", "MLP 64-128-10, batch 64", "mlp", {}, kind="tiny", several=True),
    Workload(
        "cnn",
        "residual CNN 16x16x3, two blocks, batch 16",
        "cnn",
        {"image": 16, "batch": 16, "stages": (16, 32), "blocks": 1},
        predicts=False,
    ),
    Workload(
        "gpt-4x256",
        "GPT 1x64, context 32, batch 4",
        "gpt",
        {"layers": 1, "width": 64, "context": 32, "batch": 4},
        predicts=False,
    ),
    Workload(
        "lstm",
        "LSTM 2x64, 16 steps, batch 8",
        "lstm",
        {"steps": 16, "embedding": 64, "width": 64, "batch": 8},
        predicts=False,
    ),
)
"""Small sizes for a quick run, which only shows that everything works; one of them also predicts."""

ACCELERATED = (
    Workload(
        "mlp-large",
        "MLP 4096-8192-8192-1024, batch 4096, bf16",
        "mlp",
        {"widths": (4096, 8192, 8192, 1024), "batch": 4096},
        kind="accelerated",
    ),
    Workload("cnn", "residual CNN 32x32x3, batch 1024, bf16", "cnn", {"batch": 1024}, kind="accelerated"),
    Workload(
        "gpt-12x768",
        "GPT 12x768, context 1024, batch 8, bf16",
        "gpt",
        {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 8, "vocabulary": 50304},
        kind="accelerated",
    ),
    Workload(
        "lstm",
        "LSTM 2x1024, 64 steps, batch 256, bf16",
        "lstm",
        {"embedding": 1024, "width": 1024, "batch": 256},
        kind="accelerated",
    ),
)
"""The workloads for machines with a GPU."""
