"""What a search tries on an engine, and makes of what was measured: ratios, what is chosen, and what is advised.

Serves: phlox/cli/tuning/report.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import phlox
from phlox.backend import settings
from phlox.backend.settings import Settings
from phlox.cli.tune import COMMAND as TUNE
from phlox.cli.tuning.report import advice, results
from phlox.cli.tuning.search import Configuration, Search, candidates
from phlox.cli.tuning.trial import Program, Trial
from phlox.host.threads import VARIABLES


def searched(*configurations: Configuration, rounds: int = 1) -> Search:
    found = Search(
        Program("x.py", [], 1.0, 1.0), Settings(), devices=None, flags=[], rounds=rounds, tell=lambda one: None
    )
    found.configurations = list(configurations)
    found.present = configurations[0]
    return found


def measured(settings: Settings, *rounds: list[float], differs: str | None = None) -> Configuration:
    return Configuration(settings, [Trial(windows=windows, step="step") for windows in rounds], differs)


PRESENT = measured(Settings(), [2.0, 2.0, 4.0], [1.0, 1.0, 1.0])


def test_ratios_are_of_one_round_each() -> None:
    # The machine was twice as fast in the second round, which is nobody's merit.
    other = measured(Settings(threads=1), [1.0, 1.0, 1.0], [0.5, 0.5, 0.9])
    assert other.ratios(PRESENT) == [0.5, 0.5]
    assert other.seconds() == 0.95
    wide = measured(Settings(threads=1), [1.0, 2.0, 4.0, 8.0], [2.0])
    assert wide.ratios(PRESENT) == [1.5, 2.0]
    assert Configuration(Settings(), [Trial("crashed (SIGILL)")]).ratios(PRESENT) == []


def test_what_is_faster_in_every_round_is_chosen() -> None:
    faster = measured(Settings(threads=1), [1.0, 1.0], [0.6, 0.6])
    fastest = measured(Settings(allocator="keep"), [0.5, 0.5], [0.4, 0.4], differs="1 instead of 2 at step 1")
    once = measured(Settings(device="jax"), [0.1, 0.1])
    noisy = measured(Settings(threads=4), [0.2, 0.2, 0.2], [1.1, 1.1, 1.1])  # slower in one round
    failed = Configuration(Settings(threads=8), [Trial("crashed (SIGILL)")])
    search = searched(PRESENT, failed, fastest, once, noisy, faster, rounds=2)
    assert search.best() is faster
    text = results(search).text()
    assert "0.55  0.50 to 0.60" in text
    assert text.index("device jax") < text.index("allocator keep") < text.index("threads 1") < text.index("crashed")
    assert advice(search, "tuned.json").splitlines() == [
        "Fastest: threads 1, 0.55 of the present time. To use it, set",
        "  PHLOX_THREADS=1",
        "or use the file that was written: PHLOX_SETTINGS=tuned.json",
    ]


def test_the_present_configuration_may_fail_in_a_later_round() -> None:
    present = Configuration(Settings(), [Trial(windows=[1.0]), Trial("crashed (SIGILL)")])
    search = searched(present, measured(Settings(threads=1), [0.5]), rounds=2)
    assert search.best() is present
    lines = [line.split() for line in results(search).text().splitlines()]
    assert lines[-2:] == [["threads", "1", "500"], ["unchanged", "crashed", "(SIGILL)"]]


def test_of_what_is_equally_fast_the_simplest_is_chosen() -> None:
    simple = measured(Settings(device="jax"), [0.41, 0.41])
    fancy = measured(Settings(device="jax", xla_flags="--xla_a"), [0.4, 0.4])
    fast = measured(Settings(device="jax", allocator="keep"), [0.3, 0.3])
    present = measured(Settings(), [1.0, 1.0])
    assert searched(present, fancy, simple).best() is simple
    assert searched(present, fancy, simple, fast).best() is fast


def test_what_is_hardly_faster_is_not_chosen() -> None:
    search = searched(PRESENT, measured(Settings(threads=1), [1.97, 1.97], [0.99, 0.99]), rounds=2)
    assert search.best() is PRESENT and advice(search, None).startswith("Nothing was clearly faster")
    assert TUNE.description


OWN = {*settings.VARIABLES.values(), settings.FILE, *VARIABLES, "XLA_FLAGS"}

CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}


def run(program: str, *warnings: str, **variables: str) -> str:
    """What the program prints in a process of its own with these variables."""
    environment = {**CLEAN, "PYTHONPATH": str(Path(phlox.__path__[0]).parent), **variables}
    flags = warnings or ("-W", "error")
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


def test_flags_that_are_tried_are_known_to_xla() -> None:
    flags = " ".join(one.xla_flags for one in candidates("jax") if one.xla_flags)
    assert flags and all(word.startswith("--xla_") for word in flags.split())
    program = "import phlox as px; print(px.ones((2,)).tolist())"
    assert run(program, PHLOX_DEVICE="jax", PHLOX_XLA_FLAGS=flags) == "[1.0, 1.0]"


def test_candidates_change_one_setting_each() -> None:
    for engine in ("numpy", "jax", "torch", "stranger"):
        found = candidates(engine, ["--xla_a --xla_b"])
        assert all(len(one.given()) == 1 for one in found) and len(found) == len(set(found))
        assert (Settings(xla_flags="--xla_a --xla_b") in found) is (engine == "jax")
        assert (Settings(torch_codegen="none") in found) is (engine == "torch")
