"""Sentences about the differences between a resumed training and the saved one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from phlox.optim import ReduceOnPlateauLr
from phlox.record import Record
from phlox.record.gather import Recordable
from phlox.train.loop.batch_stream import LOADER
from phlox.train.settings import differences
from phlox.train.state import COUNTS, LOG

if TYPE_CHECKING:
    from phlox.train.loop.fit import Fit

_OF_EVERY_RUN = ("Checkpoints", "JsonlLogger", "Report")
"""The callbacks of every run in a folder; without a folder, no sentence says that they are missing."""


def other_settings(fit: Fit, record: Record) -> Iterator[str]:
    """The settings of optimizers, schedules and data that have changed, each with the value that is used."""
    progress = _mapping(record.values.get("progress"))
    former, now = _mapping(progress.get("settings")), fit.control.settings()
    by_hand = progress.get("lr_set")
    for name, (before, current) in differences(former, now).items() if former else ():
        above, _, last = name.rpartition(".")
        used = f"{current} is used from here on"
        if name == "seed":
            if former[name] is None or now[name] is None:
                continue
            used = f"the random numbers continue those of {before}"
        elif name.partition(".")[0] == "lr" and by_hand is not None:
            used = f"the rate that was set by hand, {by_hand}, stays in use"
        elif last == "initial_lr" and now.get(above) == ReduceOnPlateauLr.__name__:
            used = "the schedule continues from its former rate"
        yield _other(name, before, current, used)
    if progress.get("batch"):
        return  # within an epoch, another order of batches raises an error elsewhere
    saved, data = (_mapping(_mapping(each).get(LOADER)) for each in (record.values.get("data"), fit.data.state()))
    for name, (before, current) in differences(saved, data).items() if saved and data else ():
        if name != "version":
            yield _other(f"data.{name}", before, current, f"{current} is used from here on")


def lost_states(fit: Fit, record: Record, *, in_folder: bool) -> Iterator[str]:
    """The saved states of callbacks that the training no longer has, or that watch another value now."""
    with_tensors: dict[str, Any] = {}
    for path in record:
        if path.startswith("held."):
            name = path.split(".")[1]
            with_tensors[name] = _mapping(record.values.get(f"held.{name}.state"))
    grown = _mapping(_mapping(record.values.get(LOG)).get(COUNTS))
    lists = [name.partition(".")[0] for name in grown if "." in name]
    saved: dict[str, Any] = {**{name: {} for name in lists}, **_mapping(record.values.get("callbacks")), **with_tensors}
    callbacks = dict(fit.named_callbacks())
    new = [
        name for name, each in callbacks.items() if name not in saved and (isinstance(each, Recordable) or each.state())
    ]
    hint = f"; without a state here: {', '.join(new)}" if new else ""
    for name, state in saved.items():
        if name not in callbacks:
            if in_folder or name not in _OF_EVERY_RUN:
                yield f"resumed without {name}, and the checkpoint has a state of it: that is dropped{hint}"
            continue
        former, watched = state.get("monitor"), getattr(callbacks[name], "monitor", None)
        if former is not None and former != watched:
            yield f"resumed with {name} of {watched!r}, and the checkpoint has one of {former!r}: it begins anew"


def _other(name: str, before: str, current: str, used: str) -> str:
    return f"resumed with another {name}: it was {before}, and is {current} here; {used}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
