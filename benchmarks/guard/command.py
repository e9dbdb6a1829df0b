"""Counting in processes of their own, comparing with what is recorded, recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.guard import recorded
from benchmarks.guard.compare import Finding, Verdict, compare, compare_ratios
from benchmarks.guard.figures import Section, from_plain, to_plain

COUNTS = ("instructions", "xla", "torch")
RATIOS = "ratios"
KINDS = (*COUNTS, RATIOS)

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "NPROC": "2",  # XLA cuts its kernels up for so many threads
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",  # and makes what fits the processor; this, all of one architecture have
    "PHLOX_TORCH_CODEGEN": "none",  # the graphs are counted, and code for them takes long to make
}
"""So that the same is counted on every machine of one architecture."""

OF_RATIOS = {name: ENVIRONMENT[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

ROOT = Path(__file__).parents[2]


def measured(kind: str, *names: str) -> Section:
    """What a process of its own finds; of ratios, those named."""
    settings = OF_RATIOS if kind == RATIOS else ENVIRONMENT
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "section.json"
        command = [sys.executable, "-m", "benchmarks.guard", kind, str(file), *names]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
        return from_plain(json.loads(file.read_text(encoding="utf-8")))


def in_this_process(kind: str, file: Path, names: Sequence[str]) -> None:
    """What `measured` runs."""
    if kind == "instructions":
        from benchmarks.guard.instructions import section

        found = section()
    elif kind == RATIOS:
        from benchmarks.guard import ratios

        found = ratios.section(list(names) or None)
    else:
        from benchmarks.guard import programs

        found = programs.xla_section() if kind == "xla" else programs.torch_section()
    file.write_text(json.dumps(to_plain(found)), encoding="utf-8")


def check(*kinds: str, file: Path = recorded.FILE) -> int:
    """Count, compare with the recorded figures, and print what moved and why; 1 if one is worse, fails, or is gone.

    `kinds` are some of `instructions`, `xla`, `torch` and `ratios`; without, all.
    """
    known = recorded.load(file)
    findings: list[Finding] = []
    for kind in _kinds(kinds):
        print(f"counting: {kind} ..." if kind != RATIOS else "measuring: ratios ...", file=sys.stderr, flush=True)
        found = measured(kind)
        if kind != RATIOS:
            findings += compare(known.get(found.key), found)
            continue
        first = compare_ratios(known.get(found.key), found)
        moved = [one.name for one in first if one.verdict is Verdict.WORSE]
        if moved:
            print(f"measuring once more what moved, which may be noise: {', '.join(moved)}", file=sys.stderr)
            again = [one for one in compare_ratios(known.get(found.key), measured(RATIOS, *moved)) if one.name in moved]
            first = [*[one for one in first if one.name not in moved], *again]
        findings += first
    print(summary(findings))
    return int(any(one.verdict in (Verdict.WORSE, Verdict.GONE, Verdict.FAILED) for one in findings))


def record(*kinds: str, file: Path = recorded.FILE) -> int:
    """Count, and write the figures into the repository in the place of those for this Python and these engines."""
    sections: list[Section] = []
    for kind in _kinds(kinds):
        print(f"counting: {kind} ..." if kind != RATIOS else "measuring: ratios ...", file=sys.stderr, flush=True)
        sections.append(measured(kind))
    recorded.save(sections, file)
    failed = {name: how for section in sections for name, how in section.failed.items()}
    for name, how in failed.items():
        print(f" failed  {name}: {how}")
    print(f"recorded {sum(len(section.entries) for section in sections)} paths and programs in {file}")
    return int(bool(failed))


def summary(findings: Sequence[Finding]) -> str:
    """What to print: all that moved, how much did not, and what to do."""
    by_verdict = {verdict: [one for one in findings if one.verdict is verdict] for verdict in Verdict}
    shown = set(Verdict) - {Verdict.SAME, Verdict.SKIPPED}
    lines = [str(one) for one in findings if one.verdict in shown]
    skipped: dict[str, list[str]] = {}
    for one in by_verdict[Verdict.SKIPPED]:
        skipped.setdefault(one.what, []).append(one.name)
    lines += [f"skipped  {what}: {', '.join(names)}" for what, names in skipped.items()]
    counts = ", ".join(f"{len(found)} {verdict.value}" for verdict, found in by_verdict.items() if found)
    lines.append(counts or "nothing was counted")
    if by_verdict[Verdict.WORSE]:
        lines.append("worse: mend it, or if it is worth its price record it with make bench ARGS=--record and say why")
    elif by_verdict[Verdict.GONE]:
        lines.append("gone: record what is counted now with make bench ARGS=--record")
    elif by_verdict[Verdict.BETTER] or by_verdict[Verdict.NEW]:
        lines.append("better: record it with make bench ARGS=--record")
    return "\n".join(lines)


def _kinds(kinds: Sequence[str]) -> Sequence[str]:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise SystemExit(f"the guard counts {', '.join(KINDS)}; it knows no {unknown[0]!r}")
    return kinds or KINDS
