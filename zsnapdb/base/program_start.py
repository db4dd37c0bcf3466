"""Starts programs of servers and of the host: clients, servers, tools of MySQL, MariaDB, OpenZFS and systemd.

Each gets the environment of `child_environment.for_programs`, whatever the person who runs zsnapdb has in theirs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import IO, Any, NoReturn

from zsnapdb.base.child_environment import for_programs, for_terminal

Output = IO[Any] | int


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output = subprocess.PIPE,
    stderr: Output = subprocess.PIPE,
    own_group: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end. `own_group`: Ctrl-C on the terminal does not reach it.

    Raises:
        OSError: the program cannot be started
        subprocess.TimeoutExpired: it did not end within `timeout` seconds, and was killed
    """
    return subprocess.run(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=for_programs(),
        timeout=timeout,
        process_group=0 if own_group else None,
    )


def start(
    argv: Sequence[str],
    *,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output,
    stderr: Output,
    own_group: bool = False,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program and return its process; its pipes are not buffered. `own_session`: it outlives our terminal.

    Raises:
        OSError: the program cannot be started
    """
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=for_programs(),
        bufsize=0,
        process_group=0 if own_group else None,
        start_new_session=own_session,
        cwd="/" if own_session else None,
    )


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by an interactive client."""
    os.execve(argv[0], list(argv), for_terminal())  # noqa: S606 - no shell
