"""Servers of ours: which keeper, which limits, in which words."""

from __future__ import annotations

import getpass
import os
import pwd
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zsnapdb.base import program_start
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.process_managers import (
    Detached,
    Limits,
    SystemdUnits,
    choose,
    limiting_arguments,
    unit_properties,
    widening_arguments,
)

MIB = 1 << 20


def test_no_limits_are_no_words() -> None:
    assert limiting_arguments("one", Limits(), [0, 1]) == []


def test_limits_are_words_before_the_program() -> None:
    words = limiting_arguments("one", Limits(512 * MIB, 1.5, 7), [0, 1, 2, 3])
    assert words[:3] == ["nice", "-n", "7"]
    assert words[3:5] == ["prlimit", "--data=536870912"]
    assert words[5:7] == ["taskset", "-c"]
    assert len(words[7].split(",")) == 2


def test_as_many_processors_as_there_are_is_no_limit() -> None:
    assert limiting_arguments("one", Limits(processors=2), [0, 1]) == []


def test_servers_spread_over_the_processors() -> None:
    chosen = {limiting_arguments(f"clone-{n}", Limits(processors=1), [0, 1, 2, 3])[-1] for n in range(40)}
    assert chosen == {"0", "1", "2", "3"}


def test_a_unit_is_told_every_limit() -> None:
    words = unit_properties("one", Path("/x/error.log"), Limits(512 * MIB, 1.5, 7), "mysql", None)
    for property_ in (
        "Type=exec",
        "MemoryMax=536870912",
        "LimitDATA=536870912",
        "CPUQuota=150%",
        "Nice=7",
        "StandardError=append:/x/error.log",
        "User=mysql",
    ):
        assert f"--property={property_}" in words
    unlimited = unit_properties("one", Path("/x/error.log"), Limits(), "mysql", None)
    assert not [word for word in unlimited if "Memory" in word or "CPU" in word or "Limit" in word]


def test_systemd_is_chosen_where_it_runs_and_refused_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(process_managers, "SYSTEMD_RUNS", tmp_path / "missing")
    assert choose("auto") == Detached()
    with pytest.raises(PreflightError, match="does not run on this host"):
        choose("systemd")
    monkeypatch.setattr(process_managers, "SYSTEMD_RUNS", tmp_path)
    assert choose("auto") == choose("systemd") == SystemdUnits()
    assert choose("detached") == Detached()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose("auto") == Detached()


def test_limits_of_the_callers_shell_are_taken_from_a_server() -> None:
    endless = resource.RLIM_INFINITY
    usual = {
        "nofile": (1024, 1 << 20),
        "fsize": (endless, endless),
        "as": (endless, endless),
        "data": (endless, endless),
    }
    assert widening_arguments(usual, Limits()) == []
    assert widening_arguments({}, Limits()) == []
    narrow = {"nofile": (64, 64), "fsize": (4096, 4096), "cpu": (60, endless), "data": (MIB, MIB)}
    program, *options = widening_arguments(narrow, Limits())
    assert program == "prlimit"
    assert options[:3] == ["--fsize=unlimited:unlimited", "--cpu=unlimited:unlimited", "--data=unlimited:unlimited"]
    soft, _, hard = options[3].removeprefix("--nofile=").partition(":")
    assert (int(soft), int(hard) >= 1024) == (1024, True)
    assert "--data" not in " ".join(widening_arguments(narrow, Limits(memory=MIB)))


def test_a_detached_process_has_its_own_group_and_its_limits(tmp_path: Path) -> None:
    script = (
        "import os, resource, time; print(os.getsid(0) == os.getpid(), resource.getrlimit(resource.RLIMIT_DATA)[0],"
        " os.nice(0), flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    launched = Detached().launch(
        "one", [sys.executable, "-c", script], log, Limits(memory=256 * MIB, nice=3), getpass.getuser(), None
    )
    try:
        deadline = time.monotonic() + 120
        while not log.read_text().endswith("\n"):
            assert launched.ended() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert log.read_text().split() == [
            "True",
            str(256 * MIB),
            "3" if os.geteuid() == 0 else str(max(3, os.nice(0))),
        ]
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 256 * MIB
    finally:
        launched.kill()
    assert launched.ended() == f"exit status {-signal.SIGKILL}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a server as another account")
def test_a_server_is_never_root(tmp_path: Path) -> None:
    """Its option file may be replaced by the server's account between writing and start: root must not read it."""
    log = tmp_path / "log"
    script = "import os; print(os.getresuid(), os.getresgid(), os.getgroups(), open('/proc/self/status').read())"
    launched = Detached().launch("one", [sys.executable, "-c", script], log, Limits(nice=1), "nobody", None)
    deadline = time.monotonic() + 120
    while launched.ended() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert launched.ended() == "exit status 0", log.read_text()
    account = pwd.getpwnam("nobody")
    ids, groups = (account.pw_uid,) * 3, os.getgrouplist("nobody", account.pw_gid)
    assert log.read_text().startswith(f"{ids} {(account.pw_gid,) * 3} {groups}")
    assert "CapEff:\t0000000000000000" in log.read_text()


def test_systemd_writes_the_log_that_was_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server's account may put a link in the place of the log before systemd, as root, opens it."""
    log, victim = tmp_path / "log", tmp_path / "victim"

    def systemd(argv: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if argv[0] == "systemd-run":
            log.rename(tmp_path / "moved")
            log.symlink_to(victim)
            (output,) = [word.partition("append:")[2] for word in argv if "StandardOutput" in word]
            Path(output).write_text("words of the server")
        return subprocess.CompletedProcess(argv, 0, b"1\n", b"")

    monkeypatch.setattr(program_start, "run", systemd)
    SystemdUnits().launch("one", ["/usr/sbin/mysqld"], log, Limits(), getpass.getuser(), None)
    assert (tmp_path / "moved").read_text() == "words of the server"
    assert not victim.exists()


def test_a_program_that_cannot_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"/nowhere/mysqld cannot be started"):
        Detached().launch("one", ["/nowhere/mysqld"], tmp_path / "log", Limits(), getpass.getuser(), None)


def test_a_refusal_of_systemd_carries_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(argv: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(argv, 1, b"", b"Failed to start transient service unit: no room\n")

    monkeypatch.setattr(program_start, "run", refused)
    with pytest.raises(ServerError, match="Failed to start transient service unit: no room"):
        SystemdUnits().launch("one", ["/usr/sbin/mysqld"], tmp_path / "log", Limits(), getpass.getuser(), None)
