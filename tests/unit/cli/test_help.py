"""Help shows every command in a whole line below a heading; options have short names and variables; shells complete."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.main import get_command

from tests.unit.support.command_line import zsnapdb
from zsnapdb.cli import completion
from zsnapdb.cli.app import app
from zsnapdb.cli.commands import Heading
from zsnapdb.config import settings as zsnapdb_config
from zsnapdb.jobs.base import instance as instances
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.clone import sources as clone_sources
from zsnapdb.jobs.setup import examples

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "tank/data" }}
repository = "here"
[repository.here]
url = "file://{folder}"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "zsnapdb.toml").write_text(CONFIGURATION.format(folder=tmp_path))
    return str(tmp_path / "zsnapdb.toml")


def completed(line: str, config: str) -> list[str]:
    """Return what the completion script of bash gets for the last word of the line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_ZSNAPDB_COMPLETE": "complete_bash"}
    done = zsnapdb(config=config, **words)
    assert done.stderr == ""
    return done.stdout.split()


def test_help_shows_every_command_below_a_heading_and_cuts_no_line(config: str) -> None:
    text = zsnapdb("-h", config=config).stdout
    assert text == zsnapdb("--help", config=config).stdout
    assert "..." not in text.split("Backup:")[1]
    assert [heading for heading in Heading if f"\n{heading}:\n" in text] == list(Heading)
    root = get_command(app)
    commands = root.commands  # type: ignore[attr-defined]
    hidden = {name for name, command in commands.items() if command.hidden}
    assert hidden == {"advise", "forget", "unpin"}, "old names alone are not shown"
    assert [name for name in commands if name not in hidden and f"\n  {name} " not in text] == []
    assert "\nCommands:\n" not in text


def test_a_dry_run_is_a_plan(config: str) -> None:
    shown = zsnapdb("prune", "-h", config=config).stdout
    assert "-n, --plan, --dry-run" in shown
    for word in ("-n", "--dry-run", "--plan"):
        assert "holds no repository: create one" in zsnapdb("init", word, config=config).stdout
    assert list(Path(config).parent.iterdir()) == [Path(config)]


def test_a_variable_sets_an_option_and_the_command_line_comes_first(config: str) -> None:
    soon = {"ZSNAPDB_BACKUP_WAIT": "soon", "ZSNAPDB_VERSION": "1"}
    assert "'soon' is not a duration" in zsnapdb("backup", config=config, **soon).stderr
    assert "'later' is not a duration" in zsnapdb("backup", "--wait", "later", config=config, **soon).stderr


def test_a_shell_completes_commands_and_names(config: str) -> None:
    assert completed("zsnapdb b", config) == ["backup", "binlog"]
    assert completed("zsnapdb backup m", config) == ["main"]
    assert completed("zsnapdb list --repository h", config) == ["here"]
    assert completed("zsnapdb backup m", "/nonexistent") == []


def test_a_shell_completes_tables_of_the_running_server_and_sources_of_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def named(instance: str, beginning: str) -> list[str]:
        asked.append(instance)
        return ["shop.orders", "shop.lines"] if "." in beginning else ["shop.", "mysql."]

    commit = SimpleNamespace(set=SimpleNamespace(backup_id="20261123T031300Z-6142"))
    monkeypatch.setattr(zsnapdb_config, "load", lambda path: None)
    monkeypatch.setattr(instances.Instance, "of", classmethod(lambda cls, settings, name: name))
    monkeypatch.setattr(examples, "table_names", named)
    monkeypatch.setattr(catalogue, "homes", lambda settings: ["tank/zsnapdb/clones"])
    monkeypatch.setattr(clone_sources, "commits", lambda home: [commit])
    monkeypatch.setattr(completion, "backups", lambda incomplete: ["latest"])
    context = typer.Context(get_command(app))
    context.params["instance"] = "main"
    assert completion.tables(context, "sh") == ["shop."]
    assert completion.tables(context, "shop.o") == ["shop.orders"]
    assert completion.sources("") == ["live", "latest", "20261123T031300Z-6142"]
    assert asked == ["main", "main"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_for_the_names_of_zsnapdb(shell: str, config: str) -> None:
    assert f"_ZSNAPDB_COMPLETE=complete_{shell}" in zsnapdb("completion", shell, config=config).stdout
