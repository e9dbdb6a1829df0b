"""The tables of workloads and contestants: complete, and with numbers that were counted by hand.

Serves: benchmarks/{workloads,contestants}.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

import benchmarks
from benchmarks.contestants import CONTESTANTS, KEPT
from benchmarks.workloads import ACCELERATED, QUICK, STEPS, WORKLOADS, Workload
from phlox.host import allocator

FOLDER = Path(benchmarks.__file__).parent
LIBRARIES = ("with_phlox", "with_torch", "with_jax", "with_nnx", "with_equinox", "with_keras")
BY_NAME = {workload.name: workload for workload in WORKLOADS}
MILLION = 1_000_000


@pytest.mark.parametrize("family", ["mlp", "cnn", "gpt", "lstm"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_family_is_written_in_every_library(family: str, library: str) -> None:
    file = FOLDER / "models" / family / f"{library}.py"
    assert file.is_file()
    asked = "def parameters(" if library == "with_jax" else "def model("
    assert asked in file.read_text(encoding="utf-8")
    assert (FOLDER / "libraries" / f"{library}.py").is_file()


@pytest.mark.parametrize("table", [WORKLOADS, QUICK, ACCELERATED], ids=["full", "quick", "accelerated"])
def test_a_table_has_models_that_are_there_and_names_once(table: tuple[Workload, ...]) -> None:
    assert {workload.family for workload in table} <= {"mlp", "cnn", "gpt", "lstm"}
    assert len({workload.name for workload in table}) == len({workload.title for workload in table}) == len(table)
    assert all(workload.bf16 == (table is ACCELERATED) for workload in table)


def test_all_families_are_in_a_full_and_in_a_quick_run() -> None:
    for table in (WORKLOADS, QUICK):
        assert {workload.family for workload in table} == {"mlp", "cnn", "gpt", "lstm"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_library_takes_part_in_every_workload(workload: Workload) -> None:
    trained = [contestant for contestant in CONTESTANTS if contestant.trains(workload)]
    assert {contestant.library for contestant in trained} == set(LIBRARIES)
    predicting = {contestant.library for contestant in CONTESTANTS if contestant.predicts(workload)}
    assert predicting == (set(LIBRARIES) if workload.predicts else set())


def test_names_are_there_once_and_those_alike_name_one_that_is_there() -> None:
    names = [contestant.name for contestant in CONTESTANTS]
    assert len(set(names)) == len(names)
    for one in CONTESTANTS:
        if one.like:
            other = CONTESTANTS[names.index(one.like)]
            assert (one.library, one.variant, one.by_operation) == (other.library, other.variant, other.by_operation)
            assert one.environment != other.environment


@pytest.mark.parametrize("name", ["mlp-large", "cnn", "gpt-4x256", "gpt-6x384", "gpt-6x384-dropout", "lstm"])
def test_what_phlox_may_set_its_fastest_peers_have_too(name: str) -> None:
    workload = BY_NAME[name]
    taking_part = {one.name for one in CONTESTANTS if one.trains(workload)}
    assert {"Phlox on JAX", "Phlox on PyTorch"} < taking_part
    kept = {one.like for one in CONTESTANTS if one.trains(workload) and "PHLOX_ALLOCATOR" in one.environment}
    assert kept == {"Phlox on JAX", "Phlox on PyTorch"}
    peers = {one.like for one in CONTESTANTS if one.trains(workload) and KEPT.items() <= one.environment.items()}
    assert peers == {"PyTorch", "torch.compile", "JAX and Optax", "Flax NNX (split)"}
    assert not any(one.like and one.predicts(workload) for one in CONTESTANTS)


def test_the_peers_memory_is_kept_as_that_of_phlox_is() -> None:
    variables = dict(pair.split("=") for pair in KEPT["GLIBC_TUNABLES"].split(":"))
    # glibc's numbers of the same settings, from its malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX.
    numbers = {"trim_threshold": -1, "top_pad": -2, "mmap_max": -4, "arena_max": -8}
    found = {numbers[name.removeprefix("glibc.malloc.")]: int(value) for name, value in variables.items()}
    assert found == dict(allocator._KEPT)


def test_the_faster_random_generator_takes_part_only_where_a_step_draws() -> None:
    for workload in WORKLOADS:
        names = {
            one.like for one in CONTESTANTS if one.takes_part(workload) and "JAX_DEFAULT_PRNG_IMPL" in one.environment
        }
        assert names == ({"JAX and Optax", "Flax NNX (split)"} if workload.name == "gpt-6x384-dropout" else set())


def test_several_steps_a_call_are_offered_to_all_or_none() -> None:
    for workload in WORKLOADS:
        several = {one.library for one in CONTESTANTS if one.several and one.trains(workload)}
        assert several == ({"with_phlox", "with_jax", "with_keras"} if workload.several else set())
    assert all(str(STEPS) in one.variant for one in CONTESTANTS if one.several)


def parameters(workload: Workload) -> int:
    return sum(array.size for array in workload.maths.weights(workload.sizes).values())


def test_the_perceptrons_are_as_large_as_they_say() -> None:
    small, large = BY_NAME["mlp-small"], BY_NAME["mlp-large"]
    assert parameters(small) == 64 * 128 + 128 + 128 * 10 + 10
    assert parameters(large) == 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10
    # Three products a layer, but the first has no gradient of its inputs.
    assert small.flops == 64 * 2 * (2 * 64 * 128 + 3 * 128 * 10)
    assert large.flops == 256 * 2 * (2 * 784 * 1024 + 3 * 1024 * 1024 + 3 * 1024 * 10)


def test_the_residual_network_is_as_large_as_it_says() -> None:
    # What torchvision counts for a network of this kind, by hand: kernels, and two numbers a channel of each norm.
    kernels = 27 * 32 + 4 * 9 * 32**2
    kernels += 9 * 32 * 64 + 3 * 9 * 64**2 + 32 * 64
    kernels += 9 * 64 * 128 + 3 * 9 * 128**2 + 64 * 128
    norms = 2 * (5 * 32 + 5 * 64 + 5 * 128)
    assert parameters(BY_NAME["cnn"]) == kernels + norms + 128 * 10 + 10
    # Multiply-adds of an image forwards: each kernel at each place of its results.
    stem = 1024 * 27 * 32
    rest = 1024 * 4 * 9 * 32**2
    rest += 256 * (9 * 32 * 64 + 3 * 9 * 64**2 + 32 * 64)
    rest += 64 * (9 * 64 * 128 + 3 * 9 * 128**2 + 64 * 128)
    assert BY_NAME["cnn"].flops == 64 * 2 * (2 * stem + 3 * rest + 3 * 1280)


@pytest.mark.parametrize(
    ("name", "layers", "width", "context", "batch"), [("gpt-4x256", 4, 256, 128, 16), ("gpt-6x384", 6, 384, 256, 8)]
)
def test_the_transformers_are_as_large_as_they_say(
    name: str, layers: int, width: int, context: int, batch: int
) -> None:
    workload, vocabulary = BY_NAME[name], 512
    block = 4 * width**2 + 4 * width + 8 * width**2 + 5 * width + 4 * width
    ends = vocabulary * width + context * width + 2 * width + width * vocabulary
    assert parameters(workload) == layers * block + ends
    # Six a parameter and token, without what only is looked up or added, and what attention adds to it.
    multiplied = 12 * layers * width**2 + width * vocabulary
    scores = 12 * layers * width * context
    assert workload.flops == batch * context * (6 * multiplied + scores)
    assert workload.flops == pytest.approx(6 * parameters(workload) * batch * context, rel=0.15)


def test_the_lstm_is_as_large_as_it_says() -> None:
    workload = BY_NAME["lstm"]
    layer = 4 * (256 * 256 + 256 * 256 + 256)
    assert parameters(workload) == 256 * 256 + 2 * layer + 256 * 256 + 256
    assert workload.flops == 6 * 32 * 64 * (2 * 8 * 256 * 256 + 256 * 256)


def test_dropout_changes_nothing_of_the_size() -> None:
    plain, dropout = BY_NAME["gpt-6x384"], BY_NAME["gpt-6x384-dropout"]
    assert dropout.dropout and not plain.dropout
    assert dropout.flops == plain.flops
    assert parameters(dropout) == parameters(plain) > 10 * MILLION
