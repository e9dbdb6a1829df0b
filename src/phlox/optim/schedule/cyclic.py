"""Schedules that go up and down: cosine with restarts, cycles, one cycle."""

from __future__ import annotations

from functools import partial
from typing import Literal

from phlox.optim.schedule import checks
from phlox.optim.schedule.base import LrSchedule
from phlox.optim.schedule.scalars import is_traced, least, piece, power, select
from phlox.optim.schedule.shapes import cosine
from phlox.other_names import answering


class CosineRestartsLr(LrSchedule):
    """Decreases along half a cosine from `initial_lr` to `min_lr` over `num_iters` steps, then restarts, without end.

    Each cycle has `multiplier` times as many steps as the one before.

    rate(t) = min_lr + (initial_lr - min_lr) / 2 * (1 + cos(pi * t_i / n_i)), where t_i is the number of steps since the
    last restart, and n_i = num_iters * multiplier**i is the length of cycle i

    Loshchilov, Hutter 2017: "SGDR: Stochastic gradient descent with warm restarts".

    >>> schedule = CosineRestartsLr(1.0, num_iters=2, multiplier=2)
    >>> [round(schedule.step(), 3) for _ in range(7)]
    [1.0, 0.5, 1.0, 0.854, 0.5, 0.146, 1.0]
    """

    @answering
    def __init__(self, initial_lr: float, *, num_iters: int, multiplier: int = 1, min_lr: float = 0.0) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.num_iters = checks.count(self, "num_iters", num_iters)
        self.multiplier = checks.count(self, "multiplier", multiplier)
        self.min_lr = checks.rate(self, "min_lr", min_lr)
        checks.ordered(self, ("min_lr", self.min_lr), ("initial_lr", self.initial_lr))

    def rate(self, step: int) -> float:
        if self.multiplier == 1:
            return cosine(self.initial_lr, self.min_lr, step % self.num_iters / self.num_iters)
        if is_traced(step):
            starts, lengths = self._cycles()
            done = [partial(_part_of, step, start, length) for start, length in zip(starts, lengths, strict=True)]
            return cosine(self.initial_lr, self.min_lr, piece(step, starts[1:], done))
        length = self.num_iters
        while step >= length:
            step -= length
            length *= self.multiplier
        return cosine(self.initial_lr, self.min_lr, step / length)

    def _cycles(self) -> tuple[list[int], list[int]]:
        """The first step and the length of each cycle that a count of 32 bits can reach."""
        starts, lengths = [0], [self.num_iters]
        while starts[-1] + lengths[-1] < 2**31:
            starts.append(starts[-1] + lengths[-1])
            lengths.append(lengths[-1] * self.multiplier)
        return starts, lengths


class CyclicLr(LrSchedule):
    """Changes linearly from `base_lr` to `max_lr` and back, without end.

    It increases for `step_size_up` steps and decreases for `step_size_down` steps, by default the same number. The
    `mode` gives the height of a cycle:

    - "triangular": always the same;
    - "triangular2": half the height of the cycle before;
    - "exp_range": multiplied by `gamma` at every step.

    Smith 2017: "Cyclical learning rates for training neural networks".

    >>> schedule = CyclicLr(0.0, 1.0, step_size_up=2, mode="triangular2")
    >>> [schedule.step() for _ in range(9)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.25, 0.5, 0.25, 0.0]
    """

    @answering
    def __init__(
        self,
        base_lr: float,
        max_lr: float,
        *,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
    ) -> None:
        self.base_lr = checks.rate(self, "base_lr", base_lr)
        self.max_lr = checks.rate(self, "max_lr", max_lr)
        checks.ordered(self, ("base_lr", self.base_lr), ("max_lr", self.max_lr))
        self.step_size_up = checks.count(self, "step_size_up", step_size_up)
        down = self.step_size_up if step_size_down is None else step_size_down
        self.step_size_down = checks.count(self, "step_size_down", down)
        self.mode = checks.one_of(self, "mode", mode, ["triangular", "triangular2", "exp_range"])
        self.gamma = checks.positive(self, "gamma", gamma)
        if self.gamma != 1.0 and mode != "exp_range":
            checks.refuse(self, f'gamma is for mode="exp_range" alone, got {self.gamma} and mode={mode!r}')

    def rate(self, step: int) -> float:
        up, down = self.step_size_up, self.step_size_down
        cycle, within = step // (up + down), step % (up + down)
        height = select(within <= up, lambda: within / up, lambda: (up + down - within) / down)
        if self.mode == "triangular2":
            height = height * 0.5**cycle
        elif self.mode == "exp_range":
            height = height * power(self.gamma, step)
        return self.base_lr + (self.max_lr - self.base_lr) * height


class OneCycleLr(LrSchedule):
    """Increases once and decreases again, in `num_iters` steps, then is constant.

    The rate increases from max_lr / div_factor to max_lr in the part `pct_start` of all steps. Then it decreases to
    max_lr / div_factor / final_div_factor at the last step. With `three_phase` it first decreases to the first rate, as
    slowly as it increased, and then to the last. `anneal` gives the curve of each phase: half a cosine ("cos") or a
    straight line ("linear").

    Smith, Topin 2019: "Super-convergence: very fast training of neural networks using large learning rates".

    >>> schedule = OneCycleLr(1.0, num_iters=6, pct_start=0.5, div_factor=2.0, anneal="linear")
    >>> [round(schedule.step(), 3) for _ in range(7)]
    [0.5, 0.75, 1.0, 0.667, 0.333, 0.0, 0.0]
    """

    @answering
    def __init__(
        self,
        max_lr: float,
        *,
        num_iters: int,
        pct_start: float = 0.3,
        anneal: Literal["cos", "linear"] = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        self.max_lr = checks.rate(self, "max_lr", max_lr)
        self.num_iters = checks.count(self, "num_iters", num_iters)
        self.pct_start = checks.rate(self, "pct_start", pct_start)
        most = 0.5 if three_phase else 1.0
        if self.pct_start > most:
            why = ", for three_phase goes down as slowly as up" if three_phase else ": a part of all steps"
            checks.refuse(self, f"pct_start must be at most {most}{why}, got {pct_start}")
        self.anneal = checks.one_of(self, "anneal", anneal, ["cos", "linear"])
        self.div_factor = checks.positive(self, "div_factor", div_factor)
        self.final_div_factor = checks.positive(self, "final_div_factor", final_div_factor)
        self.three_phase = three_phase

    def rate(self, step: int) -> float:
        turns = self._turns()
        at = least(step, self.num_iters - 1)

        def phase(number: int) -> float:
            (start, before), (end, after) = turns[number - 1], turns[number]
            done = (at - start) / (end - start) if end != start else 1.0
            return cosine(before, after, done) if self.anneal == "cos" else before + (after - before) * done

        rate = partial(phase, len(turns) - 1)
        for number in reversed(range(1, len(turns) - 1)):
            rate = partial(select, at <= turns[number][0], partial(phase, number), rate)
        return rate()

    def _turns(self) -> list[tuple[float, float]]:
        """The steps between which the rate goes one way, the first and the last included, and the rates at them."""
        first, rise = self.max_lr / self.div_factor, self.pct_start * self.num_iters
        height = (rise - 1.0, self.max_lr)
        foot = [(2.0 * rise - 2.0, first)] if self.three_phase else []
        return [(0.0, first), height, *foot, (self.num_iters - 1.0, first / self.final_div_factor)]


def _part_of(step: float, start: int, length: int) -> float:
    """The part of a cycle that is done."""
    return (step - start) / float(length)
