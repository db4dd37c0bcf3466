"""Every line of a clone's contract, broken, is named.

And what a copy must know of its source survives as a property.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import replace

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.planning.clone.isolation import (
    CloneIdentity,
    ServerProfile,
    awake_accounts_query,
    find_isolation_breaks,
    lock_accounts_sql,
)
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap, ServerIdentity, is_loopback, option_file
from zsnapdb.planning.server_copy.source_facts import PROPERTY_BYTES, SourceServer, decode
from zsnapdb.planning.server_facts import Channel, ServerFacts

VARIABLES = {
    "version": "9.7.0",
    "datadir": "/c/data/",
    "port": "33070",
    "bind_address": "127.0.0.1",
    "socket": "/c/.zsnapdb/server.sock",
    "event_scheduler": "OFF",
    "persisted_globals_load": "OFF",
    "skip_replica_start": "ON",
    "admin_address": "",
}
FACTS = ServerFacts(Flavour.MYSQL, "9.7.0", "uuid-clone", 4711, VARIABLES, {}, ())
ORIGIN = SourceServer.of(
    replace(FACTS, server_uuid="uuid-source", server_id=1), {"data": "tank/data"}, {"data": "/var/lib/mysql"}, ()
)


def bomb() -> str:
    return base64.b85encode(zlib.compress(b" " * (64 << 20))).decode()


PROMISE = CloneIdentity(4711, 33070, "127.0.0.1", "/c/.zsnapdb/server.sock")


def test_a_server_that_keeps_the_contract_is_separate() -> None:
    assert find_isolation_breaks(FACTS, ORIGIN, PROMISE, ()) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "3306"),
        ("bind_address", "*"),
        ("socket", "/run/mysqld/mysqld.sock"),
        ("event_scheduler", "ON"),
        ("persisted_globals_load", "ON"),
        ("group_replication_start_on_boot", "ON"),
        ("wsrep_on", "ON"),
        ("rpl_semi_sync_source_enabled", "ON"),
        ("rpl_semi_sync_replica_enabled", "ON"),
        ("rpl_semi_sync_master_enabled", "ON"),
        ("rpl_semi_sync_slave_enabled", "ON"),
        ("skip_grant_tables", "ON"),
        ("extra_port", "3307"),
        ("admin_address", "127.0.0.1"),
        ("skip_replica_start", "OFF"),
        ("mysqlx_port", "33060"),
    ],
)
def test_a_variable_that_breaks_the_contract_is_named(name: str, value: str) -> None:
    (line,) = find_isolation_breaks(replace(FACTS, variables={**VARIABLES, name: value}), ORIGIN, PROMISE, ())
    assert name in line
    assert value in line


def test_identity_replication_and_accounts_are_looked_at() -> None:
    assert "server_uuid" in find_isolation_breaks(replace(FACTS, server_uuid="uuid-source"), ORIGIN, PROMISE, ())[0]
    assert "server_id" in find_isolation_breaks(replace(FACTS, server_id=1), ORIGIN, PROMISE, ())[0]
    channel = Channel("", "prod", 3306, receiving=False, applying=False, coordinates=None)
    assert "prod:3306" in find_isolation_breaks(replace(FACTS, channels=(channel,)), ORIGIN, PROMISE, ())[0]
    assert "app@%" in find_isolation_breaks(FACTS, ORIGIN, PROMISE, ("app@%",))[0]


def test_a_replica_of_a_set_may_follow_its_own_source_and_no_other() -> None:
    promise = replace(PROMISE, follows=33071)
    own = Channel("", "127.0.0.1", 33071, receiving=True, applying=True, coordinates=None)
    assert find_isolation_breaks(replace(FACTS, channels=(own,)), ORIGIN, promise, ()) == ()
    for other in (replace(own, port=3306), replace(own, host="prod")):
        assert "as a replica of" in find_isolation_breaks(replace(FACTS, channels=(own, other)), ORIGIN, promise, ())[0]


@pytest.mark.parametrize("flavour", list(Flavour))
def test_statements_of_an_init_file_are_one_line_each(flavour: Flavour) -> None:
    for line in lock_accounts_sql(flavour):
        assert line.endswith(";")
        assert line.count(";") == 1
        assert "\n" not in line


@pytest.mark.parametrize("flavour", list(Flavour))
def test_an_account_of_the_source_with_the_name_of_the_clones_account_is_locked(flavour: Flavour) -> None:
    assert "zsnapdb_clone" not in "".join(lock_accounts_sql(flavour))
    assert "user = 'zsnapdb_clone' AND host IN" in awake_accounts_query(flavour)
    assert "user = 'zsnapdb_internal' AND host = 'localhost'" in awake_accounts_query(flavour)


def test_an_origin_is_read_back_from_its_property() -> None:
    assert decode(ORIGIN.encode(), "x") == ORIGIN
    with pytest.raises(DamagedError, match="tank/x"):
        decode("{", "tank/x")


def test_an_origin_fits_into_a_property_however_many_servers_have_written_to_it() -> None:
    many = ",".join(f"{number:08x}-0000-0000-0000-000000000000:1-9" for number in range(400))
    long = SourceServer.of(replace(FACTS, gtid_purged=GtidSet.parse(many)), {"data": "tank/data"}, {"data": "/x"}, ())
    assert len(long.model_dump_json()) > PROPERTY_BYTES
    assert len(long.encode().encode()) <= PROPERTY_BYTES
    assert decode(long.encode(), "x").variables == long.variables
    assert decode(ORIGIN.encode(), "x").unlogged_gtids == GtidSet()


def test_an_origin_fits_into_a_property_however_long_its_settings_are() -> None:
    noise = {f"variable_{number}": hashlib.sha256(b"%d" % number).hexdigest() for number in range(300)}
    origin = replace(FACTS, variables={**VARIABLES, **noise}, origins=dict.fromkeys(noise, "EXPLICIT"))
    long = SourceServer.of(origin, {"data": "tank/data"}, {"data": "/x"}, ())
    assert len(long.encode().encode()) <= PROPERTY_BYTES
    read = decode(long.encode(), "x")
    assert read.unlogged_gtids is None
    assert read.variables["datadir"] == VARIABLES["datadir"]
    assert 0 < len(set(read.variables) & set(noise)) < len(noise)


@pytest.mark.parametrize(
    "text", ["zlib:", "zlib:abc", "zlib:é", "zlib:" + bomb()], ids=["empty", "short", "no base", "bomb"]
)
def test_a_packed_property_that_cannot_be_read_is_damage(text: str) -> None:
    with pytest.raises(DamagedError, match="tank/x"):
        decode(text, "tank/x")


@pytest.mark.parametrize(
    "line",
    [
        "admin_address=10.0.0.1",
        "loose-init-file=/x.sql",
        "general_log_file = /var/log/x",
        "[client]",
        "!include /etc/my.cnf",
        "skip-grant-tables",
    ],
)
def test_an_option_that_nothing_takes_back_is_refused(line: str) -> None:
    identity = ServerIdentity(4711, 33070, "/c/.zsnapdb", "mysql", LoginAccess.ACCOUNTS)
    with pytest.raises(PreflightError, match=r"server\.options"):
        option_file(Flavour.MYSQL, {"datadir": "/d"}, PathMap((("/d", "/c"),)), identity, [line])


def test_a_profile_stands_after_the_sites_own_options() -> None:
    assert ServerProfile.TINY.options
    assert ServerProfile.NORMAL.options == ()


def test_loopback_is_told_from_what_others_reach() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "*", "10.0.0.1", "::")))
