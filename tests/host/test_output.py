"""A stream that is not there, or is gone: the program goes on."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from phlox.host.output import Output


class Full(io.StringIO):
    def write(self, text: str, /) -> int:
        raise OSError(28, "full")


def test_what_cannot_be_written_is_dropped() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, Full(), closed):
        said = Output(stream)
        assert said.isatty() is False
        assert said.write("a") == 0
        said.flush()
        assert said.stream is None
    works = io.StringIO()
    assert Output(works).write("abc") == 3 and works.getvalue() == "abc"


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes of this kind")
def test_a_reader_that_goes_ends_nothing() -> None:
    program = (
        "import sys\nfrom phlox.host.output import output\nsaid = output()\n"
        "for _ in range(100000):\n    said.write('a line\\n')\nsaid.flush()\nsys.stderr.write('done')"
    )
    done = subprocess.run(
        f"{sys.executable} -c \"{program}\" | head -1", shell=True, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.stdout == "a line\n" and done.stderr == "done"
