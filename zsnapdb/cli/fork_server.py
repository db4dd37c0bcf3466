"""The fork server, `python -m zsnapdb.cli.fork_server DESCRIPTOR ROOM`: forks jobs with all imported.

The agent has one, and so has the helper of `zsnapdb serve`: its owner. Requests come through the socket of that
descriptor (`zsnapdb/agent/fork_server.py`). A job is a process like one that was started from nothing: descriptors,
environment, arguments and name of its own, and it reads the configuration. What it gets of the server is what was
imported, and what the server inherited itself. The server runs nothing of a job, and ends with its owner. It ends
before it forks a job of which any code was changed since it was loaded, such as by an upgrade: the owner starts that
job from nothing, and another server.

The child of the server forks the job and ends, so the job becomes a child of the owner (`zsnapdb/agent/adoption.py`).
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
from zsnapdb.agent.fork_server import GO, LARGEST, NOT_STARTED, READY
from zsnapdb.cli import app
from zsnapdb.cli.process import show_as

GRAIN = 2.0
"""How many seconds the clock of a file system may be behind that of the process."""

_Stamp = tuple[int, int, int, int]


class LoadedCode:
    """The files of the modules, libraries and interpreter that a process has loaded, as they were when it loaded them.

    The time of a file's last change (ctime) is set by the kernel with every write, rename and link.
    """

    def __init__(self, began: float) -> None:
        """Begin, at this time (time.time()). Afterwards the modules are imported."""
        self._began = began
        self._stamps: dict[str, _Stamp | None] = {}
        self._is_mixed = False

    def finish(self) -> None:
        """Note what is loaded. A file that was changed meanwhile may have been loaded as it was before, or after."""
        self._stamps = {path: _stamp(path) for path in sorted(_of_modules() | _mapped())}
        begun = int((self._began - GRAIN) * 1e9)
        self._is_mixed = any(stamp is None or stamp[3] >= begun for stamp in self._stamps.values())

    def has_changed(self) -> bool:
        """Whether a file is another one than the one that was loaded, or may be."""
        return self._is_mixed or any(_stamp(path) != stamp for path, stamp in self._stamps.items())


def _of_modules() -> set[str]:
    """Return the source files of the modules."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str)}


def _mapped() -> set[str]:
    """Return the files that are mapped: the interpreter and the libraries. Source: proc_pid_maps(5)."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {words[5] for words in lines if len(words) == 6 and words[5].startswith("/")}


def _stamp(path: str) -> _Stamp | None:
    """Return what identifies the content of a file; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


_NOT_OF_JOBS = (
    "zsnapdb.__main__",
    "zsnapdb.agent.",
    "zsnapdb.cli.schema",
    "zsnapdb.client.",
    "zsnapdb.fleet.",
    "zsnapdb.jobs.fleet.",
    "zsnapdb.jobs.setup.",
    "zsnapdb.mcp.",
    "zsnapdb.planning.setup.",
    "zsnapdb.report.fleet",
    "zsnapdb.report.schemas",
    "zsnapdb.report.setup",
    "zsnapdb.report.tokens",
    "zsnapdb.serve.",
)
"""The beginnings of modules that no job loads, or that it loads itself."""
_UNWRITTEN = 120
"""The exit code of an interpreter that could not write its outputs (Python's own)."""


class _End:
    """The last thing that a job does: it ends without taking apart what it has imported."""

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
    """Import what jobs load."""
    for module in pkgutil.walk_packages(zsnapdb.__path__, "zsnapdb."):
        if not module.name.startswith(_NOT_OF_JOBS):
            importlib.import_module(module.name)


def complete_models() -> None:
    """Build what checks the documents of each model. Else each job would build what it uses, the settings above all."""
    for model in _below(BaseModel):
        if model.__module__.startswith("zsnapdb.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from _below(one)


def serve(line: socket.socket, code: LoadedCode) -> StartRequest:
    """Fork jobs as they are requested. Returns in each job, and there only, with all that is its own in place."""
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
    """Whether this process has one thread, by the kernel: of several the others would be missing in a child."""
    return len(os.listdir("/proc/self/task")) == 1


def _forked(line: socket.socket) -> bool:
    """Fork a job by a child that ends at once, and send its process id. True in the job."""
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
    # When the child has ended, its child has another parent.
    os.waitpid(between, 0)
    line.send(answer or NOT_STARTED)
    return False


def _become(request: StartRequest, streams: Streams, pipe: int) -> None:
    """Take on what the job is to have. Ends here if the owner does not take the job as its child."""
    show_as(command_line(request.words))
    if os.read(pipe, len(GO)) != GO:
        os._exit(0)
    for target, source in enumerate(streams):
        os.dup2(source, target)
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:
            # The one by which the folder was read is closed already.
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
    """Serve until the owner ends. In a job: run it."""
    end = _End()
    # The functions for the exit run in the reverse order: this one after all that the job registers.
    atexit.register(end)
    code = LoadedCode(time.time())
    if _ON_INTERRUPT is not signal.SIG_IGN:
        # Ctrl-C reaches all processes of a terminal: the server has nothing to clean up.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    app.prepare()
    import_all()
    complete_models()
    whole = app.built()
    code.finish()
    # What was made until here is never looked at again by the collector of a job, which would copy every page of it.
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
        # The interpreter ends itself by the signal.
        end.code = None
        raise


if __name__ == "__main__":
    main()
