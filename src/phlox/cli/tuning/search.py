"""Which settings are tried, in what order, and how the measurements are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phlox.backend import backend_names
from phlox.backend.settings import Settings, environment_before
from phlox.cli.tuning.search_space import candidates
from phlox.cli.tuning.trial import Program, Trial, run
from phlox.host.threads import VARIABLES as THREADS

GAIN = 0.97
"""The ratio below which a change is worthwhile; a smaller gain may be noise."""
_FINALISTS = 3
_RELATIVE, _LATER = 1e-3, 2e-2
"""Tolerances of the first value and of later ones: engines round differently, and training amplifies the difference."""


@dataclass(eq=False)
class Configuration:
    """Settings to try, and the results of their runs, one in each round."""

    settings: Settings
    trials: list[Trial] = field(default_factory=list[Trial])
    differs: str | None = None
    """Where its values differ from those of the present configuration, if they do."""

    @property
    def name(self) -> str:
        """The settings, in short."""
        parts = [f"{key} {value}" for key, value in self.settings.given().items()]
        return ", ".join(parts).replace("--xla_", "") or "unchanged"

    @property
    def problem(self) -> str | None:
        """Why there is no measurement, if there is none."""
        return next((trial.problem for trial in self.trials if trial.problem), None)

    @property
    def windows(self) -> list[float]:
        """The seconds per step of all rounds."""
        return [seconds for trial in self.trials for seconds in trial.windows]

    def seconds(self) -> float:
        """The median of the seconds per step."""
        return statistics.median(self.windows) if self.windows and not self.problem else math.inf

    def ratios(self, present: Configuration) -> tuple[float, float, float] | None:
        """Ratios to the present configuration, round by round: the median, and the quartiles of all measurements."""
        if self.problem or present.problem:
            return None
        rounds = list(zip(self.trials, present.trials, strict=False))
        bases = [statistics.median(base.windows) for _, base in rounds]
        middle = statistics.median(
            statistics.median(own.windows) / base for (own, _), base in zip(rounds, bases, strict=True)
        )
        every = [one / base for (own, _), base in zip(rounds, bases, strict=True) for one in own.windows]
        if len(every) < 2:
            return middle, middle, middle
        low, _, high = statistics.quantiles(every, n=4, method="inclusive")
        return middle, min(low, middle), max(high, middle)


class Search:
    """Finds settings for a program.

    Args:
        program: the program to run.
        present: the settings of this process, with which the candidates are compared.
        devices: names of default devices to try; by default all backends.
        flags: further XLA flags to try; each string holds one or several.
        rounds: how often the best are measured.
        tell: called with every configuration after its first measurement.
    """

    def __init__(
        self,
        program: Program,
        present: Settings,
        *,
        devices: Sequence[str] | None,
        flags: Sequence[str],
        rounds: int,
        tell: Callable[[Configuration], None],
    ) -> None:
        self.program = program
        self.present = Configuration(Settings())
        self.configurations = [self.present]
        self.notes: list[str] = []
        """Notes to print below the table."""
        self._settings, self._devices, self._flags = present, devices, flags
        self.rounds, self._tell = rounds, tell
        self._compared = True

    @property
    def step(self) -> str | None:
        """The function whose calls are the steps."""
        return self.present.trials[0].step if self.present.trials else None

    def go(self) -> None:
        """Measure everything. After an interrupt, `configurations` holds the results so far."""
        first = self._try(self.present)
        if first.problem:
            return
        place = self._place(first)
        plain = Settings() if place is self.present else place.settings
        engine = place.trials[0].device.partition(":")[0] or "numpy"
        singles = [self._add(plain, single) for single in self.worth_trying(engine)]
        found = [one for one in singles if one is not None]
        for one in found:
            self._try(one)
        together = self._joined(place, plain, found)
        if together is not None:
            self.configurations.append(together)
            self._try(together)
        self._repeat(place)

    def other_devices(self) -> list[str]:
        """The default devices to try besides the present one."""
        now = self._settings.device or "numpy"
        return [name for name in self._devices or backend_names() if name != now]

    def worth_trying(self, engine: str) -> list[Settings]:
        """The single settings to try on an engine, without those that are already set."""
        found = candidates(engine, self._flags)
        fixed = [name for name in THREADS if environment_before().get(name)]
        if fixed:
            self.notes.append(f"{fixed[0]} is set and overrides PHLOX_THREADS, so no thread counts were tried")
            found = [one for one in found if one.threads is None]
        return [one for one in found if one.over(self._settings) != self._settings]

    def best(self) -> Configuration:
        """The fastest configuration whose values agree, or the present one if none is clearly faster.

        Among configurations that are equally fast, up to noise, it is the one with the fewest settings.
        """
        found: list[tuple[float, Configuration]] = []
        for one in self.configurations:
            ratios = one.ratios(self.present)
            finished = len(one.trials) >= min(self.rounds, len(self.present.trials))
            if ratios is not None and finished and one.differs is None and ratios[0] < GAIN and ratios[2] < 1.0:
                found.append((ratios[0], one))
        if not found:
            return self.present
        least = min(ratio for ratio, _ in found)
        alike = [(len(one.settings.given()), ratio, one) for ratio, one in found if GAIN * ratio <= least]
        return min(alike, key=lambda each: each[:2])[2]

    def _place(self, first: Trial) -> Configuration:
        """The configuration with the fastest default device."""
        others = self.other_devices()
        if not others:
            return self.present
        if not first.asked_default:
            where = f" ({first.device})" if first.device else ""
            self.notes.append(f"the script names its device{where}, so no other was tried")
            return self.present
        found = [self.present]
        for name in others:
            one = Configuration(Settings(device=name))
            trial = self._try(one)
            if trial.problem and "EngineNotInstalledError" in trial.problem:
                self.notes.append(f"{name} was not tried, because its engine is not installed")
                continue
            self.configurations.append(one)
            if not trial.problem and trial.device == first.device and trial.step:
                self.configurations.remove(one)
                self.notes.append(f"the script names its device ({first.device}), so no other was tried")
                break
            if one.differs is None:
                found.append(one)
        return min(found, key=lambda one: one.seconds())

    def _add(self, plain: Settings, single: Settings) -> Configuration | None:
        one = Configuration(single.over(plain))
        if any(one.settings == other.settings for other in self.configurations):
            return None
        self.configurations.append(one)
        return one

    def _joined(self, place: Configuration, plain: Settings, singles: list[Configuration]) -> Configuration | None:
        """The best value of each setting that beat the device alone, combined; None if there is nothing new."""
        best: dict[str, Configuration] = {}
        for one in sorted(singles, key=lambda one: one.seconds()):
            if one.seconds() < GAIN * place.seconds() and one.differs is None:
                key = next(key for key in one.settings.given() if key not in plain.given())
                best.setdefault(key, one)
        if len(best) < 2:
            return None
        joined = plain
        for one in best.values():
            joined = one.settings.over(joined)
        return Configuration(joined)

    def _repeat(self, place: Configuration) -> None:
        """Measure the best, their device alone, and the present configuration, and reverse the order in each round."""
        others = [one for one in self.configurations if one is not self.present and one.seconds() < math.inf]
        others.sort(key=lambda one: (one.differs is not None, one.seconds()))
        finalists = list(dict.fromkeys([self.present, place, *others[:_FINALISTS]]))
        if len(finalists) > 1:
            for number in range(1, self.rounds):
                for one in finalists[::-1] if number % 2 else finalists:
                    self._try(one)

    def _try(self, one: Configuration) -> Trial:
        trial = run(self.program, one.settings, self.step)
        one.trials.append(trial)
        if one is self.present and len(one.trials) == 2 and _difference(trial, one.trials[0]):
            self._compared = False
            self.notes.append("two runs of the same configuration disagreed (no seed?), so no values were compared")
            for other in self.configurations:
                other.differs = None
        elif one is not self.present and self._compared and not trial.problem:
            one.differs = one.differs or _difference(trial, self.present.trials[0])
        if len(one.trials) == 1:
            self._tell(one)
        return trial


def _difference(own: Trial, other: Trial) -> str | None:
    """Where the values of two runs differ by more than rounding explains, if they do."""
    for number, (a, b) in enumerate(zip(own.values, other.values, strict=False), start=1):
        if not math.isclose(a, b, rel_tol=_RELATIVE if number == 1 else _LATER, abs_tol=1e-6) and a == a and b == b:
            return f"{a:.5g} instead of {b:.5g} at step {number}"
        if (a == a) != (b == b):
            return f"{a:.5g} instead of {b:.5g} at step {number}"
    return None
