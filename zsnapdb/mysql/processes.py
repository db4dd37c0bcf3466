"""Who keeps a server of ours running: a detached process, or a transient unit of systemd.

One small protocol; nothing restarts by itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from zsnapdb.errors import PreflightError, ServerError

SYSTEMD_RUNS = Path("/run/systemd/system")
"""There while systemd is process 1 (sd_booted(3))."""

_COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class Limits:
    """What a server may take: bytes of private writable memory, how many processors (a fraction is allowed), niceness 0 to 19 (None: its starter's)."""

    memory: int | None = None
    processors: float | None = None
    nice: int | None = None


class Launched(Protocol):
    """A server from its launch on."""

    def ended(self) -> str | None:
        """Return how it ended, in a few words; None while it runs."""

    def kill(self) -> None:
        """End it at once and wait for that."""


class ProcessManager(Protocol):
    """Starts a server so that it outlives whoever started it, within its limits."""

    def launch(self, name: str, argv: Sequence[str], log: Path, limits: Limits) -> Launched:
        """Start it, both outputs appended to `log`.

        `name` is for people who look. ServerError or PreflightError if it cannot be.
        """


def choose(wanted: str) -> ProcessManager:
    """Return the manager: `detached`, `systemd`, or `auto`, which is systemd where it is process 1 and we may ask it."""
    if wanted == "systemd" and not SYSTEMD_RUNS.is_dir():
        raise PreflightError(
            f"server.manager is systemd, which does not run here: there is no {SYSTEMD_RUNS}",
            hint="set it to detached or auto",
        )
    if wanted == "detached" or not SYSTEMD_RUNS.is_dir() or os.geteuid() != 0:
        return Detached()
    return SystemdUnits()


@dataclass(frozen=True)
class Detached:
    """A process in a session and process group of its own, which a terminal's or a service's signals to its starter's group do not reach.

    A service manager that ends a whole control group ends it too; where systemd runs, its units are the better keeper.
    """

    def launch(self, name: str, argv: Sequence[str], log: Path, limits: Limits) -> Launched:
        words = [*limiting_words(name, _relative(limits), sorted(os.sched_getaffinity(0))), *argv]
        _check_programs(words[: -len(argv)])
        with log.open("ab") as file:
            try:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd="/"
                )
            except OSError as error:
                raise ServerError(
                    f"{argv[0]} cannot be started: {error.strerror}", hint="check server.binary of the instance"
                ) from error
        if limits.nice:
            # Where the kernel schedules by session, this is what weighs one session against another (sched(7), "The
            # autogroup feature").
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text(str(limits.nice))
        return _Child(process)


def _relative(limits: Limits) -> Limits:
    """Return the limits with the steps from this thread's niceness in place of the one wanted.

    Only root goes back up.
    """
    steps = 0 if limits.nice is None else limits.nice - os.getpriority(os.PRIO_PROCESS, 0)
    return replace(limits, nice=steps if os.geteuid() == 0 else max(0, steps))


def limiting_words(name: str, limits: Limits, processors: Sequence[int]) -> list[str]:
    """Return the command words that put a program under the limits before it runs; none where there is no limit.

    RLIMIT_DATA counts private writable memory, mapped as well as heap (getrlimit(2), Linux 4.7): what a server asks for
    beyond it is refused, nobody is killed. Processors are given by affinity, a fraction rounded up; which of them
    depends on the name, so that several servers spread. `limits.nice` is counted from the starter's here.
    """
    words = ["nice", "-n", str(limits.nice)] if limits.nice else []
    if limits.memory is not None:
        words += ["prlimit", f"--data={limits.memory}"]
    if limits.processors is not None and limits.processors < len(processors):
        first = zlib.crc32(name.encode()) % len(processors)
        chosen = sorted((*processors, *processors)[first : first + math.ceil(limits.processors)])
        words += ["taskset", "-c", ",".join(str(number) for number in chosen)]
    return words


def _check_programs(words: Sequence[str]) -> None:
    for program in {"nice", "prlimit", "taskset"} & set(words):
        if shutil.which(program) is None:
            raise PreflightError(
                f"the command {program} was not found",
                hint="install util-linux and coreutils, or leave out the server's limits",
            )


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]

    def ended(self) -> str | None:
        status = self.process.poll()
        return None if status is None else f"exit status {status}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class SystemdUnits:
    """A transient service per server (systemd-run(1)): limits by control group, gone from systemd's list when it ends, whoever started it."""

    def launch(self, name: str, argv: Sequence[str], log: Path, limits: Limits) -> Launched:
        # A name of its own each time: the unit of a server just ended may not be forgotten yet.
        unit = f"zsnapdb-{name}-{secrets.token_hex(3)}.service"
        _systemd(
            ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *unit_properties(name, log, limits), "--", *argv]
        )
        pid = _systemd(["systemctl", "show", "--property=MainPID", "--value", unit]).strip()
        return _Unit(unit, int(pid or "0"))


def unit_properties(name: str, log: Path, limits: Limits) -> list[str]:
    """Return the unit's properties as words of systemd-run.

    `exec`: the command succeeds only once the server program runs (systemd.service(5)). MemoryMax and CPUQuota are the
    control group's (systemd.resource-control(5)); a kernel without these controllers passes over them, so memory is
    limited as for a detached server too.
    """
    found = {
        "Type": "exec",
        "Description": f"zsnapdb: the server of {name}",
        "StandardOutput": f"append:{log}",
        "StandardError": f"append:{log}",
        "KillMode": "control-group",
    }
    if limits.nice is not None:
        # Between control groups it is the weight that counts: a step of niceness is a factor of 1.25 (sched(7)), 100
        # the weight of who has none.
        found |= {"Nice": str(limits.nice), "CPUWeight": str(max(1, round(100 / 1.25**limits.nice)))}
    if limits.memory is not None:
        found |= {"MemoryMax": str(limits.memory), "LimitDATA": str(limits.memory)}
    if limits.processors is not None:
        found["CPUQuota"] = f"{limits.processors * 100:.0f}%"
    return [f"--property={key}={value}" for key, value in found.items()]


def _systemd(argv: Sequence[str]) -> str:
    return run(argv, timeout=_COMMAND_SECONDS)


def run(argv: Sequence[str], *, timeout: float) -> str:
    """Run a program that works on a server of ours to its end and return what it printed.

    ServerError with its words if it fails or takes too long.
    """
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, "LC_ALL": "C"}, timeout=timeout
        )
    except FileNotFoundError as error:
        raise PreflightError(f"the command {argv[0]} was not found", hint="install it") from error
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"`{argv[0]}` did not end within {timeout:.0f} s", hint="see its server's log") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise ServerError(
            f"`{argv[0]}` ended with exit status {done.returncode}: {words[-1000:]}",
            hint="see what it says, and its server's log",
        )
    return done.stdout.decode(errors="replace")


@dataclass(frozen=True)
class _Unit:
    name: str
    pid: int

    def ended(self) -> str | None:
        # With --collect systemd forgets the unit and its exit status; the server's own log has the reason.
        return None if self.pid and Path(f"/proc/{self.pid}").exists() else f"its unit {self.name} with it"

    def kill(self) -> None:
        for words in (["systemctl", "kill", "--signal=SIGKILL", self.name], ["systemctl", "stop", self.name]):
            try:
                _systemd(words)
            except ServerError:
                # A unit that ended by itself is not known any more; any other refusal is told.
                if self.ended() is None:
                    raise


def version_of(binary: Path) -> str:
    """Return the version a server program says it has, as in its `version` variable.

    PreflightError if it does not say.
    """
    try:
        done = subprocess.run(
            [str(binary), "--no-defaults", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(
            f"`{binary} --version`: {error}", hint="name the server program of the instance's version as server.binary"
        ) from error
    match = re.search(r"\bVer\s+(\S+)", done.stdout)
    if done.returncode != 0 or match is None:
        raise PreflightError(
            f"`{binary} --version` does not say a version: {done.stdout.strip()[:200]}", hint="is it a server program?"
        )
    return match.group(1)
