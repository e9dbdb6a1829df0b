"""The `preprocessor_config.json` of a vision model, as an `ImageProcessor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, cast

from phlox.data import ImageProcessor
from phlox.errors import ConfigError
from phlox.interop.huggingface.settings import Settings, read_settings

__all__ = ["image_processor"]

_FILTERS: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}
_HARMLESS = frozenset({
    "do_convert_rgb", "processor_class", "data_format", "input_data_format", "return_tensors", "device",
    "disable_grouping", "default_to_square", "model_input_names",
})  # fmt: skip


def image_processor(folder: str | os.PathLike[str]) -> ImageProcessor:
    """The processor that `preprocessor_config.json` in a folder describes: of ViT, CLIP or SigLIP.

    Its results for uint8 images with three channels equal those of `transformers` with Pillow up to rounding: in a
    resized image, a pixel may differ by one step of 255. Since version 13, Pillow resizes the height of some images
    first; at single pixels of strong noise, which are clipped on the way, the difference is then larger.

    Raises `ConfigError` for a processor of another kind, or with settings that are not supported.
    """
    settings = read_settings(Path(folder), "preprocessor_config.json")
    kind = settings.text("image_processor_type", settings.text("feature_extractor_type", ""))
    if not kind.startswith(("ViT", "CLIP", "Siglip")) or kind.startswith("Siglip2"):
        raise ConfigError(
            f"{settings.location}: image_processor_type={kind[:100]!r} is not supported; supported are those of ViT, "
            "CLIP and Siglip"
        )
    is_clip = kind.startswith("CLIP")
    settings.only("do_pad", False, "images would get a margin")
    number = settings.whole("resample", 2 if kind.startswith("ViT") else 3)
    if number not in _FILTERS:
        raise ConfigError(f"{settings.location}: resample={number} is not supported; supported are 2 and 3")
    size, crop = _size(settings, "size", 224, is_clip), _size(settings, "crop_size", 224, False)
    has_size, has_crop = settings.flag("do_resize", True), settings.flag("do_center_crop", is_clip)
    factor, mean, std = (
        settings.number("rescale_factor", 1 / 255),
        _numbers(settings, "mean"),
        _numbers(settings, "std"),
    )
    is_normalized = settings.flag("do_normalize", True)
    processor = ImageProcessor(
        size=size if has_size else None,
        crop=crop if has_crop else None,
        mean=mean if is_normalized else 0.0,
        std=std if is_normalized else 1.0,
        scale=factor if settings.flag("do_rescale", True) else 1.0,
        filter=_FILTERS[number],
    )
    settings.check_all_read(_HARMLESS)
    return processor


def _size(settings: Settings, key: str, default: int, of_short_side: bool) -> Any:
    """Height and width, or the length of the shorter side."""
    value: Any = settings.get(key, default)
    if not isinstance(value, dict):
        length = settings.whole(key, default)
        return length if of_short_side else (length, length)
    table = settings.table(key)
    assert table is not None
    short = table.whole("shortest_edge", None)
    return (table.whole("height"), table.whole("width")) if short is None else short


def _numbers(settings: Settings, name: str) -> Any:
    """The mean or the standard deviation of each channel, by default 1/2."""
    value: Any = settings.get(f"image_{name}", 0.5)
    numbers = cast("list[Any]", value if isinstance(value, list) else [value])
    if not numbers or not all(type(number) in (int, float) for number in numbers):
        raise ConfigError(f"{settings.location}: image_{name} must be numbers, got {numbers}"[:300])
    return tuple(map(float, numbers)) if isinstance(value, list) else float(numbers[0])
