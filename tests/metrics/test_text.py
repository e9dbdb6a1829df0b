"""Metrics of sentences, beside sacrebleu, jiwer and torchmetrics."""

from __future__ import annotations

from typing import Any

import jiwer
import numpy as np
import pytest
import sacrebleu
import torchmetrics.functional.text as tmt

from phlox import metrics
from phlox.errors import KindError, RangeError, ShapeError
from phlox.metrics.text import common_length, edit_distance

SAID = [
    "the cat sat on the mat", "It is 3.5 metres, isn't it?", "hello world", "a \"quoted\" word - and a dash, 5-6.",
    "nothing in common", "the the the the", "Ünïcode & <tags> work: yes!", "one",
]  # fmt: skip
MEANT = [
    "the cat is on the mat", "It's 3.5 meters, is it not?", "hello there world", "a 'quoted' word - and one dash, 5-7.",
    "entirely different words here", "the cat the dog", "unicode & <tags> work: yes, really!", "one two",
]  # fmt: skip
OTHERS = [f"{meant} {said.split()[0]}" for meant, said in zip(MEANT, SAID, strict=True)]
BOTH = [[a, b] for a, b in zip(MEANT, OTHERS, strict=True)]


def streams(metric: Any, targets: Any) -> list[float]:
    """In one batch, in uneven ones, and merged in another order."""
    whole = metric.measure(SAID, targets)
    state = metric.init()
    for a, b in ((0, 1), (1, 1), (1, 6), (6, 8)):
        state = metric.update(state, SAID[a:b], targets[a:b])
    shards = metric.merge(metric.measure(SAID[3:], targets[3:]), metric.measure(SAID[:3], targets[:3]))
    return [metric.compute(one) for one in (whole, state, shards)]


@pytest.mark.parametrize("smoothing", ["exp", "floor", "add-k", "none"])
@pytest.mark.parametrize("tokenize", ["13a", "none", "char"])
def test_bleu(smoothing: Any, tokenize: Any) -> None:
    for lowercase in (False, True):
        for targets, references in ((MEANT, [MEANT]), (BOTH, [MEANT, OTHERS])):
            metric = metrics.Bleu(smoothing=smoothing, tokenize=tokenize, lowercase=lowercase)
            want = sacrebleu.corpus_bleu(
                SAID, references, smooth_method=smoothing, tokenize=tokenize, lowercase=lowercase, force=True
            ).score
            for got in streams(metric, targets):
                assert 100.0 * got == pytest.approx(want, rel=1e-9)


def test_bleu_of_short_and_empty_corpora() -> None:
    for said, meant in ((["one two"], ["one three"]), (["x"], ["x"]), ([""], ["a b"]), (["a b c d e"], ["v w x y z"])):
        want = sacrebleu.corpus_bleu(said, [meant]).score
        assert 100.0 * metrics.Bleu()(said, meant) == pytest.approx(want, abs=1e-9)
    assert np.isnan(metrics.Bleu()([], []))
    assert metrics.Bleu(max_order=1)("a b", "a c") == pytest.approx(0.5)


def test_error_rates() -> None:
    for got in streams(metrics.WordErrorRate(), MEANT):
        assert got == pytest.approx(jiwer.wer(MEANT, SAID))
    for got in streams(metrics.CharacterErrorRate(), MEANT):
        assert got == pytest.approx(jiwer.cer(MEANT, SAID))
    weighted = metrics.WordErrorRate()(SAID, MEANT, weights=[2, 0, 0, 0, 0, 0, 0, 1])
    assert weighted == pytest.approx(jiwer.wer([MEANT[0], MEANT[0], MEANT[7]], [SAID[0], SAID[0], SAID[7]]))
    assert np.isnan(metrics.WordErrorRate()([], [])) and np.isnan(metrics.WordErrorRate()(["a"], [""]))
    assert metrics.WordErrorRate()("a b c", "a") == 2.0


def test_edit_distance_and_common_length_beside_tables() -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        a, b = ("".join(rng.choice(list("abc"), rng.integers(0, 12))) for _ in range(2))
        edits = [[i + j if not i * j else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
        common = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a, 1):
            for j, y in enumerate(b, 1):
                edits[i][j] = min(edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (x != y))
                common[i][j] = common[i - 1][j - 1] + 1 if x == y else max(common[i - 1][j], common[i][j - 1])
        assert edit_distance(a, b) == edits[-1][-1] and common_length(a, b) == common[-1][-1]


@pytest.mark.parametrize("targets", [MEANT, BOTH], ids=["one", "several"])
def test_rouge(targets: Any) -> None:
    said, wanted = SAID[:6], targets[:6]  # of letters that torchmetrics normalizes otherwise there is none
    want = tmt.rouge_score(said, wanted, rouge_keys="rougeL", accumulate="best")
    found = metrics.RougeL(component="all")(said, wanted)
    names: Any = (("f1", "fmeasure"), ("precision", "precision"), ("recall", "recall"))
    for name, theirs in names:
        assert found[name] == pytest.approx(want[f"rougeL_{theirs}"].item(), rel=1e-5)
        assert metrics.RougeL(component=name)(said, wanted) == pytest.approx(found[name])
    values = streams(metrics.RougeL(), targets)
    assert values == pytest.approx([values[0]] * 3, rel=1e-13)
    assert metrics.RougeL()([""], ["a"]) == 0.0 and np.isnan(metrics.RougeL()([], []))
    assert metrics.RougeL(tokenize=str.split)(["a, b"], ["a b"]) == 0.5


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.Bleu(max_order=0), RangeError, "Bleu: max_order must be a positive integer"),
    (lambda: LOOSE.Bleu(smoothing="chen"), RangeError, "Bleu: smoothing is 'exp', 'floor', 'add-k' or 'none'"),
    (lambda: LOOSE.Bleu(tokenize="14a"), RangeError, "Bleu: tokenize is '13a'"),
    (lambda: LOOSE.RougeL(component="f"), RangeError, "RougeL: component is"),
    (lambda: LOOSE.Bleu()(["a"], ["a", "b"]), ShapeError, "Bleu: 1 predictions and 2 targets"),
    (lambda: LOOSE.Bleu()(["a"], "a"), ShapeError, "Bleu: 1 predictions and 1 targets"),
    (lambda: LOOSE.Bleu()(["a", 3], ["a", "b"]), KindError, "Bleu: number 1 must be strings"),
    (lambda: LOOSE.Bleu()(["a"], [[]]), KindError, "Bleu: number 0 must be strings, a prediction and at least one"),
    (lambda: LOOSE.WordErrorRate()(["a"], [["a", "b"]]), ShapeError, "WordErrorRate: takes one target"),
    (lambda: LOOSE.Bleu()(["a"], ["b"], weights=[1, 2]), ShapeError, "Bleu: 2 weights for 1 predictions"),
    (lambda: LOOSE.Bleu()(["a"], ["b"], weights=[-1]), RangeError, "Bleu: weights must be finite and not negative"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)
