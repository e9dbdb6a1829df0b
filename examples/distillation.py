"""Teach a small language model by a larger one: distillation.

    python examples/distillation.py
    python examples/distillation.py --device jax --temperature 1.0

A teacher has read a long text. Two students of an eighth of its size see only a short one: the first learns from the
text alone; the second also from the teacher, which says for each word what else could stand there. It shows:
`px.nn.distillation_loss` with a temperature, in a step with a loss of the text beside it; a model that a step uses but
does not train; and what the teacher is worth, in the loss on a text that nobody has read.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import phlox as px
from phlox import optim
from phlox.data import Loader, TokenWindows
from phlox.models import Llama, LlamaConfig
from phlox.train import Learner

LENGTH = 32
SIZES: dict[str, dict[str, Any]] = {
    "teacher": {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_hidden": 128},
    "student": {"n_layers": 1, "d_model": 32, "n_heads": 4, "d_hidden": 64},
}


def story(rng: np.random.Generator) -> str:
    """Somebody, something of theirs, and what becomes of it."""
    name, thing = rng.choice(["ann", "bob", "carla", "dan"]), rng.choice(["dog", "boat", "hat", "key", "bird", "car"])
    colour = rng.choice(["red", "blue", "green", "black", "white", "brown"])
    text = f"{name} has a {colour} {thing} . "
    for _ in range(rng.integers(2, 5)):
        text += f"{name} {rng.choice(['looks for', 'paints', 'sells', 'likes'])} the {colour} {thing} . "
    return text + "the end . "


def created(size: str, vocabulary: int, device: Any) -> Llama:
    return LlamaConfig(vocabulary=vocabulary, context=LENGTH, tied=True, init_std=0.15, **SIZES[size]).init(device)


def trained(model: Llama, batches: Loader, epochs: int, step: Any) -> Learner[Llama]:
    """A learner that has trained the model; it validates with the loss of the text alone."""

    def validate(model: Llama, batch: Any) -> px.Tensor:
        return model.loss(batch["input"], batch["target"])

    schedule = optim.CosineAnnealingLr(5e-3, num_iters=len(batches) * epochs)
    learner = Learner(model, optim.AdamWConfig(), schedule, step=step, validate=validate)
    learner.fit(batches, epochs=epochs, progress=False)
    return learner


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=40, help="of the students, who read a short text")
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)
    words = "".join(story(rng) for _ in range(1300)).split()
    vocabulary = sorted(set(words))
    tokens = np.searchsorted(vocabulary, words).astype(np.int32)
    parts = {"long": tokens[:-5000], "short": tokens[:1500], "test": tokens[-5000:]}
    loaders = {
        name: Loader(TokenWindows(part, LENGTH), 16, shuffle=name != "test", seed=options.seed)
        for name, part in parts.items()
    }

    def of_text(model: Llama, batch: Any) -> px.Tensor:
        return model.loss(batch["input"], batch["target"])

    teacher = trained(created("teacher", len(vocabulary), options.device), loaders["long"], 4, of_text)
    knowing = teacher.model.valid()

    def of_teacher(model: Llama, batch: Any) -> px.Tensor:
        logits = model(batch["input"])
        loss = px.nn.distillation_loss(logits, knowing(batch["input"]), temperature=options.temperature)
        return 0.9 * loss + 0.1 * px.nn.cross_entropy_loss(logits, batch["target"])

    losses = {"teacher": teacher.evaluate(loaders["test"])["loss"]}
    for name, step in (("alone", of_text), ("distilled", of_teacher)):
        student = trained(created("student", len(vocabulary), options.device), loaders["short"], options.epochs, step)
        losses[name] = student.evaluate(loaders["test"])["loss"]
    sizes = [f"{model.num_params():,}" for model in (teacher.model, student.model)]
    print(f"The teacher has {sizes[0]} parameters and has read {len(parts['long']):,} words.")
    print(f"The students have {sizes[1]} parameters and read {len(parts['short']):,} words {options.epochs} times.")
    print(
        f"Loss of a word in another text: {losses['teacher']:.3f} of the teacher, {losses['alone']:.3f} of the student "
        f"that learned alone, {losses['distilled']:.3f} of the one that the teacher taught."
    )
    return losses


if __name__ == "__main__":
    main()
