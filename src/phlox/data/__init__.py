"""Data: sources of rows, loaders of batches, augmentation, on NumPy alone; and the digits that come with Phlox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.data.arrays import Arrays
from phlox.data.augment import RandomAffine
from phlox.data.digits import Digits, Split, load_digits, split
from phlox.data.draws import Draws
from phlox.data.files import Images, read_images
from phlox.data.loader import Loader, SkippedRow, Transform
from phlox.data.order import ByLength, ClassBalanced, InOrder, Order, Shuffled, Weighted
from phlox.data.rows import Source
from phlox.data.sources import Concat, Mapped, Subset, as_source, split_rows
from phlox.data.token_windows import TokenWindows
from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.data.collate import Pack, Pad, next_tokens
    from phlox.data.image_folder import ImageFolder
    from phlox.data.image_processor import ImageProcessor
    from phlox.data.images import (
        CenterCrop,
        ColorJitter,
        ImageTransform,
        Normalize,
        RandomCrop,
        RandomFlip,
        RandomResizedCrop,
        Resize,
    )
    from phlox.data.mixing import CutMix, Mixup

__all__ = [
    "Arrays", "ByLength", "CenterCrop", "ClassBalanced", "ColorJitter", "Concat", "CutMix", "Digits", "Draws",
    "ImageFolder", "ImageProcessor", "ImageTransform", "Images", "InOrder", "Loader", "Mapped", "Mixup", "Normalize",
    "Order", "Pack", "Pad", "RandomAffine", "RandomCrop", "RandomFlip", "RandomResizedCrop", "Resize", "Shuffled",
    "SkippedRow", "Source", "Split", "Subset", "TokenWindows", "Transform", "Weighted", "as_source", "load_digits",
    "next_tokens", "read_images", "split", "split_rows",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "collate": "Pack Pad next_tokens",
        "image_folder": "ImageFolder",
        "image_processor": "ImageProcessor",
        "images": "CenterCrop ColorJitter ImageTransform Normalize RandomCrop RandomFlip RandomResizedCrop Resize",
        "mixing": "CutMix Mixup",
    },
)
