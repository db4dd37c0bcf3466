"""The fork server, `python -m zsnapdb.cli.fork_server DESCRIPTOR ROOM`, which forks jobs with all modules imported.

The agent and the helper of `zsnapdb serve` each own a fork server. Requests arrive through the socket DESCRIPTOR
(`zsnapdb/agent/job_starter.py`). A job has its own descriptors, environment, arguments and process name, and reads the
configuration itself. The job inherits only the imported modules and the state that the server itself inherited. The
server itself runs no code of a job, and ends together with its owner. If loaded code has changed, for example by an
upgrade, the server ends before the fork. The owner then starts that job as a new process, and starts another server.

A child of the server forks the job and ends, so the job becomes a child of the owner
(`zsnapdb/agent/children.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pkgutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

import zsnapdb
from zsnapdb.agent.children import StartRequest, Streams, command_line
from zsnapdb.agent.job_starter import GO, LARGEST, NOT_STARTED, READY
from zsnapdb.cli import app
from zsnapdb.cli.process_attributes import set_process_title

GRAIN = 2.0
"""Maximum number of seconds by which a file system's clock may be behind the clock of the process."""

_Stamp = tuple[int, int, int, int]


class LoadedCode:
    """The files of all modules, libraries and the interpreter, as they were when the process loaded them.

    When a file is written, renamed or linked, the kernel updates the time of its last change (ctime).
    """

    def __init__(self, began: float) -> None:
        """Record the start time (time.time()). The modules must be imported only after this call."""
        self._began = began
        self._stamps: dict[str, _Stamp | None] = {}
        self._is_mixed = False

    def finish(self) -> None:
        """Record the loaded files. If a file changed during the imports, either version may have been loaded."""
        self._stamps = {path: _stamp(path) for path in sorted(_of_modules() | _mapped())}
        begun = int((self._began - GRAIN) * 1e9)
        self._is_mixed = any(stamp is None or stamp[3] >= begun for stamp in self._stamps.values())

    def has_changed(self) -> bool:
        """Return whether a loaded file was, or may have been, replaced."""
        return self._is_mixed or any(_stamp(path) != stamp for path, stamp in self._stamps.items())


def _of_modules() -> set[str]:
    """Return the source files of the loaded modules."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str)}


def _mapped() -> set[str]:
    """Return the mapped files: interpreter and libraries. Source: proc_pid_maps(5)."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {words[5] for words in lines if len(words) == 6 and words[5].startswith("/")}


def _stamp(path: str) -> _Stamp | None:
    """Return the identity of a file's content; None if the file does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


_NOT_OF_JOBS = (
    "zsnapdb.__main__",
    "zsnapdb.agent.",
    "zsnapdb.cli.clone.tunnel",
    "zsnapdb.cli.config_commands",
    "zsnapdb.cli.doctor",
    "zsnapdb.cli.fleet",
    "zsnapdb.cli.mcp",
    "zsnapdb.cli.query",
    "zsnapdb.cli.rescue",
    "zsnapdb.cli.restore",
    "zsnapdb.cli.schema",
    "zsnapdb.cli.serve",
    "zsnapdb.cli.setup",
    "zsnapdb.cli.sudo_cli",
    "zsnapdb.client.",
    "zsnapdb.config.effective",
    "zsnapdb.config.fleet",
    "zsnapdb.documents.api",
    "zsnapdb.documents.fleet",
    "zsnapdb.documents.host",
    "zsnapdb.fleet.",
    "zsnapdb.jobs.binlog.find",
    "zsnapdb.jobs.binlog.undo",
    "zsnapdb.jobs.clone.migration",
    "zsnapdb.jobs.doctor.",
    "zsnapdb.jobs.repository.adopt",
    "zsnapdb.jobs.repository.fleet_reader",
    "zsnapdb.jobs.repository.fleet_status",
    "zsnapdb.jobs.repository.sizing",
    "zsnapdb.jobs.restore.rewind",
    "zsnapdb.jobs.restore.runbook",
    "zsnapdb.jobs.setup.",
    "zsnapdb.jobs.trial.rescue",
    "zsnapdb.jobs.trial.table_delivery",
    "zsnapdb.mcp.",
    "zsnapdb.planning.binlog.undo",
    "zsnapdb.planning.clone.client_commands",
    "zsnapdb.planning.fleet.",
    "zsnapdb.planning.repository.sizing",
    "zsnapdb.planning.restore.runbook",
    "zsnapdb.planning.setup.",
    "zsnapdb.report.agent",
    "zsnapdb.report.clone.query",
    "zsnapdb.report.doctor",
    "zsnapdb.report.fleet",
    "zsnapdb.report.runbook",
    "zsnapdb.report.schemas",
    "zsnapdb.report.setup",
    "zsnapdb.report.tokens",
    "zsnapdb.serve.",
    "zsnapdb.store.cloud",
    "zsnapdb.verbs.",
)
"""Prefixes of modules that the server does not load, because jobs do not need them or load them themselves."""
_UNWRITTEN = 120
"""Python's exit code of an interpreter that could not write its output."""


class _End:
    """The last action of a job, which ends the process without destroying the imported modules."""

    code: int | None = None

    def __call__(self) -> None:
        if self.code is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            self.code = _UNWRITTEN
        os._exit(self.code)


def import_all() -> None:
    """Import the modules that jobs load."""
    for module in pkgutil.walk_packages(zsnapdb.__path__, "zsnapdb."):
        if not module.name.startswith(_NOT_OF_JOBS):
            importlib.import_module(module.name)


def complete_models() -> None:
    """Build the validators of all models.

    Otherwise, each job would have to build the validators that it needs, such as those of the settings.
    """
    for model in _below(BaseModel):
        if model.__module__.startswith("zsnapdb.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from _below(one)


def serve(line: socket.socket, code: LoadedCode) -> StartRequest:
    """Fork jobs on request. Return only in a job, after the job's descriptors and environment are set."""
    line.send(READY)
    while True:
        packet, descriptors, flags, _ = socket.recv_fds(line, LARGEST, 4)
        if not packet or flags & socket.MSG_TRUNC or code.has_changed() or not _is_one_thread():
            sys.exit()
        request, (*streams, pipe) = StartRequest.of_packet(packet), descriptors
        given, out, errors = streams
        if _forked(line):
            line.close()
            _become(request, (given, out, errors), pipe)
            return request
        for descriptor in descriptors:
            os.close(descriptor)


def _is_one_thread() -> bool:
    """Return whether this process has only one thread, according to the kernel. A fork copies only one thread."""
    return len(os.listdir("/proc/self/task")) == 1


def _forked(line: socket.socket) -> bool:
    """Fork a job through a child that ends immediately, and send the job's process id. Return True in the job."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            job = os.fork()
            if job == 0:
                return True
            os.write(writing, str(job).encode())
        except OSError:
            os.write(writing, NOT_STARTED)
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 32)
    os.close(reading)
    # When the child has ended, the owner becomes the parent of the job.
    os.waitpid(between, 0)
    line.send(answer or NOT_STARTED)
    return False


def _become(request: StartRequest, streams: Streams, pipe: int) -> None:
    """Set the descriptors, environment and arguments of the job.

    If the owner does not adopt the job, end the process.
    """
    set_process_title(command_line(request.words))
    if os.read(pipe, len(GO)) != GO:
        os._exit(0)
    for target, source in enumerate(streams):
        os.dup2(source, target)
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:
            # The descriptor that was used to list the folder is already closed.
            with contextlib.suppress(OSError):
                os.close(int(number))
    if request.is_apart:
        os.chdir("/")
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    signal.signal(signal.SIGINT, _ON_INTERRUPT)
    sys.argv[:] = ["zsnapdb", *request.words]


_ON_INTERRUPT = signal.getsignal(signal.SIGINT)


def main() -> None:
    """Serve requests until the owner ends. In a forked job, run that job."""
    end = _End()
    # Functions that are registered with atexit run in reverse order. So this function runs after all functions that the
    # job registers.
    atexit.register(end)
    code = LoadedCode(time.time())
    if _ON_INTERRUPT is not signal.SIG_IGN:
        # Ctrl-C reaches all processes of a terminal, but the server has nothing to clean up.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    app.prepare()
    import_all()
    complete_models()
    whole = app.built()
    code.finish()
    # A job's garbage collector ignores frozen objects. Otherwise it would cause a copy of every page with such objects.
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])), code)
    end.code = 1
    try:
        app.main(whole)
    except SystemExit as ended:
        end.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        # The interpreter then ends with the signal.
        end.code = None
        raise


if __name__ == "__main__":
    main()
