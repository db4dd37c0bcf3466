"""Statements of every kind that a binlog may hold, on either flavour: what the tests of the binlog reader run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Statements of one kind.

    `b: …` runs on a second connection, `fails: …` must be refused, `b: leaves` closes the connection.

    `before` and `after` change settings of the whole server and change them back. `writes` are the types of the events
    that the kind is here for: without them it would prove nothing.
    """

    steps: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    writes: frozenset[int] = frozenset()


def setting(name: str, value: str, usual: str, *steps: str, writes: frozenset[int] = frozenset()) -> Kind:
    """A kind under a setting of the whole server."""
    return Kind(steps, (f"SET GLOBAL {name} = {value}",), (f"SET GLOBAL {name} = {usual}",), writes)


ROTATE, INTVAR, RAND, USER_VAR, BEGIN_LOAD, EXECUTE_LOAD, INCIDENT, ROWS_QUERY = 4, 5, 13, 14, 17, 18, 26, 29
ANONYMOUS_GTID, XA_PREPARE, PAYLOAD, TAGGED_GTID, QUERY_COMPRESSED, ROWS_COMPRESSED = 34, 38, 40, 42, 165, 166


PLAIN = (
    "INSERT INTO i (b) VALUES ('autocommit')",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one'), ('two')",
    "UPDATE i SET b = 'COMMIT' WHERE b = 'one'",
    "commit",
    "START TRANSACTION",
    "INSERT INTO i (b) VALUES ('gone')",
    "rollback",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('kept')",
    "SAVEPOINT here",
    "INSERT INTO i (b) VALUES ('not kept')",
    "ROLLBACK TO here",
    "RELEASE SAVEPOINT here",
    "COMMIT",
    "UPDATE i SET b = 'nothing' WHERE id < 0",
    "/* COMMIT */ INSERT INTO i (b) VALUES ('ROLLBACK')",
    "INSERT INTO i (b) SELECT b FROM i LIMIT 3",
    "DELETE FROM i LIMIT 1",
    "fails: INSERT INTO i (id) VALUES (99999), (99999)",
    "BEGIN",
    "COMMIT",
)
EMPTY = ("BEGIN", "SELECT 1", "COMMIT")
DEFINITIONS = (
    "CREATE TABLE d (id INT PRIMARY KEY) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS d (id INT PRIMARY KEY)",
    "fails: CREATE TABLE d (id INT PRIMARY KEY)",
    "/* BEGIN */ create table e like d",
    "-- COMMIT\ncreate table g (id int) engine=myisam",
    "ALTER TABLE d ADD COLUMN c INT",
    "ALTER TABLE d ENGINE=InnoDB",
    "CREATE INDEX c ON d (c)",
    "RENAME TABLE e TO f",
    "TRUNCATE TABLE d",
    "TRUNCATE TABLE g",
    "CREATE VIEW v AS SELECT * FROM d",
    "CREATE TRIGGER r BEFORE INSERT ON d FOR EACH ROW SET NEW.c = 1",
    "INSERT INTO d (id) VALUES (1)",
    "CREATE PROCEDURE p () BEGIN INSERT INTO d (id) VALUES (2); INSERT INTO i (b) VALUES ('p'); COMMIT; END",
    "CALL p()",
    (
        "CREATE FUNCTION n () RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO i (b) VALUES ('f'); RETURN"
        " 1; END"
    ),
    "SELECT n()",
    "CREATE EVENT later ON SCHEDULE AT '2037-01-01 00:00:00' DISABLE DO SET @x = 1",
    "DROP EVENT later",
    "CREATE USER tail_user@localhost IDENTIFIED BY 'x'",
    "GRANT SELECT ON tail.* TO tail_user@localhost",
    "ALTER USER tail_user@localhost IDENTIFIED BY 'y'",
    "DROP USER tail_user@localhost",
    "CREATE TEMPORARY TABLE y (id INT)",
    "INSERT INTO y VALUES (1)",
    "INSERT INTO i (b) SELECT id FROM y",
    "DROP TEMPORARY TABLE y",
    "DROP TABLE IF EXISTS nothing",
    "ANALYZE TABLE d",
    "OPTIMIZE TABLE d",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('committed by the next statement')",
    "CREATE DATABASE tail2",
    "CREATE TABLE tail2.t (id INT)",
    "DROP DATABASE tail2",
    "DROP VIEW v",
    "DROP PROCEDURE p",
    "DROP FUNCTION n",
    "DROP TABLE d, f, g",
    "FLUSH TABLES",
)
COPIED = ("CREATE TABLE s SELECT * FROM i", "CREATE TABLE s2 SELECT * FROM i WHERE id < 0", "DROP TABLE s, s2")
# MySQL refuses this where it gives GTIDs.
COPIED_WITHOUT_TRANSACTIONS = ("CREATE TABLE s3 ENGINE=MyISAM SELECT * FROM i LIMIT 2", "DROP TABLE s3")
NO_TRANSACTIONS = (
    "INSERT INTO m (b) VALUES ('one')",
    "UPDATE m SET b = 'two'",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('kept, whatever follows')",
    "ROLLBACK",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('kept')",
    "COMMIT",
    "fails: INSERT INTO m (id) VALUES (99999), (99999)",
    "DELETE FROM m LIMIT 2",
)
MIXED_ENGINES = (
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one')",
    "INSERT INTO m (b) VALUES ('one')",
    "COMMIT",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('one')",
    "INSERT INTO i (b) VALUES ('one')",
    "rollback",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one')",
    "INSERT INTO m (b) VALUES ('one')",
    "SAVEPOINT here",
    "INSERT INTO m (b) VALUES ('two')",
    "INSERT INTO i (b) VALUES ('two')",
    "ROLLBACK TO SAVEPOINT here",
    "Rollback",
    "UPDATE i, m SET i.b = 'both', m.b = 'both' WHERE i.id = m.id",
    *COPIED_WITHOUT_TRANSACTIONS,
)
ALL_MIXED_ENGINES = (
    *MIXED_ENGINES,
    "SET SESSION binlog_format = STATEMENT",
    *MIXED_ENGINES,
    "SET SESSION binlog_direct_non_transactional_updates = ON",
    *MIXED_ENGINES,
)
STATEMENTS = (
    *PLAIN,
    *NO_TRANSACTIONS,
    "SET @b = 'variable'",
    "INSERT INTO i (b) VALUES (@b)",
    "INSERT INTO m (b) VALUES (@b)",
    "INSERT INTO i (b) VALUES (RAND())",
    "INSERT INTO m (b) VALUES (LAST_INSERT_ID())",
    "LOAD DATA INFILE '{lines}' INTO TABLE i (b)",
    "LOAD DATA INFILE '{lines}' INTO TABLE m (b)",
    "CREATE PROCEDURE p2 () BEGIN INSERT INTO i (b) VALUES ('p'); INSERT INTO m (b) VALUES ('p'); END",
    "CALL p2()",
    "DROP PROCEDURE p2",
    (
        "CREATE FUNCTION n2 () RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO j (b) VALUES ('f'); RETURN"
        " 1; END"
    ),
    "SELECT n2()",
    "INSERT INTO i (b) VALUES (n2())",
    "DROP FUNCTION n2",
    "CREATE TEMPORARY TABLE y2 (id INT) ENGINE=MyISAM",
    "INSERT INTO y2 VALUES (1)",
    "INSERT INTO i (b) SELECT id FROM y2",
    "DROP TEMPORARY TABLE y2",
    "CREATE TABLE s4 (id INT)",
    "DROP TABLE s4",
)
ROTATION = ("FLUSH BINARY LOGS", "INSERT INTO i (b) VALUES ('new file')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
LARGE = (
    "BEGIN",
    "INSERT INTO i (b) VALUES (REPEAT('x', 1000000))",
    "INSERT INTO i (b) VALUES (REPEAT('y', 1000000))",
    "INSERT INTO i (b) SELECT b FROM i WHERE LENGTH(b) = 1000000",
    "COMMIT",
    "DELETE FROM i WHERE LENGTH(b) = 1000000",
    "FLUSH BINARY LOGS",
)
# A change that cannot be rolled back and does not fit the cache: the server notes an incident in its binlog, and
# rotates.
NOT_LOGGED = setting(
    "max_binlog_stmt_cache_size",
    "4096",
    "DEFAULT",
    "INSERT INTO i (b) VALUES ('before')",
    "fails: INSERT INTO m (b) SELECT REPEAT('x', 9000) FROM (SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4"
    " UNION SELECT 5 UNION SELECT 6) six",
    "INSERT INTO i (b) VALUES ('after')",
    writes=frozenset({INCIDENT}),
)
XA = (
    "XA START 'one'",
    "INSERT INTO i (b) VALUES ('one')",
    "XA END 'one'",
    "XA PREPARE 'one'",
    "leaves",
    "b: INSERT INTO i (b) VALUES ('meanwhile')",
    "b: XA COMMIT 'one'",
    "XA START 'two', 'branch', 5",
    "INSERT INTO i (b) VALUES ('two')",
    "XA END 'two', 'branch', 5",
    "XA PREPARE 'two', 'branch', 5",
    "b: INSERT INTO i (b) VALUES ('meanwhile')",
    "leaves",
    "b: XA ROLLBACK 'two', 'branch', 5",
    "XA START 'three'",
    "INSERT INTO i (b) VALUES ('three')",
    "XA END 'three'",
    "XA COMMIT 'three' ONE PHASE",
    "XA START 'four'",
    "INSERT INTO i (b) VALUES ('four')",
    "XA END 'four'",
    "XA ROLLBACK 'four'",
    "XA START 'five'",
    "INSERT INTO i (b) VALUES ('five')",
    "XA END 'five'",
    "XA PREPARE 'five'",
    "XA COMMIT 'five'",
    "XA START 'six'",
    "XA END 'six'",
    "XA PREPARE 'six'",
    "XA COMMIT 'six'",
)
CHECKSUMS = (
    "INSERT INTO i (b) VALUES ('before')",
    "SET GLOBAL binlog_checksum = NONE",
    *PLAIN,
    *NO_TRANSACTIONS,
    "CREATE TABLE x (id INT)",
    "DROP TABLE x",
    "FLUSH BINARY LOGS",
    "INSERT INTO i (b) VALUES ('none')",
    "SET GLOBAL binlog_checksum = CRC32",
    "INSERT INTO i (b) VALUES ('after')",
)

BOTH = {
    "transactions": Kind((*PLAIN, *EMPTY)),
    "definitions": Kind(DEFINITIONS),
    "tables made of others": Kind(COPIED),
    "engines without transactions": Kind(NO_TRANSACTIONS),
    "statement format": Kind(
        ("SET SESSION binlog_format = STATEMENT", *STATEMENTS),
        writes=frozenset({INTVAR, RAND, USER_VAR, BEGIN_LOAD, EXECUTE_LOAD}),
    ),
    "mixed format": Kind(("SET SESSION binlog_format = MIXED", *STATEMENTS, "INSERT INTO i (b) VALUES (UUID())")),
    "definitions in statement format": Kind(("SET SESSION binlog_format = STATEMENT", *DEFINITIONS, *COPIED)),
    "rotation": Kind(ROTATION),
    "large transactions": Kind(LARGE),
    "xa": Kind(XA, writes=frozenset({XA_PREPARE})),
    "changes that could not be logged": NOT_LOGGED,
    "checksums off and on": Kind(CHECKSUMS, after=("SET GLOBAL binlog_checksum = CRC32",)),
}
