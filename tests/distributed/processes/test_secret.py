from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from phlox.distributed.processes import secret
from phlox.distributed.processes.secret import SECRET, SecretFile, derived, take_secret
from phlox.errors import DistributedError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(secret, "_secret", None)
    return tmp_path


def test_it_is_taken_out_of_the_environment() -> None:
    environment = {SECRET: " 0123456789abcdef\n", "HOME": "/"}
    assert take_secret(environment) == "0123456789abcdef" and environment == {"HOME": "/"}
    assert take_secret(environment) == "0123456789abcdef"  # for a second `initialize`


def test_a_short_one_is_refused_and_not_shown() -> None:
    with pytest.raises(DistributedError, match="PHLOX_SECRET has fewer than 16 characters") as caught:
        take_secret({SECRET: "swordfish"})
    assert "swordfish" not in str(caught.value)
    assert take_secret({SECRET: ""}) is None


def test_a_file_is_for_this_user_alone(place: Path) -> None:
    file = SecretFile(5000, "run")
    written = file.write()
    assert len(written) == 64 and SecretFile(5000, "run").read() == written
    (path,) = place.glob("phlox-*/*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert file.write() != written and SecretFile(5000, "run").read() != written  # one for each launch
    for other in (SecretFile(5001, "run"), SecretFile(5000, "another")):
        with pytest.raises(DistributedError, match="was not given the secret of its launch.* set PHLOX_SECRET"):
            other.read()
    file.remove()
    assert not list(place.glob("phlox-*/*"))
    file.remove()


@pytest.mark.parametrize("trick", ["open to others", "a link", "a file"])
def test_a_folder_that_another_user_may_have_made_is_not_used(trick: str, place: Path) -> None:
    SecretFile(5000).write()
    (folder,) = place.glob("phlox-*")
    if trick == "open to others":
        folder.chmod(0o777)
    else:
        folder.rename(place / "elsewhere")
        if trick == "a link":
            folder.symlink_to(place / "elsewhere")
        else:
            folder.write_text("")
    for use in (SecretFile(5000).write, SecretFile(5000).read):
        with pytest.raises(DistributedError, match="is not a folder of this user alone|cannot be kept in"):
            use()


def test_a_derived_secret_tells_nothing_of_its_origin() -> None:
    made = {derived("a secret", *purpose) for purpose in ((), ("a",), ("a", "b"), ("b",), (1,))}
    assert len(made) == 5 and all(len(one) == 64 and "a secret" not in one for one in made)
