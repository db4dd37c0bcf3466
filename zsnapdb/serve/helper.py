"""The helper: a Unix socket with one request per connection. It answers only root and the web process's account.

A client has a fixed time to send its request, and the same time to read the answer. If too many clients are connected,
a new client is refused immediately.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.errors import ConfigError, NotAllowedError, PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.program_start import Stop
from zsnapdb.serve import helper_messages
from zsnapdb.serve.helper_messages import MOST_BYTES, BegunAnswer, Ending, RefusedRequest, failure_of, parse_request
from zsnapdb.serve.helper_request_handler import RequestHandler

_MOST_CLIENTS = 64
_POLL_SECONDS = 0.5
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)."""
_FIRST_PASSED = 3
"""Number of the first descriptor that systemd passes (sd_listen_fds(3))."""


@dataclass
class HelperServer:
    """Server on a listening socket. It answers only the accounts in `uids`.

    `tidy` is called at least twice a second, and must not block.
    """

    listener: socket.socket
    desk: RequestHandler
    uids: Collection[int]
    seconds: float = 10.0
    most_clients: int = _MOST_CLIENTS
    tidy: Callable[[], None] = lambda: None
    _places: threading.BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        self._places = threading.BoundedSemaphore(self.most_clients)

    def serve(self, stop: Stop) -> None:
        """Answer requests until the stop is requested."""
        self.listener.settimeout(_POLL_SECONDS)
        while not stop.is_set():
            self.desk.operations.forget_old()
            self.tidy()
            try:
                client, _ = self.listener.accept()
            except TimeoutError:
                continue
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._answered, args=(client,), daemon=True).start()
            else:
                with client, contextlib.suppress(OSError):
                    self._send(client, helper_messages.too_busy("the helper has too many clients").failure)

    def _answered(self, client: socket.socket) -> None:
        try:
            # A client that disconnects or is too slow loses its answer, but an operation that has started continues.
            with client, contextlib.suppress(OSError):
                self._send(client, self._ending(client))
        finally:
            self._places.release()

    def _ending(self, client: socket.socket) -> Ending:
        try:
            self._refuse_others(client)
            line = self._line(client)
        except ZsnapdbError as error:
            return failure_of(error)
        try:
            return self.desk.answer(parse_request(line), lambda begun: self._tell(client, begun))
        except RefusedRequest as refused:
            return refused.failure
        except ZsnapdbError as error:
            return failure_of(error)
        except Exception:
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            return failure_of(ZsnapdbError("an unexpected error", hint="the log of the helper has it"))

    def _refuse_others(self, client: socket.socket) -> None:
        _, uid, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in self.uids:
            raise NotAllowedError(
                f"uid {uid} may not use this socket", hint="ask `zsnapdb serve`, or use `zsnapdb-clone`"
            )

    def _line(self, client: socket.socket) -> bytes:
        """Return the line from the client. Raises UsageError if it is incomplete, too long or followed by more data."""
        deadline, received = time.monotonic() + self.seconds, bytearray()
        while b"\n" not in received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the request takes too long")
            client.settimeout(left)
            part = client.recv(MOST_BYTES + 1 - len(received))
            if not part:
                raise UsageError("the request is incomplete", hint="send one line")
            received += part
            if len(received) > MOST_BYTES:
                raise UsageError(f"the request is longer than {MOST_BYTES} bytes", hint="send less")
        line, _, rest = bytes(received).partition(b"\n")
        if rest:
            raise UsageError("something follows the request", hint="send one request per connection")
        return line

    def _tell(self, client: socket.socket, begun: BegunAnswer) -> None:
        with contextlib.suppress(OSError):
            self._send(client, begun)

    def _send(self, client: socket.socket, answer: BegunAnswer | Ending) -> None:
        client.settimeout(self.seconds)
        client.sendall(answer.model_dump_json().encode() + b"\n")


def answered_uids(account: str) -> frozenset[int]:
    """Return the uids of root and the web process's account. Raises ConfigError if that account does not exist."""
    return frozenset({0, _account(account).pw_uid})


def listening(path: Path, account: str, environment: Mapping[str, str]) -> socket.socket:
    """Return the socket that systemd passes.

    If systemd passes none, create a socket at this path that the account's group may use.

    Raises PreflightError if the socket cannot be created, or if the path exists and is not a socket.
    """
    if environment.get("LISTEN_PID") == str(os.getpid()) and environment.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_PASSED)
    group = _account(account).pw_gid
    try:
        return bound(path, lambda made: os.chown(made, os.geteuid(), group))
    except OSError as error:
        raise PreflightError(
            f"listening on {path}: {error.strerror}", hint="run the helper as root; serve.socket sets the path"
        ) from error


def bound(path: Path, give: Callable[[Path], None]) -> socket.socket:
    """Return a new listening socket at the path, with mode 0660. It replaces a previous socket.

    A missing folder is created with mode 0750; an existing folder is not changed. `give` changes the group of a new
    folder or socket to the group that may use it. Raises OSError if a step fails.
    """
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o750, parents=True)
        give(path.parent)
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # No other account may connect between bind and chmod. A umask ensures this, because no other thread is running
        # yet.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        give(path)
        path.chmod(0o660)
        listener.listen(_MOST_CLIENTS)
    except BaseException:
        listener.close()
        raise
    return listener


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(
            f"serve.account is {name}, and there is no such account",
            hint=f"make it: `useradd --system --user-group --no-create-home --shell /usr/sbin/nologin {name}`",
        ) from error
