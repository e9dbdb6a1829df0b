"""`python -m benchmarks gpu`: runs the parts, each in a process of its own, writes what they find, and prints it.

Parts that compare values run at the same time; then those that measure times, one after the other. A part that crashes,
hangs or takes too long leaves what it had written, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from phlox.distributed.planning.accelerators import ACCELERATORS

ROOT = Path(__file__).parents[2]
TOTAL = 470.0
"""The seconds for all parts together."""
FIGURES, TABLE, LOG = "gpu.json", "gpu.txt", "gpu.log"
"""The files of a run: all figures, the table, and what the processes of the parts have printed."""


class Part(NamedTuple):
    """One part: `benchmarks.gpu.<module>:<function>`, called with a `Task` and these options."""

    name: str
    shows: str
    function: str
    limit: float
    """The most seconds that it may take."""
    is_timed: bool = False
    """Does it measure times, so that no other part may run meanwhile?"""
    options: tuple[str, ...] = ()


_SAME = "every operation of the contract gives the values and gradients of float64"

PARTS: tuple[Part, ...] = (
    Part("machine", "the card, its measured peak rates, and the versions", "checks:machine", 45.0, is_timed=True),
    Part("conformance-torch-f32", _SAME, "checks:conformance", 110.0, options=("torch", "f32")),
    Part("conformance-jax-f32", _SAME, "checks:conformance", 110.0, options=("jax", "f32")),
    Part("conformance-torch-bf16", _SAME, "checks:conformance", 110.0, options=("torch", "bf16")),
    Part("conformance-jax-bf16", _SAME, "checks:conformance", 110.0, options=("jax", "bf16")),
    Part("draws", "random numbers are those of NumPy, bit for bit", "checks:draws", 90.0),
    Part("digits", "a small training on each engine; models saved there are loaded by NumPy", "checks:digits", 110.0),
    Part("gpt", "a training step of GPT-2 small in bf16, beside its peers", "speed:gpt", 190.0, is_timed=True),
    Part("cnn", "a training step of a residual CNN in bf16, beside its peers", "speed:cnn", 110.0, is_timed=True),
    Part("generation", "a token of GPT-2 small in bf16, batch 1 and 32", "speed:generation", 130.0, is_timed=True),
    Part("switched-off", "kernels for processors do not run", "checks:switched_off", 110.0),
)
"""All parts. Those that are timed run in this order; the others run before them, at the same time."""

DENSE_BF16 = {
    **{name: accelerator.flops_half for name, accelerator in ACCELERATORS.items()},
    "h100 pcie": 756e12, "h100 nvl": 835e12, "l40s": 362e12, "l40": 181e12, "l4": 121e12, "a10": 125e12, "a30": 165e12,
    "rtx 4090": 165e12, "rtx 3090": 71e12, "rtx 5090": 210e12,
}  # fmt: skip
"""Operations per second of dense products in bf16, by data sheet, with sums in f32; the keys are words of the names."""


def peak_of(card: str) -> float | None:
    """The peak rate of a card by its name, as the driver gives it; None for an unknown card.

    >>> peak_of("NVIDIA H200"), peak_of("NVIDIA A100-SXM4-80GB"), peak_of("NVIDIA L4"), peak_of("Quadro K620")
    (989000000000000.0, 312000000000000.0, 121000000000000.0, None)
    """
    words = re.findall(r"[a-z0-9]+", card.lower())
    fits = [name for name in DENSE_BF16 if set(re.findall(r"[a-z0-9]+", name)) <= set(words)]
    return DENSE_BF16[max(fits, key=len)] if fits else None


class Task:
    """What a part is asked to do, in its process."""

    def __init__(self, file: Path, seconds: float, *, dry: bool, peak: float | None, options: Sequence[str]) -> None:
        self._file, self.seconds, self.dry, self.peak, self.options = file, seconds, dry, peak, tuple(options)
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds until the process is ended."""
        return self._end - time.monotonic()

    def write(self, lines: Sequence[str], *, is_good: bool = True, **figures: Any) -> None:
        """Write what was found so far, in place of what was written before: lines for the table, and figures."""
        text = json.dumps({"lines": [*lines], "is_good": is_good, "figures": figures}, default=str)
        part = self._file.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(self._file)


Command = Callable[[Part, Path, float], Sequence[str]]
"""The command line of a part that writes to a file and may take so many seconds."""


def run_part(part: Part, folder: Path, seconds: float, command: Command) -> dict[str, Any]:
    """Run a part in a process of its own; returns its outcome, the seconds it took, and what it has written."""
    file, log = folder / f".{part.name}.json", folder / f".{part.name}.log"
    began = time.monotonic()
    outcome = "done"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command(part, file, seconds), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            status = process.wait(seconds)
            if status:
                outcome = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            outcome = f"ended after {seconds:.0f} s"
        finally:
            _end_group(process)
    text = log.read_text(encoding="utf-8", errors="replace")
    if outcome != "done" and (lines := [line for line in text.splitlines() if line.strip()]):
        outcome += f": {lines[-1].strip()[:200]}"
    written = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"lines": [], "figures": {}}
    with (folder / LOG).open("a", encoding="utf-8") as whole:
        whole.write(f"===== {part.name}: {outcome}\n{text[-100_000:]}\n")
    for temporary in (file, log):
        temporary.unlink(missing_ok=True)
    return {"shows": part.shows, "outcome": outcome, "seconds": round(time.monotonic() - began, 1), **written}


def _end_group(process: subprocess.Popen[Any]) -> None:
    """End the process and those that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_all(parts: Sequence[Part], folder: Path, command: Command, total: float, at_once: int) -> dict[str, Any]:
    """Run the parts; their outcomes by name, written to the folder after each one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOG).write_text("", encoding="utf-8")
    end = time.monotonic() + total
    outcomes: dict[str, Any] = {}

    def run(part: Part) -> None:
        seconds = min(part.limit, end - time.monotonic())
        if seconds < 5.0:
            outcome: dict[str, Any] = {"shows": part.shows, "outcome": "no time was left", "seconds": 0.0, "lines": []}
        else:
            outcome = run_part(part, folder, seconds, command)
        outcomes[part.name] = outcome
        print(f"{part.name}: {outcome['outcome']} ({outcome['seconds']:.0f} s)", file=sys.stderr, flush=True)
        ordered = {part.name: outcomes[part.name] for part in parts if part.name in outcomes}
        (folder / FIGURES).write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")

    for part in parts:
        if part.name == "machine":
            run(part)
    with ThreadPoolExecutor(max(at_once, 1)) as pool:
        list(pool.map(run, [part for part in parts if not part.is_timed]))
    for part in parts:
        if part.is_timed and part.name != "machine":
            run(part)
    return {part.name: outcomes[part.name] for part in parts}


def table(outcomes: dict[str, Any]) -> str:
    """What all parts have found, as text."""
    lines: list[str] = []
    for name, outcome in outcomes.items():
        mark = "" if is_good(outcome) else "FAILED: "
        lines.append(f"\n{mark}{name} ({outcome['shows']}): {outcome['outcome']}, {outcome['seconds']:.0f} s")
        lines += [f"  {line}" for line in outcome["lines"]]
    return "\n".join(lines).lstrip("\n")


def is_good(outcome: dict[str, Any]) -> bool:
    """Has the part ended, and found nothing wrong?"""
    return outcome["outcome"] == "done" and outcome.get("is_good", False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all parts have ended and found nothing wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-figures"), metavar="FOLDER", help="where files are written"
    )
    parser.add_argument(
        "--only", action="append", metavar="PART", help=f"run this part, or all whose name begins so: {_names()}"
    )
    parser.add_argument("--dry", action="store_true", help="try everything on the processor, with tiny sizes")
    parser.add_argument(
        "--peak", type=float, metavar="TFLOPS", help="the card's dense bf16 rate, if its name is unknown"
    )
    options = parser.parse_args(arguments)
    parts = [part for part in PARTS if not options.only or any(map(part.name.startswith, options.only))]
    if not parts:
        parser.error(f"there is no part {options.only[0]!r}; choose from {_names()}")

    def command(part: Part, file: Path, seconds: float) -> Sequence[str]:
        flags = ["--dry"] * options.dry + (["--peak", str(options.peak)] if options.peak else [])
        return [sys.executable, "-m", "benchmarks.gpu.part", part.name, str(file.resolve()), str(seconds), *flags]

    outcomes = run_all(parts, options.out, command, TOTAL, max((os.cpu_count() or 1) // 2, 2))
    text = table(outcomes)
    (options.out / TABLE).write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"\nwritten: {', '.join(str(options.out / name) for name in (FIGURES, TABLE, LOG))}", file=sys.stderr)
    return 0 if all(map(is_good, outcomes.values())) else 1


def _names() -> str:
    return ", ".join(part.name for part in PARTS)
