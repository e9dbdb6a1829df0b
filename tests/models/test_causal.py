"""Several texts in one row have the results of each text alone; losses count the targets that are not ignored."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import ConfigError, IndexRangeError, KindError, ShapeError
from phlox.models import (
    DecoderConfig,
    DynamicScaling,
    EncoderDecoderConfig,
    ExpertsConfig,
    GptConfig,
    LatentConfig,
    LongScaling,
)
from phlox.tensor.noted_means import noting_means
from phlox.train import Learner
from tests.models.packed_training import BATCH, COUNTS, RNG, SIZES, lively, spans, step, trained

ROOT = Path(__file__).parents[2]

EXPERTS = ExpertsConfig(n_experts=4, top_k=2, d_hidden=8)
KINDS: dict[str, Any] = {
    "learned positions": GptConfig(**SIZES, tied=True),
    "rotary, groups": DecoderConfig(**SIZES, n_kv_heads=2, query_norm="heads"),
    "windows, sinks, caps": DecoderConfig(
        **SIZES, window=3, window_layers=(0,), local_rotary_base=100.0, sinks=True, attention_cap=5.0
    ),
    "latent": DecoderConfig(
        **SIZES, latent=LatentConfig(kv_rank=6, d_content=4, d_rotary=4, d_value=5), experts=EXPERTS
    ),
    "dynamic": DecoderConfig(**SIZES, rotary_scaling=DynamicScaling(factor=2.0, context=4)),
    "long": DecoderConfig(
        **SIZES, rotary_scaling=LongScaling(short=(1.0, 1.2), long=(2.0, 3.0), context=4, factor=2.0)
    ),
}


def results(model: Any, loss: Any, run: Any = lambda call: call) -> list[Any]:
    """A loss and its gradients."""
    value, grads = run(px.value_and_grad(loss))(model)
    gradients = [grads.get(param) for param in model.params()]
    return [value.numpy(), *(gradient.numpy() for gradient in gradients if gradient is not None)]


@cache
def of_numpy(kind: str) -> list[Any]:
    """The logits of packed texts on NumPy, the loss and its gradients: those of each text alone, as is asserted."""
    device = Autodiff(NumPy(float="f64")).device()
    model = lively(KINDS[kind], device)
    tokens, targets, segments = (px.tensor(BATCH[name], device=device) for name in ("input", "target", "segment"))
    logits = model(tokens, segments=segments).numpy()
    for row, span in spans():
        np.testing.assert_allclose(logits[row, span], model(tokens[row : row + 1, span]).numpy()[0], atol=1e-9)

    def each(model: Any) -> px.Tensor:
        sums = [model.log_prob(tokens[row : row + 1, span], targets[row : row + 1, span]) for row, span in spans()]
        return -px.concat(sums, 0).sum() / float(COUNTS.sum())

    packed = results(model, lambda model: model.loss(tokens, targets, segments=segments))
    counts = (BATCH["target"] != -100) & BATCH["mask"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_p = np.take_along_axis(log_p, np.where(counts, BATCH["target"], 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(packed[0], -log_p[counts].mean(), rtol=1e-9)
    for a, b in zip(packed, results(model, each), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    return [logits, *packed]


COMPILED = {Jax(): "windows, sinks, caps", Torch(): None}
"""Compiled programs, and the kind that is tested in the quick suite."""


@pytest.mark.parametrize(
    ("kind", "backend", "run"),
    [
        *(pytest.param(kind, Torch(), lambda call: call, id=f"{kind}, eager") for kind in KINDS),
        *(
            pytest.param(kind, backend, px.compile, id=f"{kind}, {backend}", marks=[pytest.mark.full] * (kind != quick))
            for backend, quick in COMPILED.items()
            for kind in KINDS
        ),
    ],
)
def test_packed_texts_are_those_alone(kind: str, backend: Backend, run: Any) -> None:
    device = Autodiff(backend).device()
    model = lively(KINDS[kind], device)
    tokens, targets, segments = (px.tensor(BATCH[name], device=device) for name in ("input", "target", "segment"))
    logits = run(lambda model: model(tokens, segments=segments))(model).numpy()
    found = [logits, *results(model, lambda model: model.loss(tokens, targets, segments=segments), run)]
    for a, b in zip(found, of_numpy(kind), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_loss_of_routers_counts_texts_and_not_padding() -> None:
    device = NumPy(float="f64").device()
    model = lively(KINDS["latent"].replace(experts=EXPERTS.replace(balance=0.1)), device)
    batch = {name: px.tensor(array, device=device) for name, array in BATCH.items()}
    chosen, probabilities = np.zeros(4), np.zeros(4)
    for row, span in spans():
        for routing in model.with_routings(batch["input"][row : row + 1, span])[1]:
            chosen += np.bincount(routing.experts.numpy().ravel(), minlength=4)
            probabilities += routing.probabilities.numpy().reshape(-1, 4).sum(0)
    count = 2 * BATCH["mask"].sum()  # in two layers
    balance = 4 * (chosen / count * probabilities / count).sum()
    with noting_means() as noted:
        loss = step(model, batch)
    weight, sums = noted.of(loss)
    assert weight.item() == COUNTS.sum() and sums is not None
    np.testing.assert_allclose(sums().mean.item(), loss.item(), rtol=1e-12)
    model.balance = 0.0
    np.testing.assert_allclose(loss.item() - step(model, batch).item(), 0.1 * balance, rtol=1e-9)


def test_the_mean_is_of_all_targets_that_are_not_ignored() -> None:
    """In two steps that accumulate, of rows with different numbers of targets."""
    assert COUNTS[0] != COUNTS[1]
    for a, b in zip(trained(), trained(1, accumulate=2), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_the_mean_is_of_all_targets_in_two_processes(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = [str(Path(__file__).parent / "packed_training.py"), str(tmp_path / "trained.npz")]
    done = subprocess.run(
        [sys.executable, "-m", "phlox", "launch", "--timeout", "100", "-n", "2", *program],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        timeout=140, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "trained.npz") as arrays:
        for a, b in zip(trained(), (arrays[name] for name in arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_needs_a_small_part_of_the_memory_of_all_logits() -> None:
    rows, n, vocabulary = 2, 1024, 50_000
    config = DecoderConfig(vocabulary=vocabulary, context=n, n_layers=1, d_model=8, n_heads=1, d_hidden=8)
    tokens = RNG.integers(0, vocabulary, (rows, n + 1)).astype(np.int32)
    segments = np.repeat([[1], [2]], n // 2, 1).reshape(1, n).repeat(rows, 0).astype(np.int32)
    batch = {"input": tokens[:, :-1], "target": tokens[:, 1:], "segment": segments}
    learner = Learner(config.init("numpy"), optim.AdamWConfig(), 1e-3, step=step)
    tracemalloc.start()
    try:
        learner.fit(Loader(batch, rows), steps=1, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    logits_and_gradient = 2 * rows * n * vocabulary * 4
    assert peak < 0.15 * logits_and_gradient


def test_wrong_use() -> None:
    model = lively(KINDS["rotary, groups"], NumPy().device())
    tokens, targets = (px.tensor(BATCH[name], device="numpy") for name in ("input", "target"))
    source = (
        EncoderDecoderConfig(vocabulary=10, n_layers=1, d_model=8, n_heads=2).init("numpy").start(tokens[:, :4] % 10)
    )
    attention = model.blocks[0].attention
    x, positions = px.zeros((2, 13, 16)), tokens
    for call, error, words in (
        (
            lambda: model(tokens, cache=model.init_cache(2), segments=tokens),
            ConfigError,
            "cache has one text in each row",
        ),
        (
            lambda: model(tokens, segments=tokens[:, :4]),
            ShapeError,
            r"segments must have the shape of the tokens, \(2, 13\)",
        ),
        (lambda: model(tokens, segments=tokens > 0), KindError, "segments"),
        (lambda: source(tokens[:, :4] % 10, segments=tokens[:, :4]), ConfigError, "text of one source"),
        (
            lambda: attention(x, cache=attention.init_cache(2, 13), positions=positions),
            ConfigError,
            "its own positions",
        ),
        (lambda: model.loss(tokens, targets), IndexRangeError, "-100"),
    ):
        with pytest.raises(error, match=words):
            call()
