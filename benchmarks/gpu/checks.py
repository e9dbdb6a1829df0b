# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportUnknownParameterType=false
# The other libraries are installed only for the benchmarks.
"""The parts that compare values: what the operations, draws, files and programs of Phlox give on a GPU."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from benchmarks.gpu.command import Task, peak_of


def gpu_of(engine: str, task: Task) -> str:
    """The name of the device on which a part runs."""
    return f"{engine}:cpu" if task.dry else f"{engine}:gpu"


# --- the machine


def machine(task: Task) -> None:
    """The card, its peak rate by the data sheet and as measured, its memory, and the versions."""
    import platform
    import sys

    from benchmarks.arena.machine import accelerator, measured
    from benchmarks.arena.worker import PACKAGES, _version

    for name in PACKAGES:
        try:
            __import__(name)
        except Exception as error:
            print(f"{name}: {error}")
    card = accelerator()
    rates = measured(quick=True)
    peak = task.peak or (peak_of(card) if card else None)
    versions = {"python": platform.python_version(), **{n: _version(n) for n in PACKAGES if n in sys.modules}}
    lines = [
        f"{card or 'no GPU'}; bf16 by data sheet: {'unknown' if peak is None else f'{peak / 1e12:.0f} TFLOP/s'}",
        f"measured: {rates.flops / 1e12:.3g} TFLOP/s ({rates.fastest})",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    figures = {"card": card, "peak": peak, "rates": rates.seen, "cores": rates.cores, "versions": versions}
    task.write(lines, is_good=task.dry or card is not None, **figures)


# --- the operations

_NUMBERS = re.compile(r"worst at .*?: got (\S+), expected (\S+) \(tolerance")
_SHARE = 0.8
"""The share of its time in which the suite starts another case."""


def conformance(task: Task) -> None:
    """As much of `phlox.testing` as the time allows, spread over all operations and parts of the suite.

    JAX compiles most operations, which takes it most of the time and does not need the interpreter: threads help.
    """
    from phlox.testing import suite
    from phlox.testing.conformance.checks import NotCompared, lacking
    from phlox.testing.tolerances import tolerance_of

    engine, element = task.options
    strict(engine)
    backend = on_device(engine, element, "cpu" if task.dry else "gpu")
    cases = spread(list(suite.cases(backend)))
    end = time.monotonic() + (min(task.left, 3.0) if task.dry else task.left * _SHARE)
    passed, left_out, failures = Counter[str](), Counter[str](), dict[str, dict[str, Any]]()
    lost: list[str] = []
    lock = Lock()

    def note() -> None:
        count = passed.total() + sum(failure["cases"] for failure in failures.values())
        allowed = tolerance_of(backend)
        worst = sorted(failures.items(), key=lambda item: -item[1]["difference"])
        lines = [
            f"{passed.total()} of {count} compared cases passed on {backend.device()}, of {len(cases)} in the suite",
            f"tolerance rtol={allowed.rtol:g}, atol={allowed.atol:g}, times the factor of the row",
            *[f"{name}: off by {f['difference']:.3g} in {f['cases']} cases: {f['first']}"[:220] for name, f in worst],
        ]
        figures = {
            "device": str(backend.device()), "cases": len(cases), "passed": dict(passed), "left_out": dict(left_out),
            "tolerance": allowed._asdict(), "failures": dict(worst), "lost": lost,
        }  # fmt: skip
        task.write([*lines, *lost[:1]], is_good=bool(passed) and not failures and not lost, **figures)

    def run(case: suite.Case) -> None:
        if lost or time.monotonic() > end:
            return
        error: Exception | None = None
        try:
            case.run()
        except Exception as raised:
            error = raised
        with lock:
            if error is None:
                passed[case.part] += 1
                if passed.total() % 200 == 0:
                    note()
            elif isinstance(error, NotCompared) or lacking(error) is not None:
                left_out[case.part] += 1
            else:
                fail(case, str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}")

    def fail(case: suite.Case, text: str) -> None:
        failure = failures.setdefault(case.operation, {"cases": 0, "difference": 0.0, "parts": [], "first": text[:600]})
        failure["cases"] += 1
        failure["parts"] = sorted({*failure["parts"], case.part})
        failure["difference"] = max(failure["difference"], difference(text))
        if "CUDA error" in text or "CUDA_ERROR" in text:
            lost.append(f"the GPU's context was lost at {case.part}, {case.operation}: {text[:300]}")

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4) if engine == "jax" else 1) as pool:
        list(pool.map(run, cases))
    note()


def spread(cases: list[Any]) -> list[Any]:
    """The cases with the first of each operation in each part before the second ones, and neighbours far apart."""
    seen: Counter[tuple[str, str]] = Counter()
    ranks: list[int] = []
    for case in cases:
        ranks.append(seen[case.part, case.operation])
        seen[case.part, case.operation] += 1
    step = 37
    order = sorted(range(len(cases)), key=lambda index: (ranks[index], index % step, index))
    return [cases[index] for index in order]


def difference(text: str) -> float:
    """The difference of the two numbers in a failure's message; infinite if there are none."""
    numbers = _NUMBERS.search(text)
    if numbers is None:
        return float("inf")
    apart = abs(float(numbers[1]) - float(numbers[2]))
    return apart if apart == apart else float("inf")


def on_device(engine: str, element: str, name: str) -> Any:
    """A backend whose default device is this one: the suite takes the default device."""
    from phlox.backend import load_backend

    cls: Any = load_backend(engine)

    class OnDevice(cls):
        """The engine's backend, by default on the chosen device."""

        def device(self, name_of_device: str | None = None) -> Any:
            return super().device(name_of_device or name)

    return OnDevice(float=element)


def strict(engine: str) -> None:
    """Compute products and convolutions of f32 with all bits; engines may round their operands to TF32 on a GPU."""
    if engine == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    else:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


# --- random numbers


def _draws() -> dict[str, tuple[bool, Callable[[Any], Any]]]:
    """Draws by name: are they equal bit for bit on all engines, and a function of the device."""
    import phlox as px

    logits = np.linspace(-2.0, 2.0, 30, dtype=np.float32).reshape(5, 6)
    random = px.random

    def on(device: Any, array: Any) -> Any:
        return px.tensor(array, device=device)

    return {
        "uniform": (True, lambda d: random.uniform((1000, 7), device=d)),
        "normal": (True, lambda d: random.normal((1000, 7), device=d)),
        "bernoulli": (True, lambda d: random.bernoulli((1000, 7), 0.3, device=d)),
        "integers": (True, lambda d: random.integers((1000, 7), -5, 97, device=d)),
        "permutation": (True, lambda d: random.permutation(1001, device=d)),
        "shuffle": (True, lambda d: random.shuffle(px.arange(1001, device=d))),
        "choice": (True, lambda d: random.choice(1001, (50,), device=d)),
        "choice, once each": (True, lambda d: random.choice(1001, (50,), replace=False, device=d)),
        "categorical": (True, lambda d: random.categorical(on(d, logits), (200,))),
        "Categorical.sample": (True, lambda d: random.Categorical(on(d, logits)).sample((20,))),
        "Bernoulli.sample": (True, lambda d: random.Bernoulli(on(d, logits)).sample((20,))),
        "Normal.sample": (False, lambda d: random.Normal(on(d, logits), 0.5).sample((20,))),
        "Uniform.sample": (False, lambda d: random.Uniform(on(d, logits), 3.0).sample((20,))),
        "exponential": (False, lambda d: random.exponential((1000,), device=d)),
        "gumbel": (False, lambda d: random.gumbel((1000,), device=d)),
        "laplace": (False, lambda d: random.laplace((1000,), device=d)),
        "truncated normal": (False, lambda d: random.truncated_normal((1000,), device=d)),
    }


_CLOSE = 2e-6
"""The largest relative difference of draws that are a function of uniform numbers, such as a logarithm."""


def draws(task: Task) -> None:
    """Draws on each engine's GPU, eager and compiled, against NumPy's."""
    import phlox as px
    from phlox.backend import NumPy, load_backend

    unequal: dict[str, float] = {}
    count = 0
    for engine in ("torch", "jax"):
        for element in ("f32", "bf16"):
            cls: Any = load_backend(engine)
            name = gpu_of(engine, task).partition(":")[2]
            device = cls(float=element).device(name)
            host = NumPy(float=element).device()
            for title, (is_exact, draw) in _draws().items():
                for is_compiled in (False, True):
                    if is_compiled and (task.dry or element == "bf16" or engine == "torch"):
                        continue  # PyTorch takes seconds to compile each; a masked step is in `switched_off`
                    with px.random.stream(5):
                        expected = draw(host).numpy().astype(np.float64)
                    with px.random.stream(5):
                        run = px.compile(lambda draw=draw, device=device: draw(device)) if is_compiled else None
                        got = (draw(device) if run is None else run()).numpy().astype(np.float64)
                    count += 1
                    off = float(np.max(np.abs(got - expected) / np.maximum(np.abs(expected), 1.0)))
                    width = _CLOSE if element == "f32" else 2.0**-7
                    if off > (0.0 if is_exact else width):
                        unequal[f"{engine} {element} {title}{', compiled' * is_compiled}"] = off
    lines = [f"{count - len(unequal)} of {count} are NumPy's", *[f"{k}: off by {v:.3g}" for k, v in unequal.items()]]
    task.write(lines, is_good=not unequal, count=count, unequal=unequal)


# --- a small training


def digits(task: Task) -> None:
    """A training on each engine; the model saved there is loaded by NumPy, and NumPy's is loaded there."""
    import phlox as px
    from phlox import metrics, nn, optim
    from phlox.data import Loader, load_digits, split_rows
    from phlox.train import Learner

    data = load_digits()
    rows = ((data.images / 16).astype(np.float32).reshape(-1, 64), data.labels)
    train, test = split_rows(rows, 0.8, 0.2, labels=data.labels)
    x = np.asarray(test[:][0])
    found: dict[str, dict[str, Any]] = {}

    def model(seed: int, device: str) -> Any:
        layers = [nn.Linear(64, 128), nn.Relu(), nn.Dropout(0.1), nn.Linear(128, 10)]
        return nn.Sequential(layers).init(seed=seed, device=device)

    def logits(net: Any, device: str) -> Any:
        return net.valid()(px.tensor(x, device=device)).numpy()

    with tempfile.TemporaryDirectory() as folder:
        for device in ("numpy", gpu_of("torch", task), gpu_of("jax", task)):
            for compiled in (False,) if device == "numpy" or task.dry else (False, True):
                px.random.seed(0)
                learner = Learner(
                    model(0, device), optim.AdamWConfig(), 0.003, nn.cross_entropy_loss,
                    metrics={"accuracy": metrics.Accuracy(num_classes=10)}, compile=compiled,
                )  # fmt: skip
                loader = Loader(train, 64, shuffle=True)
                history = learner.fit(loader, epochs=2 if task.dry else 8, validation=Loader(test, 256), progress=False)
                path = learner.model.save(Path(folder) / f"{len(found)}")
                on_numpy, again = model(1, "numpy"), model(2, device)
                on_numpy.load(path)
                back = on_numpy.save(Path(folder) / f"{len(found)}-numpy")
                again.load(back)
                there = logits(learner.model, device)
                found[f"{device}{', compiled' * compiled}"] = {
                    "loss": history[-1].train["loss"],
                    "accuracy": history[-1].validation["accuracy"],
                    "there_and_back_is_equal": bool((logits(again, device) == there).all()),
                    "numpy_differs_by": float(np.abs(logits(on_numpy, "numpy") - there).max()),
                }
                _write_digits(task, found)


def _write_digits(task: Task, found: dict[str, dict[str, Any]]) -> None:
    first = next(iter(found.values()))
    good = all(
        one["there_and_back_is_equal"] and one["numpy_differs_by"] < 1e-2 and abs(one["loss"] - first["loss"]) < 1e-2
        for one in found.values()
    )
    lines = [
        f"{device}: loss {one['loss']:.6f}, accuracy {one['accuracy']:.4f}, saved and loaded on NumPy and back: "
        f"{'equal' if one['there_and_back_is_equal'] else 'DIFFERENT'}; NumPy differs by {one['numpy_differs_by']:.2g}"
        for device, one in found.items()
    ]
    task.write(lines, is_good=good, trainings=found)


# --- kernels and passes for processors


def for_processors() -> set[str]:
    """The operations of our own that PyTorch runs on a processor only."""
    import torch

    from phlox.backend.torch.compiler import pipeline  # registers them

    assert pipeline.PASSES
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("phlox::")}
    keys = ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    return {name for name in names if not any(has(name, key) for key in keys)} | {"phlox::draw"}


@contextmanager
def observed() -> Iterator[Counter[str]]:
    """A scope that counts what programs and updates use that is made for processors."""
    from phlox.backend.torch import compat
    from phlox.backend.torch.compiler import pipeline
    from phlox.backend.torch.compiler.passes import donation
    from phlox.backend.torch.cpu import gemm
    from phlox.backend.torch.ops import update

    used, names = Counter[str](), for_processors()
    compile_graph, fold, suits = compat.compile_graph, pipeline.fold_constants, gemm.suits
    pack: Any = pipeline.packed_gemm.lower
    lent, host = donation.LentMemory.__init__, update.HostMemory.__init__

    def compiled(graph: Any, *options: Any) -> Any:
        for node in graph.graph.nodes:
            name = getattr(node.target, "name", lambda: "")() if node.op == "call_function" else ""
            if isinstance(name, str) and name.split(".")[0] in names:
                used[name.split(".")[0]] += 1
        return compile_graph(graph, *options)

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            result = function(*operands)
            if function in (lent, host) or (result is not None and result is not False):
                used[name] += 1
            return result

        return run

    compat.compile_graph, pipeline.fold_constants = compiled, noted("constant_folding", fold)
    gemm.suits, pipeline.packed_gemm.lower = noted("eager gemm by oneDNN", suits), noted("packed_gemm", pack)
    donation.LentMemory.__init__ = noted("memory lent by programs", lent)
    update.HostMemory.__init__ = noted("memory reused by updates", host)
    try:
        yield used
    finally:
        compat.compile_graph, pipeline.fold_constants = compile_graph, fold
        gemm.suits, pipeline.packed_gemm.lower = suits, pack
        donation.LentMemory.__init__, update.HostMemory.__init__ = lent, host


def switched_off(task: Task) -> None:
    """Programs that use each kernel for processors on a processor: none of them may run on a GPU."""
    from phlox.backend import Torch

    name = "cpu" if task.dry else "gpu"
    found: dict[str, dict[str, int]] = {}
    for title, run in programs(Torch().device(name), small=task.dry).items():
        with observed() as used:
            run()
        found[title] = dict(sorted(used.items()))
        _write_uses(task, found, of_xla())


def _write_uses(task: Task, found: dict[str, dict[str, int]], xla: dict[str, bool]) -> None:
    lines = [f"{title}: {', '.join(used) or 'none of them'}" for title, used in found.items()]
    lines.append("XLA: " + ", ".join(f"{name} {'on' if is_on else 'off'}" for name, is_on in xla.items()))
    good = task.dry or not (any(found.values()) or any(xla.values()))
    task.write(lines, is_good=good, kernels=sorted(for_processors()), used=found, xla=xla)


def programs(device: Any, *, small: bool) -> dict[str, Callable[[], object]]:
    """Programs by name, which on a processor use the kernels of our own."""
    import phlox as px
    from benchmarks.libraries.with_phlox import step
    from benchmarks.models import cnn, gpt, lstm
    from phlox import nn, optim
    from phlox.backend import Autodiff

    taped = Autodiff(device.backend).device(device.name)

    def family(maths: Any) -> Any:
        import importlib

        return importlib.import_module(f"{maths.__name__}.with_phlox")

    def training(maths: Any, *, compiled: bool = True, **options: Any) -> Callable[[], object]:
        def run() -> object:
            sizes = maths.Sizes(**options)
            model = family(maths).model(sizes, maths.weights(sizes), taped)
            x, y = maths.batch(sizes)
            x = getattr(family(maths), "inputs", lambda x: x)(x)
            one = px.compile(step, donate=("model", "optimizer")) if compiled else step
            batch = px.tensor(x, device=taped), px.tensor(y, device=taped)
            model, _ = one(model, optim.AdamWConfig().init(), 1e-3, *batch)
            return one(model, optim.AdamWConfig().init(), 1e-3, *batch)[1].item()

        return run

    def predicting(maths: Any, **options: Any) -> Callable[[], object]:
        def run() -> object:
            sizes = maths.Sizes(**options)
            model = family(maths).model(sizes, maths.weights(sizes), device).valid()
            x = getattr(family(maths), "inputs", lambda x: x)(maths.batch(sizes)[0])
            return px.compile(lambda model, x: model(x))(model, px.tensor(x, device=device)).numpy()

        return run

    def of_row() -> object:
        model = nn.Sequential([nn.Linear(256, 256), nn.Relu(), nn.Linear(256, 64)]).init(0, device=device).valid()
        model = px.quantize(model, "**.weight", "int4")
        return px.compile(lambda model, x: model(x))(model, px.ones((1, 256), device=device)).numpy()

    def of_masks() -> object:
        x = px.ones((64, 64), device=device)
        return px.compile(lambda x: nn.dropout(x, 0.1))(x).numpy()

    def of_functions() -> object:
        x = px.tensor(np.linspace(0.1, 0.9, 64, dtype=np.float32), device=device)
        return px.compile(lambda x: x.expm1() % 0.3 + x.erfinv())(x).numpy()

    images: dict[str, Any] = {"image": 16, "batch": 16, "stages": (16, 32), "blocks": 1}
    texts: dict[str, Any] = {"layers": 1, "width": 128, "context": 64, "batch": 4, "vocabulary": 64}
    steps: dict[str, Any] = {"steps": 8, "embedding": 64, "width": 64, "batch": 8}
    every = {
        "LSTM, predicting": predicting(lstm, **steps),
        "CNN, predicting": predicting(cnn, **images),
        "one row times packed weights": of_row,
        "dropout": of_masks,
        "functions": of_functions,
        "GPT, eager training": training(gpt, compiled=False, **texts),
        "GPT, training": training(gpt, **texts),
        "LSTM, training": training(lstm, **steps),
        "CNN, training": training(cnn, **images),
    }
    return {title: run for title, run in every.items() if not (small and title in ("CNN, training", "GPT, training"))}


def of_xla() -> dict[str, bool]:
    """Which of the forms for processors JAX's programs would take here."""
    from phlox.backend.jax import attention, conv

    return {
        "attention in chunks": len(attention._spans(1024, 1024, True)) > 1,
        "unfolded convolutions": conv._unfolds(16, (16, 16, 3, 3), (16, 16), (1, 1), (1, 1), 1, 4),
    }
