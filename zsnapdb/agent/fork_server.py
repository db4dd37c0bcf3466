"""The fork server of the agent, or of the helper of `zsnapdb serve`: it has imported what jobs need, and forks them.

Importing takes half a second of a processor for each job that is started from nothing. `zsnapdb/cli/fork_server.py` is
the process itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.agent.adoption import AdoptedProcess, Adoption, is_child

LARGEST = 1 << 20
"""The most bytes of a packet."""
READY = b"ready"
"""The server's first packet: it has imported everything. Each later one is the process id of a job, or NOT_STARTED."""
NOT_STARTED = b"none"
GO = b"go"
"""What is written into the pipe of a job that has become a child. A job whose pipe ends without it does nothing."""
Streams = tuple[int, int, int]
"""The descriptors that a process gets as its stdin, stdout and stderr."""


@dataclass(frozen=True)
class StartRequest:
    """A request to start `zsnapdb` with these words and this environment.

    `is_apart`: in the folder /, as the first of a process group of its own. Four descriptors travel with it: those of
    its streams, and the end of a pipe from which the job reads GO.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    is_apart: bool = False

    def packet(self) -> bytes:
        """Return the request as it is sent."""
        return json.dumps(
            {"words": self.words, "environment": dict(self.environment), "is_apart": self.is_apart}
        ).encode()

    @classmethod
    def of_packet(cls, packet: bytes) -> StartRequest:
        """Return the request that was sent. ValueError or KeyError if the packet is not whole."""
        sent = json.loads(packet)
        return cls(tuple(sent["words"]), sent["environment"], sent["is_apart"])


PATIENCE = 10.0
"""How many seconds the server has to fork a job. Then it is ended, and the job is started from nothing."""
_MODULE = "zsnapdb.cli.fork_server"
_ROOM = " " * 256
"""The last word of the server's command line: room for the command lines of jobs."""


class ForkServer:
    """A running fork server, or one that has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it. OSError if that is impossible."""
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_ready = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(other.fileno()), _ROOM],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=(other.fileno(),),
            )
        except OSError:
            self._line.close()
            raise
        finally:
            other.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def is_ready(self) -> bool:
        """Whether it has imported everything."""
        if not self._is_ready:
            self._line.setblocking(False)
            with contextlib.suppress(OSError):
                self._is_ready = self._line.recv(len(READY)) == READY
        return self._is_ready

    def fork(self, request: StartRequest, streams: Streams, adoption: Adoption) -> AdoptedProcess | None:
        """Have it fork a job, and return the job, which is a child of this process.

        None, and no job runs or will run, if the server cannot do it: then it has ended, or must be.
        """
        with contextlib.ExitStack() as ending:
            reading, writing = os.pipe()
            ending.callback(os.close, reading)
            # A job whose pipe ends before it has read GO does nothing. So none runs that is not known here.
            ending.callback(os.close, writing)
            try:
                with adoption.orphans():
                    self._line.settimeout(PATIENCE)
                    socket.send_fds(self._line, [request.packet()], [*streams, reading])
                    answer = self._line.recv(32)
            except OSError:
                return None
            if answer in (b"", NOT_STARTED) or not is_child(int(answer)):
                return None
            job = AdoptedProcess(int(answer))
            if request.is_apart:
                # Here, so that the group is there before anything of the job runs.
                os.setpgid(job.pid, job.pid)
            os.write(writing, GO)
            return job

    def close(self) -> None:
        """End it. Jobs that it forked go on."""
        self._line.close()
        self._process.kill()
        # A process that hangs in the kernel ends later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    def gives_what_this_process_would(self) -> bool:
        """Whether its jobs inherit the limits, niceness, groups and folder of children of this process."""
        try:
            return _inherited(self.pid) == _inherited(os.getpid())
        except OSError:
            return False


def _inherited(pid: int) -> tuple[object, ...]:
    """Return what a child gets from the process. OSError if it has ended. Source: proc(5), credentials(7)."""
    own = Path("/proc") / str(pid)
    wanted = ("Umask:", "Uid:", "Gid:", "Groups:", "CapBnd:", "Cpus_allowed:", "Mems_allowed:")
    status = tuple(line for line in (own / "status").read_text().splitlines() if line.startswith(wanted))
    files = tuple(_text(own / name) for name in ("cgroup", "oom_score_adj"))
    limits = tuple(resource.prlimit(pid, number) for number in _LIMITS)
    nice, scheduler = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
    groups = os.getpgid(pid), os.getsid(pid)
    return (*status, *files, *limits, nice, scheduler, *groups, (own / "cwd").readlink())


_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))


def _text(file: Path) -> str:
    """Return the text of a file that some kernels lack."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""
