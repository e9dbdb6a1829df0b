"""A report of an executable: what a call costs, on every engine, and that nothing changes by asking."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.backend.analysis import Analysis, Traffic
from phlox.errors import CompileError
from phlox.host.text import amount
from phlox.transform.compile.report import ExecutableReport
from tests.markup import read
from tests.simulated_devices import check_on_devices
from tests.transform.steps import TAPE, data, network, step, values

BACKENDS = [Jax(), Torch(), NumPy()]


def layer(backend: Backend) -> Any:
    return nn.Linear(64, 32, bias=False, device=Autodiff(backend).device()).init(0)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_the_flops_of_a_product(backend: Backend) -> None:
    report = px.compile(lambda model, x: model(x)).lower(layer(backend), np.ones((16, 64), np.float32))
    assert report.flops == 2 * 16 * 64 * 32
    assert report.backend == repr(backend) and report.devices == 1


def test_memory_on_jax() -> None:
    report = px.compile(lambda model, x: model(x)).lower(layer(Jax()), np.ones((16, 64), np.float32))
    arguments, outputs = (64 * 32 + 16 * 64) * 4, 16 * 32 * 4
    assert (report.arguments, report.outputs, report.aliased) == (arguments, outputs, 0)
    assert report.temporaries is not None and report.memory == arguments + outputs + report.temporaries
    assert report.collectives == {} and report.sent == 0 and report.source == "XLA"


def test_doubles_on_jax() -> None:
    report = px.compile(lambda x: x @ x.T).lower(px.ones((64, 32), device=Jax(float="f64")))
    assert (report.flops, report.arguments, report.outputs) == (262144, 16384, 32768)


def test_donated_memory_is_taken_for_results() -> None:
    model = layer(Jax())
    reports = [
        px.compile(lambda model: model.map(lambda path, p: p.holding(p.val() * 2.0)), donate=donate).lower(model)
        for donate in ((), ("model",))
    ]
    assert [report.aliased for report in reports] == [0, 64 * 32 * 4]
    assert model(px.ones((1, 64), device=model.weight.device)).shape == (1, 32)  # it is as it was


def test_what_an_engine_does_not_say_is_unknown() -> None:
    report = px.compile(lambda model, x: model(x)).lower(layer(Torch()), np.ones((16, 64), np.float32))
    assert report.arguments == (64 * 32 + 16 * 64) * 4
    assert report.source == "shapes"
    assert report.memory is report.temporaries is report.collectives is report.sent is report.bytes_accessed is None
    assert str(report).count(" unknown") == 6


def test_a_function_that_shapes_cannot_follow() -> None:
    report = px.compile(lambda x: x.sum().item()).lower(px.ones((4,), device=NumPy()))
    assert report.flops is None and report.arguments == 16


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_nothing_changes(backend: Backend) -> None:
    device = Autodiff(backend).device()
    model, optimizer, x = network(device=device), optim.AdamWConfig().init(), data(device=device)
    before, calls = values(model), px.compile(step, donate=("model", "optimizer"))
    stream = px.random.current()
    position = stream.position
    calls.lower(model, optimizer, 0.1, x)
    report = calls.lower(model, optimizer, 0.1, x)
    assert report.flops is not None and report.flops > 0
    assert stream.position == position and not optimizer.states
    for a, b in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_call_that_follows_finds_its_program() -> None:
    model, optimizer, calls = network(), optim.AdamWConfig().init(), px.compile(step, donate=("model", "optimizer"))
    fresh, plain = network(), optim.AdamWConfig().init()
    calls.lower(model, optimizer, 0.1, data())
    for _ in range(2):
        with px.random.stream(3):
            model, loss = calls(model, optimizer, 0.1, data())
        with px.random.stream(3):
            fresh, expected = step(fresh, plain, 0.1, data())
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert calls.traces == calls.compilations == 1
    calls.lower(model, optimizer, 0.1, data())
    assert calls.traces == 1


def test_an_optimizer_that_steps_other_parameters_than_it_seems() -> None:
    model, optimizer = nn.Sequential([nn.Linear(4, 4, device=TAPE), nn.Linear(4, 4, device=TAPE)]).init(0), None
    optimizer = optim.AdamWConfig().init()

    def first(model: Any, optimizer: Any, x: Any) -> Any:
        grads = optim.GradientsParams.from_grads(model.layers[0](x).sum().backward(), model)
        return optimizer.step(0.1, model, grads)

    calls = px.compile(first)
    report = calls.lower(model, optimizer, data())
    assert calls.traces == 2 and not optimizer.states
    assert report.arguments is not None and report.arguments >= 40 * 4 + 2 * 20 * 4
    calls(model, optimizer, data())
    assert calls.traces == 2


@pytest.mark.parametrize("backend", [Jax(), NumPy()], ids=repr)
def test_several_steps_cost_several_times_as_much(backend: Backend) -> None:
    device = backend.device()
    w, xs = px.ones((32, 32), device=device), px.ones((6, 8, 32), device=device)
    one = px.compile(lambda w, x: (x @ w).sum(axis=0)).lower(w, xs[0]).flops
    six = px.compile(lambda w, x: (x @ w).sum(axis=0), steps=6, over="x").lower(w, xs).flops
    assert one is not None and six is not None
    assert 6 * one <= six <= 6.05 * one


def test_plain_values_and_text() -> None:
    report = px.compile(step).lower(network(), optim.AdamWConfig().init(), 0.1, data())
    stored = json.loads(json.dumps(report.to_dict()))
    assert stored["flops"] == report.flops and stored["memory"] == report.memory and stored["collectives"] == {}
    lines = str(report).splitlines()
    assert lines[0] == "step: one call on Jax(), one device, by XLA" and lines[-1].split() == ["collectives", "none"]
    assert repr(report) == str(report)


def test_bad_calls() -> None:
    model, optimizer, calls = network(), optim.AdamWConfig().init(), px.compile(step)
    with pytest.raises(CompileError, match="the value of a tensor or number is needed while"):
        px.compile(lambda x: x if x.sum().item() > 0 else -x).lower(data())
    with pytest.raises(CompileError, match=r"lower\(\) cannot be called while another"):
        px.compile(lambda x: calls.lower(model, optimizer, 0.1, x))(data())


def test_a_method_of_a_module() -> None:
    model = layer(Jax())
    assert px.compile(model).lower(np.ones((2, 64), np.float32)).flops == 2 * 2 * 64 * 32


def test_a_function_without_arrays() -> None:
    report = px.compile(lambda n: n + 1).lower(3)
    assert report.backend == "no backend" and report.arguments == 0


SCRIPT = """
import numpy as np, jax, phlox as px
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from phlox import nn
from phlox.backend import Jax

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
model = nn.Sequential([nn.Linear(*sizes, bias=False, device=Jax()) for sizes in ((64, 256), (256, 64))]).init(0)
specs = {"layers.0.weight": P(None, "model"), "layers.1.weight": P("model", None)}
def cut(path, p):
    leaf = jax.device_put(p.leaf, NamedSharding(mesh, specs[path]))
    return p.holding(px.Tensor.from_primitive(leaf, p.backend, p.kind))
model = model.map(cut)
x = jax.device_put(px.ones((32, 64), device=Jax()), NamedSharding(mesh, P("data")))
report = px.compile(lambda model, x: model(x)).lower(model, x)
assert report.devices == 8
assert report.flops >= 2 * 32 * 64 * 256 * 2 // 8
assert report.arguments == (2 * 64 * 256 // 4 + 32 * 64 // 2) * 4
traffic = report.collectives["all-reduce"]
assert list(report.collectives) == ["all-reduce"]
assert (traffic.count, traffic.payload, traffic.sent) == (1, 16 * 64 * 4, 2 * 16 * 64 * 4 * 3 // 4)
assert "each of 8 devices" in str(report) and "all-reduce" in str(report)
"""


@pytest.mark.full
def test_a_program_of_eight_devices() -> None:
    check_on_devices(8, SCRIPT)


# --- in a notebook


def product(x: Any) -> Any:
    return x @ x


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_in_a_notebook(backend: Backend) -> None:
    report = px.compile(product).lower(px.ones((16, 16), device=backend))
    found = read(report)
    assert found.texts[0] == "product" and f"by {report.source}" in found.text
    assert ["arguments", "1.02 kB"] in found.rows and report.flops is not None
    assert ["FLOPs", amount(report.flops)] in found.rows and report.flops > 8000


def test_traffic_and_what_is_unknown() -> None:
    found = read(ExecutableReport.of(Analysis("XLA", devices=8, loops_of_unknown_length=1), "<script>", "Jax()"))
    assert (
        "<script>" in found.texts and ["memory", "unknown"] in found.rows and ["collectives", "unknown"] in found.rows
    )
    assert "each of 8 devices" in found.text and "1 loop of unknown length" in found.text
    traffic = {"all-reduce": Traffic(2, 1024, 2048)}
    found = read(ExecutableReport.of(Analysis("XLA", collectives=traffic), "f", "Jax()"))
    assert ["all-reduce", "2", "1.02 kB", "2.05 kB"] in found.rows
