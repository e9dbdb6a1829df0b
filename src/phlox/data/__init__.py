"""Data: the handwritten digits that come with Phlox, images from files, mini-batches. All of it is plain NumPy."""

from __future__ import annotations

from phlox.data.augment import RandomAffine
from phlox.data.batches import Batches, Transform
from phlox.data.digits import Digits, Split, load_digits, split
from phlox.data.files import Images, read_images
from phlox.lazy import lazily

__all__ = ["Batches", "Digits", "Images", "RandomAffine", "Split", "Transform", "load_digits", "read_images", "split"]

__getattr__, __dir__ = lazily(__name__, {})
