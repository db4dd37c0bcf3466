"""The package contains the files that its hints name, and prints them wherever it is installed."""

from __future__ import annotations

import ast
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT, ENVIRONMENT, zsnapdb
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError, UsageError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.setup.examples import examples, find, flavour_of, grants
from zsnapdb.planning.agent_jobs import JobKind


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every text of the package that is no docstring."""
    for file in sorted((CHECKOUT / "zsnapdb").rglob("*.py")):
        tree = ast.parse(file.read_text())
        notes = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
                yield file, node.value


def test_no_message_names_a_file_that_only_the_source_tree_has() -> None:
    assert [(str(file), text) for file, text in texts() if re.search(r"\b(configs|docs|hooks|tests)/\S", text)] == []


def test_every_example_that_a_message_names_exists() -> None:
    named = {name for _, text in texts() for name in re.findall(r"`zsnapdb example ([^`\s]+)`", text)}
    assert "zsnapdb.toml" in named
    for name in named:
        assert find(name).text


def test_an_unknown_example_is_wrong_usage_and_the_names_are_listed() -> None:
    with pytest.raises(UsageError, match=r"zsnapdb-backup@\.service"):
        find("service")
    assert find("zsnapdb-backup@.service").name == "systemd/zsnapdb-backup@.service"


def test_the_example_of_a_configuration_is_one() -> None:
    done = zsnapdb("example", "zsnapdb.toml")
    assert done.returncode == 0
    parse(done.stdout, "example")


def test_grants_are_those_of_the_flavour_and_name_the_configured_account() -> None:
    assert "BACKUP_ADMIN" in grants(Flavour.MYSQL)
    text = grants(Flavour.MARIADB, "back`up")
    assert "TO `back``up`@localhost;" in text
    assert "zsnapdb@localhost" not in text
    done = zsnapdb("grants", "--flavour", "mariadb", config="/nonexistent")
    assert (done.returncode, "BINLOG MONITOR" in done.stdout) == (0, True)


def instance_at(port: int) -> Instance:
    text = f'[instance.main]\nhost = "127.0.0.1"\nport = {port}\nrepository = "r"\n[repository.r]\nurl = "file:///r"\n'
    return Instance.of(parse(text, "test"), "main")


@pytest.mark.parametrize(
    ("version", "flavour"), [("5.5.5-11.8.2-MariaDB-log", Flavour.MARIADB), ("8.4.3", Flavour.MYSQL)]
)
def test_a_server_tells_its_flavour_before_the_account_exists(version: str, flavour: Flavour) -> None:
    """A handshake of protocol 10, then error 1045 for the account (mysql.com, "Connection Phase")."""
    greeting = b"\x0a" + version.encode() + b"\0" + b"\x01\0\0\0" + b"a" * 8 + b"\0" + b"\xff\xf7" + b"\x2d" + b"\x02\0"
    greeting += b"\xff\xff" + b"\x15" + bytes(10) + b"b" * 12 + b"\0" + b"mysql_native_password\0"
    denied = b"\xff\x15\x04#28000Access denied"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
                connection.recv(4096)
                connection.sendall(len(denied).to_bytes(3, "little") + b"\x02" + denied)

        thread = threading.Thread(target=serve)
        thread.start()
        assert flavour_of(instance_at(listening.getsockname()[1])) is flavour
        thread.join()


def test_a_server_that_is_down_is_an_error_that_names_the_way_without_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ServerError, match="--flavour mysql"):
        flavour_of(instance_at(port))


def test_a_wheel_contains_every_example_and_prints_it(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shown = "from zsnapdb.jobs.setup.examples import examples; [print(e.name, len(e.text)) for e in examples()]"
    done = subprocess.run(
        [sys.executable, "-c", shown],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{example.name} {len(example.text)}" for example in examples()]
    assert (tmp_path / "installed" / "zsnapdb" / "shipped").is_dir()


COMMANDS = {
    "backup@": "backup",
    "full@": "backup",
    "snapshot@": "snapshot",
    "drill@": "drill",
    "prepare@": "clone prepare",
    "pool@": "clone pool",
    "prune@": "prune",
    "purge@": "binlog purge",
    "verify@": "verify",
    "deep-verify@": "verify",
    "copy@": "copy",
    "doctor@": "doctor",
    "reap": "reap",
    "status": "status",
}
"""The command of each unit that recurs. The archive runs all the time, so it needs no timer."""


def test_every_job_of_the_agent_also_has_a_unit() -> None:
    assert {unit.rstrip("@") for unit in COMMANDS} == {kind.value for kind in JobKind} - {JobKind.ARCHIVE}
    assert find("zsnapdb-binlog@.service").text


@pytest.mark.parametrize(("job", "command"), COMMANDS.items(), ids=COMMANDS)
def test_every_job_that_recurs_has_a_unit_and_a_timer(job: str, command: str) -> None:
    service, timer = find(f"zsnapdb-{job}.service").text, find(f"zsnapdb-{job}.timer").text
    assert re.search(rf"^ExecStart=/usr/bin/env zsnapdb {command}( |$)", service, re.MULTILINE)
    assert "Persistent=true" in timer
    assert "WantedBy=timers.target" in timer
    cron = find("zsnapdb.cron").text
    assert f"zsnapdb {command} " in cron


SERVICES = sorted((CHECKOUT / "configs" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", [path.name for path in SERVICES if "failed" not in path.name])
def test_a_unit_that_fails_tells_so(unit: str) -> None:
    """One that is always started again never counts as failed, so OnFailure= would start nothing (systemd.unit(5))."""
    text = find(unit).text
    is_kept = "Restart=always" in text
    # An account of its own cannot read the configuration, which says whom to tell: + is root (systemd.service(5)).
    line = "ExecStopPost=-/usr/bin/env zsnapdb notify failed %N" if is_kept else "OnFailure=zsnapdb-failed@%N.service"
    assert line in text.replace("=-+", "=-").splitlines()
    assert ("=-+" in text) == ("DynamicUser=yes" in text)
    assert "zsnapdb notify failed %i" in find("zsnapdb-failed@.service").text


@pytest.mark.parametrize("page", sorted((CHECKOUT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_page_that_installs_units_installs_the_unit_of_their_failure(page: Path) -> None:
    for line in page.read_text().splitlines():
        units = re.findall(r"[a-z-]+@?\.service", line) if "zsnapdb example" in line else []
        if any("OnFailure=zsnapdb-failed@" in find(unit).text for unit in units):
            assert "zsnapdb-failed@.service" in units, line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_every_unit() -> None:
    units = sorted((CHECKOUT / "configs" / "systemd").iterdir())
    argv = ["systemd-analyze", "verify", "--man=no", *(str(unit) for unit in units)]
    done = subprocess.run(argv, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "zsnapdb" in line]
    assert (done.returncode, ours) == (0, [])


def test_service_that_answers_reports_when_it_is_ready() -> None:
    units = {unit.name: unit.read_text() for unit in (CHECKOUT / "configs" / "systemd").glob("*.service")}
    services = {
        name for name, text in units.items() if "ExecStart=/usr/bin/env zsnapdb " in text and "Type=oneshot" not in text
    }
    # `binlog archive` answers nobody, so no other unit waits for it.
    assert {name for name in services if "\nType=notify\n" not in units[name]} == {"zsnapdb-binlog@.service"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_exposure_of_the_web_process_is_what_docs_say() -> None:
    """A threshold is ten times the exposure (systemd-analyze(1)); releases of systemd differ by some tenths."""
    unit = CHECKOUT / "configs" / "systemd" / "zsnapdb-serve.service"
    argv = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=15", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert "web process 1.1 (OK)" in (CHECKOUT / "docs" / "threat-model.md").read_text()
