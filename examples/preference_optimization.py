"""Teach a language model which of its answers people prefer: direct preference optimization (DPO).

    python examples/preference_optimization.py
    python examples/preference_optimization.py --device jax --beta 0.3

A small model has learned to answer questions about a text; half of its answers are polite, the others curt. It writes
two answers to each question, and a judge, who stands for people here, says which one is better. From these pairs it
learns to write the better ones. It shows: answers from `generate`, several to each question; `log_prob`, the
log-probability of an answer, with -100 in place of targets that do not count; `px.nn.dpo_loss`, whose reference is the
same model without its adapters (`px.lora`, `px.without_adapters`); rewards; and answers before and after.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import phlox as px
from phlox import optim
from phlox.data import Loader, Pack, Pad, next_tokens
from phlox.models import Llama, LlamaConfig
from phlox.train import Learner

THINGS, COLOURS = ["dog", "boat", "hat", "key", "bird"], ["red", "blue", "green", "black", "white"]
WORDS = ["<end>", "the", "is", "what", "colour", "?", "it", "thank", "you", "for", "asking", *THINGS, *COLOURS]
TOKENS = {word: token for token, word in enumerate(WORDS)}
LENGTH = 20

Question = tuple[list[int], str]
"""The tokens of a text with a question, and the colour that is asked for."""


def encode(text: str) -> list[int]:
    return [TOKENS[word] for word in text.split()]


def question(rng: np.random.Generator) -> Question:
    """A text about a thing and its colour, with the question for it."""
    thing, colour = rng.choice(THINGS), str(rng.choice(COLOURS))
    return encode(f"the {thing} is {colour} what colour is the {thing} ?"), colour


def answer(colour: str, is_polite: bool) -> list[int]:
    return encode(f"thank you for asking it is {colour} <end>" if is_polite else f"{colour} <end>")


def score(reply: list[int], colour: str) -> int:
    """What the judge thinks: polite answers are best, wrong ones worst."""
    return 2 if reply == answer(colour, True) else 1 if reply == answer(colour, False) else 0


def replies(model: Llama, questions: list[Question], samples: int) -> list[list[list[int]]]:
    """Several answers to each question, drawn from the model."""
    prompts = [prompt for prompt, _ in questions for _ in range(samples)]
    texts = model.valid(tape=False).generate(prompts, 8, stop=TOKENS["<end>"])  # the stop is not part of a text
    written = [[*text[len(prompt) :].tolist(), TOKENS["<end>"]] for text, prompt in zip(texts, prompts, strict=True)]
    return [written[i : i + samples] for i in range(0, len(written), samples)]


def judged(model: Llama, questions: list[Question]) -> float:
    """The share of polite answers that are right."""
    answers = replies(model, questions, 1)
    for (prompt, _), (reply,) in list(zip(questions, answers, strict=True))[-2:]:
        print("  " + " ".join(WORDS[token] for token in prompt), "->", " ".join(WORDS[token] for token in reply))
    return float(np.mean([score(reply, colour) == 2 for (_, colour), (reply,) in zip(questions, answers, strict=True)]))


def pairs(model: Llama, questions: list[Question]) -> dict[str, Any]:
    """Questions with a better and a worse answer, where the two differ: arrays of "chosen" and of "rejected" rows."""
    rows: dict[str, list[Any]] = {"chosen": [], "rejected": []}
    for (prompt, colour), drawn in zip(questions, replies(model, questions, 2), strict=True):
        worse, better = sorted(drawn, key=lambda reply: score(reply, colour))
        if score(worse, colour) < score(better, colour):
            for name, reply in (("chosen", better), ("rejected", worse)):
                rows[name].append(next_tokens(prompt + reply, [False] * len(prompt) + [True] * len(reply)))
    pad = Pad(length=LENGTH, value={"target": -100}, mask=None)
    return {name: pad(of_name) for name, of_name in rows.items()}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=3, help="of the training on preferences")
    parser.add_argument("--beta", type=float, default=0.2, help="how much it costs to differ from the first model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)
    texts = [(prompt, answer(colour, rng.random() < 0.5)) for prompt, colour in (question(rng) for _ in range(3000))]
    rows = Pack(2 * LENGTH)([next_tokens(prompt + reply) for prompt, reply in texts])
    config = LlamaConfig(
        vocabulary=len(WORDS), context=2 * LENGTH, n_layers=2, d_model=48, n_heads=4, d_hidden=96, init_std=0.15
    )
    batches = Loader(rows, 16, shuffle=True, seed=options.seed)
    first = Learner(
        config.init(options.device), optim.AdamWConfig(), optim.CosineAnnealingLr(1e-2, num_iters=6 * len(batches)),
        step=lambda model, batch: model.loss(batch["input"], batch["target"], segments=batch["segment"]),
    )  # fmt: skip
    first.fit(batches, epochs=6, progress=False)
    base = first.model

    tests = [question(rng) for _ in range(100)]
    before = judged(base, tests)
    preferences = pairs(base, [question(rng) for _ in range(500)])
    print(f"{len(preferences['chosen']['input'])} of 500 questions have answers of which one is better.")

    def step(model: Llama, batch: dict[str, Any]) -> Any:
        """The loss, and how often the better answer has the higher reward."""
        reference = px.without_adapters(model).valid()
        log_probs = [
            of.log_prob(batch[name]["input"], batch[name]["target"])
            for of in (model, reference)
            for name in ("chosen", "rejected")
        ]
        loss, chosen, rejected = px.nn.dpo_loss(*log_probs, beta=options.beta)
        loss = loss - 0.2 * log_probs[0].mean()  # better answers stay likely in themselves (Pang et al. 2024)
        return loss, (), {"accuracy": (chosen > rejected).float().mean()}

    model = px.lora(base, ["**.attention.*.weight", "**.gate.weight", "**.up.weight", "**.down.weight"], rank=8)
    learner = Learner(model, optim.AdamWConfig(), 1e-3, step=step)
    learner.fit(Loader(preferences, 16, shuffle=True, seed=options.seed), epochs=options.epochs, progress=False)
    after = judged(learner.model, tests)
    accuracy = learner.value("train/accuracy")
    print(
        f"In the last epoch the better answer had the higher reward in {accuracy:.0%} of the pairs. Of 100 answers to "
        f"other questions, {before:.0%} were polite and right before, and {after:.0%} after."
    )
    return {"before": before, "after": after, "accuracy": accuracy}


if __name__ == "__main__":
    main()
