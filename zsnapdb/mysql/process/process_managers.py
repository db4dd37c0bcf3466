"""Process managers that start servers in a sandbox, as detached processes or as systemd units."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pwd
import re
import resource
import secrets
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from zsnapdb.base import program_start
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.base.program_start import search_path
from zsnapdb.base.safe_open import open_to_append
from zsnapdb.planning.server_copy.sandbox import MountSeen, ProcessSeen, Sandbox

_LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
FAILED = "zsnapdb sandbox: "
"""Prefix of the line that the launcher writes to the server's log if the sandbox cannot be built."""
_HINT = (
    'start zsnapdb as root on a kernel with mount namespaces and seccomp; sandbox = "off" under server of the'
    " instance starts it without a sandbox"
)


def sandbox_prefix(sandbox: Sandbox, user: str) -> list[str]:
    """Return the command prefix that starts a program in the sandbox as the account `user`.

    Root must run the command. Raise PreflightError if the caller is not root.
    """
    if os.geteuid() != 0:
        raise PreflightError("only root can start the server of a copy in a sandbox", hint=_HINT)
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    plan = {**asdict(sandbox), "account": {"uid": entry.pw_uid, "gid": entry.pw_gid, "groups": groups}}
    return [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(plan)]


def sandbox_refusal(log: str) -> PreflightError | None:
    """Return the error that the last lines of the server's log report, if the sandbox could not be built."""
    last = log.splitlines()[-1] if log else ""
    if not last.startswith(FAILED):
        return None
    return PreflightError(f"the sandbox of the server cannot be made: {last.removeprefix(FAILED)}", hint=_HINT)


def inspect_process(pid: int) -> ProcessSeen:
    """Return the facts that the kernel reports about a running server. Raise OSError if the process has ended."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text(errors="replace").splitlines()
    return ProcessSeen(
        os.readlink(process / "ns/mnt") == os.readlink("/proc/self/ns/mnt"),
        mounts_in(os.fsdecode((process / "mountinfo").read_bytes())),
        {name: value.strip() for name, _, value in (line.partition(":") for line in lines)},
    )


def mounted_devices(process: Path) -> set[int]:
    """Return the device numbers of the file systems that a process can see. `process` is its folder of proc(5).

    A process without rights on the host cannot add another file system of the host to its mount namespace.
    """
    lines = (process / "mountinfo").read_bytes().splitlines()
    return {os.makedev(*map(int, line.split()[2].split(b":"))) for line in lines}


def mounts_in(text: str) -> tuple[MountSeen, ...]:
    """Return the mounts in a mountinfo file (proc(5)) in mount order.

    A mount is read-only if either of its `ro` options is set.
    """
    mounts = []
    for line in text.split("\n"):
        left, separator, right = line.partition(" - ")
        if separator:
            path, options = left.split(" ")[4:6]
            fstype, _, of_system = right.split(" ")[:3]
            is_writable = "rw" in options.split(",") and "rw" in of_system.split(",")
            mounts.append(MountSeen(_plain(path), fstype, is_writable))
    return tuple(mounts)


def _plain(word: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def sandbox_properties(sandbox: Sandbox) -> dict[str, str]:
    """Return the properties of a unit that runs the launcher. They restrict the server in addition to the launcher.

    The launcher needs root and its capabilities until it executes the server, which runs without them. IPAddressDeny
    and IPAddressAllow need a kernel with BPF for control groups (systemd.resource-control(5)); other kernels ignore
    them. Both properties filter incoming and outgoing traffic, so they are not set for a server that accepts or opens
    remote connections.
    """
    used = [*sandbox.writable, *sandbox.readable, sys.executable, str(_LAUNCHER)]
    is_temporary = any(path.startswith(("/tmp/", "/var/tmp/")) for path in used)  # noqa: S108 - not made here
    network = {"IPAddressDeny": "any", "IPAddressAllow": "localhost"}
    return {
        "ProtectSystem": "strict",
        "ReadWritePaths": " ".join(json.dumps(path.replace("%", "%%")) for path in sandbox.writable),
        **({} if is_temporary else {"PrivateTmp": "yes"}),
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "CAP_SYS_ADMIN CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_DAC_READ_SEARCH",
        "RestrictSUIDSGID": "yes",
        "LockPersonality": "yes",
        "SystemCallArchitectures": "native",
        **({} if sandbox.answers_beyond or sandbox.connects else network),
    }


SYSTEMD_RUNS = Path("/run/systemd/system")
"""A folder that exists only while systemd is process 1 (sd_booted(3))."""

_COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class Limits:
    """Resource limits of a server. None means no limit.

    `memory` limits the private writable memory in bytes. The number `processors` may be a fraction. `nice` is a
    niceness from 0 to 19 (None means the niceness of this process).
    """

    memory: int | None = None
    processors: float | None = None
    nice: int | None = None


class Launched(Protocol):
    """A server that a process manager has started."""

    def ended(self) -> str | None:
        """Return a short description of how the server ended; None while the server runs."""

    def kill(self) -> None:
        """Kill the server and wait until it has ended."""


class ProcessManager(Protocol):
    """The interface for starting servers with limits. A server keeps running after the process that started it ends."""

    def launch(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        limits: Limits,
        user: str,
        sandbox: Sandbox | None,
        zone: str | None = None,
    ) -> Launched:
        """Start the server as the account `user` in the sandbox, or without a sandbox if `sandbox` is None.

        Append its output to `log`. If the caller is root, the server runs as `user` from its first instruction.
        Otherwise, it runs as the caller's account. `name` is the label of the server for people. `zone` is the value of
        TZ in the server's environment; None leaves TZ unset. Raise ServerError or PreflightError if the server cannot
        be started.
        """


def choose(manager: str) -> ProcessManager:
    """Return the manager: `detached`, `systemd`, or `auto` (systemd if it is process 1 and the caller is root)."""
    if manager == "systemd" and not SYSTEMD_RUNS.is_dir():
        raise PreflightError(
            f"server.manager is systemd, but systemd does not run on this host: there is no {SYSTEMD_RUNS}",
            hint="set server.manager to detached or auto",
        )
    if manager == "detached" or not SYSTEMD_RUNS.is_dir() or os.geteuid() != 0:
        return Detached()
    return SystemdUnits()


@dataclass(frozen=True)
class Detached:
    """Manager for a process in its own session and process group.

    The process does not get signals that a terminal or a service sends to the process group of its starter. But if a
    service manager ends the whole control group, this process ends too. Therefore a unit is the better choice with
    systemd.
    """

    def launch(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        limits: Limits,
        user: str,
        sandbox: Sandbox | None,
        zone: str | None = None,
    ) -> Launched:
        limiting = limiting_arguments(name, _relative(limits), sorted(os.sched_getaffinity(0)))
        words = [*limiting, *widening_arguments(_inherited(), limits), *_entry_words(user, sandbox), *argv]
        _check_programs(words[: -len(argv)])
        if shutil.which(argv[0], path=search_path()) is None:
            raise ServerError(
                f"{argv[0]} cannot be started: there is no such executable file",
                hint="check server.binary of the instance",
            )
        with open_to_append(log, None) as file:
            try:
                process = program_start.start(words, stdout=file, stderr=file, own_session=True, zone=zone)
            except OSError as error:
                raise ServerError(
                    f"{argv[0]} cannot be started: {error.strerror}", hint="check server.binary of the instance"
                ) from error
        if limits.nice:
            # If the kernel schedules by session, `nice` only matters within a session, and the session has its own
            # weight (sched(7), "The autogroup feature").
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text(str(limits.nice))
        return _Child(process)


def started_at(process: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if the process has ended.

    Together with the process id, the start time identifies a process. Source: proc_pid_stat(5), starttime.
    """
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_younger(process: int, seconds: float) -> bool:
    """Return whether a process started less than `seconds` ago; False if the process has ended."""
    started = started_at(process)
    now = float(Path("/proc/uptime").read_text().split()[0])
    return started is not None and now - started / os.sysconf("SC_CLK_TCK") < seconds


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process in bytes; 0 if the process has ended. Source: proc(5), statm."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _relative(limits: Limits) -> Limits:
    """Return the limits with `nice` relative to this thread's niceness; not below 0, unless the caller is root."""
    steps = 0 if limits.nice is None else limits.nice - os.getpriority(os.PRIO_PROCESS, 0)
    return replace(limits, nice=steps if os.geteuid() == 0 else max(0, steps))


_OPEN_FILES = 524_288
"""The number of open files that a systemd service may have (systemd.exec(5), DefaultLimitNOFILE), if the kernel allows
so many.
"""
_CAP_SYS_RESOURCE = 1 << 24
"""The capability to raise a hard limit (capabilities(7)). Root in a container may lack this capability."""
_INHERITED = {
    "nofile": resource.RLIMIT_NOFILE,
    "fsize": resource.RLIMIT_FSIZE,
    "as": resource.RLIMIT_AS,
    "cpu": resource.RLIMIT_CPU,
    "data": resource.RLIMIT_DATA,
}


def _inherited() -> dict[str, tuple[int, int]]:
    """Return the soft and hard limits that child processes inherit; empty if this process may not raise limits."""
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if rights is None or not int(rights[1], 16) & _CAP_SYS_RESOURCE:
        return {}
    return {name: resource.getrlimit(number) for name, number in _INHERITED.items()}


def widening_arguments(inherited: Mapping[str, tuple[int, int]], limits: Limits) -> list[str]:
    """Return the command prefix that raises limits inherited from the calling shell; empty if no limit is too low.

    If a limit is too low, the server cannot open all its files, and reports them as damaged.
    """
    options = [
        f"--{name}=unlimited:unlimited"
        for name, (soft, _) in inherited.items()
        if name != "nofile" and soft != resource.RLIM_INFINITY and (name, limits.memory is None) != ("data", False)
    ]
    soft, hard = inherited.get("nofile", (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if hard != resource.RLIM_INFINITY and hard < min(_OPEN_FILES, _most_open_files()):
        options.append(f"--nofile={max(soft, 1024)}:{min(_OPEN_FILES, _most_open_files())}")
    return ["prlimit", *options] if options else []


def _most_open_files() -> int:
    """Return the maximum number of open files that the kernel allows (proc_sys_fs(5), nr_open)."""
    try:
        return int(Path("/proc/sys/fs/nr_open").read_text())
    except (OSError, ValueError):
        return 1 << 20


def limiting_arguments(name: str, limits: Limits, processors: Sequence[int]) -> list[str]:
    """Return the command prefix that limits a program; empty if no limit is set.

    RLIMIT_DATA limits private writable memory, which includes mappings and heap (getrlimit(2), Linux 4.7). At the
    limit, the kernel refuses more memory, but kills no process. Processors are limited by affinity; a fraction is
    rounded up. `name` determines the processors, so that several servers use different processors. `limits.nice` is
    added to the niceness of the caller.
    """
    words = ["nice", "-n", str(limits.nice)] if limits.nice else []
    if limits.memory is not None:
        words += ["prlimit", f"--data={limits.memory}"]
    if limits.processors is not None and limits.processors < len(processors):
        first = zlib.crc32(name.encode()) % len(processors)
        chosen = sorted((*processors, *processors)[first : first + math.ceil(limits.processors)])
        words += ["taskset", "-c", ",".join(str(number) for number in chosen)]
    return words


def _entry_words(user: str, sandbox: Sandbox | None) -> list[str]:
    if sandbox is not None:
        return sandbox_prefix(sandbox, user)
    return account_words(user)


def account_words(user: str) -> list[str]:
    """Return the command prefix that switches from root to the account and its groups (setpriv(1)).

    It is empty if the caller is not root. In a command, this prefix must come after the prefix that sets the limits,
    because only root can set limits. Raises PreflightError if the account does not exist.
    """
    if os.geteuid() != 0:
        return []
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise PreflightError(f"the account {user} does not exist", hint="set server.user of the instance") from error
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]


def _check_programs(words: Sequence[str]) -> None:
    for program in {"nice", "prlimit", "taskset", "setpriv"} & set(words):
        if shutil.which(program, path=search_path()) is None:
            raise PreflightError(f"the command {program} was not found", hint="install util-linux and coreutils")


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
    """Manager that runs each server as a transient service (systemd-run(1)).

    The service's control group limits the server.

    systemd removes the unit when the server ends.
    """

    def launch(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        limits: Limits,
        user: str,
        sandbox: Sandbox | None,
        zone: str | None = None,
    ) -> Launched:
        entry = [] if sandbox is None else sandbox_prefix(sandbox, user)
        # Each start uses a new name, because systemd may still know the unit of a server that has just ended.
        unit = f"zsnapdb-{name}-{secrets.token_hex(3)}.service"
        with open_to_append(log, None) as file:
            # systemd opens the log as root. This path leads to the file that was checked (proc_pid_fd(5)), even if the
            # server's account has replaced the log.
            opened = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
            properties = unit_properties(name, opened, limits, user, sandbox)
            properties += [] if zone is None else [f"--property=Environment=TZ={zone}"]
            _systemd(["systemd-run", "--quiet", "--collect", f"--unit={unit}", *properties, "--", *entry, *argv])
        pid = _systemd(["systemctl", "show", "--property=MainPID", "--value", unit]).strip()
        return _Unit(unit, int(pid or "0"))


def unit_properties(name: str, log: Path, limits: Limits, user: str, sandbox: Sandbox | None) -> list[str]:
    """Return the unit's properties as systemd-run arguments. In a sandbox, the launcher switches from root to `user`.

    With the type `exec`, the command succeeds only when the server program is running (systemd.service(5)). MemoryMax
    and CPUQuota apply to the control group (systemd.resource-control(5)). If the kernel lacks the memory or CPU
    controller, the property for this controller has no effect. Therefore LimitDATA also limits the memory, as for a
    detached server.
    """
    properties = {
        "Type": "exec",
        "Description": f"zsnapdb: the server of {name}",
        **({"User": user} if sandbox is None else {}),
        "StandardOutput": f"append:{log}",
        "StandardError": f"append:{log}",
        "KillMode": "control-group",
    }
    if limits.nice is not None:
        # The weight applies between control groups: one step of niceness is a factor of 1.25 (sched(7)), and the
        # default is 100.
        properties |= {"Nice": str(limits.nice), "CPUWeight": str(max(1, round(100 / 1.25**limits.nice)))}
    if limits.memory is not None:
        properties |= {"MemoryMax": str(limits.memory), "LimitDATA": str(limits.memory)}
    if limits.processors is not None:
        properties["CPUQuota"] = f"{limits.processors * 100:.0f}%"
    if sandbox is not None:
        properties |= sandbox_properties(sandbox)
    return [f"--property={key}={value}" for key, value in properties.items()]


def _systemd(argv: Sequence[str]) -> str:
    return run(argv, timeout=_COMMAND_SECONDS)


def run(argv: Sequence[str], *, timeout: float) -> str:
    """Run a program that zsnapdb needs for a server. Wait until the program ends, and return its output.

    Raises PreflightError if the program cannot be started, and ServerError with its output if the program fails or
    takes longer than `timeout` seconds.
    """
    try:
        done = program_start.run(argv, timeout=timeout)
    except FileNotFoundError as error:
        raise PreflightError(f"the command {argv[0]} was not found", hint="install it") from error
    except OSError as error:
        raise PreflightError(
            f"the command {argv[0]} cannot be started: {error.strerror}",
            hint="check that the user that runs zsnapdb may read every folder in PATH",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ServerError(
            f"`{argv[0]}` did not end within {timeout:.0f} s", hint="see the log of the server"
        ) from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise ServerError(
            f"`{argv[0]}` ended with exit status {done.returncode}: {words[-1000:]}",
            hint="see this output and the log of the server",
        )
    return done.stdout.decode(errors="replace")


@dataclass(frozen=True)
class _Unit:
    name: str
    pid: int

    def ended(self) -> str | None:
        # With --collect, systemd removes the unit and its exit status, but the server's own log has the reason.
        return None if self.pid and Path(f"/proc/{self.pid}").exists() else f"and its unit {self.name}"

    def kill(self) -> None:
        for words in (["systemctl", "kill", "--signal=SIGKILL", self.name], ["systemctl", "stop", self.name]):
            try:
                _systemd(words)
            except ServerError:
                # systemd no longer knows the unit if the server ended by itself.
                if self.ended() is None:
                    raise


def version_of(binary: Path) -> str:
    """Return the version that a server program prints, in the format of its variable `version`.

    The result is cached per file. Raise PreflightError if the program prints no version.
    """
    try:
        seen = binary.stat()
    except OSError as error:
        raise _no_version(binary, error) from error
    return _printed_version(binary, (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))


def _no_version(binary: Path, error: Exception) -> PreflightError:
    return PreflightError(
        f"`{binary} --version`: {error}", hint="name the server program itself: the path of a mysqld or mariadbd"
    )


@functools.cache
def _printed_version(binary: Path, _file: tuple[int, ...]) -> str:
    try:
        done = program_start.run([str(binary), "--no-defaults", "--version"], timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_version(binary, error) from error
    printed = done.stdout.decode(errors="replace")
    match = re.search(r"\bVer\s+(\S+)", printed)
    if done.returncode != 0 or match is None:
        raise PreflightError(
            f"`{binary} --version` prints no version: {printed.strip()[:200]}", hint="is it a server program?"
        )
    return match.group(1)


def help_of(binary: Path, *options: str) -> str:
    """Return the cached output of `--verbose --help`, with a server program's variables and plugins; "" on failure.

    This starts no server and reads no option file.
    """
    try:
        seen = binary.stat()
    except OSError:
        return ""
    return _printed_help(binary, (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns), options)


@functools.cache
def _printed_help(binary: Path, _file: tuple[int, ...], options: tuple[str, ...]) -> str:
    try:
        done = program_start.run([str(binary), "--no-defaults", *options, "--verbose", "--help"], timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
