"""Runs zsnapdb's commands in children forked from a process that has imported all of it.

In a guest, importing is most of a short command's time.

A child is a process like any other: descriptors, environment and arguments of its own. In a guest each page that a
child writes for the first time costs 0.1 ms, and Python writes to most pages by counting references. So a child copies
its pages at once, which takes less than half the time. It ends as Python does (threads, functions for the exit,
outputs), but does not take its objects apart. That the command starts from nothing and ends by itself as well is seen
wherever a test, the demo or a campaign starts it as `zsnapdb`.

`zygote.py SOCKET` serves: a client connects and sends {"argv", "env", "cwd"} as JSON with two descriptors, for stdout
and stderr. It is answered with the child's process id, then with its exit status (or minus the signal that ended it), a
line each. `Zygote` is the client.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
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
from typing import Any, NoReturn

SOCKET = Path("/run/zygote")
QUICK = "/checkout/tests/lab/inside/quick"
"""In place of `zsnapdb` where a zygote serves at SOCKET and only the command's answer matters."""
_REQUEST = 1 << 20
_MADV_POPULATE_WRITE = 23
"""madvise(2): fault in the pages of a range for writing, since Linux 5.14. An older kernel refuses it."""
_UNWRITTEN = 120
"""Exit status of an interpreter that could not write its outputs."""


class Zygote:
    """A serving process, for as long as the one that started it lives or until it is closed."""

    def __init__(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._process = subprocess.Popen([sys.executable, __file__, str(path)], stdin=subprocess.DEVNULL, env=env)
        while not path.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the zygote ended with status {self._process.returncode}")
            time.sleep(0.02)

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
        """Run `zsnapdb WORDS` and return exit status, stdout and stderr.

        subprocess.TimeoutExpired, the command killed, after `timeout` seconds.
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
                os.kill(number, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["zsnapdb", *words], timeout) from error
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            return code, texts[0], texts[1]

    def close(self) -> None:
        """End it; commands under way go on."""
        self._process.kill()
        self._process.wait()
        self._path.unlink(missing_ok=True)


_NOT_IMPORTED = ("zsnapdb.serve.web_", "zsnapdb.fleet.")
"""Few commands need them, and the client's library has threads."""


def import_all() -> None:
    """Import every module of the package, and what they import late; but not what serves HTTP, nor a fleet's client."""
    import zsnapdb

    for module in pkgutil.walk_packages(zsnapdb.__path__, "zsnapdb."):
        if not module.name.endswith("__main__") and not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    _make_a_client()
    # What was made until here is never looked at by the collector again: a child that did would copy every page of it.
    gc.collect()
    gc.freeze()


def _make_a_client() -> None:
    """Make a client of S3 as the package does, so that what it caches of the library's descriptions is there."""
    from zsnapdb.store.s3_client import client_core

    client_core().create_client(
        "s3",
        endpoint_url="http://127.0.0.1:7070",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )


def _serve(path: str) -> None:
    """Serve until the process that started this one ends.

    Returns in each command's own process, and there only, with all that is its own in place.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".begun")
    listener.listen(64)
    os.rename(path + ".begun", path)
    parent = os.getppid()
    # On the kernel of a machine a first write costs less than the copies of pages that are never written.
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
    """Copy every page that this process can write and still shares with its parent."""
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
    """Take on what the command is to have."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (descriptors[0], 1), (descriptors[1], 2)):
        os.dup2(source, target)
    for descriptor in (nothing, *descriptors):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[:] = request["argv"]


def _run() -> int:
    """Run the command and return its exit status, as the interpreter finds it."""
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
    """End the process: threads that are no daemons have ended, functions for the exit ran, outputs are written."""
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
