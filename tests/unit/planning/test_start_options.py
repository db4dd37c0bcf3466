"""Only errors about the options of a server count, as real server programs print them."""

from __future__ import annotations

import pytest

from zsnapdb.planning.server_family import MARIADB, MYSQL, Family
from zsnapdb.planning.start_options import ServerStart, parse_exec_start, refused_options

OUTPUTS: list[tuple[Family, int, str, tuple[str, ...]]] = [
    (MARIADB, 0, "[Warning] failed to retrieve the MAC address", ()),
    (MARIADB, 7, "[ERROR] /usr/sbin/mariadbd: unknown variable 'sync_binlgo=1'", ("unknown variable 'sync_binlgo'",)),
    (MARIADB, 2, "[ERROR] /usr/sbin/mariadbd: unknown option '--skip_foo'", ("unknown option '--skip_foo'",)),
    (MARIADB, 0, "[Warning] /usr/sbin/mariadbd: unknown variable 'loose_foo=1'", ()),
    (MARIADB, 7, "[Warning] /usr/sbin/mariadbd: unknown variable 'loose_foo=1'", ()),
    (
        MARIADB,
        9,
        "[ERROR] Buffered error: /usr/sbin/mariadbd: Error while setting value 'abc' to 'max_connections'",
        ("Error while setting value 'abc' to 'max_connections'",),
    ),
    (
        MARIADB,
        5,
        "[ERROR] /usr/sbin/mariadbd: option '--port' requires an argument",
        ("option '--port' requires an argument",),
    ),
    (
        MARIADB,
        0,
        (
            "[ERROR] /usr/sbin/mariadbd: Error while setting value 'xyz' to 'innodb-buffer-pool-size'\n"
            "[ERROR] Parsing options for plugin 'InnoDB' failed. Disabling plugin"
        ),
        ("Error while setting value 'xyz' to 'innodb-buffer-pool-size'",),
    ),
    (
        MARIADB,
        1,
        "/usr/sbin/mariadbd: Character set 'foo' is not a compiled character set and is not specified in the 'I' file",
        ("Character set 'foo' is not a compiled character set",),
    ),
    (MARIADB, 1, "Could not open required defaults file: /etc/my.cnf", ()),
    (MARIADB, 0, "[ERROR] Couldn't load plugins from 'nonexist.so'.", ()),
    (MYSQL, 0, "", ()),
    (
        MYSQL,
        1,
        "0 [ERROR] [MY-000067] [Server] unknown variable 'pasword=secret'.\n[ERROR] [MY-010119] [Server] Aborting",
        ("unknown variable 'pasword'",),
    ),
    (MYSQL, 1, "[ERROR] [Server] unknown option '--validate-config'.", ()),
    (MYSQL, 1, "mysqld: [ERROR] Failed to open required defaults file: /tmp/t.cnf", ()),
]


@pytest.mark.parametrize(("family", "status", "output", "refused"), OUTPUTS)
def test_refused_options_are_found_in_real_output(
    family: Family, status: int, output: str, refused: tuple[str, ...]
) -> None:
    assert refused_options(status, output, family.option_check) == refused


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("/usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER", ServerStart("/usr/sbin/mariadbd", ())),
        ("/usr/sbin/mysqld", ServerStart("/usr/sbin/mysqld", ())),
        (
            "/opt/mysqld-9.7 --defaults-file=/etc/x.cnf --port=1",
            ServerStart("/opt/mysqld-9.7", ("--defaults-file=/etc/x.cnf", "--port=1")),
        ),
        ("/usr/bin/mysqld_safe --user=mysql", None),
        ("/bin/sh -c /usr/sbin/mysqld", None),
    ],
)
def test_start_command_is_read_from_the_unit(argv: str, expected: ServerStart | None) -> None:
    path = argv.partition(" ")[0]
    shown = f"{{ path={path} ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; code=(null) }}"
    assert parse_exec_start(shown) == expected
    assert parse_exec_start("") is None
