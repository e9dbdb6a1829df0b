"""Which settings are tried, in what order, and how the measurements are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phlox.backend import backend_names
from phlox.backend.registry import load_backend
from phlox.backend.settings import Settings, environment_before
from phlox.cli.tuning.trial import Program, Trial, run
from phlox.errors import DeviceError, EngineNotInstalledError
from phlox.host import allocator
from phlox.host.threads import VARIABLES as THREADS
from phlox.host.threads import cores

GAIN = 0.97
"""The ratio below which a change is worthwhile; a smaller gain may be noise."""
_FINALISTS = 3
_TOLERANCE = 1e-3
"""Of the first value, relative: engines round differently."""


def candidates(engine: str, flags: Sequence[str] = ()) -> list[Settings]:
    """Single settings to try on an engine, by its name. The first ones apply to all engines.

    `flags`: further XLA flags, for an engine that takes them; each string holds one or several.

    >>> list(candidates("numpy")[0].given())
    ['allocator']
    """
    found = [Settings(allocator=one) for one in (allocator.KEEP, allocator.SYSTEM) if one != allocator.DEFAULT]
    found += [Settings(threads=1 << power) for power in range((cores() - 1).bit_length())]
    try:
        backend = load_backend(engine)
    except (DeviceError, EngineNotInstalledError):
        return found
    return [*found, *backend.tunings, *[Settings(xla_flags=text) for text in flags if backend.takes_xla_flags]]


@dataclass(eq=False)
class Configuration:
    """Settings to try, and the results of their runs, one in each round."""

    settings: Settings
    trials: list[Trial] = field(default_factory=list[Trial])
    differs: str | None = None
    """How its first value differs from that of the present configuration, if it does."""

    @property
    def name(self) -> str:
        """The settings, in short."""
        parts = [f"{key} {value}" for key, value in self.settings.given().items()]
        return ", ".join(parts).replace("--xla_", "") or "unchanged"

    @property
    def problem(self) -> str | None:
        """Why there is no measurement, if there is none."""
        return next((trial.problem for trial in self.trials if trial.problem), None)

    def seconds(self) -> float:
        """The median of the seconds per step."""
        return math.inf if self.problem else statistics.median(one for trial in self.trials for one in trial.windows)

    def ratios(self, present: Configuration) -> list[float]:
        """The time of each round divided by that of the present configuration."""
        if self.problem or present.problem:
            return []
        return [own.seconds / base.seconds for own, base in zip(self.trials, present.trials, strict=False)]


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
        self._try(self.present)
        if self.present.problem:
            return
        place = self._place()
        singles: list[Configuration] = []
        for single in self.worth_trying(place.trials[0].device.partition(":")[0] or "numpy"):
            one = Configuration(single.over(place.settings))
            if all(one.settings != other.settings for other in self.configurations):
                singles.append(one)
                self.configurations.append(one)
                self._try(one)
        self._join(place, singles)
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
        """The fastest configuration of the same value, or the present one if none was faster in every round.

        Among configurations that are equally fast, up to noise, it is the one with the fewest settings.
        """
        found: list[tuple[float, Configuration]] = []
        for one in self.configurations:
            ratios = one.ratios(self.present)
            finished = len(ratios) >= min(self.rounds, len(self.present.trials))
            if ratios and finished and not one.differs and max(ratios) < 1.0 and statistics.median(ratios) < GAIN:
                found.append((statistics.median(ratios), one))
        least = min((ratio for ratio, _ in found), default=1.0)
        alike = [(len(one.settings.given()), ratio, one) for ratio, one in found if GAIN * ratio <= least]
        return min(alike, key=lambda each: each[:2], default=(0, 1.0, self.present))[2]

    def _place(self) -> Configuration:
        """The configuration with the fastest default device."""
        first, found = self.present.trials[0], [self.present]
        for name in self.other_devices():
            one = Configuration(Settings(device=name))
            trial = self._try(one)
            if trial.problem and "EngineNotInstalledError" in trial.problem:
                self.notes.append(f"{name} was not tried, because its engine is not installed")
                continue
            if trial.step and trial.device == first.device:
                self.notes.append(f"the script names its device ({first.device}), so the default makes no difference")
                break
            self.configurations.append(one)
            if not one.differs:
                found.append(one)
        return min(found, key=Configuration.seconds)

    def _join(self, place: Configuration, singles: list[Configuration]) -> None:
        """Measure the best value of each setting that beat the device alone, all together."""
        best: dict[str, Settings] = {}
        for one in sorted(singles, key=Configuration.seconds):
            if one.seconds() < GAIN * place.seconds() and not one.differs:
                key = next(key for key in one.settings.given() if key not in place.settings.given())
                best.setdefault(key, one.settings)
        if len(best) > 1:
            joined = place.settings
            for settings in best.values():
                joined = settings.over(joined)
            self.configurations.append(Configuration(joined))
            self._try(self.configurations[-1])

    def _repeat(self, place: Configuration) -> None:
        """Measure the best, their device alone, and the present configuration again, alternating."""
        others = [one for one in self.configurations[1:] if not one.problem]
        others.sort(key=lambda one: (one.differs is not None, one.seconds()))
        finalists = list(dict.fromkeys([self.present, place, *others[:_FINALISTS]]))
        for one in finalists * (self.rounds - 1) if len(finalists) > 1 else ():
            self._try(one)

    def _try(self, one: Configuration) -> Trial:
        trial = run(self.program, one.settings, self.step)
        one.trials.append(trial)
        differs = None if trial.problem or not self._compared else _difference(trial, self.present.trials[0])
        if differs and one is self.present:
            self._compared = False
            self.notes.append("two runs of the same configuration disagreed (no seed?), so no values were compared")
            for other in self.configurations:
                other.differs = None
        else:
            one.differs = one.differs or differs
        if len(one.trials) == 1:
            self._tell(one)
        return trial


def _difference(own: Trial, other: Trial) -> str | None:
    """How the first values of two runs differ, if rounding does not explain it."""
    a, b = own.value, other.value
    if a is None or b is None or math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-6) or (a != a and b != b):
        return None
    return f"{a:.5g} instead of {b:.5g} at step 1"
