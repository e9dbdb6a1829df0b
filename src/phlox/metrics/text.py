"""Metrics of sentences, counted on the host; their states are sums like any other, and merge exactly."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from phlox.backend import NumPy
from phlox.errors import KindError, RangeError, ShapeError
from phlox.metrics.base import Metric, Shapes, State
from phlox.metrics.inputs import check_count, one_of
from phlox.metrics.sums import Sum
from phlox.tensor import tensor, zeros_like

Array = np.ndarray[Any, Any]
Tokenize: TypeAlias = Callable[[str], Sequence[str]]


def pairs_of(name: str, predictions: Any, targets: Any, weights: Any) -> list[tuple[str, list[str], float]]:
    """Each prediction, its references, and its weight."""
    if isinstance(predictions, str):
        predictions, targets = [predictions], [targets]
    if isinstance(targets, str) or len(predictions) != len(targets):
        count = 1 if isinstance(targets, str) else len(targets)
        raise ShapeError(f"{name}: {len(predictions)} predictions and {count} targets; there is one target for each")
    factors = [1.0] * len(predictions) if weights is None else [float(w) for w in np.atleast_1d(np.asarray(weights))]
    if len(factors) != len(predictions):
        raise ShapeError(f"{name}: {len(factors)} weights for {len(predictions)} predictions; there is one for each")
    if any(not 0.0 <= w < math.inf for w in factors):
        raise RangeError(f"{name}: weights must be finite and not negative; leave a sentence out with a weight of 0")
    pairs: list[tuple[str, list[str], float]] = []
    for index, (prediction, target, factor) in enumerate(zip(predictions, targets, factors, strict=True)):
        references = [target] if isinstance(target, str) else list(target)
        if not references or not all(isinstance(text, str) for text in (prediction, *references)):
            raise KindError(
                f"{name}: number {index} must be strings, a prediction and at least one target, got {prediction!r} and "
                f"{target!r}"
            )
        pairs.append((prediction, references, factor))
    return pairs


def summed(rows: Iterable[Sequence[float]], width: int) -> Sum:
    """The sum of rows of `width` numbers, on the host."""
    columns = zip(*rows, strict=True)
    value = tensor(np.array([math.fsum(column) for column in columns] or [0.0] * width), device=NumPy(float="f64"))
    return Sum(value, zeros_like(value))


# --- edit distances


@dataclass(frozen=True)
class ErrorRate(Metric):
    """The number of edits from predictions to targets, divided by the length of the targets (Levenshtein 1966).

    Args of `update`: `(predictions, targets)`, two lists of strings, or two strings. Insertions, deletions and
    substitutions cost one each. Edits and lengths are summed over all sentences, so long sentences count more. The rate
    is above 1 if predictions are too long, and NaN if all targets are empty.
    """

    @abstractmethod
    def units(self, text: str) -> Sequence[str]:
        """The units that are edited: words or characters."""

    def shapes(self) -> Shapes:
        return {"edits": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        name = type(self).__name__
        rows: list[tuple[float, float]] = []
        for prediction, references, factor in pairs_of(name, predictions, targets, weights):
            if len(references) > 1:
                raise ShapeError(f"{name}: takes one target for each prediction, got {len(references)}")
            target = self.units(references[0])
            rows.append((factor * edit_distance(self.units(prediction), target), factor * len(target)))
        return {"edits": summed(rows, 2)}

    def result(self, edits: Array) -> Any:
        return edits[0] / edits[1] if edits[1] > 0 else math.nan


@dataclass(frozen=True)
class WordErrorRate(ErrorRate):
    """The word error rate (WER): the `ErrorRate` of words separated by white space.

    >>> from phlox import metrics
    >>> metrics.WordErrorRate()(["the cat sat"], ["the cat sat down"])
    0.25
    """

    def units(self, text: str) -> Sequence[str]:
        return text.split()


@dataclass(frozen=True)
class CharacterErrorRate(ErrorRate):
    """The character error rate (CER): the `ErrorRate` of characters; white space counts, except at both ends.

    >>> from phlox import metrics
    >>> metrics.CharacterErrorRate()(["kitten"], ["sitting"])
    0.428...
    """

    def units(self, text: str) -> Sequence[str]:
        return text.strip()


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of insertions, deletions and substitutions that turn a into b."""
    number: dict[str, int] = {}
    x, y = (np.array([number.setdefault(unit, len(number)) for unit in part], np.int64) for part in (a, b))
    steps = np.arange(len(y) + 1)
    row = steps
    for position, unit in enumerate(x, start=1):
        # First from the row above (a deletion or substitution), then along the row, as a running minimum.
        best = np.concatenate([[position], np.minimum(row[1:] + 1, row[:-1] + (y != unit))])
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


# --- n-grams


Smoothing: TypeAlias = Literal["exp", "floor", "add-k", "none"]


def tokenize_13a(text: str) -> list[str]:
    """Split a text into words and punctuation as WMT's mteval-v13a does, the standard for BLEU.

    >>> tokenize_13a("It's 3.5, isn't it?")
    ["It's", '3.5', ',', "isn't", 'it', '?']
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, sign in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(entity, sign)
    text = re.sub(r"([{-~[-` -&(-+:-@/])", r" \1 ", f" {text} ")
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)
    text = re.sub(r"([0-9])(-)", r"\1 \2 ", text)
    return text.split()


_TOKENIZERS: dict[str, Tokenize] = {"13a": tokenize_13a, "none": str.split, "char": lambda text: text.replace(" ", "")}


@dataclass(frozen=True, kw_only=True)
class Bleu(Metric):
    """BLEU of a corpus, from 0 to 1: the geometric mean of n-gram precisions times the brevity penalty.

    Args of `update`: `(predictions, targets)`: a list of strings, and for each a target or a list of several
    references. N-grams are counted over all sentences; this is not the mean BLEU of the sentences.

    Args:
        max_order: the length of the longest n-grams.
        smoothing: what to count in place of 0 matches: "exp", 1/2, then 1/4, ... (Lin, Och 2004; Chen, Cherry 2014);
            "floor", 0.1; "none", 0. "add-k" adds 1 to numerator and denominator, except for single words.
        tokenize: "13a", words and punctuation; "none", at white space; "char", characters; or a function.
        lowercase: whether to ignore case.

    Published scores are 100 times as large; most are from sacrebleu (Post 2018), which has the same defaults. It is 0
    if all predictions are empty, and NaN without any sentences. Source: Papineni et al. 2002.

    >>> from phlox import metrics
    >>> metrics.Bleu()(["the cat sat on the mat"], [["the cat sat on a mat", "the cat is on the mat"]])
    0.707...
    """

    max_order: int = 4
    smoothing: Smoothing = "exp"
    tokenize: Literal["13a", "none", "char"] | Tokenize = "13a"
    lowercase: bool = False

    def __post_init__(self) -> None:
        check_count("Bleu", "max_order", self.max_order)
        one_of("Bleu", "smoothing", self.smoothing, get_args(Smoothing))
        if not callable(self.tokenize):
            one_of("Bleu", "tokenize", self.tokenize, tuple(_TOKENIZERS))

    def shapes(self) -> Shapes:
        return {"counts": (2 * self.max_order + 3,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = [self._counts(*row) for row in pairs_of("Bleu", predictions, targets, weights)]
        return {"counts": summed(rows, 2 * self.max_order + 3)}

    def _counts(self, prediction: str, references: list[str], factor: float) -> list[float]:
        """Matches and n-grams of each order; the lengths of the prediction and the nearest reference; 1 (sentence)."""
        split = self.tokenize if callable(self.tokenize) else _TOKENIZERS[self.tokenize]
        words, *reference_words = (split(t.lower() if self.lowercase else t) for t in (prediction, *references))
        matches: list[int] = []
        totals: list[int] = []
        for order in range(1, self.max_order + 1):
            ngrams = _ngrams(words, order)
            best: Counter[Any] = Counter()
            for reference in reference_words:
                best |= _ngrams(reference, order)
            matches.append((ngrams & best).total())
            totals.append(ngrams.total())
        nearest = min((abs(len(reference) - len(words)), len(reference)) for reference in reference_words)[1]
        return [factor * number for number in (*matches, *totals, len(words), nearest, 1)]

    def result(self, counts: Array) -> Any:
        matches, totals = counts[: self.max_order], counts[self.max_order : -3]
        length, reference_length, sentences = counts[-3:]
        if not sentences > 0:
            return math.nan
        if not length > 0 or not matches.any():
            return 0.0
        logs: list[float] = []
        halved = 1.0
        for order, (match, total) in enumerate(zip(matches, totals, strict=True), start=1):
            if self.smoothing == "add-k" and order > 1:
                match, total = match + 1.0, total + 1.0
            if not total > 0:
                return 0.0
            if not match > 0 and self.smoothing == "exp":
                halved *= 2.0
                match = 1.0 / halved
            elif not match > 0 and self.smoothing == "floor":
                match = 0.1
            if not match > 0:
                return 0.0
            logs.append(math.log(match / total))
        return math.exp(sum(logs) / self.max_order + min(0.0, 1.0 - reference_length / length))


def _ngrams(words: Sequence[str], order: int) -> Counter[Any]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


# --- common subsequences


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


@dataclass(frozen=True, kw_only=True)
class RougeL(Metric):
    """The mean ROUGE-L of sentences, from 0 to 1 (Lin 2004), by the longest common subsequence of words.

    The length of the subsequence divided by the length of the target is recall; divided by the length of the prediction
    it is precision. Of several references the one with the highest F1 counts.

    Args of `update`: `(predictions, targets)`: a list of strings, and for each a target or a list of several
    references.

    Args:
        component: "f1", the harmonic mean of both; "precision"; "recall"; or "all", a dict of the three.
        tokenize: a function from a text to words; by default, runs of a-z and 0-9 in lower case.

    NaN without any sentences; an empty prediction or target counts as 0.

    >>> from phlox import metrics
    >>> metrics.RougeL()(["the cat sat on the mat"], ["the cat is on the mat"])
    0.833...
    """

    component: Literal["f1", "precision", "recall", "all"] = "f1"
    tokenize: Tokenize = _words

    def __post_init__(self) -> None:
        one_of("RougeL", "component", self.component, ("f1", "precision", "recall", "all"))

    def shapes(self) -> Shapes:
        return {"scores": (4,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows: list[list[float]] = []
        for prediction, references, factor in pairs_of("RougeL", predictions, targets, weights):
            words = self.tokenize(prediction)
            best = max(_rouge(words, self.tokenize(reference)) for reference in references)
            rows.append([factor * number for number in (*best, 1.0)])
        return {"scores": summed(rows, 4)}

    def result(self, scores: Array) -> Any:
        means = {
            name: float(score / scores[3])
            for name, score in zip(("f1", "precision", "recall"), scores[:3], strict=True)
        }
        return means if self.component == "all" else means[self.component]


def _rouge(words: Sequence[str], reference_words: Sequence[str]) -> tuple[float, float, float]:
    """F, precision and recall."""
    common = common_length(words, reference_words)
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(words), common / len(reference_words)
    return 2.0 * precision * recall / (precision + recall), precision, recall


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence: a row of the table is the bits of one integer (Hyyrö 2004)."""
    positions: dict[str, int] = {}
    for position, word in enumerate(a):
        positions[word] = positions.get(word, 0) | 1 << position
    everything = (1 << len(a)) - 1
    row = everything
    for word in b:
        hit = row & positions.get(word, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(a) - row.bit_count()
