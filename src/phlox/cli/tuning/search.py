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
"""The accepted relative difference of first values: engines round differently."""


def candidates(engine: str, flags: Sequence[str] = ()) -> list[Settings]:
    """Single settings to try on an engine, by its name. The first ones apply to all engines.

    `flags`: further XLA flags, for an engine that takes them; each string holds one or several.

    >>> list(candidates("numpy")[0].given())
    ['allocator']
    """
    settings = [Settings(allocator=name) for name in (allocator.KEEP, allocator.SYSTEM) if name != allocator.DEFAULT]
    settings += [Settings(threads=1 << power) for power in range((cores() - 1).bit_length())]
    try:
        backend = load_backend(engine)
    except (DeviceError, EngineNotInstalledError):
        return settings
    return [*settings, *backend.tunings, *[Settings(xla_flags=text) for text in flags if backend.takes_xla_flags]]


@dataclass(eq=False)
class Configuration:
    """Settings to try, and the results of their runs, one in each round."""

    settings: Settings
    trials: list[Trial] = field(default_factory=list[Trial])
    differs: str | None = None
    """How its first value differs from the first value of the present configuration, if it does."""

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
        return math.inf if self.problem else statistics.median(time for trial in self.trials for time in trial.windows)

    def ratios(self, present: Configuration) -> list[float]:
        """The time of each round divided by the time of the present configuration."""
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
        on_device = self._fastest_device()
        singles: list[Configuration] = []
        for single in self.worth_trying(on_device.trials[0].device.partition(":")[0] or "numpy"):
            candidate = Configuration(single.over(on_device.settings))
            if all(candidate.settings != other.settings for other in self.configurations):
                singles.append(candidate)
                self.configurations.append(candidate)
                self._try(candidate)
        self._join(on_device, singles)
        self._repeat(on_device)

    def other_devices(self) -> list[str]:
        """The default devices to try besides the present one."""
        now = self._settings.device or "numpy"
        return [name for name in self._devices or backend_names() if name != now]

    def worth_trying(self, engine: str) -> list[Settings]:
        """The single settings to try on an engine, without those that are already set."""
        singles = candidates(engine, self._flags)
        fixed = [name for name in THREADS if environment_before().get(name)]
        if fixed:
            self.notes.append(f"{fixed[0]} is set and overrides PHLOX_THREADS, so no thread counts were tried")
            singles = [single for single in singles if single.threads is None]
        return [single for single in singles if single.over(self._settings) != self._settings]

    def best(self) -> Configuration:
        """The fastest configuration with the same value, or the present one if none was faster in every round.

        Among configurations that are equally fast, up to noise, it is the one with the fewest settings.
        """
        faster: list[tuple[float, Configuration]] = []
        for candidate in self.configurations:
            ratios = candidate.ratios(self.present)
            finished = len(ratios) >= min(self.rounds, len(self.present.trials))
            if ratios and finished and not candidate.differs and max(ratios) < 1.0 and statistics.median(ratios) < GAIN:
                faster.append((statistics.median(ratios), candidate))
        least = min((ratio for ratio, _ in faster), default=1.0)
        alike = [(len(c.settings.given()), ratio, c) for ratio, c in faster if GAIN * ratio <= least]
        return min(alike, key=lambda each: each[:2], default=(0, 1.0, self.present))[2]

    def _fastest_device(self) -> Configuration:
        """The configuration with the fastest default device."""
        first, comparable = self.present.trials[0], [self.present]
        for name in self.other_devices():
            candidate = Configuration(Settings(device=name))
            trial = self._try(candidate)
            if trial.problem and "EngineNotInstalledError" in trial.problem:
                self.notes.append(f"{name} was not tried, because its engine is not installed")
                continue
            if trial.step and trial.device == first.device:
                self.notes.append(f"the script names its device ({first.device}), so the default makes no difference")
                break
            self.configurations.append(candidate)
            if not candidate.differs:
                comparable.append(candidate)
        return min(comparable, key=Configuration.seconds)

    def _join(self, on_device: Configuration, singles: list[Configuration]) -> None:
        """Measure together the best values of all settings that were faster than the device alone."""
        best: dict[str, Settings] = {}
        for single in sorted(singles, key=Configuration.seconds):
            if single.seconds() < GAIN * on_device.seconds() and not single.differs:
                key = next(key for key in single.settings.given() if key not in on_device.settings.given())
                best.setdefault(key, single.settings)
        if len(best) > 1:
            joined = on_device.settings
            for settings in best.values():
                joined = settings.over(joined)
            self.configurations.append(Configuration(joined))
            self._try(self.configurations[-1])

    def _repeat(self, on_device: Configuration) -> None:
        """Measure the best, their device alone, and the present configuration again, alternating."""
        others = [c for c in self.configurations[1:] if not c.problem]
        others.sort(key=lambda c: (c.differs is not None, c.seconds()))
        finalists = list(dict.fromkeys([self.present, on_device, *others[:_FINALISTS]]))
        for finalist in finalists * (self.rounds - 1) if len(finalists) > 1 else ():
            self._try(finalist)

    def _try(self, configuration: Configuration) -> Trial:
        trial = run(self.program, configuration.settings, self.step)
        configuration.trials.append(trial)
        differs = None if trial.problem or not self._compared else _difference(trial, self.present.trials[0])
        if differs and configuration is self.present:
            self._compared = False
            self.notes.append("two runs of the same configuration disagreed (no seed?), so no values were compared")
            for other in self.configurations:
                other.differs = None
        else:
            configuration.differs = configuration.differs or differs
        if len(configuration.trials) == 1:
            self._tell(configuration)
        return trial


def _difference(own: Trial, other: Trial) -> str | None:
    """How the first values of two runs differ, if rounding does not explain it."""
    a, b = own.value, other.value
    if a is None or b is None or math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-6) or (a != a and b != b):
        return None
    return f"{a:.5g} instead of {b:.5g} at step 1"
