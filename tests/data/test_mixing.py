"""Augmentation that mixes images: labels follow the images, and the parts have the distribution of SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox.data import CutMix, Draws, Loader, Mixup

LABELS = np.arange(12) % 4


@pytest.mark.parametrize("mixing", [Mixup(4, alpha=1.0), CutMix(4)], ids=["mixup", "cutmix"])
def test_labels_are_mixed_as_images_are(mixing: Any) -> None:
    """Images whose pixels say their class, so that an image tells how it was mixed."""
    classes = np.eye(4, dtype=np.float32)[LABELS][:, :, None, None] * np.ones((1, 1, 8, 8), np.float32)
    images, labels = next(Loader((classes, LABELS), 12, transform=mixing).epoch())
    np.testing.assert_allclose(images.mean(axis=(2, 3)), labels, atol=1e-6)
    np.testing.assert_allclose(labels.sum(axis=1), 1.0, atol=1e-6)
    assert ((labels > 0.01).sum(axis=1) == 2).any()


def test_the_part_of_mixup_is_beta() -> None:
    from scipy import stats

    from phlox.data.mixing import _beta

    for alpha in (0.2, 1.0):
        found = _beta(Draws(0, 0, np.arange(4000)), alpha)
        assert stats.kstest(found, stats.beta(alpha, alpha).cdf).pvalue > 1e-4, alpha
