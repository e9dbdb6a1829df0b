"""Counting instructions: the same each time, and by the function that executes them.

Serves: benchmarks/guard/{counting,instructions,paths}.py
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import phlox as px
from benchmarks.guard.command import measured
from benchmarks.guard.compare import Verdict, compare
from benchmarks.guard.counting import Calls, Unsteady, count, place_of
from benchmarks.guard.instructions import KEY, section
from benchmarks.guard.paths import PATHS, KeyPath
from benchmarks.guard.recorded import load
from phlox import nn
from phlox.models.gpt import GptConfig

A, B = (px.tensor(np.ones((2, 2), np.float32), device="numpy") for _ in range(2))


def defined(source: str, name: str, file: str) -> Callable[..., object]:
    """A function that seems to come from that file."""
    module = ModuleType("made_up")
    exec(compile(source, file, "exec"), module.__dict__)
    return module.__dict__[name]


def test_the_same_is_counted_every_time() -> None:
    first = count(lambda: A + B)
    assert first == count(lambda: A + B)
    assert first.instructions == sum(each.instructions for each in first.functions.values())
    assert first.functions["phlox/tensor/base.py:binary.<locals>.method"].calls == 1
    assert gc.isenabled()
    assert sys.gettrace() is None or "pydevd" in repr(sys.gettrace())


def test_more_work_is_more_instructions_of_the_function_that_does_it() -> None:
    def loop(n: int) -> int:
        return sum(i for i in range(n))

    few, many = count(lambda: loop(10)), count(lambda: loop(30))
    each = many.instructions - few.instructions
    assert each > 20
    assert count(lambda: loop(50)).instructions - many.instructions == each  # so many for twenty turns more


def test_calls_of_generators_and_callbacks_of_native_code_are_seen() -> None:
    source = "def key(x):\n    return -x\ndef run():\n    return sorted([3, 1, 2], key=key)\n"
    found = count(defined(source, "run", f"{sys.prefix}/lib/site-packages/some/file.py"))
    assert found.functions["some"].calls == 4


@pytest.mark.parametrize(
    "file, name",
    [("/x/site-packages/torch/nn/a.py", "torch"), ("/usr/lib/python3/os.py", "Python"), ("<string>", "Python")],
)
def test_engines_are_named_by_their_package(file: str, name: str) -> None:
    assert place_of(defined("def f(): pass", "f", file).__code__) == name
    assert place_of(GptConfig.init.__code__) == "phlox/models/gpt.py:GptConfig.init"


def test_what_never_settles_is_refused() -> None:
    calls = itertools.count()
    with pytest.raises(Unsteady, match="no two of 8 calls"):
        count(lambda: [None for _ in range(next(calls))])


def test_a_slowed_function_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in PATHS if path.name == "Linear on NumPy")
    before = section([path])
    fast = nn.Linear.__call__

    def slow(self: nn.Linear, x: px.Tensor) -> px.Tensor:
        for _ in range(50):
            pass
        return fast(self, x)

    monkeypatch.setattr(nn.Linear, "__call__", slow)
    found = {one.name: one for one in compare(before, section([path]))}[path.name]
    assert found.verdict is Verdict.WORSE
    assert re.match(r"instructions [\d,]+ -> [\d,]+ \(\+\d+", found.what)
    assert re.match(r"tests/benchmarks/.*<locals>\.slow: \+\d+ \(new, 1 times\)", found.because[0])


def test_a_path_that_fails_does_not_hide_the_others() -> None:
    def broken() -> Callable[[], object]:
        raise ValueError("of no use")

    paths = [
        KeyPath("broken", ("numpy",), broken),
        KeyPath("elsewhere", ("numpy", "no_such_package"), broken),
        next(path for path in PATHS if path.name == "a + b on NumPy"),
    ]
    found = section(paths)
    assert found.entries.keys() == {"a + b on NumPy", "import phlox"}
    assert found.absent == {"elsewhere": "no_such_package"}
    assert found.failed == {"broken": "ValueError: of no use"}


def test_importing_is_counted_module_by_module() -> None:
    entry = section([]).entries["import phlox"]
    assert {"phlox.tensor.tensor", "numpy"} <= entry.parts.keys()
    assert not {"jax", "torch", "phlox.nn", "phlox.optim"} & entry.parts.keys()
    assert entry.figures["modules"] == sum(name.startswith("phlox") for name in entry.parts)


def test_calls_are_pairs() -> None:
    assert Calls(1, 2) == (1, 2)


@pytest.mark.full
def test_no_key_path_costs_more_than_recorded() -> None:
    known = load().get(KEY)
    if known is None:
        pytest.skip(f"nothing is recorded for {KEY}")
    findings = compare(known, measured("instructions"))
    bad = [str(one) for one in findings if one.verdict in (Verdict.WORSE, Verdict.GONE, Verdict.FAILED)]
    assert not bad, "\n".join([*bad, "mend it, or record it with make bench ARGS=--record and say why it is worth it"])
