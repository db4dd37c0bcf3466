"""What a user of a clone left is gone for whoever has it, or another clone of the pool, next.

The ways to clean data: an undo of rows, data that is replaced because something cannot be undone, data that is replaced
for a user with every privilege, a swap for a clone that waits, and a clone that waited in the pool meanwhile. One
fixture goes each way once, with all things left at once; each test looks for one thing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.system.haproxy import KEPT, HAProxy
from tests.system.in_guest import Lab, ask, connect
from zsnapdb.jobs.clone import credentials
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.planning.clone.isolation import INTERNAL_ACCOUNT

pytestmark = pytest.mark.usefixtures("first")


@dataclass(frozen=True)
class Leftover:
    """Something that a user leaves by these statements, and the question that has rows if it is there."""

    leaves: tuple[str, ...]
    finds: str


OF_SESSION = {
    "a temporary table": Leftover(
        ("CREATE TEMPORARY TABLE ledger.passing (id INT)", "INSERT INTO ledger.passing VALUES (1)"),
        "SELECT * FROM ledger.passing",
    ),
    "a variable of its session": Leftover(("SET @planted = 1",), "SELECT 1 FROM DUAL WHERE @planted = 1"),
    "a lock by name": Leftover(
        ("SELECT GET_LOCK('planted', 0)",), "SELECT 1 FROM DUAL WHERE IS_USED_LOCK('planted') IS NOT NULL"
    ),
    "a prepared statement": Leftover(("PREPARE planted FROM 'SELECT 1'",), "EXECUTE planted"),
    "an open transaction": Leftover(
        ("BEGIN", "INSERT INTO ledger.journal VALUES (901, 1)"), "SELECT * FROM ledger.journal WHERE worker = 901"
    ),
}
"""What is there as long as a session of the user is."""
ROWS = {
    "rows": Leftover(
        ("INSERT INTO ledger.journal VALUES (902, 1)", "UPDATE ledger.accounts SET balance = -902 WHERE id = 1"),
        "SELECT id FROM ledger.accounts WHERE balance = -902 UNION SELECT 1 FROM ledger.journal WHERE worker = 902",
    )
}
OF_SCHEMAS = {
    "a table": Leftover(("CREATE TABLE ledger.planted (id INT)",), "SHOW TABLES FROM ledger LIKE 'planted'"),
    "a view": Leftover(
        ("CREATE VIEW ledger.planted_view AS SELECT 1 AS one",), "SHOW TABLES FROM ledger LIKE 'planted_view'"
    ),
    "a schema": Leftover(("CREATE DATABASE planted_schema",), "SHOW DATABASES LIKE 'planted_schema'"),
    "a trigger": Leftover(
        ("CREATE TRIGGER ledger.planted BEFORE INSERT ON ledger.accounts FOR EACH ROW SET NEW.balance = 0",),
        "SHOW TRIGGERS FROM ledger WHERE `Trigger` = 'planted'",
    ),
    "an event": Leftover(
        ("CREATE EVENT ledger.planted ON SCHEDULE EVERY 1 DAY DO DELETE FROM ledger.accounts",),
        "SHOW EVENTS FROM ledger WHERE Name = 'planted'",
    ),
    "a procedure": Leftover(
        ("CREATE PROCEDURE ledger.planted() SELECT 1",), "SHOW PROCEDURE STATUS WHERE Name = 'planted'"
    ),
}
"""What a user without `--admin` can leave in the schemas."""
XA = {
    "a prepared transaction of XA": Leftover(
        ("XA START 'left'", "INSERT INTO ledger.journal VALUES (903, 1)", "XA END 'left'", "XA PREPARE 'left'"),
        "XA RECOVER",
    )
}
OF_ADMIN = {
    "an account": Leftover(
        ("CREATE USER planted@'%' IDENTIFIED BY 'planted-Pw-1'", "GRANT ALL ON *.* TO planted@'%'"),
        "SELECT user FROM mysql.user WHERE user = 'planted'",
    ),
    "a role": Leftover(("CREATE ROLE planted_role",), "SELECT user FROM mysql.user WHERE user = 'planted_role'"),
    "a variable": Leftover(
        ("SET GLOBAL max_connections = 77",), "SELECT 1 FROM DUAL WHERE @@global.max_connections = 77"
    ),
    "a statement at each login": Leftover(
        ("SET GLOBAL init_connect = 'SET @planted = 1'",), "SELECT 1 FROM DUAL WHERE @@global.init_connect <> ''"
    ),
    "the scheduler of events": Leftover(
        ("SET GLOBAL event_scheduler = ON",), "SELECT 1 FROM DUAL WHERE @@global.event_scheduler = 'ON'"
    ),
    "a log of statements": Leftover(
        ("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON", "SELECT 'planted'"),
        "SELECT event_time FROM mysql.general_log WHERE argument LIKE '%planted%'",
    ),
    "a file in secure_file_priv": Leftover(
        ("SELECT 'planted' INTO OUTFILE '{files}/planted'",),
        "SELECT 1 FROM DUAL WHERE LOAD_FILE('{files}/planted') IS NOT NULL",
    ),
    "another server": Leftover(
        ("CREATE SERVER planted FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1')",),
        "SELECT server_name FROM mysql.servers WHERE server_name = 'planted'",
    ),
}
"""What only a user with every privilege can leave."""
OF_ADMIN_OF = {
    "mysql": {
        "a variable that a restart keeps": Leftover(
            ("SET PERSIST max_connect_errors = 77",), "SELECT 1 FROM DUAL WHERE @@global.max_connect_errors = 77"
        ),
        "replication": Leftover(
            ("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'planted'",),
            "SHOW REPLICA STATUS",
        ),
        "a plugin": Leftover(
            ("INSTALL PLUGIN ddl_rewriter SONAME 'ddl_rewriter.so'",),
            "SELECT name FROM mysql.plugin WHERE name = 'ddl_rewriter'",
        ),
        "a component": Leftover(
            ("INSTALL COMPONENT 'file://component_query_attributes'",),
            "SELECT component_urn FROM mysql.component WHERE component_urn LIKE '%query_attributes'",
        ),
    },
    "mariadb": {
        "replication": Leftover(
            ("CHANGE MASTER 'planted' TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'planted'",),
            "SHOW ALL SLAVES STATUS",
        ),
        "a plugin": Leftover(
            ("INSTALL SONAME 'metadata_lock_info'",), "SELECT name FROM mysql.plugin WHERE name LIKE 'METADATA%'"
        ),
    },
}
UNDONE, REFUSED, REPLACED, SWAPPED, WAITED = WAYS = ("undone", "refused", "replaced", "swapped", "waited")


def left_in(way: str, flavour: str) -> dict[str, Leftover]:
    """What is left before the data is cleaned in that way."""
    ordinary = OF_SESSION | ROWS
    every = ordinary | OF_SCHEMAS | XA
    return {UNDONE: ordinary, REFUSED: every}.get(way, every | OF_ADMIN | OF_ADMIN_OF[flavour])


@dataclass(frozen=True)
class Holder:
    """A user of a clone, whose sessions stay open until they are ended."""

    made: dict[str, Any]
    sessions: list[pymysql.Connection] = field(default_factory=list)

    @contextlib.contextmanager
    def looks(self) -> Iterator[pymysql.Connection]:
        """A session that sees everything in the clone: that of zsnapdb itself."""
        folder = Path(self.made["clone"]["mount"], ".zsnapdb")
        password = credentials.read(folder / credentials.INTERNAL_FILE)
        assert password is not None
        socket = str(ServerProcess(folder).socket)
        with pymysql.connect(
            unix_socket=socket, user=INTERNAL_ACCOUNT, password=password.get_secret_value(), autocommit=True
        ) as session:
            yield session

    def leave(self, things: Mapping[str, Leftover]) -> None:
        """Leave each thing in a session of its own, and see that it is there."""
        for name, thing in things.items():
            session = connect(self.made)
            self.sessions.append(session)
            (files,) = ask(session, "SELECT @@secure_file_priv")[0]
            for statement in thing.leaves:
                ask(session, statement.format(files=files))
            if name in OF_SESSION:
                assert found(session, thing), f"{name} is not there"
        with self.looks() as session:
            missing = [name for name in things if name not in OF_SESSION and not found(session, things[name])]
        assert missing == []

    def finds(self, things: Mapping[str, Leftover]) -> set[str]:
        """The things that the next holder of the clone, or zsnapdb itself, sees."""
        with connect(self.made) as session, self.looks() as other:
            return {name for name, thing in things.items() if found(session, thing) or found(other, thing)}

    def close(self) -> None:
        for session in self.sessions:
            with contextlib.suppress(pymysql.Error):
                session.close()


_NOT_THERE = (1044, 1142, 1146, 1227, 1243, 1290, 1401, 3879)
"""Numbers of the errors that say that there is no such table or statement, or that the account may not look."""


def found(session: pymysql.Connection, thing: Leftover) -> list[tuple[Any, ...]]:
    try:
        (files,) = ask(session, "SELECT @@secure_file_priv")[0]
        return ask(session, thing.finds.format(files=files))
    except pymysql.MySQLError as error:
        if error.args[0] in _NOT_THERE:
            return []
        raise


@dataclass(frozen=True)
class Cleaned:
    """By the way: what the next holder found of what was left, and what the reset said."""

    found: Mapping[str, set[str]]
    resets: Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def cleaned(lab: Lab, first: dict[str, Any]) -> Iterator[Cleaned]:
    """Two clones of a pool of four are used and reset; the others wait meanwhile, and are handed out then."""
    size = "[instance.main.pool]\nsize = 4\n\n"
    config, kept = (lab.changed(("[repository.s3]\n", f"{more}[repository.s3]\n")) for more in (size, size + KEPT))
    assert lab.zsnapdb("clone", "pool", "main", config=config).code == 0
    haproxy = HAProxy(lab, kept)
    haproxy.start()

    def hand_out(name: str, *words: str) -> Holder:
        made = lab.zsnapdb("clone", "create", "main", "--name", name, *words, "--json", config=kept).json
        assert made["of_pool"]
        return Holder(made)

    things = {way: left_in(way, lab.flavour) for way in WAYS}
    resets: dict[str, dict[str, Any]] = {}
    seen: dict[str, set[str]] = {}
    holders = [ordinary, admin] = [hand_out("ordinary"), hand_out("admin", "--admin")]
    try:
        admin.leave(things[REPLACED])
        for way, holder, name in ((UNDONE, ordinary, "ordinary"), (REFUSED, ordinary, "ordinary")):
            holder.leave(things[way])
            resets[way] = lab.zsnapdb("clone", "reset", name, "--json", config=config).json
            seen[way] = holder.finds(things[way])
        resets[REPLACED] = lab.zsnapdb("clone", "reset", "admin", "--json", config=config).json
        seen[REPLACED] = admin.finds(things[REPLACED])
        admin.leave(things[SWAPPED])
        resets[SWAPPED] = lab.zsnapdb("clone", "reset", "admin", "--json", config=kept).json
        seen[SWAPPED] = Holder({**admin.made, "clone": resets[SWAPPED]["clone"]}).finds(things[SWAPPED])
        seen[WAITED] = hand_out("next", "--admin").finds(things[WAITED])
        yield Cleaned(seen, resets)
    finally:
        for holder in holders:
            holder.close()
        haproxy.end()
        for one in lab.zsnapdb("clone", "list", "--json").json["clones"]:
            assert lab.zsnapdb("clone", "destroy", one["name"]).code == 0


def test_each_way_was_taken(cleaned: Cleaned) -> None:
    undone, refused, replaced, swapped = (cleaned.resets[way] for way in (UNDONE, REFUSED, REPLACED, SWAPPED))
    # The rows that were left, and no row of a temporary table or of a transaction that was not committed.
    assert (undone["undone"], undone["reason"]) == (2, None)
    assert (refused["undone"], bool(refused["reason"])) == (None, True)
    assert (replaced["undone"], replaced["reason"]) == (None, "its users may keep changes out of the binlog")
    assert (swapped["way"], swapped["reason"]) == ("swap", replaced["reason"])


@pytest.mark.parametrize(
    ("way", "thing"),
    [(way, thing) for way in WAYS for thing in left_in(way, os.environ.get("LAB_FLAVOUR", "mysql"))],
)
def test_what_a_user_left_is_gone_for_the_next_one(cleaned: Cleaned, way: str, thing: str) -> None:
    assert thing not in cleaned.found[way]
