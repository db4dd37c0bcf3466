"""A schema of every kind of table and code comes back from rescue, clone and restore as the server's own dump says."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.inside import ledger
from zsnapdb.planning.trial.rescue import event_commands

from . import zoo
from .in_guest import SOCKET, Lab, ask, connect, started

LIVE = f"mysql://root@localhost/ledger?socket={SOCKET}"
LOCAL = (f"-S{SOCKET}", "-uroot")
TARGET = "tank/ark"


@dataclass(frozen=True)
class Saved:
    """A backup that holds the zoo: its id, its warnings, and the server's dumps of the zoo before it."""

    backup: str
    warnings: list[str]
    dump: str
    tables: str


def dump(lab: Lab, login: Iterable[str], schema: str, *, tables_only: bool = False) -> str:
    program = "/opt/mysql/bin/mysqldump" if lab.flavour == "mysql" else "mariadb-dump"
    return zoo.dump(program, login, schema, lab.flavour, tables_only=tables_only)


@pytest.fixture(scope="module")
def saved(lab: Lab) -> Iterator[Saved]:
    """The zoo in a backup; afterwards the server has no zoo and no plugin more than before."""

    def run_all(statements: Iterable[str]) -> None:
        with ledger.connect(SOCKET, "root", "", None) as connection:
            for statement in statements:
                ask(connection, statement)

    animals = zoo.Zoo(lab.flavour, run_all)
    animals.build()
    try:
        dumps = [dump(lab, LOCAL, zoo.SCHEMA, tables_only=tables_only) for tables_only in (False, True)]
        made = lab.zsnapdb("backup", "--json").json
        yield Saved(made["backup"]["backup_id"], made["warnings"], *dumps)
    finally:
        animals.remove()


def test_everything_in_a_schema_comes_back_into_the_live_server_and_into_a_file(
    lab: Lab, saved: Saved, tmp_path: Path
) -> None:
    """The servers' own dumps are equal: rows, old versions of rows, definitions; in the file also the code."""
    file, then = tmp_path / "zoo.sql", "the `zoo` then"
    words = ("rescue", "main", "--schema", zoo.SCHEMA, "--to", saved.backup)
    rescue = lab.zsnapdb(*words, "--into", LIVE, "--as", then, "--json").json
    try:
        renamed = saved.tables.replace(f"`{zoo.SCHEMA}`", "`the ``zoo`` then`")
        assert dump(lab, LOCAL, then, tables_only=True) == renamed
        assert rescue["rows"][zoo.MEMORY] == 0
        assert {f"view {view}" for view in zoo.VIEWS} | {"event every night"} <= set(rescue["left_out"])
        assert any(what.startswith(f"rows of {zoo.MEMORY}") for what in rescue["left_out"])
        if lab.flavour == "mariadb":
            assert {name: rescue["rows"][name] for name in zoo.VERSIONED} == zoo.VERSIONED
            assert {rescue["rows"][name] for name in zoo.SEQUENCES} == {1}
            (lost,) = [what for what in rescue["left_out"] if what.startswith("history of ")]
            assert zoo.BY_TRANSACTION in lost
            current = f"SELECT id, v FROM `the ``zoo`` then`.`{zoo.BY_TRANSACTION}` ORDER BY id"
            assert lab.sql(current) == [(1, 3), (2, 2)]
    finally:
        lab.sql("DROP DATABASE `the ``zoo`` then`")
    into_file = lab.zsnapdb(*words, "--into", str(file), "--json").json
    lab.sql(f"DROP DATABASE `{zoo.SCHEMA}`")
    lab.sql(f"CREATE DATABASE `{zoo.SCHEMA}` CHARACTER SET utf8mb4")
    client = "/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "mariadb"
    zoo.load([client, *LOCAL], zoo.SCHEMA, file)
    if lab.flavour == "mariadb":
        # A server without accounts does not dump events; the rescue names them.
        assert any(what.startswith("event every night: ") for what in into_file["left_out"])
        printed = [
            subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout
            for command in event_commands("main", saved.backup, zoo.SCHEMA, ("every night",))
        ]
        assert "EVENT `every night` ON SCHEDULE EVERY 1 DAY" in printed[1]
        lab.sql(zoo.EVENT)
    assert dump(lab, LOCAL, zoo.SCHEMA) == saved.dump


def test_a_clone_and_a_restore_hold_everything_but_what_was_in_memory(lab: Lab, saved: Saved) -> None:
    """The backup said which rows it does not hold. The servers' own dumps are equal."""
    assert ["the rows of 1 MEMORY table(s)" in text for text in saved.warnings].count(True) == 1
    in_memory = f"SELECT COUNT(*) FROM `{zoo.SCHEMA}`.`{zoo.MEMORY}`"
    history = f"SELECT COUNT(*) FROM `{zoo.SCHEMA}`.`{zoo.BY_TRANSACTION}` FOR SYSTEM_TIME ALL"
    made = lab.zsnapdb("clone", "create", "main", "--from", saved.backup, "--name", "noah", "--json").json
    try:
        address = ("--protocol=tcp", "-h127.0.0.1", f"-P{made['clone']['port']}")
        account = (f"-u{made['user']}", f"-p{made['password']}")
        assert dump(lab, (*address, *account), zoo.SCHEMA) == saved.dump
        with connect(made) as connection:
            assert ask(connection, in_memory) == [(0,)]
            if lab.flavour == "mariadb":
                assert ask(connection, history) == [(3,)]
    finally:
        assert lab.zsnapdb("clone", "destroy", "noah").code == 0
    restored = lab.zsnapdb("restore", "main", "--to", saved.backup, "--target", TARGET, "--json").json
    with started(lab, restored):
        socket = str(Path(restored["option_file"]).parent / "server.sock")
        assert dump(lab, (f"-S{socket}", "-uroot"), zoo.SCHEMA) == saved.dump
        with ledger.connect(socket, "root", "", None) as connection:
            assert ask(connection, in_memory) == [(0,)]


def test_host_without_a_library_of_the_server_refuses_every_copy_by_name(lab: Lab, saved: Saved) -> None:
    """No plan begins, no copy is called damaged, and doctor says it before the bad day."""
    library = zoo.LIBRARY[lab.flavour]
    aside = library.with_suffix(".aside")
    library.rename(aside)
    try:
        for words in (
            ("restore", "main", "--to", saved.backup, "--target", f"{TARGET}-2", "--plan"),
            ("restore", "main", "--to", saved.backup, "--target", f"{TARGET}-2"),
            ("clone", "create", "main", "--from", saved.backup, "--plan"),
            ("rescue", "main", "--schema", zoo.SCHEMA, "--to", saved.backup, "--into", "/root/none.sql", "--plan"),
            ("drill", "main", "--to", saved.backup),
        ):
            refused = lab.zsnapdb(*words)
            said = refused.stdout + refused.stderr
            assert (refused.code, library.name in said, "damaged" in said) == (4, True, False), said
        findings = lab.zsnapdb("doctor", "main").stdout
        assert any(library.name in line for line in findings.splitlines() if line.startswith("warning  plugins"))
        assert "clone (plugins: " in findings
    finally:
        aside.rename(library)
