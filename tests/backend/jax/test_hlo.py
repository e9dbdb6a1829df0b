"""XLA's text is read: collectives in loops, tuples, pairs of start and done, branches; against counts by hand."""

from __future__ import annotations

import re

import pytest

from phlox.backend.analysis import Traffic
from phlox.backend.jax.hlo import Program, bytes_of, group_size

MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%product (p: f32[32,64], q: f32[64,16]) -> f32[32,16] {
  %p = f32[32,64]{1,0} parameter(0)
  %q = f32[64,16]{1,0} parameter(1)
  ROOT %dot = f32[32,16]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%inner_body (s.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %x.1 = f32[4]{0} get-tuple-element(%s.1), index=1
  %permuted = f32[4]{0} collective-permute(%x.1), channel_id=9, source_target_pairs={{0,1},{1,0}}
  ROOT %t.1 = (s32[], f32[4]{0}) tuple(%i.1, %permuted)
}

%condition (s.2: (s32[], f32[4])) -> pred[] {
  %s.2 = (s32[], f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i.2, %n), direction=LT
}

%body (s: (s32[], f32[4], f32[32,64], f32[64,16])) -> (s32[], f32[4], f32[32,64], f32[64,16]) {
  %s = (s32[], f32[4]{0}, f32[32,64]{1,0}, /*index=3*/f32[64,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[4]{0} get-tuple-element(%s), index=1
  %p.1 = f32[32,64]{1,0} get-tuple-element(%s), index=2
  %q.1 = f32[64,16]{1,0} get-tuple-element(%s), index=3
  %made = f32[32,16]{1,0} fusion(%p.1, %q.1), kind=kCustom, calls=%product
  %init = (s32[], f32[4]{0}) tuple(%i, %x)
  %loop.1 = (s32[], f32[4]{0}) while(%init), condition=%condition, body=%inner_body, TRIPS 3
  %y = f32[4]{0} get-tuple-element(%loop.1), index=1
  %pair = (f32[4]{0}, f32[8]{0}) all-reduce(%y, %y), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = (s32[], f32[4]{0}, f32[32,64]{1,0}, f32[64,16]{1,0}) tuple(%i, %y, %p.1, %q.1)
}

%with (w: f32[4]) -> f32[16] {
  %w = f32[4]{0} parameter(0)
  ROOT %gathered = f32[16]{0} all-gather(%w), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}

%without (v: f32[4]) -> f32[16] {
  %v = f32[4]{0} parameter(0)
  ROOT %made.2 = f32[16]{0} broadcast(%v), dimensions={}
}

%scattered (z: f32[64]) -> f32[8] {
  %z = f32[64]{0} parameter(0)
  ROOT %rs = f32[8]{0} reduce-scatter(%z), channel_id=5, replica_groups={}, dimensions={0}, to_apply=%add
}

ENTRY %main (c: (s32[], f32[4], f32[32,64], f32[64,16]), o: f32[64], k: pred[]) -> f32[4] {
  %c = (s32[], f32[4]{0}, f32[32,64]{1,0}, f32[64,16]{1,0}) parameter(0)
  %o = f32[64]{0:T(128)} parameter(1)
  %k = pred[] parameter(2)
  %loop = (s32[], f32[4]{0}, f32[32,64]{1,0}, f32[64,16]{1,0}) while(%c), condition=%condition, body=%body, TRIPS 5
  %e = f32[4]{0} get-tuple-element(%loop), index=1
  %branch = f32[16]{0} conditional(%k, %e, %e), true_computation=%with, false_computation=%without
  %start = (f32[4]{0:T(128)}, f32[32]{0:T(128)}) all-gather-start(%e), channel_id=4, replica_groups={}, dimensions={0}
  %done = f32[32]{0} all-gather-done(%start)
  %begun = ((f32[64]{0}), f32[8]{0}, u32[]) async-start(%o), calls=%scattered
  %ended = f32[8]{0} async-done(%begun), calls=%scattered
  %stays = f32[4]{0} collective-permute(%e), channel_id=7, source_target_pairs={{0,0},{1,1}}
  ROOT %out = f32[4]{0} copy(%e)
}
"""
MODULE = re.sub(r"TRIPS (\d)", r'backend_config={"known_trip_count":{"n":"\1"}}', MODULE)


def test_every_collective_is_counted_as_often_as_it_runs() -> None:
    found = Program(MODULE).collectives
    assert found == {
        # 4 and 8 floats, reduced by four devices, in each of five iterations
        "all-reduce": Traffic(5, 5 * 48, 5 * (2 * 48 * 3 // 4)),
        # in a loop of three within one of five; and one that moves nothing
        "collective-permute": Traffic(5 * 3 + 1, (15 + 1) * 16, 15 * 16),
        # of the branch that sends something, and the pair of start and done once
        "all-gather": Traffic(2, 64 + 128, 64 * 3 // 4 + 128 * 7 // 8),
        "reduce-scatter": Traffic(1, 32, 32 * 7),
    }


def test_the_iterations_of_a_loop_after_its_first() -> None:
    later = Program(MODULE).in_later_iterations
    # Four more products; comparisons of conditions: 4 of the outer loop, and 2 later ones in each of 5 inner loops plus
    # the first in each of 4.
    assert later.flops == 4 * 2 * 32 * 16 * 64 + 4 + (5 * 2 + 4)


def test_loops_of_unknown_length_are_told() -> None:
    program = Program(MODULE.replace('"known_trip_count":{"n":"3"}', ""))
    assert program.unknown_loops == 1
    assert program.collectives["collective-permute"].count == 5 + 1


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", 2),
        ("{}", 8),
        ("[1,8]<=[8]", 8),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", 8),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", 4),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", 4),
    ],
)
def test_the_size_of_a_group(groups: str, size: int) -> None:
    assert group_size(f"channel_id=1, replica_groups={groups}, dimensions={{0}}", 8) == size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[2,3]{1,0}", 24),
        ("pred[]", 1),
        ("s4[3]{0}", 2),
        ("f8e4m3fn[5]{0}", 5),
        ("c64[2]{0}", 16),
        ("token[]", 0),
        ("((f32[2]{0:T(128)}), bf16[4]{0})", 16),
    ],
)
def test_the_bytes_of_a_shape(shape: str, size: int) -> None:
    assert bytes_of(shape) == size


def test_text_that_is_no_module() -> None:
    program = Program("")
    assert program.collectives == {} and program.devices == 1 and program.in_later_iterations == (0, 0)
