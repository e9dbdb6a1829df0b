"""Rows of a global draw: bit for bit those of the whole draw, on every engine, eagerly and in programs.

Serves: phlox/backend/parallel.py, phlox/backend/torch/compiler/kernels/bernoulli.py
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy, Torch
from phlox.backend.jax import random as on_jax
from phlox.backend.parallel import Part, RowGroup, row_group, rows_of
from phlox.backend.threefry import generator
from phlox.backend.torch.compiler.kernels import bernoulli
from phlox.backend.torch.ops import random as on_torch
from phlox.errors import DistributedError

STATES = [(0, 0, 0), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE), (0x13198A2E, 0x03707344, 0x243F6A88)]
PARTS = [  # start, count, total: odd totals, parts across the middle and the quarters, small and in several chunks
    (0, 1, 1), (0, 0, 5), (2, 3, 5), (0, 4, 8), (4, 4, 8), (3, 3, 9), (1, 5, 7), (6, 1, 7), (0, 385, 1155),
    (385, 385, 1155), (770, 385, 1155), (500, 20, 1001), (240, 600, 1001), (0, 70001, 140002), (70001, 70001, 140002),
    (66666, 66667, 200001), (131000, 70001, 210003), (1, 210001, 210003),
]  # fmt: skip
DRAWS: dict[str, tuple[Any, ...]] = {
    "random_uniform": (np.float32,),
    "random_normal": (np.float32,),
    "random_bernoulli": (20000,),
    "random_integers": (-3, 1000),
}
HALVES = [np.float16, ml_dtypes.bfloat16, np.float64]
TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint8)


def on_numpy(name: str, state: Any, shape: Any, options: Any, part: Part | None) -> Any:
    return getattr(generator, name)(state, shape, *options, part)


def by_torch(name: str, state: Any, shape: Any, options: Any, part: Part | None, **more: Any) -> Any:
    given = [TORCH_TYPES[np.dtype(one).name] if isinstance(one, type) else one for one in options]
    found: Any = getattr(on_torch, name)(state, shape, *given, part=part, **more)
    return found.view(torch.int16).numpy() if found.dtype == torch.bfloat16 else found.numpy()


def torch_native(name: str, state: Any, shape: Any, options: Any, part: Part | None) -> Any:
    return by_torch(name, state, shape, options, part, native=True)


def torch_state(name: str, state: Any, shape: Any, options: Any, part: Part | None) -> Any:
    return by_torch(name, torch.from_numpy(state.view(np.int32).copy()), shape, options, part)


def by_jax(name: str, state: Any, shape: Any, options: Any, part: Part | None) -> Any:
    return np.asarray(getattr(on_jax, name)(state, shape, *options, part=part))


ENGINES = {
    "numpy": on_numpy,
    "torch": by_torch,
    "torch native": torch_native,
    "torch state": torch_state,
    "jax": by_jax,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DRAWS)
def test_a_part_has_the_bits_of_the_whole_draw(name: str, engine: str) -> None:
    options = DRAWS[name]
    kinds = [options, *[(dtype,) for dtype in HALVES if isinstance(options[0], type)]]
    for words in STATES:
        state = np.array(words, np.uint32)
        parts = PARTS if words == STATES[-1] else PARTS[:8]
        for start, count, total in parts if engine != "jax" else parts[2::4]:  # each is compiled
            for kind in kinds[:3] if engine == "jax" else kinds if total < 2000 else kinds[:1]:
                whole = on_numpy(name, state, (total,), kind, None)
                got = ENGINES[engine](name, state, (count,), kind, Part(start, total))
                expected = bits(whole[start : start + count])
                np.testing.assert_array_equal(bits(got), expected, err_msg=f"{words} {start} {count} {total} {kind}")


def test_words_of_a_part() -> None:
    state = np.array(STATES[2], np.uint32)
    for start, count, total in PARTS:
        whole = generator.random_bits(state, total)[start : start + count]
        np.testing.assert_array_equal(generator.random_bits(state, count, Part(start, total)), whole)
        found = on_torch.random_bits(state, count, native=True, part=Part(start, total)).numpy().view(np.uint32)
        np.testing.assert_array_equal(found, whole)


def test_the_kernel_for_dropout_draws_parts() -> None:
    state = np.array(STATES[2], np.uint32)
    if bernoulli.draw(state, (1,), 1) is None:
        pytest.skip("there is no kernel for this processor")
    parts = [*PARTS, *[(start, count, 200) for start in range(0, 200, 7) for count in (1, 15, 17, 60, 200 - start)]]
    for start, count, total in [(s, min(c, t - s), t) for s, c, t in parts]:
        found = bernoulli.draw(state, (count,), 20000, Part(start, total))
        assert found is not None
        whole = generator.random_bernoulli(state, (total,), 20000)
        np.testing.assert_array_equal(found.numpy(), whole[start : start + count], err_msg=f"{start} {count} {total}")


def test_a_part_draws_no_more_than_the_pairs_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    pairs = generator._pairs

    def counted(draw: Any, start: int, stop: int) -> Any:
        nonlocal drawn
        drawn += stop - start
        return pairs(draw, start, stop)

    monkeypatch.setattr(generator, "_pairs", counted)
    state, total = np.array(STATES[2], np.uint32), 1_000_000
    for name, options in DRAWS.items():
        drawn = 0
        on_numpy(name, state, (1000,), options, Part(300_500, total))
        assert 0 < drawn <= 1000, name


# ---------------------------------------------------------------------------------------------- by the ambient group

RANDOM: dict[str, Any] = {
    "uniform": lambda shape: px.random.uniform(shape, -1.0, 1.0),
    "normal": lambda shape: px.random.normal(shape),
    "bernoulli": lambda shape: px.random.bernoulli(shape, 0.3),
    "bernoulli of a tensor": lambda shape: px.random.bernoulli(shape, px.tensor(0.3)),
    "integers": lambda shape: px.random.integers(shape, 0, 100),
    "exponential": lambda shape: px.random.exponential(shape),
    "truncated normal": lambda shape: px.random.truncated_normal(shape),
    "choice": lambda shape: px.random.choice(10, shape),
    "classes": lambda shape: px.random.categorical(px.zeros((*shape, 5))),
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", [NumPy(), Torch(), NumPy(float="bf16"), Torch(float="f16"), Jax()], ids=repr)
@pytest.mark.parametrize("name", RANDOM)
def test_processes_draw_their_rows(name: str, backend: Any) -> None:
    draw = RANDOM[name]
    with px.default_device(backend):
        groups: list[tuple[int, int, tuple[int, ...]]] = [(3, 1, (7, 3)), (2, 3, (5,)), (4, 2, ())]
        for size, rows, rest in groups[: 1 if backend is Jax() else None]:
            with px.random.stream(1):
                whole = draw((size * rows, *rest)).numpy()
            for rank in range(size):
                with px.random.stream(1) as stream, rows_of(RowGroup(rank, size)):
                    mine = draw((rows, *rest)).numpy()
                    assert stream.position == 1
                np.testing.assert_array_equal(bits(mine), bits(whole[rank * rows : (rank + 1) * rows]))


def test_what_has_no_rows_is_the_same_everywhere() -> None:
    layer = nn.Linear(4, 4)
    with px.random.stream(1):
        expected = [px.random.uniform(()).item(), px.random.permutation(9).tolist(), px.random.normal((3,)).tolist()]
        without = px.random.choice(6, (3,), replace=False, probs=px.ones((6,))).tolist()
        layer.init()
    for rank in range(3):
        with px.random.stream(1) as stream, rows_of(RowGroup(rank, 3)):
            assert px.random.uniform(()).item() == expected[0]
            assert px.random.permutation(9).tolist() == expected[1]
            rows = px.random.normal((1,)).tolist()
            assert rows == expected[2][rank : rank + 1]
            assert px.random.choice(6, (3,), replace=False, probs=px.ones((6,))).tolist() == without
            assert stream.position == 4


def test_a_stream_that_is_opened_inside_is_the_same_everywhere() -> None:
    with px.random.stream(7):
        expected = px.random.normal((3,)).tolist()
    for rank in range(2):
        with rows_of(RowGroup(rank, 2)), px.random.stream(7) as opened:
            assert px.random.normal((3,)).tolist() == expected
            assert opened.replay(0).whole
        with px.random.stream(7) as outer, rows_of(RowGroup(rank, 2)), px.random.stream(outer):
            assert px.random.normal((1,)).tolist() != expected[:1] or rank == 0


def test_parameters_that_are_made_inside_are_the_same_everywhere() -> None:
    def weights() -> Any:
        px.random.seed(3)
        return nn.Linear(4, 5).init().weight.val().numpy()

    alone = weights()
    for rank in range(2):
        with rows_of(RowGroup(rank, 2)):
            np.testing.assert_array_equal(weights(), alone)


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
def test_in_batches_and_checkpoints(backend: Any) -> None:
    def noisy(x: Any) -> Any:
        return px.random.normal((2,), device=backend) + x

    def shared(x: Any) -> Any:
        return px.vmap(noisy, randomness="same")(x)

    def masked(x: Any) -> Any:
        return px.value_and_grad(lambda x: px.checkpoint(lambda x: nn.dropout(x, 0.5))(x).sum())(x)[1]

    def results(x: Any) -> list[Any]:
        with px.random.stream(5):
            return [px.vmap(noisy, randomness="different")(x).numpy(), shared(x).numpy(), masked(x).numpy()]

    x = px.zeros((4, 2), device=backend)
    whole = results(x)
    for rank in range(2):
        with px.random.stream(5), rows_of(RowGroup(rank, 2)):
            part = x[2 * rank : 2 * rank + 2]
            found = [px.vmap(noisy, randomness="different")(part), shared(part), masked(part)]
        for got, expected in zip(found, whole, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected[2 * rank : 2 * rank + 2])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize("codegen", [pytest.param("inductor", marks=pytest.mark.full), "none"])
def test_programs_draw_rows_and_are_kept_apart(codegen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", codegen)

    def f(x: Any) -> Any:
        with px.random.stream(3):
            fixed = px.random.uniform((2,), device=Torch())
        return nn.dropout(x, 0.5), px.random.normal((3,), device=Torch()), px.random.uniform((), device=Torch()), fixed

    compiled = px.compile(f)
    with px.random.stream(5):
        drop, _, scalar, fixed = f(px.ones((6, 7), device=Torch()))
    with px.random.stream(5):
        px.random.normal((1,))
        wide = px.random.normal((6,), device=Torch())
    x = px.ones((3, 7), device=Torch())
    compiled(x)
    for _ in range(2):
        for rank in range(2):
            with px.random.stream(5), rows_of(RowGroup(rank, 2)):
                found = compiled(x)
            np.testing.assert_array_equal(found[0].numpy(), drop.numpy()[3 * rank : 3 * rank + 3])
            np.testing.assert_array_equal(found[1].numpy(), wide.numpy()[3 * rank : 3 * rank + 3])
            assert found[2].item() == scalar.item()
            np.testing.assert_array_equal(found[3].numpy(), fixed.numpy())
    assert compiled.programs == 3  # outside, and one for each rank
    with px.random.stream(5):
        outside = compiled(x)
    with px.random.stream(5):
        alone = f(x)
    np.testing.assert_array_equal(outside[0].numpy(), alone[0].numpy())
    with rows_of(RowGroup(1, 2)), px.random.stream(5):  # opened inside: a draw as it stands
        np.testing.assert_array_equal(compiled(x)[0].numpy(), alone[0].numpy())


def test_the_group() -> None:
    assert row_group() is None
    with rows_of(RowGroup(0, 2)) as group:
        assert row_group() is group
        with rows_of(None):
            assert row_group() is None
    assert row_group() is None
    assert RowGroup(1, 3).part(()) is None
    assert RowGroup(1, 3).part((2, 3)) == Part(6, 18)
    with pytest.raises(DistributedError, match="ranks 0 to 1, not 2"):
        RowGroup(2, 2)
