"""A server on a copy gets its own paths and identity, and no option that acts by itself."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.server_copy.copy_options import (
    BRIEF,
    LoginAccess,
    PathMap,
    ServerIdentity,
    log_files,
    option_file,
    rewrite_index,
    tls_keys,
)

PATHS = PathMap((("/var/lib/mysql", "/clones/c"), ("/var/lib/mysql/data", "/clones/c/data")))
VARIABLES = {
    "datadir": "/var/lib/mysql/data/",
    "innodb_log_group_home_dir": "/var/lib/mysql",
    "innodb_undo_directory": "./",
    "innodb_data_file_path": "ibdata1:12M:autoextend",
    "log_bin": "ON",
    "log_bin_basename": "/var/lib/mysql/binlog",
    "log_bin_index": "/var/lib/mysql/binlog.index",
    "relay_log_basename": "/var/lib/mysql/relay",
    "relay_log_index": "",
    "innodb_page_size": "16384",
    "gtid_mode": "ON",
}


def made(
    flavour: Flavour = Flavour.MYSQL,
    port: int | None = 33070,
    access: LoginAccess = LoginAccess.ACCOUNTS,
    **changed: str,
) -> list[str]:
    identity = ServerIdentity(4711, port, "/clones/c/.zsnapdb", "mysql", access)
    return option_file(flavour, {**VARIABLES, **changed}, PATHS, identity, ["innodb_buffer_pool_size=64M"]).splitlines()


def test_every_path_points_into_the_copy() -> None:
    lines = made()
    assert "datadir=/clones/c/data" in lines
    assert "innodb_log_group_home_dir=/clones/c" in lines
    assert "innodb_undo_directory=/clones/c/data" in lines
    assert "log_bin=/clones/c/binlog" in lines
    assert "log_bin_index=/clones/c/binlog.index" in lines
    assert "relay_log=/clones/c/relay" in lines
    assert not any("/var/lib/mysql" in line for line in lines)


def test_triggers_and_functions_need_no_right_over_the_server_where_that_is_set() -> None:
    line = "loose_log_bin_trust_function_creators=ON"
    identity = ServerIdentity(4711, 33070, "/c/.zsnapdb", "mysql", LoginAccess.ACCOUNTS, trusts_creators=True)
    assert line in option_file(Flavour.MYSQL, VARIABLES, PATHS, identity, ()).splitlines()
    assert line not in made()


def test_nothing_in_the_copy_acts_by_itself() -> None:
    lines = made()
    for line in (
        "event_scheduler=OFF",
        "loose_skip_replica_start=ON",
        "loose_skip_slave_start=ON",
        "loose_mysqlx=OFF",
        "loose_persisted_globals_load=OFF",
    ):
        assert line in lines


def test_the_sites_options_cannot_bring_back_a_path_an_identity_or_the_event_scheduler() -> None:
    lines = made()
    site = lines.index("innodb_buffer_pool_size=64M")
    for line in ("event_scheduler=OFF", "server_id=4711", "bind_address=127.0.0.1", "port=33070"):
        assert lines.index(line) > site


def test_a_private_socket_has_no_network_and_no_accounts() -> None:
    lines = made(port=None, access=LoginAccess.PRIVATE_SOCKET)
    assert "skip_networking=ON" in lines
    assert {"skip_grant_tables", *BRIEF} <= set(lines)
    assert not any(line.startswith("port=") for line in lines)


def test_a_server_without_a_network_makes_no_keys_and_a_served_one_does() -> None:
    private, served = made(port=None, access=LoginAccess.PRIVATE_SOCKET), made()
    assert "loose_auto_generate_certs=OFF" in private
    assert not any("auto_generate" in line for line in served)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ()),
        ("server-key.pem", ("/clones/c/data/server-key.pem",)),
        ("/var/lib/mysql/tls/key", ("/clones/c/tls/key",)),
        ("/etc/mysql/key.pem", ()),
        ("../../../../etc/shadow", ()),
        ("/var/lib/mysql/../../../etc/shadow", ()),
    ],
)
def test_the_keys_that_are_removed_are_those_of_the_copy_alone(value: str, expected: tuple[str, ...]) -> None:
    assert tls_keys({**VARIABLES, "ssl_key": value, "admin_ssl_key": value}, PATHS) == expected


def test_a_served_copy_listens_on_loopback_and_asks_for_accounts() -> None:
    lines = made()
    assert "bind_address=127.0.0.1" in lines
    assert not {"skip_grant_tables", *BRIEF} & set(lines)


def test_mariadb_gets_its_own_section_and_options() -> None:
    lines = made(Flavour.MARIADB, aria_log_dir_path="/var/lib/mysql/data/", gtid_strict_mode="ON")
    assert "[mariadbd]" in lines
    assert "aria_log_dir_path=/clones/c/data" in lines
    assert "gtid_strict_mode=ON" in lines
    assert "gtid_mode=ON" not in lines


def test_a_path_outside_the_volumes_is_refused() -> None:
    with pytest.raises(PreflightError, match="/srv/undo"):
        made(innodb_undo_directory="/srv/undo")


def test_a_name_that_only_begins_like_a_volume_is_outside() -> None:
    with pytest.raises(PreflightError):
        PATHS.translate("/var/lib/mysql2/x")


def test_indices_are_rewritten_line_by_line_and_end_in_a_newline() -> None:
    assert (
        rewrite_index("/var/lib/mysql/binlog.000001\n./binlog.000002", "/clones/c")
        == "/clones/c/binlog.000001\n/clones/c/binlog.000002\n"
    )


def test_both_indices_are_found_also_where_the_server_only_implies_them() -> None:
    assert [index for _, index in log_files(VARIABLES)] == ["/var/lib/mysql/binlog.index", "/var/lib/mysql/relay.index"]


def test_an_absolute_system_tablespace_is_translated() -> None:
    lines = made(innodb_data_file_path="/var/lib/mysql/ibdata1:12M;ibdata2:12M:autoextend", innodb_data_home_dir="")
    assert "innodb_data_file_path=/clones/c/ibdata1:12M;ibdata2:12M:autoextend" in lines


def test_a_recorded_variable_cannot_smuggle_in_a_line() -> None:
    with pytest.raises(PreflightError, match="which is not a valid value"):
        made(sql_mode="ANSI\nskip_grant_tables")


@pytest.mark.parametrize(
    "value", ["../../../etc/x:12M", "a/../../../b:12M", "ibdata1:12M autoextend", "ibdata1:12M:x\ny"]
)
def test_a_recorded_data_file_cannot_lead_out_of_the_copy(value: str) -> None:
    with pytest.raises(PreflightError, match=r"points outside the copy|is on none of the backup's volumes"):
        made(innodb_data_file_path=value)


@pytest.mark.parametrize("value", ["/etc/passwd", "ON\tx", "a b", "$(x)", "`x`"])
def test_a_recorded_variable_is_a_number_a_switch_or_names(value: str) -> None:
    with pytest.raises(PreflightError, match="which is not a valid value"):
        made(character_set_server=value)
