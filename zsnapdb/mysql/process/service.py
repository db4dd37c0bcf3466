"""Commands that stop and start the production server. They use its systemd unit or the configured commands.

This module trusts no file that the server's account can write. Facts from the kernel identify the process
(`discovery.py`), and systemd and the kernel must agree on the unit.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.base import program_start
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.base.patterns import printable
from zsnapdb.config.instance import ControlSettings
from zsnapdb.mysql.process import discovery, process_managers
from zsnapdb.planning.server_family import family, flavour_in
from zsnapdb.planning.start_options import ServerStart, parse_exec_start, refused_options

_DEFAULTS = re.compile(r"--(no-defaults|defaults-(file|extra-file|group-suffix)=[A-Za-z0-9/_.@-]{1,512})")
_SERVER_ID = re.compile(r"(?:^|\s)--server[-_]id=([0-9]{1,10})(?=\s|$)")
_KEPT_OUTPUT = 2000
_CHECK_SECONDS = 30.0
_HINT = "set control.unit of the instance, or control.stop and control.start"


@dataclass(frozen=True)
class ServingProcess:
    """The id and the command line of the process that serves a data directory.

    The start time `started` is in clock ticks since boot. Together with the process id it identifies the process
    (proc_pid_stat(5), starttime).
    """

    pid: int
    words: tuple[str, ...]
    started: int = 0

    @property
    def since(self) -> datetime:
        """Start time of the process (UTC), with a precision of 0.01 s (proc_stat(5), btime)."""
        words = dict(line.partition(" ")[::2] for line in Path("/proc/stat").read_text().split("\n"))
        return datetime.fromtimestamp(int(words["btime"]) + self.started / os.sysconf("SC_CLK_TCK"), UTC)

    @property
    def option_words(self) -> tuple[str, ...]:
        """The arguments that name the server's option files. A server accepts them only as its first arguments."""
        chosen: list[str] = []
        for word in self.words[1:]:
            if not _DEFAULTS.fullmatch(word):
                break
            chosen.append(word)
        return tuple(chosen)


def serving(datadir: Path) -> ServingProcess | None:
    """Return the server process whose working directory is the data directory; None if no such process exists.

    The process must run as root or as the owner of the data directory, because any account can start a server program
    in that directory. If several processes match, only processes with file locks on that filesystem are considered,
    because InnoDB holds file locks while it runs. Raises PreflightError if several processes remain.
    """
    real = os.path.realpath(datadir)
    accounts = _accounts_of(real)
    there = [
        one
        for one in discovery.server_processes()
        if os.path.realpath(one.datadir) == real and (not accounts or one.account in accounts)
    ]
    if len(there) > 1:
        there = [one for one in there if one.pid in _lockers(real)] or there
    if len(there) > 1:
        raise PreflightError(
            f"several processes serve {datadir}: {', '.join(str(one.pid) for one in there)}", hint=_HINT
        )
    if not there:
        return None
    process = Path(f"/proc/{there[0].pid}")
    try:
        words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0") if word]
        started = int((process / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        # The process has just ended.
        return None
    # If the dynamic loader started the program, the program's own arguments come later.
    name = os.path.basename(there[0].program)
    at = next((at for at, word in enumerate(words) if os.path.basename(word) == name), 0)
    return ServingProcess(there[0].pid, tuple(words[at:]), started)


def _accounts_of(datadir: str) -> set[str]:
    """Return the accounts that may serve the data directory: its owner and root.

    The result is empty if the directory does not exist.
    """
    try:
        return {pwd.getpwuid(uid).pw_name for uid in (os.stat(datadir).st_uid, 0)}
    except (OSError, KeyError):
        return set()


def _lockers(datadir: str) -> set[int]:
    """Return the processes that hold locks on the filesystem of the data directory (proc_locks(5))."""
    device = os.stat(datadir).st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    lines = [line.split() for line in Path("/proc/locks").read_text().split("\n")]
    return {
        int(words[4])
        for words in lines
        if len(words) >= 6 and words[4].isdecimal() and words[5].rpartition(":")[0] == wanted
    }


@dataclass(frozen=True)
class ServerService:
    """The commands that stop and start the production server. `timeout` (seconds) applies to each command.

    `unit` is the server's unit, if systemd runs the server.
    """

    stop_words: tuple[str, ...]
    start_words: tuple[str, ...]
    timeout: float
    unit: str | None = None

    def stop(self) -> None:
        """Stop the server. It has ended if the command succeeds.

        Raises ServerError if the command fails.
        """
        _run(self.stop_words, self.timeout)

    def start(self) -> None:
        """Start the server. Raises ServerError if the command fails."""
        _run(self.start_words, self.timeout)


def _run(words: tuple[str, ...], timeout: float) -> None:
    # A server that the command starts keeps the output open. With a pipe, this process would wait until the server
    # ends.
    with tempfile.TemporaryFile() as output:
        try:
            # Ctrl-C on the terminal must not reach a command that stops or starts the server.
            done = program_start.run(words, stdout=output, stderr=output, timeout=timeout, own_group=True)
        except OSError as error:
            raise PreflightError(f"`{' '.join(words)}` cannot be started: {error.strerror}", hint=_HINT) from error
        except subprocess.TimeoutExpired as error:
            raise ServerError(
                f"`{' '.join(words)}` did not end within {timeout:.0f} s",
                hint="see the log of the server; control.timeout of the instance sets the time",
            ) from error
        if done.returncode == 0:
            return
        output.seek(max(0, output.tell() - _KEPT_OUTPUT))
        said = " ".join(printable(output.read().decode(errors="replace")).split())
    raise ServerError(
        f"`{' '.join(words)}` ended with exit status {done.returncode}: {said or '(it wrote nothing)'}",
        hint="see the log of the server",
    )


def service_of(settings: ControlSettings, process: ServingProcess | None, known: str | None = None) -> ServerService:
    """Return the commands that stop and start the server. Raises PreflightError if the commands are unknown.

    If no commands are configured, the returned commands use the systemd unit whose main process is the running server.
    If there is no such unit, they use the recorded unit `known`.
    """
    if settings.stop is not None and settings.start is not None:
        return ServerService(settings.stop, settings.start, settings.timeout)
    unit = settings.unit or (unit_of(process.pid) if process is not None else None) or known
    if unit is None:
        raise PreflightError("zsnapdb does not know how the server is stopped and started", hint=_HINT)
    return ServerService(("systemctl", "stop", unit), ("systemctl", "start", unit), settings.timeout, unit)


def unit_of(pid: int) -> str | None:
    """Return the unit with this main process, if the control group and systemd agree on the unit; otherwise None."""
    unit = discovery.service_of(pid) if process_managers.SYSTEMD_RUNS.is_dir() else ""
    if not unit:
        return None
    shown = process_managers.run(["systemctl", "show", "--property=MainPID", "--value", unit], timeout=30.0)
    return unit if shown.strip() == str(pid) else None


def configured_server_id(program: Path, process: ServingProcess) -> int | None:
    """Return the server_id that the server would have after its next start; None if no option sets it.

    The server program prints the contents of its option files (`--print-defaults`, MariaDB and MySQL manuals,
    "Command-Line Options that Affect Option-File Handling"). If an option is repeated, the last value is used. The
    options of the command line come after the option files.
    """
    printed = process_managers.run([str(program), *process.option_words, "--print-defaults"], timeout=30.0)
    named = _SERVER_ID.findall(" ".join([printed, *process.words[1:]]))
    return int(named[-1]) if named else None


def next_start(
    unit: str | None, process: ServingProcess | None = None, program: Path | None = None
) -> ServerStart | None:
    """Return the command that will start the production server; None if it is unknown.

    The command of the unit counts. Without a unit, it is `program` with the arguments of the running process. The
    program of the process itself is never used, because the server's account can choose it.
    """
    if unit is not None:
        return parse_exec_start(
            process_managers.run(["systemctl", "show", "--property=ExecStart", "--value", unit], timeout=30.0)
        )
    if process is None or program is None:
        return None
    return ServerStart(str(program), process.words[1:])


def check_options(start: ServerStart, user: str) -> tuple[str, ...]:
    """Return the errors that the server program reports about its option files and arguments; change nothing.

    The program loads the plugins that its options name. So it runs as the server's account `user`, never as root.

    Raises:
        ZsnapdbError: the program cannot be started, or does not end.
    """
    check = family(flavour_in(process_managers.version_of(Path(start.program)))).option_check
    argv = [*process_managers.account_words(user), start.program, *start.arguments, *check]
    try:
        done = program_start.run(argv, timeout=_CHECK_SECONDS)
    except OSError as error:
        raise PreflightError(f"`{argv[0]}` cannot be started: {error.strerror}", hint="install util-linux") from error
    except subprocess.TimeoutExpired as error:
        raise ServerError(
            f"`{start.program}` did not end within {_CHECK_SECONDS:.0f} s", hint="run it again"
        ) from error
    return refused_options(done.returncode, done.stderr.decode(errors="replace"), check)
