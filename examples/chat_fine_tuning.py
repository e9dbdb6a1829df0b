"""Teach a language model to answer in a chat: supervised fine-tuning with LoRA on packed rows.

    python examples/chat_fine_tuning.py
    python examples/chat_fine_tuning.py --device jax --epochs 8

A small base model reads many little texts about things and their colours. So it knows what the texts say, but no chat:
it has never seen the marks around messages. Then it learns from a few hundred chats, and is asked about others. It
shows: a tokenizer of our own with a chat template (which needs `pip install jinja2`); `chat_mask`, by which only the
assistant's words are learned; `next_tokens` and `Pack`, which put several chats into one row, and `segments`, so that
none sees the others; `px.lora`, which also trains the embeddings, since those of the marks are new; and replies before
and after.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import phlox as px
from phlox import optim
from phlox.data import Loader, Pack, next_tokens
from phlox.models import LanguageModel, Llama, LlamaConfig
from phlox.text import BytePairTokenizer
from phlox.train import Learner

Chat = list[dict[str, str]]

LENGTH = 64
TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
MARKS = ["<|user|>", "<|assistant|>", "<|end|>"]


def fact(rng: np.random.Generator) -> tuple[str, str, str]:
    """A sentence about somebody's thing, the thing, and its colour."""
    name = rng.choice(["Ann", "Bob", "Carla", "Dan", "Eve", "Finn"])
    thing = rng.choice(["dog", "boat", "hat", "key", "bird", "car"])
    colour = rng.choice(["red", "blue", "green", "black", "white", "brown"])
    return f"{name} has a {colour} {thing}.", thing, colour


def text(rng: np.random.Generator) -> str:
    """What the base model reads."""
    sentence, thing, colour = fact(rng)
    return f"{sentence} The {thing} is {colour}.\n"


def chat(rng: np.random.Generator) -> Chat:
    """A question about a sentence, and its answer."""
    sentence, thing, colour = fact(rng)
    question = f"{sentence} What colour is the {thing}?"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": f"The {thing} is {colour}."}]


def step(model: Llama, batch: dict[str, Any]) -> px.Tensor:
    """The loss of packed rows: each text is predicted from itself alone."""
    return model.loss(batch["input"], batch["target"], segments=batch["segment"], ignore_index=-100)


def trained(model: Llama, rows: dict[str, Any], lr: float, epochs: int, seed: int) -> Llama:
    """The model after a training on packed rows."""
    print(
        f"{model.num_params(trained_only=True):,} of {model.num_params():,} parameters learn from {len(rows['input'])} "
    )
    print(f"rows of {LENGTH} tokens, {rows['mask'].mean():.0%} full.")
    batches = Loader(rows, 16, shuffle=True, seed=seed)
    schedule = optim.CosineAnnealingLr(lr, num_iters=len(batches) * epochs)
    learner = Learner(model, optim.AdamWConfig(), schedule, step=step)
    learner.fit(batches, epochs=epochs, progress=False)
    return learner.model


def right(model: Llama, tokenizer: BytePairTokenizer, chats: list[Chat]) -> float:
    """The share of chats whose last message the model writes itself; the first reply is printed."""
    prompts = [tokenizer.render_chat(messages[:-1]) for messages in chats]
    replies = LanguageModel(model.valid(tape=False), tokenizer).generate(prompts, 8, temperature=0.0)
    print(f"  {chats[0][0]['content']}\n  -> {replies[0]!r}")
    return float(np.mean([reply == messages[-1]["content"] for reply, messages in zip(replies, chats, strict=True)]))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=3, help="of the fine-tuning")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)
    texts = [text(rng) for _ in range(3000)]
    merges = BytePairTokenizer.train("".join(texts), size=330, special=MARKS, end=MARKS[2]).merges
    tokenizer = BytePairTokenizer(merges, special=MARKS, end=MARKS[2], chat_template=TEMPLATE)
    config = LlamaConfig(
        vocabulary=tokenizer.size,
        context=LENGTH,
        n_layers=2,
        d_model=48,
        n_heads=4,
        d_hidden=96,
        tied=True,
        init_std=0.15,
    )
    rows = Pack(LENGTH)([next_tokens(tokenizer.encode(text)) for text in texts])
    base = trained(config.init(options.device), rows, 1e-2, 3, options.seed)

    chats, tests = ([chat(rng) for _ in range(count)] for count in (400, 50))
    before = right(base, tokenizer, tests)
    rows = Pack(LENGTH)([next_tokens(*tokenizer.chat_mask(messages)) for messages in chats])
    linear = ["**.attention.*.weight", "**.gate.weight", "**.up.weight", "**.down.weight"]
    tuned = trained(px.lora(base, linear, rank=8, train="tokens.weight"), rows, 1e-2, options.epochs, options.seed)
    after = right(tuned, tokenizer, tests)
    print(f"Of {len(tests)} questions about other texts, {before:.0%} were answered before, and {after:.0%} after.")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
