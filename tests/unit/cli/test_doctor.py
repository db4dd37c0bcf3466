"""The formats of `zsnapdb doctor`, and the rules that a configuration silences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.support.command_line import zsnapdb
from zsnapdb.base.errors import UsageError
from zsnapdb.cli.app import app
from zsnapdb.jobs.doctor import instance_checks as job
from zsnapdb.jobs.doctor.instance_checks import Diagnosis
from zsnapdb.planning.backup.fitness import FitnessFinding, PropertyChange, Severity, ok
from zsnapdb.zfs import datasets

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "tank/data" }}
repository = "here"
[repository.here]
url = "file://{folder}"
"""
SILENCED = """
[[doctor.silenced]]
rule = "{rule}"
reason = "{reason}"
until = {until}
"""


def written(folder: Path, more: str = "") -> str:
    file = folder / "zsnapdb.toml"
    file.write_text(CONFIGURATION.format(folder=folder) + more)
    return str(file)


def test_a_server_that_does_not_answer_is_critical_for_nagios(tmp_path: Path) -> None:
    done = zsnapdb("doctor", "--format", "nagios", config=written(tmp_path))
    assert done.returncode == 2
    assert done.stdout.startswith("ZSNAPDB CRITICAL - main ")
    assert len(done.stdout.splitlines()) == 1


def test_a_check_that_fails_itself_is_unknown_for_nagios(tmp_path: Path) -> None:
    done = zsnapdb("doctor", "--format", "nagios", config=str(tmp_path / "none.toml"))
    assert done.returncode == 3
    assert done.stdout.startswith("ZSNAPDB UNKNOWN - ")


def test_json_is_a_format_too(tmp_path: Path) -> None:
    done = zsnapdb("doctor", "--format", "json", config=written(tmp_path))
    assert json.loads(done.stdout)["instances"][0]["worst"] == "unfit"
    failed = zsnapdb("doctor", "--format", "json", config=str(tmp_path / "none.toml"))
    assert json.loads(failed.stdout)["kind"] == "error"


def test_doctor_says_that_developers_cannot_clone_an_instance(tmp_path: Path) -> None:
    for more, said in (("", False), ("[serve]\n", True), ('[serve]\nunmasked = ["main"]\n', False)):
        done = zsnapdb("doctor", config=written(tmp_path, more))
        assert ("developers cannot clone main over HTTP" in done.stdout) == said, done.stdout


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rule": "memery", "reason": "a slip of the pen", "until": "2100-01-01"}, "which does not exist"),
        ({"rule": "lock-privileges", "reason": "not now, please", "until": "2100-01-01"}, "cannot be silenced"),
        ({"rule": "memory", "reason": "short", "until": "2100-01-01"}, "doctor.silenced.0.reason"),
        ({"rule": "memory", "reason": "a good reason", "until": '"never"'}, "doctor.silenced.0.until"),
    ],
)
@pytest.mark.parametrize("command", ["doctor", "config check"])
def test_a_silence_that_makes_no_sense_is_an_error_of_the_configuration(
    tmp_path: Path, section: dict[str, str], message: str, command: str
) -> None:
    done = zsnapdb(*command.split(), config=written(tmp_path, SILENCED.format(**section)))
    assert done.returncode == 3
    assert message in done.stderr


def test_a_silence_of_an_unknown_instance_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    section = SILENCED.format(rule="memory", reason="a good reason", until="2100-01-01") + 'instance = "shop"\n'
    done = zsnapdb("config", "check", config=written(tmp_path, section))
    assert done.returncode == 3
    assert "'shop', which is not configured" in done.stderr
    right = section.replace("shop", "main")
    assert zsnapdb("config", "check", config=written(tmp_path, right)).returncode == 0


CHANGE = PropertyChange("tank/data", "compression", "lz4")
BAD = Diagnosis("main", (FitnessFinding(Severity.WARNING, "compression", "off", "x", change=CHANGE),), None)
GOOD = Diagnosis("main", (ok("advice", "good"),), None)


@pytest.mark.parametrize(
    ("words", "code", "is_set"),
    [
        (["doctor", "--json"], 1, False),
        (["doctor", "--fix", "--plan", "--json"], 1, False),
        (["doctor", "--fix", "--json"], 64, False),
        (["doctor", "--fix"], 64, False),
        (["doctor", "--fix", "--yes", "--format", "nagios"], 64, False),
        (["doctor", "--fix", "--yes", "--json"], 0, True),
    ],
)
def test_doctor_changes_only_what_it_was_allowed_to_and_looks_again(
    words: list[str], code: int, is_set: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changes: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(datasets, "set_properties", lambda name, values: changes.append((name, dict(values))))
    monkeypatch.setattr(job, "diagnose", lambda settings, host, only: [GOOD if changes else BAD])
    done = CliRunner().invoke(app, [*words, "--config", written(tmp_path)])
    assert changes == ([("tank/data", {"compression": "lz4"})] if is_set else [])
    if code == 64:
        assert isinstance(done.exception, UsageError)
    else:
        assert done.exit_code == code
