"""Event files as the `tensorboard` package reads them, and checksums of a standard."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from phlox.train.observers.loggers.event_file import EventFile, crc32c, hparams, summary, text
from phlox.train.values import Histogram, Image


@pytest.mark.parametrize(
    ("data", "crc"),
    # RFC 3720, appendix B.4
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_checksums_of_the_standard(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def read(folder: Path, **options: Any) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), **options)
    found.Reload()
    return found


def series(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in found.Scalars(tag)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_scalars(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "run")
    values = [(1, 0.5), (300, -2.25), (1 << 40, 1e30), (1 << 40, math.inf), ((1 << 40) + 1, math.nan)]
    for step, value in values:
        file.write(step, summary({"train/loss": value, "lr/größe": 0.25}))
    file.write((1 << 40) + 2, summary({"train/loss": 1e300}))  # beyond float32
    found = read(tmp_path / "run")
    assert sorted(found.Tags()["scalars"]) == ["lr/größe", "train/loss"]
    got = series(found, "train/loss")
    assert [step for step, _ in got] == [1, 300, 1 << 40, 1 << 40, (1 << 40) + 1, (1 << 40) + 2]
    assert [value for _, value in got[:2]] == [0.5, -2.25] and got[2][1] == pytest.approx(1e30, rel=1e-7)
    assert got[3][1] == math.inf and math.isnan(got[4][1]) and got[5][1] == math.inf
    assert series(found, "lr/größe")[0] == (1, 0.25)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_histograms_and_images(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(2.0, 3.0, 500)
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), np.uint8)
    none = Histogram([math.nan])
    file = EventFile(tmp_path)
    file.write(7, summary({"weights": Histogram(values, 10), "none": none, "loss": 0.5, "samples": Image(pixels)}))
    found = read(tmp_path)
    [event] = found.Histograms("weights")
    got, (counts, edges) = event.histogram_value, np.histogram(values, 10)
    assert event.step == 7 and list(got.bucket) == [0, *counts.tolist()]
    np.testing.assert_allclose(got.bucket_limit, edges)
    moments = [got.min, got.max, got.num, got.sum, got.sum_squares]
    np.testing.assert_allclose(moments, [values.min(), values.max(), 500, values.sum(), (values**2).sum()])
    assert found.Histograms("none")[0].histogram_value.num == 0 and series(found, "loss") == [(7, 0.5)]
    [image] = found.Images("samples")
    assert (image.step, image.height, image.width) == (7, 20, 30)
    with PillowImage.open(io.BytesIO(image.encoded_image_string)) as shown:
        assert np.array_equal(np.asarray(shown), pixels)
    # The page of histograms takes each as rows of left edge, right edge and count.
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader").EventFileLoader
    tensor_util = pytest.importorskip("tensorboard.util.tensor_util")
    written = {one.tag: one for event in loader(str(file.path)).Load() for one in event.summary.value}
    rows = tensor_util.make_ndarray(written["weights"].tensor)
    expected = np.stack([edges[:-1], edges[1:], counts], axis=1)
    np.testing.assert_allclose(rows[rows[:, 2] > 0.0], expected[counts > 0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_file_hides_what_came_after(tmp_path: Path) -> None:
    first = EventFile(tmp_path)
    for step in range(1, 7):
        first.write(step, summary({"loss": float(step)}))
    second = EventFile(tmp_path, resume_step=4)
    for step in range(4, 9):
        second.write(step, summary({"loss": 10.0 * step}))
    assert series(read(tmp_path), "loss") == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0), (6, 60.0), (7, 70.0), (8, 80.0)
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_texts_and_hyper_parameters(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.write(0, text("config", "| a | b |\nä"))
    file.write(0, hparams({"lr": 0.5, "name": "first", "bias": True, "layers": 3}, 12.5))
    found = read(tmp_path)
    [event] = found.Tensors("config")
    assert event.tensor_proto.string_val[0].decode() == "| a | b |\nä"
    assert found.SummaryMetadata("config").plugin_data.plugin_name == "text"
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin.HParamsPluginData.FromString(content).session_start_info
    values = {name: getattr(one, one.WhichOneof("kind")) for name, one in start.hparams.items()}
    assert values == {"lr": 0.5, "name": "first", "bias": True, "layers": 3.0} and start.start_time_secs == 12.5


def test_two_files_of_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    files = {EventFile(tmp_path).path for _ in range(5)}
    assert len(files) == 5 and all("tfevents" in path.name for path in files)
