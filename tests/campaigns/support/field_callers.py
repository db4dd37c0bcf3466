"""The callers of `zsnapdb` in the campaign `field`: cron, a login shell, a systemd unit, a container."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.campaigns.support import restored

_LIMIT = 400.0
"""Time limit of a command in seconds."""


class Caller(StrEnum):
    """The caller of zsnapdb."""

    CRON = "cron"
    LOGIN = "login shell"
    UNIT = "unit of systemd"
    SHARED = "container, shared mounts"
    SLAVE = "container, slave mounts"
    PRIVATE = "container, private mounts"


_PROPAGATION = {Caller.SHARED: "unchanged", Caller.SLAVE: "slave", Caller.PRIVATE: "private"}
_HOSTILE: tuple[tuple[str, str], ...] = (
    ("MYSQL_HOST", "127.0.0.2"),
    ("MYSQL_TCP_PORT", "1"),
    ("MYSQL_UNIX_PORT", "/run/mysqld/mysqld.sock"),
    ("MYSQL_PWD", "wrong"),
    ("MYSQL_HOME", "/root"),
    ("MYSQL_GROUP_SUFFIX", "_site"),
    ("MYSQL_TEST_LOGIN_FILE", "/root/.mylogin.cnf"),
    ("MARIADB_HOME", "/root"),
    ("LD_LIBRARY_PATH", "/nonexistent"),
    ("LD_BIND_NOW", "1"),
    ("LD_PRELOAD", "/nonexistent/preload.so"),
    ("TMPDIR", "/nonexistent"),
    ("TZ", "Pacific/Chatham"),
    ("LANG", "de_DE.UTF-8"),
    ("LC_ALL", "tr_TR.UTF-8"),
    ("LC_NUMERIC", "de_DE.UTF-8"),
    ("LC_MESSAGES", "ja_JP.UTF-8"),
    ("ZFS_COLOR", "1"),
    ("POSIXLY_CORRECT", "1"),
    ("ZSTD_CLEVEL", "19"),
    ("PAGER", "less"),
    ("COLUMNS", "20"),
    ("NO_COLOR", "1"),
    ("LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN", "1"),
    ("MALLOC_PERTURB_", "165"),
)


@dataclass(frozen=True)
class Outcome:
    """The exit code and output of a command, with its seconds."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON document that the command printed; it may be an error document."""
        try:
            found: dict[str, Any] = json.loads(self.out)
        except ValueError:
            return {}
        return found

    @property
    def message(self) -> str:
        """Return the error with its hint, in one line. Without an error document, return the end of stderr."""
        error = self.document.get("error")
        if isinstance(error, dict):
            return f"{error.get('message')} (hint: {error.get('hint')})"
        return " ".join(line for line in self.err.splitlines() if not line.startswith("ERROR: ld.so"))[-700:]


class Calls:
    """Runs the commands of one round for one caller. `hostile`: a login shell's variables that name other servers."""

    def __init__(self, caller: Caller, chance: random.Random) -> None:
        self.caller = caller
        self.program = shutil.which("zsnapdb") or "zsnapdb"
        self.hostile = dict(chance.sample(_HOSTILE, 8)) if caller in (Caller.LOGIN, *_PROPAGATION) else {}
        self._holder: subprocess.Popen[bytes] | None = None
        if caller in _PROPAGATION:
            argv = ["unshare", "-m", "--propagation", _PROPAGATION[caller], "sleep", "100000"]
            self._holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
            deadline = time.monotonic() + 60
            while os.readlink(f"/proc/{self._holder.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                assert time.monotonic() < deadline, "unshare made no mount namespace"
                time.sleep(0.02)

    def __str__(self) -> str:
        return f"{self.caller}{''.join(f' {name}={value}' for name, value in self.hostile.items())}"

    @property
    def has_own_mounts(self) -> bool:
        """Whether mounts of the commands are not visible on the host."""
        return self.caller in (Caller.SLAVE, Caller.PRIVATE)

    def seen(self, path: str) -> str:
        """Return the host's path for a path of the commands."""
        return f"/proc/{self._holder.pid}/root{path}" if self._holder is not None else path

    def environment(self) -> Mapping[str, str]:
        match self.caller:
            case Caller.CRON:
                return {"HOME": "/root", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
            case Caller.UNIT:
                path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
                return {"PATH": path, "LANG": "C.UTF-8", "INVOCATION_ID": "0" * 32, "JOURNAL_STREAM": "8:1"}
            case _:
                return {
                    "HOME": "/root",
                    "USER": "root",
                    "SHELL": "/bin/bash",
                    "TERM": "xterm-256color",
                    "PATH": os.environ["PATH"],
                    **self.hostile,
                }

    def run(self, *words: str, document: bool = True) -> Outcome:
        """Run `zsnapdb WORDS`, with --json unless `document` is False."""
        argv = [self.program, *words, *(("--json",) if document else ())]
        if self._holder is not None:
            given = [f"{name}={value}" for name, value in self.environment().items()]
            argv = ["nsenter", "-m", "-t", str(self._holder.pid), "env", "-i", *given, *argv]
        began = time.monotonic()
        is_unit = self.caller is Caller.UNIT
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ if self._holder is not None else dict(self.environment()),
            cwd="/" if is_unit else "/root",
            # A unit ignores SIGPIPE, and its files are private.
            restore_signals=not is_unit,
            umask=0o077 if is_unit else 0o022,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            out, err = process.communicate(timeout=60)
            err += f"\nzsnapdb: did not end in {_LIMIT:.0f} s".encode()
        said = err.decode(errors="replace")
        return Outcome(words, process.returncode, out.decode(errors="replace"), said, time.monotonic() - began)

    def unmount(self, dataset: str) -> None:
        """Unmount a dataset in the container and on the host."""
        inside = ["nsenter", "-m", "-t", str(self._holder.pid)] if self._holder is not None else []
        for way in (inside, []) if inside else ([],):
            subprocess.run([*way, "umount", "-t", "zfs", dataset], capture_output=True, check=False)

    def end(self) -> None:
        if self._holder is not None:
            restored.end(self._holder.pid)
            self._holder.wait()
