"""Counting what is in XLA's programs and PyTorch's graphs.

Serves: benchmarks/guard/programs.py
"""

from __future__ import annotations

import pytest
import torch

import phlox as px
from benchmarks.guard.programs import STEPS, demo, operations, recorded_graphs, steps, torch_entry, xla_entry
from phlox.backend import Jax, Torch

PROGRAM = """\
HloModule jit__body, is_scheduled=true

%fused_computation (param_0: f32[4,4], param_1: f32[16,4]) -> f32[4,16] {
  %param_0 = f32[4,4]{1,0} parameter(0)
  %param_1 = f32[16,4]{1,0} parameter(1)
  %constant.1 = f32[] constant(2)
  %multiply.1 = f32[4,4]{1,0} multiply(%param_0, %param_0)
  ROOT %dot.1 = f32[4,16]{1,0} dot(%multiply.1, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%region_3.6 (reduce_sum.10: f32[], reduce_sum.11: f32[]) -> f32[] {
  %reduce_sum.10 = f32[] parameter(0)
  %reduce_sum.11 = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%reduce_sum.10, %reduce_sum.11)
}

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %get-tuple-element.1 = f32[4]{0} get-tuple-element(%state), index=1
  %negate.1 = f32[4]{0} negate(%get-tuple-element.1)
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%negate.1)
}

%parallel_copy (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %copy.9 = f32[4]{0} copy(%p)
}

ENTRY %main.10 (a: f32[4,4], b: f32[16,4]) -> (f32[4,16], f32[4]) {
  %a = f32[4,4]{1,0} parameter(0), metadata={op_name="a"}
  %b = f32[16,4]{1,0} parameter(1)
  %dot_fusion = f32[4,16]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused_computation
  %reduce.1 = f32[4]{0} reduce(%dot_fusion, %a), dimensions={1}, to_apply=%region_3.6
  %while.1 = (s32[], f32[4]{0}) while(%reduce.1), condition=%other, body=%body
  %call.1 = f32[4]{0} call(%reduce.1), to_apply=%parallel_copy
  %custom-call.1 = f32[4]{0} custom-call(%reduce.1), custom_call_target="__onednn$matmul"
  ROOT %tuple.2 = (f32[4,16]{1,0}, f32[4]{0}) tuple(%dot_fusion, %reduce.1)
}
"""


def test_kernels_are_what_is_not_inside_a_fusion_or_applied_to_elements() -> None:
    kernels, fused = operations(PROGRAM)
    assert kernels == {"fusion": 1, "reduce": 1, "while": 1, "negate": 1, "call": 1, "copy": 1, "custom-call": 1}
    assert fused == 2


def test_a_program_of_xla_is_found_and_weighed() -> None:
    double = px.compile(lambda x, y: (x @ y) + 1.0)
    x = px.ones((32, 32), device=Jax())
    entry = xla_entry(lambda: double(x, x), {"jax": "1"})
    figures = entry.figures
    assert figures["programs"] == 1
    assert figures["flops"] >= 2 * 32**3
    assert figures["bytes of arguments"] >= 2 * 32 * 32 * 4
    assert figures["bytes of new outputs"] >= 32 * 32 * 4
    assert figures["kernels"] == sum(times for name, (times, _) in entry.parts.items() if name != "(inside fusions)")
    assert entry.versions == {"jax": "1"}


def test_memory_given_away_is_no_new_output() -> None:
    def bytes_of_outputs(donate: tuple[str, ...]) -> float:
        run, held = px.compile(lambda x: x * 2.0, donate=donate), [px.ones((64, 64), device=Jax())]

        def step() -> None:
            held[0] = run(held[0])

        return xla_entry(step, {}).figures["bytes of new outputs"]

    assert bytes_of_outputs(("x",)) < 100 < 64 * 64 * 4 <= bytes_of_outputs(())


def test_a_program_made_anew_is_counted() -> None:
    run, sizes = px.compile(lambda x: x * 3.0), iter((2, 3, 4))
    assert xla_entry(lambda: run(px.ones((next(sizes),), device=Jax())), {}).figures["programs"] == 3


def test_operations_of_a_graph_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")
    run, x = px.compile(lambda x: (x @ x).tanh() @ x), px.ones((2, 2), device=Torch())
    entry = torch_entry(lambda: run(x), {"torch": torch.__version__})
    assert entry.figures["graphs"] == 1
    assert entry.parts["aten.mm.default"] == (2, 2)
    assert entry.parts["aten.tanh.default"] == (1, 1)
    assert entry.figures["operations"] == sum(times for times, _ in entry.parts.values())


def test_the_recorder_is_put_back() -> None:
    from torch.fx.experimental import proxy_tensor

    before = proxy_tensor.make_fx
    with recorded_graphs():
        assert proxy_tensor.make_fx is not before
    with pytest.raises(ZeroDivisionError), recorded_graphs():
        _ = 1 // 0
    assert proxy_tensor.make_fx is before


def test_the_demo_step_learns() -> None:
    run = demo("jax")
    losses = [run() for _ in range(10)]
    assert losses[-1] < losses[0]
    assert steps("jax").keys() == {*STEPS, "the demo's network, batch 64"}
