"""Processed images equal those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.errors import ConfigError, DataError
from phlox.interop import huggingface

RNG = np.random.default_rng(0)
SIZES = ((50, 37), (20, 31), (64, 64), (9, 120))
SMOOTH = [np.add.outer(np.arange(h) * 3.0, np.arange(w) * 2.0) * (255.0 / (3 * h + 2 * w)) for h, w in SIZES]


def images_of(noise: int) -> list[Any]:
    """Images of three channels, one of which is noise of this size."""
    planes = [np.stack([RNG.integers(0, noise + 1, plane.shape), plane, 255.0 - plane]) for plane in SMOOTH]
    return [image.astype(np.uint8) for image in planes]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {"size": {"height": 24, "width": 32}}),
    "clip": ("CLIP", {"size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 28}}),
    "clip, a margin": ("CLIP", {"size": {"shortest_edge": 20}, "crop_size": {"height": 25, "width": 22}}),
    "siglip": ("Siglip", {"size": {"height": 28, "width": 28}}),
    "siglip, larger": ("Siglip", {"size": {"height": 140, "width": 131}, "do_normalize": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_theirs(case: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kind, options = CASES[case]
    reference, images = getattr(transformers, f"{kind}ImageProcessorPil")(**options), images_of(3)
    reference.save_pretrained(tmp_path)
    expected = np.asarray(reference([x.transpose(1, 2, 0) for x in images], return_tensors="np")["pixel_values"])
    processor = huggingface.image_processor(tmp_path)
    result = processor(images)
    assert result.shape == expected.shape and result.dtype == np.float32
    steps = np.abs(result - expected) * np.reshape(processor.std, (-1, 1, 1)) / processor.scale
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.15


def test_former_settings_and_refusals(tmp_path: Path) -> None:
    def of(**settings: Any) -> Any:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
        return huggingface.image_processor(tmp_path)

    old = of(feature_extractor_type="CLIPFeatureExtractor", size=24, crop_size=20, resample=3, do_center_crop=True)
    assert (old.size, old.crop, old.filter) == (24, (20, 20), "bicubic")
    old = of(feature_extractor_type="ViTFeatureExtractor", size=24)
    assert (old.size, old.crop, old.filter) == ((24, 24), None, "bilinear")
    vit = {"image_processor_type": "ViTImageProcessor"}
    for settings, words in (
        ({"image_processor_type": "BeitImageProcessor"}, ("BeitImageProcessor", "CLIP")),
        ({**vit, "resample": 1}, ("resample=1",)),
        ({**vit, "do_pad": True}, ("do_pad",)),
        ({**vit, "do_reduce_labels": True}, ("do_reduce_labels", "not known")),
        ({**vit, "size": {"longest_edge": 3}}, ("height is missing",)),
        ({**vit, "image_mean": "grey"}, ("image_mean", "grey")),
    ):
        with pytest.raises(ConfigError) as caught:
            of(**settings)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(DataError, match="set `size` or `crop`"):
        of(**vit, do_resize=False)(images_of(0))
    with pytest.raises(DataError, match=r"\[channels, height, width\], got shape \(3, 4\)"):
        of(**vit)([np.zeros((3, 4), np.uint8)])
