"""Statements that only one flavour knows, and all kinds together."""

from __future__ import annotations

import os

from zsnapdb.base.domain_types import Flavour

from .binlog_statements import (
    ALL_MIXED_ENGINES,
    ANONYMOUS_GTID,
    BOTH,
    COPIED,
    DEFINITIONS,
    LARGE,
    MIXED_ENGINES,
    NO_TRANSACTIONS,
    PAYLOAD,
    PLAIN,
    QUERY_COMPRESSED,
    ROTATE,
    ROWS_COMPRESSED,
    ROWS_QUERY,
    STATEMENTS,
    TAGGED_GTID,
    XA,
    XA_PREPARE,
    Kind,
    setting,
)

FLAVOUR = Flavour(os.environ.get("LAB_FLAVOUR", "mysql"))
FOREIGN = "aaaaaaaa-0000-0000-0000-0000000000ff"


def tags(tag: str, other: str, number: int) -> tuple[str, ...]:
    """Transactions with tags; those with a number of their own can be made only once."""
    return (
        f"SET gtid_next = 'AUTOMATIC:{tag}'",
        "INSERT INTO i (b) VALUES ('tag')",
        "CREATE TABLE w (id INT)",
        "BEGIN",
        "INSERT INTO i (b) VALUES ('tag')",
        "COMMIT",
        "SET gtid_next = 'AUTOMATIC:_a_tag_of_thirty_two_characters_'",
        "INSERT INTO i (b) VALUES ('long')",
        "DROP TABLE w",
        *[
            step
            for n in (70, 73, 72, 2**31, 5_000_000_000, 2**56 + 1, 2**63 - 2)
            for step in (f"SET gtid_next = '{FOREIGN}:{tag}:{n}'", f"INSERT INTO i (b) VALUES ('{n}')")
        ],
        f"SET gtid_next = '{FOREIGN}:{tag}:75'",
        "INSERT INTO m (b) VALUES ('75')",
        f"SET gtid_next = '{FOREIGN}:{other}:1'",
        "BEGIN",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{other}:2'",
        "CREATE TABLE w (id INT)",
        f"SET gtid_next = '{FOREIGN}:{number}'",
        "DROP TABLE w",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO i (b) VALUES ('no tag')",
    )


def new_files(tag: str) -> tuple[str, ...]:
    """Files whose header has tags."""
    return (
        "FLUSH BINARY LOGS",
        "INSERT INTO i (b) VALUES ('no tag')",
        f"SET gtid_next = 'AUTOMATIC:{tag}'",
        "INSERT INTO i (b) VALUES ('tag')",
        "FLUSH BINARY LOGS",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO i (b) VALUES ('no tag')",
    )


def empty(first: int) -> tuple[str, ...]:
    """Transactions of MySQL with nothing in them, for which it has GTIDs."""
    return (
        f"SET gtid_next = '{FOREIGN}:{first + 1}'",
        "BEGIN",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{first}'",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{first + 4}'",
        "BEGIN",
        "INSERT INTO i (b) VALUES ('gone')",
        "ROLLBACK",
        "SET gtid_next = 'AUTOMATIC'",
    )


COMPRESSED = "SET SESSION binlog_transaction_compression = ON"
MYSQL = {
    "tags": Kind((*tags("blue", "green", 5), *new_files("blue")), writes=frozenset({TAGGED_GTID})),
    "compressed": Kind(
        (COMPRESSED, *PLAIN, *DEFINITIONS, *COPIED, *NO_TRANSACTIONS, *LARGE), writes=frozenset({PAYLOAD})
    ),
    "compressed xa": Kind((COMPRESSED, *XA), writes=frozenset({XA_PREPARE})),
    "compressed tags": Kind(
        (COMPRESSED, *tags("lime", "rose", 6), *new_files("lime")), writes=frozenset({PAYLOAD, TAGGED_GTID})
    ),
    "empty transactions": Kind(empty(10)),
    "no gtids": Kind(
        (*PLAIN, *ALL_MIXED_ENGINES, "SET SESSION binlog_format = MIXED", *STATEMENTS),
        (
            "SET GLOBAL gtid_mode = ON_PERMISSIVE",
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
            "SET GLOBAL enforce_gtid_consistency = OFF",
        ),
        (
            "SET GLOBAL enforce_gtid_consistency = ON",
            "SET GLOBAL gtid_mode = ON_PERMISSIVE",
            "SET GLOBAL gtid_mode = ON",
        ),
        frozenset({ANONYMOUS_GTID}),
    ),
    "statements beside rows": Kind(
        ("SET SESSION binlog_rows_query_log_events = ON", *PLAIN), writes=frozenset({ROWS_QUERY})
    ),
}
DOMAINS = (
    "SET SESSION gtid_domain_id = 7",
    "INSERT INTO i (b) VALUES ('seven')",
    "SET SESSION server_id = 5",
    "INSERT INTO i (b) VALUES ('seven, five')",
    "SET SESSION server_id = 4",
    "INSERT INTO i (b) VALUES ('seven, four')",
    "SET SESSION server_id = 5",
    "CREATE TABLE w (id INT)",
    "SET SESSION gtid_domain_id = 4294967295",
    "INSERT INTO m (b) VALUES ('the last domain there can be')",
    "SET SESSION gtid_domain_id = 7, server_id = 1",
    "DROP TABLE w",
)
REPLACED = (
    "CREATE OR REPLACE TABLE o (id INT)",
    "CREATE OR REPLACE TABLE o SELECT * FROM i",
    "CREATE OR REPLACE TABLE o (id INT) ENGINE=MyISAM",
    "CREATE OR REPLACE VIEW ov AS SELECT 1",
    "DROP VIEW ov",
    "DROP TABLE o",
)
TWO_PHASES = (
    "SET SESSION binlog_alter_two_phase = ON",
    "ALTER TABLE i ADD COLUMN c INT",
    "ALTER TABLE m ADD COLUMN c INT",
    "INSERT INTO i (c) VALUES (1), (1)",
    "fails: ALTER TABLE i ADD UNIQUE (c)",
    "fails: ALTER TABLE i ADD UNIQUE (c), ALGORITHM=COPY",
    "ALTER TABLE i DROP COLUMN c",
    "ALTER TABLE m DROP COLUMN c",
)
SEQUENCES = (
    "CREATE SEQUENCE q CACHE 2",
    "SELECT NEXTVAL(q)",
    "SELECT NEXTVAL(q)",
    "SELECT NEXTVAL(q)",
    "BEGIN",
    "SELECT NEXTVAL(q), NEXTVAL(q)",
    "INSERT INTO i (b) VALUES (NEXTVAL(q))",
    "COMMIT",
    "SELECT SETVAL(q, 100)",
    "ALTER SEQUENCE q INCREMENT 2",
    "SET SESSION binlog_format = MIXED",
    "INSERT INTO i (b) VALUES (NEXTVAL(q))",
    "DROP SEQUENCE q",
)
MARIADB = {
    "transactions over several engines": Kind(ALL_MIXED_ENGINES),
    "domains and servers": Kind(
        (
            *DOMAINS,
            "FLUSH BINARY LOGS",
            "SET SESSION gtid_domain_id = 0",
            "INSERT INTO i (b) VALUES ('zero')",
            "FLUSH BINARY LOGS",
        )
    ),
    "compressed": setting(
        "log_bin_compress",
        "ON",
        "OFF",
        *PLAIN,
        *DEFINITIONS,
        *COPIED,
        *MIXED_ENGINES,
        *LARGE,
        *XA,
        writes=frozenset({ROWS_COMPRESSED, XA_PREPARE}),
    ),
    "compressed statements": Kind(
        ("SET SESSION binlog_format = STATEMENT", *STATEMENTS, *DEFINITIONS, *MIXED_ENGINES, *LARGE, *XA),
        ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
        ("SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = DEFAULT"),
        frozenset({QUERY_COMPRESSED, XA_PREPARE}),
    ),
    "aria": Kind(
        (
            "CREATE TABLE a (id INT PRIMARY KEY, b TEXT) ENGINE=Aria TRANSACTIONAL=1",
            "INSERT INTO a VALUES (1, 'one')",
            "BEGIN",
            "INSERT INTO a VALUES (2, 'two')",
            "INSERT INTO i (b) VALUES ('two')",
            "ROLLBACK",
            "DROP TABLE a",
        )
    ),
    "atomic replacement": Kind(REPLACED),
    "alter in two phases": Kind(TWO_PHASES),
    "sequences": Kind(SEQUENCES),
    "compound statements": Kind(
        (
            (
                "BEGIN NOT ATOMIC START TRANSACTION; INSERT INTO i (b) VALUES ('c'); COMMIT; INSERT INTO m (b) VALUES"
                " ('c'); END"
            ),
        )
    ),
    "xa in statement format": Kind(("SET SESSION binlog_format = STATEMENT", *XA)),
    "commits by rename": setting(
        "binlog_large_commit_threshold",
        "10485760",
        "DEFAULT",
        "INSERT INTO i (b) VALUES (REPEAT('x', 1000000))",
        "BEGIN",
        "INSERT INTO i (b) SELECT x.b FROM i AS x, seq_1_to_12 WHERE LENGTH(x.b) = 1000000",
        "COMMIT",
        "INSERT INTO i (b) VALUES ('after')",
        "DELETE FROM i WHERE LENGTH(b) = 1000000",
        # The file of the transaction's cache becomes the next binlog.
        writes=frozenset({ROTATE}),
    ),
}
KINDS = {**BOTH, **(MYSQL if FLAVOUR is Flavour.MYSQL else MARIADB)}
# One file with a little of everything, to be cut and damaged. MySQL is given GTIDs of its own again, as they can be
# made only once.
ALSO = {
    Flavour.MYSQL: (*tags("cut", "cut_too", 7), *empty(20), COMPRESSED, *PLAIN, *COPIED, *NO_TRANSACTIONS),
    Flavour.MARIADB: (*DOMAINS, *REPLACED, *TWO_PHASES, *SEQUENCES, *ALL_MIXED_ENGINES),
}
WORDS = {
    Flavour.MYSQL: (
        "Transaction_Payload",
        "XA PREPARE",
        "XA COMMIT",
        "XA ROLLBACK",
        "START TRANSACTION",
        ":cut_too:1'",
        ":cut:9223372036854775806'",
    ),
    Flavour.MARIADB: (
        " START ALTER ",
        " COMMIT ALTER ",
        " ROLLBACK ALTER ",
        "XA PREPARE",
        "XA COMMIT",
        "XA ROLLBACK",
        "4294967295-5-",
    ),
}
EVERYTHING = (
    *PLAIN,
    *NO_TRANSACTIONS,
    *COPIED,
    *XA,
    *ALSO[FLAVOUR],
    "SET SESSION binlog_format = STATEMENT",
    *STATEMENTS,
)
