"""Execution of zsnapdb commands in forked children of a process that has imported everything.

In a guest, imports take most of a short command's time. A child is a normal process with its own descriptors,
environment and arguments. In a guest each first write to a page costs 0.1 ms, and reference counts make Python write to
most pages. So a child copies all its pages first, which takes less than half the time. It ends as Python does (threads,
exit functions, outputs), but does not free its objects. Tests, the demo and campaigns that run `zsnapdb` directly cover
the normal start and end of a command.

`zygote.py SOCKET` is the server. A client connects and sends {"argv", "env", "cwd"} as JSON with two descriptors, for
stdout and stderr. The answer is the child's process id, then its exit status (or minus the signal), one line each.
`Zygote` is the client.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

SOCKET = Path("/run/zygote")
QUICK = "/checkout/tests/lab/inside/quick"
"""Replaces `zsnapdb` if a zygote serves at SOCKET and only the command's answer matters."""
_REQUEST = 1 << 20
_MADV_POPULATE_WRITE = 23
"""madvise(2): prefault the pages of a range for writing, since Linux 5.14. An older kernel refuses it."""
_UNWRITTEN = 120
"""Exit status of an interpreter that could not write its outputs."""


class Zygote:
    """A server process, which ends with its starter or with `close`."""

    def __init__(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._process = subprocess.Popen([sys.executable, __file__, str(path)], stdin=subprocess.DEVNULL, env=env)
        while not path.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the zygote ended with status {self._process.returncode}")
            time.sleep(0.02)

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
        """Run `zsnapdb WORDS` and return exit status, stdout and stderr.

        After `timeout` seconds the command is killed: subprocess.TimeoutExpired, whose `stderr` ends with the stacks of
        its threads and the processes of this host.
        """
        with socket.socket(socket.AF_UNIX) as line, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            line.connect(str(self._path))
            request = json.dumps({"argv": ["zsnapdb", *words], "env": dict(env), "cwd": os.getcwd()}).encode()
            socket.send_fds(line, [request], [out.fileno(), err.fileno()])
            line.shutdown(socket.SHUT_WR)
            answers = line.makefile()
            number = int(answers.readline())
            line.settimeout(timeout)
            try:
                code = int(answers.readline())
            except TimeoutError as error:
                raise subprocess.TimeoutExpired(["zsnapdb", *words], timeout, stderr=_ended(number, err)) from error
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            return code, texts[0], texts[1]

    def close(self) -> None:
        """End the server; running commands continue."""
        self._process.kill()
        self._process.wait()
        self._path.unlink(missing_ok=True)


def _ended(number: int, err: IO[bytes]) -> str:
    """Kill a command that hangs.

    Return its stderr with the stacks of its threads, the processes of this host, the threads of the servers, and the
    end of the log of the lab's server.
    """
    threads = "ps -L -C mariadbd,mysqld -o pid,tid,stat,comm:30,wchan:20"
    argv = ["sh", "-c", f"ps axfo pid,stat,wchan:20,etimes,args || ps; {threads}; tail -n 40 /var/log/lab/server.log"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=False)
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(number)
        os.kill(number, signal.SIGABRT)
        select.select([handle], [], [], 10)  # the stacks are written before it ends
        os.close(handle)
        os.kill(number, signal.SIGKILL)
    err.seek(0)
    text = f"{err.read().decode(errors='replace')}\n{listed.stdout}"
    print(text, file=sys.stderr)
    return text


_NOT_IMPORTED = ("zsnapdb.serve.web_", "zsnapdb.fleet.", "zsnapdb.store.cloud")
"""Few commands need them. The library of the fleet has threads, and the guests lack that of Azure and Google."""


def import_all() -> None:
    """Import all modules and their late imports, except the HTTP server and the fleet client."""
    import zsnapdb

    for module in pkgutil.walk_packages(zsnapdb.__path__, "zsnapdb."):
        if not module.name.endswith("__main__") and not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    _make_a_client()
    # Freeze all objects so far: a garbage collection in a child would copy all their pages.
    gc.collect()
    gc.freeze()


def _make_a_client() -> None:
    """Create an S3 client as the package does, to fill its caches of service descriptions."""
    from zsnapdb.store.s3_client import client_core

    client_core().create_client(
        "s3",
        endpoint_url="http://127.0.0.1:7070",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )


def _serve(path: str) -> None:
    """Serve until the parent of this process ends.

    It returns only in each command's own process, after its descriptors, environment and arguments are set.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".begun")
    listener.listen(64)
    os.rename(path + ".begun", path)
    parent = os.getppid()
    # Outside a guest, a first write costs less than copying pages that are never written.
    in_guest = "User Mode Linux" in Path("/proc/cpuinfo").read_text()
    running = selectors.DefaultSelector()
    running.register(listener, selectors.EVENT_READ)
    while os.getppid() == parent:
        for key, _ in running.select(1.0):
            if key.fileobj is listener:
                line = listener.accept()[0]
                request, descriptors = _request(line)
                number = os.fork()
                if number == 0:
                    if in_guest:
                        _own_pages()
                    for each in list(running.get_map().values()):
                        if each.data is not None:
                            os.close(each.fd)
                            each.data[1].close()
                    running.close()
                    listener.close()
                    line.close()
                    _become(request, descriptors)
                    return
                for descriptor in descriptors:
                    os.close(descriptor)
                _answer(line, number)
                running.register(os.pidfd_open(number), selectors.EVENT_READ, (number, line))
            else:
                number, line = key.data
                running.unregister(key.fileobj)
                os.close(key.fd)
                _answer(line, os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
                line.close()
    os._exit(0)


def _own_pages() -> None:
    """Copy every writable page that this process still shares with its parent."""
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        if rights == "rw-p":
            start, end = (int(word, 16) for word in place.split("-"))
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE)


def _request(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    body, descriptors, _, _ = socket.recv_fds(line, _REQUEST, 2)
    while data := line.recv(_REQUEST):
        body += data
    return json.loads(body), descriptors


def _answer(line: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        line.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Set the command's descriptors, environment, folder and arguments."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (descriptors[0], 1), (descriptors[1], 2)):
        os.dup2(source, target)
    for descriptor in (nothing, *descriptors):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[:] = request["argv"]
    faulthandler.enable(2)


def _run() -> int:
    """Run the command and return its exit status, as the interpreter would."""
    from zsnapdb.cli.app import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End the process after non-daemon threads, exit functions and output, as the interpreter does."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        code = _UNWRITTEN
    os._exit(code & 0xFF)


if __name__ == "__main__":
    import_all()
    _serve(sys.argv[1])
    _end(_run())
