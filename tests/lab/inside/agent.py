"""Agent that runs commands in the guest for the host: JSON lines over the serial line /dev/ttyS0.

host -> guest  {"op": "run", "id", "argv", "env", "cwd", "pty": [rows, columns] | null}
               {"op": "stdin", "id", "data": base64}   {"op": "eof", "id"}   {"op": "signal", "id", "signal"}
guest -> host  {"op": "ready"}   {"op": "out", "id", "fd": 1 | 2, "data": base64}   {"op": "exit", "id", "code"}
               {"op": "read", "bytes"}: number of bytes read since the last one; the host limits the unread bytes
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import pty
import selectors
import signal
import struct
import subprocess
import termios
import tty
from typing import Any, BinaryIO, cast

LINE = "/dev/ttyS0"
PIECE = 16384
TELL = 1024
"""Number of read bytes that is reported to the host: much less than the host's limit of unread bytes."""


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Command:
    """A running command and its descriptors."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.id: int = message["id"]
        env = {**os.environ, **message.get("env", {})}
        cwd = message.get("cwd") or "/root"
        self.streams: dict[int, int] = {}
        if message.get("pty"):
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *message["pty"], 0, 0))
            self.process = subprocess.Popen(
                message["argv"],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                preexec_fn=_take_terminal,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
            os.close(slave)
            self.streams[master] = 1
            self.stdin = master
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                message["argv"],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
            self.streams[cast(BinaryIO, self.process.stdout).fileno()] = 1
            self.streams[cast(BinaryIO, self.process.stderr).fileno()] = 2
            self.stdin = cast(BinaryIO, self.process.stdin).fileno()


class Agent:
    def __init__(self) -> None:
        self.line = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self.line)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.line, selectors.EVENT_READ, None)
        self.commands: dict[int, Command] = {}
        self.pending = b""
        self.read = 0

    def send(self, **message: object) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self.line, data) :]

    def handle(self, message: dict[str, Any]) -> None:
        op, number = message["op"], message["id"]
        command = self.commands.get(number)
        if op == "run":
            try:
                command = Command(message)
            except OSError as error:
                text = f"lab: cannot run {message['argv'][0]}: {error.strerror}\n".encode()
                self.send(op="out", id=number, fd=2, data=base64.b64encode(text).decode())
                self.send(op="exit", id=number, code=127)
                return
            self.commands[number] = command
            for descriptor in command.streams:
                self.selector.register(descriptor, selectors.EVENT_READ, command)
        elif command is None:
            return
        elif op == "stdin":
            with contextlib.suppress(BrokenPipeError):
                os.write(command.stdin, base64.b64decode(message["data"]))
        elif op == "eof" and command.process.stdin:
            command.process.stdin.close()
        elif op == "signal":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.process.pid, message["signal"])

    def read_line(self) -> None:
        data = os.read(self.line, 65536)
        self.pending += data
        self.read += len(data)
        if self.read >= TELL:
            self.send(op="read", bytes=self.read)
            self.read = 0
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            if line:
                self.handle(json.loads(line))

    def read_stream(self, descriptor: int, command: Command) -> None:
        try:
            data = os.read(descriptor, PIECE)
        except OSError:
            data = b""
        if data:
            self.send(op="out", id=command.id, fd=command.streams[descriptor], data=base64.b64encode(data).decode())
        else:
            self.selector.unregister(descriptor)
            del command.streams[descriptor]

    def reap(self) -> None:
        """Report commands whose process has ended, without waiting for output that daemons still hold open."""
        for command in list(self.commands.values()):
            if command.process.poll() is None:
                continue
            for descriptor in list(command.streams):
                os.set_blocking(descriptor, False)
                while descriptor in command.streams:
                    try:
                        data = os.read(descriptor, PIECE)
                    except BlockingIOError:
                        self.selector.unregister(descriptor)
                        del command.streams[descriptor]
                        break
                    except OSError:
                        data = b""
                    if data:
                        self.send(
                            op="out",
                            id=command.id,
                            fd=command.streams[descriptor],
                            data=base64.b64encode(data).decode(),
                        )
                    else:
                        self.selector.unregister(descriptor)
                        del command.streams[descriptor]
            code = command.process.returncode
            self.send(op="exit", id=command.id, code=code if code >= 0 else 128 - code)
            del self.commands[command.id]
        # This is process 1: reap orphans, but leave the commands' own statuses to Popen.
        for pid in self.zombies():
            if all(c.process.pid != pid for c in self.commands.values()):
                os.waitpid(pid, os.WNOHANG)

    def zombies(self) -> list[int]:
        child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return [child.si_pid] if child else []

    def run(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(read_end, selectors.EVENT_READ, "child")
        self.send(op="ready", id=0)
        while True:
            for key, _ in self.selector.select(1.0):
                if key.data is None:
                    self.read_line()
                elif key.data == "child":
                    os.read(read_end, 4096)
                elif key.fd in key.data.streams:
                    self.read_stream(key.fd, key.data)
            with contextlib.suppress(ChildProcessError):
                self.reap()


Agent().run()
