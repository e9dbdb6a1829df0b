"""Statistical tests of the generator, and of these tests: broken generators fail them.

Every test of the battery gives a probability: that of a result at least as odd, were the words independent and evenly
spread. Keys are fixed, so that the outcome is too. What single distributions look like is in `test_distributions`, bits
and published vectors in `test_generator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from phlox.backend.threefry import generator as on_numpy

Words = np.ndarray[Any, np.dtype[np.uint32]]
Key = tuple[int, int]
Generator = Callable[[Key, int, int], Words]
"""`(key, position, n)`: n words."""

KEYS = [(0, 0), (0, 1), (0x243F6A88, 0x85A308D3)]
LIKELY, IMPOSSIBLE = 1e-4, 1e-9


def threefry(key: Key, position: int, n: int) -> Words:
    """The generator under test."""
    return on_numpy.random_bits(np.array([*key, position], np.uint32), n)


# -------------------------------------------------------------------------------------------------------- the battery


def bits_of(words: Words) -> np.ndarray[Any, Any]:
    """[n, 32]: the bits of each word, the lowest first."""
    return np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")


def even(x: Words, y: Words | None = None) -> float:
    """Chi-square of the highest and of the lowest five bits of x, or of pairs from x and y, over all their values."""
    found = []
    for shift in (27, 0):
        cells = x >> shift & 31
        if y is not None:
            cells = cells * 32 + (y >> shift & 31)
        found.append(stats.chisquare(np.bincount(cells, minlength=32 if y is None else 1024)).pvalue)
    return float(min(1.0, 2 * min(found)))


def chi_square(z: np.ndarray[Any, Any]) -> float:
    """Of standard normal numbers: neither too large nor too small."""
    total = float((z.astype(np.float64) ** 2).sum())
    return float(2 * min(stats.chi2.sf(total, z.size), stats.chi2.cdf(total, z.size)))


def balance(draw: Generator, key: Key) -> float:
    """Each bit is set in half of the words."""
    bits = bits_of(draw(key, 0, 2**18))
    return chi_square((bits.sum(0, dtype=np.int64) - len(bits) / 2) / np.sqrt(len(bits) / 4))


def pairs_of_bits(draw: Generator, key: Key) -> float:
    """Any two bits of a word are equal in half of the words."""
    signs = bits_of(draw(key, 1, 2**17)).astype(np.float32) * 2 - 1
    together = signs.T @ signs / np.sqrt(np.float32(len(signs)))
    return chi_square(together[np.triu_indices(32, 1)])


def neighbours_in_a_draw(draw: Generator, key: Key) -> float:
    """Consecutive words are independent."""
    words = draw(key, 2, 2**18)
    return even(words[::2], words[1::2])


def lanes(draw: Generator, key: Key) -> float:
    """The two words of a block are independent."""
    first, second = draw(key, 3, 2**18).reshape(2, -1)
    return even(first, second)


def runs(draw: Generator, key: Key) -> float:
    """The number of runs above and below the middle (Wald, Wolfowitz 1940)."""
    above = draw(key, 4, 2**18) >> 31
    n, high = above.size, int(above.sum())
    expected = 1 + 2 * high * (n - high) / n
    variance = (expected - 1) * (expected - 2) / (n - 1)
    z = (1 + int((above[1:] != above[:-1]).sum()) - expected) / np.sqrt(variance)
    return float(2 * stats.norm.sf(abs(z)))


def neighbouring_draws(draw: Generator, key: Key) -> float:
    """Draws of neighbouring positions and keys are independent of each other, word by word."""
    high, low = key
    near = [(key, 0), (key, 1), (key, 2**31), ((high, low ^ 1), 0), ((high ^ 1, low), 0), ((low, high ^ 5), 0)]
    rows = [draw(*place, 2**16) for place in near]
    found = []
    for i, x in enumerate(rows):
        for y in rows[:i]:
            found.append(even(x, y))
            equal = bits_of(x ^ y).sum(dtype=np.int64)
            found.append(2 * stats.norm.sf(abs(equal - 16 * x.size) / np.sqrt(8 * x.size)))
    return min(1.0, len(found) * min(found))


def avalanche(draw: Generator, key: Key) -> float:
    """Of each bit of key, position and block, a change turns each bit of the result in half of the cases."""
    blocks = 512

    def output(key: Key, position: int) -> np.ndarray[Any, Any]:
        return np.concatenate([bits_of(half) for half in draw(key, position, 2 * blocks).reshape(2, -1)], 1)

    position = 0x5A5A5A5A
    before = output(key, position)
    changed = [before ^ output((key[0] ^ 1 << bit, key[1]), position) for bit in range(32)]
    changed += [before ^ output((key[0], key[1] ^ 1 << bit), position) for bit in range(32)]
    changed += [before ^ output(key, position ^ 1 << bit) for bit in range(32)]
    z = [(change.sum(0, dtype=np.int64) - blocks / 2) / np.sqrt(blocks / 4) for change in changed]
    block = np.arange(blocks)
    for bit in range(8):  # each pair of blocks once
        change = (before ^ before[block ^ 1 << bit])[block & 1 << bit == 0]
        z.append((change.sum(0, dtype=np.int64) - blocks / 4) / np.sqrt(blocks / 8))
    return chi_square(np.stack(z))


def repeats(words: np.ndarray[Any, Any]) -> int:
    """How many are there that came before."""
    words = np.sort(words)
    return int((words[1:] == words[:-1]).sum())


def collisions(draw: Generator, key: Key) -> float:
    """Words repeat as often as chance has it, pairs of them never, the cipher being a bijection."""
    n = 2**20
    words = draw(key, 5, n)
    first, second = words.reshape(2, -1).astype(np.uint64)
    if repeats(first << np.uint64(32) | second):
        return 0.0
    repeated = repeats(words)
    expected = n * n / 2**33
    return float(2 * min(stats.poisson.cdf(repeated, expected), stats.poisson.sf(repeated - 1, expected)))


def birthday_spacings(draw: Generator, key: Key) -> float:
    """How often spacings between 1024 birthdays in a year of 2**24 days repeat (Marsaglia 1985), for both ends."""
    found = []
    for shift in (8, 0):
        days = np.sort((draw(key, 6, 2**18) >> shift & 0xFFFFFF).reshape(256, 1024).astype(np.int64), 1)
        spacings = np.sort(np.diff(days, axis=1), 1)
        repeated, expected = int((spacings[:, 1:] == spacings[:, :-1]).sum()), 256 * 16.0
        # The expectation of 16 a row is an approximation, a little too large.
        found.append(2 * min(stats.poisson.cdf(repeated, expected * 0.99), stats.poisson.sf(repeated - 1, expected)))
    return min(1.0, 2 * min(found))


BATTERY = [
    balance, pairs_of_bits, neighbours_in_a_draw, lanes, runs, neighbouring_draws, avalanche, collisions,
    birthday_spacings,
]  # fmt: skip


@pytest.mark.parametrize("test", BATTERY)
@pytest.mark.parametrize("key", KEYS)
def test_the_generator_passes(test: Callable[[Generator, Key], float], key: Key) -> None:
    assert test(threefry, key) > LIKELY


def test_no_pair_of_words_comes_twice() -> None:
    """Of four million blocks; the words alone do, as those of a random sequence must."""
    first, second = threefry((7, 8), 9, 2**23).reshape(2, -1).astype(np.uint64)
    assert repeats(first << np.uint64(32) | second) == 0


# ------------------------------------------------------------------------------------------------- broken generators


def weaker(rounds: int) -> Generator:
    """The cipher with fewer rounds."""

    def draw(key: Key, position: int, n: int) -> Words:
        k = [*key, key[0] ^ key[1] ^ on_numpy.PARITY]
        y = np.arange((n + 1) // 2, dtype=np.uint32)
        x = np.full_like(y, (position + k[0]) & 0xFFFFFFFF)
        y += np.uint32(k[1])
        rotations = [r for group in on_numpy.ROTATIONS for r in group]
        for i in range(rounds):
            r = np.uint32(rotations[i % 8])
            x += y
            y = (y << r | y >> np.uint32(32) - r) ^ x
            if i % 4 == 3:
                j = i // 4 + 1
                x += np.uint32(k[j % 3])
                y += np.uint32((k[(j + 1) % 3] + j) & 0xFFFFFFFF)
        return np.concatenate([x, y])[:n]

    return draw


def congruential(key: Key, position: int, n: int) -> Words:
    """x = 69069 x, whose low bits are poor."""
    factors = np.full(n, 69069, np.uint32)
    factors[0] = (position * 2 + 1) * (key[1] * 2 + 1) & 0xFFFFFFFF
    return np.multiply.accumulate(factors, dtype=np.uint32)


def changed(change: Callable[[Words], Any]) -> Generator:
    """The generator with its words changed."""
    return lambda key, position, n: change(threefry(key, position, n)).astype(np.uint32)


BROKEN: dict[str, tuple[Generator, list[Callable[[Generator, Key], float]]]] = {
    "three rounds": (weaker(3), [avalanche, neighbouring_draws]),
    "six rounds": (weaker(6), [avalanche]),
    "congruential": (congruential, [balance, neighbouring_draws, birthday_spacings]),
    "one bit in twenty words set": (changed(lambda w: w | (np.arange(w.size) % 20 == 0) << 9), [balance]),
    "low bits that repeat the high ones": (changed(lambda w: w & 0xFFFFFF00 | w >> 24), [pairs_of_bits, collisions]),
    "one of its lanes twice": (changed(lambda w: np.tile(w[: w.size // 2], 2)), [lanes, collisions]),
    "words that come twice": (changed(lambda w: np.repeat(w[: w.size // 2], 2)), [neighbours_in_a_draw, runs]),
    "keys that stand for positions": (
        lambda key, position, n: threefry((key[0], key[1] ^ position & 1), 0, n),
        [neighbouring_draws],
    ),
    "the same for all positions": (lambda key, position, n: threefry(key, 0, n), [neighbouring_draws, avalanche]),
    "no word ever twice": (changed(lambda w: np.arange(w.size, dtype=np.uint32) * 0x9E3779B1), [collisions]),
    "sorted in pairs": (changed(lambda w: np.sort(w.reshape(-1, 2), 1).reshape(-1)), [neighbours_in_a_draw]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_generator_fails(name: str) -> None:
    draw, tests = BROKEN[name]
    assert draw(KEYS[2], 0, 10).dtype == np.uint32
    assert np.array_equal(weaker(20)((1, 2), 3, 9), threefry((1, 2), 3, 9))
    for test in tests:
        assert test(draw, KEYS[2]) < IMPOSSIBLE, test.__name__


def test_every_test_can_fail() -> None:
    assert {test for _, tests in BROKEN.values() for test in tests} == set(BATTERY)


# ------------------------------------------------------------------------------------------------ streams and engines


def test_jax_has_the_same_cipher() -> None:
    """Its own primitive, from which `jax.random` is made."""
    for key in KEYS:
        for position in (0, 7, 2**32 - 2):
            n = 5000
            blocks = jnp.concatenate([jnp.full(n, position, jnp.uint32), jnp.arange(n, dtype=jnp.uint32)])
            words = threefry_2x32(jnp.array(key, jnp.uint32), blocks)
            assert np.array_equal(np.asarray(words), threefry(key, position, 2 * n))


def test_seeds_and_substreams_are_independent() -> None:
    """Neighbouring seeds, the sub-streams of one, and sub-streams of sub-streams."""
    n, rows = 8192, []
    for seed in range(48):
        with px.random.stream(seed):
            rows.append(px.random.normal((n,), device=NumPy()).numpy())
    with px.random.stream(0) as parent:
        keys = [parent.substream() for _ in range(48)]
    for key in keys:
        with px.random.stream(key) as child:
            inner = child.substream()
            rows.append(px.random.normal((n,), device=NumPy()).numpy())
        with px.random.stream(inner):
            rows.append(px.random.normal((n,), device=NumPy()).numpy())
    table = np.stack(rows).astype(np.float64)
    above = np.triu_indices(len(rows), 1)
    for values in (table, table**2, np.sign(table)):
        correlations: Any = np.corrcoef(values)
        z = correlations[above] * np.sqrt(n)
        assert chi_square(z) > LIKELY
        assert np.abs(z).max() < 5.5  # of ten thousand
    assert len({row.tobytes() for row in rows}) == len(rows)


# ----------------------------------------------------------------------------------------------------- distributions

N = 200_000
CONTINUOUS: dict[str, tuple[Callable[[Any], px.Tensor], Any]] = {
    "uniform": (lambda d: px.random.uniform((N,), -1.0, 3.0, device=d), stats.uniform(-1.0, 4.0)),
    "normal": (lambda d: px.random.normal((N,), 2.0, 0.5, device=d), stats.norm(2.0, 0.5)),
    "exponential": (lambda d: px.random.exponential((N,), 0.5, device=d), stats.expon(0.0, 0.5)),
    "truncated normal": (lambda d: px.random.truncated_normal((N,), low=-1.0, high=2.5, device=d),
                         stats.truncnorm(-1.0, 2.5)),
    "gumbel": (lambda d: px.random.gumbel((N,), 1.0, 2.0, device=d), stats.gumbel_r(1.0, 2.0)),
    "laplace": (lambda d: px.random.laplace((N,), 1.0, 2.0, device=d), stats.laplace(1.0, 2.0)),
}  # fmt: skip
DISCRETE: dict[str, Callable[[Any], px.Tensor[Any, Any, Any]]] = {
    "integers": lambda d: px.random.integers((999,), -5, 12, device=d),
    "bernoulli": lambda d: px.random.bernoulli((999,), 0.3, device=d),
    "permutation": lambda d: px.random.permutation(999, device=d),
    "categorical": lambda d: px.random.categorical(probs=px.tensor([1.0, 2.0, 5.0], device=d), shape=(999,)),
}


def odds(x: np.ndarray[Any, Any], law: Any) -> float:
    """The least likely of the first four moments about the mean and of Kolmogorov's and Smirnov's distance."""
    y = (x.astype(np.float64) - law.mean()) / law.std()
    quantiles = (law.ppf((np.arange(2**18) + 0.5) / 2**18) - law.mean()) / law.std()
    found = [stats.kstest(x, law.cdf).pvalue]
    for power in (1, 2, 3, 4):
        exact = quantiles**power
        z = ((y**power).mean() - exact.mean()) / (exact.std() / np.sqrt(y.size))
        found.append(2 * stats.norm.sf(abs(z)))
    return min(1.0, len(found) * min(found))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments_and_shape(name: str) -> None:
    draw, law = CONTINUOUS[name]
    for seed in (1, 2):
        with px.random.stream(seed):
            assert odds(draw(NumPy()).numpy(), law) > LIKELY


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.02, lambda x: x * 1.02, lambda x: x.clip(-2.9, 2.9), lambda x: np.where(x > 0, x, x * 0.97),
        lambda x: np.round(x, 1), lambda x: np.where(np.arange(x.size) % 50, x, 0.0), lambda x: x * 1.6,
    ],
    ids=["moved", "wider", "no tails", "skewed", "coarse", "zeros in between", "another scale"],
)  # fmt: skip
def test_a_broken_normal_fails(change: Callable[[Any], Any]) -> None:
    with px.random.stream(3):
        x = px.random.normal((N,), device=NumPy()).numpy()
    assert odds(x, stats.norm()) > LIKELY
    assert odds(change(x), stats.norm()) < IMPOSSIBLE


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_engines_agree(name: str) -> None:
    draw = CONTINUOUS[name][0] if name in CONTINUOUS else DISCRETE[name]
    found = []
    for backend in (NumPy(), Jax(), Torch()):
        with px.random.stream(9):
            found.append(draw(backend).numpy())
    for other in found[1:]:
        if name in {"exponential", "gumbel", "laplace", "uniform", "normal"}:  # a logarithm, or a fused multiply-add
            np.testing.assert_allclose(other, found[0], rtol=2e-6, atol=2e-6)
        else:
            assert other.tobytes() == found[0].tobytes()


def test_every_order_is_as_frequent() -> None:
    """Of the draws of one stream, and whatever the order before was."""
    with px.random.stream(5):
        orders = [tuple(px.random.permutation(4, device=NumPy()).tolist()) for _ in range(6000)]
    number = {order: i for i, order in enumerate(sorted(set(orders)))}
    assert len(number) == 24
    seen = np.array([number[order] for order in orders])
    assert stats.chisquare(np.bincount(seen)).pvalue > LIKELY
    assert stats.chisquare(np.bincount(seen[:-1] * 24 + seen[1:], minlength=576)).pvalue > LIKELY


# ------------------------------------------------------------------------------------------------------------ dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 1 / 3, 0.999, 1e-4])
def test_dropout_keeps_its_rate_in_units_of_16_bits(rate: float) -> None:
    """What is kept grows by exactly the rate at which the generator keeps, so that the mean stays."""
    n, keep = 2**20, round((1.0 - rate) * 65536) / 65536
    with px.random.stream(6):
        x = px.nn.dropout(px.ones((n,), device=px.backend.Autodiff(NumPy())), rate).numpy()
    assert set(np.unique(x)) == {np.float32(0.0), np.float32(1.0) * np.float32(1.0 / keep)}
    assert stats.binomtest(int((x > 0).sum()), n, keep).pvalue > LIKELY
    positions = np.flatnonzero(x == 0) if keep > 0.5 else np.flatnonzero(x)
    assert stats.kstest(positions / n, "uniform").pvalue > LIKELY


def test_the_share_of_16_bit_numbers_kept_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    every = np.arange(2**16, dtype=np.uint32)
    monkeypatch.setattr(on_numpy, "_chunks", lambda draw, n: iter([(0, (every[: 2**15] | every[2**15 :] << 16))]))
    for threshold in (0, 1, 6554, 32768, 65535, 65536):
        kept = on_numpy.random_bernoulli(np.zeros(3, np.uint32), (2**16,), threshold)
        assert int(kept.sum()) == threshold
