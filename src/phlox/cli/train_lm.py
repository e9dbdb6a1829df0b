"""`phlox train-lm`: train a small language model on a text file, from its tokenizer to a model to talk to."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from phlox.cli.command import DONE, Command, count, whole
from phlox.cli.demo import program
from phlox.errors import DataError, RunError
from phlox.host.text import printable

if TYPE_CHECKING:
    from phlox.models import LanguageRecipe


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("text", nargs="+", metavar="TEXT", help="one or several text files, which are joined")
    add("--size", metavar="SIZE", help="tiny (default), small, medium, or a number of parameters, such as 1000000")
    add("--steps", type=count, metavar="N", help="the number of steps (default: by size)")
    add("--minutes", type=float, metavar="N", help="the longest time to train")
    add("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, torch:gpu:0, ...")
    add("--seed", type=whole, default=0, metavar="N", help="seed of the random numbers (default: 0)")
    add("--out", default="runs/lm", metavar="DIR", help="where to save the run (default: runs/lm)")
    add("--resume", action="store_true", help="resume the interrupted run in DIR")
    add("--overwrite", action="store_true", help="replace the run in DIR, once the new one is complete")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.backend import as_device
    from phlox.models import LanguageTraining
    from phlox.train import LambdaCallback, RunFolder

    if options.minutes is not None and not 0.0 < options.minutes < float("inf"):
        raise RunError(f"--minutes must be more than 0, got {options.minutes}")
    text = b"\n".join([_read(Path(path)) for path in options.text])
    device = as_device(options.device)
    recipe = _recipe(options)
    try:
        training = LanguageTraining(text, recipe, device, minutes=options.minutes)
    except DataError as error:
        raise DataError(f"{', '.join(options.text)}: {error}") from error
    model, tokens = training.learner.model, training.n_tokens
    limit = "" if options.minutes is None else f", or {options.minutes:g} minutes"
    with RunFolder(options.out, overwrite=options.overwrite, resume=options.resume) as folder:
        print(
            f"Text: {len(text):,} bytes, {tokens[0]:,} tokens for training and {tokens[1]:,} for validation\n"
            f"Tokenizer: {training.tokenizer.size:,} tokens, {len(text) / sum(tokens):.2f} bytes each\n"
            f"Model: {model.num_params():,} parameters, context {recipe.model.context}, on {device}, "
            f"seed {recipe.seed}\n"
            f"Training: {recipe.steps:,} steps of {recipe.batch_size * recipe.model.context:,} tokens{limit}; "
            "Ctrl-C is safe, --resume goes on",
            flush=True,
        )
        begun = perf_counter()

        def report(learner: Any) -> None:
            values = learner.validation
            print(
                f"step {learner.step}  loss {learner.loss:.3f}  validation {values['loss']:.3f}  "
                f"{values['bits_per_byte']:.3f} bits per byte  {perf_counter() - begun:.0f} s\n"
                f"  | {printable(' '.join(training.sample().split()))}",
                flush=True,
            )

        try:
            path = training.run(folder, [LambdaCallback(on_validation_end=report)])
        except KeyboardInterrupt:
            again = f"{program()} train-lm {' '.join(options.text)} --out {options.out} --resume"
            raise KeyboardInterrupt(f"the run in {folder.path} was saved; go on with: {again}") from None
    print(
        f"Saved in {path}. Talk to it: {program()} chat {path}\n"
        f'In Python: phlox.models.load("{path}").generate("The ", temperature=0.8)'
    )
    return DONE


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give text files, such as {path}/*.txt")
    content = path.read_bytes()
    if not content.strip():
        raise DataError(f"{path}: is empty; give a file with text")
    if b"\0" in content:
        raise DataError(f"{path}: has zero bytes, so it is not a text; give a text file, in UTF-8")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: is not UTF-8: byte {error.start:,}, in line {line:,}, is 0x{content[error.start]:02x}; convert "
            f"it, for example from Latin-1: iconv -f latin1 -t utf-8 {path} > utf8.txt"
        ) from None
    return content


def _recipe(options: argparse.Namespace) -> LanguageRecipe:
    from phlox.models import LanguageRecipe

    former = Path(options.out) / "config.json"
    if options.resume and former.is_file():
        if options.size is not None:
            raise RunError(f"{options.out}: a resumed run keeps its size; leave out --size")
        recipe = LanguageRecipe.load(former)
    else:
        size = options.size or "tiny"
        number = size.replace("_", "").replace(",", "")
        recipe = LanguageRecipe.of_size(int(number) if number.isdecimal() else size).replace(seed=options.seed)
    if options.steps is None:
        return recipe
    return recipe.replace(steps=options.steps, every=min(recipe.every, options.steps))


COMMAND = Command(
    description="Train a language model on a text: first a tokenizer of byte pairs, then a Llama whose depth, width, "
    "context, batch and learning rate follow from --size. It prints the losses in nats per token, the bits per byte of "
    "the held-out text, and a sample, and needs only NumPy.",
    arguments=arguments,
    run=run,
    intermixed=True,
)
