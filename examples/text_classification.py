"""Who gets the money? Classify sentences in which the order of the words decides, with an LSTM.

    python examples/text_classification.py
    python examples/text_classification.py --device jax

"today ann pays the baker" and "today the baker pays ann" have the same words. A model of the mean of word vectors
cannot tell them apart (it is even wrong more often than right, where it has seen the other one in training), and an
LSTM can. It shows: rows of different lengths, padded by `Pad` and put into batches of similar length by `ByLength`; an
LSTM that is given the lengths; a mean over the words that are there; a step of one's own on batches that are dicts.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import ByLength, Loader, Pad, split_rows
from phlox.train import Learner

Ints = px.Tensor[Any, Any, px.Int]
Bools = px.Tensor[Any, Any, px.Bool]

PEOPLE = ("ann", "the baker")
VERBS = {"pays": 1, "thanks and pays": 1, "gets paid by": 0, "is paid well by": 0}
"""What comes between two people, and which of them has the money then."""
BEFORE = ("", "today", "in the morning", "as far as we know", "on the market , once more ,")
HOW = ("", "at last", "as always", "without a word", "for all that work of last week")
AFTER = ("", ", they say", "again", ", which the whole village has heard of", ", of course")


def sentences() -> list[tuple[str, int]]:
    """All sentences that can be made, and who gets the money: 0 for ann, 1 for the baker."""
    found: list[tuple[str, int]] = []
    for before, how, after, verb, first in product(BEFORE, HOW, AFTER, VERBS, (0, 1)):
        text = f"{before} {PEOPLE[first]} {verb} {PEOPLE[1 - first]} {how} {after}"
        found.append((text, first if VERBS[verb] == 0 else 1 - first))
    return found


def tokenized(texts: list[tuple[str, int]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows of tokens and a label, and the vocabulary, in which 0 is the padding."""
    words = sorted({word for text, _ in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(words, start=1)}
    rows = [{"tokens": np.array([vocabulary[word] for word in text.split()]), "label": label} for text, label in texts]
    return rows, vocabulary


def mean_of_words(x: px.Tensor, mask: Bools) -> px.Tensor:
    """The mean over the words of x [batch, time, n] that are there, [batch, n]."""
    weights = mask.float().expand_dims(-1)
    return (x * weights).sum(1) / weights.sum(1)


class BagOfWords(px.Module):
    """Tokens [batch, time] to logits [batch, 2], whatever their order is."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        self.embedding = nn.Embedding(vocabulary, width, padding_index=0)
        self.head = nn.Sequential([nn.Linear(width, width), nn.Relu(), nn.Linear(width, 2)])

    def __call__(self, tokens: Ints, mask: Bools) -> px.Tensor:
        return self.head(mean_of_words(self.embedding(tokens), mask))


class Reader(px.Module):
    """The same with an LSTM, which goes over the words in both directions."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        self.embedding = nn.Embedding(vocabulary, width, padding_index=0)
        self.lstm = nn.Lstm(width, width, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def __call__(self, tokens: Ints, mask: Bools) -> px.Tensor:
        states, _ = self.lstm(self.embedding(tokens), lengths=mask.int().sum(-1))
        return self.head(mean_of_words(states, mask))


def step(model: BagOfWords | Reader, batch: dict[str, Any]) -> Any:
    """The loss of a batch, and what the metrics are updated with."""
    logits = model(batch["tokens"], batch["mask"])
    return nn.cross_entropy_loss(logits, batch["label"]), (logits, batch["label"])


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    rows, vocabulary = tokenized(sentences())
    train, validation = split_rows(rows, 0.8, 0.2, seed=options.seed)
    lengths = [len(rows[number]["tokens"]) for number in train.rows]
    # Lengths are rounded up to multiples of 8: a compiled step is traced for few shapes, and little is padded.
    batches = Loader(train, 32, order=ByLength(lengths), seed=options.seed, collate=Pad(multiple_of=8), drop_last=True)
    others = Loader(validation, 100, collate=Pad(multiple_of=8))

    found: dict[str, float] = {}
    for name, model in {"bag of words": BagOfWords(len(vocabulary) + 1), "LSTM": Reader(len(vocabulary) + 1)}.items():
        print(f"--- {name}")
        learner = Learner(
            model.init(options.seed, options.device), optim.AdamWConfig(), 5e-3, step=step,
            metrics={"accuracy": metrics.Accuracy()},
        )  # fmt: skip
        learner.fit(batches, epochs=options.epochs, validation=others)
        found[name] = learner.value("validation/accuracy")
    print(" ; ".join(f"{name}: {accuracy:.1%} of new sentences right" for name, accuracy in found.items()))
    return found


if __name__ == "__main__":
    main()
