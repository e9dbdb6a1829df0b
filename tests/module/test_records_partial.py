"""Loading parts of records, under other names, into modules that are not quite the same; on every backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import RecordError
from phlox.module.deferred import no_initializers
from phlox.record import HALF, BinaryRecorder, LoadReport, Record, load

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]
on_all_backends = pytest.mark.parametrize("backend", BACKENDS, ids=repr)


def network(backend: Backend | None = None, outputs: int = 2, **more: Any) -> nn.Sequential:
    device = (backend or NumPy()).device()
    return nn.Sequential(body=nn.Linear(3, 4, device=device), **more, head=nn.Linear(4, outputs, device=device))


def values(module: px.Module) -> dict[str, np.ndarray]:
    return {path: param.val().numpy().copy() for path, param in module.named_params()}


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.val().numpy(), other.val().numpy())


@on_all_backends
def test_a_new_head_on_an_old_body(backend: Backend) -> None:
    old, new = network(backend).init(1), network(backend, outputs=5)
    with no_initializers():
        report = new.load(old.into_record(), exclude="layers.head")
    assert report.done and report.loaded == ["layers.body.weight", "layers.body.bias"]
    assert report.kept == {"layers.head.weight": "not meant", "layers.head.bias": "not meant"}
    assert new["head"].weight.is_deferred and not new["body"].weight.is_deferred
    same(new["body"].weight, old["body"].weight)
    assert new["body"].weight.id == old["body"].weight.id and new["head"].weight.id != old["head"].weight.id
    assert new(px.ones((1, 3), device=backend.device())).shape == (1, 5)


@on_all_backends
def test_a_part_under_other_names(backend: Backend) -> None:
    old = network(backend).init(1)
    record = old.into_record()
    body = nn.Linear(3, 4, device=backend.device())
    assert body.load_record(record, include=["weight", "bias"], remap={r"^layers\.body\.": ""}) is body
    same(body.weight, old["body"].weight)
    other = nn.Linear(3, 4, device=backend.device()).load_record(record.select("layers.body"))
    same(other.weight, body.weight)
    dropped = nn.Linear(3, 4, device=backend.device()).load_record(
        record, remap=lambda path: path.removeprefix("layers.body.") if "body" in path else None
    )
    same(dropped.bias, body.bias)


def test_one_layer_into_all_the_others() -> None:
    model = nn.Sequential([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]).init(1)
    record = model.into_record()
    for number in (1, 2):
        other = {r"^layers\.[12]\.": "other.", r"^layers\.0\.": f"layers.{number}."}
        with pytest.raises(RecordError, match=r"'layers\.1\.weight' and 'layers\.2\.weight' are two entries"):
            model.load_record(record, include=f"layers.{number}", remap=other)

        def only_first(path: str, number: int = number) -> str | None:
            return path.replace(".0.", f".{number}.") if ".0." in path else None

        model.load_record(record, include=f"layers.{number}", remap=only_first)
        same(model[number].weight, model[0].weight)
    ids = [param.id for param in model.params()]
    assert len(set(ids)) == len(ids)  # or one optimizer state would belong to several


@pytest.mark.parametrize("options", [{}, {"strict": False}], ids=["strict", "lax"])
def test_the_report_tells_beforehand_what_loading_does(options: Any) -> None:
    old, new = network().init(1), network()
    before = new.load_report(old.into_record(), include="**.weight", **options)
    assert isinstance(before, LoadReport) and not before.done and new["head"].weight.is_deferred
    after = new.load(old.into_record(), include="**.weight", **options)
    assert after.done and (after.matches, after.kept) == (before.matches, before.kept)
    assert str(after).splitlines()[0] == "2 of 4 parameters loaded"


def test_not_strict_keeps_and_passes_over_and_says_so() -> None:
    old, new = network().init(1), network(norm=nn.LayerNorm(4)).init(2)
    record = Record({**{path: old.into_record()[path] for path in old.into_record()}, "extra": 3})
    kept = new["norm"].gamma.val()
    report = new.load(record, strict=False)
    assert report.kept == dict.fromkeys(["layers.norm.gamma", "layers.norm.beta"], "the record lacks it")
    assert report.ignored == {"extra": "the module has no such parameter"}
    assert new["norm"].gamma.val() is kept
    with pytest.raises(RecordError, match=r"layers\.norm\.gamma: missing[^$]*extra: in the record"):
        new.load(record)


# --- layers without parameters


@on_all_backends
def test_layers_without_parameters_between_named_ones_leave_old_files_as_good(backend: Backend, tmp_path: Path) -> None:
    old = network(backend).init(1)
    path = old.save(tmp_path / "old")
    new = network(backend, act=nn.Gelu(), drop=nn.Dropout(0.5), flat=lambda x: x)
    report = new.load(path)
    assert str(report) == "all 4 parameters loaded"
    same(new["head"].weight, old["head"].weight)


@pytest.mark.parametrize("width", [4, 3], ids=["differing", "alike"])
def test_layers_in_lists_get_a_hint_that_works(width: int) -> None:
    old = nn.Sequential([nn.Linear(3, width), nn.Relu(), nn.Linear(width, 3)]).init(1)
    new = nn.Sequential([nn.Linear(3, width), nn.Relu(), nn.Dropout(0.1), nn.Linear(width, 3)])
    with pytest.raises(RecordError, match=r"did you mean `layers\.2\.weight`\?") as caught:
        new.load_record(old.into_record())
    offered = re.search(r"remap=(\{.*\})\.$", str(caught.value), re.MULTILINE)
    assert offered
    scope: dict[str, Any] = {}
    exec(f"remap = {offered[1]}", scope)
    new.load_record(old.into_record(), remap=scope["remap"])
    same(new[3].weight, old[2].weight)


# --- tied parameters


class Tied(px.Module):
    def __init__(self, tied: bool = True, backend: Backend | None = None) -> None:
        device = (backend or NumPy()).device()
        self.embed = nn.Linear(2, 2, bias=False, device=device)
        self.head = self.embed if tied else nn.Linear(2, 2, bias=False, device=device)


@on_all_backends
def test_tied_in_both(backend: Backend, tmp_path: Path) -> None:
    old, new = Tied(backend=backend).init(1), Tied(backend=backend)
    path = old.save(tmp_path / "tied")
    assert load(path).paths() == ["embed.weight"]  # stored once
    report = new.load(path)
    assert report.tied == {"head.weight": "embed.weight"} and "tied: head.weight is embed.weight" in str(report)
    assert new.head.weight is new.embed.weight
    same(new.embed.weight, old.embed.weight)


@on_all_backends
def test_tied_in_the_record_only(backend: Backend) -> None:
    old, new = Tied(backend=backend).init(1), Tied(tied=False, backend=backend)
    report = new.load(old.into_record())
    assert report.matches == {"embed.weight": "embed.weight", "head.weight": "head.weight"}
    same(new.embed.weight, old.embed.weight)
    same(new.head.weight, old.embed.weight)
    assert new.embed.weight.id == old.embed.weight.id != new.head.weight.id  # two parameters, each with its own state


@on_all_backends
def test_tied_in_the_module_only(backend: Backend) -> None:
    old, new = Tied(tied=False, backend=backend).init(1), Tied(backend=backend).init(2)
    before = values(new)
    with pytest.raises(RecordError, match=r"embed\.weight: the record has another tensor at head\.weight.*with remap"):
        new.load_record(old.into_record())
    np.testing.assert_array_equal(values(new)["embed.weight"], before["embed.weight"])
    new.load_record(old.into_record(), remap=lambda path: None if path == "head.weight" else path)
    same(new.embed.weight, old.embed.weight)
    old.head.weight.set(old.embed.weight.val())
    same(Tied(backend=backend).load_record(old.into_record()).head.weight, old.embed.weight)
    only = Record({"head.weight": old.into_record()["head.weight"]})
    same(Tied(backend=backend).load_record(only).embed.weight, old.head.weight)


def test_tied_names_that_are_not_meant() -> None:
    old, new = Tied().init(1), Tied()
    assert new.load(old.into_record(), exclude="head").kept == {"embed.weight": "not meant"}
    assert new.embed.weight.is_deferred


# --- files


@pytest.mark.parametrize("name", ["m", "m.msgpack", "m.phlox", "m.json", "m.npz", "m.safetensors.gz", "m.json.gz"])
def test_saved_and_loaded_in_one_line_each(name: str, tmp_path: Path) -> None:
    old, new = network().init(1), network()
    path = old.save(tmp_path / name)
    assert path.is_file() and path.name.startswith(name)
    report = new.load(tmp_path / name)
    assert report.ok and report.done and len(report.loaded) == 4
    for path, value in values(old).items():
        np.testing.assert_array_equal(value, values(new)[path])


def test_precision_and_compression_are_given_on(tmp_path: Path) -> None:
    old, new = network().init(1), network()
    small = old.save(tmp_path / "half", precision=HALF, compression="gzip")
    assert small.name == "half.safetensors.gz"
    report = new.load(str(small))
    assert "cast from float16 to float32: layers.body.weight, " in str(report)
    np.testing.assert_allclose(new["body"].weight.val().numpy(), old["body"].weight.val().numpy(), rtol=1e-3)


def test_errors_of_files_name_the_file(tmp_path: Path) -> None:
    path = network(outputs=5).init(1).save(tmp_path / "wide")
    for source in (path, tmp_path / "wide"):
        with pytest.raises(RecordError, match=rf"^{re.escape(str(source))}.*: cannot load the record into Sequential"):
            network().load(source)
    with pytest.raises(RecordError, match=r"wied.safetensors: there is no such file; did you mean wide.safetensors"):
        network().load(tmp_path / "wied.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match=rf"^{re.escape(str(path))}: not a valid safetensors record"):
        network().load(path)


@pytest.mark.parametrize("given", [{"weight": np.zeros(2)}, None, 3, "model.safetensors"], ids=repr)
def test_what_is_no_record(given: Any) -> None:
    with pytest.raises(RecordError, match=r"expected a Record, got \w+; load a file with module\.load\(path\)"):
        network().load_record(given)


def test_a_file_without_names_of_another_structure(tmp_path: Path) -> None:
    path = BinaryRecorder(names=False).save(network().init(1).into_record(), tmp_path / "bare")
    assert network().load(path).ok
    other = nn.Sequential([nn.Linear(3, 4), nn.Linear(4, 2)])  # of the same shapes
    with pytest.raises(RecordError, match="written by a module of another structure"):
        other.load(path)
    assert other[0].weight.is_deferred
    report = other.load(path, strict=False)
    assert report.loaded == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
