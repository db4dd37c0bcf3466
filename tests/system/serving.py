"""The service of clones by HTTP in a guest: its two processes, requests, and a gate before the making of clones."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .agents import parent
from .in_guest import Lab, end_process

ACCOUNT, SUBJECT, OTHER = "zsnapdb-web", "ci:shop/web", "user:anna@example.org"
PORT, SOCKET = 9808, Path("/run/zsnapdb-serve/helper.sock")
GATE, SHIM = Path("/run/gate"), Path("/usr/local/sbin/zfs")
STOPS = f"""#!/bin/sh
case "$1 $*" in "clone "*/data)
  [ ! -e {GATE}/closed ] || touch {GATE}/reached
  while [ -e {GATE}/closed ]; do sleep 0.1; done
esac
exec /usr/sbin/zfs "$@"
"""
"""In place of `zfs` for the commands of the helper: stands still before the second dataset of a clone is made."""
WALLS = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    body: dict[str, Any]


@dataclass
class Service:
    """The two processes of the service."""

    lab: Lab
    config: Path
    said: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """Start the helper or the web process, and wait until each answers."""
        python = (sys.executable, "-m", "zsnapdb")
        argv = {
            "helper": (*python, "serve-helper", "--config", str(self.config)),
            "web": ("setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", *WALLS, *python, "serve"),
        }
        with self.said.open("ab") as said:
            for name in names:
                self.running[name] = subprocess.Popen(
                    argv[name], cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said
                )
        self.until(lambda: self.request("GET", "/instances").status == 401)

    def until(self, is_so: Callable[[], bool], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if is_so():
                    return
            except ConnectionRefusedError:
                pass
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.1)

    def kill(self, name: str, *, with_commands: bool = False) -> None:
        """Kill -9 a process; with its commands, as systemd does with what is left of a service."""
        process = self.running.pop(name)
        below = descendants(process.pid) if with_commands else []
        process.kill()
        process.wait()
        for pid in below:
            # One can end as it loses its parent.
            with suppress(ProcessLookupError):
                end_process(pid)

    def request(self, method: str, path: str, token: str = "", body: object = None, key: str = "") -> Answer:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"Idempotency-Key": key} if key else {}
        text = json.dumps(body) if body is not None else None
        with closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)) as connection:
            connection.request(method, f"/api/v1{path}", text, headers)
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()))

    def token(self, subject: str, role: str = "developer") -> str:
        made = self.lab.zsnapdb("token", "create", "--for", subject, "--role", role, "--json").json
        return str(made["text"])

    def to_its_end(self, answer: Answer, token: str) -> Answer:
        """Return the answer, after the end of the operation if it is one."""
        deadline = time.monotonic() + 300
        while answer.status == 202:
            assert time.monotonic() < deadline, answer
            # Commands make clones at low priority: whoever asks without a pause takes the processor from them.
            time.sleep(0.2)
            answer = self.request("GET", f"/operations/{answer.body['operation']}", token)
        return answer

    def clones(self) -> list[dict[str, Any]]:
        """Return the clones as root sees them."""
        clones: list[dict[str, Any]] = self.lab.zsnapdb("clone", "list", "--json").json["clones"]
        return clones


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    below = [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and parent(int(path.name)) == pid
    ]
    return [*below, *(deeper for one in below for deeper in descendants(one))]


@contextmanager
def gate_closed() -> Iterator[None]:
    """Let the making of clones stand still for the block."""
    GATE.mkdir(exist_ok=True)
    (GATE / "reached").unlink(missing_ok=True)
    (GATE / "closed").touch()
    try:
        yield
    finally:
        (GATE / "closed").unlink()
