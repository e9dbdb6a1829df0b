"""Train a small GPT on the source of Python's standard library, byte by byte, and generate some text.

    python examples/gpt.py                                        # on JAX: each step is one XLA program
    python examples/gpt.py --device numpy --minutes 5             # a smaller model, with NumPy alone
    python examples/gpt.py --device torch                         # the first step is slow: it compiles
    python examples/gpt.py --out gpt --steps 500                  # also saves gpt.safetensors and gpt.json
    python examples/gpt.py --resume gpt --steps 0 --prompt "def " # only generates

Losses are in nats per byte, on the training text and on validation files.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import phlox as px
from phlox import optim
from phlox.backend import as_device
from phlox.errors import PhloxError
from phlox.models import Gpt, GptConfig
from phlox.record import SafetensorsRecorder, load

Bytes = npt.NDArray[np.uint8]
Tokens = px.Tensor[Any, Any, px.Int]

SIZES = {
    "jax": GptConfig(context=128, n_layers=4, d_model=128, n_heads=4, rotary=True),
    "torch": GptConfig(context=128, n_layers=4, d_model=128, n_heads=4, rotary=True),
    "numpy": GptConfig(context=64, n_layers=2, d_model=96, n_heads=3, rotary=True),
}
BATCH, LR, WARM_UP, REPORT = 16, 3e-3, 50, 100


def read_corpus() -> tuple[Bytes, Bytes]:
    """The sources of the standard library without its tests, for training; every twentieth file, for validation."""
    folder = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    files = [path for path in sorted(folder.rglob("*.py")) if not left_out & set(path.relative_to(folder).parts)]
    validation = b"".join(path.read_bytes() for path in files[::20])
    del files[::20]
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8), np.frombuffer(validation, np.uint8)


def windows(text: Bytes, starts: npt.NDArray[np.int64], n: int, device: px.Device) -> tuple[Tokens, Tokens]:
    """At each start the next n bytes, and for each of them the byte after it; both are Int [len(starts), n]."""
    found = text[starts[:, None] + np.arange(n + 1)].astype(np.int32)
    return px.tensor(found[:, :-1], device=device), px.tensor(found[:, 1:], device=device)


def step(model: Gpt, optimizer: optim.Optimizer, lr: float, tokens: Tokens, targets: Tokens) -> tuple[Gpt, px.Tensor]:
    """Loss, gradients and update, which `phlox.compile` compiles into one program."""
    loss = model.loss(tokens, targets)
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss


train_step = px.compile(step, donate=("model", "optimizer"))
test_loss = px.compile(Gpt.loss)


def train(model: Gpt, steps: int, minutes: float, seed: int, device: px.Device) -> Iterator[Gpt]:
    """Train until the steps are taken or the time is over; yields the model at each report."""
    text, validation = read_corpus()
    n, rng = model.config.context, np.random.default_rng(seed)
    tests = windows(validation, np.linspace(0, len(validation) - n - 1, 128).astype(np.int64), n, device)
    sizes = f"{len(text):,} bytes for training, {len(validation):,} for validation"
    print(f"{sizes}; {model.num_params():,} parameters on {device}")
    optimizer = optim.AdamWConfig(beta_2=0.98, weight_decay=0.1).init(grad_clipping=optim.GradientClipping.norm(1.0))
    losses: list[px.Tensor] = []
    begun = perf_counter()
    number, done = 0, 0.0
    while done < 1.0:
        # A short warm-up, then down along half a cosine. Losses are read only at reports, because reading waits.
        lr = LR * min(1.0, (number + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * done))
        batch = windows(text, rng.integers(0, len(text) - n, BATCH), n, device)
        model, loss = train_step(model, optimizer, lr, *batch)
        losses.append(loss)
        number += 1
        done = max(number / steps, (perf_counter() - begun) / (60.0 * minutes))
        if number % REPORT == 0 or number == 1 or done >= 1.0:
            trained = sum(loss.item() for loss in losses) / len(losses)
            losses.clear()
            test = test_loss(model.valid(), *tests).item()
            seconds = perf_counter() - begun
            rate = number * BATCH * n / seconds
            print(f"step {number:5}  loss {trained:.3f}  validation {test:.3f}  {rate:8,.0f} bytes/s  {seconds:5.0f} s")
            yield model


def write(model: Gpt, prompt: str, length: int, device: px.Device) -> str:
    """The model's continuation of a prompt."""
    tokens = px.tensor(list(prompt.encode()), device=device)
    written = model.generate(tokens, length, temperature=0.8, top_k=40)
    return bytes(written.tolist()).decode(errors="replace")


def main(arguments: list[str] | None = None) -> None:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=SIZES, default="jax", help="the device to use")
    parser.add_argument("--steps", type=int, default=2000, help="the largest number of steps; 0 only generates")
    parser.add_argument("--minutes", type=float, default=5.0, help="the longest time to train")
    parser.add_argument("--prompt", default="def ", help="the text that the model continues")
    parser.add_argument("--length", type=int, default=400, help="the number of bytes to generate")
    parser.add_argument("--out", type=Path, help="where to save the model: FILE.safetensors and FILE.json")
    parser.add_argument("--resume", type=Path, help="start with the weights of a FILE that --out has written")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.steps < 0 or options.length < 0 or not options.minutes > 0.0 or not options.prompt:
        parser.error("steps and length must be at least 0, minutes more than 0, and the prompt at least one character")
    try:
        px.random.seed(options.seed)
        device = as_device(options.device)
        if options.resume is None:
            config = SIZES[options.device]
            model = config.init(device)
        else:
            config = GptConfig.load(options.resume.with_suffix(".json"))
            model = config.init(device).load_record(load(options.resume.with_suffix(".safetensors")))
        size = len(options.prompt.encode())
        if size > config.context:
            parser.error(f"the prompt has {size} bytes, more than the context of {config.context}")
        if options.steps:
            for trained in train(model.train(), options.steps, options.minutes, options.seed, device):
                model = trained
                if options.out is not None:
                    config.save(options.out.with_suffix(".json"))
                    SafetensorsRecorder().save(model.into_record(), options.out.with_suffix(".safetensors"))
        print(write(model, options.prompt, options.length, device))
    except (PhloxError, OSError) as error:
        raise SystemExit(f"gpt.py: {error}") from None


if __name__ == "__main__":
    main()
