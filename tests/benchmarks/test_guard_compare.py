"""What the guard says of figures that moved, on figures made up for it.

Serves: benchmarks/guard/{compare,figures,recorded}.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.guard import command
from benchmarks.guard.compare import Finding, Verdict, compare, compare_ratios
from benchmarks.guard.figures import Entry, Section, from_plain, to_plain
from benchmarks.guard.recorded import load, save

KEY = "instructions, Python 3.11"
VERSIONS = {"jax": "0.10.2", "numpy": "2.4.6"}


Parts = dict[str, tuple[int, int]]


def entry(instructions: float, parts: Parts | None = None, versions: dict[str, str] = VERSIONS) -> Entry:
    return Entry({"instructions": instructions}, parts or {}, versions)


def only(before: Entry, now: Entry) -> Finding:
    (found,) = compare(Section(KEY, {"call": before}), Section(KEY, {"call": now}))
    return found


@pytest.mark.parametrize(
    "now, verdict",
    [(1000, Verdict.SAME), (1020, Verdict.SAME), (980, Verdict.SAME), (1021, Verdict.WORSE), (979, Verdict.BETTER)],
)
def test_two_per_cent_are_allowed(now: int, verdict: Verdict) -> None:
    assert only(entry(1000), entry(now)).verdict is verdict


def test_what_grew_is_named_the_largest_first() -> None:
    before = entry(1000, {"linear": (2, 100), "tape": (10, 500), "gone": (1, 40), "same": (1, 360)})
    now = entry(1215, {"linear": (2, 140), "tape": (15, 675), "new": (3, 40), "same": (1, 360)})
    found = only(before, now)
    assert found.verdict is Verdict.WORSE
    assert found.what == "instructions 1,000 -> 1,215 (+21.5%)"
    assert found.because == (
        "tape: +175 (10 -> 15 times)",
        "gone: -40 (gone, was there 1 times)",
        "linear: +40 (longer)",
        "new: +40 (new, 3 times)",
    )
    assert str(found).splitlines()[0] == "  worse  call: instructions 1,000 -> 1,215 (+21.5%)"


def test_many_reasons_are_cut_short() -> None:
    before = entry(100, {f"f{i}": (1, 10) for i in range(10)})
    now = entry(200, {f"f{i}": (1, 20) for i in range(10)})
    because = only(before, now).because
    assert len(because) == 7
    assert because[-1] == "and 4 more, +40 together"


def test_a_figure_of_zero_may_only_stay() -> None:
    assert only(entry(0), entry(0)).verdict is Verdict.SAME
    found = only(entry(0), entry(1))
    assert (found.verdict, found.what) == (Verdict.WORSE, "instructions 0 -> 1")


def test_what_is_new_gone_failing_absent_or_of_other_versions() -> None:
    recorded = Section(KEY, {"gone": entry(1), "other": entry(1), "absent": entry(1), "failing": entry(1)})
    others = {"jax": "0.11.0", "numpy": "2.4.6"}
    found = Section(
        KEY, {"new": entry(1), "other": entry(9, versions=others)}, {"absent": "torch"}, {"failing": "Boom"}
    )
    by_name = {one.name: one for one in compare(recorded, found)}
    assert {name: one.verdict for name, one in by_name.items()} == {
        "gone": Verdict.GONE,
        "new": Verdict.NEW,
        "other": Verdict.SKIPPED,
        "absent": Verdict.SKIPPED,
        "failing": Verdict.FAILED,
    }
    assert by_name["other"].what == "recorded with jax 0.10.2; here is jax 0.11.0"
    assert by_name["absent"].what == "needs torch, which is not installed"
    assert by_name["failing"].what == "Boom"


def test_another_python_is_skipped() -> None:
    (found,) = compare(None, Section("instructions, Python 3.15", {"call": entry(1)}))
    assert found.verdict is Verdict.SKIPPED
    assert str(found) == "skipped  instructions, Python 3.15: nothing is recorded for it"


def test_ratios_move_only_far_beyond_their_quartiles() -> None:
    recorded = Section("ratios", {"add": Entry({"lower": 1.8, "median": 2.0, "upper": 2.2})})

    def verdict(median: float) -> Verdict:
        found = Section("ratios", {"add": Entry({"lower": 0.0, "median": median, "upper": 9.0})})
        return compare_ratios(recorded, found)[0].verdict

    assert [verdict(median) for median in (1.4, 1.45, 2.7, 2.8)] == [
        Verdict.BETTER,
        Verdict.SAME,
        Verdict.SAME,
        Verdict.WORSE,
    ]


def test_the_file_is_sorted_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "recorded" / "counts.json"
    section = Section(KEY, {"b": entry(2.0, {"phlox/a.py:f": (1, 2)}), "a": entry(1)})
    save([section], file)
    text = file.read_text()
    assert text.index('"a"') < text.index('"b"')
    assert '    "phlox/a.py:f": [1, 2]\n' in text
    assert load(file) == {KEY: section}
    assert from_plain(to_plain(section)) == section
    # Other keys stay, and so does what could not be counted this time; the rest is put in the place of what was.
    save([Section("programs", {"p": entry(3)}), Section(KEY, {"c": entry(4)}, {"b": "torch"})], file)
    assert load(file)["programs"].entries == {"p": entry(3)}
    assert load(file)[KEY].entries == {"b": section.entries["b"], "c": entry(4)}


def checked(monkeypatch: pytest.MonkeyPatch, file: Path, kind: str, *sections: Section) -> int:
    """The check, with these in the place of what would be counted."""
    left = list(sections)
    monkeypatch.setattr(command, "measured", lambda *_: left.pop(0))
    try:
        return command.check(kind, file=file)
    finally:
        assert not left


def test_the_check_fails_for_what_is_worse_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.json"
    save([Section(KEY, {"call": entry(100, {"f": (1, 100)})})], file)
    cases = {
        110: (1, "worse: mend it"),
        90: (0, "better: record it with make bench ARGS=--record"),
        100: (0, "1 same"),
    }
    for now, (code, line) in cases.items():
        section = Section(KEY, {"call": entry(now, {"f": (1, now)})})
        assert checked(monkeypatch, file, "instructions", section) == code
        assert line in capsys.readouterr().out.splitlines()[-1]
    assert checked(monkeypatch, file, "instructions", Section(KEY, {})) == 1
    assert checked(monkeypatch, file, "instructions", Section(KEY, {}, failed={"call": "Boom"})) == 1
    assert checked(monkeypatch, file, "instructions", Section("instructions, Python 9.9", {"call": entry(1)})) == 0
    assert "nothing is recorded for it: instructions, Python 9.9" in capsys.readouterr().out


def test_a_ratio_that_moved_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(median: float) -> Section:
        return Section("ratios", {"add": Entry({"lower": 1.0, "median": median, "upper": 1.0})})

    file = tmp_path / "counts.json"
    save([section(1.0)], file)
    assert checked(monkeypatch, file, "ratios", section(1.1)) == 0
    assert checked(monkeypatch, file, "ratios", section(2.0), section(1.1)) == 0
    assert "1 same" in capsys.readouterr().out
    assert checked(monkeypatch, file, "ratios", section(2.0), section(1.5)) == 1
    assert "  worse  add: 1.50, recorded 1.00 to 1.00" in capsys.readouterr().out


def test_recording_writes_what_was_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.json"
    sections = {kind: Section(kind, {f"{kind} path": entry(1)}) for kind in command.KINDS}
    monkeypatch.setattr(command, "measured", lambda kind: sections[kind])
    assert command.record(file=file) == 0
    assert load(file).keys() == sections.keys()
    sections["xla"] = Section("xla", {}, failed={"xla path": "Boom"})
    assert command.record("xla", file=file) == 1
    assert load(file)["xla"].entries == {"xla path": entry(1)}
    with pytest.raises(SystemExit, match="it knows no 'gpu'"):
        command.record("gpu", file=file)
