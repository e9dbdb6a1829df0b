"""The pictures of the pages under docs/, made by code.

    python tools/pictures.py                 writes all of docs/pictures/
    python tools/pictures.py notebook-model  writes the pictures of these names
    python tools/pictures.py --list          says what there is

To add a picture, write a function and give it a row in `PICTURES`. It returns a `Screen`: HTML that is photographed,
light and dark side by side, so that the picture stands on pages of both kinds; or a `Drawing`: the text of an SVG,
which is written as it is. What it shows must be the same in every run: set the seeds.

A `Screen` needs Chromium on the PATH, and Pillow. A picture takes at most 60 kB.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader, load_digits, split_rows
from phlox.host.text import duration
from phlox.train import Learner, draw_schedule

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
LARGEST = 60_000
"""Bytes of a picture."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_BACK = {"light": (255, 255, 255), "dark": (18, 20, 23)}
_INK = {"light": "#1f2328", "dark": "#e4e7eb"}
_COLORS = 64
"""Of a picture: text and areas of one color need no more."""


@dataclass(frozen=True)
class Screen:
    """HTML that is photographed in both colors; its height is that of its content."""

    html: str
    """Fragments, such as `_repr_html_` returns."""
    width: int
    """In pixels, of each half."""


@dataclass(frozen=True)
class Drawing:
    """An SVG."""

    svg: str


def trained() -> Learner[Any]:
    """A small classifier of digits after a few epochs."""
    digits = load_digits()
    rows = ((digits.images / 16.0).astype(np.float32).reshape(-1, 64), digits.labels)
    train, test = split_rows(rows, 0.8, 0.2, labels=digits.labels)
    px.random.seed(0)
    model = nn.Sequential([nn.Linear(64, 32), nn.Gelu(), nn.Dropout(0.3), nn.Linear(32, 10)])
    learner = Learner(
        model, optim.AdamWConfig(), 0.003, nn.cross_entropy_loss, metrics={"accuracy": metrics.Accuracy(num_classes=10)}
    )
    learner.fit(
        Loader(train, batch_size=64, shuffle=True, seed=0), epochs=15, validation=Loader(test, batch_size=256),
        progress=False,
    )  # fmt: skip
    return learner


def notebook_model() -> Screen:
    """A module, and one of its parameters."""
    px.random.seed(0)
    model = nn.Sequential(body=nn.Linear(64, 16), activation=nn.Gelu(), norm=nn.BatchNorm(16), head=nn.Linear(16, 10))
    frozen = model.init(0, "numpy").freeze("layers.body.**")
    return Screen(f"{frozen._repr_html_()}<br>{frozen.layers['head'].weight._repr_html_()}", 560)


def notebook_history() -> Screen:
    """The history of a training; the times, which differ from run to run, are not in the picture."""
    history = trained().history
    text = history._repr_html_().replace("<details open>", "<details>")
    seconds = duration(sum(report.seconds for report in history))
    return Screen(text.replace(f'<span class="soft">· {seconds}</span>', ""), 700)


def digits_curves() -> Drawing:
    """Loss and accuracy of each epoch: what the tutorial on digits draws, whose blocks are run for it."""
    page = (FOLDER.parent / "tutorials" / "digits.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks:
            if named := re.match(r"# (\w+\.py)\n", block):
                (Path(folder) / named[1]).write_text(block, encoding="utf-8")
        (Path(folder) / "page.py").write_text("\n".join(blocks), encoding="utf-8")
        subprocess.run([sys.executable, "page.py"], cwd=folder, check=True, capture_output=True, timeout=300)
        return Drawing((Path(folder) / "curves.svg").read_text(encoding="utf-8"))


def small_network() -> nn.Sequential:
    """A small convolutional network for images of 8 x 8."""
    return nn.Sequential(
        [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm(8), nn.Relu(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)]
    ).init(seed=0)


def first_run() -> Drawing:
    """What the program of the front page learns: the accuracy of each epoch, and digits with what the model says."""
    page = (FOLDER.parent / "index.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    values: dict[str, Any] = {"__name__": "front"}
    px.random.seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile(program, "index.md", "exec"), values)
    learner, test = values["learner"], values["test"]
    accuracies = [report.validation["accuracy"] for report in learner.history]
    images, labels = test[:]
    answers = learner.predict(Loader(test, 256)).argmax(axis=-1)
    wrong = np.flatnonzero(answers != labels)
    right = np.flatnonzero(answers == labels)
    shown = [*(right[labels[right] == digit][0] for digit in range(10)), *wrong[:2]]
    return Drawing(_first_run(accuracies, images, labels, answers, shown, len(values["train"])))


def _first_run(accuracies: list[float], images: Any, labels: Any, answers: Any, shown: list[int], rows: int) -> str:
    """The drawing: a curve above two rows of six images."""

    def text(x: float, y: float, words: str, kind: str = "ink", size: float = 12, anchor: str = "start") -> str:
        return f'<text x="{x:g}" y="{y:g}" class="{kind}" font-size="{size:g}" text-anchor="{anchor}">{words}</text>'

    low, last = 0.5, accuracies[-1]
    place = [
        (52 + 300 * number / (len(accuracies) - 1), 176 - 110 * (max(value, low) - low) / (1.0 - low))
        for number, value in enumerate(accuracies)
    ]
    parts = [
        text(16, 26, f"Real digits: {last:.1%} of {len(labels)} new ones are right", size=15),
        text(16, 44, f"{len(accuracies)} epochs with {rows:,} images, with NumPy alone", "faint"),
    ]
    for mark in (0.5, 0.75, 1.0):
        y = 176 - 110 * (mark - low) / (1.0 - low)
        parts += [f'<path d="M52 {y:g}H352" class="grid"/>', text(46, y + 4, f"{mark:.0%}", "faint", 11, "end")]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in place)
    parts.append(f'<polyline points="{points}" class="curve"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="right"/>' for x, y in place]
    parts += [text(x, 194, str(number), "faint", 11, "middle") for number, (x, _) in enumerate(place, start=1)]
    parts.append(text(202, 210, "validation accuracy by epoch", "faint", 11, "middle"))
    for number, row in enumerate(shown):
        x, y = 16 + 58 * (number % 6), 228 + 80 * (number // 6)
        parts.append(f'<g transform="translate({x} {y}) scale(6)">')
        for level in range(1, 17):  # the pixels of one darkness are one path
            at = np.argwhere(np.round(images[row].reshape(8, 8) * 16) == level)
            pixels = "".join(f"M{column} {line}h1v1h-1z" for line, column in at)
            parts += [f'<path d="{pixels}" class="ink" opacity="{level / 16:.2f}"/>'] if pixels else []
        parts.append("</g>")
        good = answers[row] == labels[row]
        words = f"{answers[row]}" if good else f"{answers[row]}, is {labels[row]}"
        parts.append(text(x + 24, y + 64, words, "right" if good else "wrong", 13, "middle"))
    kinds = {
        "paper": ("#ffffff", "#14181d"), "ink": ("#1b1f24", "#e6edf3"), "faint": ("#57606a", "#9aa5b1"),
        "right": ("#0b6e99", "#4aa8d8"), "wrong": ("#b3430f", "#f0883e"),
    }  # fmt: skip
    light, dark = ("".join(f".{kind}{{fill:{colors[at]}}}" for kind, colors in kinds.items()) for at in (0, 1))
    style = (
        f"{light}.curve{{fill:none;stroke:#0b6e99;stroke-width:2}}.grid{{stroke:#d8dee4}}"
        f"@media (prefers-color-scheme: dark){{{dark}.curve{{stroke:#4aa8d8}}.grid{{stroke:#30363d}}}}"
    )
    fonts = "-apple-system,'Segoe UI',Roboto,Helvetica,Arial,'DejaVu Sans',sans-serif"
    size = 'width="560" height="592" viewBox="0 0 370 391"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}" role="img">',
        f"<title>{last:.1%} of {len(labels)} handwritten digits are right</title><style>{style}</style>",
        '<rect width="370" height="391" rx="6" class="paper"/>', *parts, "</svg>\n",
    ])  # fmt: skip


def model_summary() -> Screen:
    """The layers of a model with their shapes, parameters, FLOPs and memory."""
    return Screen(small_network().summary(px.TensorSpec((32, 1, 8, 8)))._repr_html_(), 640)


def engines_compared() -> Screen:
    """A model on two engines beside NumPy in f64: how far the values of each layer are apart."""
    x = np.random.default_rng(0).random((16, 1, 8, 8), np.float32)
    found = px.debug.compare(small_network(), x, ["numpy:f64", "jax", "torch:bf16"], gradients=False)
    return Screen(found._repr_html_(), 560)


def learning_rates() -> Drawing:
    """Learning-rate schedules, as `draw_schedule` draws them."""
    decay = optim.ExponentialLr(1.0, gamma=0.99)
    schedules = {
        "warm-up and cosine": optim.WarmUpLr(optim.CosineAnnealingLr(0.01, num_iters=130), num_iters=20),
        "cycles * decay": optim.CyclicLr(0.001, 0.01, step_size_up=20) * decay,
    }
    return Drawing(draw_schedule(schedules, 150, format="svg").decode())


PICTURES: dict[str, Callable[[], Screen | Drawing]] = {
    "notebook-model": notebook_model,
    "notebook-history": notebook_history,
    "digits-curves": digits_curves,
    "first-run": first_run,
    "model-summary": model_summary,
    "engines-compared": engines_compared,
    "learning-rates": learning_rates,
}
"""By the name of the file, without its ending."""


# --- from HTML to PNG


def photographed(screen: Screen) -> Any:
    """Both halves, one beside the other, cut to their content."""
    from PIL import Image

    halves = [_half(screen, theme) for theme in ("light", "dark")]
    height = max(half.height for half in halves)
    whole = Image.new("RGB", (2 * screen.width, height))
    for number, (half, theme) in enumerate(zip(halves, ("light", "dark"), strict=True)):
        whole.paste(_BACK[theme], (number * screen.width, 0, (number + 1) * screen.width, height))
        whole.paste(half, (number * screen.width, 0))
    return whole.quantize(_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def _half(screen: Screen, theme: str) -> Any:
    from PIL import Image, ImageChops

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit(f"there is no browser on the PATH: one of {', '.join(BROWSERS)}")
    back = _BACK[theme]
    page = (
        f'<!doctype html><html data-theme="{theme}"><head><meta charset="utf-8"><style>body {{ margin: 14px; '
        f"background: rgb{back}; color: {_INK[theme]}; }}</style></head><body>{screen.html}</body></html>"
    )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "page.html", Path(folder) / "page.png"
        source.write_text(page, encoding="utf-8")
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={target}",
            f"--window-size={screen.width},3000", f"--user-data-dir={folder}/profile", source.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(target) as read:
            shown = read.convert("RGB")
    box = ImageChops.difference(shown, Image.new("RGB", shown.size, back)).getbbox()
    return shown.crop((0, 0, screen.width, min((box[3] if box else 0) + 14, shown.height)))


def write(name: str, folder: Path) -> Path:
    """Make a picture, and return its path."""
    found = PICTURES[name]()
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(found, Drawing):
        path = folder / f"{name}.svg"
        path.write_text(found.svg, encoding="utf-8")
    else:
        path = folder / f"{name}.png"
        photographed(found).save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{path} takes {size:,} bytes, more than {LARGEST:,}: show less, or make it narrower")
    return path


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the pictures to make; all unless given")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write them")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in PICTURES]:
        parser.error(f"there is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}")
    for name in options.names or PICTURES:
        if options.list:
            line = (PICTURES[name].__doc__ or "").partition("\n")[0]
            sys.stdout.write(f"{name}: {line}\n")
        else:
            path = write(name, options.folder)
            sys.stdout.write(f"wrote {path}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
