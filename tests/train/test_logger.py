"""Reports of epochs under flat names, and the file of metrics, whole after each."""

from __future__ import annotations

import json

from phlox.train import EpochReport, Logger, MetricsFile, Plan


def report(epoch: int, lr: object = 0.1) -> EpochReport:
    return EpochReport(epoch, 10 * epoch, lr, {"loss": 2.5}, {"loss": 3.0, "accuracy": 0.5}, 1.23456, 640.04)  # type: ignore[arg-type]


def test_all_scalars_under_one_name_each() -> None:
    assert report(2).flat() == {
        "epoch": 2, "step": 20, "lr": 0.1, "train_loss": 2.5, "held_out_loss": 3.0, "held_out_accuracy": 0.5,
        "seconds": 1.2346, "rows_per_second": 640.0,
    }  # fmt: skip
    groups = report(2, {"head": 0.1, "body": 0.01}).flat()
    assert groups["lr_head"] == 0.1 and groups["lr_body"] == 0.01 and "lr" not in groups


def test_the_file_holds_whole_lines_after_each_epoch() -> None:
    written: list[bytes] = []
    log = MetricsFile(written.append)
    log.start(Plan(3, 10, 64))
    for epoch in (1, 2, 3):
        log.epoch(report(epoch))
        lines = written[-1].decode().splitlines()
        assert [json.loads(line) for line in lines] == [report(n).flat() for n in range(1, epoch + 1)]
        assert written[-1].endswith(b"\n")
    log.stop()
    assert len(written) == 3


def test_a_logger_need_say_nothing() -> None:
    log = Logger()
    log.start(Plan(1, 1, 1))
    log.epoch(report(1))
    log.stop()
