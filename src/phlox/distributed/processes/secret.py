"""The secret of a launch, by which its processes recognise each other: drawn anew for each launch, and never shown.

`phlox launch` passes it to its processes in their environment, which only processes of the same user can read. Other
launchers pass on PHLOX_SECRET, if the user has set it. Without it, processes of one host and one user share a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from phlox.errors import DistributedError

SECRET = "PHLOX_SECRET"
"""The environment variable with the secret of a launch."""
SHORTEST = 16
"""The fewest characters of a secret."""
_MAKE = f"export {SECRET}=$(python -c 'import secrets; print(secrets.token_hex(32))')"
_secret: str | None = None


def take_secret(environment: MutableMapping[str, str]) -> str | None:
    """The secret in the environment, or None. It is removed there, so that no log of the environment shows it.

    Raises `DistributedError` if it is too short.
    """
    global _secret
    text = environment.pop(SECRET, "").strip()
    if text and len(text) < SHORTEST:
        raise DistributedError(f"{SECRET} has fewer than {SHORTEST} characters; make one that nobody guesses: {_MAKE}")
    _secret = text or _secret  # for a later `initialize`
    return _secret


def secret_is_missing(start: str) -> DistributedError:
    """The error that says how the processes of several hosts get a secret."""
    return DistributedError(
        f"{start} {SECRET}, to the same in all of them: {_MAKE}; torchrun and phlox launch --host-rank need it on each "
        f"host, srun passes it on, and mpirun with -x {SECRET}"
    )


def derived(secret: str, *purpose: object) -> str:
    """A secret for one purpose, derived from another secret, which it does not reveal.

    >>> derived("s", "run", 1) == derived("s", "run", 1) != derived("s", "run", 2)
    True
    """
    return hmac.new(secret.encode(), "\0".join(map(str, purpose)).encode(), hashlib.sha256).hexdigest()


class SecretFile:
    """A file with a secret, which only processes of this host and user can read.

    Args:
        port: the port of the process that writes it; no other process of this host listens there.
        purpose: the name of the launch.
    """

    def __init__(self, port: int, *purpose: object) -> None:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        self._folder = Path(tempfile.gettempdir()) / f"phlox-{user}"
        self._path = self._folder / hashlib.sha256("\0".join(map(str, (port, *purpose))).encode()).hexdigest()[:32]

    def write(self) -> str:
        """Draw a secret, and write it. The port must already be bound, or another launch may use the file."""
        secret = secrets.token_hex(32)
        draft = self._path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._check()
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secret)
            draft.replace(self._path)
        except OSError as error:
            raise DistributedError(
                f"the secret of this launch cannot be kept in {self._folder} ({error.strerror}); set {SECRET} in all "
                f"processes instead ({_MAKE})"
            ) from error
        return secret

    def read(self) -> str:
        """The secret. The process that writes it must have answered before."""
        try:
            self._check()
            return self._path.read_text()
        except OSError:
            raise secret_is_missing(
                "this process was not given the secret of its launch, which processes on several hosts, or of several "
                "users, need; set"
            ) from None

    def remove(self) -> None:
        """Remove the file, when all have read it."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _check(self) -> None:
        """Raise `DistributedError` unless the folder is this user's alone; in /tmp, another user may have made it."""
        folder = self._folder.lstat()
        if not hasattr(os, "getuid"):
            return
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o077:
            raise DistributedError(
                f"{self._folder} is not a folder of this user alone, so no secret is kept in it; remove it, or set "
                f"TMPDIR or {SECRET} in all processes"
            )
