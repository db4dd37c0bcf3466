"""Server programs by version, and programs that belong to a server: innochecksum, dump program, client."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from zsnapdb.base import program_start
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.process import process_managers as server_processes
from zsnapdb.mysql.process import server
from zsnapdb.planning.server_copy.version_compatibility import objection_to, series_of
from zsnapdb.planning.server_facts import plugin_hint
from zsnapdb.planning.server_family import MARIADB, flavour_in

_PLACES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/local/mysql/bin")
_KEPT_OUTPUT = 2000
_SHOWN_WORDS = 5
_DAMAGE = ("invalid", "mismatch", "doesn't match page size")

INNOCHECKSUM = ("innochecksum",)
"""The name of innochecksum in both families."""


def find(names: Sequence[str], settings: ServerSettings, flavour: Flavour, binary: Path) -> Path:
    """Return the program from the configured folder, or else the server program's folder, or else the usual folders.

    A host can have programs of MySQL and MariaDB, and neither family can read the files of the other family. Therefore
    programs that do not belong to `flavour` are skipped. Raise PreflightError if no program is found.
    """
    places = (
        [str(settings.programs)]
        if settings.programs is not None
        else [str(binary.parent), str(binary.parent.parent / "bin"), *_PLACES]
    )
    others = []
    for place in places:
        for name in names:
            program = shutil.which(name, path=place)
            if program is None:
                continue
            if _is_of(program, flavour):
                return Path(program)
            others.append(program)
    skipped = f"; {', '.join(dict.fromkeys(others))} is of the other family" if others else ""
    raise PreflightError(
        f"no {' or '.join(names)} of {flavour} was found in {', '.join(dict.fromkeys(places))}{skipped}",
        hint="install the program, or set server.programs of the instance to its folder",
    )


def _is_of(program: str, flavour: Flavour) -> bool:
    """Return whether the program belongs to the family, according to the version that the program prints."""
    try:
        done = program_start.run([program, "--version"], timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and is_version_of((done.stdout + done.stderr).decode(errors="replace"), flavour)


def has_option(program: Path, option: str) -> bool:
    """Return whether the program's help text mentions the option."""
    done = program_start.run([str(program), "--no-defaults", "--help"], timeout=20)
    return option.encode() in done.stdout


def is_version_of(text: str, flavour: Flavour) -> bool:
    """Return whether the version text of a program belongs to the family.

    MySQL's releases are 5.x, 8.x and 9.x. The version text of MariaDB's innochecksum does not contain the family, but
    its release is 10.x or later.
    """
    numbers = [word.strip(",") for word in text.split() if word[:1].isdecimal() and "." in word]
    major = int(numbers[-1].split(".")[0]) if numbers and numbers[-1].split(".")[0].isdecimal() else 0
    return flavour is (MARIADB.flavour if major >= 10 else flavour_in(text))


def damaged_pages(program: Path, file: Path, first: int, last: int | None, *, timeout: float) -> str | None:
    """Return the output of innochecksum if a page of the file has a wrong checksum, else None.

    The file must not be in use. The pages from `first` to `last` are checked (None: to the end of the file). Raises
    CommandError if innochecksum fails without reporting a wrong page.
    """
    pages = [f"--start-page={first}", *([f"--end-page={last}"] if last is not None else [])]
    return _checksum_errors(program, [*(pages if first or last is not None else []), str(file)], timeout)


def damaged_files(program: Path, files: Sequence[Path], *, timeout: float) -> dict[Path, str]:
    """Return the output of innochecksum for each file that has a page with a wrong checksum.

    One process reads all files. The files must not be in use. Each file has the time limit `timeout`, in seconds. If
    innochecksum finds damage or fails, each file is checked on its own, and errors are raised as by `damaged_pages`.
    """
    try:
        if _checksum_errors(program, [str(file) for file in files], timeout * len(files)) is None:
            return {}
    except CommandError:
        # The check of the single files raises the error that names the file.
        pass
    results = {file: damaged_pages(program, file, 0, None, timeout=timeout) for file in files}
    return {file: words for file, words in results.items() if words is not None}


def _checksum_errors(program: Path, arguments: Sequence[str], timeout: float) -> str | None:
    argv = [str(program), *arguments]
    try:
        done = program_start.run(argv, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"`{_shortened(argv)}` did not end within {timeout:.0f} s",
            hint="raise drill.check_timeout, or lower drill.sample",
        ) from error
    if done.returncode == 0:
        return None
    words = " ".join((done.stdout + done.stderr).decode(errors="replace").split())[-_KEPT_OUTPUT:]
    if any(word in words for word in _DAMAGE):
        return words
    raise CommandError(
        f"`{_shortened(argv)}` ended with exit status {done.returncode}: {words or '(no output)'}",
        hint="does the program have the version of the server?",
    )


def _shortened(argv: Sequence[str]) -> str:
    return " ".join(argv if len(argv) <= _SHOWN_WORDS else [*argv[:_SHOWN_WORDS], "..."])


def run(argv: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None, timeout: float) -> None:
    """Run a program that reads the open file `stdin` and writes the open file `stdout`.

    Raises CommandError with the program's output if the program fails or takes longer than `timeout` seconds.
    """
    try:
        done = program_start.run(
            argv, stdin=stdin or subprocess.DEVNULL, stdout=stdout or subprocess.DEVNULL, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{' '.join(argv)}` did not end within {timeout:.0f} s", hint="raise --timeout") from error
    if done.returncode != 0:
        raise _failure(argv, done.returncode, done.stderr)


def _failure(argv: Sequence[str], status: int, output: bytes) -> CommandError:
    words = " ".join(output.decode(errors="replace").split())[-_KEPT_OUTPUT:]
    message = f"`{' '.join(argv)}` ended with exit status {status}: {words or '(no output)'}"
    return CommandError(message, hint=plugin_hint(words))


@dataclass(frozen=True)
class Feed:
    """The input of a program. It is a text, followed by the output of the command `argv` (None: only the text)."""

    text: bytes
    argv: Sequence[str] | None


def pipe(first: Sequence[str], second: Sequence[str], *, timeout: float) -> None:
    """Run two programs. The second program reads the output of the first program.

    Raises CommandError if a program does not exit with 0. The error contains the stderr of the failed program. If both
    programs failed, it contains the stderr of the second program.
    """
    feed([Feed(b"", first)], second, timeout=timeout)


def _write(into: IO[bytes], text: bytes, argv: Sequence[str], deadline: float) -> None:
    """Write the text to a pipe. Raises TimeoutExpired if the program `argv` does not read the text before the deadline.

    poll(2) reports a pipe as writable if PIPE_BUF bytes fit, so that no write blocks. The descriptor is not made
    non-blocking, because other programs inherit it.
    """
    writable = select.poll()
    writable.register(into.fileno(), select.POLLOUT)
    for start in range(0, len(text), select.PIPE_BUF):
        while not writable.poll(program_start.poll_timeout(deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(argv, 0.0)
        os.write(into.fileno(), text[start : start + select.PIPE_BUF])


def feed(feeds: Sequence[Feed], second: Sequence[str], *, timeout: float) -> None:
    """Run a program that reads the feeds as its input, one after the other.

    Raises CommandError in the same cases as `pipe`.
    """
    deadline = time.monotonic() + timeout
    argv: Sequence[str] = second
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as errors_of_second:
        sink = program_start.start(second, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors_of_second)
        source: subprocess.Popen[bytes] | None = None
        try:
            assert sink.stdin is not None
            status = 0
            with contextlib.suppress(BrokenPipeError), sink.stdin as into:
                for one in feeds:
                    _write(into, one.text, second, deadline)
                    if one.argv is not None:
                        argv = one.argv
                        source = program_start.start(argv, stdout=into, stderr=errors)
                        status = source.wait(max(0.0, deadline - time.monotonic()))
                    if status != 0:
                        break
            status_of_second = sink.wait(max(0.0, deadline - time.monotonic()))
        except BaseException as error:
            for process in (source, sink):
                if process is not None:
                    process.kill()
                    process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CommandError(
                    f"`{' '.join(argv)}` into `{' '.join(second)}` did not end within {timeout:.0f} s",
                    hint="raise --timeout",
                ) from error
            raise
        for failed, code, output in ((second, status_of_second, errors_of_second), (argv, status, errors)):
            if code != 0:
                output.seek(0)
                raise _failure(failed, code, output.read())


@dataclass(frozen=True)
class ServerProgram:
    """A server program of this host, and the version that the program prints."""

    path: Path
    version: str


def choose_program(settings: ServerSettings, flavour: Flavour, recorded: str) -> Path:
    """Return the program for files of version `recorded`, without checking whether the program fits.

    The program configured for this series is preferred to `server.binary`, and `server.binary` to an installed program.
    Raises PreflightError if none of them exists.
    """
    return server.find_binary(settings.binaries.get(series_of(recorded), settings.binary), flavour)


def fitting_program(settings: ServerSettings, flavour: Flavour, recorded: str) -> ServerProgram:
    """Return the program for files of version `recorded`.

    Raises PreflightError if no program exists, or if the program cannot use these files.
    """
    path = choose_program(settings, flavour, recorded)
    version = server_processes.version_of(path)
    objection = objection_to(flavour, recorded, version)
    if objection is not None:
        raise PreflightError(
            f"{path} cannot be started on these files: {objection}",
            hint=(
                f"keep a server program of series {series_of(recorded)} on this host, and name it: --binary PATH, or"
                f' binaries = {{"{series_of(recorded)}" = "PATH"}} under server of the instance'
            ),
        )
    return ServerProgram(path, version)
