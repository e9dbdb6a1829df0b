# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The other libraries are installed only for the benchmarks.
"""A token of GPT-2 small, greedy, batch 1, after a prompt of 32: Phlox on each engine beside `transformers`.

The weights are random. Of each text, the median over its tokens counts, without the first, which the prompt takes.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import phlox as px
from benchmarks.harness import Ratio, built, compare, in_turn, quick
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models import Gpt, GptConfig

PROMPT, NEW, ROUNDS = 32, 17, 5
SIZES: dict[str, Any] = {"vocabulary": 50257, "context": 1024, "n_layers": 12, "d_model": 768, "n_heads": 12}
SMALL: dict[str, Any] = {"vocabulary": 101, "context": 128, "n_layers": 2, "d_model": 32, "n_heads": 2}
TOKENS = np.random.default_rng(0).integers(0, 100, PROMPT)
Steps = Callable[[int], Iterator[object]]
"""Generates so many tokens, and yields as soon as there is another one."""


def phlox_model(backend: Backend, sizes: dict[str, Any], *, compiled: bool) -> Steps:
    """Phlox, with the weights of seed 0."""
    with px.random.stream(0):
        model: Gpt = GptConfig(**sizes, tied=True, dropout=0.0, activation="gelu_tanh").init(backend).valid()
    prompt = px.tensor(TOKENS, device=backend)
    return lambda count: model.stream(prompt, count, temperature=0.0, compile=compiled)


def theirs(sizes: dict[str, Any]) -> Steps:
    """`transformers`, with random weights of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(
        vocab_size=sizes["vocabulary"], n_positions=sizes["context"], n_embd=sizes["d_model"],
        n_layer=sizes["n_layers"], n_head=sizes["n_heads"], bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).eval()
    prompt = torch.tensor(TOKENS)[None]

    class Times:
        """What it calls with the prompt and then with every token."""

        def __init__(self) -> None:
            self.found: list[float] = []

        def put(self, value: object) -> None:
            self.found.append(time.perf_counter())

        def end(self) -> None:
            pass

    def steps(count: int) -> Iterator[object]:
        times = Times()
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False, eos_token_id=None,
            pad_token_id=0, streamer=times,
        )  # fmt: skip
        yield from times.found[1:]

    return steps


def seconds_of_a_token(steps: Steps) -> float:
    """The median over the tokens after the first, which is that of the prompt."""
    found = [moment if isinstance(moment, float) else time.perf_counter() for moment in steps(NEW)]
    return statistics.median(after - before for before, after in itertools.pairwise(found))


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(2)
    sizes = SMALL if quick() else SIZES
    peer = "transformers"
    makers: dict[str, Callable[[], Steps]] = {
        peer: lambda: theirs(sizes),
        "Phlox eager on Torch": lambda: phlox_model(Torch(), sizes, compiled=False),
        "Phlox compiled on JAX": lambda: phlox_model(Jax(), sizes, compiled=True),
        "Phlox on NumPy": lambda: phlox_model(NumPy(), sizes, compiled=False),
    }
    contestants = {name: partial(seconds_of_a_token, steps) for name, steps in built(makers).items()}
    compiled = built(contestants)
    times = in_turn({name: contestants[name] for name in compiled}, range(2 if quick() else ROUNDS))
    workload = f"a token of {'a small GPT' if quick() else 'GPT-2 small'}, prompt {PROMPT}, batch 1"
    return [compare(workload, times, name, peer, target=1.0) for name in makers if name != peer]
