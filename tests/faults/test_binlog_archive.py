"""The archiver notices in its next round that binlogs were purged by zsnapdb, purged by others, or reset."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.guest import Guest, Lab

from .in_guest import PREPARE, PYTHON, QUICK, speed_up

CONFIG = "/etc/zsnapdb/zsnapdb.toml"
SQL = (
    "import sys, json; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; "
    "c = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', None).cursor(); "
)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def guest(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, request.param) as booted:
        booted.run([PYTHON, "-c", PREPARE]).check()
        privilege = "BINLOG_ADMIN" if request.param == "mysql" else "BINLOG ADMIN"
        sql(booted, f"GRANT {privilege} ON *.* TO zsnapdb@localhost")
        booted.run(
            [
                "sed",
                "-i",
                r's/repository = "s3"/repository = "s3"\nbinlog = { keep = "0s", purge_files = 2, replicas = 0 }/',
                CONFIG,
            ]
        ).check()
        booted.run(["zsnapdb", "backup"]).check()
        speed_up(booted)
        yield booted


def sql(guest: Guest, *statements: str) -> list[list[Any]]:
    code = (
        SQL
        + "".join(f"c.execute({statement!r}); " for statement in statements)
        + "print(json.dumps(c.fetchall(), default=str))"
    )
    rows: list[list[Any]] = json.loads(guest.run([PYTHON, "-c", code]).check().stdout)
    return rows


def zsnapdb(guest: Guest, *words: str) -> dict[str, Any]:
    done = guest.run([QUICK, *words, "--json"])
    # `status` warns while the newest writes are not protected.
    is_warned = words[0] == "status" and done.code == 1
    output: dict[str, Any] = json.loads((done if is_warned else done.check()).stdout)
    return output


CHANGE = "UPDATE ledger.accounts SET balance = balance + 1 WHERE id = 1"


def write(guest: Guest) -> None:
    sql(guest, CHANGE)


def write_and_rotate(guest: Guest, times: int) -> None:
    sql(guest, *(CHANGE, "FLUSH BINARY LOGS") * times)


def names(guest: Guest) -> list[str]:
    return [str(row[0]) for row in sql(guest, "SHOW BINARY LOGS")]


def test_binlogs_go_from_the_server_only_when_they_are_archived_and_fetched(guest: Guest) -> None:
    """Binlogs are purged in batches, and the archive continues without a gap.

    Then others purge binlogs that were not archived, and reset the server.
    """
    write_and_rotate(guest, 4)
    before = names(guest)
    assert zsnapdb(guest, "binlog", "purge", "--plan")["names"] == []
    zsnapdb(guest, "binlog", "archive", "--once")
    assert zsnapdb(guest, "binlog", "purge", "--plan")["names"] == before[:-1]
    check_replicas_count(guest, before)
    assert names(guest) == before
    purged = zsnapdb(guest, "binlog", "purge")
    assert (purged["names"], names(guest)) == (before[:-1], before[-1:])
    write(guest)
    after = zsnapdb(guest, "binlog", "archive", "--once")
    assert (after["transactions"], after["begun"], after["gaps"]) == (1, None, [])
    assert zsnapdb(guest, "status")["gaps"] == []
    check_a_gap(guest)
    check_a_reset(guest)


def check_replicas_count(guest: Guest, before: list[str]) -> None:
    """Check that nothing is purged while an expected replica is missing or lacks transactions."""
    guest.run(["sed", "-i", "s/replicas = 0/replicas = 1/", CONFIG]).check()
    refused = zsnapdb(guest, "binlog", "purge", "--plan")
    assert (refused["names"], "0 of 1 replicas" in refused["stays"]) == ([], True)
    tool = "/opt/mysql/bin/mysqlbinlog" if guest.flavour == "mysql" else "/usr/bin/mariadb-binlog"
    replica = guest.spawn(
        [
            tool,
            "--read-from-remote-server",
            "--stop-never",
            "--socket=/run/mysqld/mysqld.sock",
            "--user=root",
            before[-1],
        ]
    )
    sending = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%' AND state LIKE '%has"
        " sent all binlog%'"
    )
    probe = SQL + f"import time; n = 0\nwhile not n:\n c.execute({sending!r}); n = c.fetchone()[0]; time.sleep(0.1)"
    guest.run([PYTHON, "-c", probe], timeout=600).check()
    assert zsnapdb(guest, "binlog", "purge", "--plan")["names"] == before[:-1]
    replica.signal(9)
    replica.wait(600)
    guest.run(["sed", "-i", "s/replicas = 1/replicas = 0/", CONFIG]).check()


def check_a_gap(guest: Guest) -> None:
    """Check that a binlog which others purge before it is archived is a gap, which the next round reports.

    The window ends there, and begins again with the next backup.
    """
    write_and_rotate(guest, 2)
    sql(guest, f"PURGE BINARY LOGS TO '{names(guest)[-1]}'")
    write(guest)
    archived = zsnapdb(guest, "binlog", "archive", "--once")
    assert (archived["begun"], len(archived["gaps"])) == (None, 1)
    assert zsnapdb(guest, "binlog", "archive", "--once")["gaps"] == []
    assert len(zsnapdb(guest, "status")["recoverable"]) == 1
    guest.run([QUICK, "backup"]).check()
    write(guest)
    zsnapdb(guest, "binlog", "archive", "--once")
    status = zsnapdb(guest, "status")
    assert (len(status["recoverable"]), len(status["gaps"])) == (2, 1)
    assert re.search("(was|were) removed before", status["gaps"][0]["reason"])


def check_a_reset(guest: Guest) -> None:
    """Check that a reset begins a new incarnation, and that older backups do not continue into the new incarnation.

    After a reset the same names and GTIDs come again.
    """
    sql(guest, "RESET BINARY LOGS AND GTIDS" if guest.flavour == "mysql" else "RESET MASTER")
    write_and_rotate(guest, 3)
    archived = zsnapdb(guest, "binlog", "archive", "--once")
    assert archived["begun"] is not None
    incarnations = zsnapdb(guest, "binlog", "status")["incarnations"]
    assert [file["name"] for file in incarnations[-1]["files"]] == names(guest)
    assert len(zsnapdb(guest, "status")["recoverable"]) == 2
    guest.run([QUICK, "backup"]).check()
    write(guest)
    zsnapdb(guest, "binlog", "archive", "--once")
    assert len(zsnapdb(guest, "status")["recoverable"]) == 3
