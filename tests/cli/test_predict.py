"""`phlox predict`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from scipy.special import softmax
from torch import from_numpy
from torch.nn import functional

from phlox.cli import main
from phlox.data import load_digits

IMAGES, LABELS = load_digits().images[:12], load_digits().labels[:12]


def expected(folder: Path, images: np.ndarray) -> np.ndarray:
    """What the network in the record makes of images, by torch's functions."""
    w = {name: from_numpy(array.astype(np.float32)) for name, array in load_file(folder / "model.safetensors").items()}
    x = from_numpy(images.astype(np.float32) / 16)[:, None]
    for name in ("conv_1", "conv_2"):
        x = functional.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=1)
        x = functional.gelu(functional.max_pool2d(x, 2), approximate="tanh")
    return softmax((x.flatten(1) @ w["head.weight"] + w["head.bias"]).numpy(), axis=-1)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:] if not line.startswith("accuracy")]


@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
def test_npz_with_labels(device: str, small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "some.npz", images=IMAGES, labels=LABELS)
    assert main(["predict", str(small_run), str(tmp_path / "some.npz"), "--device", device]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    probabilities = expected(small_run, IMAGES)
    right = (probabilities.argmax(axis=-1) == LABELS).sum()
    for number, row in enumerate(rows(out)):
        assert row[:2] == [str(number), str(probabilities[number].argmax())]
        assert float(row[2].rstrip("%")) == pytest.approx(100 * probabilities[number].max(), abs=0.06)
        assert int(row[3]) == LABELS[number] and (row[4:] == ["wrong"]) == (row[1] != row[3])
    assert out.splitlines()[-1].endswith(f"({right} of 12 images)")


def test_csv_without_labels(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt(tmp_path / "some.csv", IMAGES.reshape(12, 64), fmt="%d", delimiter=",")
    assert main(["predict", str(small_run), str(tmp_path / "some.csv")]) == 0
    out, _ = capsys.readouterr()
    assert [int(row[1]) for row in rows(out)] == expected(small_run, IMAGES).argmax(axis=-1).tolist()
    assert "accuracy" not in out and "label" not in out


def test_png(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grey = (IMAGES[3] * 15).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "one.png")
    assert main(["predict", str(small_run), str(tmp_path / "one.png")]) == 0
    out, _ = capsys.readouterr()
    ((_, digit, probability),) = rows(out)
    reference = expected(small_run, grey[None] / 255 * 16)[0]
    assert int(digit) == reference.argmax()
    assert float(probability.rstrip("%")) == pytest.approx(100 * reference.max(), abs=0.06)
