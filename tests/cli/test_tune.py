"""`phlox tune`: programs of a user, run as they are; what is seen of them, and what is said.

Serves: phlox/cli/tuning/{child,trial}.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend.settings import VARIABLES, Settings, applied, read_file
from phlox.cli import main
from phlox.cli.tuning.trial import Program, run
from phlox.host.threads import VARIABLES as THREADS
from tests.cli.support import ENVIRONMENT

QUICK = ["tune", "--seconds", "0.02", "--rounds", "2"]

STEP = """
    import sys
    from pathlib import Path
    import phlox as px
    from phlox import nn, optim
    from phlox.backend import settings

    with Path("runs.txt").open("a") as file:
        file.write("once\\n")
    px.random.seed(0)
    model = nn.Linear(3, 2, device={device}).init().train()
    optimizer, x = optim.SgdConfig().init(), px.ones((4, 3), device={device})

    def step(model, optimizer, x):
        loss = model(x).square().mean(){bent}
        return optimizer.step(0.01, model, px.GradientsParams.from_grads(loss.backward(), model)), loss

    {compiled}
    for _ in range({turns}):
        model, loss = step(model, optimizer, x)
    """

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a program into the folder that becomes the current one, and gives its name."""
    monkeypatch.chdir(tmp_path)

    def written(
        text: str = STEP, device: str = "None", compiled: bool = True, turns: int = 100000, bent: str = ""
    ) -> str:
        line = "step = px.compile(step)" if compiled else ""
        text = text.format(device=device, compiled=line, turns=turns, bent=bent) if text is STEP else text
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return "script.py"

    return written


def test_a_program_is_run_as_it_is_and_compared(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write()
    before = Path(script).read_bytes()
    assert main([*QUICK, "--devices", "numpy", "--save", "tuned.json", script, "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and Path(script).read_bytes() == before
    assert "  unchanged: " in out and "  allocator keep: " in out and "on numpy:cpu" in out
    assert "A step is a call of step. The fastest were run 2 times, alternating." in lines
    table = [line for line in lines if line.startswith(("unchanged  ", "allocator keep  "))]
    assert len(table) == 2 and any(line.split()[3] == "ms" or "1.00" in line for line in table)
    assert len(Path("runs.txt").read_text().splitlines()) == 4
    content = json.loads(Path("tuned.json").read_text())
    assert content["measured"]["script"] == script and content["measured"]["step"] == "step"
    assert read_file("tuned.json").over(applied()) == read_file("tuned.json")  # all that is to hold
    assert read_file("tuned.json").allocator in (None, "keep")
    assert ("tuned.json" in lines[-1]) and ("PHLOX_ALLOCATOR=keep" in out) is ("allocator" in content)


def test_the_steps_of_an_eager_program_are_its_optimizers(write: Write) -> None:
    script = write(compiled=False)
    trial = run(Program(script, [], 0.02, 60.0), Settings(), None)
    assert trial.problem is None and trial.step == "OptimizerAdaptor.step" and trial.device == "numpy:cpu"
    compiled = run(Program(write(), [], 0.02, 60.0), Settings(), None)
    assert compiled.step == "step" and len(compiled.windows) >= 3
    px.random.seed(0)
    model = nn.Linear(3, 2).init()
    weight, bias = (np.asarray(one.val().numpy(), np.float64) for one in (model.weight, model.bias) if one is not None)
    y = weight.sum(0) + bias
    assert compiled.value == pytest.approx(np.square(y).mean(), rel=1e-5)  # the loss
    after = np.append(weight - 0.01 * y, bias - 0.01 * y)  # what the optimizer returns
    assert trial.value == pytest.approx(np.abs(after).mean(), rel=1e-5)
    assert trial.peak_memory is None or trial.peak_memory > 1e7


@pytest.mark.full
def test_a_call_of_several_steps_is_several_steps(write: Write) -> None:
    script = write(
        """
        import time
        import phlox as px

        def slow(x):
            time.sleep(0.002)
            return x + 1.0

        slow = px.compile(slow, steps=10)
        for _ in range(1000):
            slow(px.ones(()))
        """
    )
    trial = run(Program(script, [], 0.1, 60.0), Settings(), "slow")
    assert trial.step == "slow" and min(trial.windows) >= 0.002  # sleeping takes at least as long as it is asked to
    assert sorted(trial.windows)[0] < 0.02  # which ten of them would take


@pytest.mark.full
def test_of_several_functions_it_is_the_one_that_takes_the_time(write: Write) -> None:
    script = write(
        """
        import time
        import phlox as px
        quick = px.compile(lambda x: x)

        @px.compile
        def slow(x):
            time.sleep(0.01)
            return quick(x)

        for _ in range(1000):
            slow(quick(px.ones(())))
        """
    )
    assert run(Program(script, [], 0.05, 60.0), Settings(), None).step == "slow"


@pytest.mark.full
def test_a_device_is_tried_where_the_script_names_none(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--seconds", "0.02", "--rounds", "1", "--devices", "jax", write()]) == 0
    out = capsys.readouterr().out
    assert "  unchanged: " in out and "on numpy:cpu" in out
    assert "  device jax: " in out and "on jax:cpu" in out and "different values" not in out


@pytest.mark.full
@pytest.mark.parametrize("device", ["'numpy'", "px.backend.NumPy().device()"])
def test_a_script_that_names_its_device(device: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--seconds", "0.02", "--rounds", "1", "--devices", "jax", write(device=device)]) == 0
    out = capsys.readouterr().out
    assert "Note: the script names its device (numpy:cpu), so the default makes no difference." in out
    assert "  device jax: " in out and "jax" not in out[out.index("A step is") :]  # the table, and the advice


@pytest.mark.full
def test_no_step_is_seen(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--devices", "numpy", write("print('done')")]) == 0
    assert "No step was detected; the time is that of the whole script." in capsys.readouterr().out


def test_values_that_differ_are_told_and_not_chosen(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    bent = " * (2.0 if settings.applied().allocator else 1.0)"
    assert main([*QUICK, "--devices", "numpy", write(bent=bent)]) == 0
    out = capsys.readouterr().out
    assert "different values: " in out and "at step 1" in out and "Nothing was clearly faster" in out


@pytest.mark.full
def test_values_that_differ_from_run_to_run_are_not_compared(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--devices", "numpy", write(bent=" * __import__('random').random()")]) == 0
    out = capsys.readouterr().out
    assert "Note: two runs of the same configuration disagreed (no seed?), so no values were compared." in out
    assert "different values" not in out


CRASH = """
    import os, signal, sys
    import phlox as px
    from phlox.backend import settings
    step = px.compile(lambda x: x + 1.0)
    for number in range(100000):
        if number == 3 and settings.applied().allocator == "keep":
            {end}
        step(px.ones((2,)))
    """

ENDS = {
    "signal": ("os.kill(os.getpid(), signal.SIGILL)", "crashed (SIGILL)"),
    "error": ("raise ValueError('no such thing')", "ValueError: no such thing"),
    "exit": ("sys.exit('given up')", "exit: given up"),
    "status": ("os._exit(7)", "ended with status 7"),
}


@pytest.mark.parametrize(
    "case", ["signal", *(pytest.param(one, marks=pytest.mark.full) for one in ENDS if one != "signal")]
)
def test_a_candidate_that_fails_is_a_line(case: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    end, says = ENDS[case]
    assert main([*QUICK, "--devices", "numpy", write(CRASH.format(end=end))]) == 0
    out = capsys.readouterr().out
    assert f"  allocator keep: {says}\n" in out and out.count(says) == 2 and "Nothing was clearly faster" in out


def test_a_script_that_does_not_run(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, write("import phlox\nraise KeyError('weights')")]) == 1
    out = capsys.readouterr().out
    assert "unchanged: KeyError: 'weights'" in out and "fails without any change, so there is nothing to compare" in out


def test_a_run_that_takes_too_long(write: Write) -> None:
    trial = run(Program(write("import time\ntime.sleep(600)"), [], 0.02, 0.5), Settings(), None)
    assert trial.problem == "its steps were not measured within 0.5 s" and not trial.windows


WRONG = {
    "no script": ([], "SCRIPT is missing"),
    "missing": (["nowhere.py"], "nowhere.py: is missing; give a Python program"),
    "folder": (["."], ".: is not a file"),
    "device": (["--devices", "tpu", "script.py"], "--devices: unknown device 'tpu' (known: jax, numpy, torch)"),
    "flags": (["--xla-flags", "fast", "script.py"], "--xla-flags holds flags of XLA, which begin with `--xla_`"),
    "folder to save": (["--save", "no/tuned.json", "script.py"], "no/tuned.json: the folder"),
    "file to save": (["--save", "script.py", "script.py"], "script.py: is no file of settings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_one_sentence(case: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = WRONG[case]
    write()
    assert main(["tune", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err and not Path("runs.txt").exists()


@pytest.mark.parametrize("option", [["--seconds", "0"], ["--rounds", "0"], ["--limit", "long"]], ids=" ".join)
def test_wrong_options_are_one_sentence(option: list[str], write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *option, write()])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1 and option[0] in err and repr(option[1]) in err


def test_what_would_be_tried_and_what_can_be_set(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write()
    assert main(["tune", "--dry-run", "--devices", "jax", "--xla-flags=--xla_mine=1", script]) == 0
    out = capsys.readouterr().out
    assert "also on jax" in out and "    allocator keep\n" in out and "xla_flags mine=1" in out and "torch" not in out
    assert main(["tune", "--list"]) == 0
    assert "PHLOX_ALLOCATOR" in capsys.readouterr().out and not Path("runs.txt").exists()


def test_a_number_of_threads_that_is_given_elsewhere_stays(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    # As it is for the tests: each library has one thread.
    assert main(["tune", "--dry-run", write()]) == 0
    out = capsys.readouterr().out
    assert "is set and overrides PHLOX_THREADS, so no thread counts were tried" in out and "threads 1" not in out


def test_what_was_saved_holds_in_a_new_process(write: Write) -> None:
    write()
    Path("tuned.json").write_text('{"device": "jax", "allocator": "keep"}')
    program = "import phlox as px; print(px.ones((2,)).device, px.backend.settings.applied().allocator)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "PHLOX_SETTINGS": "tuned.json"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "jax:cpu keep\n"


@pytest.mark.full
def test_present_settings_are_not_candidates(write: Write) -> None:
    environment = {**ENVIRONMENT, "PHLOX_ALLOCATOR": "keep"}
    done = subprocess.run(
        [sys.executable, "-m", "phlox", "tune", "--dry-run", write()],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "allocator" not in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of POSIX")
@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interruption_shows_what_is_known(write: Write) -> None:
    write()
    with subprocess.Popen(
        [sys.executable, "-m", "phlox", "tune", "--seconds", "600", "script.py"], env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while not Path("runs.txt").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "phlox: interrupted" in err and "Traceback" not in out + err
    with pytest.raises(ProcessLookupError):  # nothing goes on in the background
        os.kill(_pid_of("script.py"), 0)


def _pid_of(script: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            here = (folder / "cwd").resolve() == Path.cwd()
        except OSError:
            continue
        if b"phlox.cli.tuning.child" in words and script.encode() in words and here:
            return int(folder.name)
    raise ProcessLookupError


PAGE = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")


def block(kind: str, part: str) -> list[str]:
    """The lines of the first block of the page that has this part."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return next(text for text in found if part in text).splitlines()


@pytest.mark.full
def test_the_page_shows_what_is_printed(write: Write) -> None:
    write("\n".join(block("python", "px.compile(")))
    Path("script.py").rename("train.py")
    command, *shown = block("console", "--dry-run")
    engines = {*THREADS, *VARIABLES.values()}
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)[1:]],
        env={name: value for name, value in ENVIRONMENT.items() if name not in engines},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # How many numbers of threads there are is the machine's.
    assert [line for line in done.stdout.splitlines() if "threads" not in line] == [
        line for line in shown if "threads" not in line
    ]
    measured = block("console", "--save")
    names = [line.partition(": ")[0].strip() for line in measured[2 : measured.index("")]]
    singles = [line.strip() for line in shown[shown.index("  jax:") + 1 : -1]]
    assert names == ["unchanged", "device jax", *(f"device jax, {single}" for single in singles)]


def test_the_page_names_every_setting_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads("\n".join(block("json", "measured")))
    assert content.keys() == {*VARIABLES, "measured"}
    for variable in (*VARIABLES.values(), "PHLOX_SETTINGS"):
        assert f"| `{variable}` |" in PAGE
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    for option in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--xla"}:
        assert f"`{option}" in PAGE or option.startswith("--xla_"), option
