"""What a server has done, as text for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phlox.serve.batcher import Batcher

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""The upper limits of the buckets of a histogram."""

_COUNTERS = {
    "requests": "Requests that were taken.",
    "rejected": "Requests that were refused because too many waited.",
    "prompt_tokens": "Tokens of prompts that were processed.",
    "reused_tokens": "Tokens of prompts whose keys and values were there from an earlier text.",
    "tokens": "New tokens.",
    "steps": "Steps of the model, each with a token for every running text.",
}


class Histogram:
    """How long something took."""

    def __init__(self) -> None:
        self._counts = [0] * len(SECONDS)
        self._sum, self._n = 0.0, 0

    def add(self, seconds: float) -> None:
        """Note one time."""
        self._sum, self._n = self._sum + seconds, self._n + 1
        for index, limit in enumerate(SECONDS):
            self._counts[index] += seconds <= limit

    def lines(self, name: str, described: str) -> list[str]:
        """As text."""
        buckets = [f'{name}_bucket{{le="{limit}"}} {n}' for limit, n in zip(SECONDS, self._counts, strict=True)]
        ends = [f'{name}_bucket{{le="+Inf"}} {self._n}', f"{name}_sum {self._sum:.6f}", f"{name}_count {self._n}"]
        return [*_head(name, described, "histogram"), *buckets, *ends]


class Metrics:
    """The times of a server."""

    def __init__(self) -> None:
        self.first_token, self.answer = Histogram(), Histogram()

    def text(self, batcher: Batcher | None, statuses: Mapping[int, int]) -> str:
        """All metrics."""
        lines = _head("phlox_http_responses_total", "Answers by their status.", "counter")
        lines += [f'phlox_http_responses_total{{status="{status}"}} {n}' for status, n in sorted(statuses.items())]
        if batcher is not None:
            for name, described in _COUNTERS.items():
                lines += _head(f"phlox_{name}_total", described, "counter")
                lines.append(f"phlox_{name}_total {batcher.counts[name]}")
            lines += _head("phlox_ends_total", "Answers by the reason of their end.", "counter")
            for reason in ("stop", "length", "cancelled", "timeout", "error"):
                lines.append(f'phlox_ends_total{{reason="{reason}"}} {batcher.counts[f"ended_{reason}"]}')
            gauges = {"running": batcher.n_running, "waiting": batcher.n_waiting}
            for name, number in gauges.items():
                lines += [*_head(f"phlox_{name}", f"Requests that are {name}.", "gauge"), f"phlox_{name} {number}"]
            lines += self.first_token.lines("phlox_first_token_seconds", "From a request to its first token.")
            lines += self.answer.lines("phlox_answer_seconds", "From a request to the end of its answer.")
        return "\n".join(lines) + "\n"


def _head(name: str, described: str, kind: str) -> list[str]:
    return [f"# HELP {name} {described}", f"# TYPE {name} {kind}"]
