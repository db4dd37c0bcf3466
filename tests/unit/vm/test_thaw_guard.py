"""The guard is a real process here: it thaws when its parent is killed or late, and leaves a thawed guest alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.base.errors import CommandError
from zsnapdb.config import settings
from zsnapdb.jobs.backup.guest_freeze import prepared
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive_with_child
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.vm.thaw_guard import guarding

REPOSITORY = Path(__file__).parents[3]
UUID = "11111111-2222-4333-8444-555555555555"
LIBVIRT = """
class libvirtError(Exception): pass
class Domain: pass
class Connection:
    def lookupByUUIDString(self, uuid): return Domain()
    def close(self): pass
def registerErrorHandler(handler, context): pass
def open(uri):
    if uri == "none:///": raise libvirtError("no such hypervisor")
    return Connection()
"""
AGENT = """
import json, pathlib
state = pathlib.Path(__file__).with_name("state")
asked = pathlib.Path(__file__).with_name("asked")
def qemuAgentCommand(domain, command, seconds, flags):
    verb = json.loads(command)["execute"]
    with asked.open("a") as out: out.write(verb + "\\n")
    if verb == "guest-fsfreeze-status": return json.dumps({"return": state.read_text()})
    state.write_text("thawed")
    return '{"return": 2}'
"""
PARENT = """
import pathlib, sys, time
from zsnapdb.jobs.base.run_locks import exclusive_with_child
from zsnapdb.vm.thaw_guard import guarding
folder = pathlib.Path(sys.argv[2])
lock = exclusive_with_child(f"thaw-guard-{sys.argv[1]}", doing="freezing", folder=folder / "run")
with lock as turn, guarding("test:///", sys.argv[1], 600.0, turn) as guard:
    guard.freezing()
    (folder / "state").write_text("frozen")
    print("frozen", flush=True)
    time.sleep(600)
"""
CONFIG = """
[instance.web]
repository = "r"
[instance.web.vm]
domain = "gold"
[repository.r]
url = "file:///nowhere"
[vms]
uri = "test:///"
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a libvirt whose only guest is a file that says `frozen` or `thawed`."""
    (tmp_path / "libvirt.py").write_text(LIBVIRT)
    (tmp_path / "libvirt_qemu.py").write_text(AGENT)
    (tmp_path / "state").write_text("thawed")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    return tmp_path


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[int]:
    """The lock that a run and its guard have."""
    with exclusive_with_child("turn", doing="freezing", folder=tmp_path / "run") as descriptor:
        yield descriptor


class GuestOfFile:
    """The agent of the guest whose state is a file."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        if command == guest_agent_messages.STATUS:
            return json.dumps({"return": self.state.read_text()})
        if command == guest_agent_messages.FILE_SYSTEMS:
            return '{"return": []}'
        self.state.write_text("frozen" if command == guest_agent_messages.FREEZE else "thawed")
        return '{"return": 2}'


def killed_in_its_freeze(guest: Path) -> None:
    """Have a run begin a freeze, and kill it."""
    argv = [sys.executable, "-c", PARENT, UUID, str(guest)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"frozen\n"
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def becomes(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def state(guest: Path) -> str:
    return (guest / "state").read_text()


def test_a_run_that_is_killed_leaves_no_frozen_guest(guest: Path) -> None:
    killed_in_its_freeze(guest)
    assert becomes(lambda: state(guest) == "thawed")


def test_the_guard_of_a_killed_run_never_thaws_the_freeze_of_the_next_run(guest: Path) -> None:
    killed_in_its_freeze(guest)
    assert becomes(lambda: state(guest) == "thawed")
    instance = Instance.of(settings.parse(CONFIG, "test"), "web")
    instance = replace(instance, host=replace(THIS_HOST, run=guest / "run"))
    with prepared(instance, GuestOfFile(guest), UUID, 60.0) as freeze:
        freeze.begin()
        assert freeze.problem == ""
        # The guard looks every half second.
        assert not becomes(lambda: state(guest) == "thawed", seconds=2.0)
    assert state(guest) == "thawed"


def test_a_run_that_is_late_does_not_keep_its_guest_frozen(guest: Path, turn: int) -> None:
    with guarding("test:///", UUID, 0.2, turn) as guard:
        guard.freezing()
        (guest / "state").write_text("frozen")
        assert becomes(lambda: state(guest) == "thawed")


def test_the_guard_of_a_guest_that_was_thawed_in_time_asks_nothing(guest: Path, turn: int) -> None:
    with guarding("test:///", UUID, 60.0, turn) as guard:
        guard.freezing()
        guard.thawed()
    assert not (guest / "asked").exists()


def test_a_run_that_ends_before_the_freeze_asks_nothing(guest: Path, turn: int) -> None:
    with guarding("test:///", UUID, 60.0, turn):
        pass
    assert not (guest / "asked").exists()


def test_without_a_guard_nothing_may_be_frozen(guest: Path, turn: int) -> None:
    with pytest.raises(CommandError, match="did not start"), guarding("none:///", UUID, 60.0, turn):
        raise AssertionError
