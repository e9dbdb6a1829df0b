"""The generator against published vectors and a reference in plain integers; the same on every engine.

Serves: phlox/backend/jax/random.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phlox.backend.jax import random as on_jax
from phlox.backend.threefry import generator as on_numpy
from phlox.backend.threefry.half_normal import NODES
from phlox.backend.torch.ops import random as on_torch
from phlox.errors import BackendError, RangeError

M32 = 0xFFFFFFFF
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (3, 5, 7), (385,), (70001,)]
TRACED_SHAPES = [(), (3, 5, 7)]  # two are enough, because each is compiled
RANGES = [(0, 1), (-3, 10), (-(2**31), 2**31), (-(2**31), 2**31 - 1), (0, 2**31), (-1000, 3 * 2**29)]
SIZES = [0, 1, 2, 3, 64, 383, 384, 385, 387, 65537]
STATES = [(0, 0, 0), (1, 2, 3), (M32, M32, M32 - 1), (0x13198A2E, 0x03707344, 0x243F6A88)]
TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
VECTORS = [  # counter, key, result: kat_vectors of Random123
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((M32, M32), (M32, M32), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.fixture(autouse=True, scope="module")
def single_threaded_torch() -> Iterator[None]:
    """On busy cores the threads of PyTorch wait for each other, a thousand times longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def state_of(words: tuple[int, int, int]) -> Any:
    return np.array(words, np.uint32)


# ------------------------------------------------------------------------------------- a reference in plain integers


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + keys[0]) & M32, (counter[1] + keys[1]) & M32
    for i, r in enumerate((13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6)):
        x = (x + y) & M32
        y = ((y << r) & M32 | y >> (32 - r)) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x, y = (x + keys[j % 3]) & M32, (y + keys[(j + 1) % 3] + j) & M32
    return x, y


def ref_words(state: tuple[int, int, int], n: int) -> list[int]:
    pairs = [threefry(state[:2], (state[2], i)) for i in range((n + 1) // 2)]
    return ([a for a, _ in pairs] + [b for _, b in pairs])[:n]


def ref_normal(word: int) -> int:
    """In units of 2**-26."""
    m = (word >> 8) + 1
    octave = m.bit_length() - 1
    k, fraction = divmod((m << 23 >> octave) - (1 << 23), 1 << 14)
    nodes = [int(v) for v in NODES[512 * octave + k : 512 * octave + k + 2]] + [0]
    magnitude = nodes[0] - ((nodes[0] - nodes[1]) * fraction >> 14)
    return -magnitude if word & 1 else magnitude


def ref_integers(words: list[int], low: int, high: int) -> list[int]:
    n = len(words) // 2
    return [low + ((high - low) * (a << 32 | b) >> 64) for a, b in zip(words[:n], words[n:], strict=True)]


# -------------------------------------------------------------------------------------- the same call on every engine


def jax_array(name: str, state: Any, *args: Any) -> Any:
    return np.asarray(getattr(on_jax, name)(state, *args))


def jax_traced(name: str, state: Any, *args: Any) -> Any:
    return np.asarray(jax.jit(lambda traced: getattr(on_jax, name)(traced, *args))(state))


def torch_result(name: str, state: Any, *args: Any, **options: Any) -> Any:
    converted = [TORCH_TYPES[np.dtype(a).name] if isinstance(a, type | np.dtype) else a for a in args]
    result: torch.Tensor = getattr(on_torch, name)(state, *converted, **options)
    if result.dtype == torch.bfloat16:
        return result.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return result.numpy().view(np.uint32) if name == "random_bits" else result.numpy()


def torch_native(name: str, state: Any, *args: Any) -> Any:
    return torch_result(name, state, *args, native=True)


def torch_state(name: str, state: Any, *args: Any) -> Any:
    return torch_result(name, torch.from_numpy(state.view(np.int32).copy()), *args)


ENGINES = [jax_array, jax_traced, torch_result, torch_native, torch_state]
engines = pytest.mark.parametrize("engine", ENGINES)


def shapes_for(engine: Callable[..., Any]) -> list[tuple[int, ...]]:
    return TRACED_SHAPES if engine is jax_traced else SHAPES


def assert_identical(result: Any, expected: Any) -> None:
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()


# -------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("counter, key, expected", VECTORS)
def test_published_vectors(counter: tuple[int, int], key: tuple[int, int], expected: tuple[int, int]) -> None:
    assert threefry(key, counter) == expected
    assert on_numpy._lanes(*key, *counter, 1) == expected
    a, b, scratch = np.empty(1, np.uint32), np.array(counter[1:], np.uint32), np.empty(1, np.uint32)
    on_numpy._rounds(*key, counter[0], a, b, scratch)
    assert (int(a[0]), int(b[0])) == expected
    words = on_jax._threefry(*(np.full(1, word, np.uint32) for word in (*key, *counter)))
    assert tuple(int(word[0]) for word in words) == expected


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("n", SIZES)
def test_words(state: tuple[int, int, int], n: int) -> None:
    words = on_numpy.random_bits(state_of(state), n)
    assert words.dtype == np.uint32
    assert words.shape == (n,)
    h = (n + 1) // 2
    for i in {*range(min(n, 400)), *range(0, n, 997), *range(max(0, n - 3), n)}:
        assert words[i] == threefry(state[:2], (state[2], i % h))[i // h]


@engines
@pytest.mark.parametrize("n", SIZES)
def test_words_are_the_same_everywhere(engine: Callable[..., Any], n: int) -> None:
    state = state_of(STATES[2])
    assert_identical(engine("random_bits", state, n), on_numpy.random_bits(state, n))


def test_words_over_several_chunks() -> None:
    n = 200_001
    words = on_numpy.random_bits(state_of((5, 6, 7)), n)
    for i in (0, 32767, 32768, 65536, 100_000, 100_001, 132_768, 132_769, 132_770, n - 1):
        assert words[i] == threefry((5, 6), (7, i % 100_001))[i // 100_001]
    assert_identical(jax_array("random_bits", state_of((5, 6, 7)), n), words)


# ------------------------------------------------------------------------------------------- numbers, bit by bit


@pytest.mark.covering(2)
@engines
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["random_uniform", "random_normal"])
def test_floats_are_the_same_everywhere(engine: Callable[..., Any], name: str, dtype: Any) -> None:
    state = state_of(STATES[3])
    for shape in shapes_for(engine):
        with jax.enable_x64(dtype is np.float64):
            result = engine(name, state, shape, dtype)
        assert_identical(result, getattr(on_numpy, name)(state, shape, dtype))


@engines
@pytest.mark.parametrize("threshold", [0, 1, 6554, 65535, 65536])
def test_bernoulli_is_the_same_everywhere(engine: Callable[..., Any], threshold: int) -> None:
    state = state_of((7, M32, 9))
    for shape in shapes_for(engine):
        expected = on_numpy.random_bernoulli(state, shape, threshold)
        assert_identical(engine("random_bernoulli", state, shape, threshold), expected)


@pytest.mark.covering(2)
@engines
@pytest.mark.parametrize("low, high", RANGES)
def test_integers_are_the_same_everywhere(engine: Callable[..., Any], low: int, high: int) -> None:
    state = state_of((7, M32, 10))
    for shape in shapes_for(engine):
        expected = on_numpy.random_integers(state, shape, low, high)
        assert_identical(engine("random_integers", state, shape, low, high), expected)


@engines
def test_permutations_are_the_same_everywhere(engine: Callable[..., Any]) -> None:
    state = state_of((7, M32, 11))
    for n in (0, 1, 2, 386, 70001):
        assert_identical(engine("random_permutation", state, n), on_numpy.random_permutation(state, n))


@given(st.tuples(*[st.integers(0, M32)] * 2, st.integers(0, M32 - 1)), st.integers(-(2**31), 2**31 - 1), st.data())
@settings(max_examples=40)
def test_any_state(state: tuple[int, int, int], low: int, data: st.DataObject) -> None:
    high, threshold = data.draw(st.integers(low + 1, 2**31)), data.draw(st.integers(0, 65536))
    words, few, s = ref_words(state, 9), ref_words(state, 5), state_of(state)
    halves = [w & 0xFFFF for w in few] + [w >> 16 for w in few]
    normals = [float(np.float32(ref_normal(w))) for w in words]
    integers = ref_integers(ref_words(state, 18), low, high)
    for engine in (lambda name, *args: getattr(on_numpy, name)(*args), jax_array, torch_native):
        assert engine("random_uniform", s, (9,)).tolist() == [(w >> 8) / 2**24 for w in words]
        assert (engine("random_normal", s, (9,), np.float32) * 2.0**26).tolist() == normals
        assert engine("random_integers", s, (9,), low, high).tolist() == integers
        assert engine("random_bernoulli", s, (9,), threshold).tolist() == [h < threshold for h in halves[:9]]
        assert engine("random_permutation", s, 9).tolist() == sorted(range(9), key=words.__getitem__)


def test_ties_of_a_permutation_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([7, 1 << 20, 7, 3, 1 << 20, 0, 7], np.uint32)
    monkeypatch.setattr(on_numpy, "random_bits", lambda state, n: words.copy())
    assert on_numpy.random_permutation(state_of((0, 0, 0)), 7).tolist() == [5, 3, 0, 2, 6, 1, 4]


@pytest.mark.parametrize("dtype, step", [(np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)])
def test_narrow_uniforms_are_rounded_down(dtype: Any, step: float) -> None:
    state = state_of((1, 1, 1))
    wide = on_numpy.random_uniform(state, (100_000,)).astype(np.float64)
    narrow = on_numpy.random_uniform(state, (100_000,), dtype).astype(np.float64)
    assert narrow.max() == 1 - step
    assert np.all(narrow <= wide)
    assert np.all(wide - narrow < 2 * step * wide)  # one unit in the last place


def test_float64_holds_the_numbers_of_float32() -> None:
    state = state_of((1, 1, 2))
    single, double = (on_numpy.random_normal(state, (10_000,), dtype) for dtype in (np.float32, np.float64))
    assert np.array_equal(double.astype(np.float32), single)
    assert [int(x * 2**26) for x in double[:500]] == [
        ref_normal(int(w)) for w in on_numpy.random_bits(state, 10_000)[:500]
    ]


# --------------------------------------------------------------------------------------------- streams, traces, places


def test_fold_in() -> None:
    assert on_numpy.fold_in((M32, M32), M32) == VECTORS[1][2]
    assert on_numpy.fold_in((1, 2), 3) == threefry((1, 2), (M32, 3))
    keys = {on_numpy.fold_in((1, 2), i) for i in range(1000)}
    assert len(keys) == 1000
    for data in (0, 3, M32):
        expected = (*on_numpy.fold_in((1, 2), data), 0)
        assert tuple(on_jax.fold_in(state_of((1, 2, 9)), data).tolist()) == expected
        folded = jax.jit(on_jax.fold_in)(state_of((1, 2, 9)), np.uint32(data))
        assert folded.dtype == jnp.uint32
        assert tuple(folded.tolist()) == expected


def test_jax_vmap_and_scan() -> None:
    states = np.array([(1, 2, position) for position in range(5)], np.uint32)
    expected = np.stack([on_numpy.random_normal(state, (3, 3)) for state in states])
    mapped = jax.vmap(lambda state: on_jax.random_normal(state, (3, 3)))(states)
    assert_identical(np.asarray(mapped), expected)

    def step(state: Any, _: None) -> tuple[Any, Any]:
        return state.at[2].add(jnp.uint32(1)), on_jax.random_normal(state, (3, 3))

    last, scanned = jax.lax.scan(step, jnp.asarray(states[0]), length=5)
    assert_identical(np.asarray(scanned), expected)
    assert last.tolist() == [1, 2, 5]


def test_jax_traces_the_threshold_and_compiles_once() -> None:
    state, traced = state_of((1, 2, 3)), list[Any]()

    @jax.jit
    def drop(state: Any, threshold: Any) -> Any:
        traced.append(threshold)
        return on_jax.random_bernoulli(state, (1001,), threshold)

    for threshold in (0, 300, 65536):
        expected = on_numpy.random_bernoulli(state, (1001,), threshold)
        assert_identical(np.asarray(drop(state, np.uint32(threshold))), expected)
    assert len(traced) == 1


def test_jax_places_the_numbers() -> None:
    device = jax.devices("cpu")[-1]
    x = on_jax.random_uniform(state_of((1, 2, 3)), (4,), out=jax.sharding.SingleDeviceSharding(device))
    assert x.devices() == {device}


def test_jax_refuses_float64_that_it_does_not_have() -> None:
    with jax.enable_x64(False), pytest.raises(BackendError, match="jax_enable_x64"):
        on_jax.random_normal(state_of((1, 2, 3)), (4,), np.float64)


@pytest.mark.full
def test_torch_compiled_without_breaks() -> None:
    def draw(state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            on_torch.random_bits(state, 5),
            on_torch.random_uniform(state, (5,), torch.bfloat16),
            on_torch.random_normal(state, (5, 2)),
            on_torch.random_bernoulli(state, (5,), 30000),
            on_torch.random_integers(state, (5,), -3, 9),
            on_torch.random_permutation(state, 5),
        )

    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    for words in STATES:
        state = torch.tensor(words)
        wanted = draw(state)  # first, for it makes the tables that a program cannot make
        for result, expected in zip(compiled(state), wanted, strict=True):
            assert torch.equal(result, expected)


def test_torch_draws_on_other_devices() -> None:
    x = on_torch.random_normal(state_of((1, 2, 3)), (4, 5), torch.float16, "meta")
    assert (x.shape, x.dtype, x.device.type) == ((4, 5), torch.float16, "meta")


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("module", [on_numpy, on_jax, on_torch])
def test_refusals(module: Any) -> None:
    state = state_of((1, 2, 3))
    with pytest.raises(RangeError, match="reserved for sub-streams"):
        module.random_uniform(state_of((1, 2, M32)), (3,))
    with pytest.raises(RangeError, match=r"2\*\*32 random words, this one needs 4294967297"):
        module.random_bits(state, 2**32 + 1)
    with pytest.raises(RangeError, match="2\\*\\*32"):
        module.random_normal(state, (2**20, 2**13))
    with pytest.raises(RangeError, match="2\\*\\*32"):
        module.random_integers(state, (2**31 + 1,), 0, 5)
    for threshold in (-1, 65537):
        with pytest.raises(RangeError, match="threshold"):
            module.random_bernoulli(state, (3,), threshold)
    for low, high in [(3, 3), (4, 3), (-(2**31) - 1, 0), (0, 2**31 + 1)]:
        with pytest.raises(RangeError, match=f"not low={low}, high={high}"):
            module.random_integers(state, (3,), low, high)
    with pytest.raises(RangeError, match="permutation"):
        module.random_permutation(state, 2**31 + 1)


@pytest.mark.parametrize(
    "fold_in", [lambda i: on_numpy.fold_in((1, 2), i), lambda i: on_jax.fold_in(np.zeros(3, np.uint32), i)]
)
def test_refused_substreams(fold_in: Callable[[int], Any]) -> None:
    for data in (-1, 2**32):
        with pytest.raises(RangeError, match="sub-stream"):
            fold_in(data)
