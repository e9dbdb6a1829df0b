# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""PyTorch: fused AdamW, gradients set to None, images with channels last; `eager` or `compiled`.

"compiled, with update" compiles the update too, by the loops that PyTorch has for that.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from benchmarks.libraries.common import Trainer
from benchmarks.workloads import BETAS, DECAY, EPSILON, LR, Workload

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Contestant(Trainer[torch.Tensor]):
    """`eager`, `compiled`, `compiled, with update`."""

    library = "with_torch"

    def __init__(self, workload: Workload, variant: str) -> None:
        super().__init__(workload, variant)
        _, x, y, _ = self.data
        model = self._model().train()
        self.x, self.y = self._input(x), torch.from_numpy(y).long().to(DEVICE)

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits = model(x)
            return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

        self.loss_of: Any = self._compiled(loss_of)
        by_loops = "update" in variant
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=torch.tensor(LR) if by_loops else LR, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=not by_loops,
        )  # fmt: skip
        self._update: Any = self._compiled(self.optimizer.step) if by_loops else self.optimizer.step

    def _model(self) -> Any:
        model = self.written.model(self.workload.sizes, self.data[0])
        images = self.data[1].ndim == 4
        model = model.to(DEVICE, dtype=torch.bfloat16 if self.workload.bf16 else None)
        return model.to(memory_format=torch.channels_last) if images else model

    def _input(self, x: np.ndarray[Any, Any]) -> torch.Tensor:
        found = torch.from_numpy(x)
        if not found.is_floating_point():
            return found.long().to(DEVICE)
        return found.to(DEVICE, dtype=torch.bfloat16 if self.workload.bf16 else None)

    def _compiled(self, function: Any) -> Any:
        return torch.compile(function, dynamic=False) if "compiled" in self.variant else function

    def step(self) -> torch.Tensor:
        loss = self.loss_of(self.x, self.y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._update()
        return loss.detach()

    @cached_property
    def _predictor(self) -> tuple[Any, torch.Tensor]:
        return self._compiled(self._model().eval()), self._input(self.data[3])

    def infer(self) -> torch.Tensor:
        model, x = self._predictor
        with torch.inference_mode():
            return model(x)

    def wait(self, handle: torch.Tensor) -> None:
        if handle.is_cuda:
            torch.cuda.synchronize()

    def array(self, handle: torch.Tensor) -> np.ndarray[Any, Any]:
        return handle.detach().float().cpu().numpy()
