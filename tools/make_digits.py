"""Make `src/phlox/data/digits.npz` from the copy of the UCI digits that scikit-learn ships.

    pip install scikit-learn
    python tools/make_digits.py

The file is already in the repository; this tool shows how it came about. It prints the checksum to be entered in
`src/phlox/data/digits.py` and `src/phlox/data/DIGITS.md`. The arrays are the same everywhere; the bytes of the file,
and with them the checksum, may differ with the version of zlib.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import zipfile
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "src" / "phlox" / "data" / "digits.npz"


def to_npz(**arrays: np.ndarray) -> bytes:
    """The arrays as an .npz archive at the strongest compression, without a time stamp."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            file.writestr(entry, member.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9)
    return archive.getvalue()


def main() -> None:
    source = importlib.import_module("sklearn.datasets").load_digits()  # by name: no dependency of Phlox
    images, labels = source.images.astype(np.uint8), source.target.astype(np.uint8)
    if not (images == source.images).all() or images.shape != (1797, 8, 8) or images.max() != 16:
        raise SystemExit("make_digits: scikit-learn's digits are not the 1,797 images of 8x8 values 0..16")
    data = to_npz(images=images, labels=labels)
    TARGET.write_bytes(data)
    print(f"{TARGET}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
