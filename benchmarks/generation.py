# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The other libraries are installed only for the benchmarks.
"""A token of GPT-2 small, greedy, batch 1, after a prompt of 32: Phlox on each engine beside `transformers`.

The weights are random. Of each text, the median over its tokens counts, without the first, which the prompt takes and
which has a row of its own. Of a beam search, the whole time counts, divided by the number of new tokens. A token reads
all weights: the row beside a program that does only that says which part of the memory's bandwidth is used.
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
from phlox.backend import Backend, DeviceLike, Jax, NumPy, Torch
from phlox.models import Gpt, GptConfig

PROMPT, NEW, ROUNDS, BEAMS = 32, 17, 5, 4
SIZES: dict[str, Any] = {"vocabulary": 50257, "context": 1024, "n_layers": 12, "d_model": 768, "n_heads": 12}
SMALL: dict[str, Any] = {"vocabulary": 101, "context": 128, "n_layers": 2, "d_model": 32, "n_heads": 2}
TOKENS = np.random.default_rng(0).integers(0, 100, PROMPT)
Steps = Callable[[int], Iterator[object]]
"""Generates so many tokens, and yields as soon as there is another one."""
Search = Callable[[], object]
"""A beam search."""


def phlox_gpt(device: DeviceLike, sizes: dict[str, Any]) -> tuple[Gpt, px.Tensor[Any, Any, px.Int]]:
    """The model of Phlox, with the weights of seed 0, and the prompt."""
    model: Gpt = GptConfig(**sizes, tied=True, dropout=0.0, activation="gelu_tanh").init(device).init(0).valid()
    return model, px.tensor(TOKENS, device=device)


def phlox_model(device: DeviceLike, sizes: dict[str, Any], *, compiled: bool, batch: int = 1) -> Steps:
    """Phlox, token by token."""
    model, prompt = phlox_gpt(device, sizes)
    prompts: Any = prompt if batch == 1 else [prompt] * batch
    return lambda count: model.stream(prompts, count, temperature=0.0, compile=compiled)


def phlox_search(backend: Backend, sizes: dict[str, Any], *, compiled: bool) -> Search:
    """A beam search of Phlox."""
    model, prompt = phlox_gpt(backend, sizes)
    return lambda: model.generate(prompt, NEW, beams=BEAMS, compile=compiled)


def gpt_of_transformers(sizes: dict[str, Any]) -> Any:
    """The model of `transformers`, with random weights of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(
        vocab_size=sizes["vocabulary"], n_positions=sizes["context"], n_embd=sizes["d_model"],
        n_layer=sizes["n_layers"], n_head=sizes["n_heads"], bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def search_of_transformers(sizes: dict[str, Any]) -> Search:
    """A beam search of `transformers`."""
    model, prompt = gpt_of_transformers(sizes), torch.tensor(TOKENS)[None]
    return lambda: model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
        pad_token_id=0, num_beams=BEAMS,
    )  # fmt: skip


def theirs(sizes: dict[str, Any], *, batch: int = 1, device: str = "cpu", dtype: Any = torch.float32) -> Steps:
    """`transformers`, token by token."""
    model, prompt = gpt_of_transformers(sizes).to(device, dtype), torch.tensor(TOKENS, device=device).expand(batch, -1)

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
        yield from times.found[1:]  # the first is the prompt

    return steps


def seconds_of_a_token(steps: Steps, count: int = NEW) -> float:
    """The median over the tokens after the first, which is that of the prompt."""
    found = [moment if isinstance(moment, float) else time.perf_counter() for moment in steps(count)]
    return statistics.median(after - before for before, after in itertools.pairwise(found))


def seconds_of_the_first(steps: Steps) -> float:
    """The time from the call to the first token."""
    begin = time.perf_counter()
    first = next(iter(steps(1)))
    return (first if isinstance(first, float) else time.perf_counter()) - begin


def reading(sizes: dict[str, Any], *, device: str = "cpu", dtype: Any = torch.float32) -> Steps:
    """Reads as many bytes for each token as the weights have: with less time, a token is not possible."""
    with px.random.stream(0):
        count = GptConfig(**sizes, tied=True).init("numpy").num_params() - sizes["context"] * sizes["d_model"]
    weights = torch.randn(count, device=device, dtype=dtype)

    def steps(count: int) -> Iterator[object]:
        for _ in range(count):
            weights.sum().item()
            yield None

    return steps


def seconds_of_a_search(search: Search) -> float:
    """The time of a beam search, for each new token."""
    begin = time.perf_counter()
    search()
    return (time.perf_counter() - begin) / NEW


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(2)
    sizes, name = (SMALL, "a small GPT") if quick() else (SIZES, "GPT-2 small")
    engines: dict[str, tuple[Backend, bool]] = {
        "Phlox eager on Torch": (Torch(), False),
        "Phlox compiled on JAX": (Jax(), True),
        "Phlox on NumPy": (NumPy(), False),
    }
    rows: list[Ratio] = []
    for workload, reference, ours, measure, target in (
        (f"a token of {name}, prompt {PROMPT}, batch 1", theirs, phlox_model, seconds_of_a_token, 0.7),
        (f"the first token of {name}, prompt {PROMPT}, batch 1", theirs, phlox_model, seconds_of_the_first, 1.0),
        (f"a token of {name}, over reading its weights once", reading, phlox_model, seconds_of_a_token, None),
        (
            f"a token of {name}, prompt {PROMPT}, {BEAMS} beams",
            search_of_transformers,
            phlox_search,
            seconds_of_a_search,
            1.0,
        ),
    ):
        peer = "reading the weights" if reference is reading else "transformers"
        makers: dict[str, Callable[[], Any]] = {peer: partial(reference, sizes)}
        makers |= {
            engine: partial(ours, backend, sizes, compiled=compiled) for engine, (backend, compiled) in engines.items()
        }
        contestants: dict[str, Callable[[], float]] = {
            engine: partial(measure, steps) for engine, steps in built(makers).items()
        }
        ready = built(contestants)  # called once, which compiles
        times = in_turn({engine: contestants[engine] for engine in ready}, range(2 if quick() else ROUNDS))
        rows += [compare(workload, times, engine, peer, target=target) for engine in makers if engine != peer]
    return rows
