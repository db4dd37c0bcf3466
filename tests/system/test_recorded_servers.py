"""The recorded answers that unit tests replay are the answers of a real server.

The server of this guest is compared with its file in tests/unit/recorded: that of its series, of its release or of the
newest one before. Only the answers that decide something are compared, not values such as positions.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.unit.support.recorded_server import ACCOUNT, Recorded, RecordedSession, a_shop, answers_of, replica_of_nobody
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.server_family import flavour_of

from .in_guest import SOCKET, Lab

RECORDINGS = Path(__file__).resolve().parents[1] / "unit" / "recorded"
SERIES = {"mysql": "mysql-9.7", "mariadb": "mariadb-11.8"}


@pytest.fixture(scope="module")
def recorded(lab: Lab) -> Recorded:
    release = tuple(int(number) for number in re.findall(r"\d+", lab.sql("SELECT VERSION()")[0][0])[:3])
    of_series = [Recorded.load(file.stem) for file in RECORDINGS.glob(f"{SERIES[lab.flavour]}*.json")]
    return max((file for file in of_series if file.release <= release), key=lambda file: file.release)


@pytest.fixture(scope="module")
def root() -> Iterator[Session]:
    with Session.open(Address("root", Path(SOCKET)), SecretStr("")) as session:
        yield session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    password = SecretStr(Path("/etc/zsnapdb/main.password").read_text().strip())
    with Session.open(Address(ACCOUNT, Path(SOCKET)), password) as opened:
        yield opened


@contextlib.contextmanager
def a_stranger(root: Session) -> Iterator[Session]:
    """An account without any privilege, for the block."""
    root.query("CREATE USER stranger@localhost IDENTIFIED BY 'for-a-moment'")
    try:
        with Session.open(Address("stranger", Path(SOCKET)), SecretStr("for-a-moment")) as opened:
            yield opened
    finally:
        root.query("DROP USER stranger@localhost")


@pytest.fixture(scope="module")
def real(root: Session, session: Session) -> dict[str, Any]:
    """The answers of the guest's server to the same queries as in the recorded file."""
    with a_shop(root), replica_of_nobody(root), a_stranger(root) as stranger:
        answers: dict[str, Any] = json.loads(json.dumps(answers_of(session, stranger), default=str))
    return answers


def differences(real: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Return one line for each name that only one side has, or that has different answers."""
    lines = [f"{name}: the server has it, the file does not" for name in sorted(real.keys() - recorded.keys())]
    lines += [f"{name}: the file has it, the server does not" for name in sorted(recorded.keys() - real.keys())]
    return lines + [
        f"{name}: {real[name]!r} from the server, {recorded[name]!r} in the file"
        for name in real
        if real[name] != recorded.get(name, real[name])
    ]


@pytest.mark.parametrize("part", ["parser", "columns", "engines", "status", "xa_recover"])
def test_the_server_answers_what_is_written_down(part: str, real: dict[str, Any], recorded: Recorded) -> None:
    assert differences(real[part], recorded.answers[part]) == []


def test_the_server_has_the_variables_that_are_written_down(real: dict[str, Any], recorded: Recorded) -> None:
    # A new query that no recording has cannot be missing from this one.
    names = {name for file in RECORDINGS.glob("*.json") for name in Recorded.load(file.stem).answers["variables"]}
    assert recorded.answers["variables"].keys() <= names
    actual, written = (
        dict.fromkeys((name for name in part["variables"] if name in names), "there")
        for part in (real, recorded.answers)
    )
    assert differences(actual, written) == []
    assert flavour_of(real["variables"]) is flavour_of(recorded.answers["variables"])


@pytest.mark.parametrize("part", ["position", "replica_status"])
def test_the_server_names_the_columns_that_are_written_down(
    part: str, real: dict[str, Any], recorded: Recorded
) -> None:
    assert real[part]["statement"] == recorded.answers[part]["statement"]
    (actual,), (written,) = real[part]["rows"], recorded.answers[part]["rows"]
    assert differences(dict.fromkeys(actual, "there"), dict.fromkeys(written, "there")) == []


def test_the_server_lists_table_files_where_it_is_written_down(real: dict[str, Any], recorded: Recorded) -> None:
    actual, written = (
        {name: "./shop/orders.ibd" in files for name, files in part["tablespace_files"].items()}
        for part in (real, recorded.answers)
    )
    assert differences(actual, written) == []


def test_probing_the_server_and_replaying_its_file_come_to_the_same(
    root: Session, session: Session, recorded: Recorded
) -> None:
    with a_shop(root), replica_of_nobody(root):
        real, played = probe(session), probe(RecordedSession(recorded))
    for name in (
        "flavour",
        "lock_statements",
        "dialect",
        "sees_all_tables",
        "redo_disabled",
        "prepared_xa",
        "row_versions",
        "has_binlog",
        "has_gtids",
    ):
        assert getattr(real, name) == getattr(played, name), name
    (channel,), (written,) = real.channels, played.channels
    assert (channel.name, channel.host, channel.port, channel.receiving, channel.applying) == (
        "",
        "127.0.0.1",
        1,
        True,
        True,
    )
    assert channel.coordinates == written.coordinates


def test_offering_statements_to_the_parser_changes_nothing(root: Session, session: Session) -> None:
    with replica_of_nobody(root), a_shop(root):
        before = probe(session)
        after = probe(session)
        assert after.channels == before.channels
        assert after.channels[0].applying
        # Nothing was locked: neither tables of any engine nor DDL wait.
        root.query("SET SESSION lock_wait_timeout = 1")
        root.query("INSERT INTO shop.orders VALUES (1)")
        root.query("INSERT INTO shop.notes VALUES (1)")
        root.query("CREATE TABLE shop.more (id INT PRIMARY KEY)")
