"""The mistakes of a classifier on its validation data, those that it is surest of first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from phlox.data.structure import host_array
from phlox.train.observers.callback import AnyLearner
from phlox.train.observers.views.report_page import Sample

_ROWS = 512
"""So many rows are looked at."""
_CHANNELS = (1, 3, 4)


def mistakes(learner: AnyLearner, show: Callable[[Any], Any] | None = None) -> list[Sample]:
    """The mistakes of a classifier on the first rows of its validation data, the surest first.

    It knows classifiers whose batches are `(inputs, class numbers)` and whose outputs are scores `[rows, classes]`; for
    others the list is empty.

    Args:
        learner: the learner, in a `fit` with validation.
        show: makes what is shown of a row of the inputs, an image or a text; by default inputs that are images.
    """
    data, stepper = learner.run.validation_data, learner.stepper
    if data is None or stepper.asked.argument != "loss" or not stepper.state.is_single or stepper.team is not None:
        return []
    found: list[tuple[float, Sample]] = []
    rows = 0
    for batch in learner.feed(data, "validation").epoch(0):
        if not isinstance(batch, tuple) or len(cast("tuple[Any, ...]", batch)) != 2 or rows >= _ROWS:
            break
        inputs, labels = host_array(cast("Any", batch)[0]), host_array(cast("Any", batch)[1])
        if inputs is None or labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
            break
        scores = host_array(learner.predict(iter([cast("Any", batch)])))
        if scores is None or scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind == "i":
            break
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True), dtype=np.float64)
        shares, got = powers / powers.sum(axis=-1, keepdims=True), scores.argmax(axis=-1)
        for index in np.flatnonzero(got != labels).tolist():
            content = inputs[index] if show is None else show(inputs[index])
            if show is None and not _is_image(content):
                return []
            sure = float(shares[index, got[index]])
            found.append((sure, Sample(content, int(labels[index]), int(got[index]), sure)))
        rows += len(labels)
    return [sample for _, sample in sorted(found, key=lambda pair: -pair[0])]


def _is_image(content: Any) -> bool:
    """Are these the pixels of an image, [H, W], [C, H, W] or [H, W, C]?"""
    shape = content.shape
    sides = shape if len(shape) == 2 else shape[1:] if shape[0] in _CHANNELS else shape[:-1]
    has_channels = len(shape) == 2 or (len(shape) == 3 and (shape[0] in _CHANNELS or shape[-1] in _CHANNELS))
    return has_channels and min(sides) >= 4 and content.dtype.kind in "fu"
