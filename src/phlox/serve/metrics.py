"""What a server has done, as text for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from phlox.serve.request import Reason

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
        limits = [*SECONDS, "+Inf"]
        buckets = {f'_bucket{{le="{limit}"}}': n for limit, n in zip(limits, [*self._counts, self._n], strict=True)}
        return _family(name, "histogram", described, {**buckets, "_sum": f"{self._sum:.6f}", "_count": self._n})


class Metrics:
    """The times of a server."""

    def __init__(self) -> None:
        self.first_token, self.answer = Histogram(), Histogram()

    def text(self, batcher: Batcher | None, statuses: Mapping[int, int]) -> str:
        """All metrics."""
        answers = {f'{{status="{status}"}}': n for status, n in sorted(statuses.items())}
        lines = _family("phlox_http_responses_total", "counter", "Answers by their status.", answers)
        if batcher is not None:
            for name, described in _COUNTERS.items():
                lines += _family(f"phlox_{name}_total", "counter", described, {"": batcher.counts[name]})
            ends = {f'{{reason="{reason}"}}': batcher.counts[f"ended_{reason}"] for reason in get_args(Reason)}
            lines += _family("phlox_ends_total", "counter", "Answers by the reason of their end.", ends)
            for name, number in (("running", batcher.n_running), ("waiting", batcher.n_waiting)):
                lines += _family(f"phlox_{name}", "gauge", f"Requests that are {name}.", {"": number})
            lines += self.first_token.lines("phlox_first_token_seconds", "From a request to its first token.")
            lines += self.answer.lines("phlox_answer_seconds", "From a request to the end of its answer.")
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, described: str, values: Mapping[str, object]) -> list[str]:
    """The lines of a metric; the values are by what follows its name: labels, or the part of a histogram."""
    lines = [f"{name}{labels} {value}" for labels, value in values.items()]
    return [f"# HELP {name} {described}", f"# TYPE {name} {kind}", *lines]
