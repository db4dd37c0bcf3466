"""An option with a value of the wrong form is wrong usage: exit code 2 on every command, and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "tank/data" }}
repository = "here"
[repository.here]
url = "file://{folder}"
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("usage")
    (folder / "zsnapdb.toml").write_text(CONFIGURATION.format(folder=folder))
    return str(folder / "zsnapdb.toml")


@pytest.mark.parametrize(
    "line",
    [
        "backup --wait soon",
        "prune --wait 5",
        "verify --older-than yesterday",
        "verify --limit 0",
        "restore main --handover later",
        "restore main --from nowhere",
        "restore main --abandon --plan",
        "restore main --resume --plan",
        "restore main --resume --abandon",
        "advise main --for long",
        "doctor main --load --for long",
        "doctor main --load --for 0s",
        "doctor main --for 10s",
        "doctor main --load --fix",
        "doctor main --load --format nagios",
        "restore main --handover replica --source db1",
        "runbook main --format pdf",
        "rescue main --into /tmp/x",
        "rescue main --table a.b --schema a --into /tmp/x",
        "rescue main --table a.b",
        "rescue main --table a.b --into /tmp/x --timeout 12",
        "rescue main --table a.b --into /tmp/x --transport pigeon",
        "rescue main --table a.b --into mysql://u:secret@h/x",
        "clone create main --ttl long",
        "clone create main --from latest-backup --at 2026-11-20T10:00:00Z",
        "clone extend sandbox --ttl 2",
        "clone protect sandbox --for ever",
        "pin main latest --reason ",
        "vm base create ../up --image /tmp/x",
        "vm base create pxc",
        "vm clone pxc --name-template pxc --count 2",
        "vm clone pxc --name-template pxc{n} --count 99",
        "vm clone pxc --name-template pxc --network tap:x",
        "vm clone pxc --name-template pxc --wait-for luck",
        "vm clone pxc --name-template pxc --memory much",
        "key generate",
    ],
)
def test_a_value_of_the_wrong_form_ends_with_2(line: str, config: str) -> None:
    done = zsnapdb(*line.split(" "), config=config)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_an_instance_that_is_not_configured_is_a_wrong_word(config: str) -> None:
    assert zsnapdb("doctor", "other", config=config).returncode == 2


def test_doctor_takes_its_instance_as_other_commands_do(config: str) -> None:
    """The server cannot be reached, which is unfit: 2 by the doctor's own scale."""
    done = zsnapdb("doctor", "main", "--json", config=config)
    assert (done.returncode, '"instance": "main"' in done.stdout) == (2, True)


def test_a_configuration_that_is_not_utf_8_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "zsnapdb.toml"
    file.write_bytes(b"# Gr\xfc\xdfe\n")
    done = zsnapdb("config", "check", config=str(file))
    assert done.returncode == 3
    assert "is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_file_that_is_not_utf_8_is_an_error_of_the_configuration(tmp_path: Path, config: str) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    (tmp_path / "password").chmod(0o600)
    file = tmp_path / "zsnapdb.toml"
    text = Path(config).read_text().replace("repository =", f'password_file = "{tmp_path}/password"\nrepository =')
    file.write_text(text)
    done = zsnapdb("backup", config=str(file))
    assert done.returncode == 3
    assert "is not UTF-8" in done.stderr


def test_a_configuration_that_is_a_folder_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    done = zsnapdb("config", "check", config=str(tmp_path))
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
