"""The page of results: Markdown, made of the figures of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.arena.run import Contestant, Run, Work
from benchmarks.harness import Ratio, duration, table

LEVEL, AHEAD = 1.0, 0.8
NAMES = {
    "phlox": "Phlox on NumPy", "torch": "PyTorch", "jax": "JAX", "keras": "Keras", "numpy": "NumPy by hand",
    "onnxruntime": "ONNX Runtime",
}  # fmt: skip
"""Names to show for those that a benchmark uses."""


def page(run: Run, operations: Run | None = None, gpu: Run | None = None) -> str:
    """`docs/benchmarks.md`; `operations` is a run of the single operations and calls, `gpu` a run on a GPU."""
    measured_on_gpu = gpu is not None or bool(run.machine and run.machine.accelerator)
    parts = [TOP, verdict(run) if run.headlines else "", RATIOS, "" if measured_on_gpu else NO_GPU]
    parts += [PLOT if run.headlines else "", f"## Results\n\n{machine_table(run)}", summary(run), AFTER, beside(run)]
    if gpu is not None:
        parts += [f"## On a GPU\n\n{machine_table(gpu)}", verdict(gpu), summary(gpu)]
    parts += [REPEAT, METHOD, DETAILS]
    for one in (run, gpu):
        parts += [_folded(work.title, _work(work, one)) for work in one.works] if one else []
    if run.rows:
        parts.append(_folded(OTHERS, table(run.rows)))
    if run.machine is not None:
        parts.append(_folded("Peak rates of this machine", _rates_of_machine(run)))
    if operations is not None and operations.details:
        title = SINGLE if operations is run else f"{SINGLE} (another run: {where(operations)}, {operations.date})"
        parts.append(_folded(title, f"{OPERATIONS}\n\n{table(operations.details)}"))
    return "\n\n".join(part for part in parts if part) + "\n"


def text(run: Run) -> str:
    """The tables alone, for the terminal."""
    parts = [
        machine_table(run),
        _rates_of_machine(run),
        verdict(run) if run.headlines else "",
        summary(run),
        beside(run),
    ]
    parts += [f"## {work.title}\n\n{_work(work, run)}" for work in run.works]
    parts += [f"## {title}\n\n{table(rows)}" for title, rows in ((OTHERS, run.rows), (SINGLE, run.details)) if rows]
    return "\n\n".join(part for part in parts if part) + "\n"


OTHERS, SINGLE = "Starting, saving, loading, several devices", "Single operations and calls"

TOP = """# Benchmarks

<!-- Written from benchmarks/recorded/ by `make bench` and by `python -m benchmarks --render`: do not edit it. -->

How long does Phlox take for the same work as PyTorch, JAX, Flax NNX, Equinox, Keras and safetensors? This page compares
training steps and predictions of several models, and starting, saving and loading."""

RATIOS = """A *ratio* is the time of Phlox divided by that of the fastest peer (another library): 0.5 is half the time,
and below 1.0 Phlox is faster. [Performance](performance.md) gives the reasons, and what you can do yourself."""

NO_GPU = "There are no figures of a GPU yet: all that follows is of one machine, on its processor alone."

PLOT = """![Time of Phlox divided by that of the best other library, twelve rows](benchmarks.svg)"""

AFTER = """*Memory kept*: the process keeps freed memory for the next arrays ([tuning](tuning.md#the-allocator)). The
peers get the same setting. *verify=False*: checksums are not compared. The peers compare none either; the times of
Phlox's default, which compares them, are in the details. Rows between 0.85 and 1.15 change places from run to run."""

REPEAT = """## Repeat it

```sh
make bench                              # everything (15 to 20 minutes); this page and its plot are written again
make bench ARGS=--quick                 # small sizes, few rounds; nothing is written
make bench ARGS="gpt-4x256 lstm"        # some workloads, at full length; nothing is written
make bench ARGS="--out build/bench cnn" # the same, written into a folder
make bench ARGS=--all                   # single operations and calls too
```

The figures are in `benchmarks/recorded/cpu.json` (`gpu.json` from a machine with a GPU), the models in
`benchmarks/models`. `python -m benchmarks --render` makes the pages from the files."""

METHOD = """## How it was measured

- **The same work.** Each model is written once for each library, as its users would write it, and starts with the same
  weights. Ten losses must agree to 0.1 %, and the outputs for one example to 0.01 % of the largest. With dropout, whose
  masks differ between libraries, only the first loss is compared, to 5 %. A contestant that computes something else is
  marked as wrong, and excluded. One that cannot be imported or measured is a line that says so, and a run with such
  a line is not recorded.
- **Alternating rounds.** Each contestant has its own process. All are timed in rounds, in reversed order in every other
  round, so that other load on the machine affects all of them. If a step takes 0.1 s or more, the last seven compared
  steps are the rounds.
- **Ratios and quartiles.** A ratio compares two contestants in the same round. The tables show the median over the
  rounds, and the quartiles. Quartiles on both sides of 1.0 mean that this run cannot say which is faster.
- **Best against best.** A row compares the fastest configuration of Phlox with the fastest peer.
- **Memory kept** is a setting of the C library: freed memory is kept for the next array. It is `PHLOX_ALLOCATOR=keep`
  for Phlox, and `GLIBC_TUNABLES` for the peers. *rbg* is JAX's faster random generator. Such a setting is tried with
  contestants that take at most 1.2 times as long as the fastest of their side without it; they only train.
- **Slow contestants are dropped early**, and show one figure without quartiles. A contestant is dropped if it is slower
  than the fastest of its side (Phlox, or the peers): by 1.5 times in its first steps, if these are long; by 1.4 times
  after one round of training or two of inference; or by 1.2 times after two more rounds. Where the compared steps are
  the rounds, none is dropped. Contestants that took 1.4 times as long as the fastest without dropout do not take part
  with dropout.
- **Flax NNX** takes part by its `split` where steps are long: `nnx.jit` runs the same program, with more dispatch.
- **First step** is the time from the built model to the first loss, with nothing compiled before, in new processes.
  *Peak memory* is that of the process after the compared steps, libraries included."""

DETAILS = """## Details

All contestants, workload by workload. Rows of Phlox are bold."""

OPERATIONS = """*Target* is what we wanted to reach; a target that was missed is shown as missed."""

BESIDE = """### Not counted

In these rows the peer is faster than the one above, but does less than a framework that trains models. NumPy by hand is
a program for this one model, ONNX Runtime runs a graph that another library has exported before, and a dictionary of
arrays is the content of a file before it is loaded into a model."""


def where(run: Run) -> str:
    """The machine, in words."""
    machine = run.machine
    if machine is None:
        return "an unknown machine"
    return f"{machine.cores} cores of {machine.processor}" + (f", {machine.accelerator}" if machine.accelerator else "")


def counts(run: Run) -> tuple[int, int, int]:
    """How many headlines are at most 1.0, at most 0.8, and how many there are."""
    rows = run.headlines
    return sum(row.ratio <= LEVEL for row in rows), sum(row.ratio <= AHEAD for row in rows), len(rows)


def verdict(run: Run) -> str:
    """The sentence that counts the rows."""
    level, ahead, of = counts(run)
    what = "the time (or memory) of the best peer"
    return f"**In {level} of {of} rows Phlox needs at most {what}, in {ahead} at most 0.8 of it.**"


def versions(run: Run) -> str:
    """Python's and the libraries'."""
    return f"Python {run.python}" + "".join(f", {name} {version}" for name, version in run.versions.items())


def machine_table(run: Run) -> str:
    """The machine, the versions, the measured peaks."""
    lines = ["| this run | |", "|---|---|", f"| date | {run.date} |"]
    machine = run.machine
    if machine is not None:
        copied, triad = machine.copied / 1e9, machine.triad / 1e9
        lines += [
            f"| machine | {where(run)} |",
            f"| peak, the highest rate in this run | {machine.flops / 1e9:.0f} GFLOP/s ({machine.fastest}) |",
            f"| memory, read and written together | {copied:.0f} GB/s copying, {triad:.0f} GB/s in a triad |",
        ]
    lines.append(f"| versions | {versions(run)} |")
    took = sum(work.seconds for work in run.works)
    return "\n".join([*lines, f"| duration of the models | {took:.0f} s |"] if took else lines)


def _rates_of_machine(run: Run) -> str:
    if run.machine is None:
        return ""
    seen = sorted(run.machine.seen.items(), key=lambda pair: -pair[1])
    return "\n".join(
        ["| operation | GFLOP/s |", "|---|---:|", *(f"| {one} | {rate / 1e9:.0f} |" for one, rate in seen)]
    )


def summary(run: Run) -> str:
    """One line for each headline."""
    return _rows(run.headlines)


def beside(run: Run) -> str:
    """The rows that do not count."""
    return f"{BESIDE}\n\n{_rows(run.not_counted)}" if run.not_counted else ""


def shown_name(name: str) -> str:
    """The name of a contestant, as the pages show it."""
    return NAMES.get(name, name)


def _rows(rows: Sequence[Ratio]) -> str:
    lines = [
        "| " + " | ".join((
            row.workload, shown_name(row.subject), shown_name(row.peer),
            row.figure if row.ratio <= LEVEL else f"**{row.figure}**", f"{row.low:.2f} to {row.high:.2f}",
        )) + " |"
        for row in rows
    ]  # fmt: skip
    head = ["| workload | best configuration of Phlox | best peer | ratio | quartiles |", "|---|---|---|---:|---:|"]
    return "\n".join(head + lines) if rows else ""


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def _work(work: Work, run: Run) -> str:
    head = [
        "contestant",
        "training step",
        "to the best peer",
        "prediction",
        "to the best peer",
        "first step",
        "peak memory",
    ]
    rows = [
        [
            f"**{one.name}**" if one.ours else one.name,
            *_compared(one, "training"),
            *_compared(one, "inference"),
            _compared(one, "time to the first step")[0],
            f"{one.mib:.0f} MiB" if one.mib else "",
        ]
        if one.missing is None
        else [one.name, f"failed: {one.missing}", *[""] * (len(head) - 2)]
        for one in work.contestants
        if one.wrong is None
    ]
    used = [place for place in range(len(head)) if not place or any(row[place] for row in rows)]
    lines = [f"| {' | '.join(row[place] for place in used)} |" for row in (head, *rows)]
    lines.insert(1, "|---|" + "---:|" * (len(used) - 1))
    notes = [f"- **{one.name} is wrong: {one.wrong}**" for one in work.contestants if one.wrong]
    notes += _rates(work, run)
    notes += [f"- Duration: {work.seconds:.0f} s"] if work.seconds else []
    return "\n".join(lines + (["", *notes] if notes else []))


def _compared(one: Contestant, task: str) -> tuple[str, str]:
    """The median, and its ratio to the best peer with quartiles."""
    found = one.times.get(task)
    if found is None or found.ratio is None:
        return (duration(found.seconds) if found else ""), ""
    if found.low is None or found.high is None:
        return duration(found.seconds), "1" if found.ratio == 1.0 else f"{found.ratio:.2f}"
    return duration(found.seconds), f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


def rates(work: Work, run: Run) -> Iterable[tuple[str, float, float]]:
    """The best of Phlox and the best peer: name, rate of the products of a step in FLOP/s, share of the peak."""
    if run.machine is None or not work.flops or "training" not in work.best:
        return
    for name in work.best["training"]:
        rate = work.flops / work.timing("training", name).seconds
        yield name, rate, rate / run.machine.flops


def _rates(work: Work, run: Run) -> list[str]:
    shares = [f"{name} {rate / 1e9:.0f} GFLOP/s, {share:.0%} of the peak" for name, rate, share in rates(work, run)]
    name = "Model FLOP utilization" if run.machine and run.machine.accelerator else "Products"
    return [f"- {name}, {work.flops / 1e9:.2f} GFLOP a step: {'; '.join(shares)}"] if shares else []
