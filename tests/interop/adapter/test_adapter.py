"""Adapters: every rule against NumPy, both ways, lazily; composition; what is told and what is refused.

Serves: phlox/interop/adapter/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.interop.adapter import Adapter, Rule, convert, default, drop, ignore, join, rename, split, transpose
from phlox.interop.adapter.pattern import Pattern
from phlox.record import LazyTensor, Record, TensorEntry


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def arrays(record: Record) -> dict[str, Any]:
    return {path: record[path].tensor.read() if path in record.tensors else record[path] for path in record}


def same(found: Record, expected: Record) -> bool:
    a, b = arrays(found), arrays(expected)
    return a.keys() == b.keys() and all(
        np.array_equal(a[path], b[path]) and getattr(a[path], "dtype", None) == getattr(b[path], "dtype", None)
        for path in a
    )


# --- patterns

MATCHES: list[tuple[str, str, str, str | None]] = [
    ("a.b", "c", "a.b", "c"),
    ("a.b", "c", "a.bc", None),
    ("h.*.ln.weight", "blocks.*.gamma", "h.11.ln.weight", "blocks.11.gamma"),
    ("h.*.ln.weight", "blocks.*.gamma", "h.1.2.ln.weight", None),
    ("h.*.ln.weight", "blocks.*.gamma", "h..ln.weight", None),
    ("h.*.e.*.w", "b.*.*", "h.3.e.4.w", "b.3.4"),
    ("layer_*.w", "layers.*.w", "layer_3.w", "layers.3.w"),
    ("layer_*.w", "layers.*.w", "layer_.w", None),
    ("**", "**", "x.y.z", "x.y.z"),
    ("model.**", "**", "model.x.y", "x.y"),
    ("model.**", "**", "models.x", None),
    ("**.gamma", "**.weight", "a.b.gamma", "a.b.weight"),
    ("**.gamma", "**.weight", "gamma", "weight"),
    ("a.**.b", "**.c", "a.b", "c"),
    ("a.**.b", "c.**", "a.x.y.b", "c.x.y"),
    ("a.**.b", "c.**", "axb", None),
    ("a.**", "b.**", "a", "b"),
    ("*.**.w", "*.**.v", "x.y.z.w", "x.y.z.v"),
    ("a.b", "c", "axb", None),
    ("(a|b)+", "c", "a", None),
    ("h.*", "b.*", "h.x\ny", "b.x\ny"),
]


@pytest.mark.parametrize(
    ("theirs", "ours", "path", "expected"), MATCHES, ids=[f"{theirs} at {path!r}" for theirs, _, path, _ in MATCHES]
)
def test_patterns(theirs: str, ours: str, path: str, expected: str | None) -> None:
    captures = Pattern(theirs).captures(path)
    assert (None if captures is None else Pattern(ours).filled(captures)) == expected
    if expected is not None:
        back = Pattern(ours).captures(expected)
        assert back is not None and Pattern(theirs).filled(back) == path


NAMES = st.text("ab.*", min_size=1, max_size=8).filter(lambda text: all(text.split(".")))


@given(NAMES, st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map(".".join))
def test_what_matches_is_filled_again(text: str, path: str) -> None:
    try:
        pattern = Pattern(text)
    except RecordError:
        assert "**" in text
        return
    if (captures := pattern.captures(path)) is not None:
        assert pattern.filled(captures) == path and len(captures) == len(pattern.wildcards)


BAD_RULES: dict[str, tuple[Callable[[], Any], str]] = {
    "an empty segment": (lambda: rename("a..b", "c"), "'a..b' is not a pattern"),
    "nothing": (lambda: rename("", "c"), "'' is not a pattern"),
    "two double stars": (lambda: rename("**.a.**", "**.b.**"), "may occur once in a pattern"),
    "half a segment": (lambda: rename("a.b**", "c**"), "as a whole segment"),
    "wildcards that get lost": (lambda: rename("a.*", "b"), "'a.\\*' and 'b' do not have the same wildcards"),
    "wildcards of another order": (lambda: rename("*.**.a", "**.*.a"), "the same wildcards in the same order"),
    "a name twice": (lambda: split("a", ["b", "b"]), "names an entry twice"),
    "sizes that are too few": (
        lambda: split("a", ["b", "c"], sizes=(1,)),
        r"'a': sizes=\(1,\) are not 2 integers",
    ),
    "sizes of zero": (lambda: join(["b", "c"], "a", sizes=(1, 0)), "integers from 1"),
    "axes that are none": (lambda: transpose("a", "b", axes=(0, 2)), r"axes=\(0, 2\) are not the numbers from 0 to 1"),
    "a default of many": (lambda: default("a.*", np.ones(1)), "needs a path without wildcards"),
    "something written for many": (lambda: ignore("**.x", written=np.ones(1)), "without wildcards"),
}


@pytest.mark.parametrize("case", list(BAD_RULES))
def test_rules_that_cannot_be(case: str) -> None:
    make, message = BAD_RULES[case]
    with pytest.raises(RecordError, match=message):
        make()


# --- rules, against NumPy

A, B = ramp(4, 6), ramp(4, 6) + 100
RULES: dict[str, tuple[Rule, dict[str, Any], dict[str, Any]]] = {
    "rename": (rename("a.*", "x.*"), {"a.0": A, "a.1": B}, {"x.0": A, "x.1": B}),
    "rename of a value": (rename("step", "clock.step"), {"step": 7}, {"clock.step": 7}),
    "transpose": (transpose("a", "x"), {"a": A}, {"x": A.T}),
    "transpose with axes": (
        transpose("a", "x", axes=(2, 0, 1)), {"a": ramp(2, 3, 4)}, {"x": ramp(2, 3, 4).transpose(2, 0, 1)}
    ),
    "split": (split("a", ["x", "y"]), {"a": A}, {"x": A[:2], "y": A[2:]}),
    "split along an axis": (
        split("a.*", ["x.*", "y.*", "z.*"], axis=1), {"a.0": A}, {"x.0": A[:, :2], "y.0": A[:, 2:4], "z.0": A[:, 4:]}
    ),
    "split along the last axis": (split("a", ["x", "y"], axis=-1), {"a": A}, {"x": A[:, :3], "y": A[:, 3:]}),
    "split with sizes": (
        split("a", ["x", "y", "z"], axis=1, sizes=(4, 1, 1)), {"a": A}, {"x": A[:, :4], "y": A[:, 4:5], "z": A[:, 5:]}
    ),
    "split with a ratio": (split("a", ["x", "y"], axis=1, sizes=(2, 1)), {"a": A}, {"x": A[:, :4], "y": A[:, 4:]}),
    "split and transposed": (split("a", ["x", "y"], transposed=True), {"a": A}, {"x": A[:2].T, "y": A[2:].T}),
    "join": (join(["a.*", "b.*"], "x.*"), {"a.1": A, "b.1": B}, {"x.1": np.concatenate([A, B])}),
    "join along an axis": (join(["a", "b"], "x", axis=1), {"a": A, "b": B}, {"x": np.concatenate([A, B], 1)}),
    "join of unequal parts": (
        join(["a", "b"], "x", sizes=(3, 1)), {"a": A[:3], "b": A[3:]}, {"x": A}
    ),
    "join and transposed": (join(["a", "b"], "x", transposed=True), {"a": A, "b": B}, {"x": np.concatenate([A, B]).T}),
    "convert": (convert("a", "x", lambda array: array + 1, lambda array: array - 1), {"a": A}, {"x": A + 1}),
    "convert to another shape": (
        convert(
            "a", "x", lambda array: array.reshape(-1), lambda array: array.reshape(4, 6),
            shape=lambda shape: (shape[0] * shape[1],), shape_back=lambda shape: (4, 6),
        ),
        {"a": A},
        {"x": A.reshape(-1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(RULES))
def test_every_rule_both_ways(case: str) -> None:
    rule, theirs, ours = RULES[case]
    adapter = Adapter([rule])
    read = adapter.read(Record(theirs))
    assert same(read, Record(ours))
    assert same(adapter.write(read), Record(theirs))
    assert same(adapter.write(Record(ours)), Record(theirs))
    assert adapter.names(Record(theirs)).keys() == ours.keys()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64, np.int8, np.bool_], ids=lambda t: np.dtype(t).name)
def test_element_types_stay(dtype: Any) -> None:
    adapter = Adapter([split("a", ["x", "y"], transposed=True), join(["b", "c"], "z")])
    theirs = Record({"a": ramp(4, 6, dtype=dtype), "b": ramp(2, dtype=dtype), "c": ramp(2, dtype=dtype)})
    ours = adapter.read(theirs)
    assert {entry.tensor.dtype for entry in ours.tensors.values()} == {np.dtype(dtype)}
    assert same(adapter.write(ours), theirs)


@st.composite
def models(draw: st.DrawFn) -> tuple[Record, Adapter]:
    """A record like that of a transformer, and an adapter for it."""
    heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 2)]))
    d_head = draw(st.integers(0, 3))
    width = heads * d_head
    transposed = draw(st.booleans())
    axis = draw(st.integers(-2, 1))
    layers = draw(st.integers(0, 3))
    total = (heads + 2 * groups) * d_head
    entries: dict[str, Any] = {"wte": ramp(7, width), "step": draw(st.integers(-5, 5))}
    for i in range(layers):
        entries[f"h.{i}.ln.weight"] = ramp(width) + i
        entries[f"h.{i}.qkv"] = ramp(total, width) if axis % 2 == 0 else ramp(width, total)
        entries[f"h.{i}.gate"], entries[f"h.{i}.up"] = ramp(5, width), ramp(5, width) - i
        entries[f"h.{i}.conv"] = ramp(2, width, 3)
        entries[f"h.{i}.rope"] = ramp(width, 2)
    parts = [f"blocks.*.attention.{name}" for name in ("query", "key", "value")]
    adapter = Adapter(
        [
            rename("wte", "embed.weight"),
            rename("step", "step"),
            rename("h.*.ln.weight", "blocks.*.norm.gamma"),
            split("h.*.qkv", parts, axis=axis, sizes=(heads, groups, groups), transposed=transposed),
            join(["h.*.gate", "h.*.up"], "blocks.*.mlp", axis=draw(st.sampled_from([0, 1])), transposed=transposed),
            transpose("h.*.conv", "blocks.*.conv", axes=draw(st.permutations([0, 1, 2]))),
            convert("h.*.rope", "blocks.*.rope", lambda x: x[:, ::-1], lambda x: x[:, ::-1]),
        ]
    )
    return Record(entries, {"format": "pt"}), adapter


@given(models())
def test_writing_is_the_inverse_of_reading(model: tuple[Record, Adapter]) -> None:
    theirs, adapter = model
    ours = adapter.read(theirs)
    assert same(adapter.write(ours), theirs)
    assert adapter.write(ours).metadata == theirs.metadata
    assert sum(entry.tensor.size for entry in ours.tensors.values()) == sum(
        entry.tensor.size for entry in theirs.tensors.values()
    )
    chained = adapter | Adapter(
        [rename("blocks.*.**", "layers.*.**"), rename("step", "step"), rename("embed.**", "e.**")]
    )
    assert same(chained.write(chained.read(theirs)), theirs)


def test_nothing_is_read_and_a_part_is_a_view() -> None:
    reads: list[int] = []
    array = ramp(6, 4)
    lazy = LazyTensor.from_function((6, 4), np.float32, lambda: reads.append(0) or array)
    adapter = Adapter([split("a", ["x", "y"]), join(["b", "c"], "z")])
    ours = adapter.read(Record({"a": lazy, "b": lazy, "c": lazy}))
    theirs = adapter.write(ours)
    assert not reads and theirs["a"].tensor.shape == (6, 4)
    assert np.shares_memory(ours["y"].tensor.read(), array) and len(reads) == 1


# --- ids, metadata, aliases, values


def test_an_id_stays_where_a_tensor_stays_one() -> None:
    entry = TensorEntry(LazyTensor.from_array(ramp(4, 2)), "the-id")
    adapter = Adapter([transpose("a", "x"), split("b", ["y", "z"]), rename("c", "c")])
    ours = adapter.read(Record({"a": entry, "b": entry, "c": entry}, {"note": "n"}))
    assert [ours[path].id for path in ours] == ["the-id", None, None, "the-id"]
    assert ours.metadata == {"note": "n"} and ours.header is None


def test_aliases_are_carried_over() -> None:
    tied = Record({"wte": A, "ln": ramp(3)}, aliases={"lm_head": "wte", "last": "ln"})
    adapter = Adapter(
        [rename("wte", "embed"), rename("lm_head", "head"), rename("ln", "norm"), rename("last", "norm_2")]
    )
    ours = adapter.read(tied)
    assert ours.paths() == ["embed", "norm"] and ours.aliases == {"head": "embed", "norm_2": "norm"}
    back = adapter.write(ours)
    assert same(back, tied) and back.aliases == tied.aliases


def test_aliases_of_parts() -> None:
    adapter = Adapter([split("*.qkv", ["*.q", "*.k"], axis=1)])
    ours = adapter.read(Record({"a.qkv": A}, aliases={"b.qkv": "a.qkv"}))
    assert ours.paths() == ["a.q", "a.k"] and ours.aliases == {"b.q": "a.q", "b.k": "a.k"}
    assert adapter.write(ours).aliases == {"b.qkv": "a.qkv"}


def test_an_alias_in_another_layout_is_an_entry() -> None:
    ours = Adapter([rename("wte", "embed"), transpose("lm_head", "head")]).read(
        Record({"wte": A}, aliases={"lm_head": "wte"})
    )
    assert same(ours, Record({"embed": A, "head": A.T}))


def test_one_name_of_a_tensor_is_enough() -> None:
    tied = Record({"wte": A}, aliases={"lm_head": "wte"})
    assert same(Adapter([rename("wte", "embed")]).read(tied), Record({"embed": A}))
    assert same(Adapter([rename("lm_head", "head")]).read(tied), Record({"head": A}))
    assert same(Adapter([ignore("wte"), rename("lm_head", "head")]).read(tied), Record({"head": A}))


# --- what only one side has


def test_ignored_entries_go_and_do_not_come_back() -> None:
    adapter = Adapter([rename("*.w", "*.w"), ignore("*.mask")])
    theirs = Record({"a.w": A, "a.mask": B})
    assert same(adapter.read(theirs), Record({"a.w": A}))
    assert same(adapter.write(adapter.read(theirs)), Record({"a.w": A}))


def test_ignored_entries_may_be_written() -> None:
    adapter = Adapter([rename("w", "w"), ignore("batches", written=np.int64(0))])
    assert same(adapter.write(Record({"w": A})), Record({"w": A, "batches": np.array(0)}))
    assert same(adapter.read(Record({"w": A, "batches": np.array(9)})), Record({"w": A}))


def test_dropped_entries_of_ours() -> None:
    adapter = Adapter([rename("w", "w"), drop("*.frequencies")])
    assert same(adapter.write(Record({"w": A, "rope.frequencies": B})), Record({"w": A}))
    assert same(adapter.read(Record({"w": A})), Record({"w": A}))


def test_defaults() -> None:
    adapter = Adapter([rename("w", "w"), default("bias", np.zeros(3))])
    assert same(adapter.read(Record({"w": A})), Record({"w": A, "bias": np.zeros(3)}))
    assert same(adapter.write(Record({"w": A, "bias": np.zeros(3)})), Record({"w": A}))
    with pytest.raises(RecordError, match="bias: theirs has no entry for it, and its value is not the default"):
        adapter.write(Record({"w": A, "bias": np.ones(3)}))
    with pytest.raises(RecordError, match="bias: theirs has no entry for it"):
        adapter.write(Record({"w": A, "bias": 3}))
    optional = Adapter([rename("b", "bias"), default("bias", np.zeros(3))])
    assert same(optional.read(Record({})), Record({"bias": np.zeros(3)}))
    assert same(optional.read(Record({"b": np.ones(3)})), Record({"bias": np.ones(3)}))
    assert same(optional.write(Record({"bias": np.ones(3)})), Record({"b": np.ones(3)}))


# --- composition


def test_under() -> None:
    inner = Adapter([rename("ln.weight", "norm.gamma"), ignore("mask"), default("extra", ramp(1)), drop("cache")])
    both = Adapter([*inner.under("encoder").rules, *inner.under("model.decoder", "decoder").rules])
    theirs = Record({"encoder.ln.weight": A, "model.decoder.ln.weight": B, "encoder.mask": A})
    ours = both.read(theirs)
    assert same(
        ours,
        Record({"encoder.norm.gamma": A, "decoder.norm.gamma": B, "encoder.extra": ramp(1), "decoder.extra": ramp(1)}),
    )
    assert set(both.write(ours)) == {"encoder.ln.weight", "model.decoder.ln.weight"}
    assert same(
        inner.under("model", "").read(Record({"model.ln.weight": A})), Record({"norm.gamma": A, "extra": ramp(1)})
    )


def test_one_after_another() -> None:
    first, second = Adapter([rename("model.**", "**")]), Adapter([transpose("fc.weight", "head.weight")])
    theirs = Record({"model.fc.weight": A})
    for adapter in (
        first | second,
        Adapter.chain(first, second),
        Adapter.chain(first, second | Adapter([rename("**", "**")])),
    ):
        assert same(adapter.read(theirs), Record({"head.weight": A.T}))
        assert same(adapter.write(adapter.read(theirs)), theirs)
        assert adapter.names(theirs) == {"head.weight": ("model.fc.weight",)}
    outer = (first | second).under("x", "y")
    assert same(outer.read(Record({"x.model.fc.weight": A})), Record({"y.head.weight": A.T}))
    assert same(Adapter.chain().read(Record({})), Record({}))


def test_rules_that_nothing_matched_are_told_when_asked() -> None:
    adapter = Adapter([rename("h.*.w", "b.*.w"), ignore("mask"), split("qkv", ["q", "k"])]) | Adapter(
        [rename("b.**", "**")]
    )
    assert adapter.unused(Record({"h.0.w": A})) == ["mask", "qkv"]
    assert adapter.unused(Record({"qkv": A, "mask": A})) == ["h.*.w", "b.**"]


# --- what is told

TWO = "two rules match it"
PROBLEMS: dict[str, tuple[list[Rule], dict[str, Any], str]] = {
    "unknown": (
        [rename("h.*.ln_1.weight", "b.*.gamma"), rename("wte", "embed")],
        {"h.0.ln1.weight": A, "wte": A, "zzz": 1},
        (
            r"2 problems:\n  h.0.ln1.weight: no rule matches it; did you mean 'h.\*.ln_1.weight'\?\n"
            r"  zzz: no rule matches it$"
        ),
    ),
    "two rules": ([rename("a.*", "x.*"), ignore("*.b")], {"a.b": A}, r"a.b: two rules match it, 'a.\*' and '\*.b'"),
    "two become one": ([rename("a", "x"), rename("b", "x")], {"a": A, "b": B}, "b: it becomes `x`, as does `a`"),
    "half": (
        [join(["a.*.k", "a.*.v"], "x.*")],
        {"a.0.k": A, "a.1.k": A, "a.1.v": A},
        "a.0.k: its rule also needs a.0.v, which is missing",
    ),
    "not divisible": (
        [split("h.*.w", ["q.*", "k.*", "v.*"], axis=0)],
        {"h.2.w": A},
        r"h.2.w: axis 0 of shape \(4, 6\) cannot be split 1:1:1: 4 does not divide by 3",
    ),
    "no such axis": ([split("w", ["q", "k"], axis=2)], {"w": A}, r"w: shape \(4, 6\) has no axis 2"),
    "unequal parts": (
        [join(["a", "b"], "x")],
        {"a": A, "b": A[1:]},
        r"a, b: shapes \(4, 6\), \(3, 6\) cannot be joined 1:1",
    ),
    "parts of other ranks": ([join(["a", "b"], "x")], {"a": A, "b": ramp(4)}, "cannot be joined"),
    "scalars": ([join(["a", "b"], "x")], {"a": ramp(), "b": ramp()}, r"shape \(\) has no axis 0"),
    "parts of other types": (
        [join(["a", "b"], "x")],
        {"a": A, "b": A.astype(np.float16)},
        "float32 and float16 cannot be joined",
    ),
    "transposing a vector": (
        [transpose("a", "x")],
        {"a": ramp(3)},
        r"a: shape \(3,\) does not have 2 axes.*give axes=",
    ),
    "transposing another rank": ([transpose("a", "x", axes=(0, 2, 1))], {"a": A}, "does not have 3 axes"),
    "transposing a value": ([transpose("a", "x")], {"a": 3}, "a: it is a plain value; its rule is for tensors"),
}


@pytest.mark.parametrize("case", list(PROBLEMS))
def test_problems_are_told_with_their_place(case: str) -> None:
    rules, theirs, message = PROBLEMS[case]
    with pytest.raises(RecordError, match=message):
        Adapter(rules).read(Record(theirs))


def test_all_at_once_but_not_without_end() -> None:
    with pytest.raises(RecordError, match=r"5000 problems:(.|\n)*\.\.\. and 4960 more$") as error:
        Adapter([rename("a", "b")]).read(Record({f"layers.{i}.w": i for i in range(5000)}))
    assert len(str(error.value)) < 5000


def test_not_strict_leaves_what_it_does_not_know() -> None:
    adapter = Adapter([rename("a", "x"), join(["b", "c"], "y")])
    theirs = Record({"a": A, "b": B, "other": 3})
    assert same(adapter.read(theirs, strict=False), Record({"x": A, "b": B, "other": 3}))
    with pytest.raises(RecordError, match="2 problems"):
        adapter.read(theirs)
    with pytest.raises(RecordError, match="`x`, as does `a`"):  # even so
        adapter.read(Record({"a": A, "x": B}), strict=False)


def test_what_is_left_keeps_its_names() -> None:
    left = Adapter([rename("a", "x")]).read(Record({"a": A, "b": B}, aliases={"c": "b"}), strict=False)
    assert left.paths() == ["x", "b"] and left.aliases == {"c": "b"}


def test_names_of_strangers_are_shown_shortly() -> None:
    with pytest.raises(RecordError, match="no rule matches it") as error:
        Adapter([rename("a", "x")]).read(Record({"b" * 100_000: 1, "c\nd": 2}))
    assert len(str(error.value)) < 1000 and "c\\nd" in str(error.value)


def test_writing_what_has_no_way_back() -> None:
    adapter = Adapter([convert("a", "x", lambda array: array * 2)])
    with pytest.raises(RecordError, match="x: its rule has no inverse"):
        adapter.write(adapter.read(Record({"a": A})))


def test_a_function_that_lies_about_the_shape_is_told_when_read() -> None:
    ours = Adapter([convert("a", "x", lambda array: array[1:])]).read(Record({"a": A}))
    with pytest.raises(RecordError, match=r"of shape \(3, 6\), not .* of shape \(4, 6\)"):
        ours["x"].tensor.read()


def test_positional_records_are_refused() -> None:
    with pytest.raises(RecordError, match="positional record"):
        Adapter([rename("a", "b")]).read(Record({"0": A}, positional=True))


def test_what_is_unreadable_takes_what_would_come_of_it_along() -> None:
    adapter = Adapter([split("h.*.qkv", ["q.*", "k.*"]), rename("ln", "norm"), join(["a", "b"], "ab"), ignore("mask")])
    record = Record(
        {"h.0.qkv": np.ones((2, 2)), "a": np.ones(1)},
        unreadable={"h.1.qkv": "complex", "ln": "an object", "b": "sparse", "mask": "text", "other": "a date"},
    )
    ours = adapter.read(record, strict=False)
    assert ours.paths() == ["q.0", "k.0"] and ours.unreadable == {
        "q.1": "h.1.qkv, from which it is made: complex", "k.1": "h.1.qkv, from which it is made: complex",
        "norm": "ln, from which it is made: an object", "ab": "b, from which it is made: sparse", "other": "a date",
    }  # fmt: skip
    with pytest.raises(RecordError, match="other: no rule matches it"):
        adapter.read(record)
