"""The formulas of a step against XLA's own analysis of compiled steps on eight devices, and against counts by hand.

Serves: src/phlox/distributed/planning/{plan,step_costs,accelerators}.py
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from phlox import optim
from phlox.backend import NumPy
from phlox.cli.plan import PRESETS
from phlox.distributed import Layout
from phlox.distributed.planning.accelerators import ACCELERATORS
from phlox.distributed.planning.plan import LAYOUTS, layout_by_name, plan
from phlox.distributed.planning.step_costs import Compiler, PaperMesh
from phlox.errors import ShardingError
from phlox.models import GptConfig, LlamaConfig
from phlox.nn import Linear
from tests.simulated_devices import check_on_devices

SCRIPT = """
import numpy as np, phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.distributed import Mesh
from phlox.distributed.planning.plan import layout_by_name, plan
from phlox.distributed.planning.step_costs import Compiler
from phlox.models import BertConfig, BertMaskedLmConfig, GptConfig, LlamaConfig
from phlox.tensor import functional

def plain(model, tokens, targets):
    return model.loss(tokens, targets)

def recomputed(model, tokens, targets):
    x = model.embed(tokens)
    for block in model.blocks:
        x = px.checkpoint(block)(x)
    return functional.cross_entropy(model.logits(model.norm(x)), targets)

def report_and_plan(config, axes, layout, loss=plain):
    def step(model, optimizer, lr, tokens, targets):
        value = loss(model, tokens, targets)
        grads = optim.GradientsParams.from_grads(value.backward(), model)
        return optimizer.step(lr, model, grads), value

    mesh = Mesh(device="jax", **axes)
    model = config.init(Autodiff(Jax()).device())
    model = model.shard(layout_by_name(layout, model, mesh), mesh).init(0).train()
    rows = np.zeros((16, 64), np.int32)
    compiled = px.compile(step, donate=("model", "optimizer"))
    report = compiled.lower(model, optim.AdamWConfig().init(), 1e-3, *mesh.batch(rows, rows))
    found = plan(config.init("numpy"), axes, layout, batch=16, context=64, optimizer=optim.AdamWConfig(),
                 checkpoint=loss is recomputed, compiler=Compiler(scatters=False, merges=False))
    return report, found

gpt = GptConfig(vocabulary=512, context=64, n_layers=2, d_model=128, n_heads=8)
llama = LlamaConfig(vocabulary=512, context=64, n_layers=2, d_model=128, n_heads=8, d_hidden=352)
tied = llama.replace(tied=True, n_kv_heads=4)
bert = BertMaskedLmConfig(BertConfig(vocabulary=512, context=64, n_layers=2, d_model=128, n_heads=8, dropout=0.0,
                                     pooler=False))
cases = [
    (gpt, {"data": 8}, "data", plain), (gpt, {"data": 8}, "fsdp", plain),
    (gpt, {"data": 1, "model": 8}, "tensor-parallel", plain), (gpt, {"data": 2, "model": 4}, "tensor-parallel", plain),
    (gpt, {"data": 2, "model": 4}, "tensor-parallel+fsdp", plain),
    (gpt, {"data": 2, "model": 4}, "tensor-parallel", recomputed),
    (llama, {"data": 2, "model": 4}, "tensor-parallel+fsdp", plain),
    (tied, {"data": 2, "model": 4}, "tensor-parallel", plain),
    (tied, {"data": 2, "model": 4}, "tensor-parallel+fsdp", plain), (bert, {"data": 8}, "fsdp", plain),
]
for config, axes, layout, loss in cases:
    report, found = report_and_plan(config, axes, layout, loss)
    what = f"{type(config).__name__} {axes} {layout} {loss.__name__}: {report} {found}"
    # Beside parameters, states and data: the learning rate in 64 bits, and the count of steps.
    assert report.arguments == found.arguments + 8 + 4, what
    assert abs(found.flops / report.flops - 1) < 0.1, (found.flops / report.flops, what)
    # The same kinds of collectives, and but for sums of a few numbers (and of one row of BERT's segments, of which the
    # others get no gradient) the same bytes.
    assert set(report.collectives) == set(found.collectives), what
    for kind, traffic in report.collectives.items():
        for name in ("payload", "sent"):
            ours, theirs = getattr(found.collectives[kind], name), getattr(traffic, name)
            assert abs(ours - theirs) <= 1e-3 * theirs, (kind, name, ours, theirs, what)
    kept = found.activations_checkpointed if found.checkpoint else found.activations
    assert 0.4 < (found.gradients + found.gathered + kept) / report.temporaries < 1.5, what
"""


@pytest.mark.full
def test_compiled_steps() -> None:
    check_on_devices(8, SCRIPT)


GPT = GptConfig(vocabulary=1000, context=64, n_layers=3, d_model=32, n_heads=4)


def planned(mesh: dict[str, int], layout: Any, **options: Any) -> Any:
    return plan(GPT.init("numpy"), mesh, layout, batch=16, **options)


def test_one_device() -> None:
    matrices = 3 * 12 * 32**2 + 1000 * 32
    count = matrices + 1000 * 32 + 64 * 32 + 3 * (13 * 32) + 2 * 32
    tokens = 16 * 64
    found = planned({"data": 1}, "data", optimizer=optim.AdamWConfig(), checkpoint=False)
    assert found.count == count
    assert (found.parameters, found.gradients, found.optimizer) == (4 * count, 4 * count, 8 * count)
    assert found.flops == 6 * tokens * matrices + 12 * tokens * 64 * 32 * 3 + 15 * count
    assert found.exchanges == () and found.sent == 0 and found.gathered == 0
    assert found.activations == 4 * tokens * (3 * (16 * 32 + 4 * 64) + 2 * 1000)
    assert found.arguments == 12 * count + 8 * tokens


@pytest.mark.parametrize(("size", "count"), [("8B", 8_030_261_248), ("70B", 70_553_706_496)])
def test_one_in_eight_of_llama_by_hand(size: str, count: int) -> None:
    """FSDP over eight devices: bf16, AdamW in f32, one row of 8,192 tokens a device; no array is made."""
    layers, d, hidden = {"8B": (32, 4096, 14336), "70B": (80, 8192, 28672)}[size]
    heads, keys, rows, vocabulary = d // 128, 8 * 128, 8192, 128256
    matrices = layers * (d * d + 2 * d * keys + d * d + 3 * d * hidden) + vocabulary * d
    assert count == matrices + vocabulary * d + (2 * layers + 1) * d  # the table of tokens, and the normalizations
    tracemalloc.start()
    model = LlamaConfig(**PRESETS["llama", size]).init(NumPy(float="bf16"))
    kept, again = (
        plan(model, {"data": 8}, "fsdp", batch=8, optimizer=optim.AdamWConfig(), checkpoint=checkpoint)
        for checkpoint in (False, True)
    )
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()
    for found in (kept, again):
        assert found.count == count
        assert found.parameters == found.gradients == 2 * count // 8
        assert found.optimizer == 3 * 4 * count // 8  # two moments, and the parameters in f32
        assert found.gathered == 2 * count and found.data == 2 * 4 * rows
        sent = {kind: traffic.sent for kind, traffic in found.collectives.items()}
        assert sent == {"all-gather": 2 * count // 8 * 7, "reduce-scatter": 2 * count // 8 * 7}
    # A block keeps the inputs of its normalizations and of what follows them, queries and what attention makes of them,
    # keys and values, the weights of all heads, and the gate, the other factor and their product.
    block = rows * (4 * d + 2 * d + 2 * keys + heads * rows + 3 * hidden)
    logits = rows * 2 * vocabulary
    assert kept.memory - kept.arguments - kept.gradients - kept.gathered == 2 * (layers * block + logits)
    assert again.memory - again.arguments - again.gradients - again.gathered == 2 * (layers * rows * d + block + logits)
    attention = layers * 2 * 2 * rows * rows * d  # two products of all pairs of positions
    assert kept.flops == 3 * (2 * rows * matrices + attention) + 15 * count // 8
    in_blocks = matrices - vocabulary * d
    assert again.flops - kept.flops == 2 * rows * in_blocks + attention


def test_half_precision_keeps_a_master() -> None:
    found = plan(GPT.init(NumPy(float="bf16")), {"data": 1}, "data", batch=1, optimizer=optim.AdamWConfig())
    assert found.optimizer == 6 * found.parameters == 12 * found.count


@pytest.mark.parametrize("optimizer", [optim.SgdConfig(), optim.LionConfig(), optim.AdafactorConfig()])
def test_states_of_optimizers(optimizer: Any) -> None:
    found = planned({"data": 8}, "data", optimizer=optimizer)
    assert found.optimizer == GPT.init("numpy").summary(optimizer=optimizer).memory.optimizer


def test_shards_divide_memory_and_change_no_flops_but_the_updates() -> None:
    whole, cut = planned({"data": 8}, "data"), planned({"data": 8}, Layout(rest="data", least=0))
    assert cut.parameters == whole.parameters // 8
    assert whole.flops - cut.flops == 15 * (whole.count - whole.count // 8)
    assert whole.collectives["all-reduce"].sent == 2 * whole.parameters * 7 // 8
    assert cut.collectives["all-gather"].sent == whole.parameters * 7 // 8
    assert cut.collectives["reduce-scatter"].sent == whole.parameters // 8 * 7
    assert cut.gathered == whole.parameters


def test_recomputing_costs_a_third_more() -> None:
    kept, again = (planned({"data": 8}, "data", checkpoint=checkpoint) for checkpoint in (False, True))
    updates, head = 15 * kept.count, 6 * 2 * 64 * 1000 * 32
    assert again.flops - updates - head == pytest.approx((kept.flops - updates - head) * 4 / 3)
    assert again.memory < kept.memory


def test_weights_that_are_gathered_again() -> None:
    once = planned({"data": 8}, "fsdp")
    twice = planned({"data": 8}, "fsdp", compiler=Compiler(gathers_again=True))
    assert once.sent < twice.sent < 2 * once.sent and twice.gathered < once.gathered


def test_a_merged_sum_is_sent_once() -> None:
    apart = planned({"data": 1, "model": 4}, "tensor-parallel", compiler=Compiler(merges=False))
    merged = planned({"data": 1, "model": 4}, "tensor-parallel")
    counts = [{one.what: one.count for one in found.exchanges} for found in (apart, merged)]
    assert [count["gradients of activations"] for count in counts] == [3 * (3 + 1) + 1, 3 * 2 + 1]
    assert [count["activations"] for count in counts] == [3 * 2 + 1] * 2


def test_fewer_heads_of_keys_take_less_memory() -> None:
    sizes: dict[str, Any] = {"vocabulary": 256, "context": 64, "n_layers": 2, "d_model": 32, "n_heads": 4}
    found = [plan(LlamaConfig(**sizes, n_kv_heads=n).init("numpy"), {"data": 2}, "data", batch=2) for n in (4, 1)]
    assert found[0].activations - found[1].activations == 4 * 64 * 2 * 2 * (32 - 8)


def test_the_least_time() -> None:
    found, device = planned({"data": 4, "model": 4}, "tensor-parallel"), ACCELERATORS["h100"]
    compute, exchange = found.seconds(device, 1e12, 1e9, 1e8)
    inside = sum(one.sent for one in found.exchanges if one.axes == ("model",))
    assert compute == pytest.approx(found.flops / 1e12)
    # Four neighbours share a host of eight; the groups of the other axis reach over sixteen devices.
    assert exchange == pytest.approx(inside / 1e9 + (found.sent - inside) / 1e8)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerators_are_plausible(name: str) -> None:
    one = ACCELERATORS[name]
    assert one.name == name and one.source
    assert 1e10 < one.memory < 1e12 and one.flops_single < one.flops_half < 1e16
    assert one.link < 1e12 and (one.network is None or one.network <= one.link)


def test_a_rate_that_is_not_published() -> None:
    found, device = planned({"data": 8}, "fsdp"), replace(ACCELERATORS["tpu-v4"], per_host=4)
    with pytest.raises(ShardingError, match="between more than 4 devices of tpu-v4; give it as --network RATE"):
        found.seconds(device, 1e12, device.link, device.network)
    assert found.seconds(device, 1e12, device.link, 1e9)[1] == pytest.approx(found.sent / 1e9)


def test_bad_input() -> None:
    with pytest.raises(ShardingError, match="there is no layout 'x'; there are data, fsdp"):
        planned({"data": 8}, "x")
    with pytest.raises(ShardingError, match=r"16 rows do not divide over 3 devices \(the axis 'data'\)"):
        planned({"data": 3}, "data")
    with pytest.raises(ShardingError, match="the formulas do not know the axis 'replica'"):
        planned({"replica": 2, "data": 8}, "data")
    with pytest.raises(ShardingError, match="a mesh needs at least one axis"):
        planned({}, "data")
    with pytest.raises(ShardingError, match="n_heads=4, which do not divide over 8 devices"):
        planned({"model": 8}, "tensor-parallel")
    with pytest.raises(ShardingError, match="Linear is no transformer"):
        plan(Linear(2, 2), {"data": 1}, "data", batch=1)
    with pytest.raises(ShardingError, match="steps all parameters at once"):
        planned({"data": 1}, "data", optimizer=optim.LbfgsConfig())


def test_a_mesh_on_paper() -> None:
    mesh = PaperMesh({"x": 2, "model": 4})
    assert (mesh.axes, mesh.batch_axis) == (("x", "model"), "x")
    assert layout_by_name("fsdp", GPT.init("numpy"), mesh).rest == "x"
    assert set(LAYOUTS) == {"data", "fsdp", "tensor-parallel", "tensor-parallel+fsdp"}
