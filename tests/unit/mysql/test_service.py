"""How the site's server is found, stopped and started."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.config.instance import ControlSettings
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.mysql.process.service import ServerService, ServingProcess, configured_server_id, service_of, serving

PRINTS = """#!/bin/sh
echo "$0 would have been started with the following arguments:"
echo "--user=mysql --server_id=1 --datadir=/var/lib/mysql {printed}"
echo "$@" > {words}
"""


def program(folder: Path, text: str) -> Path:
    file = folder / "server"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_command_that_fails_is_an_error_with_what_it_said() -> None:
    service = ServerService(("sh", "-c", "echo no such unit >&2; exit 5"), ("true",), 5.0)
    with pytest.raises(ServerError, match=r"exit status 5: no such unit"):
        service.stop()
    service.start()


def test_a_command_that_leaves_a_server_behind_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    ServerService(("true",), ("sh", "-c", f"sleep 600 & echo $! > {pid}"), 10.0).start()
    os.kill(int(pid.read_text()), 9)


def test_a_command_that_does_not_end_is_an_error() -> None:
    with pytest.raises(ServerError, match=r"did not end within 0 s"):
        ServerService(("sleep", "600"), ("true",), 0.2).stop()


ACCOUNT = pwd.getpwuid(os.geteuid()).pw_name
"""The owner of every folder that a test makes."""


def process(pid: int, datadir: Path) -> DiscoveredProcess:
    return DiscoveredProcess(pid, ACCOUNT, "/usr/sbin/mysqld", (), str(datadir))


def test_a_server_is_found_by_its_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are read behind those of the loader that started it."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = ["python3", "-c", program, "/usr/sbin/mysqld", "--defaults-file=/etc/my.cnf"]
    ours = subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # A process has no words for a moment while the kernel executes its program.
    assert ours.stdout is not None
    ours.stdout.readline()
    seen = [process(ours.pid, tmp_path), process(1, tmp_path / "beside")]
    monkeypatch.setattr(discovery, "server_processes", lambda: seen)
    try:
        (tmp_path / "link").symlink_to(tmp_path)
        served = serving(tmp_path / "link")
        assert served is not None
        assert (served.pid, served.option_words) == (ours.pid, ("--defaults-file=/etc/my.cnf",))
        assert serving(tmp_path / "nowhere") is None
        # Any account can start a program of that name there.
        seen.append(replace(process(2, tmp_path), account="somebody"))
        assert serving(tmp_path) == served
        seen.append(process(2, tmp_path))
        with pytest.raises(PreflightError, match="several processes serve"):
            serving(tmp_path)
    finally:
        ours.communicate()


def test_without_a_setting_or_a_unit_nothing_says_how_to_stop_a_server() -> None:
    with pytest.raises(PreflightError, match="does not know how"):
        service_of(ControlSettings(), None)
    with pytest.raises(PreflightError, match="does not know how"):
        service_of(ControlSettings(), ServingProcess(os.getpid(), (sys.executable,)))


def test_the_commands_of_the_site_or_its_unit_are_used() -> None:
    # The server is down: the unit that an earlier run saw counts.
    assert service_of(ControlSettings(), None, "db.service").start_words == ("systemctl", "start", "db.service")
    assert service_of(ControlSettings(stop=("halt-db",), start=("run-db",)), None).stop_words == ("halt-db",)
    assert service_of(ControlSettings(unit="mariadb.service"), None).start_words == (
        "systemctl",
        "start",
        "mariadb.service",
    )


@pytest.mark.parametrize(
    "settings",
    [{"stop": "a"}, {"unit": "a", "stop": "b", "start": "c"}, {"unit": "-H"}, {"server_id_file": "relative.cnf"}],
)
def test_contradicting_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ControlSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("printed", "words", "expected"),
    [("", (), 1), ("--server-id=7", (), 7), ("--server-id=7", ("--port=1", "--server_id=9"), 9)],
)
def test_the_last_server_id_that_the_next_start_reads_counts(
    tmp_path: Path, printed: str, words: tuple[str, ...], expected: int
) -> None:
    asked = tmp_path / "words"
    process = ServingProcess(1, ("/usr/sbin/mariadbd", "--defaults-file=/etc/my.cnf", *words))
    assert configured_server_id(program(tmp_path, PRINTS.format(words=asked, printed=printed)), process) == expected
    assert asked.read_text().split() == ["--defaults-file=/etc/my.cnf", "--print-defaults"]


def test_no_word_of_a_process_becomes_an_option_unless_it_names_option_files() -> None:
    assert ServingProcess(1, ("mysqld", "--init-file=/tmp/evil", "--defaults-file=/etc/my.cnf")).option_words == ()
    assert ServingProcess(1, ("mysqld", "--defaults-file=/etc/a b.cnf")).option_words == ()
