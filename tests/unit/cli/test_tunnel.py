"""`zsnapdb clone tunnel` starts ssh, through which a client reaches the server of the clone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.support.command_line import ENVIRONMENT, zsnapdb
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served

SUBJECT = "ci:shop/web"
SSH = """#!{python}
import json, os, socket, sys, threading
words = sys.argv[1:]
with open({seen!r}, "w") as file:
    json.dump([words, dict(os.environ)], file)
_, local, host, port = words[words.index("-L") + 1].split(":")
def copy(source, target):
    while part := source.recv(4096):
        target.sendall(part)
    target.shutdown(socket.SHUT_WR)
with socket.create_server(("127.0.0.1", int(local))) as listener:
    print("forwards", flush=True)
    near, _ = listener.accept()
    far = socket.create_connection((host, int(port)))
    threading.Thread(target=copy, args=(near, far)).start()
    copy(far, near)
"""
"""A program that forwards one connection as ssh does: what its words say, on this host."""


@contextmanager
def greeting_server() -> Iterator[int]:
    """Greet each client, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b"clone:" + client.recv(100))

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(20)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(python=sys.executable, seen=str(tmp_path / "seen")))
    ssh.chmod(0o755)
    return folder


def greeted(words: list[str], environment: dict[str, str]) -> str:
    """Run the command, connect to the port that it names, and return the greeting through it."""
    argv = [sys.executable, "-m", "zsnapdb", "clone", "tunnel", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**ENVIRONMENT, **environment}, text=True) as process:
        assert process.stdout is not None
        try:
            leads = process.stdout.readline()
            assert "mysql --host=127.0.0.1" in process.stdout.readline()
            assert process.stdout.readline() == "forwards\n"
            local = int(leads.partition(" ")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", local), timeout=20) as client:
                client.sendall(b"hello")
                client.shutdown(socket.SHUT_WR)
                return client.makefile().read()
        finally:
            process.send_signal(signal.SIGTERM)


def test_tunnel_leads_to_clone_of_the_service(tmp_path: Path, programs: Path) -> None:
    host = ServeHost(tmp_path)
    token = host.token(SUBJECT)
    with host.helper(), served(host) as url, greeting_server() as port:
        clone = {"name": "mine", "owner": SUBJECT, "pid": 7, "backup_id": "x", "masked": True, "port": port}
        host.clones({**clone, "bind_address": "127.0.0.1"})
        path = f"{programs}{os.pathsep}{ENVIRONMENT['PATH']}"
        variables = {"PATH": path, "ZSNAPDB_URL": url, "ZSNAPDB_TOKEN": token, "SSH_AUTH_SOCK": "/run/agent"}
        assert greeted(["mine", "--via", "ann@db1"], variables) == "clone:hello"
        refused = zsnapdb("clone", "tunnel", "another", **variables)
        assert (refused.returncode, "there is no clone another" in refused.stderr) == (2, True)
    words, environment = json.loads((tmp_path / "seen").read_text())
    assert words[-2:] == ["--", "ann@db1"]
    assert environment["SSH_AUTH_SOCK"] == "/run/agent", "the keys of the user"
    assert token not in json.dumps([words, environment])
    assert host.changes() == []


def test_tunnel_with_port_asks_no_service(tmp_path: Path, programs: Path) -> None:
    path = f"{programs}{os.pathsep}{ENVIRONMENT['PATH']}"
    with greeting_server() as port:
        assert greeted(["mine", "--via", "db1", "--port", str(port)], {"PATH": path}) == "clone:hello"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mine",), "give --via HOST and --port PORT"),
        (("mine", "--port", "23070"), "give --via HOST, too"),
        (("mine", "--port", "23070", "--via=-oProxyCommand=x"), "is not an SSH host"),
    ],
)
def test_tunnel_that_cannot_be_is_refused(words: tuple[str, ...], said: str) -> None:
    refused = zsnapdb("clone", "tunnel", *words)
    assert refused.returncode in (2, 3)
    assert said in refused.stderr
