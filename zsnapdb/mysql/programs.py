"""The programs that come with a server: innochecksum, the dump program, the client.

Found, proved to be of the server's family, run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from zsnapdb.config import ServerSettings
from zsnapdb.errors import CommandError, PreflightError
from zsnapdb.model import Flavour
from zsnapdb.planning.family import MARIADB, flavour_in

_PLACES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/local/mysql/bin")
_ENVIRONMENT = {"LC_ALL": "C", "LANGUAGE": "C"}
_KEPT_OUTPUT = 2000
_DAMAGE = ("invalid", "mismatch", "doesn't match page size")

INNOCHECKSUM = ("innochecksum",)
"""Both families call it so."""


def find(names: Sequence[str], settings: ServerSettings, flavour: Flavour, binary: Path) -> Path:
    """Return the program: from the configured folder, else beside the server program, else from the usual places.

    One of the other family is passed over: hosts have both, and they do not understand each other's files and servers.
    """
    places = (
        [str(settings.programs)]
        if settings.programs is not None
        else [str(binary.parent), str(binary.parent.parent / "bin"), *_PLACES]
    )
    others = []
    for place in places:
        for name in names:
            found = shutil.which(name, path=place)
            if found is None:
                continue
            if _is_of(found, flavour):
                return Path(found)
            others.append(found)
    seen = f"; {', '.join(dict.fromkeys(others))} is of the other family" if others else ""
    raise PreflightError(
        f"no {' or '.join(names)} of {flavour} was found in {', '.join(dict.fromkeys(places))}{seen}",
        hint="install it, or name its folder as server.programs of the instance",
    )


def _is_of(program: str, flavour: Flavour) -> bool:
    """Whether the program is of that family: MariaDB's say so in their version (or carry a version of 10 or later that MySQL never had)."""
    done = subprocess.run(
        [program, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=20,
        env=_environment(),
    )
    return done.returncode == 0 and is_version_of(done.stdout + done.stderr, flavour)


def is_version_of(text: str, flavour: Flavour) -> bool:
    """Whether what a program prints as its version is of that family.

    MySQL's releases are 5.x, 8.x and 9.x; innochecksum of MariaDB does not name its family, but its release is 10.x or
    later.
    """
    numbers = [word.strip(",") for word in text.split() if word[:1].isdigit() and "." in word]
    major = int(numbers[-1].split(".")[0]) if numbers and numbers[-1].split(".")[0].isdigit() else 0
    return flavour is (MARIADB.flavour if major >= 10 else flavour_in(text))


def _environment() -> dict[str, str]:
    return {**os.environ, **_ENVIRONMENT}


def damaged_pages(program: Path, file: Path, first: int, last: int | None, *, timeout: float) -> str | None:
    """Return what innochecksum says of a file with a page whose checksum is wrong, None if all are right.

    The file must not be in use.

    Pages from `first` to `last` (None: to the end). Exit status 1 with a word of a page is damage, anything else but 0
    is an error.
    """
    argv = [str(program)]
    if first or last is not None:
        argv += [f"--start-page={first}", *([f"--end-page={last}"] if last is not None else [])]
    argv.append(str(file))
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"`{' '.join(argv)}` did not end within {timeout:.0f} s",
            hint="raise drill.check_timeout, or lower drill.sample",
        ) from error
    if done.returncode == 0:
        return None
    words = " ".join((done.stdout + done.stderr).split())[-_KEPT_OUTPUT:]
    if any(word in words for word in _DAMAGE):
        return words
    raise CommandError(
        f"`{' '.join(argv)}` ended with exit status {done.returncode}: {words or '(it wrote nothing)'}",
        hint="is it of the server's version?",
    )


def run(argv: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None, timeout: float) -> None:
    """Run a program from one open file to another.

    CommandError with its words if it fails or takes longer than `timeout` seconds.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"`{' '.join(argv)}` did not end within {timeout:.0f} s", hint="give it more time with --timeout"
        ) from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[-_KEPT_OUTPUT:]
        raise CommandError(
            f"`{' '.join(argv)}` ended with exit status {done.returncode}: {words or '(it wrote nothing)'}"
        )


def pipe(first: Sequence[str], second: Sequence[str], *, timeout: float) -> None:
    """Run the first program into the second.

    CommandError, with the words of the one that failed first, unless both end with status 0.
    """
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as said_first, tempfile.TemporaryFile() as said_second:
        source = subprocess.Popen(
            list(first), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said_first, env=_environment()
        )
        try:
            sink = subprocess.Popen(
                list(second), stdin=source.stdout, stdout=subprocess.DEVNULL, stderr=said_second, env=_environment()
            )
        except BaseException:
            source.kill()
            source.wait()
            raise
        assert source.stdout is not None
        # Ours must go, or the first would never hear that the second is gone.
        source.stdout.close()
        try:
            statuses = [process.wait(max(0.0, deadline - time.monotonic())) for process in (sink, source)]
        except BaseException as error:
            for process in (source, sink):
                process.kill()
                process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CommandError(
                    f"`{' '.join(first)}` into `{' '.join(second)}` did not end within {timeout:.0f} s",
                    hint="give it more --timeout",
                ) from error
            raise
        for argv, status, said in ((second, statuses[0], said_second), (first, statuses[1], said_first)):
            if status != 0:
                said.seek(0)
                words = " ".join(said.read().decode(errors="replace").split())[-_KEPT_OUTPUT:]
                raise CommandError(
                    f"`{' '.join(argv)}` ended with exit status {status}: {words or '(it wrote nothing)'}"
                )
