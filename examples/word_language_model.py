"""A language model of words: an LSTM that reads a long text in parts, and remembers from part to part.

    python examples/word_language_model.py
    python examples/word_language_model.py --device jax --epochs 20

The text is made here, of little stories about somebody and something of theirs: who has forgotten how a story began
cannot know how it goes on. It shows: `TokenWindows` in the order of the text; a state that is carried from batch to
batch (`carry=`), so that gradients flow through one window and memory goes on through all of them (truncated
backpropagation through time); tied weights, by which the embedding is the output layer too; a learning-rate schedule;
perplexity, with that of the words' mere frequencies beside it; and text that the model writes.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader, Subset, TokenWindows
from phlox.nn import LstmState
from phlox.train import Learner

Ints = px.Tensor[Any, Any, px.Int]
Tokens = npt.NDArray[np.int32]

ROWS, LENGTH = 8, 12


def story(rng: np.random.Generator) -> str:
    """Somebody, something of theirs, and what becomes of it."""
    name, thing = rng.choice(["ann", "bob", "carla", "dan"]), rng.choice(["dog", "boat", "hat", "key"])
    colour = rng.choice(["red", "blue", "green", "black"])
    text = f"{name} has a {colour} {thing} . "
    for _ in range(rng.integers(2, 6)):
        text += f"{name} {rng.choice(['looks for', 'paints', 'sells', 'likes'])} the {colour} {thing} . "
    return text + "the end . "


def in_rows(tokens: Tokens) -> Subset:
    """Windows of the text in an order in which row i of a batch goes on where row i of the batch before it ended."""
    windows = TokenWindows(tokens, LENGTH)
    steps = len(windows) // ROWS
    return Subset(windows, np.arange(ROWS * steps).reshape(ROWS, steps).T.reshape(-1))


class WordModel(px.Module):
    """Tokens [batch, time] and a state to logits [batch, time, vocabulary] and the state after them."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        self.embedding = nn.Embedding(vocabulary, width, initializer=nn.Normal(std=0.3))
        self.lstm = nn.Lstm(width, width)

    def __call__(self, tokens: Ints, state: LstmState) -> tuple[px.Tensor, LstmState]:
        states, state = self.lstm(self.embedding(tokens), state)
        return states @ self.embedding.weight.val().T, state


def step(model: WordModel, batch: dict[str, Ints], state: LstmState) -> Any:
    """The loss and what the perplexity is made of; and the state that the next batch begins with."""
    logits, state = model(batch["input"], state)
    return (nn.cross_entropy_loss(logits, batch["target"]), (logits, batch["target"])), state


def written(model: WordModel, words: list[str], count: int, device: px.Device) -> str:
    """A text of the model's own, word by word."""
    predict = px.compile(WordModel.__call__)
    state, token = model.lstm.init_state(1), words.index(".")
    found: list[str] = []
    for _ in range(count):
        logits, state = predict(model, px.tensor([[token]], device=device), state)
        token = px.random.Categorical(logits[0, 0]).sample().item()
        found.append(words[token])
    return " ".join(found)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)
    text = "".join(story(rng) for _ in range(1000)).split()
    words = sorted(set(text))
    numbers = {word: number for number, word in enumerate(words)}
    tokens = np.array([numbers[word] for word in text], np.int32)
    train, validation = tokens[: len(tokens) * 4 // 5], tokens[len(tokens) * 4 // 5 :]
    print(f"{len(train):,} words to train on, {len(validation):,} to validate with, {len(words)} different ones")

    batches = Loader(in_rows(train), ROWS)
    schedule = optim.CosineAnnealingLr(5e-3, num_iters=len(batches) * options.epochs)
    learner = Learner(
        WordModel(len(words)).init(options.seed, options.device), optim.AdamWConfig(), schedule, step=step,
        metrics={"perplexity": metrics.Perplexity()}, clip=optim.GradientClipping.global_norm(1.0),
        carry=lambda model, batch: model.lstm.init_state(ROWS),
    )  # fmt: skip
    learner.fit(batches, epochs=options.epochs, validation=Loader(in_rows(validation), ROWS))

    frequency = np.bincount(train, minlength=len(words)) / len(train)
    found = {
        "model": learner.value("validation/perplexity"),
        "frequencies": float(np.exp(-np.log(frequency[validation]).mean())),
    }
    print(f"The model writes: {written(learner.model.valid(), words, 60, options.device)} ...")
    print(
        f"Perplexity of a word in a text that was not trained on: {found['model']:.2f}; from the frequencies of the "
        f"words alone {found['frequencies']:.2f}."
    )
    return found


if __name__ == "__main__":
    main()
