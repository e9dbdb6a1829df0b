"""The passes of the compiler: each can be switched off by name, then does nothing, and the numbers are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import _inductor as inductor

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.codegen import PASSES_VARIABLE
from phlox.backend.torch.compiler.kernels import gemm
from phlox.backend.torch.compiler.pipeline import PASSES
from phlox.errors import ConfigError
from tests.transform.steps import step, values

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
TAPE, PLAIN = Autodiff(Torch()).device(), Torch().device()
DOCS = Path(__file__).parents[4] / "docs"
rng = np.random.default_rng(0)


def tensor(*shape: int, device: Any = TAPE) -> px.Tensor:
    return px.tensor(rng.normal(size=shape).astype(np.float32), device=device)


def train(model: Callable[[], Any], x: px.Tensor, config: Any = optim.SgdConfig(momentum=0.9), **options: Any) -> Any:  # noqa: B008
    """What compiles and runs two steps."""

    def run() -> list[Any]:
        compiled, trained, optimizer, losses = px.compile(step, **options), model(), config.init(), list[Any]()
        for _ in range(2):
            with px.random.stream(3):
                trained, loss = compiled(trained, optimizer, 0.1, x)
            losses.append(loss.numpy())
        return [*values(trained), *losses]

    return run


def predict(model: Callable[[], Any], x: px.Tensor) -> Any:
    """What compiles and runs a prediction."""
    return lambda: [px.compile(lambda model, x: model(x))(model(), x).numpy()]


class Sequence(px.Module):
    """Token ids to embeddings, or rows, to what an LSTM or attention makes of them."""

    def __init__(self, layer: Any, tokens: int = 0) -> None:
        self.embedding = nn.Embedding(tokens, 32, device=TAPE) if tokens else None
        self.layer = layer

    def __call__(self, x: px.Tensor) -> px.Tensor:
        if self.embedding is not None:
            x = self.embedding((x.detach().inner() * 10.0).abs().int() % 50)
        found = self.layer(x)
        return found[0] if isinstance(found, tuple) else found


class Expm1(px.Module):
    """A scale, and a function that Inductor computes inaccurately."""

    def __init__(self) -> None:
        self.layer = nn.Linear(8, 8, device=TAPE)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.layer(x).expm1()


def lstm(device: Any = TAPE) -> Any:
    return Sequence(nn.Lstm(16, 32, device=device)).init(0)


def linears(*widths: int, device: Any = TAPE) -> Any:
    return nn.Sequential(
        [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, device=device), nn.Gelu())]
    ).init(0)


def convolutions(device: Any = TAPE) -> Any:
    layers = [nn.Conv2d(16, 32, 3, padding=1, device=device), nn.BatchNorm(32, device=device), nn.Relu()]
    return nn.Sequential(layers).init(0)


def packed_product() -> list[Any]:
    """Two rows times a packed matrix."""
    words = px.full((5, 16), 0x12345678, device=PLAIN)
    product = px.compile(lambda x, words: px.functional.packed_linear(x, words, coding="int4"))
    return [product(px.ones((2, 128), device=PLAIN), words).numpy()]


class Case(NamedTuple):
    """Programs that use a pass, and how that shows in what is compiled."""

    runs: tuple[Callable[[], list[Any]], ...]
    shows: Callable[[list[Any]], bool]
    """Of the nodes of all graphs that Inductor is given."""


def names(*wanted: str) -> Callable[[list[Any]], bool]:
    return lambda nodes: any(str(node.target) in wanted for node in nodes)


def computed_once(nodes: list[Any]) -> bool:
    """Is there no scalar twice?"""
    calls = [node for node in nodes if node.op == "call_function" and "val" in node.meta]
    scalars = [node for node in calls if node.meta["val"].ndim == 0]
    return len(scalars) == len({(node.target, str(node.args)) for node in scalars})


def lacks(name: str) -> Callable[[list[Any]], bool]:
    return lambda nodes: not names(name)(nodes)


IMAGES = tensor(4, 16, 12, 12)
CASES: dict[str, Case] = {
    "decompositions": Case((train(lambda: Expm1().init(0), tensor(4, 8)),), lacks("aten.expm1.default")),
    "lstm": Case(
        (train(lstm, tensor(2, 3, 16)), predict(lambda: lstm(PLAIN), tensor(2, 3, 16, device=PLAIN))),
        names("phlox.lstm_steps.default", "phlox.lstm_steps_forward.default"),
    ),
    "bernoulli": Case(
        (train(lambda: nn.Sequential([nn.Linear(8, 8, device=TAPE), nn.Dropout(0.5)]).init(0), tensor(4, 8)),),
        lambda nodes: any(str(node.target) == "phlox.draw.default" and node.args[-1] is True for node in nodes),
    ),
    "embedding_grad": Case(
        (train(lambda: Sequence(nn.Linear(32, 4, device=TAPE), tokens=50).init(0), tensor(3, 5)),),
        names("phlox.add_rows.default"),
    ),
    "packed": Case((packed_product,), names("phlox.multiply_packed.default")),
    "scalar_cse": Case(
        (train(lambda: linears(4, 4, 4), tensor(3, 4), optim.AdamWConfig()),),
        computed_once,
    ),
    "donation": Case(
        (train(lambda: linears(1100, 1000), tensor(2, 1100), donate=("model", "optimizer")),),
        names("aten.copy_.default"),
    ),
    "multi_tensor": Case(
        (train(lambda: linears(*[6] * 10), tensor(2, 6), donate=("model", "optimizer")),),
        lambda nodes: sum(node.op == "output" for node in nodes) > 1,
    ),
    "constant_folding": Case(
        (predict(lambda: convolutions(PLAIN), tensor(4, 16, 12, 12, device=PLAIN)),), lambda nodes: not nodes
    ),
    "packed_gemm": Case(
        (predict(lambda: linears(256, 256, device=PLAIN), tensor(128, 256, device=PLAIN)),),
        names("phlox.linear.default"),
    ),
    "gemm": Case(
        (
            train(lambda: linears(128, 256), tensor(128, 128)),
            predict(lambda: linears(128, 256, device=PLAIN), tensor(1024, 128, device=PLAIN)),
        ),
        names("phlox.product.default"),
    ),
    "winograd": Case((train(convolutions, IMAGES),), names("phlox.winograd.default")),
    "attention": Case(
        (
            train(lambda: Sequence(nn.MultiHeadAttention(32, 2, device=TAPE)).init(0), tensor(2, 70, 32)),
            predict(
                lambda: Sequence(nn.MultiHeadAttention(32, 2, device=PLAIN)).init(0), tensor(2, 70, 32, device=PLAIN)
            ),
        ),
        names("phlox.attention.default"),
    ),
}  # fmt: skip


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The nodes of all graphs that are compiled from now on; they run as they are, which takes no time to compile."""
    found = list[Any]()

    def noted(graph: Any, example: Any) -> Any:
        found.extend(graph.graph.nodes)
        return graph.forward

    monkeypatch.setattr(inductor, "compile", noted)
    return found


@pytest.mark.parametrize("name", CASES)
def test_without_a_pass_the_numbers_are_the_same(
    name: str, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "gemm":
        monkeypatch.setattr(gemm, "_is_faster", lambda: True)
    case = CASES[name]
    for run in case.runs:
        compiled.clear()
        monkeypatch.delenv(PASSES_VARIABLE, raising=False)
        found, shows = run(), case.shows(compiled)
        assert shows
        compiled.clear()
        monkeypatch.setenv(PASSES_VARIABLE, f"-{name}")
        monkeypatch.setattr(pipeline, "PASSES", [_forbidden(one) if one.name == name else one for one in PASSES])
        without = run()
        assert not case.shows(compiled)
        monkeypatch.setattr(pipeline, "PASSES", PASSES)
        for a, b in zip(without, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _forbidden(one: pipeline.Pass) -> pipeline.Pass:
    def run(*_: Any) -> Any:
        raise AssertionError(f"{one.name} is switched off")

    return one._replace(function=run, finish=run)


def test_every_pass_is_tested_and_documented() -> None:
    assert [one.name for one in PASSES] == list(CASES)
    text = (DOCS / "compile.md").read_text("utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert {one.name: one.purpose for one in PASSES}.items() <= table.items()
    measured = re.findall(r"^\| `(\w+)` \| \d+ \|", (DOCS / "performance.md").read_text("utf-8"), re.MULTILINE)
    assert measured == [one.name for one in PASSES]


def test_all_of_them(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = CASES["winograd"].runs[0]
    found = run()
    monkeypatch.setenv(PASSES_VARIABLE, "-all")
    monkeypatch.setattr(pipeline, "PASSES", [_forbidden(one) for one in PASSES])
    compiled.clear()
    without = run()
    assert not any(str(node.target).startswith("phlox.") for node in compiled)
    for a, b in zip(without, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["", "all", "-all, winograd", "-donation,-winograd,all"])
def test_the_last_word_counts(text: str, compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSES_VARIABLE, text)
    CASES["winograd"].runs[0]()
    assert CASES["winograd"].shows(compiled)


@pytest.mark.parametrize("word", ["-winogard", "donations", "-"])
def test_an_unknown_name_is_refused(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSES_VARIABLE, f"-donation,{word}")
    with pytest.raises(ConfigError) as caught:
        px.compile(lambda x: x + 1.0)(tensor(2))
    said = str(caught.value)
    assert f"{PASSES_VARIABLE} switches passes off by name, as in `-winograd,-attention`, got {word!r}" in said
    assert all(one.name in said for one in PASSES) and "\n" not in said
